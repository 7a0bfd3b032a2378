// SPDX-License-Identifier: MIT
#include "aot/aot_images.h"

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

#include "aot/aot_cache.h"

namespace stackpipe {

namespace {

Status OutOfMemory() { return {StatusCode::kOutOfMemory, "there is no memory for an AOT image"}; }

class LockGuard {
 public:
  explicit LockGuard(internal::ForkSafeLock& lock) noexcept : lock_(lock) { lock_.Lock(); }
  ~LockGuard() { lock_.Unlock(); }
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  internal::ForkSafeLock& lock_;
};

bool IsSorted(const AotMethodTable& table) {
  return std::adjacent_find(table.starts, table.starts + table.count, std::greater_equal<>()) ==
         table.starts + table.count;
}

}  // namespace

struct AotImages::Image {
  // Constant while the image is known.
  CodeId id = 0;
  std::uintptr_t start = 0;
  std::size_t size = 0;
  AotMethodTable table;
  std::unique_ptr<AotSource> source;
  AotOrigin origin;

  AotCache cache;

  // Set once. Handlers that still see the image in a snapshot pass it over; one that has not seen the flag
  // yet finds a method of the image that was there when it began. Pairs: UnregisterImage stores, DecodeIn
  // loads.
  std::atomic<bool> closed{false};
  static_assert(std::atomic<bool>::is_always_lock_free);

  // Under the lock.
  CodeEpoch death = 0;            // no sample of it carries this epoch or a later one; 0: not known yet
  std::uint64_t last_serial = 0;  // of the last snapshot that had it

  // Fills in the method that holds `offset`, except the kind and size. False: none can.
  bool FindStart(std::size_t offset, AotHit* out) const noexcept {
    std::uint32_t count = table.count;
    const std::uint32_t* at = table.starts;
    while (count > 1) {
      const std::uint32_t half = count / 2;
      at += at[half] <= offset ? half : 0;
      count -= half;
    }
    out->image = id;
    out->method = static_cast<std::uint32_t>(at - table.starts);
    out->start = start + *at;
    return *at <= offset;
  }

  // The same for the rest, if `code` does hold `offset`.
  AotResult Finish(std::size_t offset, const AotCode& code, AotHit* out) const noexcept {
    if (start + offset - out->start >= code.size) return AotResult::kNoMethod;
    out->kind = code.kind;
    out->size = code.size;
    return AotResult::kFound;
  }
};

struct AotImages::Entry {
  std::uintptr_t start = 0;
  std::size_t size = 0;
  Image* image = nullptr;
};

// Constant once it is published, but for `next`, which handlers do not read.
struct AotImages::Snapshot {
  std::uint64_t serial = 0;
  std::size_t count = 0;
  std::unique_ptr<Entry[]> entries;  // ascending
  mutable const Snapshot* next = nullptr;

  // Null: out of memory.
  static std::unique_ptr<Snapshot> Make(std::size_t capacity) {
    std::unique_ptr<Snapshot> snapshot(new (std::nothrow) Snapshot);
    if (snapshot == nullptr) return nullptr;
    snapshot->entries.reset(new (std::nothrow) Entry[capacity]);
    return snapshot->entries == nullptr ? nullptr : std::move(snapshot);
  }
  void Append(const Entry& entry) { entries[count++] = entry; }
};

struct AotImages::Known {
  std::size_t count = 0;
  std::unique_ptr<Image*[]> images;  // by id, ascending

