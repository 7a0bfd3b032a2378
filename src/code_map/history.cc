// SPDX-License-Identifier: MIT
#include "code_map/history.h"

#include <bit>

#include "code_map/page_memory.h"

namespace stackpipe::internal {

namespace {

constexpr unsigned kNewer = 0, kOlder = 1;  // of Record::links
constexpr std::size_t kFirstHeads = 1024;

}  // namespace

History::~History() { FreePages(heads_, head_count_ * sizeof(RecordIndex)); }

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

RecordIndex* History::HeadOf(std::size_t bucket) noexcept {
  return heads_ == nullptr ? &only_head_ : &heads_[bucket];
}

void History::Link(RecordIndex index) noexcept {
  Record& record = records_[index];
  const unsigned level = LevelOf(record.size);
  RecordIndex* head = HeadOf(BucketOf(level, record.start >> LevelShift(level)));
  record.links[kNewer] = 0;
  record.links[kOlder] = *head;
  if (*head != 0) records_[*head].links[kNewer] = index;
  *head = index;
}

void History::Add(RecordIndex index) noexcept {
  GrowIfFull();
  Link(index);
  records_.next(index) = 0;
  if (oldest_ == 0) {
    oldest_ = index;
  } else {
    records_.next(newest_) = index;
  }
  newest_ = index;
  ++count_;
  ++level_count_[LevelOf(records_[index].size)];
}

// More chains when there are as many records as chains. Without the memory the chains get longer, no more.
void History::GrowIfFull() noexcept {
  if (count_ < head_count_) return;
  const std::size_t size = head_count_ == 0 ? kFirstHeads : head_count_ * 4;
  auto* heads = static_cast<RecordIndex*>(AllocatePages(size * sizeof(RecordIndex)));
  if (heads == nullptr) return;
  FreePages(heads_, head_count_ * sizeof(RecordIndex));
  heads_ = heads;
  head_count_ = size;
  for (RecordIndex index = oldest_; index != 0; index = records_.next(index)) Link(index);
}

RecordIndex History::Find(std::uintptr_t pc, CodeEpoch epoch) const noexcept {
  for (unsigned level = 0; level < kLevels; ++level) {
    if (level_count_[level] == 0) continue;
    const std::uint64_t span = pc >> LevelShift(level);
    for (std::uint64_t before = 0; before < 2; ++before) {
      const std::size_t bucket = BucketOf(level, span - before);
      RecordIndex index = heads_ == nullptr ? only_head_ : heads_[bucket];
      for (; index != 0 && records_[index].death.Load() > epoch; index = records_[index].links[kOlder]) {
        const Record& record = records_[index];
        if (pc - record.start < record.size && record.birth.Load() <= epoch) return index;
      }
    }
  }
  return 0;
}

void History::DropOldest() noexcept {
  const RecordIndex index = oldest_;
  const Record& record = records_[index];
  const unsigned level = LevelOf(record.size);
  // The oldest of all is the oldest of its chain.
  if (record.links[kNewer] != 0) {
    records_[record.links[kNewer]].links[kOlder] = 0;
  } else {
    *HeadOf(BucketOf(level, record.start >> LevelShift(level))) = 0;
  }
  oldest_ = records_.next(index);
  if (oldest_ == 0) newest_ = 0;
  --count_;
  --level_count_[level];
  records_.Destroy(index);
}

void History::TrimTo(CodeEpoch epoch) noexcept {
  while (oldest_ != 0 && records_[oldest_].death.Load() <= epoch) DropOldest();
}

void History::TrimToCount(std::size_t limit) noexcept {
  while (count_ > limit) DropOldest();
}

}  // namespace stackpipe::internal
