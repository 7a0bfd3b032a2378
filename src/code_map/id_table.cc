// SPDX-License-Identifier: MIT
#include "code_map/id_table.h"

#include <algorithm>

#include "code_map/page_memory.h"

namespace stackpipe::internal {

namespace {

constexpr std::uint32_t kSpansMax = 0xfffe;

Status OutOfMemory() { return {StatusCode::kOutOfMemory, "registering code"}; }

}  // namespace

IdTable::~IdTable() {
  FreePages(pages_, kEnd / kPageIds * sizeof(Page*));
  FreePages(span_high_, (kSpansMax + 1) * sizeof(std::uint32_t));
}

// --- readers ---

// A sorted array, which a reader may meet while it is made: then any number up to the capacity comes out.
std::uint32_t IdTable::PositionOf(Page* page, std::uint32_t offset) noexcept {
  if (page->capacity == kPageIds) return offset;
  const std::uint16_t* const offsets = page->offsets();
  std::uint32_t begin = 0;
  std::uint32_t end = Acquire(page->count);
  while (begin < end) {
    const std::uint32_t middle = (begin + end) / 2;
    if (Acquire(offsets[middle]) < offset) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

bool IdTable::Find(CodeId id, Entry* out) const noexcept {
  const std::uint32_t offset = id % kPageIds;
  for (;;) {
    Page* const page = PageOf(id);
    if (page == nullptr) return false;
    const std::uint32_t at = PositionOf(page, offset);
    const bool there =
        at < Acquire(page->count) && (page->capacity == kPageIds || Acquire(page->offsets()[at]) == offset);
    const std::uint32_t span = there ? Acquire(page->high()[at]) : 0;
    const std::uint32_t low = there ? Acquire(page->low()[at]) : 0;
    const std::uint32_t state = there ? Acquire(page->state()[at]) : 0;
    const std::uint32_t* const descriptions = Acquire(page->descriptions);
    const std::uint32_t description = there && descriptions != nullptr ? Acquire(descriptions[at]) : 0;
    const CodeEpoch base = Acquire(page->base);
    if (PageOf(id) != page) continue;  // a page is not an id's again once it was replaced
    if (span == 0) return false;
    *out = {};
    if ((state & kGone) != 0) {
      out->gone_index = state & ~kGone;
      return true;
    }
    out->start = std::uintptr_t{Acquire(Acquire(span_high_)[span])} << 32 | low;
    out->birth = state == 0 ? 0 : base + state - 1;
    out->description = description;
    return true;
  }
}

// --- the writer ---

std::uint32_t* IdTable::StateOf(CodeId id) noexcept {
  Page* const page = PageOf(id);
  return &page->state()[PositionOf(page, id % kPageIds)];
}

// Fits: while ids are given out of one page there are no more epochs than ids in it and registrations that
// may end meanwhile, which are below 2^26.
void IdTable::SetBirth(CodeId id, CodeEpoch epoch) noexcept {
  Release(StateOf(id), static_cast<std::uint32_t>(epoch - PageOf(id)->base + 1));
}

void IdTable::SetGone(CodeId id, std::uint32_t gone_index) noexcept {
  Release(StateOf(id), kGone | gone_index);
}

std::uint64_t IdTable::NextFrom(std::uint64_t id) const noexcept {
  while (id < reserved_end_) {
    Page* const page = PageOf(id);
    const std::uint64_t first = id / kPageIds * kPageIds;
    for (std::uint32_t at = page == nullptr ? 0 : PositionOf(page, id % kPageIds);
         page != nullptr && at < page->count; ++at) {
      if (page->high()[at] != 0) return first + (page->capacity == kPageIds ? at : page->offsets()[at]);
    }
    id = first + kPageIds;
  }
  return kEnd;
}

CodeEpoch IdTable::BaseOf(CodeId id) const noexcept { return PageOf(id)->base; }

// Zeroes a block that readers may still be looking at.
void IdTable::Clear(void* block, std::size_t bytes) noexcept {
  auto* const words = static_cast<std::uint32_t*>(block);
  for (std::size_t i = 0; i < bytes / sizeof *words; ++i) Release(&words[i], std::uint32_t{0});
}

std::uint32_t* IdTable::NewDescriptions(std::uint32_t capacity) noexcept {
  const std::size_t bytes = capacity * sizeof(std::uint32_t);
  void* const block = blocks_.Allocate(bytes);
  if (block != nullptr) Clear(block, bytes);
  return static_cast<std::uint32_t*>(block);
}

IdTable::Page* IdTable::NewPage(std::uint32_t capacity, CodeEpoch base, bool described) noexcept {
  auto* const page = static_cast<Page*>(blocks_.Allocate(BytesOf(capacity)));
  if (page == nullptr) return nullptr;
  // Set for good when the block becomes a page: readers load it as it is.
  if (page->capacity != capacity) page->capacity = capacity;
  Release(&page->count, capacity == kPageIds ? kPageIds : 0);
  Clear(page + 1, BytesOf(capacity) - sizeof(Page));
  page->known = 0;
  Release(&page->base, base);
  Release(&page->descriptions, described ? NewDescriptions(capacity) : nullptr);
  if (!described || page->descriptions != nullptr) return page;
  FreePage(page);
  return nullptr;
}

void IdTable::FreePage(Page* page) noexcept {
  if (page->descriptions != nullptr) blocks_.Free(page->descriptions, page->capacity * sizeof(std::uint32_t));
  blocks_.Free(page, BytesOf(page->capacity));
}

Status IdTable::Reserve(CodeId id, std::uintptr_t start, bool described, CodeEpoch base) noexcept {
  if (pages_ == nullptr) {
    Release(&pages_, static_cast<Page**>(AllocatePages(kEnd / kPageIds * sizeof(Page*))));
  }
  if (pages_ == nullptr) return OutOfMemory();
  if (SpanOf(start) == 0) {
    if (span_count_ == kSpansMax) return {StatusCode::kLimit, "registering code in too many spans of 4 GiB"};
    if (!AddSpan(start)) return OutOfMemory();
  }
  reserved_end_ = std::max(reserved_end_, std::uint64_t{id} + 1);
  Page* const page = PageOf(id);
  if (page == nullptr) {
    Page* const fresh = NewPage(kPageIds, base, described);
    if (fresh == nullptr) return OutOfMemory();
    Release(&pages_[id / kPageIds], fresh);
  } else if (described && page->descriptions == nullptr) {
    std::uint32_t* const descriptions = NewDescriptions(kPageIds);
    if (descriptions == nullptr) return OutOfMemory();
    Release(&page->descriptions, descriptions);
  }
  return {};
}

void IdTable::Add(CodeId id, std::uintptr_t start, std::uint32_t description) noexcept {
  Page* const page = PageOf(id);
  const std::uint32_t at = id % kPageIds;
  Release(&page->state()[at], std::uint32_t{0});
  Release(&page->low()[at], static_cast<std::uint32_t>(start));
  if (description != 0) Release(&page->descriptions[at], description);
  ++page->known;
  Release(&page->high()[at], static_cast<std::uint16_t>(SpanOf(start)));
}

void IdTable::Erase(CodeId id) noexcept {
  Page* const page = PageOf(id);
  const std::uint32_t at = PositionOf(page, id % kPageIds);
  Release(&page->high()[at], std::uint16_t{0});
  if (page->descriptions != nullptr) Release(&page->descriptions[at], std::uint32_t{0});
  --page->known;
  if ((id / kPageIds + 1) * std::uint64_t{kPageIds} <= end_) Tidy(id / kPageIds);
}

void IdTable::SetEnd(std::uint64_t end) noexcept {
  const std::uint64_t complete = end_ / kPageIds;
  end_ = end;
  for (std::uint64_t page = complete; page < end / kPageIds; ++page) Tidy(page);
}

// Replaces a complete page that is mostly unknown ids by a smaller one; without the memory it stays.
void IdTable::Tidy(std::uint64_t page_number) noexcept {
  Page* const page = PageOf(page_number * kPageIds);
  if (page == nullptr) return;
  Page* smaller = nullptr;
  if (page->known > 0) {
    if (page->known * 4 > page->capacity || page->capacity == kPageIdsMin) return;
    std::uint32_t capacity = kPageIdsMin;
    while (capacity < page->known) capacity *= 4;
    smaller = NewPage(capacity, page->base, page->descriptions != nullptr);
    if (smaller == nullptr) return;
    smaller->known = page->known;
    for (std::uint32_t at = 0; at < page->count; ++at) {
      if (page->high()[at] == 0) continue;
      const std::uint32_t to = smaller->count;
      const std::uint16_t offset =
          page->capacity == kPageIds ? static_cast<std::uint16_t>(at) : page->offsets()[at];
      Release(&smaller->low()[to], page->low()[at]);
      Release(&smaller->state()[to], page->state()[at]);
      Release(&smaller->high()[to], page->high()[at]);
      Release(&smaller->offsets()[to], offset);
      if (smaller->descriptions != nullptr) {
        Release(&smaller->descriptions[to], page->descriptions[at]);
      }
      Release(&smaller->count, to + 1);
    }
  }
  Release(&pages_[page_number], smaller);
  FreePage(page);
}

// --- spans ---

std::uint32_t IdTable::SpanOf(std::uintptr_t start) const noexcept {
  const auto high = static_cast<std::uint32_t>(start >> 32);
  if (last_span_ != 0 && span_high_[last_span_] == high) return last_span_;
  const std::uint32_t span = spans_.Find(high, [](std::uint32_t) { return true; });
  if (span != 0) last_span_ = span;
  return span;
}

bool IdTable::AddSpan(std::uintptr_t start) noexcept {
  if (span_high_ == nullptr) {
    Release(&span_high_, static_cast<std::uint32_t*>(AllocatePages((kSpansMax + 1) * sizeof(std::uint32_t))));
  }
  if (span_high_ == nullptr || !spans_.Reserve(1)) return false;
  const auto high = static_cast<std::uint32_t>(start >> 32);
  Release(&span_high_[++span_count_], high);
  span_bytes_ += sizeof(std::uint32_t);
  spans_.Insert(high, span_count_);
  return true;
}

}  // namespace stackpipe::internal
