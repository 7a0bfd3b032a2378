// SPDX-License-Identifier: MIT
#include "code_map/map_state.h"

#include <algorithm>
#include <new>

#include "code_map/code_details.h"
#include "code_map/page_memory.h"

namespace stackpipe::internal {

namespace {

constexpr std::uintptr_t kCellBytes = std::uintptr_t{1} << kCellShift;
constexpr std::uint64_t kEmptied = ~std::uint64_t{0};  // in Cell::Side::retired_at
constexpr std::size_t kLiveMax = std::size_t{1} << 26;
// A cell with fewer entries than this is not worth compacting.
constexpr std::uint32_t kCompactEntriesMin = 4 * kEntriesPerBlock;

std::uintptr_t LastOf(std::uintptr_t base, unsigned shift) {
  return base + ((std::uintptr_t{1} << shift) - 1);
}

unsigned DepthOf(unsigned shift) { return (kCellShift - shift) / kSplitBits; }

std::uint32_t OwnerKey(std::uint64_t owner) {
  return static_cast<std::uint32_t>(owner * 0x9e3779b97f4a7c15u >> 32);
}

// The part of a range that lies in a span, as an entry. If it crosses the border, `bounds` gets its true
// ones.
CellEntry Clip(const NewRange& range, std::uintptr_t base, unsigned shift, CellBounds* bounds) {
  const std::uintptr_t first = std::max(range.start, base);
  const std::uintptr_t last = std::min(range.last, LastOf(base, shift));
  const bool before = first != range.start;
  const bool behind = last != range.last;
  if (before) {
    bounds->first_start = range.start;
    bounds->first_size = range.last - range.start + 1;
  } else if (behind) {
    bounds->last_size = range.last - range.start + 1;
  }
  return {static_cast<std::uint32_t>(first & 0xffff),
          Payload(range.id, range.kind, static_cast<std::uint32_t>(last - first + 1), before, behind)};
}

// The whole range of an entry of a cell whose span is in the 64 KiB at `cell_base`.
NewRange RangeOf(const CellImage& image, const CellEntry& entry, std::uintptr_t cell_base) {
  const Payload payload = entry.payload;
  NewRange range = {};
  range.start = payload.begins_before() ? image.bounds.first_start : cell_base + entry.start;
  const std::uint64_t size = payload.begins_before() ? image.bounds.first_size
                             : payload.ends_behind() ? image.bounds.last_size
                                                     : payload.length();
  range.last = range.start + (size - 1);
  range.id = payload.id();
  range.kind = payload.kind();
  return range;
}

// Those of the sorted ranges that share an address with [first, last].
std::span<NewRange> Touching(std::span<NewRange> ranges, std::uintptr_t first, std::uintptr_t last) {
  const auto begin = std::partition_point(ranges.begin(), ranges.end(),
                                          [&](const NewRange& range) { return range.last < first; });
  const auto end =
      std::partition_point(begin, ranges.end(), [&](const NewRange& range) { return range.start <= last; });
  return {begin, end};
}

Status CheckRange(std::uintptr_t start, std::size_t size) {
  if (size == 0) return {StatusCode::kInvalidArgument, "registering code of size 0"};
  if (start + size < start) return {StatusCode::kInvalidArgument, "registering code whose end wraps"};
  if (size > CodeMap::kRangeBytesMax) return {StatusCode::kLimit, "registering code larger than the limit"};
  return {};
}

// What the change at hand retires: of all code that cells still have.
struct VictimIds final : DroppedIds {
  explicit VictimIds(const IdTable& all) : ids(all) {}
  bool Has(CodeId id) const noexcept override {
    IdTable::Entry entry;
    return ids.Find(id, &entry) && entry.gone_index != 0;
  }
  const IdTable& ids;
};

Status OutOfMemory() { return {StatusCode::kOutOfMemory, "changing the code map"}; }
Status Overlap() { return {StatusCode::kOverlap, "registering code where there is some"}; }

}  // namespace

MapState* MapState::Create() noexcept {
  void* memory = AllocatePages(sizeof(MapState));
  if (memory == nullptr) return nullptr;
  auto* state = new (memory) MapState;
  state->root_ = static_cast<RadixRoot*>(AllocatePages(sizeof(RadixRoot)));
  if (state->root_ == nullptr) {
    Destroy(state);
    return nullptr;
  }
  return state;
}

void MapState::Destroy(MapState* state) noexcept {
  if (state == nullptr) return;
  if (RadixRoot* const root = state->root_; root != nullptr) {
    const auto free_region = [](Region& region) {
      for (AtomicWord& table : region.tables) {
        if (table.raw != 0) FreePages(reinterpret_cast<void*>(table.raw), sizeof(SlotTable));
      }
    };
    free_region(root->near_region);
    for (RadixRoot::Far& far : root->far_regions) {
      if (far.number.raw == 0) break;
      free_region(*reinterpret_cast<Region*>(far.region.raw));
      FreePages(reinterpret_cast<void*>(far.region.raw), sizeof(Region));
    }
    FreePages(root, sizeof(RadixRoot));
  }
  state->~MapState();
  FreePages(state, sizeof(MapState));
}

// --- finding ---

bool MapState::LookupAt(std::uintptr_t pc, CodeEpoch epoch, CodeHit* out) const noexcept {
  CodeHit hit;
  IdTable::Entry entry;
  if (FindCode(*root_, pc, &hit, NoProbe{}) == LookupResult::kFound && ids_.Find(hit.id, &entry) &&
      entry.birth <= epoch) {
    *out = hit;
    return true;
  }
  const std::uint32_t index = history_.Find(pc, epoch);
  if (index == 0) return false;
  const GoneRecord& code = history_[index];
  *out = {code.id, code.kind, code.start, code.size};
  return true;
}

// Calls use(code, description): all of GoneRecord but the death of code that lives is set. False: what it
// used is not that of the code any more. Each attempt after the first means that the code went meanwhile, or
// that its going was taken back, or that its cell was replaced again and again.
template <typename Use>
LookupResult MapState::UseDescription(CodeId id, const Use& use) const noexcept {
  constexpr int kAttempts = 8;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    IdTable::Entry entry;
    if (!ids_.Find(id, &entry)) return LookupResult::kNone;
    GoneRecord code = {};
    if (entry.gone_index != 0) {
      if (!history_.Read(entry.gone_index, id, &code)) continue;
    } else {
      CodeHit hit;
      if (FindCode(*root_, entry.start, &hit, NoProbe{}) != LookupResult::kFound || hit.id != id) {
        if (entry.birth == 0) return LookupResult::kNone;  // no lookup can have found it yet
        continue;
      }
      code.start = hit.start;
      code.size = hit.size;
      code.kind = hit.kind;
      code.id = id;
      code.birth = entry.birth;
      code.description = entry.description;
    }
    if (use(code)) return LookupResult::kFound;
  }
  return LookupResult::kDeferred;
}

