// SPDX-License-Identifier: MIT
#include "base/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace stackpipe {
namespace {

TEST(HistogramTest, QuantilesAreWithinABucket) {
  std::mt19937_64 random(3);
  for (int shift = 0; shift < 60; shift += 7) {
    Histogram histogram;
    std::vector<std::uint64_t> values;
    for (int i = 0; i < 1000; ++i) values.push_back(random() >> (63 - shift));
    for (const std::uint64_t value : values) histogram.Add(value);
    std::sort(values.begin(), values.end());
    for (const double quantile : {0.0, 0.5, 0.99, 1.0}) {
      const std::uint64_t exact =
          values[std::min<std::size_t>(static_cast<std::size_t>(quantile * 1000), 999)];
      const std::uint64_t got = histogram.Quantile(quantile);
      EXPECT_GE(got, exact);
      EXPECT_LE(static_cast<double>(got), static_cast<double>(exact) * 1.25);
    }
  }
}

TEST(HistogramTest, EmptyHasNoQuantile) { EXPECT_EQ(Histogram().Quantile(0.5), 0u); }

TEST(HistogramTest, SumsUp) {
  Histogram one, sum;
  one.Add(5);
  sum.AddAll(one);
  sum.AddAll(one);
  sum.Add(1000);
  EXPECT_EQ(sum.Quantile(0.5), 5u);
  EXPECT_GE(sum.Quantile(0.9), 1000u);
}

}  // namespace
}  // namespace stackpipe
