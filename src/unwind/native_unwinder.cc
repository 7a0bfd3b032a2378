// SPDX-License-Identifier: MIT
//
// NativeUnwinder's part outside handlers: which objects are loaded, their tables, their names. step.cc has
// the rest.
#include "unwind/native_unwinder.h"

#include <limits.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "unwind/cfi_compiler.h"
#include "unwind/elf_image.h"
#include "unwind/loaded_objects.h"
#include "unwind/symbol_table.h"
#include "unwind/unwind_snapshot.h"

namespace stackpipe {
namespace {

constexpr std::uintptr_t kPageSize = 4096;
constexpr std::uint64_t kForever = ~std::uint64_t{0};
// How long objects that went are kept for samples of theirs, although something else is in their place.
constexpr std::uint64_t kKeepGoneNs = 1'000'000'000;

std::uint64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

// What is read of an object's file when something in it is named for the first time.
struct ObjectNames {
  SymbolTable symbols;
  std::vector<AddressRange> functions;  // by CFI
};

// One load of an object.
struct Object {
  LoadedObject loaded;
  std::uint64_t id = 0;
  std::string path;       // what NativeSymbol says
  std::string open_path;  // what is opened
  FileIdentity identity;
  bool verified = false;  // the file was what is mapped
  ImageNotes notes;
  std::uint8_t build_id[20] = {};
  std::uint8_t build_id_size = 0;
  std::vector<std::uint8_t> image;        // of the vdso, which has no file
  std::vector<AddressRange> mapped;       // memory, whole pages
  std::shared_ptr<const CfiTable> table;  // null: none
  std::unique_ptr<ObjectNames> names;     // null: not read yet
  // When it was certainly loaded.
  std::uint64_t certain_from = 0;
  std::uint64_t certain_until = kForever;
  std::uint64_t gone_at = 0;  // when it was missed

  bool HoldsAt(std::uintptr_t pc, std::uint64_t time) const {
    return time >= certain_from && time < certain_until && Holds(pc);
  }
  std::uintptr_t start() const { return mapped.front().start; }
  std::uintptr_t end() const { return mapped.back().end; }
  bool Holds(std::uintptr_t pc) const {
    return std::any_of(mapped.begin(), mapped.end(),
                       [&](const AddressRange& range) { return pc >= range.start && pc < range.end; });
  }
  // Opens the image again.
  bool Open(ElfImage* elf) const {
    return image.empty() ? elf->OpenFile(open_path.c_str()) : elf->OpenBytes(image.data(), image.size());
  }
};

std::string ReadLink(const std::string& path) {
  char target[PATH_MAX];
  const ssize_t size = readlink(path.c_str(), target, sizeof target);
  return size > 0 ? std::string(target, static_cast<std::size_t>(size)) : std::string();
}

// Segments in memory, sorted, as whole pages.
std::vector<AddressRange> MappedRanges(const LoadedObject& loaded) {
  std::vector<AddressRange> ranges;
  for (const Elf64_Phdr& segment : loaded.segments) {
    if (segment.p_type != PT_LOAD || segment.p_memsz == 0) continue;
    const std::uintptr_t start = loaded.bias + segment.p_vaddr;
    ranges.push_back(
        {start & ~(kPageSize - 1), (start + segment.p_memsz + kPageSize - 1) & ~(kPageSize - 1)});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.start < b.start; });
  return ranges;
}

}  // namespace

struct NativeUnwinder::Impl {
  // Objects that went are remembered up to this many, for Symbolize.
  static constexpr std::size_t kGoneMax = 4096;

  NativeUnwinderOptions options;
  mutable std::mutex objects_mutex;  // guards all below
  bool listed = false;               // counters and live are valid
  LoaderCounters counters;
  // The last listing was made between these times.
  std::uint64_t listing_began = 0, listing_ended = 0;
  std::vector<std::unique_ptr<Object>> live;
  std::vector<std::unique_ptr<Object>> gone;  // newest last; without tables
  std::vector<std::unique_ptr<const UnwindSnapshot>> retired;
  std::uint64_t next_id = 1;

