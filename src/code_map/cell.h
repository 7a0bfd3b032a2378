// SPDX-License-Identifier: MIT
//
// Cell: the code ranges of one aligned span of addresses (32 KiB, or 2 KiB or 128 bytes where code is dense),
// as entries sorted by start. A range that crosses the border of a cell has an entry in each cell it touches.
//
// A cell is a run of 64-byte lines, so that a search touches few of them:
//
//     line 0            seq | meta | samples 0..23
//     sample lines      samples 24..          (0 to 2 lines more)
//     side line         true bounds of the entries that cross the border; fields of the writer
//     blocks            6 entries each: 6 starts of 16 bits (and 2 unused) | 6 payloads of 64 bits
//
// Starts are the low 16 bits of an address, in the smaller cells too. Sample k is the first start of block
// k + 1, so the number of samples that are not above an address is the number of its block. Starts that are
// not used are 0xffff; the count in `meta` decides what is used.
//
// A cell's memory is a cell of the same size for ever (see CellPool), so a reader that holds an old pointer
// reads words of a cell, if perhaps of another one; `seq` tells it.
#ifndef STACKPIPE_CODE_MAP_CELL_H_
#define STACKPIPE_CODE_MAP_CELL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "code_map/atomic_word.h"
#include "code_map/lanes.h"
#include "stackpipe/code_map.h"

namespace stackpipe::internal {

// What a lookup calls between its steps: nothing, but in tests that let writers run there.
struct NoProbe {
  void operator()() const noexcept {}
};

inline constexpr unsigned kLineWords = 8;
inline constexpr unsigned kEntriesPerBlock = 6;
inline constexpr unsigned kCellBlocksMax = 89;
inline constexpr unsigned kCellEntriesMax = kCellBlocksMax * kEntriesPerBlock;

// What an entry says about its range, in one word, so that it changes in one store. 0: the range is gone.
class Payload {
 public:
  constexpr Payload() = default;
  constexpr explicit Payload(std::uint64_t word) : word_(word) {}
  // `length` is what lies inside the cell, 1..65536. Begins: it starts in this cell. Ends: likewise.
  constexpr Payload(CodeId id, CodeKind kind, std::uint32_t length, bool begins_before, bool ends_behind)
      : word_(id | std::uint64_t{length} << 32 | std::uint64_t{static_cast<std::uint8_t>(kind)} << 49 |
              std::uint64_t{begins_before} << 57 | std::uint64_t{ends_behind} << 58) {}

  constexpr std::uint64_t word() const { return word_; }
  constexpr bool gone() const { return word_ == 0; }
  constexpr CodeId id() const { return static_cast<CodeId>(word_); }
  constexpr std::uint32_t length() const { return static_cast<std::uint32_t>(word_ >> 32) & 0x1ffff; }
  constexpr CodeKind kind() const { return static_cast<CodeKind>(word_ >> 49 & 0xff); }
  constexpr bool begins_before() const { return (word_ >> 57 & 1) != 0; }
  constexpr bool ends_behind() const { return (word_ >> 58 & 1) != 0; }
  constexpr bool crosses() const { return word_ >> 57 != 0; }

 private:
  std::uint64_t word_ = 0;
};

struct CellEntry {
  std::uint32_t start = 0;  // 16 bits
  Payload payload;
};

// The true bounds of the entries that cross the cell's border. At most one begins before the cell, and at
// most one other ends behind it.
struct CellBounds {
  std::uint64_t first_start = 0;  // of the entry that begins before the cell
  std::uint64_t first_size = 0;
  std::uint64_t last_size = 0;  // of the entry that begins inside and ends behind
};

// A cell's content outside of it, for building.
struct CellImage {
  std::uint32_t count = 0;
  CellBounds bounds;
  CellEntry entries[kCellEntriesMax];
};

// Ids whose entries a copy leaves out.
struct DroppedIds {
  virtual bool Has(CodeId id) const noexcept = 0;

