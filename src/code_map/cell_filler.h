// SPDX-License-Identifier: MIT
//
// CellFiller: writes the whole content of a cell that no slot points to, entry by entry in the order of their
// starts. What comes from another cell is copied by blocks: most changes put one entry among hundreds.
#ifndef STACKPIPE_CODE_MAP_CELL_FILLER_H_
#define STACKPIPE_CODE_MAP_CELL_FILLER_H_

#include <cstdint>

#include "code_map/cell.h"

namespace stackpipe::internal {

class CellFiller {
 public:
  // The cell must be unreachable and out of quarantine, and have room for all that is added.
  explicit CellFiller(Cell* cell) noexcept;
  CellFiller(const CellFiller&) = delete;
  CellFiller& operator=(const CellFiller&) = delete;

  void Add(const CellEntry& entry) noexcept;
  // Entries number `first` to `end` - 1 of another cell, but for those that are gone and those of which
  // `dropped` (unless it is null) says so.
  void AddFrom(const Cell& from, std::uint32_t first, std::uint32_t end, const DroppedIds* dropped) noexcept;
  void Finish(const CellBounds& bounds) noexcept;

 private:
  __extension__ using Starts = unsigned __int128;  // lanes of a block; six are used

  template <unsigned kLane>
  const AtomicWord* AddBlocks(const AtomicWord* in, const AtomicWord* end) noexcept;
  const AtomicWord* AddBlocks(const AtomicWord* in, const AtomicWord* end) noexcept;
  void EndBlock() noexcept;

  Cell* const cell_;
  const unsigned sample_lines_;
  AtomicWord* out_;                       // the block that is being filled
  Starts starts_ = 0;                     // its starts so far
  std::uint32_t lane_ = 0;                // and how many they are
  std::uint32_t blocks_ = 0;              // that are full
  std::uint64_t samples_ = kUnusedLanes;  // those of the word of samples that is being filled
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_CELL_FILLER_H_