  bool LoadFrames(const ElfImage& elf, FrameSection* frames) const {
    return elf.LoadEhFrame(frames) || (options.use_debug_frame && elf.LoadDebugFrame(frames));
  }

  void LoadTable(const ElfImage& elf, Object* object) const {
    FrameSection frames;
    if (!LoadFrames(elf, &frames)) return;
    auto table = std::make_shared<const CfiTable>(CompileCfi(frames.section, elf.CodeRanges()));
    if (!table->empty()) object->table = std::move(table);
  }

  // Opens `path` and, if it is what is mapped for `object`, takes all from it that is needed.
  bool LoadFile(const std::string& path, Object* object) const {
    ElfImage elf;
    if (!elf.OpenFile(path.c_str()) || !SameSegments(elf.segments(), object->loaded.segments)) return false;
    ImageNotes notes = ReadNotes(elf);
    if (!NotesAreInMemory(notes, object->loaded.bias)) return false;
    object->notes = std::move(notes);
    object->open_path = path;
    object->identity = elf.identity();
    object->build_id_size = elf.BuildId(object->build_id);
    LoadTable(elf, object);
    return true;
  }

  // Null: nothing is mapped for it.
  std::unique_ptr<Object> LoadObject(const LoadedObject& loaded) {
    auto object = std::make_unique<Object>();
    object->loaded = loaded;
    object->mapped = MappedRanges(loaded);
    if (object->mapped.empty()) return nullptr;
    object->id = next_id++;
    const bool is_program = loaded.name.empty();
    const std::string path = is_program ? "/proc/self/exe" : loaded.name;
    object->path = is_program ? ReadLink(path) : path;
    object->verified = LoadFile(path, object.get());
    if (!object->verified) {
      // A relative name after a chdir, or a program that was started by way of the loader.
      const std::string mapped = PathOfMapping(object->start());
      object->verified = !mapped.empty() && LoadFile(mapped, object.get());
      if (object->verified) object->path = mapped;
    }
    return object;
  }

  std::unique_ptr<Object> LoadVdso() {
    auto object = std::make_unique<Object>();
    std::uintptr_t start = 0;
    ElfImage elf;
    if (!CopyVdso(&start, &object->image) || !elf.OpenBytes(object->image.data(), object->image.size())) {
      return nullptr;
    }
    object->loaded.name = object->path = "[vdso]";
    object->loaded.bias = start;  // its addresses begin at 0
    object->loaded.segments = elf.segments();
    object->mapped = MappedRanges(object->loaded);
    if (object->mapped.empty() || object->start() != start) return nullptr;
    object->id = next_id++;
    object->verified = true;
    object->build_id_size = elf.BuildId(object->build_id);
    LoadTable(elf, object.get());
    return object;
  }

  // After an unload: true if `object` is still the load that lies there. Something else may have been loaded
  // in its place, or the same file again, which makes no difference. The file need not be there any more.
  bool IsUnchanged(const Object& object) const {
    if (!NotesAreInMemory(object.notes, object.loaded.bias)) return false;
    if (object.build_id_size != 0) return true;
    ElfImage elf;
    return elf.OpenFile(object.open_path.c_str()) && elf.identity() == object.identity;
  }

  // The object that the loader lists as `listed_now`: taken out of `before` if it was there, else loaded.
  std::unique_ptr<Object> TakeOrLoad(const LoadedObject& listed_now, bool nothing_unloaded,
                                     std::vector<std::unique_ptr<Object>>* before) {
    const auto old = std::find_if(before->begin(), before->end(), [&](const std::unique_ptr<Object>& object) {
      return object != nullptr && object->loaded.bias == listed_now.bias &&
             object->loaded.name == listed_now.name &&
             SameSegments(object->loaded.segments, listed_now.segments);
    });
    if (old == before->end()) return LoadObject(listed_now);
    if (nothing_unloaded || ((*old)->verified && IsUnchanged(**old))) return std::move(*old);
    std::unique_ptr<Object> loaded = LoadObject(listed_now);
    if (!(*old)->verified && !loaded->verified) return std::move(*old);  // still unknown
    return loaded;
  }

