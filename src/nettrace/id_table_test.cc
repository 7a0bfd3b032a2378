// SPDX-License-Identifier: MIT
#include "nettrace/id_table.h"

#include <gtest/gtest.h>

#include <map>
#include <new>
#include <random>
#include <vector>

namespace {
bool no_memory = false;
}

// The embedded library asks for memory with nothrow, and has to live without.
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return no_memory ? nullptr : ::operator new[](size);
}

namespace stackpipe::nettrace {
namespace {

using Key = std::vector<std::uint64_t>;

std::uint32_t Find(const IdTable& table, const Key& key) { return table.Find(key, IdTable::Hash(key)); }
void Insert(IdTable* table, const Key& key, std::uint32_t id) { table->Insert(key, IdTable::Hash(key), id); }

TEST(IdTableTest, AgreesWithAMap) {
  std::mt19937_64 random(1);
  IdTable table(std::size_t{1} << 20);
  for (int round = 0; round < 3; ++round) {
    std::map<Key, std::uint32_t> model;
    for (std::uint32_t id = 1; id <= 4000; ++id) {
      Key key(1 + random() % 8);
      for (std::uint64_t& word : key) word = random() % 4;  // many equal ones, many equal prefixes
      const auto found = model.find(key);
      ASSERT_EQ(Find(table, key), found == model.end() ? 0 : found->second);
      if (found == model.end()) {
        model.emplace(key, id);
        Insert(&table, key, id);
      }
    }
    for (const auto& [key, id] : model) ASSERT_EQ(Find(table, key), id);
    EXPECT_GT(model.size(), 1000u);
    table.Clear();
    EXPECT_EQ(table.bytes(), 0u);
    for (const auto& [key, id] : model) ASSERT_EQ(Find(table, key), 0u);
  }
}

TEST(IdTableTest, EqualHashesAreToldApart) {
  IdTable table(4096);
  table.Insert(Key{1, 2}, 7, 10);
  table.Insert(Key{1, 3}, 7, 11);
  table.Insert(Key{1}, 7, 12);
  EXPECT_EQ(table.Find(Key{1, 2}, 7), 10u);
  EXPECT_EQ(table.Find(Key{1, 3}, 7), 11u);
  EXPECT_EQ(table.Find(Key{1}, 7), 12u);
  EXPECT_EQ(table.Find(Key{2}, 7), 0u);
}

TEST(IdTableTest, ProbesAcrossTheEnd) {
  IdTable table(4096);
  const std::uint32_t last_slot = 0xffff'ffff;
  for (std::uint32_t id = 1; id <= 5; ++id) table.Insert(Key{id}, last_slot, id);
  for (std::uint32_t id = 1; id <= 5; ++id) EXPECT_EQ(table.Find(Key{id}, last_slot), id);
  EXPECT_EQ(table.Find(Key{6}, last_slot), 0u);
}

TEST(IdTableTest, KeepsToItsLimit) {
  IdTable table(1000);
  for (std::uint32_t id = 1; id <= 1000; ++id) Insert(&table, Key{id, id}, id);
  EXPECT_LE(table.bytes(), 1000u);
  EXPECT_EQ(Find(table, Key{1, 1}), 1u);
  EXPECT_EQ(Find(table, Key{41, 41}), 41u);  // 41 keys of 3 words fit into 125 words
  EXPECT_EQ(Find(table, Key{42, 42}), 0u);
}

TEST(IdTableTest, WithoutMemoryKeepsWhatItHas) {
  IdTable table(std::size_t{1} << 20);
  no_memory = true;
  Insert(&table, Key{1}, 1);
  EXPECT_EQ(Find(table, Key{1}), 0u);
  no_memory = false;
  for (std::uint32_t id = 1; id <= 128; ++id) Insert(&table, Key{id}, id);
  no_memory = true;
  for (std::uint32_t id = 129; id <= 3000; ++id) Insert(&table, Key{id}, id);
  no_memory = false;
  for (std::uint32_t id = 1; id <= 128; ++id) EXPECT_EQ(Find(table, Key{id}), id);
  EXPECT_EQ(Find(table, Key{3000}), 0u);
  for (std::uint32_t id = 129; id <= 3000; ++id) Insert(&table, Key{id}, id);
  for (std::uint32_t id = 1; id <= 3000; ++id) ASSERT_EQ(Find(table, Key{id}), id);
}

}  // namespace
}  // namespace stackpipe::nettrace