LookupResult MapState::Describe(CodeId id, CodeDescriptor* out) const noexcept {
  return UseDescription(id, [&](const GoneRecord& code) {
    *out = {};
    out->start = code.start;
    out->size = code.size;
    out->kind = code.kind;
    out->birth = code.birth;
    out->death = code.death.raw;
    return code.description == 0 || descriptions_.Read(code.description, id, out);
  });
}

LookupResult MapState::Frames(CodeId id, std::uint32_t offset, CodeFrame* frames, std::size_t max,
                              std::size_t* count) const noexcept {
  return UseDescription(id, [&](const GoneRecord& code) {
    if (max > 0) frames[0] = {};
    *count = std::min<std::size_t>(max, 1);
    if (code.description != 0 && max > 0) {
      *count = descriptions_.Frames(code.description, id, offset, frames, max);
    }
    return *count > 0 || max == 0;
  });
}

CodeDescriptor MapState::DescribeGone(const GoneRecord& code) const noexcept {
  CodeDescriptor out;
  (void)Describe(code.id, &out);
  return out;
}

std::size_t MapState::LiveIds(CodeId* from, CodeId* ids, std::size_t max) const noexcept {
  std::size_t found = 0;
  std::uint64_t next = ids_.NextFrom(*from);
  for (; next != kIdsEnd && found < max; next = ids_.NextFrom(next + 1)) {
    const auto id = static_cast<CodeId>(next);
    IdTable::Entry entry;
    if (ids_.Find(id, &entry) && entry.birth != 0) ids[found++] = id;
  }
  *from = next == kIdsEnd ? 0 : static_cast<CodeId>(next);
  return found;
}

CodeMapMemory MapState::memory() const noexcept {
  return {sizeof(MapState) + table_bytes_ + pool_.bytes(),
          ids_.bytes() + descriptions_.bytes() + history_.bytes() + owners_.bytes(),
          descriptions_.text_bytes()};
}

template <typename Visit>
bool MapState::ForEachOverlapIn(std::uint64_t value, unsigned shift, std::uintptr_t start,
                                std::uintptr_t last, const Visit& visit) noexcept {
  if (value == 0) return true;
  if (IsNode(value)) {
    shift -= kSplitBits;
    const SplitNode* node = NodeOf(value);
    const std::uintptr_t step = std::uintptr_t{1} << shift;
    for (std::uintptr_t at = start;; at = (at | (step - 1)) + 1) {
      const std::uintptr_t end = std::min(at | (step - 1), last);
      if (!ForEachOverlapIn(node->children[at >> shift & 0xf].Load(), shift, at, end, visit)) return false;
      if (end == last) return true;
    }
  }
  const Cell* cell = CellOf(value);
  const auto first_offset = static_cast<std::uint32_t>(start & 0xffff);
  const auto last_offset = static_cast<std::uint32_t>(last & 0xffff);
  const std::uint32_t count = cell->count();
  for (auto i = static_cast<std::uint32_t>(std::max(cell->IndexOf(first_offset), 0)); i < count; ++i) {
    const CellEntry entry = cell->At(i);
    if (entry.start > last_offset) break;
    if (entry.payload.gone() || entry.start + entry.payload.length() <= first_offset) continue;
    if (!visit(entry.payload.id())) return false;
  }
  return true;
}

