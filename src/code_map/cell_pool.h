// SPDX-License-Identifier: MIT
//
// CellPool: the memory of a map's cells. What was a cell once stays a cell of the same size as long as the
// pool lives, so a reader may look at a cell at any time after it was retired; the worst that it can meet is
// a later incarnation, which `seq` tells it. A retired cell waits in quarantine until kQuarantine others were
// retired after it, so that a reader that is just running rarely has to start again.
//
// For the writer only; not thread-safe.
#ifndef STACKPIPE_CODE_MAP_CELL_POOL_H_
#define STACKPIPE_CODE_MAP_CELL_POOL_H_

#include <cstddef>
#include <cstdint>

#include "code_map/cell.h"

namespace stackpipe::internal {

// Where a slot points to when its cell is split into 16 smaller ones. Never freed once it is published.
struct SplitNode {
  AtomicWord children[16];
  SplitNode* next;     // writer: in the one list that the node is in, if any
  AtomicWord* target;  // writer: the slot that will point to it
};

class CellPool {
 public:
  CellPool() = default;
  ~CellPool();
  CellPool(const CellPool&) = delete;
  CellPool& operator=(const CellPool&) = delete;

  // A cell with room for `entries` (1 to kCellEntriesMax). nullptr: out of memory.
  Cell* Allocate(std::uint32_t entries) noexcept;
  // Gives back a cell that no slot points to since `Retire` (was published) or never did (`Free`).
  void Retire(Cell* cell) noexcept;
  void Free(Cell* cell) noexcept;

  SplitNode* AllocateNode() noexcept;  // children zeroed
  void FreeNode(SplitNode* node) noexcept;

  // Bytes of all cells and nodes, used or free.
  std::size_t bytes() const noexcept { return bytes_; }

  static constexpr unsigned kQuarantine = 16;

 private:
  struct Chunk {
    Chunk* next;
    std::size_t bytes;
  };
  void* Carve(std::size_t bytes) noexcept;

  static constexpr unsigned kClasses = 29;
  static const std::uint16_t kClassBlocks[kClasses];

  Chunk* chunks_ = nullptr;
  std::byte* chunk_at_ = nullptr;
  std::size_t chunk_left_ = 0;
  std::size_t next_chunk_bytes_ = std::size_t{64} << 10;
  std::size_t bytes_ = 0;
  Cell* free_[kClasses] = {};
  SplitNode* free_nodes_ = nullptr;
  Cell* quarantine_first_ = nullptr;
  Cell* quarantine_last_ = nullptr;
  std::uint64_t retired_ = 0;  // cells ever
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_CELL_POOL_H_
