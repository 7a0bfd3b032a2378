// SPDX-License-Identifier: MIT
#include "nettrace/stack_store.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace stackpipe::nettrace {
namespace {

std::vector<std::uint64_t> Find(const StackStore& store, std::uint32_t id) {
  const auto stack = store.Find(id);
  return {stack.begin(), stack.end()};
}

TEST(StackStoreTest, AgreesWithAMap) {
  std::mt19937 random(4);
  StackStore store;
  for (int round = 0; round < 5; ++round) {
    std::map<std::uint32_t, std::vector<std::uint64_t>> model;
    std::map<std::uint32_t, const std::uint64_t*> places;
    std::uint32_t id = 1;
    for (int i = 0; i < 3000; ++i) {
      id = random() % 5 == 0 ? 1 + static_cast<std::uint32_t>(random() % 5000) : id + 1;
      std::vector<std::uint64_t> stack(random() % 100 == 0 ? random() % 8000 : random() % 20);
      for (std::uint64_t& address : stack) address = random();
      const bool added = store.Add(id, std::as_bytes(std::span(stack)), 8);
      ASSERT_EQ(added, model.count(id) == 0) << id;
      if (!added) continue;
      model[id] = stack;
      places[id] = store.Find(id).data();
    }
    for (std::uint32_t i = 0; i < 9000; ++i) {
      const auto found = model.find(i);
      ASSERT_EQ(Find(store, i), found == model.end() ? std::vector<std::uint64_t>() : found->second) << i;
      ASSERT_TRUE(found == model.end() || store.Find(i).data() == places[i]) << "events point there";
    }
    store.Clear();
    for (std::uint32_t i = 0; i < 9000; ++i) ASSERT_TRUE(store.Find(i).empty());
  }
}

TEST(StackStoreTest, FourBytePointersAreWidened) {
  StackStore store;
  const std::uint32_t stack[] = {1, 0xffff'fff0};
  ASSERT_TRUE(store.Add(1, std::as_bytes(std::span(stack)), 4));
  EXPECT_EQ(Find(store, 1), (std::vector<std::uint64_t>{1, 0xffff'fff0}));
}

TEST(StackStoreTest, HalfAddressesAreIgnored) {
  StackStore store;
  const std::uint64_t stack[] = {1, 2};
  ASSERT_TRUE(store.Add(1, std::as_bytes(std::span(stack)).first(15), 8));
  EXPECT_EQ(Find(store, 1), std::vector<std::uint64_t>{1});
}

TEST(StackStoreTest, TheLastIdsDoNotWrapIntoTheFirst) {
  StackStore store;
  const std::uint64_t a[] = {1};
  ASSERT_TRUE(store.Add(0xffff'ffff, std::as_bytes(std::span(a)), 8));
  store.Add(0, std::as_bytes(std::span(a)), 8);
  store.Add(1, std::as_bytes(std::span(a)), 8);
  EXPECT_EQ(Find(store, 0xffff'ffff), std::vector<std::uint64_t>{1});
  EXPECT_EQ(Find(store, 1), std::vector<std::uint64_t>{1});
}

}  // namespace
}  // namespace stackpipe::nettrace
