// SPDX-License-Identifier: MIT
//
// History: the code that is gone, so that a sample can be resolved after its code went and its address was
// used again. Room for it is reserved when code is registered, so code can always be unregistered.
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

#include "code_map/atomic_word.h"
#include "code_map/record_pool.h"
#include "stackpipe/code_map.h"

namespace stackpipe::internal {

// Code that is gone, or that the change at hand retires.
struct GoneRecord {
  std::uint64_t start;
  std::uint64_t size;
  CodeEpoch birth;
  // Invariant: the record counts exactly if death is not 0. All else is stored before it, and it is set to 0
  // before the record is given up, with release (see IdTable::Slot). If it is above the map's epoch, the
  // change that retires the code was not committed.
  AtomicWord death;
  CodeId id;                   // 0: free. For readers: as long as it is what they look for, so is the rest.
  std::uint32_t description;   // see DescriptionStore
  std::uint32_t newer, older;  // in its chain
  std::uint32_t next;          // in the list of the change that retires it; then the one that went next
  CodeKind kind;
};

class History {
 public:
  History() = default;
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // Makes room for `count` records in all. False: out of memory.
  bool Reserve(std::size_t count) noexcept { return pool_.Reserve(count); }
  // A record like `code`, whose `death` comes last, in no chain. Requires room.
  std::uint32_t Create(const GoneRecord& code) noexcept;
  // Gives back one that was not added.
  void Destroy(std::uint32_t index) noexcept;
  // Its death is not below that of any record that was added before.
  void Add(std::uint32_t index) noexcept;
  // The record that held `pc` at `epoch`, or 0.
  std::uint32_t Find(std::uintptr_t pc, CodeEpoch epoch) const noexcept;
  // The oldest that was added, or 0; and takes it out. Its record stays until it is destroyed.
  std::uint32_t oldest() const noexcept { return oldest_; }
  void RemoveOldest() noexcept;

  // Readers: copies the record of `id`, if it is number `index`.
  bool Read(std::uint32_t index, CodeId id, GoneRecord* out) const noexcept;

  GoneRecord& operator[](std::uint32_t index) noexcept { return pool_[index]; }
  const GoneRecord& operator[](std::uint32_t index) const noexcept { return pool_[index]; }
  // Records, those that count and others, have numbers below this.
  std::uint32_t end() const noexcept { return pool_.end(); }
  std::size_t count() const noexcept { return count_; }  // that were added
  std::size_t bytes() const noexcept { return pool_.bytes() + head_count_ * sizeof(std::uint32_t); }

 private:
  static constexpr unsigned kLevels = 4;
  static unsigned LevelShift(unsigned level) { return 16 + 8 * level; }
  static unsigned LevelOf(std::uint64_t size);
  std::size_t BucketOf(unsigned level, std::uint64_t span) const noexcept;
  std::uint32_t* HeadOf(std::size_t bucket) noexcept;
  void Link(std::uint32_t index) noexcept;
  void GrowIfFull() noexcept;

  RecordPool<GoneRecord> pool_;
  std::uint32_t* heads_ = nullptr;  // a power of two; nullptr: `only_head_` is the one chain
  std::size_t head_count_ = 0;
  std::uint32_t only_head_ = 0;
  std::uint32_t oldest_ = 0, newest_ = 0;  // linked by `next`, in the order of deaths
  std::size_t count_ = 0;
  std::size_t level_count_[kLevels] = {};
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_HISTORY_H_
