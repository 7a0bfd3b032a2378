// SPDX-License-Identifier: MIT
//
// Radix: from an address to the slot that points to its cell. Two levels for the lowest 128 TiB, where the
// code of programs is; other regions (the kernel's half, 57-bit addresses) cost a short scan more.
//
//     pc:  | region 17 bits | table 15 bits | slot 17 bits | offset 15 bits |
//
// A slot is 0 (no code), a Cell*, or a SplitNode* with bit 0 set: then four more bits of the address choose a
// slot in the node, and so once more. Tables and nodes are never freed and a slot that points to a node
// always will, so a reader may stand on any of them for as long as it likes. Pages of tables are committed by
// the kernel when they are touched.
#ifndef STACKPIPE_CODE_MAP_RADIX_H_
#define STACKPIPE_CODE_MAP_RADIX_H_

#include <cstddef>
#include <cstdint>

#include "code_map/atomic_word.h"
#include "code_map/cell_pool.h"

namespace stackpipe::internal {

inline constexpr unsigned kCellShift = 15;
inline constexpr unsigned kTableShift = 32;
inline constexpr unsigned kRegionShift = 47;
inline constexpr unsigned kSplitBits = 4;
inline constexpr unsigned kCellShiftMin = 7;  // a cell of 128 bytes cannot overflow
inline constexpr unsigned kFarRegions = 15;
static_assert((1u << kCellShiftMin) <= kCellEntriesMax);

inline constexpr std::size_t kTableSlots = std::size_t{1} << (kTableShift - kCellShift);
struct SlotTable {
  AtomicWord slots[kTableSlots];
};

struct Region {
  AtomicWord tables[std::size_t{1} << (kRegionShift - kTableShift)];  // SlotTable*, or 0
};

struct RadixRoot {
  Region near_region;  // number 0
  struct Far {
    AtomicWord number;  // pc >> kRegionShift; 0 = unused, and so are all behind it. Set after `region`.
    AtomicWord region;  // Region*
  } far_regions[kFarRegions];

  // The slot of the 32 KiB that hold `pc`; nullptr: there was never code near it. AS-safe, bounded.
  const AtomicWord* SlotOf(std::uintptr_t pc) const noexcept {
    const Region* region = RegionOf(pc);
    if (region == nullptr) return nullptr;
    const std::uint64_t table = region->tables[pc >> kTableShift & 0x7fff].Load();
    if (table == 0) return nullptr;
    return &reinterpret_cast<const SlotTable*>(table)->slots[pc >> kCellShift & (kTableSlots - 1)];
  }
  AtomicWord* SlotOf(std::uintptr_t pc) noexcept {
    return const_cast<AtomicWord*>(static_cast<const RadixRoot*>(this)->SlotOf(pc));
  }

  const Region* RegionOf(std::uintptr_t pc) const noexcept {
    const std::uint64_t number = pc >> kRegionShift;
    return number == 0 ? &near_region : FarRegion(number);
  }
  Region* RegionOf(std::uintptr_t pc) noexcept {
    return const_cast<Region*>(static_cast<const RadixRoot*>(this)->RegionOf(pc));
  }

 private:
  [[gnu::noinline, gnu::cold]] const Region* FarRegion(std::uint64_t number) const noexcept {
    for (const Far& far : far_regions) {
      const std::uint64_t seen = far.number.Load();
      if (seen == number) return reinterpret_cast<const Region*>(far.region.Load());
      if (seen == 0) break;
    }
    return nullptr;
  }
};

inline bool IsNode(std::uint64_t slot) { return (slot & 1) != 0; }
inline SplitNode* NodeOf(std::uint64_t slot) {
  return reinterpret_cast<SplitNode*>(slot & ~std::uint64_t{1});
}
inline Cell* CellOf(std::uint64_t slot) { return reinterpret_cast<Cell*>(slot); }
inline std::uint64_t SlotValue(const SplitNode* node) { return reinterpret_cast<std::uint64_t>(node) | 1; }
inline std::uint64_t SlotValue(const Cell* cell) { return reinterpret_cast<std::uint64_t>(cell); }

// Finds the code that owns `pc`. AS-safe, wait-free: at most kFindAttempts attempts, each of at most 2 loads
// for the path, 1 for each of at most 2 split nodes, 3 to validate, and those of Cell::Find.
//
// Why the answer is right: seq is loaded between two loads of the slot that give the same cell, and again at
// the end with the same result. Seq never goes back, so it had that value all the time from the first load of
// it to the last, in particular when the slot was loaded the second time. At that moment the cell was
// published in this incarnation. Its content stayed that of the slot as long as it was published, and stayed
// as it was from then until the end, because a new incarnation would have shown in seq. So the answer was the
// map's answer at the second load of the slot or later, and not later than the end.
//
// All loads of slots and seqs are seq_cst, because the argument speaks of one order of them.
inline constexpr int kFindAttempts = 8;

// One attempt. kDeferred: the cell was replaced meanwhile.
template <typename Probe>
[[gnu::always_inline]] inline LookupResult FindOnce(const AtomicWord* slot, std::uintptr_t pc, CodeHit* out,
                                                    const Probe& probe) noexcept {
  probe();
  std::uint64_t value = slot->Load();
  for (unsigned shift = kCellShift; IsNode(value) && shift > kCellShiftMin; value = slot->Load()) {
    shift -= kSplitBits;
    slot = &NodeOf(value)->children[pc >> shift & 0xf];
    probe();
  }
  if (value == 0) return LookupResult::kNone;
  const Cell* const cell = CellOf(value);
  probe();
  const std::uint64_t seq = cell->seq();
  probe();
  if (slot->Load() != value) return LookupResult::kDeferred;
  probe();
  Cell::Found found;
  const bool any = cell->Find(pc, &found, probe);
  probe();
  if (cell->seq() != seq) return LookupResult::kDeferred;
  if (!any) return LookupResult::kNone;
  found.Answer(pc, out);
  return LookupResult::kFound;
}

// Apart from the first attempt, so that this one needs few registers.
template <typename Probe>
[[gnu::noinline, gnu::cold]] LookupResult FindAgain(const AtomicWord* slot, std::uintptr_t pc, CodeHit* out,
                                                    const Probe& probe) noexcept {
  LookupResult result = LookupResult::kDeferred;
  for (int attempt = 1; attempt < kFindAttempts && result == LookupResult::kDeferred; ++attempt) {
    result = FindOnce(slot, pc, out, probe);
  }
  return result;
}

template <typename Probe>
LookupResult FindCode(const RadixRoot& root, std::uintptr_t pc, CodeHit* out, const Probe& probe) noexcept {
  const AtomicWord* const slot = root.SlotOf(pc);
  if (slot == nullptr) return LookupResult::kNone;
  const LookupResult result = FindOnce(slot, pc, out, probe);
  if (result != LookupResult::kDeferred) [[likely]]
    return result;
  return FindAgain(slot, pc, out, probe);
}

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_RADIX_H_
