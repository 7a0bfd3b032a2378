// SPDX-License-Identifier: MIT
#include "code_map/cell.h"

#include "code_map/cell_filler.h"

namespace stackpipe::internal {

static_assert(sizeof(Cell) == 64 && sizeof(Cell::Side) <= 64);

Cell* Cell::Create(void* memory, unsigned blocks, unsigned size_class) noexcept {
  Cell* cell = static_cast<Cell*>(memory);
  cell->words()[kMeta].Store(Meta(0, SampleLines(blocks)), std::memory_order_relaxed);
  Side* side = cell->side();
  side->capacity_blocks = static_cast<std::uint16_t>(blocks);
  side->size_class = size_class;
  return cell;
}

CellEntry Cell::At(std::uint32_t index) const noexcept {
  const AtomicWord* block = Block(index / kEntriesPerBlock);
  const std::uint32_t lane = index % kEntriesPerBlock;
  return {LaneOf(block, lane), Payload(block[kPayloads + lane].Load(std::memory_order_relaxed))};
}

int Cell::IndexOf(std::uint32_t start) const noexcept {
  Position at;
  return Locate(start, &at, NoProbe{}) ? static_cast<int>(at.index) : -1;
}

void Cell::Read(CellImage* image, const DroppedIds* dropped) const noexcept {
  std::uint32_t kept = 0;
  const std::uint32_t all = count();
  for (std::uint32_t i = 0; i < all; ++i) {
    const CellEntry entry = At(i);
    if (entry.payload.gone() || (dropped != nullptr && dropped->Has(entry.payload.id()))) continue;
    image->entries[kept++] = entry;
  }
  image->count = kept;
  image->bounds = Bounds();
}

void Cell::Fill(const Cell* old, const CellImage& added, const DroppedIds* dropped) noexcept {
  CellFiller filler(this);
  std::uint32_t taken = 0;
  for (std::uint32_t i = 0; old != nullptr && i < added.count; ++i) {
    const auto before = static_cast<std::uint32_t>(old->IndexOf(added.entries[i].start) + 1);
    filler.AddFrom(*old, taken, before, dropped);
    filler.Add(added.entries[i]);
    taken = before;
  }
  if (old != nullptr) {
    filler.AddFrom(*old, taken, old->count(), dropped);
  } else {
    for (std::uint32_t i = 0; i < added.count; ++i) filler.Add(added.entries[i]);
  }
  filler.Finish(added.bounds);
}

void Cell::SetPayload(std::uint32_t index, Payload payload) noexcept {
  AtomicWord* word = &Block(index / kEntriesPerBlock)[kPayloads + index % kEntriesPerBlock];
  const bool was_gone = word->Load(std::memory_order_relaxed) == 0;
  Side* const bounds = side();
  bounds->live = static_cast<std::uint16_t>(bounds->live + (was_gone ? 1 : 0) - (payload.gone() ? 1 : 0));
  word->Store(payload.word());  // pairs with the load in Locate
}

void Cell::Append(const CellEntry& entry) noexcept {
  const std::uint32_t index = count();
  const std::uint32_t block = index / kEntriesPerBlock;
  const std::uint32_t lane = index % kEntriesPerBlock;
  AtomicWord* out = Block(block);
  out[kPayloads + lane].Store(entry.payload.word(), std::memory_order_release);
  StoreStart(index, entry.start);
  if (lane == 0 && block > 0) {
    AtomicWord* word = &words()[kSamples + (block - 1) / 4];
    word->Store(WithLane(word->Load(std::memory_order_relaxed), (block - 1) & 3, entry.start),
                std::memory_order_release);
  }
  ++side()->live;
  words()[kMeta].Store(Meta(index + 1, sample_lines()));  // publishes; pairs with the load in Locate
}

// The first start of a block makes its other lanes unused: in memory that was used before they are anything.
void Cell::StoreStart(std::uint32_t index, std::uint32_t start) noexcept {
  const std::uint32_t lane = index % kEntriesPerBlock;
  AtomicWord* starts = Block(index / kEntriesPerBlock);
  if (lane == 0) starts[1].Store(kUnusedLanes, std::memory_order_release);
  AtomicWord* word = &starts[lane / 4];
  const std::uint64_t others = lane == 0 ? kUnusedLanes : word->Load(std::memory_order_relaxed);
  word->Store(WithLane(others, lane, start), std::memory_order_release);
}

}  // namespace stackpipe::internal
