// SPDX-License-Identifier: MIT
#include "unwind/cfi_table.h"

#include <utility>

namespace stackpipe {

const CfiRule CfiTable::kUnknownRule;

CfiTable::CfiTable(const std::vector<Row>& rows, std::vector<CfiRule> rules,
                   std::vector<CfiExtendedRule> extended)
    : rules_(std::move(rules)), extended_(std::move(extended)) {
  rules_.shrink_to_fit();
  extended_.shrink_to_fit();
  // Too much code or too many kinds of frames for a row: no table, so every pc is unknown.
  if (rows.empty() || rules_.size() > kRuleMask) return;
  const std::uint64_t base = rows.front().address & ~std::uint64_t{kBucketSize - 1};
  const std::uint64_t span = rows.back().address - base;
  if (span > kSpanMax) return;

  base_ = base;
  bucket_count_ = (span + kBucketSize - 1) >> kBucketBits;
  bucket_begin_.reserve(bucket_count_ + 1);
  rows_.reserve(rows.size() + bucket_count_);
  std::size_t next = 0;        // the first row that is not stored yet
  std::uint32_t in_force = 0;  // the rule at the beginning of the bucket
  for (std::uint64_t bucket = 0; bucket < bucket_count_; ++bucket) {
    const std::uint64_t start = base + (bucket << kBucketBits);
    bucket_begin_.push_back(static_cast<std::uint32_t>(rows_.size()));
    if (rows[next].address != start) rows_.push_back(in_force);
    for (; next < rows.size() && rows[next].address < start + kBucketSize; ++next) {
      const auto offset = static_cast<std::uint32_t>(rows[next].address - start);
      in_force = rows[next].rule;
      rows_.push_back((offset << kRuleBits) | in_force);
    }
  }
  bucket_begin_.push_back(static_cast<std::uint32_t>(rows_.size()));
  rows_.shrink_to_fit();
}

std::size_t CfiTable::byte_count() const {
  return sizeof *this + bucket_begin_.capacity() * sizeof bucket_begin_[0] +
         rows_.capacity() * sizeof rows_[0] + rules_.capacity() * sizeof rules_[0] +
         extended_.capacity() * sizeof extended_[0];
}

}  // namespace stackpipe
