// SPDX-License-Identifier: MIT
//
// AotCache: the methods of one image that were decoded, for handlers to find again and for the collector to
// list in order. A hash table of fixed size (methods / 32 + 1 buckets, row A8) over a bounded arena of items.
//
// Both lie in pages that are reserved when the cache is made and that the kernel provides when they are first
// touched: memory is allocated at the first need without a call to any allocator.
//
// Find and Add are AS-safe and wait-free; the bounds are at each of them. docs/design/aot.md walks the races.
#ifndef STACKPIPE_AOT_AOT_CACHE_H_
#define STACKPIPE_AOT_AOT_CACHE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "aot/aot_source.h"

namespace stackpipe {

class AotCache {
 public:
  // A method that was seen.
  struct Seen {
    std::uint32_t method = 0;
    std::uint32_t order = 0;  // as given to Add
    AotCode code;
  };
  enum class AddResult : std::uint8_t {
    kAdded,
    kPresent,  // another thread added the method, or is about to
    kFull,     // the arena is used up
  };

  AotCache() = default;
  ~AotCache();
  AotCache(const AotCache&) = delete;
  AotCache& operator=(const AotCache&) = delete;

  // Reserves address space for `methods` methods (> 0), of which at most `items_max` are kept. False: out of
  // memory. Call once, before any other function.
  bool Reserve(std::uint32_t methods, std::uint32_t items_max) noexcept;

  static constexpr std::uint32_t BucketCount(std::uint32_t methods) { return methods / kPerBucket + 1; }

  // Finds a method that was added. At most kPerBucket steps.
  bool Find(std::uint32_t method, AotCode* out) const noexcept;

  // Adds a method, unless it is there. However many threads add one method, it gets one item, and uses up the
  // room of one. `order` is shared by caches whose items are to be put in one order. At most 2 * kChangesMax
  // steps.
  AddResult Add(std::uint32_t method, const AotCode& code, std::atomic<std::uint32_t>* order) noexcept;

  // Calls `visit(const Seen&)` for each method that was added and not taken before, in the order of their
  // items. One thread at a time, not for handlers.
  template <typename F>
  void Take(const F& visit);

  bool full() const noexcept { return used_.load(std::memory_order_relaxed) >= items_max_; }
  std::uint32_t item_count() const noexcept;
  // Bytes of the table and of the items that are in use. 0 before the first Add.
  std::size_t byte_count() const noexcept;
  // Bytes of physical memory behind it all now, in whole pages. Not for handlers.
  std::size_t resident_bytes() const noexcept;

 private:
  // Methods with the same remainder share a bucket, and a bucket has at most so many: with b = n / 32 + 1
  // buckets, method m < n is number m / b < n / b <= 32 of bucket m % b.
  static constexpr std::uint32_t kPerBucket = 32;
  // A bucket changes at most twice for each of its methods, in all its life.
  static constexpr unsigned kChangesMax = 2 * kPerBucket;

  // Trivial, so that zeroed pages are arrays of it. `method_plus_one` is accessed atomically; all else is
  // written before it is stored and not changed afterwards, but `next` (by the adder, before the item can be
  // reached from its bucket) and `taken` (by Take alone).
  struct Item {
    std::uint32_t method_plus_one;  // 0: the item is not filled yet
    std::uint32_t next;             // the next item of the bucket, plus one; 0: none
    std::uint32_t size;
    std::uint32_t order;
    CodeKind kind;
    std::uint8_t taken;
  };

  // A bucket is one 64-bit word: in its upper half a bit for each of its methods, in its lower half the first
  // item of its chain, plus one. Invariant: a bit, once set, stays set, and whoever set it is the only one
  // that ever adds that method's item. So no method has two items, and nobody fills an item that another's
  // makes useless. The chain only grows, at its head; an item that can be reached from there is complete and
  // stays so. Pairs: Add's exchanges (acq_rel) with the loads in Find and Add (acquire), which may thus read
  // the chain's items.
  std::uint64_t* buckets_ = nullptr;
  // Invariant: items below used_ have each been given to one Add; others are zero.
  // Pairs: Add stores method_plus_one (release), Take loads it (acquire).
  Item* items_ = nullptr;
  std::uint32_t bucket_count_ = 0;
  std::uint32_t items_max_ = 0;
  std::size_t reserved_bytes_ = 0;
  // May pass items_max_, by at most the number of methods: it cannot wrap.
  std::atomic<std::uint32_t> used_{0};
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  static_assert(std::atomic_ref<std::uint32_t>::is_always_lock_free &&
                std::atomic_ref<std::uint64_t>::is_always_lock_free);

  std::uint32_t first_untaken_ = 0;  // Take's own: all items below were taken
};

template <typename F>
void AotCache::Take(const F& visit) {
  const std::uint32_t end = item_count();
  bool in_front = true;  // all items so far were taken
  for (std::uint32_t slot = first_untaken_; slot < end; ++slot) {
    Item& item = items_[slot];
    if (item.taken == 0) {
      const std::uint32_t method_plus_one =
          std::atomic_ref<std::uint32_t>(item.method_plus_one).load(std::memory_order_acquire);
      if (method_plus_one != 0) {
        item.taken = 1;
        visit(Seen{method_plus_one - 1, item.order, {item.size, item.kind}});
      } else {
        in_front = false;  // its handler is still at it: next time
      }
    }
    if (in_front) first_untaken_ = slot + 1;
  }
}

}  // namespace stackpipe

#endif  // STACKPIPE_AOT_AOT_CACHE_H_