template <typename Visit>
bool MapState::ForEachOverlap(std::uintptr_t start, std::uintptr_t last, const Visit& visit) noexcept {
  for (std::uintptr_t at = start;;) {
    const AtomicWord* slot = root_->SlotOf(at);
    // Where there never was code it goes on with the next table, or region.
    const std::uintptr_t span_last =
        at | (slot != nullptr                  ? kCellBytes - 1
              : root_->RegionOf(at) != nullptr ? (std::uintptr_t{1} << kTableShift) - 1
                                               : (std::uintptr_t{1} << kRegionShift) - 1);
    const std::uintptr_t end = std::min(span_last, last);
    if (slot != nullptr && !ForEachOverlapIn(slot->Load(), kCellShift, at, end, visit)) return false;
    if (end == last) return true;
    at = end + 1;
  }
}

// --- preparing a change ---

// `id` is in the map, and the cells have not been changed yet. From here on its code is in the history, with
// a death that has not come.
void MapState::AddVictim(CodeId id, CodeEpoch epoch) noexcept {
  IdTable::Entry entry;
  if (!ids_.Find(id, &entry) || entry.gone_index != 0) return;  // is one already
  CodeHit hit;
  (void)FindCode(*root_, entry.start, &hit, NoProbe{});
  GoneRecord code = {};
  code.start = hit.start;
  code.size = hit.size;
  code.kind = hit.kind;
  code.id = id;
  code.birth = entry.birth;
  code.death.raw = epoch;
  code.description = entry.description;
  const std::uint32_t index = history_.Create(code);
  ids_.SetGone(id, index);
  if (victims_.first == 0) {
    victims_.first = index;
  } else {
    history_[victims_.last].next = index;
  }
  victims_.last = index;
}

void MapState::SpareVictims() noexcept {
  for (std::uint32_t index = victims_.first; index != 0;) {
    const std::uint32_t next = history_[index].next;
    ids_.SetBirth(history_[index].id, history_[index].birth);
    history_.Destroy(index);
    index = next;
  }
  victims_ = {};
}

AtomicWord* MapState::EnsureSlot(std::uintptr_t pc, Status* status) noexcept {
  Region* region = root_->RegionOf(pc);
  if (region == nullptr) {
    const auto far = std::find_if(std::begin(root_->far_regions), std::end(root_->far_regions),
                                  [](const RadixRoot::Far& unused) { return unused.number.Load() == 0; });
    if (far == std::end(root_->far_regions)) {
      *status = {StatusCode::kLimit, "registering code in too many regions of 128 TiB"};
      return nullptr;
    }
    region = static_cast<Region*>(AllocatePages(sizeof(Region)));
    if (region == nullptr) {
      *status = OutOfMemory();
      return nullptr;
    }
    far->region.Store(reinterpret_cast<std::uint64_t>(region));
    far->number.Store(pc >> kRegionShift);  // pairs with the load in RegionOf
  }
  AtomicWord& table = region->tables[pc >> kTableShift & 0x7fff];
  if (table.Load() == 0) {
    void* pages = AllocatePages(sizeof(SlotTable));
    if (pages == nullptr) {
      *status = OutOfMemory();
      return nullptr;
    }
    table.Store(reinterpret_cast<std::uint64_t>(pages));  // pairs with the load in SlotOf
  }
  return root_->SlotOf(pc);
}

// Walks the 32 KiB spans that the sorted ranges touch. Between a range's first and last span it covers all,
// and needs no more than the one cell for that.
Status MapState::Prepare(std::span<NewRange> ranges) noexcept {
  Status status;
  std::uintptr_t base = ranges[0].start & ~(kCellBytes - 1);
  while (!ranges.empty()) {
    const std::uintptr_t last = LastOf(base, kCellShift);
    AtomicWord* slot = EnsureSlot(base, &status);
    if (slot == nullptr) return status;
    const auto touching = Touching(ranges, base, last);
    if (!PrepareSlot(slot, base, kCellShift, touching)) return OutOfMemory();
    NewRange* const final = &touching.back();
    if (final->last <= last) {
      ranges = ranges.subspan(touching.size());
      if (!ranges.empty()) base = ranges[0].start & ~(kCellBytes - 1);
      continue;
    }
    ranges = ranges.subspan(touching.size() - 1);  // `final` goes on
    base += kCellBytes;
    const std::uintptr_t whole_end = (final->last + 1) & ~(kCellBytes - 1);
    if (whole_end <= base) continue;
    if (!PrepareWhole(final)) return OutOfMemory();
    for (std::uintptr_t at = base;;
         ++at) {  // once for each table; the last one may be that of the last 4 GiB
      if (EnsureSlot(at, &status) == nullptr) return status;
      at |= (std::uintptr_t{1} << kTableShift) - 1;
      if (at >= whole_end - 1) break;
    }
    base = whole_end;
    if (final->last < base) {
      ranges = ranges.subspan(1);
      if (!ranges.empty()) base = ranges[0].start & ~(kCellBytes - 1);
    }
  }
  return {};
}

