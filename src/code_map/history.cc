// SPDX-License-Identifier: MIT
#include "code_map/history.h"

#include <bit>

#include "code_map/page_memory.h"

namespace stackpipe::internal {

namespace {

constexpr std::size_t kFirstHeads = 1024;

}  // namespace

History::~History() { FreePages(heads_, head_count_ * sizeof(std::uint32_t)); }

unsigned History::LevelOf(std::uint64_t size) {
  unsigned level = 0;
  while (level + 1 < kLevels && size > std::uint64_t{1} << LevelShift(level)) ++level;
  return level;
}

std::size_t History::BucketOf(unsigned level, std::uint64_t span) const noexcept {
  if (head_count_ == 0) return 0;
  const std::uint64_t mixed = (span * kLevels + level) * 0x9e3779b97f4a7c15u;
  return static_cast<std::size_t>(mixed >> (64 - std::countr_zero(head_count_)));
}

std::uint32_t* History::HeadOf(std::size_t bucket) noexcept {
  return heads_ == nullptr ? &only_head_ : &heads_[bucket];
}

void History::Link(std::uint32_t index) noexcept {
  GoneRecord& record = pool_[index];
  const unsigned level = LevelOf(record.size);
  std::uint32_t* head = HeadOf(BucketOf(level, record.start >> LevelShift(level)));
  record.newer = 0;
  record.older = *head;
  if (*head != 0) pool_[*head].newer = index;
  *head = index;
}

std::uint32_t History::Create(const GoneRecord& code) noexcept {
  const std::uint32_t index = pool_.Allocate();
  GoneRecord& record = pool_[index];
  Release(&record.start, code.start);
  Release(&record.size, code.size);
  Release(&record.birth, code.birth);
  Release(&record.description, code.description);
  Release(&record.kind, code.kind);
  Release(&record.id, code.id);
  record.next = 0;
  record.death.Store(code.death.raw, std::memory_order_release);
  return index;
}

bool History::Read(std::uint32_t index, CodeId id, GoneRecord* out) const noexcept {
  const GoneRecord* const record = pool_.At(index);
  if (record == nullptr || Acquire(record->id) != id) return false;
  out->id = id;
  out->start = Acquire(record->start);
  out->size = Acquire(record->size);
  out->birth = Acquire(record->birth);
  out->death.raw = record->death.Load(std::memory_order_acquire);
  out->description = Acquire(record->description);
  out->kind = Acquire(record->kind);
  return Acquire(record->id) == id;  // ids are not used twice, so it was all the time
}

void History::Destroy(std::uint32_t index) noexcept {
  pool_[index].death.Store(0, std::memory_order_release);
  Release(&pool_[index].id, CodeId{0});
  pool_.Free(index);
}

void History::Add(std::uint32_t index) noexcept {
  GrowIfFull();
  Link(index);
  pool_[index].next = 0;
  if (oldest_ == 0) {
    oldest_ = index;
  } else {
    pool_[newest_].next = index;
  }
  newest_ = index;
  ++count_;
  ++level_count_[LevelOf(pool_[index].size)];
}

// More chains when there are as many records as chains. Without the memory the chains get longer, no more.
void History::GrowIfFull() noexcept {
  if (count_ < head_count_) return;
  const std::size_t size = head_count_ == 0 ? kFirstHeads : head_count_ * 4;
  auto* heads = static_cast<std::uint32_t*>(AllocatePages(size * sizeof(std::uint32_t)));
  if (heads == nullptr) return;
  FreePages(heads_, head_count_ * sizeof(std::uint32_t));
  heads_ = heads;
  head_count_ = size;
  for (std::uint32_t index = oldest_; index != 0; index = pool_[index].next) Link(index);
}

std::uint32_t History::Find(std::uintptr_t pc, CodeEpoch epoch) const noexcept {
  for (unsigned level = 0; level < kLevels; ++level) {
    if (level_count_[level] == 0) continue;
    const std::uint64_t span = pc >> LevelShift(level);
    for (std::uint64_t before = 0; before < 2; ++before) {
      const std::size_t bucket = BucketOf(level, span - before);
      std::uint32_t index = heads_ == nullptr ? only_head_ : heads_[bucket];
      for (; index != 0 && pool_[index].death.Load() > epoch; index = pool_[index].older) {
        const GoneRecord& record = pool_[index];
        if (pc - record.start < record.size && record.birth <= epoch) return index;
      }
    }
  }
  return 0;
}

void History::RemoveOldest() noexcept {
  const GoneRecord& record = pool_[oldest_];
  const unsigned level = LevelOf(record.size);
  // The oldest of all is the oldest of its chain.
  if (record.newer != 0) {
    pool_[record.newer].older = 0;
  } else {
    *HeadOf(BucketOf(level, record.start >> LevelShift(level))) = 0;
  }
  oldest_ = record.next;
  if (oldest_ == 0) newest_ = 0;
  --count_;
  --level_count_[level];
}

}  // namespace stackpipe::internal
