// SPDX-License-Identifier: MIT
//
// MapState: the whole content of a CodeMap and the rules of its changes, without the lock around them. Each
// change first makes all that it needs, which may fail and then has changed nothing, and then applies it,
// which cannot fail. Only RadixRoot and the cells under it may be read while a change is made.
//
// Not thread-safe: CodeMap holds its lock around each call.
#ifndef STACKPIPE_CODE_MAP_MAP_STATE_H_
#define STACKPIPE_CODE_MAP_MAP_STATE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "code_map/cell_pool.h"
#include "code_map/description_store.h"
#include "code_map/history.h"
#include "code_map/id_table.h"
#include "code_map/radix.h"
#include "stackpipe/code_map.h"
#include "stackpipe/result.h"

namespace stackpipe::internal {

// One range of a change: what goes into cells.
struct NewRange {
  std::uintptr_t start;
  std::uintptr_t last;  // its last byte
  CodeId id;
  CodeKind kind;
  std::uint32_t description;  // see DescriptionStore
  Cell* whole;                // the one cell for all slots that the range covers fully, when made
};

enum class OnOverlap : std::uint8_t { kRefuse, kRetire };

class MapState {
 public:
  static constexpr std::uint64_t kIdsEnd = std::uint64_t{1} << 32;

  // nullptr: out of memory.
  static MapState* Create() noexcept;
  // What `old`, which a change may have left half done, had committed at `epoch`. nullptr: out of memory.
  static MapState* Rebuild(const MapState& old, CodeEpoch epoch) noexcept;
  static void Destroy(MapState* state) noexcept;

  RadixRoot& root() noexcept { return *root_; }

  // Adds all of `codes`, or none. `epoch` is the map's next one, which the caller stores afterwards.
  // `ids`: one for each, or nullptr.
  Status Register(std::span<const CodeRegistration> codes, OnOverlap on_overlap, CodeEpoch epoch, CodeId* ids,
                  const CodeRetiredVisitor* retired) noexcept;
  Result<CodeId> Move(CodeId id, std::uintptr_t new_start, CodeEpoch epoch) noexcept;
  // Retires all of `ids`, or none if one of them is not live.
  Status Unregister(std::span<const CodeId> ids, CodeEpoch epoch) noexcept;
  std::size_t UnregisterOwner(std::uint64_t owner, CodeEpoch epoch,
                              const CodeRetiredVisitor* retired) noexcept;
  std::size_t UnregisterRange(std::uintptr_t start, std::size_t size, CodeEpoch epoch,
                              const CodeRetiredVisitor* retired) noexcept;
  void TrimHistory(CodeEpoch oldest_needed) noexcept;
  // After the caller stored the epoch: what can wait until a change is committed.
  void Settle() noexcept;

  bool LookupAt(std::uintptr_t pc, CodeEpoch epoch, CodeHit* out) const noexcept;
  // Any thread, no lock. kDeferred: changes of the very code interrupted each of a few attempts, which cannot
  // be under the caller's lock. Code that the change at hand adds has the birth 0, and code that it ends a
  // death that has not come.
  LookupResult Describe(CodeId id, CodeDescriptor* out) const noexcept;
  LookupResult Frames(CodeId id, std::uint32_t offset, CodeFrame* frames, std::size_t max,
                      std::size_t* count) const noexcept;
  // The live ids from `*from` on, at most `max`; returns how many, and where to go on in `*from` (0: that was
  // all).
  std::size_t LiveIds(CodeId* from, CodeId* ids, std::size_t max) const noexcept;
  std::size_t live_count() const noexcept { return live_; }
  CodeMapMemory memory() const noexcept;

  // Test seams: the next id that is given out, and what to use instead of kHistoryMax.
  void SetNextIdForTest(std::uint64_t id) noexcept { next_id_ = id; }
  void SetHistoryMaxForTest(std::size_t count) noexcept { history_max_ = count; }

 private:
  MapState() = default;
  ~MapState() = default;