bool MapState::PrepareWhole(NewRange* range) noexcept {
  if (range->whole != nullptr) return true;
  Cell* cell = pool_.Allocate(1);
  if (cell == nullptr) return false;
  CellImage& image = images_[0];
  image.count = 1;
  image.bounds.first_start = range->start;
  image.bounds.first_size = range->last - range->start + 1;
  image.entries[0] = {0, Payload(range->id, range->kind, 1u << 16, true, true)};
  cell->Fill(nullptr, image, nullptr);
  range->whole = cell;
  return true;
}

// Makes what the slot will hold when the ranges are in it, whose parts outside of the span are left out.
bool MapState::PrepareSlot(AtomicWord* slot, std::uintptr_t base, unsigned shift,
                           std::span<NewRange> ranges) noexcept {
  const std::uintptr_t last = LastOf(base, shift);
  if (ranges[0].start <= base && ranges[0].last >= last) return PrepareWhole(&ranges[0]);

  std::uint64_t value = slot->Load();
  if (!IsNode(value)) {
    const Cell* const old = CellOf(value);  // null: there was no code
    const VictimIds victims(ids_);
    const DroppedIds* const dropped = victims_.first != 0 ? &victims : nullptr;
    CellImage& image = images_[DepthOf(shift)];
    if ((old != nullptr ? old->side()->live : 0) + ranges.size() <= kCellEntriesMax) {
      image.count = static_cast<std::uint32_t>(ranges.size());
      image.bounds = old != nullptr ? old->Bounds() : CellBounds{};
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        image.entries[i] = Clip(ranges[i], base, shift, &image.bounds);
      }
      return PrepareCell(slot, old, image, dropped);
    }
    image.count = 0;
    if (old != nullptr) old->Read(&image, dropped);
    SplitNode* node = PrepareSplit(slot, base, shift, image);
    if (node == nullptr) return false;
    value = SlotValue(node);
  }
  const unsigned child_shift = shift - kSplitBits;
  for (std::uintptr_t i = 0; i < 16; ++i) {
    const std::uintptr_t child_base = base + (i << child_shift);
    const auto touching = Touching(ranges, child_base, LastOf(child_base, child_shift));
    if (touching.empty()) continue;
    if (!PrepareSlot(&NodeOf(value)->children[i], child_base, child_shift, touching)) return false;
  }
  return true;
}

bool MapState::PrepareCell(AtomicWord* slot, const Cell* old, const CellImage& added,
                           const DroppedIds* dropped) noexcept {
  Cell* cell = pool_.Allocate((old != nullptr ? old->side()->live : 0) + added.count);
  if (cell == nullptr) return false;
  cell->Fill(old, added, dropped);
  cell->side()->target = slot;
  if (made_cells_.first == nullptr) {
    made_cells_.first = cell;
  } else {
    made_cells_.last->side()->next = cell;
  }
  made_cells_.last = cell;
  return true;
}

// A node whose children hold what `image` holds.
SplitNode* MapState::PrepareSplit(AtomicWord* slot, std::uintptr_t base, unsigned shift,
                                  const CellImage& image) noexcept {
  SplitNode* node = pool_.AllocateNode();
  if (node == nullptr) return nullptr;
  node->target = slot;
  node->next = nullptr;
  if (made_nodes_.first == nullptr) {
    made_nodes_.first = node;
  } else {
    made_nodes_.last->next = node;
  }
  made_nodes_.last = node;

  const unsigned child_shift = shift - kSplitBits;
  CellImage& part = images_[DepthOf(child_shift)];
  for (std::uintptr_t i = 0; i < 16; ++i) {
    const std::uintptr_t child_base = base + (i << child_shift);
    part.count = 0;
    for (std::uint32_t k = 0; k < image.count; ++k) {
      const NewRange range = RangeOf(image, image.entries[k], base & ~std::uintptr_t{0xffff});
      if (range.last < child_base || range.start > LastOf(child_base, child_shift)) continue;
      part.entries[part.count] = Clip(range, child_base, child_shift, &part.bounds);
      ++part.count;
    }
    if (part.count == 0) continue;
    Cell* cell = pool_.Allocate(part.count);
    if (cell == nullptr) return nullptr;
    cell->Fill(nullptr, part, nullptr);
    node->children[i].Store(SlotValue(cell));
  }
  return node;
}

// Gives back all that was made for a change that cannot be.
void MapState::Unmake(std::span<const NewRange> ranges) noexcept {
  for (Cell* cell = made_cells_.first; cell != nullptr;) {
    Cell* const next = cell->side()->next;
    pool_.Free(cell);
    cell = next;
  }
  for (SplitNode* node = made_nodes_.first; node != nullptr;) {
    SplitNode* const next = node->next;
    for (const AtomicWord& child : node->children) {
      if (child.raw != 0) pool_.Free(CellOf(child.raw));
    }
    pool_.FreeNode(node);
    node = next;
  }
  for (const NewRange& range : ranges) {
    if (range.whole != nullptr) pool_.Free(range.whole);
  }
  made_cells_ = {};
  made_nodes_ = {};
}

