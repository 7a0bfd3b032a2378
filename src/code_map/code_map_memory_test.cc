// SPDX-License-Identifier: MIT
//
// What the map keeps, and for how long. With STACKPIPE_SOAK set it takes minutes, else moments.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "code_map/map_state.h"
#include "code_map/text_store.h"
#include "stackpipe/code_map.h"

namespace stackpipe {
namespace {

constexpr std::uintptr_t kBase = 0x7f0000000000;

// Sanitizers keep their own memory beside ours, and are slow: there the map's own count of bytes must do, and
// fewer rounds.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

bool IsSoak() { return std::getenv("STACKPIPE_SOAK") != nullptr; }

std::size_t ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  long size = 0, resident = 0;
  EXPECT_EQ(std::fscanf(file, "%ld %ld", &size, &resident), 2);
  std::fclose(file);
  return static_cast<std::size_t>(resident * sysconf(_SC_PAGESIZE));
}

std::size_t Total(const CodeMapMemory& memory) { return memory.lookup + memory.descriptors + memory.texts; }

CodeRegistration Code(std::uintptr_t start, std::size_t size, std::string_view name) {
  CodeRegistration code;
  code.start = start;
  code.size = size;
  code.name_space = "A.Name.Space";
  code.name = name;
  code.signature = "void ()";
  code.source_file = "/src/file.cs";
  return code;
}

// Proves: B3; test 26 of the list
TEST(CodeMapMemoryTest, StaysFlatOverManyPairsOfAddAndRemove) {
  const int rounds = IsSoak() ? 1000 : 30;
  constexpr int kPairs = kSanitized ? 1000 : 10'000;  // 10 million pairs in a soak
  CodeMap map;
  std::mt19937 random(1);
  for (std::uintptr_t i = 0; i < 5000; ++i)
    ASSERT_TRUE(map.Register(Code(kBase + i * 512, 100, "kept")).ok());
  std::size_t bytes = 0, resident = 0;
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < kPairs; ++i) {
      const std::uintptr_t start = kBase + random() % 5000 * 512 + 100 + random() % 100;
      const std::string name = "code number " + std::to_string(random() % 100'000'000);
      const Result<CodeId> id = map.Register(Code(start, 1 + random() % 200, name));
      ASSERT_TRUE(id.ok());
      ASSERT_TRUE(map.Unregister(id.value()).ok());
      if (i % 100 == 0) map.TrimHistory(map.epoch() - 50);
    }
    if (round == 9) {
      bytes = Total(map.memory());
      resident = ResidentBytes();
    }
  }
  EXPECT_EQ(map.live_count(), 5000u);
  EXPECT_LE(Total(map.memory()), bytes + bytes / 50);
  if (!kSanitized) {
    EXPECT_LE(ResidentBytes(), resident + (std::size_t{1} << 20));
  }
}

