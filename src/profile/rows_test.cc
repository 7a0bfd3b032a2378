// SPDX-License-Identifier: MIT
#include "profile/rows.h"

#include <gtest/gtest.h>

#include "profile/builder.h"
#include "profile/test_trace.h"

namespace stackpipe {
namespace {

class MakeRowsTest : public testing::Test {
 protected:
  void SetUp() override {
    trace_.SessionStart();
    trace_.ModuleLoad(7, "/opt/demo.dll");
    trace_.ModuleLoad(8, "/lib/libc.so.6");
    trace_.Load(TestTrace::Method(1, 0x1000, 0x100, "Root"));
    trace_.Load(TestTrace::Method(2, 0x2000, 0x100, "Leaf"));
    trace_.CodeInfo(3, CodeKind::kNative, "a.c", 1);
    nettrace::Method native = TestTrace::Method(3, 0x3000, 0x100, "helper");
    native.module_id = 8;
    trace_.Load(native);
    // A static function of the same name in another file.
    trace_.CodeInfo(4, CodeKind::kNative, "b.c", 2);
    native.method_id = 4;
    native.start = 0x4000;
    trace_.Load(native);
  }
  std::vector<ProfileRow> Rows(GroupBy by) {
    profile_ = builder_.Finish(GoodEnd());
    return MakeRows(profile_, by);
  }

  ProfileBuilder builder_;
  TestTrace trace_{&builder_};
  Profile profile_;
};

TEST_F(MakeRowsTest, RecursionCountsOnce) {
  trace_.Sample(1, {0x2000, 0x1000, 0x2000, 0x1000}, TestTrace::Weighted(10));
  trace_.Sample(1, {0x1000, 0x2000, 0x1000}, TestTrace::Weighted(3));
  trace_.Sample(2, {0x1000}, TestTrace::Weighted(1));
  const auto rows = Rows(GroupBy::kFunction);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].name, "Demo.Leaf(int32)");
  EXPECT_EQ(rows[0].module, "demo.dll");
  EXPECT_EQ(rows[0].kind, CodeKind::kJit);
  EXPECT_EQ(rows[0].self, (Cost{1, 10, 0}));
  EXPECT_EQ(rows[0].total, (Cost{2, 13, 0}));
  EXPECT_EQ(rows[1].self, (Cost{2, 4, 0}));
  EXPECT_EQ(rows[1].total, (Cost{3, 14, 0}));
}

TEST_F(MakeRowsTest, FunctionsThatLookTheSameAreOneRow) {
  trace_.Sample(1, {0x3000, 0x4000}, TestTrace::Weighted(10));
  const auto rows = Rows(GroupBy::kFunction);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].total, (Cost{1, 10, 0}));
  EXPECT_EQ(profile_.frame_table.size(), 2u);  // but two frames, with their own sources
}

TEST_F(MakeRowsTest, ModulesAddUpTheirFunctions) {
  trace_.Sample(1, {0x3000, 0x2000, 0x1000}, TestTrace::Weighted(10));
  trace_.Sample(1, {0x2000, 0x1000}, TestTrace::Weighted(5, nettrace::kSampleInKernel));
  trace_.Sample(1, {0x9999}, TestTrace::Weighted(1));
  const auto rows = Rows(GroupBy::kModule);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].name, "libc.so.6");
  EXPECT_EQ(rows[0].kind, CodeKind::kNative);
  EXPECT_EQ(rows[0].self.weight, 10u);
  EXPECT_EQ(rows[1].name, "[kernel]");
  EXPECT_EQ(rows[1].self.weight, 5u);
  EXPECT_EQ(rows[2].name, "[unknown]");
  EXPECT_EQ(rows[3].name, "demo.dll");
  EXPECT_EQ(rows[3].self.weight, 0u);
  EXPECT_EQ(rows[3].total, (Cost{2, 15, 0}));
}

TEST_F(MakeRowsTest, ThreadsAreRowsToo) {
  trace_.ThreadName(2, "worker");
  trace_.Sample(1, {0x1000}, TestTrace::Weighted(1));
  trace_.Sample(2, {0x1000}, TestTrace::Weighted(9));
  const auto rows = Rows(GroupBy::kThread);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].name, "worker");
  EXPECT_EQ(rows[0].tid, 2u);
  EXPECT_EQ(rows[0].self, rows[0].total);
  EXPECT_EQ(ThreadLabel(rows[0].name, rows[0].tid), "worker (2)");
  EXPECT_EQ(ThreadLabel(rows[1].name, rows[1].tid), "Thread 1");
}

// Each sample has one leaf, so the self column adds up to everything.
TEST_F(MakeRowsTest, SelfAddsUpToTheWhole) {
  trace_.Sample(1, {0x2000, 0x1000}, TestTrace::Weighted(10));
  trace_.Sample(1, {}, TestTrace::Weighted(7));
  trace_.Sample(2, {0x9999}, TestTrace::Weighted(5, nettrace::kSampleOffCpu));
  for (const GroupBy by : {GroupBy::kFunction, GroupBy::kModule, GroupBy::kThread}) {
    Cost sum;
    if (profile_.nodes.empty()) profile_ = builder_.Finish(GoodEnd());
    for (const ProfileRow& row : MakeRows(profile_, by)) sum += row.self;
    EXPECT_EQ(sum, profile_.cost);
  }
}

}  // namespace
}  // namespace stackpipe
