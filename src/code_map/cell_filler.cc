// SPDX-License-Identifier: MIT
#include "code_map/cell_filler.h"

namespace stackpipe::internal {

namespace {

// All stores but those of seq are release: see the invariant at Cell::seq().
constexpr auto kRelease = std::memory_order_release;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr unsigned kLaneBits = 16;
constexpr std::uint64_t kTwoUnusedLanes = kUnusedLanes << 32;  // the last two of a block

}  // namespace

CellFiller::CellFiller(Cell* cell) noexcept
    : cell_(cell), sample_lines_(cell->sample_lines()), out_(cell->Block(0)) {
  AtomicWord& seq = cell_->words()[Cell::kSeq];
  seq.Store(seq.Load(kRelaxed) + 1, kRelease);
}

inline void CellFiller::EndBlock() noexcept {
  out_[0].Store(static_cast<std::uint64_t>(starts_), kRelease);
  out_[1].Store(static_cast<std::uint64_t>(starts_ >> 64) << 32 >> 32 | kTwoUnusedLanes, kRelease);
  if (blocks_ > 0) {
    const std::uint32_t sample = blocks_ - 1;
    // Both have the highest bit flipped.
    samples_ = WithLane(samples_, sample & 3, (static_cast<std::uint32_t>(starts_) & 0xffff) ^ 0x8000);
    if ((sample & 3) == 3) {
      cell_->words()[Cell::kSamples + sample / 4].Store(samples_, kRelease);
      samples_ = kUnusedLanes;
    }
  }
  ++blocks_;
  out_ += kLineWords;
}

void CellFiller::Add(const CellEntry& entry) noexcept {
  out_[Cell::kPayloads + lane_].Store(entry.payload.word(), kRelease);
  starts_ |= Starts{entry.start ^ 0x8000} << (kLaneBits * lane_);
  if (++lane_ < kEntriesPerBlock) return;
  EndBlock();
  starts_ = 0;
  lane_ = 0;
}

// Whole blocks, none of whose entries is gone, from `in` to `end`; returns where it stopped. kLane: lane_,
// which stays what it is.
template <unsigned kLane>
const AtomicWord* CellFiller::AddBlocks(const AtomicWord* in, const AtomicWord* end) noexcept {
  constexpr unsigned kHere = kEntriesPerBlock - kLane;  // so many fit into this block, the others go on
  for (; in != end; in += kLineWords) {
    std::uint64_t payloads[kEntriesPerBlock];
    std::uint64_t gone = 0;
    for (unsigned i = 0; i < kEntriesPerBlock; ++i) {
      payloads[i] = in[Cell::kPayloads + i].Load(kRelaxed);
      gone |= payloads[i] - 1;  // has the highest bit only if the payload is 0
    }
    if (gone >> 63 != 0) break;
    const Starts starts = Starts{in[1].Load(kRelaxed) & 0xffff'ffff} << 64 | in[0].Load(kRelaxed);
    for (unsigned i = 0; i < kHere; ++i) out_[Cell::kPayloads + kLane + i].Store(payloads[i], kRelease);
    starts_ |= starts << (kLaneBits * kLane);
    EndBlock();
    starts_ = kLane == 0 ? 0 : starts >> (kLaneBits * (kHere % kEntriesPerBlock));
    for (unsigned i = kHere; i < kEntriesPerBlock; ++i) {
      out_[Cell::kPayloads + i - kHere].Store(payloads[i], kRelease);
    }
  }
  return in;
}

const AtomicWord* CellFiller::AddBlocks(const AtomicWord* in, const AtomicWord* end) noexcept {
  static_assert(kEntriesPerBlock == 6);
  switch (lane_) {
    case 0:
      return AddBlocks<0>(in, end);
    case 1:
      return AddBlocks<1>(in, end);
    case 2:
      return AddBlocks<2>(in, end);
    case 3:
      return AddBlocks<3>(in, end);
    case 4:
      return AddBlocks<4>(in, end);
    default:
      return AddBlocks<5>(in, end);
  }
}

void CellFiller::AddFrom(const Cell& from, std::uint32_t first, std::uint32_t end,
                         const DroppedIds* dropped) noexcept {
  for (std::uint32_t i = first; i < end; ++i) {
    if (i % kEntriesPerBlock == 0 && dropped == nullptr) {
      const std::uint32_t block = i / kEntriesPerBlock;
      const AtomicWord* const in = from.Block(block);
      const AtomicWord* const stopped = AddBlocks(in, from.Block(end / kEntriesPerBlock));
      i += static_cast<std::uint32_t>(stopped - in) / kLineWords * kEntriesPerBlock;
      if (i == end) break;
    }
    const CellEntry entry = from.At(i);
    if (entry.payload.gone() || (dropped != nullptr && dropped->Has(entry.payload.id()))) continue;
    Add(entry);
  }
}

void CellFiller::Finish(const CellBounds& bounds) noexcept {
  const std::uint32_t count = blocks_ * kEntriesPerBlock + lane_;
  if (lane_ > 0) {
    const Starts unused = (Starts{kUnusedLanes} << 64 | kUnusedLanes) << (kLaneBits * lane_);
    starts_ |= unused;
    EndBlock();
  }
  // The rest of the samples, from the word on that is not full.
  const std::uint32_t samples = blocks_ > 0 ? blocks_ - 1 : 0;
  for (std::uint32_t word = Cell::kSamples + samples / 4; word < kLineWords * sample_lines_; ++word) {
    cell_->words()[word].Store(samples_, kRelease);
    samples_ = kUnusedLanes;
  }
  Cell::Side* const side = cell_->side();
  side->first_start.Store(bounds.first_start, kRelease);
  side->first_size.Store(bounds.first_size, kRelease);
  side->last_size.Store(bounds.last_size, kRelease);
  side->live = static_cast<std::uint16_t>(count);
  cell_->words()[Cell::kMeta].Store(Cell::Meta(count, sample_lines_), kRelease);
  AtomicWord& seq = cell_->words()[Cell::kSeq];
  seq.Store(seq.Load(kRelaxed) + 1, kRelease);
}

}  // namespace stackpipe::internal
