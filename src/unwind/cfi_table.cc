// SPDX-License-Identifier: MIT
#include "unwind/cfi_table.h"

#include <utility>

namespace stackpipe {

CfiTable::CfiTable(const std::vector<Stretch>& code, std::vector<CfiShape> shapes,
                   std::vector<CfiExtendedRule> extended)
    : shapes_(std::move(shapes)), extended_(std::move(extended)) {
  shapes_.shrink_to_fit();
  extended_.shrink_to_fit();
  if (code.empty()) return;
  constexpr std::uint64_t kBucketSize = CfiView::kBucketSize;
  const std::uint64_t base = code.front().address & ~(kBucketSize - 1);
  const std::uint64_t span = code.back().address - base;
  if (span > kSpanMax) return;

  base_ = base;
  const std::uint64_t bucket_count = (span + kBucketSize - 1) / kBucketSize;
  bucket_begin_.reserve(bucket_count + 1);
  rows_.reserve(code.size() + bucket_count);
  std::size_t next = 0;  // the first stretch that is not stored yet
  CfiRow in_force;       // at the beginning of the bucket
  for (std::uint64_t bucket = 0; bucket < bucket_count; ++bucket) {
    const std::uint64_t start = base + bucket * kBucketSize;
    bucket_begin_.push_back(static_cast<std::uint32_t>(rows_.size()));
    if (code[next].address != start) rows_.push_back(in_force);
    for (; next < code.size() && code[next].address < start + kBucketSize; ++next) {
      const auto offset = static_cast<std::uint32_t>(code[next].address - start);
      in_force = code[next].row;
      rows_.push_back({(offset << CfiRow::kRuleBits) | in_force.bits});
    }
  }
  bucket_begin_.push_back(static_cast<std::uint32_t>(rows_.size()));
  rows_.shrink_to_fit();
}

CfiView CfiTable::View(std::uint64_t bias) const {
  return {.base = base_ + bias,
          .bucket_count = bucket_begin_.empty() ? 0 : bucket_begin_.size() - 1,
          .bucket_begin = bucket_begin_.data(),
          .rows = rows_.data(),
          .shapes = shapes_.data(),
          .extended = extended_.data()};
}

std::size_t CfiTable::byte_count() const {
  return sizeof *this + bucket_begin_.capacity() * sizeof bucket_begin_[0] +
         rows_.capacity() * sizeof rows_[0] + shapes_.capacity() * sizeof shapes_[0] +
         extended_.capacity() * sizeof extended_[0];
}

}  // namespace stackpipe