  std::unique_ptr<const UnwindSnapshot> MakeSnapshot() const {
    auto snapshot = std::make_unique<UnwindSnapshot>();
    for (const auto& object : live) {
      if (object->table == nullptr) continue;
      snapshot->tables.push_back(object->table);
      for (const Elf64_Phdr& segment : object->loaded.segments) {
        if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
        const std::uintptr_t start = object->loaded.bias + segment.p_vaddr;
        snapshot->segments.push_back({start, segment.p_memsz, object->table->View(object->loaded.bias)});
      }
    }
    std::sort(snapshot->segments.begin(), snapshot->segments.end(),
              [](const auto& a, const auto& b) { return a.start < b.start; });
    for (const auto& segment : snapshot->segments) snapshot->starts.push_back(segment.start);
    return snapshot;
  }

  // `until`: it was certainly there before.
  void Remember(std::unique_ptr<Object> object, std::uint64_t until) {
    object->table.reset();
    object->certain_until = until;
    object->gone_at = NowNs();
    gone.push_back(std::move(object));
  }

  // Forgets gone objects that no address can lead to any more, and the oldest above the limit.
  void TrimGone() {
    const auto is_hidden = [&](std::size_t index) {
      const Object& object = *gone[index];
      const auto covers = [&](const std::unique_ptr<Object>& other) {
        return other->mapped.size() == 1 ? other->start() <= object.start() && object.end() <= other->end()
                                         : other->start() == object.start() &&
                                               SameSegments(other->loaded.segments, object.loaded.segments);
      };
      return std::any_of(gone.begin() + static_cast<std::ptrdiff_t>(index) + 1, gone.end(), covers) ||
             std::any_of(live.begin(), live.end(), covers);
    };
    const std::uint64_t now = NowNs();
    std::vector<std::unique_ptr<Object>> kept;
    const std::size_t first = gone.size() > kGoneMax ? gone.size() - kGoneMax : 0;
    for (std::size_t i = first; i < gone.size(); ++i) {
      if (now - gone[i]->gone_at < kKeepGoneNs || !is_hidden(i)) kept.push_back(std::move(gone[i]));
    }
    gone = std::move(kept);
  }

  void LoadNames(Object* object) const {
    object->names = std::make_unique<ObjectNames>();
    ElfImage elf;
    if (!object->verified || !object->Open(&elf) || !(elf.identity() == object->identity)) return;
    object->names->symbols.Load(elf);
    FrameSection frames;
    if (elf.LoadEhFrame(&frames) || elf.LoadDebugFrame(&frames)) {
      object->names->functions = ListFunctions(frames.section, elf.CodeRanges());
    }
  }

  Object* FindObject(std::uintptr_t pc) const {
    for (const auto& object : live) {
      if (object->Holds(pc)) return object.get();
    }
    for (auto at = gone.rbegin(); at != gone.rend(); ++at) {
      if ((*at)->Holds(pc)) return at->get();
    }
    return nullptr;
  }

  Object* FindObjectAt(std::uintptr_t pc, std::uint64_t time) const {
    for (const auto& object : live) {
      if (object->HoldsAt(pc, time)) return object.get();
    }
    for (auto at = gone.rbegin(); at != gone.rend(); ++at) {
      if ((*at)->HoldsAt(pc, time)) return at->get();
    }
    return nullptr;
  }

  bool Describe(Object* object, std::uintptr_t pc, NativeSymbol* out) const;
};

NativeUnwinder::NativeUnwinder(const NativeUnwinderOptions& options)
    : snapshot_(new UnwindSnapshot), impl_(std::make_unique<Impl>()) {
  impl_->options = options;
}

NativeUnwinder::~NativeUnwinder() { delete snapshot_.load(std::memory_order_relaxed); }

bool NativeUnwinder::Stale() const {
  const LoaderCounters now = ReadLoaderCounters();
  std::lock_guard lock(impl_->objects_mutex);
  return !impl_->listed || !(now == impl_->counters);
}

