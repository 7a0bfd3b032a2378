// SPDX-License-Identifier: MIT
#include "aot/function_table.h"

#include <gtest/gtest.h>

#include <random>
#include <tuple>
#include <vector>

namespace stackpipe {
namespace {

// The rule, address by address: slow and obvious.
const FunctionRange* OwnerOf(const std::vector<FunctionRange>& ranges, std::uint32_t at) {
  const FunctionRange* owner = nullptr;
  for (const FunctionRange& range : ranges) {
    if (at < range.start || at >= range.end) continue;
    if (owner == nullptr || range.start > owner->start ||
        (range.start == owner->start &&
         std::tie(range.rank, range.name) < std::tie(owner->rank, owner->name))) {
      owner = &range;
    }
  }
  return owner;
}

void ExpectRule(const std::vector<FunctionRange>& named, const std::vector<FunctionRange>& unnamed,
                std::uint32_t addresses) {
  FunctionTable table;
  table.Build(named, unnamed);
  const AotMethodTable methods = table.table();
  std::uint32_t end = 0;  // of the last entry
  std::uint32_t index = 0;
  for (std::uint32_t i = 0; i < methods.count; ++i) {
    ASSERT_GE(methods.starts[i], end);
    ASSERT_GT(table.size(i), 0u);
    end = methods.starts[i] + table.size(i);
    ASSERT_LE(end, addresses);
  }
  for (std::uint32_t at = 0; at < addresses; ++at) {
    while (index < methods.count && methods.starts[index] + table.size(index) <= at) ++index;
    const bool listed = index < methods.count && methods.starts[index] <= at;
    const FunctionRange* owner = OwnerOf(named, at);
    if (owner != nullptr) {
      ASSERT_TRUE(listed) << at;
      ASSERT_EQ(table.name(index), owner->name) << at;
    } else {
      ASSERT_EQ(listed, OwnerOf(unnamed, at) != nullptr) << at;
      if (listed) {
        ASSERT_EQ(table.name(index), FunctionRange::kNoName);
      }
    }
  }
}

TEST(FunctionTableTest, KeepsWhatDoesNotOverlap) {
  FunctionTable table;
  table.Build({{30, 40, 3}, {0, 10, 1}, {10, 20, 2}}, {});
  ASSERT_EQ(table.count(), 3u);
  EXPECT_EQ(table.table().starts[1], 10u);
  EXPECT_EQ(table.size(1), 10u);
  EXPECT_EQ(table.name(2), 3u);
}

TEST(FunctionTableTest, TheBestOfSeveralNamesForOneRangeHasIt) {
  FunctionTable table;
  table.Build({{0, 10, 5, 2}, {0, 10, 6, 0}, {0, 10, 4, 0}, {0, 10, 3, 1}}, {});
  ASSERT_EQ(table.count(), 1u);
  EXPECT_EQ(table.name(0), 4u);
}

TEST(FunctionTableTest, TheInnerFunctionHasItsPartAndTheOuterTheRest) {
  FunctionTable table;
  table.Build({{0, 100, 1}, {40, 60, 2}, {50, 55, 3}}, {});
  ASSERT_EQ(table.count(), 5u);
  const std::uint32_t names[] = {1, 2, 3, 2, 1};
  const std::uint32_t starts[] = {0, 40, 50, 55, 60};
  for (std::uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(table.name(i), names[i]);
    EXPECT_EQ(table.table().starts[i], starts[i]);
  }
}

TEST(FunctionTableTest, UnnamedRangesGetWhatIsLeft) {
  FunctionTable table;
  table.Build({{10, 20, 1}, {40, 50, 2}}, {{0, 15}, {12, 18}, {18, 60}, {70, 80}});
  std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> entries;
  for (std::uint32_t i = 0; i < table.count(); ++i)
    entries.emplace_back(table.table().starts[i], table.size(i), table.name(i));
  constexpr std::uint32_t kNone = FunctionRange::kNoName;
  EXPECT_EQ(
      entries,
      (decltype(entries){
          {0, 10, kNone}, {10, 10, 1}, {20, 20, kNone}, {40, 10, 2}, {50, 10, kNone}, {70, 10, kNone}}));
}

TEST(FunctionTableTest, RandomRangesFollowTheRule) {
  std::mt19937 random(20240601);
  for (int round = 0; round < 2000; ++round) {
    const std::uint32_t addresses = 5 + static_cast<std::uint32_t>(random() % 80);
    const auto make = [&](std::size_t most, bool names) {
      std::vector<FunctionRange> ranges(random() % most);
      for (FunctionRange& range : ranges) {
        range.start = static_cast<std::uint32_t>(random() % addresses);
        range.end = range.start + static_cast<std::uint32_t>(random() % (addresses - range.start + 1));
        range.rank = static_cast<std::uint32_t>(random() % 3);
        if (names) range.name = static_cast<std::uint32_t>(random() % 1000);
      }
      return ranges;
    };
    const std::vector<FunctionRange> named = make(12, true);
    const std::vector<FunctionRange> unnamed = make(8, false);
    ExpectRule(named, unnamed, addresses);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace stackpipe