 protected:
  ~DroppedIds() = default;
};

class Cell {
 public:
  // Where a cell's words are. `blocks` is fixed for the life of the memory; so is all that follows from it.
  static constexpr unsigned SampleLines(unsigned blocks) { return blocks <= 25 ? 1 : blocks <= 57 ? 2 : 3; }
  static constexpr unsigned Lines(unsigned blocks) { return SampleLines(blocks) + 1 + blocks; }

  // --- readers ---

  // Even: the content belongs to incarnation seq / 2 of this memory. Odd: it is being filled.
  //
  // Invariant: while a slot of the radix points to the cell, seq is even and does not change. It changes only
  // between the cell's time in the quarantine and its next publication. A CellFiller makes it odd before it
  // stores any other word, and even after the last one; it stores those words with release and readers load
  // them with acquire, so a reader that met a word of a later incarnation also meets a later seq. Pairs: the
  // filler's stores with the two loads in FindCode.
  std::uint64_t seq() const noexcept { return words()[kSeq].Load(); }

  // What Find found. It is kept apart from the answer so that it fits into registers until it is validated.
  struct Found {
    Payload payload;
    std::uint32_t delta;  // of the pc, from the entry's start
    CellBounds bounds;    // only if the entry crosses the border

    void Answer(std::uintptr_t pc, CodeHit* out) const noexcept {
      out->id = payload.id();
      out->kind = payload.kind();
      out->start = pc - delta;
      out->size = payload.length();
      if (!payload.crosses()) [[likely]]
        return;
      if (payload.begins_before()) out->start = bounds.first_start;
      out->size = payload.begins_before() ? bounds.first_size : bounds.last_size;
    }
  };
  // Finds the entry that holds `pc`, which lies in the cell's span, and says so. Bounded: the lines of
  // samples, one line of a block, the side line. With a cell that is refilled meanwhile the result is
  // nonsense, but no word outside the cell is touched: a cell's meta never exceeds the size of its memory.
  // `probe` is called between the steps (see FindCode).
  template <typename Probe>
  [[gnu::always_inline]] bool Find(std::uintptr_t pc, Found* out, const Probe& probe) const noexcept {
    Position at;
    if (!Locate(static_cast<std::uint32_t>(pc & 0xffff), &at, probe)) return false;
    out->payload = at.payload;
    out->delta = static_cast<std::uint32_t>(pc & 0xffff) - at.start;
    if (out->delta >= at.payload.length()) return false;
    if (at.payload.crosses()) [[unlikely]] {
      probe();
      out->bounds = Bounds();
    }
    return true;
  }

  // --- the writer ---

  std::uint32_t count() const noexcept { return Count(words()[kMeta].Load(std::memory_order_relaxed)); }
  CellEntry At(std::uint32_t index) const noexcept;
  // Index of the last entry, gone ones too, whose start is not above `start`; -1: none.
  int IndexOf(std::uint32_t start) const noexcept;
  CellBounds Bounds() const noexcept {
    const Side* words = side();
    return {words->first_start.Load(std::memory_order_acquire),
            words->first_size.Load(std::memory_order_acquire),
            words->last_size.Load(std::memory_order_acquire)};
  }
  // Copies the entries that are not gone, nor dropped.
  void Read(CellImage* image, const DroppedIds* dropped) const noexcept;
  // Makes the cell hold those of `old` (may be null) that are not gone, nor dropped, and `added`, none of
  // which starts where another one does; with the bounds of `added`. The cell must be unreachable and out of
  // quarantine, and have room.
  void Fill(const Cell* old, const CellImage& added, const DroppedIds* dropped) noexcept;
  // Changes in place, each one atomic for readers. Append: `entry` starts behind all others, does not cross
  // the border, and there is room.
  void SetPayload(std::uint32_t index, Payload payload) noexcept;
  void Append(const CellEntry& entry) noexcept;

