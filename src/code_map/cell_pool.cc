// SPDX-License-Identifier: MIT
#include "code_map/cell_pool.h"

#include "code_map/page_memory.h"

namespace stackpipe::internal {

namespace {

constexpr std::size_t kLineBytes = kLineWords * sizeof(AtomicWord);

}  // namespace

// Close together, so that a full cell wastes little; a step never brings another line of samples for nothing.
const std::uint16_t CellPool::kClassBlocks[kClasses] = {1,
                                                        2,
                                                        3,
                                                        4,
                                                        5,
                                                        6,
                                                        7,
                                                        8,
                                                        10,
                                                        12,
                                                        14,
                                                        16,
                                                        18,
                                                        20,
                                                        22,
                                                        25,
                                                        27,
                                                        29,
                                                        32,
                                                        36,
                                                        40,
                                                        44,
                                                        48,
                                                        52,
                                                        57,
                                                        65,
                                                        73,
                                                        81,
                                                        kCellBlocksMax};

CellPool::~CellPool() {
  while (chunks_ != nullptr) {
    Chunk* chunk = chunks_;
    chunks_ = chunk->next;
    FreePages(chunk, chunk->bytes);
  }
}

void* CellPool::Carve(std::size_t bytes) noexcept {
  if (chunk_left_ < bytes) {
    // The rest of the old chunk is left: at most one large cell for each chunk.
    auto* chunk = static_cast<Chunk*>(AllocateDensePages(next_chunk_bytes_));
    if (chunk == nullptr) return nullptr;
    chunk->bytes = next_chunk_bytes_;
    chunk->next = chunks_;
    chunks_ = chunk;
    chunk_at_ = reinterpret_cast<std::byte*>(chunk) + kLineBytes;
    chunk_left_ = next_chunk_bytes_ - kLineBytes;
    if (next_chunk_bytes_ < kHugePage) next_chunk_bytes_ *= 2;
  }
  void* memory = chunk_at_;
  chunk_at_ += bytes;
  chunk_left_ -= bytes;
  bytes_ += bytes;
  return memory;
}

Cell* CellPool::Allocate(std::uint32_t entries) noexcept {
  if (AllocationFailsForTest()) return nullptr;
  while (quarantine_first_ != nullptr && retired_ - quarantine_first_->side()->retired_at >= kQuarantine) {
    Cell* cell = quarantine_first_;
    quarantine_first_ = cell->side()->next;
    Free(cell);
  }
  unsigned size_class = 0;
  while (kClassBlocks[size_class] * kEntriesPerBlock < entries) ++size_class;
  Cell* cell = free_[size_class];
  if (cell != nullptr) {
    free_[size_class] = cell->side()->next;
  } else {
    const unsigned blocks = kClassBlocks[size_class];
    void* memory = Carve(Cell::Lines(blocks) * kLineBytes);
    if (memory == nullptr) return nullptr;
    cell = Cell::Create(memory, blocks, size_class);
  }
  cell->side()->retired_at = 0;
  cell->side()->next = nullptr;
  return cell;
}

void CellPool::Retire(Cell* cell) noexcept {
  Cell::Side* side = cell->side();
  if (side->retired_at != 0) return;  // a cell that several slots shared is retired with the first
  side->retired_at = ++retired_;
  side->next = nullptr;
  if (quarantine_first_ == nullptr) {
    quarantine_first_ = cell;
  } else {
    quarantine_last_->side()->next = cell;
  }
  quarantine_last_ = cell;
}

void CellPool::Free(Cell* cell) noexcept {
  Cell::Side* side = cell->side();
  side->next = free_[side->size_class];
  free_[side->size_class] = cell;
}

SplitNode* CellPool::AllocateNode() noexcept {
  if (AllocationFailsForTest()) return nullptr;
  SplitNode* node = free_nodes_;
  if (node != nullptr) {
    free_nodes_ = node->next;
    *node = {};
    return node;
  }
  constexpr std::size_t kNodeBytes = (sizeof(SplitNode) + kLineBytes - 1) / kLineBytes * kLineBytes;
  return static_cast<SplitNode*>(Carve(kNodeBytes));
}

void CellPool::FreeNode(SplitNode* node) noexcept {
  node->next = free_nodes_;
  free_nodes_ = node;
}

}  // namespace stackpipe::internal