// --- applying a change ---

void MapState::StoreSlot(AtomicWord* slot, std::uint64_t value) noexcept {
  const std::uint64_t old = slot->Load(std::memory_order_relaxed);
  slot->Store(value);  // publishes; pairs with the loads in FindCode
  if (old != 0) pool_.Retire(CellOf(old));
}

void MapState::Publish(std::span<const NewRange> ranges) noexcept {
  for (SplitNode* node = made_nodes_.first; node != nullptr; node = node->next) {
    StoreSlot(node->target, SlotValue(node));
  }
  for (Cell* cell = made_cells_.first; cell != nullptr;) {
    Cell* const next = cell->side()->next;
    cell->side()->next = nullptr;
    StoreSlot(cell->side()->target, SlotValue(cell));
    cell = next;
  }
  made_cells_ = {};
  made_nodes_ = {};
  for (const NewRange& range : ranges) {
    if (range.whole == nullptr) continue;
    for (std::uintptr_t base = range.start & ~(kCellBytes - 1); base <= range.last; base += kCellBytes) {
      PublishWhole(root_->SlotOf(base), base, kCellShift, range);
      if (LastOf(base, kCellShift) >= range.last) break;
    }
  }
}

void MapState::PublishWhole(AtomicWord* slot, std::uintptr_t base, unsigned shift,
                            const NewRange& range) noexcept {
  const std::uintptr_t last = LastOf(base, shift);
  if (range.last < base || range.start > last) return;
  const std::uint64_t value = slot->Load(std::memory_order_relaxed);
  if (IsNode(value)) {
    const unsigned child_shift = shift - kSplitBits;
    for (std::uintptr_t i = 0; i < 16; ++i) {
      PublishWhole(&NodeOf(value)->children[i], base + (i << child_shift), child_shift, range);
    }
  } else if (range.start <= base && range.last >= last) {
    StoreSlot(slot, SlotValue(range.whole));
  }
}

// Puts a range that overlaps nothing into a cell that is there, if no reader can see anything but before and
// after: where a range with the same start was, or behind all others. False: not possible, nothing changed.
bool MapState::ApplyInPlace(const NewRange& range) noexcept {
  AtomicWord* slot = root_->SlotOf(range.start);
  if (slot == nullptr) return false;
  unsigned shift = kCellShift;
  std::uint64_t value = slot->Load(std::memory_order_relaxed);
  while (IsNode(value)) {
    shift -= kSplitBits;
    value = NodeOf(value)->children[range.start >> shift & 0xf].Load(std::memory_order_relaxed);
  }
  // A range that crosses the border has its true bounds in the side line, which readers of an older range may
  // be reading; a cell gets them only when it is filled.
  if (value == 0 || (range.start ^ range.last) >> shift != 0) return false;
  Cell* cell = CellOf(value);
  CellBounds unused;
  const CellEntry entry = Clip(range, range.start & ~((std::uintptr_t{1} << shift) - 1), shift, &unused);
  const std::uint32_t count = cell->count();
  const int before = cell->IndexOf(entry.start);
  if (before < 0) return false;
  const auto index = static_cast<std::uint32_t>(before);
  if (cell->At(index).start == entry.start) {
    const std::uint32_t end = entry.start + entry.payload.length();
    if (index + 1 < count && cell->At(index + 1).start < end) return false;  // one that is gone
    cell->SetPayload(index, entry.payload);
    return true;
  }
  if (index + 1 != count || count == cell->capacity()) return false;
  cell->Append(entry);
  return true;
}

void MapState::RemoveRange(const GoneRecord& code, bool compact) noexcept {
  const std::uintptr_t last = code.start + (code.size - 1);
  Cell* emptied = nullptr;
  for (std::uintptr_t at = code.start;; at = (at | (kCellBytes - 1)) + 1) {
    const std::uintptr_t end = std::min(at | (kCellBytes - 1), last);
    RemoveFrom(root_->SlotOf(at), kCellShift, at, end, code.id, compact, &emptied);
    if (end == last) break;
  }
  // Only now: many slots may have shared one of them, and it must not be used again before the last let go.
  while (emptied != nullptr) {
    Cell* const cell = emptied;
    emptied = cell->side()->next;
    cell->side()->retired_at = 0;
    pool_.Retire(cell);
  }
}