  // The side line. Readers see its first three words (see CellBounds), the writer all.
  struct Side {
    AtomicWord first_start, first_size, last_size;
    Cell* next;                // in the one list that the cell is in, if any
    AtomicWord* target;        // prepared: the slot that will point to it
    std::uint64_t retired_at;  // 0: not in quarantine
    std::uint16_t live;        // entries that are not gone
    std::uint16_t capacity_blocks;
    std::uint32_t size_class;
  };
  Side* side() noexcept { return reinterpret_cast<Side*>(words() + kLineWords * sample_lines()); }
  const Side* side() const noexcept { return const_cast<Cell*>(this)->side(); }
  std::uint32_t capacity() const noexcept { return side()->capacity_blocks * kEntriesPerBlock; }

  // Makes fresh memory of Lines(blocks) zeroed lines a cell.
  static Cell* Create(void* memory, unsigned blocks, unsigned size_class) noexcept;

 private:
  friend class CellFiller;
  static constexpr unsigned kSeq = 0, kMeta = 1, kSamples = 2;  // words of line 0
  static constexpr unsigned kPayloads = 2;                      // word of a block

  // meta: count | last block in use << 16 | sample lines << 32. One word, so that a reader sees them
  // together.
  static constexpr std::uint64_t Meta(std::uint32_t count, unsigned sample_lines) {
    const std::uint64_t last_block = count == 0 ? 0 : (count - 1) / kEntriesPerBlock;
    return count | last_block << 16 | std::uint64_t{sample_lines} << 32;
  }
  static constexpr std::uint32_t Count(std::uint64_t meta) { return meta & 0xffff; }
  static constexpr std::uint32_t LastBlock(std::uint64_t meta) { return meta >> 16 & 0xffff; }
  static constexpr unsigned SampleLinesOf(std::uint64_t meta) { return static_cast<unsigned>(meta >> 32); }

  AtomicWord* words() noexcept { return reinterpret_cast<AtomicWord*>(this); }
  const AtomicWord* words() const noexcept { return reinterpret_cast<const AtomicWord*>(this); }
  unsigned sample_lines() const noexcept {
    return SampleLinesOf(words()[kMeta].Load(std::memory_order_relaxed));
  }
  AtomicWord* Block(std::uint32_t block) noexcept {
    return words() + kLineWords * (sample_lines() + 1 + block);
  }
  const AtomicWord* Block(std::uint32_t block) const noexcept {
    return const_cast<Cell*>(this)->Block(block);
  }

  struct Position {
    Payload payload;
    std::uint32_t index = 0;
    std::uint32_t start = 0;
  };
  // The last entry whose start is not above `offset`. No branch depends on the entries but the last one.
  template <typename Probe>
  [[gnu::always_inline]] bool Locate(std::uint32_t offset, Position* at, const Probe& probe) const noexcept {
    // Meta comes first: entries that are appended later are cut off by its count, whatever else of them is
    // seen. Pairs with the store in Append.
    const std::uint64_t meta = words()[kMeta].Load();
    probe();
    const unsigned sample_lines = SampleLinesOf(meta);
    const LaneLimit limit(offset);
    LaneCounter samples;
    samples.Add<kSamples, kLineWords>(words(), limit);
    if (sample_lines > 1) samples.Add<kLineWords, 2 * kLineWords>(words(), limit);
    if (sample_lines > 2) samples.Add<2 * kLineWords, 3 * kLineWords>(words(), limit);
    probe();
    const std::uint32_t block = std::min(samples.count(), LastBlock(meta));
    const AtomicWord* in = words() + kLineWords * (sample_lines + 1 + block);
    // The minimum cuts off the unused lanes and entries that meta does not count; both only happen in the
    // last block.
    const std::uint32_t lane = std::min(NotAbove(in, limit), Count(meta) - block * kEntriesPerBlock) - 1;
    if (lane >= kEntriesPerBlock) return false;  // there was none, too
    probe();
    at->index = block * kEntriesPerBlock + lane;
    at->start = LaneOf(in, lane);
    at->payload = Payload(in[kPayloads + lane].Load(std::memory_order_acquire));
    return true;
  }

  void StoreStart(std::uint32_t index, std::uint32_t start) noexcept;

  [[maybe_unused]] AtomicWord line_0_[kLineWords];  // the other lines follow
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_CELL_H_
