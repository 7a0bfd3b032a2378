// SPDX-License-Identifier: MIT
//
// RecordPool: records of one type with 32-bit numbers from 1 that do not move, used again after they are
// freed. Room can be reserved without being used: it costs addresses, not memory. T has a `next`, which is
// the pool's while the record is free. For the writer only, but for At: what was a record once stays one of
// the same type, so a reader may look at it at any time, and finds out by itself what it has met.
#ifndef STACKPIPE_CODE_MAP_RECORD_POOL_H_
#define STACKPIPE_CODE_MAP_RECORD_POOL_H_

#include <cstddef>
#include <cstdint>

#include "code_map/atomic_word.h"
#include "code_map/page_memory.h"

namespace stackpipe::internal {

template <typename T>
class RecordPool {
 public:
  RecordPool() = default;
  ~RecordPool() {
    for (std::uint32_t i = 0; i < page_count_; ++i) FreePages(pages_[i], kPageBytes);
    FreePages(pages_, kPagesMax * sizeof(T*));
  }
  RecordPool(const RecordPool&) = delete;
  RecordPool& operator=(const RecordPool&) = delete;

  // Makes room for `count` records in all, so that as many can be had at a time. False: out of memory.
  bool Reserve(std::size_t count) noexcept {
    while (std::size_t{page_count_} * kPageRecords < count + 1) {
      if (page_count_ == kPagesMax) return false;
      if (pages_ == nullptr) Release(&pages_, static_cast<T**>(AllocatePages(kPagesMax * sizeof(T*))));
      if (pages_ == nullptr) return false;
      auto* const page = static_cast<T*>(AllocatePages(kPageBytes));
      if (page == nullptr) return false;
      Release(&pages_[page_count_++], page);
    }
    return true;
  }
  // Requires room. The record is as its last user left it, or zero.
  std::uint32_t Allocate() noexcept {
    ++count_;
    const std::uint32_t index = free_;
    if (index == 0) {
      Release(&end_, end_ + 1);
      return end_ - 1;
    }
    free_ = (*this)[index].next;
    return index;
  }
  void Free(std::uint32_t index) noexcept {
    --count_;
    (*this)[index].next = free_;
    free_ = index;
  }

  T& operator[](std::uint32_t index) noexcept { return pages_[index / kPageRecords][index % kPageRecords]; }
  const T& operator[](std::uint32_t index) const noexcept {
    return pages_[index / kPageRecords][index % kPageRecords];
  }

  // Readers. nullptr: there never was such a record.
  const T* At(std::uint32_t index) const noexcept {
    if (index == 0 || index >= Acquire(end_)) return nullptr;
    return &Acquire(Acquire(pages_)[index / kPageRecords])[index % kPageRecords];
  }

  std::size_t count() const noexcept { return count_; }
  // Records, used and free, have numbers below this.
  std::uint32_t end() const noexcept { return end_; }
  std::size_t bytes() const noexcept { return (end_ - 1) * sizeof(T); }

 private:
  static constexpr std::uint32_t kPageRecords = 1 << 14;
  static constexpr std::size_t kPageBytes = kPageRecords * sizeof(T);
  static constexpr std::uint32_t kPagesMax = 1 << 13;

  T** pages_ = nullptr;
  std::uint32_t page_count_ = 0;
  std::uint32_t end_ = 1;
  std::uint32_t free_ = 0;
  std::size_t count_ = 0;
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_RECORD_POOL_H_
