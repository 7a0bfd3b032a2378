// SPDX-License-Identifier: MIT
#include "code_map/cell.h"

namespace stackpipe::internal {

namespace {

constexpr std::uint64_t kUnusedStarts = ~std::uint64_t{0};

}  // namespace

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
  const std::uint64_t starts = block[lane / 4].Load(std::memory_order_relaxed);
  return {static_cast<std::uint32_t>(starts >> (16 * (lane & 3)) & 0xffff),
          Payload(block[kPayloads + lane].Load(std::memory_order_relaxed))};
}

int Cell::IndexOf(std::uint32_t start) const noexcept {
  Position at;
  return Locate(start, &at, NoProbe{}) ? static_cast<int>(at.index) : -1;
}

void Cell::Read(CellImage* image) const noexcept {
  std::uint32_t kept = 0;
  const std::uint32_t all = count();
  for (std::uint32_t i = 0; i < all; ++i) {
    const CellEntry entry = At(i);
    if (!entry.payload.gone()) image->entries[kept++] = entry;
  }
  image->count = kept;
  image->bounds.first_start = side()->first_start.Load(std::memory_order_relaxed);
  image->bounds.first_size = side()->first_size.Load(std::memory_order_relaxed);
  image->bounds.last_size = side()->last_size.Load(std::memory_order_relaxed);
}

void Cell::Fill(const CellImage& image) noexcept {
  // All stores but those of seq are release: see the invariant at seq().
  constexpr auto kRelease = std::memory_order_release;
  const std::uint64_t seq = words()[kSeq].Load(std::memory_order_relaxed);
  words()[kSeq].Store(seq + 1);
  Side* const bounds = side();
  bounds->first_start.Store(image.bounds.first_start, kRelease);
  bounds->first_size.Store(image.bounds.first_size, kRelease);
  bounds->last_size.Store(image.bounds.last_size, kRelease);
  bounds->live = static_cast<std::uint16_t>(image.count);

  const unsigned lines = sample_lines();
  const std::uint32_t blocks = (image.count + kEntriesPerBlock - 1) / kEntriesPerBlock;
  for (unsigned word = kSamples; word < kLineWords * lines; ++word) {
    std::uint64_t samples = kUnusedStarts;
    for (unsigned lane = 0; lane < 4; ++lane) {
      const std::uint32_t block = (word - kSamples) * 4 + lane + 1;
      if (block >= blocks) break;
      samples &= ~(std::uint64_t{0xffff} << (16 * lane));
      samples |= std::uint64_t{image.entries[block * kEntriesPerBlock].start} << (16 * lane);
    }
    words()[word].Store(samples, kRelease);
  }
  for (std::uint32_t block = 0; block < blocks; ++block) {
    AtomicWord* out = words() + kLineWords * (lines + 1 + block);
    std::uint64_t starts[2] = {kUnusedStarts, kUnusedStarts};
    for (std::uint32_t lane = 0; lane < kEntriesPerBlock; ++lane) {
      const std::uint32_t index = block * kEntriesPerBlock + lane;
      if (index >= image.count) break;
      const unsigned shift = 16 * (lane & 3);
      starts[lane / 4] &= ~(std::uint64_t{0xffff} << shift);
      starts[lane / 4] |= std::uint64_t{image.entries[index].start} << shift;
      out[kPayloads + lane].Store(image.entries[index].payload.word(), kRelease);
    }
    out[0].Store(starts[0], kRelease);
    out[1].Store(starts[1], kRelease);
  }
  words()[kMeta].Store(Meta(image.count, lines), kRelease);
  words()[kSeq].Store(seq + 2);
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
    const unsigned shift = 16 * ((block - 1) & 3);
    const std::uint64_t samples = word->Load(std::memory_order_relaxed) & ~(std::uint64_t{0xffff} << shift);
    word->Store(samples | std::uint64_t{entry.start} << shift, std::memory_order_release);
  }
  ++side()->live;
  words()[kMeta].Store(Meta(index + 1, sample_lines()));  // publishes; pairs with the load in Locate
}

// The first start of a block makes its other lanes unused: in memory that was used before they are anything.
void Cell::StoreStart(std::uint32_t index, std::uint32_t start) noexcept {
  const std::uint32_t lane = index % kEntriesPerBlock;
  AtomicWord* starts = Block(index / kEntriesPerBlock);
  if (lane == 0) starts[1].Store(kUnusedStarts, std::memory_order_release);
  AtomicWord* word = &starts[lane / 4];
  const unsigned shift = 16 * (lane & 3);
  const std::uint64_t others =
      lane == 0 ? kUnusedStarts << 16
                : word->Load(std::memory_order_relaxed) & ~(std::uint64_t{0xffff} << shift);
  word->Store(others | std::uint64_t{start} << shift, std::memory_order_release);
}

}  // namespace stackpipe::internal