  void AddVictim(CodeId id, CodeEpoch epoch) noexcept;
  void SpareVictims() noexcept;
  std::size_t RetireVictims(const CodeRetiredVisitor* retired, bool compact) noexcept;
  template <typename Use>
  LookupResult UseDescription(CodeId id, const Use& use) const noexcept;
  CodeDescriptor DescribeGone(const GoneRecord& code) const noexcept;
  void ForgetOldest() noexcept;

  // Calls visit(id) for each live range that shares an address with [start, last]; stops when it says false.
  template <typename Visit>
  bool ForEachOverlap(std::uintptr_t start, std::uintptr_t last, const Visit& visit) noexcept;
  template <typename Visit>
  bool ForEachOverlapIn(std::uint64_t value, unsigned shift, std::uintptr_t start, std::uintptr_t last,
                        const Visit& visit) noexcept;

  // Making what a change needs. Nothing is published; what was made is in `made_cells_` and `made_nodes_`.
  Status Prepare(std::span<NewRange> ranges) noexcept;
  bool PrepareSlot(AtomicWord* slot, std::uintptr_t base, unsigned shift,
                   std::span<NewRange> ranges) noexcept;
  SplitNode* PrepareSplit(AtomicWord* slot, std::uintptr_t base, unsigned shift,
                          const CellImage& image) noexcept;
  bool PrepareCell(AtomicWord* slot, const Cell* old, const CellImage& added,
                   const DroppedIds* dropped) noexcept;
  bool PrepareWhole(NewRange* range) noexcept;
  AtomicWord* EnsureSlot(std::uintptr_t pc, Status* status) noexcept;
  void Unmake(std::span<const NewRange> ranges) noexcept;

  // Applying it.
  bool ApplyInPlace(const NewRange& range) noexcept;
  void Publish(std::span<const NewRange> ranges) noexcept;
  void PublishWhole(AtomicWord* slot, std::uintptr_t base, unsigned shift, const NewRange& range) noexcept;
  void StoreSlot(AtomicWord* slot, std::uint64_t value) noexcept;
  void RemoveRange(const GoneRecord& code, bool compact) noexcept;
  void RemoveFrom(AtomicWord* slot, unsigned shift, std::uintptr_t start, std::uintptr_t last, CodeId id,
                  bool compact, Cell** emptied) noexcept;
  void Compact(AtomicWord* slot, Cell* cell) noexcept;
  void LinkOwner(std::uint32_t description) noexcept;
  void UnlinkOwner(std::uint32_t description) noexcept;
  std::uint32_t OwnerHead(std::uint64_t owner) const noexcept;

  Status RegisterRanges(std::span<const CodeRegistration> codes, std::span<NewRange> ranges,
                        OnOverlap on_overlap, CodeEpoch epoch, const CodeRetiredVisitor* retired) noexcept;
  Status Insert(std::span<NewRange> ranges, CodeEpoch epoch, const CodeRetiredVisitor* retired) noexcept;
  Status Make(CodeEpoch epoch, NewRange* range) noexcept;
  void Unmake(const NewRange& range) noexcept;
  bool Adopt(const MapState& old, CodeEpoch epoch) noexcept;
  bool AdoptLive(const MapState& old, const GoneRecord& code) noexcept;

  RadixRoot* root_ = nullptr;
  CellPool pool_;
  IdTable ids_;
  DescriptionStore descriptions_;
  History history_;
  HashIndex owners_;  // hash of an owner -> first description of its list
  std::size_t history_max_ = CodeMap::kHistoryMax;
  std::size_t live_ = 0;
  std::uint64_t next_id_ = 1;  // up to kIdsEnd
  std::size_t table_bytes_ = 0;

  // The change that is being made. Victims is the code that ends with it: a list of its records, which the
  // history does not have yet.
  struct {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
  } victims_;
  struct {
    Cell* first = nullptr;
    Cell* last = nullptr;
  } made_cells_;
  struct {
    SplitNode* first = nullptr;
    SplitNode* last = nullptr;
  } made_nodes_;
  CellImage images_[1 + (kCellShift - kCellShiftMin) /
                            kSplitBits];  // one for each size of cell; too large for a stack
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_MAP_STATE_H_