// [start, last] is the part of the range of `id` in the slot's span, unless what replaces it is there
// already. Cells that no slot needs any more are added to `*emptied`, once each.
void MapState::RemoveFrom(AtomicWord* slot, unsigned shift, std::uintptr_t start, std::uintptr_t last,
                          CodeId id, bool compact, Cell** emptied) noexcept {
  const std::uint64_t value = slot->Load(std::memory_order_relaxed);
  if (value == 0) return;
  if (IsNode(value)) {
    shift -= kSplitBits;
    const std::uintptr_t step = std::uintptr_t{1} << shift;
    for (std::uintptr_t at = start;; at = (at | (step - 1)) + 1) {
      const std::uintptr_t end = std::min(at | (step - 1), last);
      RemoveFrom(&NodeOf(value)->children[at >> shift & 0xf], shift, at, end, id, compact, emptied);
      if (end == last) return;
    }
  }
  Cell* cell = CellOf(value);
  Cell::Side* side = cell->side();
  const int found = cell->IndexOf(static_cast<std::uint32_t>(start & 0xffff));
  if (found < 0) return;
  const auto index = static_cast<std::uint32_t>(found);
  if (cell->At(index).payload.id() != id) return;
  // Alone in its span, or the last one there: the span is empty then. What several slots share is alone.
  if (side->live == 1) {
    slot->Store(0);  // pairs with the loads in FindCode
    if (side->retired_at != 0) return;
    side->retired_at = kEmptied;
    side->next = *emptied;
    *emptied = cell;
    return;
  }
  cell->SetPayload(index, Payload());
  if (compact && cell->count() >= kCompactEntriesMin && side->live * 4u <= cell->count()) Compact(slot, cell);
}

// Replaces a cell whose entries are mostly gone by a smaller one; without the memory it stays.
void MapState::Compact(AtomicWord* slot, Cell* cell) noexcept {
  Cell* const smaller = pool_.Allocate(cell->side()->live);
  if (smaller == nullptr) return;
  images_[0].count = 0;
  images_[0].bounds = cell->Bounds();
  smaller->Fill(cell, images_[0], nullptr);
  StoreSlot(slot, SlotValue(smaller));
}

std::uint32_t MapState::OwnerHead(std::uint64_t owner) const noexcept {
  return owners_.Find(OwnerKey(owner),
                      [&](std::uint32_t description) { return descriptions_.OwnerOf(description) == owner; });
}

void MapState::LinkOwner(std::uint32_t description) noexcept {
  const std::uint64_t owner = descriptions_.OwnerOf(description);
  if (owner == 0) return;
  const std::uint32_t head = OwnerHead(owner);
  descriptions_[description].previous = 0;
  descriptions_[description].next = head;
  if (head == 0) {
    owners_.Insert(OwnerKey(owner), description);
  } else {
    descriptions_[head].previous = description;
    owners_.Replace(OwnerKey(owner), head, description);
  }
}

void MapState::UnlinkOwner(std::uint32_t description) noexcept {
  const std::uint64_t owner = descriptions_.OwnerOf(description);
  if (owner == 0) return;
  const std::uint32_t previous = descriptions_[description].previous, next = descriptions_[description].next;
  if (next != 0) descriptions_[next].previous = previous;
  if (previous != 0) {
    descriptions_[previous].next = next;
  } else if (next != 0) {
    owners_.Replace(OwnerKey(owner), description, next);
  } else {
    owners_.Erase(OwnerKey(owner), description);
  }
}

std::size_t MapState::RetireVictims(const CodeRetiredVisitor* retired, bool compact) noexcept {
  std::size_t count = 0;
  for (std::uint32_t index = victims_.first; index != 0; ++count) {
    const GoneRecord& code = history_[index];
    const std::uint32_t next = code.next;
    RemoveRange(code, compact);
    UnlinkOwner(code.description);
    if (retired != nullptr) retired->visit(retired->context, code.id, DescribeGone(code));
    history_.Add(index);
    index = next;
  }
  victims_ = {};
  live_ -= count;
  return count;
}

void MapState::ForgetOldest() noexcept {
  const std::uint32_t index = history_.oldest();
  const GoneRecord code = history_[index];
  history_.RemoveOldest();
  history_.Destroy(index);  // first of what a fork's child looks at
  ids_.Erase(code.id);
  descriptions_.Destroy(code.description);
}

void MapState::TrimHistory(CodeEpoch oldest_needed) noexcept {
  while (history_.oldest() != 0 && history_[history_.oldest()].death.Load() <= oldest_needed) ForgetOldest();
}

void MapState::Settle() noexcept {
  while (history_.count() > history_max_) ForgetOldest();
}

// --- changes ---

// Makes what the map keeps of a registration, whose description is there, beside its cells. It does not count
// yet.
Status MapState::Make(CodeEpoch epoch, NewRange* range) noexcept {
  const Status status = ids_.Reserve(range->id, range->start, range->description != 0, epoch);
  if (status.ok()) {
    ids_.Add(range->id, range->start, range->description);
  } else {
    descriptions_.Destroy(range->description);
  }
  return status;
}

void MapState::Unmake(const NewRange& range) noexcept {
  ids_.Erase(range.id);
  descriptions_.Destroy(range.description);
}

