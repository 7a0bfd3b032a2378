// SPDX-License-Identifier: MIT
//
// Ring: a preallocated queue of variable-size records between one producer (a signal handler) and one
// consumer (the collector thread). A record is contiguous, so the producer builds it in place:
//
//     std::byte* room = ring.Reserve(max_size);   // nullptr: full, count the loss
//     ...                                         // write up to max_size bytes
//     ring.Commit(actual_size);                   // now the consumer sees it; not called: nothing happened
//
// Reserve and Commit are AS-safe: no lock, no allocation, a bounded number of steps.
#ifndef STACKPIPE_BASE_RING_H_
#define STACKPIPE_BASE_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace stackpipe {

class Ring {
 public:
  // Allocates room for `capacity` bytes (rounded up to a power of two). False: out of memory. Call once.
  bool Allocate(std::size_t capacity) {
    std::size_t size = 4096;
    while (size < capacity) size *= 2;
    bytes_.reset(new (std::nothrow) std::byte[size]);
    mask_ = bytes_ ? size - 1 : 0;
    return bytes_ != nullptr;
  }

  // Producer. The room is aligned to 8 bytes.
  std::byte* Reserve(std::size_t max_size) noexcept {
    if (!bytes_) return nullptr;
    const std::size_t need = Rounded(max_size) + kHeader;
    const std::uint64_t tail = tail_.load(std::memory_order_seq_cst);  // pairs with the store in Pop
    std::uint64_t head = head_.load(std::memory_order_relaxed);        // own field
    const std::size_t to_end = mask_ + 1 - (head & mask_);
    const std::size_t skip = to_end < need ? to_end : 0;
    if (head + skip + need - tail > mask_ + 1) return nullptr;
    if (skip != 0) {
      Header(head) = kSkip;  // the consumer sees it only after the next Commit
      head += skip;
    }
    reserved_ = head;
    return bytes_.get() + (head & mask_) + kHeader;
  }

  void Commit(std::size_t size) noexcept {
    Header(reserved_) = size;
    head_.store(reserved_ + Rounded(size) + kHeader,
                std::memory_order_seq_cst);  // pairs with the load in Peek
  }

  // Consumer. Walks the records that were committed before Begin; Pop gives back all that Next has passed.
  struct Cursor {
    std::uint64_t at = 0, end = 0;
  };
  Cursor Begin() const noexcept {
    return {tail_.load(std::memory_order_relaxed), head_.load(std::memory_order_seq_cst)};
  }
  // The record at the cursor, or nullptr at the end. `*size` is what was given to Commit.
  const std::byte* Peek(Cursor* cursor, std::size_t* size) const noexcept {
    if (cursor->at != cursor->end && Header(cursor->at) == kSkip)
      cursor->at += mask_ + 1 - (cursor->at & mask_);
    if (cursor->at == cursor->end) return nullptr;
    *size = Header(cursor->at);
    return bytes_.get() + (cursor->at & mask_) + kHeader;
  }
  void Next(Cursor* cursor) const noexcept { cursor->at += Rounded(Header(cursor->at)) + kHeader; }
  void Pop(const Cursor& cursor) noexcept { tail_.store(cursor.at, std::memory_order_seq_cst); }

  // Consumer. True if all that was committed has been popped.
  bool Empty() const noexcept { return tail_.load() == head_.load(); }

  // Forgets everything. Neither side may be using the ring.
  void Clear() noexcept {
    head_.store(0, std::memory_order_seq_cst);
    tail_.store(0, std::memory_order_seq_cst);
  }

 private:
  static constexpr std::size_t kHeader = 8;
  static constexpr std::uint64_t kSkip = ~std::uint64_t{0};

  static std::size_t Rounded(std::size_t size) { return (size + 7) & ~std::size_t{7}; }
  std::uint64_t& Header(std::uint64_t at) noexcept {
    return *reinterpret_cast<std::uint64_t*>(bytes_.get() + (at & mask_));
  }
  const std::uint64_t& Header(std::uint64_t at) const noexcept {
    return *reinterpret_cast<const std::uint64_t*>(bytes_.get() + (at & mask_));
  }

  // Invariant: tail_ <= head_ <= tail_ + capacity. Bytes in [tail_, head_) hold whole records and belong to
  // the consumer; all others belong to the producer. Only the producer moves head_, only the consumer moves
  // tail_.
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t mask_ = 0;
  std::uint64_t reserved_ = 0;  // producer only
  alignas(64) std::atomic<std::uint64_t> head_{0};
  alignas(64) std::atomic<std::uint64_t> tail_{0};
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
};

}  // namespace stackpipe

#endif  // STACKPIPE_BASE_RING_H_
