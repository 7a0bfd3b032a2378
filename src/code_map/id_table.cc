// SPDX-License-Identifier: MIT
#include "code_map/id_table.h"

#include <algorithm>
#include <cstring>

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

// --- slots ---

bool IdTable::Slot::gone() const noexcept { return page_->high()[at_] == kGone; }
std::uint32_t IdTable::Slot::gone_index() const noexcept { return page_->low()[at_]; }

std::uintptr_t IdTable::Slot::start() const noexcept {
  return std::uintptr_t{table_->span_high_[page_->high()[at_]]} << 32 | page_->low()[at_];
}

CodeEpoch IdTable::Slot::birth() const noexcept {
  const std::uint32_t birth = page_->birth()[at_] & ~kRetiring;
  return birth == 0 ? 0 : page_->base + birth - 1;
}

bool IdTable::Slot::retiring() const noexcept { return (page_->birth()[at_] & kRetiring) != 0; }

std::uint32_t IdTable::Slot::description() const noexcept {
  return page_->descriptions == nullptr ? 0 : page_->descriptions[at_];
}

// Fits: while ids are given out of one page there are no more epochs than ids in it and registrations that
// may end meanwhile, which are below 2^26.
void IdTable::Slot::SetBirth(CodeEpoch epoch) noexcept {
  Store(&page_->birth()[at_], static_cast<std::uint32_t>(epoch - page_->base + 1));
}

void IdTable::Slot::SetRetiring(bool retiring) noexcept {
  std::uint32_t* const birth = &page_->birth()[at_];
  Store(birth, (*birth & ~kRetiring) | (retiring ? kRetiring : 0));
}

void IdTable::Slot::SetGone(std::uint32_t gone_index) noexcept {
  Store(&page_->high()[at_], kGone);  // first: `low` is no address from here on
  Store(&page_->low()[at_], gone_index);
}

// --- pages ---

std::uint32_t IdTable::PositionOf(Page* page, std::uint32_t offset) noexcept {
  if (page->capacity == kPageIds) return offset;
  const std::uint16_t* const offsets = page->offsets();
  return static_cast<std::uint32_t>(std::lower_bound(offsets, offsets + page->count, offset) - offsets);
}

IdTable::Slot IdTable::Find(CodeId id) const noexcept {
  Page* const page = PageOf(id);
  if (page == nullptr) return {};
  const std::uint32_t at = PositionOf(page, id % kPageIds);
  if (at == page->count || page->high()[at] == 0) return {};
  if (page->capacity != kPageIds && page->offsets()[at] != id % kPageIds) return {};
  return {this, page, at};
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

IdTable::Page* IdTable::NewPage(std::uint32_t capacity, bool described) noexcept {
  auto* const page = static_cast<Page*>(blocks_.Allocate(BytesOf(capacity)));
  if (page == nullptr) return nullptr;
  std::memset(static_cast<void*>(page), 0, BytesOf(capacity));
  page->capacity = capacity;
  if (!described) return page;
  page->descriptions = static_cast<std::uint32_t*>(blocks_.Allocate(capacity * sizeof(std::uint32_t)));
  if (page->descriptions == nullptr) {
    FreePage(page);
    return nullptr;
  }
  std::memset(page->descriptions, 0, capacity * sizeof(std::uint32_t));
  return page;
}

void IdTable::FreePage(Page* page) noexcept {
  if (page->descriptions != nullptr) blocks_.Free(page->descriptions, page->capacity * sizeof(std::uint32_t));
  blocks_.Free(page, BytesOf(page->capacity));
}

Status IdTable::Reserve(CodeId id, std::uintptr_t start, bool described, CodeEpoch base) noexcept {
  if (pages_ == nullptr) pages_ = static_cast<Page**>(AllocatePages(kEnd / kPageIds * sizeof(Page*)));
  if (pages_ == nullptr) return OutOfMemory();
  if (SpanOf(start) == 0) {
    if (span_count_ == kSpansMax) return {StatusCode::kLimit, "registering code in too many spans of 4 GiB"};
    if (!AddSpan(start)) return OutOfMemory();
  }
  reserved_end_ = std::max(reserved_end_, std::uint64_t{id} + 1);
  Page* page = PageOf(id);
  if (page == nullptr) {
    page = NewPage(kPageIds, described);
    if (page == nullptr) return OutOfMemory();
    page->base = base;
    page->count = kPageIds;
    Store(&pages_[id / kPageIds], page);
  } else if (described && page->descriptions == nullptr) {
    auto* const descriptions =
        static_cast<std::uint32_t*>(blocks_.Allocate(kPageIds * sizeof(std::uint32_t)));
    if (descriptions == nullptr) return OutOfMemory();
    std::memset(descriptions, 0, kPageIds * sizeof(std::uint32_t));
    Store(&page->descriptions, descriptions);
  }
  return {};
}

void IdTable::Add(CodeId id, std::uintptr_t start, std::uint32_t description) noexcept {
  Page* const page = PageOf(id);
  const std::uint32_t at = id % kPageIds;
  page->birth()[at] = 0;
  page->low()[at] = static_cast<std::uint32_t>(start);
  if (description != 0) page->descriptions[at] = description;
  ++page->known;
  Store(&page->high()[at], static_cast<std::uint16_t>(SpanOf(start)));
}

void IdTable::Erase(CodeId id) noexcept {
  const Slot slot = Find(id);
  Store(&slot.page_->high()[slot.at_], std::uint16_t{0});
  if (slot.page_->descriptions != nullptr) slot.page_->descriptions[slot.at_] = 0;
  --slot.page_->known;
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
    smaller = NewPage(capacity, page->descriptions != nullptr);
    if (smaller == nullptr) return;
    smaller->base = page->base;
    smaller->known = page->known;
    for (std::uint32_t at = 0; at < page->count; ++at) {
      if (page->high()[at] == 0) continue;
      const std::uint32_t to = smaller->count++;
      smaller->low()[to] = page->low()[at];
      smaller->birth()[to] = page->birth()[at];
      smaller->high()[to] = page->high()[at];
      smaller->offsets()[to] =
          page->capacity == kPageIds ? static_cast<std::uint16_t>(at) : page->offsets()[at];
      if (smaller->descriptions != nullptr) smaller->descriptions[to] = page->descriptions[at];
    }
  }
  Store(&pages_[page_number], smaller);
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
    span_high_ = static_cast<std::uint32_t*>(AllocatePages((kSpansMax + 1) * sizeof(std::uint32_t)));
  }
  if (span_high_ == nullptr || !spans_.Reserve(1)) return false;
  const auto high = static_cast<std::uint32_t>(start >> 32);
  span_high_[++span_count_] = high;
  span_bytes_ += sizeof(std::uint32_t);
  spans_.Insert(high, span_count_);
  return true;
}

}  // namespace stackpipe::internal