// Nobody trims, and every name is new: from kHistoryMax on the oldest is forgotten for each new one, so the
// answer for it is "unknown", and memory does not grow any more.
//
// Proves: B7; tests 16, 26 and 29 of the list
TEST(CodeMapMemoryTest, WhatNobodyTrimsIsForgottenInTheEnd) {
  if (kSanitized) return;  // the limit is large; the test below has a smaller one
  const CodeId count = static_cast<CodeId>(CodeMap::kHistoryMax * (IsSoak() ? 8 : 1)) + 50'000;
  CodeMap map;
  CodeEpoch first = 0;
  std::size_t bytes = 0, resident = 0;
  for (CodeId i = 1; i <= count; ++i) {
    const std::string name = "code number " + std::to_string(i);
    const Result<CodeId> id = map.Register(Code(kBase + i % 100'000 * 1024, 16, name));
    ASSERT_EQ(id.value(), i);
    if (first == 0) first = map.epoch();
    ASSERT_TRUE(map.Unregister(i).ok());
    if (i == CodeMap::kHistoryMax + 10'000) {
      bytes = Total(map.memory());
      resident = ResidentBytes();
    }
  }
  EXPECT_LE(Total(map.memory()), bytes + bytes / 50);
  EXPECT_LE(ResidentBytes(), resident + (std::size_t{4} << 20));
  // Code i was there at epoch first + 2 (i - 1) only.
  const CodeId forgotten = count - static_cast<CodeId>(CodeMap::kHistoryMax);
  for (CodeId i = 1; i <= count; i += i + 3 > forgotten && i < forgotten + 3 ? 1 : 2111) {
    CodeHit hit;
    CodeDescriptor code;
    const bool known = map.LookupAt(kBase + i % 100'000 * 1024 + 5, first + 2 * (i - 1), &hit);
    ASSERT_EQ(known, i > forgotten) << i;
    ASSERT_EQ(map.Describe(i, &code), known) << i;
    if (known) {
      ASSERT_EQ(hit.id, i);
      ASSERT_EQ(code.name, "code number " + std::to_string(i));
    }
  }
}

// Lookups, now and at old epochs, leave nothing behind: 100 million in a soak.
//
// Proves: B2; test 16 of the list
TEST(CodeMapMemoryTest, LookupsKeepNothing) {
  const int rounds = IsSoak() ? 1000 : 5;
  CodeMap map;
  for (std::uintptr_t i = 0; i < 50'000; ++i) {
    const CodeId id = map.Register(Code(kBase + i * 64, 48, "f")).value();
    if (i % 2 == 0) {
      ASSERT_TRUE(map.Unregister(id).ok());
    }
  }
  std::minstd_rand random(5);
  const auto look_up = [&] {
    std::size_t found = 0;
    for (int i = 0; i < (kSanitized ? 5'000 : 100'000); ++i) {
      CodeHit hit;
      const std::uintptr_t pc = kBase + random() % (50'000 * 64);
      found += map.Lookup(pc, &hit) ? 1 : 0;
      if (i % 16 == 0) found += map.LookupAt(pc, random() % map.epoch(), &hit) ? 1 : 0;
    }
    return found;
  };
  EXPECT_GT(look_up(), 0u);
  const CodeMapMemory before = map.memory();
  const std::size_t resident = ResidentBytes();
  for (int round = 0; round < rounds; ++round) EXPECT_GT(look_up(), 0u);
  const CodeMapMemory after = map.memory();
  EXPECT_EQ(Total(after), Total(before));
  if (!kSanitized) {
    EXPECT_LE(ResidentBytes(), resident + (std::size_t{1} << 18));
  }
}

// A map that nobody trims remembers so much and no more.
//
// Proves: B7; test 29 of the list
TEST(CodeMapMemoryTest, TheHistoryHasALimitAndForgetsTheOldest) {
  using internal::MapState;
  MapState* map = MapState::Create();
  map->SetHistoryMaxForTest(1000);
  CodeEpoch epoch = 1;
  std::vector<CodeEpoch> alive_at;
  for (int i = 0; i < 5000; ++i) {
    const CodeRegistration code = Code(kBase, 100, "f");
    CodeId id = 0;
    ASSERT_TRUE(map->Register({&code, 1}, internal::OnOverlap::kRefuse, ++epoch, &id, nullptr).ok());
    alive_at.push_back(epoch);
    ASSERT_TRUE(map->Unregister({&id, 1}, ++epoch).ok());
    map->Settle();
  }
  for (std::size_t i = 0; i < alive_at.size(); ++i) {
    CodeHit hit;
    const bool found = map->LookupAt(kBase, alive_at[i], &hit);
    ASSERT_EQ(found, i >= 4000) << i;
    if (found) {
      ASSERT_EQ(hit.id, i + 1);
    }
    ASSERT_FALSE(map->LookupAt(kBase, alive_at[i] + 1, &hit));
  }
  MapState::Destroy(map);
}

// A fork may come between a change and the store of the epoch that commits it: then the change has not been,
// even if it ended more code than the history holds.
//
// Proves: B3; tests 19 and 29 of the list
TEST(CodeMapMemoryTest, NothingIsForgottenForAChangeThatWasNotCommitted) {
  using internal::MapState;
  MapState* map = MapState::Create();
  map->SetHistoryMaxForTest(3);
  CodeEpoch epoch = 1;
  std::vector<CodeRegistration> codes;
  for (std::uintptr_t i = 0; i < 10; ++i) codes.push_back(Code(kBase + i * 64, 16, "f"));
  ASSERT_TRUE(map->Register(codes, internal::OnOverlap::kRefuse, ++epoch, nullptr, nullptr).ok());
  EXPECT_EQ(map->UnregisterRange(kBase, 0x1000, epoch + 1, nullptr), 10u);
  MapState* before = MapState::Rebuild(*map, epoch);
  ASSERT_NE(before, nullptr);
  EXPECT_EQ(before->live_count(), 10u);
  MapState* after = MapState::Rebuild(*map, epoch + 1);
  ASSERT_NE(after, nullptr);
  EXPECT_EQ(after->live_count(), 0u);
  for (MapState* state : {map, before, after}) MapState::Destroy(state);
}

// Proves: B5; test 29 of the list
TEST(CodeMapMemoryTest, WhenTheIdsAreUsedUpRegistrationFailsAndTheRestGoesOn) {
  using internal::MapState;
  MapState* map = MapState::Create();
  map->SetNextIdForTest(MapState::kIdsEnd - 2);
  CodeEpoch epoch = 1;
  const auto add = [&](std::uintptr_t start) {
    const CodeRegistration code = Code(start, 100, "f");
    CodeId id = 0;
    EXPECT_TRUE(map->Register({&code, 1}, internal::OnOverlap::kRefuse, ++epoch, &id, nullptr).code() !=
                StatusCode::kOverlap);
    return id;
  };
  EXPECT_EQ(add(kBase), 0xfffffffeu);
  EXPECT_EQ(map->Move(0xfffffffe, kBase + 0x10, ++epoch).value(), 0xffffffffu);
  const CodeRegistration code = Code(kBase + 1000, 100, "f");
  EXPECT_EQ(map->Register({&code, 1}, internal::OnOverlap::kRefuse, ++epoch, nullptr, nullptr).code(),
            StatusCode::kLimit);
  EXPECT_EQ(map->Move(0xffffffff, kBase, ++epoch).status().code(), StatusCode::kLimit);
  CodeHit hit;
  EXPECT_TRUE(map->LookupAt(kBase + 0x10, epoch, &hit));
  const CodeId last = 0xffffffff;
  EXPECT_TRUE(map->Unregister({&last, 1}, ++epoch).ok());
  EXPECT_EQ(map->live_count(), 0u);
  MapState::Destroy(map);
}

// In both orders, and at random: the cost of a removal must not depend on what is there.
TEST(CodeMapMemoryTest, ManyRangesGoInAnyOrder) {
  const std::uintptr_t count = IsSoak() ? 1'000'000 : kSanitized ? 10'000 : 50'000;
  for (int order = 0; order < 3; ++order) {
    CodeMap map;
    std::vector<CodeId> ids;
    for (std::uintptr_t i = 0; i < count; ++i) {
      ids.push_back(map.Register(Code(kBase + i * 100, 80, "f")).value());
    }
    if (order == 1) std::reverse(ids.begin(), ids.end());
    if (order == 2) std::shuffle(ids.begin(), ids.end(), std::mt19937(5));
    for (const CodeId id : ids) ASSERT_TRUE(map.Unregister(id).ok());
    EXPECT_EQ(map.live_count(), 0u);
    map.TrimHistory(map.epoch());
    for (std::uintptr_t i = 0; i < count; ++i) {
      CodeHit hit;
      ASSERT_FALSE(map.Lookup(kBase + i * 100 + 40, &hit));
    }
  }
}

TEST(CodeMapMemoryTest, NamesThatAreSharedAreStoredOnce) {
  CodeMap map;
  std::string name(2000, 'n');
  for (std::uintptr_t i = 0; i < 10'000; ++i) ASSERT_TRUE(map.Register(Code(kBase + i * 64, 64, name)).ok());
  EXPECT_LT(map.memory().texts, 50'000u);
  CodeDescriptor a, b;
  ASSERT_TRUE(map.Describe(1, &a));
  ASSERT_TRUE(map.Describe(10'000, &b));
  EXPECT_EQ(a.name, name);
  EXPECT_EQ(a.name.data(), b.name.data());
}

TEST(TextStoreTest, TextsOfAnyLengthComeBackAndGo) {
  internal::TextStore store;
  std::vector<std::pair<std::string, std::uint32_t>> held;
  std::mt19937 random(9);
  for (const std::size_t length : std::initializer_list<std::size_t>{
           1, 15, 16, 17, 1007, 1008, 1009, 5000, 70'000, 1'048'560, 1'048'561, 3'000'000}) {
    for (char c = 'a'; c <= 'c'; ++c) {
      std::string text(length, c);
      text[length / 2] = static_cast<char>('0' + random() % 10);
      std::uint32_t handle = 0;
      ASSERT_TRUE(store.Intern(text, &handle));
      held.emplace_back(text, handle);
    }
  }
  for (const auto& [text, handle] : held) ASSERT_EQ(store.View(handle), text);
  const std::size_t bytes = store.bytes();
  for (int round = 0; round < 3; ++round) {
    for (auto& [text, handle] : held) {
      std::uint32_t again = 0;
      ASSERT_TRUE(store.Intern(text, &again));
      ASSERT_EQ(again, handle);
      ASSERT_FALSE(store.Release(handle));
      ASSERT_TRUE(store.Release(handle));
      ASSERT_TRUE(store.Intern(text, &handle));
    }
    for (const auto& [text, handle] : held) ASSERT_EQ(store.View(handle), text);
  }
  EXPECT_EQ(store.bytes(), bytes);
}

}  // namespace
}  // namespace stackpipe