  static std::unique_ptr<Known> Make(std::size_t capacity) {
    std::unique_ptr<Known> known(new (std::nothrow) Known);
    if (known == nullptr) return nullptr;
    known->images.reset(new (std::nothrow) Image*[capacity]);
    return known->images == nullptr ? nullptr : std::move(known);
  }
  void Append(Image* image) { images[count++] = image; }
  Image** begin() const { return images.get(); }
  Image** end() const { return images.get() + count; }
};

AotImages::AotImages(CodeMap& code, const AotImagesOptions& options) : code_(code), options_(options) {}

AotImages::~AotImages() {
  for (std::atomic<const Snapshot*>* list : {&snapshot_, &fresh_, &waiting_}) {
    while (const Snapshot* snapshot = list->load()) {
      list->store(snapshot->next);
      delete snapshot;
    }
  }
  const std::unique_ptr<const Known> known(known_.load());
  if (known == nullptr) return;
  for (const Image* image : *known) delete image;
}

Result<CodeId> AotImages::RegisterImage(AotImageRegistration registration) {
  if (registration.source == nullptr || registration.size > ~registration.start)
    return Status(StatusCode::kInvalidArgument, "an AOT image needs a source and a range");
  if (registration.size > UINT32_MAX) return Status(StatusCode::kLimit, "an AOT image is below 4 GB");
  const AotMethodTable table = registration.source->table();
  if (table.count == 0 || !IsSorted(table) || table.starts[table.count - 1] >= registration.size)
    return Status(StatusCode::kInvalidArgument, "an AOT image's method table ascends strictly inside it");

  std::unique_ptr<Image> image(new (std::nothrow) Image);
  if (!lock_.ok() || image == nullptr || !image->cache.Reserve(table.count, options_.cached_methods_max))
    return OutOfMemory();
  image->start = registration.start;
  image->size = registration.size;
  image->table = table;
  image->source = std::move(registration.source);
  image->origin = std::move(registration.origin);

  const LockGuard guard(lock_);
  const Snapshot* old_snapshot = snapshot_.load();
  const Known* old_known = known_.load();
  std::unique_ptr<Snapshot> snapshot =
      Snapshot::Make((old_snapshot == nullptr ? 0 : old_snapshot->count) + 1);
  std::unique_ptr<Known> known = Known::Make((old_known == nullptr ? 0 : old_known->count) + 1);
  if (snapshot == nullptr || known == nullptr) return OutOfMemory();
  const Result<CodeId> id = code_.Register({.start = image->start,
                                            .size = image->size,
                                            .kind = CodeKind::kAot,
                                            .module_id = registration.module_id,
                                            .owner = registration.owner,
                                            .name = registration.name});
  if (!id.ok()) return id;
  image->id = id.value();

  if (old_known != nullptr) {
    for (Image* other : *old_known) known->Append(other);
  }
  known->Append(image.get());
  std::sort(known->begin(), known->end(), [](const Image* a, const Image* b) { return a->id < b->id; });
  const Entry entry = {image->start, image->size, image.get()};
  bool placed = false;
  for (std::size_t i = 0; old_snapshot != nullptr && i < old_snapshot->count; ++i) {
    const Entry& other = old_snapshot->entries[i];
    // The map had room for us, so whatever overlaps was retired in the map behind our back.
    if (other.start < entry.start + entry.size && entry.start < other.start + other.size &&
        !other.image->closed.load()) {
      other.image->closed.store(true);
      other.image->death = code_.epoch();
    }
    if (other.image->closed.load()) continue;
    if (!placed && entry.start < other.start) {
      snapshot->Append(entry);
      placed = true;
    }
    snapshot->Append(other);
  }
  if (!placed) snapshot->Append(entry);

  known_.store(known.release());
  delete old_known;
  image.release();  // known_ has it
  Publish(std::move(snapshot));
  return id;
}

// Replaces the snapshot.
void AotImages::Publish(std::unique_ptr<Snapshot> snapshot) {
  const Snapshot* old = snapshot_.load();
  if (snapshot != nullptr) {
    snapshot->serial = next_serial_++;
    for (std::size_t i = 0; i < snapshot->count; ++i)
      snapshot->entries[i].image->last_serial = snapshot->serial;
  }
  snapshot_.store(snapshot.release());  // pairs with the load in Decode
  has_closed_ = false;
  if (old == nullptr) return;
  old->next = fresh_.load();
  fresh_.store(old);
}

Status AotImages::UnregisterImage(CodeId id) {
  if (!lock_.ok()) return OutOfMemory();
  const LockGuard guard(lock_);
  Image* image = FindKnown(id);
  if (image == nullptr || image->closed.load()) return {StatusCode::kNotFound, "there is no such AOT image"};
  image->closed.store(true);  // pairs with the load in DecodeIn
  has_closed_ = true;
  const Status status = code_.Unregister(id);
  image->death = code_.epoch();
  // Where the code map knows it no more, it was retired there with other code.
  return status.code() == StatusCode::kNotFound ? Status() : status;
}

AotResult AotImages::DecodeIn(const Snapshot& snapshot, std::uintptr_t pc, AotHit* out) const noexcept {
  std::size_t count = snapshot.count;
  const Entry* entry = snapshot.entries.get();
  while (count > 1) {
    const std::size_t half = count / 2;
    entry += entry[half].start <= pc ? half : 0;
    count -= half;
  }
  const std::size_t offset = pc - entry->start;  // wraps below the start: then past the end too
  if (offset >= entry->size || entry->image->closed.load()) return AotResult::kNoImage;
  Image& image = *entry->image;
  *out = AotHit();
  if (!image.FindStart(offset, out)) return AotResult::kNoMethod;
  AotCode code;
  if (image.cache.Find(out->method, &code)) return image.Finish(offset, code, out);
  if (!image.source->Decode(out->method, &code)) return AotResult::kNoMethod;
  const AotResult result = image.Finish(offset, code, out);
  if (result == AotResult::kFound &&
      image.cache.Add(out->method, code, &order_) != AotCache::AddResult::kAdded && image.cache.full()) {
    uncached_.fetch_add(1, std::memory_order_relaxed);
  }
  return result;
}

AotImages::Image* AotImages::FindKnown(CodeId id) const {
  const Known* known = known_.load();
  if (known == nullptr) return nullptr;
  Image** at = std::lower_bound(known->begin(), known->end(), id,
                                [](const Image* image, CodeId value) { return image->id < value; });
  return at != known->end() && (*at)->id == id ? *at : nullptr;
}

void AotImages::TakeSeen(std::vector<AotHit>* seen) {
  if (!lock_.ok()) return;
  struct Ordered {
    std::uint32_t order;
    AotHit hit;
  };
  std::vector<Ordered> fresh;
  {
    const LockGuard guard(lock_);
    const Known* known = known_.load();
    if (known == nullptr) return;
    for (Image* image : *known) {
      image->cache.Take([&](const AotCache::Seen& method) {
        fresh.push_back({method.order,
                         {.image = image->id,
                          .method = method.method,
                          .kind = method.code.kind,
                          .start = image->start + image->table.starts[method.method],
                          .size = method.code.size}});
      });
    }
  }
  std::sort(fresh.begin(), fresh.end(), [](const Ordered& a, const Ordered& b) { return a.order < b.order; });
  for (const Ordered& method : fresh) seen->push_back(method.hit);
}

AotResult AotImages::Find(CodeId id, std::uintptr_t pc, AotHit* out) const {
  if (!lock_.ok()) return AotResult::kNoImage;
  const Image* image = nullptr;
  {
    const LockGuard guard(lock_);
    image = FindKnown(id);
  }
  // From here on without the lock: images are freed by the thread that we are on.
  if (image == nullptr || pc - image->start >= image->size) return AotResult::kNoImage;
  *out = AotHit();
  AotCode code;
  if (!image->FindStart(pc - image->start, out) || !image->source->Decode(out->method, &code))
    return AotResult::kNoMethod;
  return image->Finish(pc - image->start, code, out);
}

bool AotImages::DescribeImage(CodeId id, AotHit* range, AotOrigin* origin) const {
  if (!lock_.ok()) return false;
  const Image* image = nullptr;
  {
    const LockGuard guard(lock_);
    image = FindKnown(id);
  }
  if (image == nullptr) return false;
  *range = {.image = id, .kind = CodeKind::kAot, .start = image->start, .size = image->size};
  *origin = image->origin;
  return true;
}

bool AotImages::Describe(CodeId id, std::uint32_t method, AotName* out) const {
  if (!lock_.ok()) return false;
  const Image* image = nullptr;
  {
    const LockGuard guard(lock_);
    image = FindKnown(id);
  }
  if (image == nullptr || method >= image->table.count) return false;
  image->source->Describe(method, out);  // may read a file: not under the lock
  return true;
}

void AotImages::Reclaim(bool quiescent, CodeEpoch oldest_needed) {
  if (!lock_.ok()) return;
  const LockGuard guard(lock_);
  while (const Snapshot* snapshot = quiescent ? waiting_.load() : nullptr) {
    waiting_.store(snapshot->next);
    freed_serial_ = std::max(freed_serial_, snapshot->serial);
    delete snapshot;
  }
  if (has_closed_) Prune();
  while (const Snapshot* snapshot = fresh_.load()) {
    fresh_.store(snapshot->next);
    snapshot->next = waiting_.load();
    waiting_.store(snapshot);
  }

  const Known* old = known_.load();
  const auto is_over = [&](const Image* image) {
    return image->closed.load() && image->last_serial <= freed_serial_ && image->death != 0 &&
           image->death <= oldest_needed;
  };
  if (old == nullptr || std::none_of(old->begin(), old->end(), is_over)) return;
  std::unique_ptr<Known> known = Known::Make(old->count);
  if (known == nullptr) return;  // the next call tries again
  for (Image* image : *old) {
    if (!is_over(image)) known->Append(image);
  }
  known_.store(known.release());
  for (const Image* image : *old) {
    if (is_over(image)) delete image;
  }
  delete old;
}

// Replaces the snapshot by one without the images that are closed.
void AotImages::Prune() {
  const Snapshot* old = snapshot_.load();
  const auto is_closed = [](const Entry& entry) { return entry.image->closed.load(); };
  const Entry* begin = old->entries.get();
  const Entry* end = begin + old->count;
  if (std::all_of(begin, end, is_closed)) return Publish(nullptr);
  std::unique_ptr<Snapshot> snapshot = Snapshot::Make(old->count);
  if (snapshot == nullptr) return;  // the next Reclaim tries again
  for (const Entry* entry = begin; entry != end; ++entry) {
    if (!is_closed(*entry)) snapshot->Append(*entry);
  }
  Publish(std::move(snapshot));
}

std::size_t AotImages::image_count() const {
  if (!lock_.ok()) return 0;
  const LockGuard guard(lock_);
  const Known* known = known_.load();
  return known == nullptr ? 0 : known->count;
}

AotStats AotImages::stats() const {
  AotStats stats{.uncached = uncached_.load(std::memory_order_relaxed)};
  if (!lock_.ok()) return stats;
  const LockGuard guard(lock_);
  const Known* known = known_.load();
  if (known == nullptr) return stats;
  for (const Image* image : *known) {
    stats.cached_methods += image->cache.item_count();
    stats.cache_bytes += image->cache.byte_count();
  }
  return stats;
}

}  // namespace stackpipe
