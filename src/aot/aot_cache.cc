// SPDX-License-Identifier: MIT
#include "aot/aot_cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "code_map/page_memory.h"

namespace stackpipe {

namespace {

using Word = std::atomic_ref<std::uint64_t>;
using Number = std::atomic_ref<std::uint32_t>;

std::uint32_t HeadOf(std::uint64_t bucket) { return static_cast<std::uint32_t>(bucket); }
std::uint64_t BitOf(std::uint32_t number) { return std::uint64_t{1} << (32 + number); }

}  // namespace

bool AotCache::Reserve(std::uint32_t methods, std::uint32_t items_max) noexcept {
  bucket_count_ = BucketCount(methods);
  items_max_ = std::min(methods, items_max);
  const std::size_t table_bytes = bucket_count_ * sizeof(std::uint64_t);
  reserved_bytes_ = table_bytes + items_max_ * sizeof(Item);
  void* pages = internal::AllocatePages(reserved_bytes_);
  if (pages == nullptr) return false;
  // One touched byte must not bring in 2 MB. A kernel that knows no huge pages refuses: no harm.
  const int saved_errno = errno;
  madvise(pages, reserved_bytes_, MADV_NOHUGEPAGE);
  errno = saved_errno;
  buckets_ = static_cast<std::uint64_t*>(pages);
  items_ = reinterpret_cast<Item*>(static_cast<char*>(pages) + table_bytes);
  return true;
}

AotCache::~AotCache() { internal::FreePages(buckets_, reserved_bytes_); }

bool AotCache::Find(std::uint32_t method, AotCode* out) const noexcept {
  const std::uint64_t bucket = Word(buckets_[method % bucket_count_]).load(std::memory_order_acquire);
  if ((bucket & BitOf(method / bucket_count_)) == 0) return false;
  for (std::uint32_t at = HeadOf(bucket); at != 0;) {
    Item& item = items_[at - 1];
    if (Number(item.method_plus_one).load(std::memory_order_relaxed) == method + 1) {
      *out = {item.size, item.kind};
      return true;
    }
    at = item.next;
  }
  return false;
}

AotCache::AddResult AotCache::Add(std::uint32_t method, const AotCode& code,
                                  std::atomic<std::uint32_t>* order) noexcept {
  const Word bucket(buckets_[method % bucket_count_]);
  const std::uint64_t bit = BitOf(method / bucket_count_);
  // Claim the method. An exchange fails only if the bucket has changed, so the loops end; the count says when
  // at the latest.
  std::uint64_t seen = bucket.load(std::memory_order_acquire);
  for (unsigned i = 0;; ++i) {
    if ((seen & bit) != 0 || i > kChangesMax) return AddResult::kPresent;
    if (bucket.compare_exchange_strong(seen, seen | bit, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      break;
    }
  }
  const std::uint32_t slot = used_.fetch_add(1, std::memory_order_relaxed);
  if (slot >= items_max_) return AddResult::kFull;
  Item& item = items_[slot];
  item.size = code.size;
  item.kind = code.kind;
  item.order = order->fetch_add(1, std::memory_order_relaxed);
  Number(item.method_plus_one).store(method + 1, std::memory_order_release);
  seen |= bit;
  for (unsigned i = 0; i <= kChangesMax; ++i) {
    item.next = HeadOf(seen);
    const std::uint64_t linked = (seen & ~std::uint64_t{UINT32_MAX}) | (slot + 1);
    if (bucket.compare_exchange_strong(seen, linked, std::memory_order_acq_rel, std::memory_order_acquire))
      break;
  }
  return AddResult::kAdded;
}

std::uint32_t AotCache::item_count() const noexcept {
  return std::min(used_.load(std::memory_order_relaxed), items_max_);
}

std::size_t AotCache::byte_count() const noexcept {
  const std::size_t items = item_count();
  return items == 0 ? 0 : bucket_count_ * sizeof(std::uint64_t) + items * sizeof(Item);
}

std::size_t AotCache::resident_bytes() const noexcept {
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::size_t resident = 0;
  for (std::size_t at = 0; at < reserved_bytes_; at += page_bytes) {
    unsigned char state = 0;
    if (mincore(reinterpret_cast<char*>(buckets_) + at, 1, &state) == 0 && (state & 1) != 0)
      resident += page_bytes;
  }
  return resident;
}

}  // namespace stackpipe
