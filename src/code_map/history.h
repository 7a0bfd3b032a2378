// SPDX-License-Identifier: MIT
//
// History: the code that is gone, so that a sample can be resolved after its code went and its address was
// used again. Adding never allocates what it cannot do without, so code can always be unregistered.
//
// Records go into chains by address; a chain has the newest deaths first, so a search ends at the first death
// that is not behind the epoch in question: recent samples are cheap whatever the history holds. A range is
// in one chain only, chosen by its start and by its level: the smallest of 64 KiB, 16 MiB, 4 GiB, 1 TiB that
// it fits into. So a range that holds a pc starts in the pc's span of that level or in the span before.
//
// For the writer only; not thread-safe.
#ifndef STACKPIPE_CODE_MAP_HISTORY_H_
#define STACKPIPE_CODE_MAP_HISTORY_H_

#include <cstddef>
#include <cstdint>

#include "code_map/record_store.h"

namespace stackpipe::internal {

class History {
 public:
  explicit History(RecordStore& records) : records_(records) {}
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // Takes over a record with its death set, not below that of any record here.
  void Add(RecordIndex index) noexcept;
  // The record that held `pc` at `epoch`, or 0.
  RecordIndex Find(std::uintptr_t pc, CodeEpoch epoch) const noexcept;
  // Destroys the records whose death is not above `epoch`, or so many of the oldest that `limit` are left.
  void TrimTo(CodeEpoch epoch) noexcept;
  void TrimToCount(std::size_t limit) noexcept;

  std::size_t count() const noexcept { return count_; }
  std::size_t bytes() const noexcept { return head_count_ * sizeof(RecordIndex); }

 private:
  static constexpr unsigned kLevels = 4;
  static unsigned LevelShift(unsigned level) { return 16 + 8 * level; }
  static unsigned LevelOf(std::uint64_t size);
  std::size_t BucketOf(unsigned level, std::uint64_t span) const noexcept;
  RecordIndex* HeadOf(std::size_t bucket) noexcept;
  void Link(RecordIndex index) noexcept;
  void DropOldest() noexcept;
  void GrowIfFull() noexcept;

  RecordStore& records_;
  RecordIndex* heads_ = nullptr;  // a power of two; nullptr: `only_head_` is the one chain
  std::size_t head_count_ = 0;
  RecordIndex only_head_ = 0;
  RecordIndex oldest_ = 0, newest_ = 0;  // linked by RecordStore::next, in the order of deaths
  std::size_t count_ = 0;
  std::size_t level_count_[kLevels] = {};
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_HISTORY_H_