Status NativeUnwinder::Refresh(bool quiescent) {
  Impl& impl = *impl_;
  std::lock_guard lock(impl.objects_mutex);
  // All of these were retired by an earlier Refresh, so only handlers from before that one could see them.
  if (quiescent) impl.retired.clear();
  if (impl.listed && ReadLoaderCounters() == impl.counters) return Status();

  std::vector<LoadedObject> listed;
  LoaderCounters counters;
  const std::uint64_t before_listing = NowNs();
  ListLoadedObjects(&listed, &counters);
  const std::uint64_t after_listing = NowNs();
  const bool nothing_unloaded = impl.listed && counters.subs == impl.counters.subs;
  const bool nothing_loaded = impl.listed && counters.adds == impl.counters.adds;
  // What is new lies where nothing was before, if nothing went; else something may have come and gone there.
  const std::uint64_t new_since = !impl.listed ? 0 : nothing_unloaded ? impl.listing_ended : after_listing;
  const std::uint64_t first_new_id = impl.next_id;
  std::vector<std::unique_ptr<Object>> before = std::move(impl.live);
  impl.live.clear();
  for (const LoadedObject& loaded : listed) {
    std::unique_ptr<Object> object = impl.TakeOrLoad(loaded, nothing_unloaded, &before);
    if (object == nullptr) continue;
    if (object->id >= first_new_id) object->certain_from = new_since;
    impl.live.push_back(std::move(object));
  }
  const auto vdso = std::find_if(before.begin(), before.end(), [](const std::unique_ptr<Object>& object) {
    return object != nullptr && !object->image.empty();
  });
  std::unique_ptr<Object> object = vdso != before.end() ? std::move(*vdso) : impl.LoadVdso();
  if (object != nullptr) impl.live.push_back(std::move(object));
  for (auto& left : before) {
    if (left != nullptr) impl.Remember(std::move(left), nothing_loaded ? kForever : impl.listing_began);
  }
  impl.listing_began = before_listing;
  impl.listing_ended = after_listing;
  impl.TrimGone();
  impl.counters = counters;
  impl.listed = true;

  std::unique_ptr<const UnwindSnapshot> snapshot = impl.MakeSnapshot();
  impl.retired.emplace_back(snapshot_.exchange(snapshot.release()));
  return Status();
}

bool NativeUnwinder::Symbolize(std::uintptr_t pc, NativeSymbol* out) const {
  std::lock_guard lock(impl_->objects_mutex);
  return impl_->Describe(impl_->FindObject(pc), pc, out);
}

bool NativeUnwinder::SymbolizeAt(std::uintptr_t pc, std::uint64_t time_ns, NativeSymbol* out) const {
  std::lock_guard lock(impl_->objects_mutex);
  return impl_->Describe(impl_->FindObjectAt(pc, time_ns), pc, out);
}

bool NativeUnwinder::Impl::Describe(Object* object, std::uintptr_t pc, NativeSymbol* out) const {
  if (object == nullptr) return false;
  if (object->names == nullptr) LoadNames(object);
  *out = NativeSymbol();
  out->object_path = object->path;
  out->object_id = object->id;
  out->object_start = object->start();
  out->object_end = object->end();
  out->certain_from_ns = object->certain_from;
  out->certain_until_ns = object->certain_until;
  out->build_id_size = object->build_id_size;
  std::memcpy(out->build_id, object->build_id, sizeof out->build_id);

  const std::uintptr_t bias = object->loaded.bias;
  const std::uint64_t address = pc - bias;
  if (const SymbolTable::Symbol* symbol = object->names->symbols.Find(address)) {
    out->function_start = bias + symbol->start;
    out->function_end = bias + symbol->end;
    out->function = Demangle(object->names->symbols.NameOf(*symbol));
    return true;
  }
  const auto& functions = object->names->functions;
  auto function =
      std::upper_bound(functions.begin(), functions.end(), address,
                       [](std::uint64_t value, const AddressRange& range) { return value < range.start; });
  if (function != functions.begin() && address < (--function)->end) {
    out->function_start = bias + function->start;
    out->function_end = bias + function->end;
  }
  return true;
}

}  // namespace stackpipe