// Adds ranges that are made; the victims go in the same step.
Status MapState::Insert(std::span<NewRange> ranges, CodeEpoch epoch,
                        const CodeRetiredVisitor* retired) noexcept {
  if (!owners_.Reserve(ranges.size())) return OutOfMemory();
  const bool simple = ranges.size() == 1 && victims_.first == 0;
  const bool in_place = simple && ApplyInPlace(ranges[0]);
  if (!in_place) {
    if (const Status status = Prepare(ranges); !status.ok()) {
      Unmake(ranges);
      return status;
    }
  }
  // New code first: the cells that it gets are without the victims, so that each cell changes in one store.
  if (!in_place) Publish(ranges);
  RetireVictims(retired, false);
  for (const NewRange& range : ranges) {
    LinkOwner(range.description);
    ids_.SetBirth(range.id, epoch);
    next_id_ = std::max(next_id_, std::uint64_t{range.id} + 1);
  }
  live_ += ranges.size();
  return {};
}

Status MapState::Register(std::span<const CodeRegistration> codes, OnOverlap on_overlap, CodeEpoch epoch,
                          CodeId* ids, const CodeRetiredVisitor* retired) noexcept {
  if (codes.empty()) return {};
  for (const CodeRegistration& code : codes) {
    if (const Status status = CheckRange(code.start, code.size); !status.ok()) return status;
    if (!AreDetailsInOrder(code)) return {StatusCode::kInvalidArgument, "registering lines out of order"};
  }
  if (next_id_ + codes.size() > kIdsEnd) return {StatusCode::kLimit, "registering code: all ids are used"};
  NewRange single;
  NewRange* memory = &single;
  const std::size_t bytes = codes.size() * sizeof(NewRange);
  if (codes.size() > 1) {
    memory = static_cast<NewRange*>(AllocatePages(bytes));
    if (memory == nullptr) return OutOfMemory();
  }
  const std::span<NewRange> ranges(memory, codes.size());
  const auto first_id = static_cast<CodeId>(next_id_);
  const Status status = RegisterRanges(codes, ranges, on_overlap, epoch, retired);
  if (status.ok()) ids_.SetEnd(next_id_);
  for (std::size_t i = 0; status.ok() && ids != nullptr && i < codes.size(); ++i) {
    ids[i] = static_cast<CodeId>(first_id + i);
  }
  if (codes.size() > 1) FreePages(memory, bytes);
  return status;
}

Status MapState::RegisterRanges(std::span<const CodeRegistration> codes, std::span<NewRange> ranges,
                                OnOverlap on_overlap, CodeEpoch epoch,
                                const CodeRetiredVisitor* retired) noexcept {
  for (std::size_t i = 0; i < codes.size(); ++i) {
    ranges[i] = {codes[i].start,
                 codes[i].start + (codes[i].size - 1),
                 static_cast<CodeId>(next_id_ + i),
                 codes[i].kind,
                 0,
                 nullptr};
  }
  const auto by_start = [](const NewRange& a, const NewRange& b) { return a.start < b.start; };
  if (!std::is_sorted(ranges.begin(), ranges.end(), by_start))
    std::sort(ranges.begin(), ranges.end(), by_start);
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].start <= ranges[i - 1].last) return Overlap();
  }
  if (live_ + ranges.size() > kLiveMax) return {StatusCode::kLimit, "registering code"};
  // All of it may be gone one day, and that must not fail.
  if (!history_.Reserve(live_ + history_.count() + ranges.size())) return OutOfMemory();
  Status status;
  for (const NewRange& range : ranges) {
    const bool free = ForEachOverlap(range.start, range.last, [&](CodeId id) {
      if (on_overlap == OnOverlap::kRefuse) return false;
      AddVictim(id, epoch);
      return true;
    });
    if (!free) status = Overlap();
    if (!free) break;
  }
  std::size_t made = 0;
  for (; status.ok() && made < ranges.size(); ++made) {
    NewRange* const range = &ranges[made];
    status = OutOfMemory();
    if (!descriptions_.Create(codes[range->id - next_id_], range->id, &range->description)) break;
    status = Make(epoch, range);
    if (!status.ok()) break;
  }
  if (status.ok()) status = Insert(ranges, epoch, retired);
  if (!status.ok()) {
    while (made > 0) Unmake(ranges[--made]);
    SpareVictims();
  }
  return status;
}

Result<CodeId> MapState::Move(CodeId id, std::uintptr_t new_start, CodeEpoch epoch) noexcept {
  IdTable::Entry entry;
  CodeHit was;
  if (!ids_.Find(id, &entry) || entry.gone_index != 0 ||
      FindCode(*root_, entry.start, &was, NoProbe{}) != LookupResult::kFound) {
    return Status{StatusCode::kNotFound, "moving code that is not registered"};
  }
  if (const Status status = CheckRange(new_start, was.size); !status.ok()) return status;
  if (next_id_ == kIdsEnd) return Status{StatusCode::kLimit, "moving code: all ids are used"};
  NewRange range = {new_start, new_start + (was.size - 1), static_cast<CodeId>(next_id_), was.kind, 0,
                    nullptr};
  if (!ForEachOverlap(range.start, range.last, [&](CodeId other) { return other == id; })) return Overlap();
  if (!history_.Reserve(live_ + history_.count() + 1)) return OutOfMemory();
  if (!descriptions_.Copy(entry.description, range.id, &range.description)) return OutOfMemory();
  if (const Status status = Make(epoch, &range); !status.ok()) return status;
  AddVictim(id, epoch);
  if (const Status status = Insert({&range, 1}, epoch, nullptr); !status.ok()) {
    Unmake(range);
    SpareVictims();
    return status;
  }
  ids_.SetEnd(next_id_);
  return range.id;
}

