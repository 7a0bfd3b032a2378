// SPDX-License-Identifier: MIT
//
// What the map tells of code besides where it is, and that it tells it while writers work.
//
// Proves: B9
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "code_map/code_details.h"
#include "code_map/description_store.h"
#include "stackpipe/code_map.h"

namespace stackpipe {
namespace {

constexpr std::uintptr_t kBase = 0x7f0000000000;

std::vector<std::string> FramesAt(const CodeMap& map, CodeId id, std::uint32_t offset, std::size_t max = 10) {
  CodeFrame frames[10];
  std::vector<std::string> texts;
  const std::size_t count = map.Frames(id, offset, frames, max);
  for (std::size_t i = 0; i < count; ++i) {
    texts.push_back(std::string(frames[i].name_space) + "." + std::string(frames[i].name) + "@" +
                    std::string(frames[i].source_file) + ":" + std::to_string(frames[i].line));
  }
  return texts;
}
using Texts = std::vector<std::string>;

TEST(CodeMapDescribeTest, FramesSayLinesAndInlinedCalls) {
  CodeMap map;
  const CodeLine lines[] = {{0, 100}, {8, 101}, {16, 7}, {20, 300}, {24, 8}, {40, 103}};
  const CodeInline inlines[] = {
      {16, 24, 0, 102, "N.B", "middle", "b.cs"},
      {20, 4, 1, 7, "N.C", "inner", "c.cs"},
      {48, 8, 0, 104, "N.B", "other", "b.cs"},
  };
  CodeRegistration code;
  code.start = kBase;
  code.size = 64;
  code.name_space = "N.A";
  code.name = "outer";
  code.source_file = "a.cs";
  code.source_line = 99;
  code.tier = 2;
  code.lines = lines;
  code.inlines = inlines;
  const CodeId id = map.Register(code).value();
  const auto check = [&](CodeId of) {
    EXPECT_EQ(FramesAt(map, of, 0), Texts{"N.A.outer@a.cs:100"});
    EXPECT_EQ(FramesAt(map, of, 15), Texts{"N.A.outer@a.cs:101"});
    EXPECT_EQ(FramesAt(map, of, 16), (Texts{"N.B.middle@b.cs:7", "N.A.outer@a.cs:102"}));
    EXPECT_EQ(FramesAt(map, of, 23),
              (Texts{"N.C.inner@c.cs:300", "N.B.middle@b.cs:7", "N.A.outer@a.cs:102"}));
    EXPECT_EQ(FramesAt(map, of, 39), (Texts{"N.B.middle@b.cs:8", "N.A.outer@a.cs:102"}));
    EXPECT_EQ(FramesAt(map, of, 40), Texts{"N.A.outer@a.cs:103"});
    EXPECT_EQ(FramesAt(map, of, 50), (Texts{"N.B.other@b.cs:103", "N.A.outer@a.cs:104"}));
    EXPECT_EQ(FramesAt(map, of, 23, 2), (Texts{"N.C.inner@c.cs:300", "N.B.middle@b.cs:7"}));
    EXPECT_EQ(FramesAt(map, of, 23, 0), Texts{});
    CodeDescriptor descriptor;
    ASSERT_TRUE(map.Describe(of, &descriptor));
    EXPECT_EQ(descriptor.tier, 2);
  };
  check(id);
  const CodeId moved = map.Move(id, kBase + 0x10000).value();
  check(moved);
  check(id);  // gone, not forgotten
  ASSERT_TRUE(map.Unregister(moved).ok());
  map.TrimHistory(map.epoch());
  EXPECT_EQ(FramesAt(map, id, 0), Texts{});
  EXPECT_EQ(FramesAt(map, moved, 0), Texts{});
}

TEST(CodeMapDescribeTest, CodeWithoutLinesHasOneFrame) {
  CodeMap map;
  const CodeId bare = map.Register({.start = kBase, .size = 10}).value();
  const CodeId named = map.Register({.start = kBase + 16, .size = 10, .name = "f", .source_line = 5}).value();
  EXPECT_EQ(FramesAt(map, bare, 3), Texts{".@:0"});
  EXPECT_EQ(FramesAt(map, named, 3), Texts{".f@:5"});
  EXPECT_EQ(FramesAt(map, 77, 3), Texts{});
}

TEST(CodeMapDescribeTest, LinesAndCallsOutOfOrderAreRefused) {
  CodeMap map;
  const auto refused = [&](std::vector<CodeLine> lines, std::vector<CodeInline> inlines) {
    CodeRegistration code;
    code.start = kBase;
    code.size = 100;
    code.lines = lines;
    code.inlines = inlines;
    const Status status = map.Register(code).status();
    if (status.ok()) map.UnregisterRange(kBase, 100);
    return status.code() == StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused({{0, 5}, {1, 4}}, {{0, 100, 0, 1}, {0, 100, 1, 1}, {0, 10, 2, 1}, {50, 50, 1, 1}}));
  EXPECT_TRUE(refused({{5, 5}, {5, 6}}, {}));
  EXPECT_TRUE(refused({{5, 5}, {4, 6}}, {}));
  EXPECT_TRUE(refused({}, {{0, 101, 0, 1}})) << "ends behind the code";
  EXPECT_TRUE(refused({}, {{100, 0, 0, 1}})) << "begins behind the code";
  EXPECT_TRUE(refused({}, {{0, 10, 1, 1}})) << "inside nothing";
  EXPECT_TRUE(refused({}, {{0, 10, 0, 1}, {5, 10, 1, 1}})) << "crosses the end of the call around it";
  EXPECT_TRUE(refused({}, {{10, 10, 0, 1}, {0, 5, 0, 1}})) << "not in order";
  std::vector<CodeInline> deep;
  for (std::uint32_t depth = 0; depth < 64; ++depth) deep.push_back({0, 100, depth, 1});
  EXPECT_FALSE(refused({}, deep));
  deep.push_back({0, 100, 64, 1});
  EXPECT_TRUE(refused({}, deep)) << "too deep";
}

// Line tables share their bytes as names do, and their texts go with the last of them.
TEST(CodeMapDescribeTest, DetailsAreStoredOnceAndGo) {
  CodeMap map;
  std::vector<CodeLine> lines;
  for (std::uint32_t i = 0; i < 3000; ++i) lines.push_back({i * 3, 100 + i % 7});
  const CodeInline inlines[] = {{0, 10, 0, 3, "some.name.space", "inlined", "file.cc"}};
  CodeRegistration code;
  code.size = 9000;
  code.lines = lines;
  code.inlines = inlines;
  std::size_t one = 0;
  for (std::uintptr_t i = 0; i < 100; ++i) {
    code.start = kBase + i * 0x4000;
    ASSERT_TRUE(map.Register(code).ok());
    if (i == 0) one = map.memory().texts;
  }
  EXPECT_EQ(map.memory().texts, one);
  EXPECT_LT(one, 3000u * 2 + 6500) << "two bytes a line, and the index of texts";
  EXPECT_EQ(FramesAt(map, 57, 8999), Texts{".@:" + std::to_string(100 + 2999 % 7)});
  EXPECT_EQ(map.UnregisterRange(kBase, 0x1000000), 100u);
  map.TrimHistory(map.epoch());
  internal::DescriptionStore store;
  std::uint32_t first = 0, second = 0, copy = 0;
  ASSERT_TRUE(store.Create(code, 1, &first));
  ASSERT_TRUE(store.Create(code, 2, &second));
  ASSERT_TRUE(store.Copy(second, 3, &copy));
  store.Destroy(second);
  store.Destroy(first);
  internal::DescriptionStore other;
  std::uint32_t adopted = 0;
  ASSERT_TRUE(other.CopyFrom(store, copy, 4, &adopted));
  store.Destroy(copy);
  CodeFrame frames[3];
  ASSERT_EQ(other.Frames(adopted, 4, 5, frames, 3), 2u);
  EXPECT_EQ(frames[0].name, "inlined");
  EXPECT_EQ(frames[0].source_file, "file.cc");
  EXPECT_EQ(frames[1].line, 3u);
  EXPECT_EQ(other.Frames(adopted, 3, 5, frames, 3), 0u) << "not that id's";
}

TEST(CodeMapDescribeTest, WithoutMemoryADescriptionIsMadeWholeOrNotAtAll) {
  const CodeLine lines[] = {{0, 1}, {5, 2}};
  const CodeInline inlines[] = {{0, 4, 0, 1, "x.y", "f", "f.cc"}, {5, 3, 0, 1, "x.z", "g", "g.cc"}};
  CodeRegistration code;
  code.start = kBase;
  code.size = 50;
  code.name_space = "space";
  code.name = "name";
  code.signature = "signature";
  code.source_file = "file";
  code.lines = lines;
  code.inlines = inlines;
  CodeMap map;
  ASSERT_TRUE(map.Register(code).ok());
  ASSERT_EQ(map.UnregisterRange(kBase, 1), 1u);
  map.TrimHistory(map.epoch());
  const std::size_t texts = map.memory().texts;
  for (int allowed = 0;; ++allowed) {
    CodeMap fresh;
    internal::FailAllocationsForTest(allowed);
    const Result<CodeId> id = fresh.Register(code);
    internal::FailAllocationsForTest(-1);
    if (id.ok()) {
      EXPECT_GT(allowed, 8);
      break;
    }
    ASSERT_EQ(id.status().code(), StatusCode::kOutOfMemory) << allowed;
    ASSERT_TRUE(fresh.Register(code).ok()) << allowed;
    ASSERT_EQ(fresh.memory().texts, texts) << allowed;
  }
}

// Readers describe ids of which some are registered, some gone, some forgotten, while a writer changes them
// all: what they are told is of the id that they asked for, or nothing.
TEST(CodeMapDescribeTest, DescriptionsAreRightWhileWritersWork) {  // Proves: B3
  CodeMap map;
  std::atomic<CodeId> newest{0};
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> known{0}, unknown{0}, wrong{0};
  // Code of id i has size 16 + i % 5, and texts with i in them; but for every third, which has none.
  const auto reader = [&](unsigned seed) {
    std::mt19937 random(seed);
    while (!stop.load()) {
      const CodeId last = newest.load();
      if (last < 10) continue;
      const CodeId id = last - static_cast<CodeId>(random() % std::min<CodeId>(last, 300));
      CodeDescriptor code;
      if (!map.Describe(id, &code)) {
        unknown.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      bool right = code.size == 16 + id % 5 && code.kind == CodeKind::kJit;
      right = right && code.birth != 0 && (code.death == 0 || code.death > code.birth);
      right = right && code.source_line == (id % 3 == 0 ? 0 : id) && (code.name.empty() == (id % 3 == 0));
      right = right && code.module_id == (id % 3 == 0 ? 0 : id * 7ull);
      if (!right) wrong.fetch_add(1);
      known.fetch_add(1, std::memory_order_relaxed);
      CodeFrame frame;
      if (map.Frames(id, 3, &frame, 1) == 1 && frame.line != (id % 3 == 0 ? 0 : id)) wrong.fetch_add(1);
    }
  };
  std::thread first(reader, 1), second(reader, 2);
  std::mt19937 random(3);
  std::vector<CodeId> live;
  const int changes = std::getenv("STACKPIPE_SOAK") != nullptr ? 5'000'000 : 20'000;
  std::string name;
  for (int i = 0; i < changes || known.load() < 1000; ++i) {
    const CodeId id = newest.load() + 1;
    CodeRegistration code;
    code.start = kBase + random() % 4096 * 32;
    code.size = 16 + id % 5;
    code.kind = CodeKind::kJit;
    const CodeLine line = {0, id};
    if (id % 3 != 0) {
      name = std::string(1 + id % 40, 'n') + std::to_string(id);
      code.name = name;
      code.source_line = id;
      code.module_id = id * 7ull;
      code.lines = {&line, 1};
    }
    if (map.RegisterOver(code).ok()) newest.store(id);
    if (i % 7 == 0) map.UnregisterRange(kBase + random() % 4096 * 32, 1000);
    if (i % 50 == 0) map.TrimHistory(map.epoch() - 100);
  }
  stop.store(true);
  first.join();
  second.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_GT(known.load(), 100u);
  EXPECT_GT(unknown.load(), 0u);
}

}  // namespace
}  // namespace stackpipe
