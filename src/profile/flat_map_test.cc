// SPDX-License-Identifier: MIT
#include "profile/flat_map.h"

#include <gtest/gtest.h>

#include <random>
#include <unordered_map>

namespace stackpipe {
namespace {

TEST(FlatMapTest, AgreesWithAnOrdinaryMap) {
  FlatMap<std::uint32_t> map;
  std::unordered_map<std::uint64_t, std::uint32_t> model;
  std::mt19937_64 random(1);
  for (std::uint32_t i = 0; i < 50'000; ++i) {
    // Keys as the call tree makes them, many of them again and again.
    const std::uint64_t key = (random() % 300) << 32 | random() % 100;
    const auto [value, is_new] = map.TryEmplace(key, i);
    const auto [expected, was_new] = model.try_emplace(key, i);
    ASSERT_EQ(is_new, was_new);
    ASSERT_EQ(*value, expected->second);
  }
  EXPECT_EQ(map.size(), model.size());
  for (const auto& [key, value] : model) ASSERT_EQ(*map.TryEmplace(key, 0).first, value);
}

TEST(FlatMapTest, ValuesCanBeChangedInPlace) {
  FlatMap<std::uint32_t> map;
  *map.TryEmplace(0, 1).first = 7;
  EXPECT_EQ(*map.TryEmplace(0, 1).first, 7u);
  EXPECT_FALSE(map.TryEmplace(0, 1).second);
}

}  // namespace
}  // namespace stackpipe
