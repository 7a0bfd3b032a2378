// SPDX-License-Identifier: MIT
//
// Histogram: counts durations in buckets of a quarter octave, so that a quantile is known within 19 %. Add is
// AS-safe.
#ifndef STACKPIPE_BASE_HISTOGRAM_H_
#define STACKPIPE_BASE_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace stackpipe {

class Histogram {
 public:
  // One adder at a time; anybody may read meanwhile.
  void Add(std::uint64_t value) noexcept {
    buckets_[BucketOf(value)].fetch_add(1, std::memory_order_relaxed);
  }
  void AddAll(const Histogram& other) noexcept {
    for (std::size_t i = 0; i < kBuckets; ++i)
      buckets_[i].fetch_add(other.buckets_[i].load(std::memory_order_relaxed));
  }
  void Clear() noexcept {
    for (auto& bucket : buckets_) bucket.store(0);
  }
  // The upper bound of the bucket below which the share `quantile` of all values lies; 0 if there is none.
  std::uint64_t Quantile(double quantile) const noexcept {
    std::uint64_t all = 0;
    for (const auto& bucket : buckets_) all += bucket.load();
    if (all == 0) return 0;
    const auto rank = std::min(static_cast<std::uint64_t>(quantile * static_cast<double>(all)), all - 1);
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      seen += buckets_[i].load();
      if (seen > rank) return UpperBound(i);
    }
    return 0;
  }

 private:
  // Values below 4 have a bucket each; above, two bits behind the leading one choose it.
  static constexpr std::size_t kBuckets = 64 * 4;
  static std::size_t BucketOf(std::uint64_t value) noexcept {
    if (value < 4) return static_cast<std::size_t>(value);
    const auto octave = static_cast<std::size_t>(std::bit_width(value)) - 1;
    return octave * 4 + static_cast<std::size_t>(value >> (octave - 2) & 3);
  }
  static std::uint64_t UpperBound(std::size_t bucket) noexcept {
    if (bucket < 4) return bucket;
    const std::size_t octave = bucket / 4;
    return ((std::uint64_t{4} + bucket % 4 + 1) << (octave - 2)) - 1;
  }

  // Only counts: nothing is published through them, so relaxed order loses nothing.
  std::array<std::atomic<std::uint64_t>, kBuckets> buckets_{};
};

}  // namespace stackpipe

#endif  // STACKPIPE_BASE_HISTOGRAM_H_