Status MapState::Unregister(std::span<const CodeId> ids, CodeEpoch epoch) noexcept {
  for (const CodeId id : ids) {
    IdTable::Entry entry;
    if (!ids_.Find(id, &entry) || entry.gone_index != 0) {
      SpareVictims();
      return {StatusCode::kNotFound, "unregistering code that is not registered"};
    }
    AddVictim(id, epoch);
  }
  RetireVictims(nullptr, true);
  return {};
}

std::size_t MapState::UnregisterOwner(std::uint64_t owner, CodeEpoch epoch,
                                      const CodeRetiredVisitor* retired) noexcept {
  if (owner == 0) return 0;
  for (std::uint32_t index = OwnerHead(owner); index != 0; index = descriptions_[index].next) {
    AddVictim(descriptions_[index].id, epoch);
  }
  return RetireVictims(retired, true);
}

std::size_t MapState::UnregisterRange(std::uintptr_t start, std::size_t size, CodeEpoch epoch,
                                      const CodeRetiredVisitor* retired) noexcept {
  if (size == 0 || start + (size - 1) < start) return 0;
  ForEachOverlap(start, start + (size - 1), [&](CodeId id) {
    AddVictim(id, epoch);
    return true;
  });
  return RetireVictims(retired, true);
}

// --- after a fork amid a change ---

MapState* MapState::Rebuild(const MapState& old, CodeEpoch epoch) noexcept {
  MapState* state = Create();
  if (state == nullptr) return nullptr;
  if (!state->Adopt(old, epoch)) {
    Destroy(state);
    return nullptr;
  }
  return state;
}

bool MapState::Adopt(const MapState& old, CodeEpoch epoch) noexcept {
  const std::size_t bytes = old.history_.end() * sizeof(std::uint32_t);
  auto* const gone = static_cast<std::uint32_t*>(AllocatePages(bytes));
  if (gone == nullptr) return false;
  std::size_t gone_count = 0;
  bool done = history_.Reserve(old.history_.end());
  // What the history has a record of: gone, or still live if the change that retires it was not committed.
  for (std::uint32_t index = 1; done && index < old.history_.end(); ++index) {
    GoneRecord code = old.history_[index];
    if (code.death.raw == 0) continue;
    if (code.death.raw > epoch) {
      done = AdoptLive(old, code);
      continue;
    }
    NewRange range = {code.start, 0, code.id, code.kind, 0, nullptr};
    done = descriptions_.CopyFrom(old.descriptions_, code.description, code.id, &range.description) &&
           Make(old.ids_.BaseOf(code.id), &range).ok();
    if (!done) break;
    code.description = range.description;
    gone[gone_count] = history_.Create(code);
    ids_.SetGone(code.id, gone[gone_count]);
    ++gone_count;
  }
  // Then all other code: the change at hand does not touch it, so lookups find it as ever.
  for (std::uint64_t next = old.ids_.NextFrom(1); done && next != kIdsEnd;
       next = old.ids_.NextFrom(next + 1)) {
    const auto id = static_cast<CodeId>(next);
    // No id is given out twice, not even one that nobody got to see but in a lookup during the lost change.
    next_id_ = std::max(next_id_, next + 1);
    IdTable::Entry entry;
    CodeHit hit;
    if (ids_.Find(id, &entry) || !old.ids_.Find(id, &entry)) continue;
    if (entry.birth == 0 || entry.birth > epoch) continue;
    if (FindCode(*old.root_, entry.start, &hit, NoProbe{}) != LookupResult::kFound || hit.id != id) continue;
    GoneRecord code = {};
    code.start = hit.start;
    code.size = hit.size;
    code.kind = hit.kind;
    code.id = id;
    code.birth = entry.birth;
    code.description = entry.description;
    done = AdoptLive(old, code);
  }
  if (done) {
    std::sort(gone, gone + gone_count, [&](std::uint32_t a, std::uint32_t b) {
      return history_[a].death.raw < history_[b].death.raw;
    });
    for (std::size_t i = 0; i < gone_count; ++i) history_.Add(gone[i]);
    next_id_ = std::max(next_id_, old.next_id_);
    ids_.SetEnd(next_id_);
  }
  FreePages(gone, bytes);
  return done;
}

bool MapState::AdoptLive(const MapState& old, const GoneRecord& code) noexcept {
  NewRange range = {code.start, code.start + (code.size - 1), code.id, code.kind, 0, nullptr};
  return history_.Reserve(live_ + history_.end()) &&
         descriptions_.CopyFrom(old.descriptions_, code.description, code.id, &range.description) &&
         Make(old.ids_.BaseOf(code.id), &range).ok() && Insert({&range, 1}, code.birth, nullptr).ok();
}

}  // namespace stackpipe::internal
