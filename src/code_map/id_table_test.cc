// SPDX-License-Identifier: MIT
#include "code_map/id_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "code_map/page_memory.h"

namespace stackpipe::internal {
namespace {

struct Known {
  std::uintptr_t start;
  CodeEpoch birth;
  std::uint32_t description;
  std::uint32_t gone;  // 0: not
};

// A table and what it must say.
class IdTableTest : public testing::Test {
 protected:
  void Add(std::uintptr_t start, std::uint32_t description = 0) {
    const auto id = static_cast<CodeId>(end_++);
    ++epoch_;
    ASSERT_TRUE(table_.Reserve(id, start, description != 0, epoch_).ok());
    table_.Add(id, start, description);
    IdTable::Entry entry;
    ASSERT_TRUE(table_.Find(id, &entry));
    ASSERT_EQ(entry.birth, 0u);
    table_.SetBirth(id, epoch_);
    table_.SetEnd(end_);
    known_[id] = {start, epoch_, description, 0};
  }
  void Erase(CodeId id) {
    table_.Erase(id);
    known_.erase(id);
  }
  void Check(CodeId id, const Known& want) {
    IdTable::Entry entry;
    ASSERT_TRUE(table_.Find(id, &entry)) << id;
    ASSERT_EQ(entry.gone_index, want.gone);
    if (want.gone != 0) return;
    ASSERT_EQ(entry.start, want.start);
    ASSERT_EQ(entry.birth, want.birth);
    ASSERT_EQ(entry.description, want.description);
  }
  bool Knows(CodeId id) const {
    IdTable::Entry entry;
    return table_.Find(id, &entry);
  }
  void CheckAll() {
    std::uint64_t at = table_.NextFrom(0);
    for (const auto& [id, want] : known_) {
      ASSERT_EQ(at, id);
      Check(id, want);
      at = table_.NextFrom(at + 1);
    }
    ASSERT_EQ(at, IdTable::kEnd);
  }

  IdTable table_;
  std::uint64_t end_ = 1;
  CodeEpoch epoch_ = 1000;
  std::map<CodeId, Known> known_;
};

TEST_F(IdTableTest, SaysWhatItWasTold) {
  EXPECT_FALSE(Knows(0));
  EXPECT_FALSE(Knows(1));
  EXPECT_EQ(table_.NextFrom(0), IdTable::kEnd);
  for (const std::uintptr_t start :
       {std::uintptr_t{0}, std::uintptr_t{0xffff'ffff}, std::uintptr_t{0x7f12'3456'789a}, ~std::uintptr_t{0},
        std::uintptr_t{0xffff'ffff'8100'0000}, std::uintptr_t{1} << 56}) {
    Add(start, static_cast<std::uint32_t>(start % 7));
  }
  CheckAll();
  EXPECT_FALSE(Knows(0));
  EXPECT_FALSE(Knows(static_cast<CodeId>(end_)));
  table_.SetGone(2, 17);
  known_[2].gone = 17;
  table_.SetGone(3, 18);
  table_.SetBirth(3, known_[3].birth);  // taken back
  CheckAll();
}

TEST_F(IdTableTest, AnyMixOfChangesKeepsTheRest) {
  std::mt19937 engine(3);
  const auto random = [&] { return static_cast<std::uint32_t>(engine()); };
  for (int round = 0; round < 40'000; ++round) {
    Add(random() % 50 * 0x1'0000'0000u + random(), random() % 3 == 0 ? 1 + random() % 100 : 0);
    // Few of the old ones stay, more of the new.
    for (int i = 0; i < 2 && known_.size() > 300; ++i) {
      auto victim = known_.lower_bound(static_cast<CodeId>(random() % end_));
      if (victim == known_.end()) victim = known_.begin();
      if (random() % 4 == 0 && victim->second.gone == 0) {
        victim->second.gone = 1 + random() % 1000;
        table_.SetGone(victim->first, victim->second.gone);
      } else {
        Erase(victim->first);
      }
    }
    if (round % 1000 == 0) CheckAll();
  }
  CheckAll();
}

// Survivors among many that come and go do not hold the pages of the others.
TEST_F(IdTableTest, FewKnownIdsNeedLittleMemory) {
  for (std::uintptr_t i = 0; i < 1'000'000; ++i) {
    Add(0x7f00'0000'0000 + i * 16, i % 2 == 0 ? 5 : 0);
    if (i % 1000 != 0) Erase(static_cast<CodeId>(end_ - 1));
  }
  CheckAll();
  EXPECT_EQ(known_.size(), 1000u);
  // 1,000 pages of 16 slots, with descriptions, and the largest page.
  EXPECT_LT(table_.bytes(), 1000u * 400);
  while (!known_.empty()) Erase(known_.begin()->first);
  EXPECT_EQ(table_.NextFrom(0), IdTable::kEnd);
}

TEST_F(IdTableTest, WithoutMemoryItFailsAndKeepsTheRest) {
  for (int i = 0; i < 1000; ++i) Add(0x1000u * static_cast<unsigned>(i));
  FailAllocationsForTest(0);
  EXPECT_EQ(table_.Reserve(5000, 0x1000, false, epoch_).code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(table_.Reserve(1001, 0x1000, true, epoch_).code(), StatusCode::kOutOfMemory);
  FailAllocationsForTest(-1);
  CheckAll();
  // A page that cannot be made smaller stays as it is.
  for (int i = 0; i < 100; ++i) Add(0x1000);
  FailAllocationsForTest(0);
  for (CodeId id = 2; id < 1000; ++id) Erase(id);
  FailAllocationsForTest(-1);
  CheckAll();
}

TEST_F(IdTableTest, CodeMayLieInSoManySpansOf4GiB) {
  for (std::uintptr_t span = 1; span <= 0xfffe; ++span) {
    ASSERT_TRUE(table_.Reserve(1, span << 32, false, 1).ok()) << span;
  }
  EXPECT_EQ(table_.Reserve(1, 0, false, 1).code(), StatusCode::kLimit);
  EXPECT_TRUE(table_.Reserve(1, std::uintptr_t{77} << 32, false, 1).ok());
}

}  // namespace
}  // namespace stackpipe::internal
