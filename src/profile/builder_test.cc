// SPDX-License-Identifier: MIT
#include "profile/builder.h"

#include <gtest/gtest.h>

#include "profile/rows.h"
#include "profile/test_trace.h"

namespace stackpipe {
namespace {

constexpr std::uint64_t kRoot = 0x1000, kLeaf = 0x2000, kOther = 0x3000;

class ProfileBuilderTest : public testing::Test {
 protected:
  void LoadMethods() {
    trace_.ModuleLoad(7, "/opt/demo.dll");
    trace_.Load(TestTrace::Method(1, kRoot, 0x100, "Root"));
    trace_.Load(TestTrace::Method(2, kLeaf, 0x100, "Leaf"));
    trace_.Load(TestTrace::Method(3, kOther, 0x100, "Other"));
  }
  Profile Finish() { return builder_.Finish(GoodEnd()); }
  // The path of each node with a self cost, as "root;leaf".
  static std::map<std::string, Cost> Leaves(const Profile& profile, const ProfileThread& thread) {
    std::map<std::string, Cost> leaves;
    std::map<std::uint32_t, std::string> paths;
    for (std::uint32_t i = thread.first_node; i < thread.first_node + thread.node_count; ++i) {
      const ProfileNode& node = profile.nodes[i];
      const std::string name = node.frame == kNoFrame ? "" : profile.frame_table[node.frame].name;
      paths[i] = node.frame == kNoFrame
                     ? ""
                     : paths.at(node.parent) + (paths.at(node.parent).empty() ? "" : ";") + name;
      if (node.self.samples != 0) leaves[paths[i]] = node.self;
    }
    return leaves;
  }

  ProfileBuilder builder_;
  TestTrace trace_{&builder_};
};

TEST_F(ProfileBuilderTest, WeightedSamplesMakeATreeForEachThread) {
  trace_.SessionStart();
  LoadMethods();
  trace_.ThreadName(11, "worker");
  trace_.Sample(11, {kOther, kRoot}, TestTrace::Weighted(2));
  trace_.Sample(100, {kLeaf, kRoot}, TestTrace::Weighted(30));
  trace_.Sample(100, {kLeaf + 4, kRoot}, TestTrace::Weighted(5));
  trace_.Sample(100, {kRoot}, TestTrace::Weighted(7));
  const Profile profile = Finish();

  ASSERT_EQ(profile.threads.size(), 2u);
  EXPECT_EQ(profile.threads[0].name, "main");  // the thread whose id is the process's
  EXPECT_EQ(profile.threads[1].name, "worker");
  const auto leaves = Leaves(profile, profile.threads[0]);
  EXPECT_EQ(leaves.size(), 2u);
  EXPECT_EQ(leaves.at("Demo.Root(int32);Demo.Leaf(int32)"), (Cost{2, 35, 0}));
  EXPECT_EQ(leaves.at("Demo.Root(int32)"), (Cost{1, 7, 0}));
  EXPECT_EQ(profile.threads[0].cost, (Cost{3, 42, 0}));
  EXPECT_EQ(profile.cost, (Cost{4, 44, 0}));
  EXPECT_EQ(profile.frames, 7u);
  EXPECT_EQ(profile.named_frames, 7u);
  EXPECT_EQ(profile.max_depth, 2u);
  EXPECT_TRUE(profile.complete);
}

// Proves: B7
TEST_F(ProfileBuilderTest, SameAddressesAfterReuseAreAnotherStack) {
  trace_.SessionStart();
  LoadMethods();
  trace_.Sample(11, {kLeaf, kRoot}, TestTrace::Weighted(1));
  trace_.Unload(TestTrace::Method(2, kLeaf, 0x100, "Leaf"));
  trace_.Sample(11, {kLeaf, kRoot}, TestTrace::Weighted(2));
  trace_.Load(TestTrace::Method(4, kLeaf, 0x100, "New"));
  trace_.Sample(11, {kLeaf, kRoot}, TestTrace::Weighted(4));
  trace_.Sample(11, {kLeaf, kRoot}, TestTrace::Weighted(8));
  trace_.Sample(12, {kLeaf, kRoot}, TestTrace::Weighted(16));
  const Profile profile = Finish();
  ASSERT_EQ(profile.threads.size(), 2u);
  const auto leaves = Leaves(profile, profile.threads[1]);
  EXPECT_EQ(leaves.at("Demo.Root(int32);Demo.Leaf(int32)").weight, 1u);
  EXPECT_EQ(leaves.at("Demo.Root(int32);0x2000").weight, 2u);
  EXPECT_EQ(leaves.at("Demo.Root(int32);Demo.New(int32)"), (Cost{2, 12, 0}));
  EXPECT_EQ(profile.threads[0].cost.weight, 16u);
}

TEST_F(ProfileBuilderTest, TracesOfStackpipeAnnounceTheirCode) {
  trace_.SessionStart();
  trace_.Sample(11, {kLeaf}, TestTrace::Weighted(1));
  LoadMethods();  // too late: this is other code
  trace_.Sample(11, {kLeaf}, TestTrace::Weighted(1));
  const Profile profile = Finish();
  EXPECT_EQ(profile.frames, 2u);
  EXPECT_EQ(profile.named_frames, 1u);
}

TEST_F(ProfileBuilderTest, PlainSamplesLastUntilTheThreadsNextOne) {
  trace_.SessionStart("wall", 1000);
  LoadMethods();
  trace_.At(100);
  trace_.Sample(11, {kLeaf, kRoot}, TestTrace::Managed());
  trace_.At(150);
  trace_.Sample(12, {kOther}, TestTrace::Managed());  // another thread's time is its own
  trace_.At(400);
  trace_.Sample(11, {kRoot}, TestTrace::External());
  const Profile profile = Finish();

  ASSERT_EQ(profile.threads.size(), 2u);
  const auto leaves = Leaves(profile, profile.threads[0]);
  EXPECT_EQ(leaves.at("Demo.Root(int32);Demo.Leaf(int32)"), (Cost{1, 300, 0}));
  EXPECT_EQ(leaves.at("Demo.Root(int32)"), (Cost{1, 1000, 1000}));  // the last one: one period
  EXPECT_EQ(profile.cost.external, 1000u);
}

TEST_F(ProfileBuilderTest, WithoutAnyWeightSamplesAreCounted) {
  LoadMethods();
  trace_.Sample(11, {kLeaf, kRoot}, TestTrace::Managed());
  trace_.Sample(12, {kRoot}, TestTrace::Managed());
  const Profile profile = Finish();
  EXPECT_EQ(profile.weight_unit, WeightUnit::kSamples);
  EXPECT_EQ(profile.cost.weight, 2u);
  EXPECT_EQ(profile.threads[0].cost.weight, 1u);
  const auto rows = MakeRows(profile, GroupBy::kFunction);
  EXPECT_EQ(rows[0].self.weight, 1u);
  EXPECT_EQ(rows[0].total.weight, 2u);
}

TEST_F(ProfileBuilderTest, AddressesNamedLateJoinTheirFunction) {
  trace_.Sample(11, {kLeaf, kRoot});
  trace_.Sample(11, {kLeaf + 8, kRoot + 8});
  trace_.Rundown(TestTrace::Method(1, kRoot, 0x100, "Root"));
  trace_.Rundown(TestTrace::Method(2, kLeaf, 0x100, "Leaf"));
  const Profile profile = Finish();
  const auto leaves = Leaves(profile, profile.threads[0]);
  ASSERT_EQ(leaves.size(), 1u);
  EXPECT_EQ(leaves.at("Demo.Root(int32);Demo.Leaf(int32)").samples, 2u);
  EXPECT_EQ(profile.threads[0].node_count, 3u);
  EXPECT_EQ(profile.frames, 4u);
  EXPECT_EQ(profile.named_frames, 4u);
}

TEST_F(ProfileBuilderTest, MarksStandAtTheLeafAndAreNotFrames) {
  trace_.SessionStart();
  LoadMethods();
  trace_.Sample(11, {kLeaf, kRoot}, TestTrace::Weighted(1, nettrace::kSampleInKernel));
  trace_.Sample(11, {kLeaf, kRoot},
                TestTrace::Weighted(2, nettrace::kSampleInKernel | nettrace::kSampleOffCpu));
  trace_.Sample(11, {}, TestTrace::Weighted(4, 7));
  trace_.Sample(11, {}, TestTrace::Weighted(8, nettrace::kSampleInKernel));
  const Profile profile = Finish();
  const auto leaves = Leaves(profile, profile.threads[0]);
  EXPECT_EQ(leaves.at("Demo.Root(int32);Demo.Leaf(int32);[kernel]").weight, 1u);
  EXPECT_EQ(leaves.at("Demo.Root(int32);Demo.Leaf(int32);[off-cpu]").weight, 2u);
  EXPECT_EQ(leaves.at("[no stack]").weight, 4u);
  EXPECT_EQ(leaves.at("[kernel]").weight, 8u);
  EXPECT_EQ(profile.frames, 4u);
  EXPECT_EQ(profile.max_depth, 2u);
  EXPECT_EQ(profile.stop_reasons[0], 3u);
  EXPECT_EQ(profile.stop_reasons[7], 1u);
}

TEST_F(ProfileBuilderTest, ManagedFramesAreAllButNativeOnes) {
  trace_.SessionStart();
  LoadMethods();
  trace_.CodeInfo(9, CodeKind::kNative);
  trace_.Load(TestTrace::Method(9, 0x9000, 0x100, "read"));
  trace_.Sample(11, {0x9000, kLeaf, kRoot}, TestTrace::Weighted(1));
  trace_.Sample(11, {0xabc, kRoot}, TestTrace::Weighted(1));  // unknown: could be managed, so it counts
  const Profile profile = Finish();
  EXPECT_EQ(profile.frames, 5u);
  EXPECT_EQ(profile.named_frames, 4u);
  EXPECT_EQ(profile.managed_frames, 4u);
  EXPECT_EQ(profile.managed_named, 3u);
}

TEST_F(ProfileBuilderTest, SessionEndSaysTotalsAndCosts) {
  trace_.SessionStart("cpu", 250);
  LoadMethods();
  trace_.Sample(11, {kRoot}, TestTrace::Weighted(1));
  trace_.ThreadTotals(11, {.expected = 6, .recorded = 1, .dropped = 3, .suppressed = 2});
  nettrace::SessionEnd end;
  end.totals = {.expected = 10, .recorded = 1, .dropped = 4, .suppressed = 5};
  end.handler_ns = 77;
  end.duration_ns = 123456;
  trace_.SessionEnd(end);
  const Profile profile = Finish();
  EXPECT_EQ(profile.loss.expected, 10u);
  EXPECT_EQ(profile.loss.dropped, 4u);
  EXPECT_EQ(profile.threads[0].loss.suppressed, 2u);
  EXPECT_EQ(profile.session.handler_ns, 77u);
  EXPECT_EQ(profile.session.period_ns, 250u);
  EXPECT_EQ(profile.session.mode, "cpu");
  EXPECT_EQ(profile.duration_ns, 123456u);
}

TEST_F(ProfileBuilderTest, WithoutSessionEndTheThreadsTotalsAreAddedUp) {
  trace_.SessionStart();
  LoadMethods();
  trace_.At(5000);
  trace_.Sample(11, {kRoot}, TestTrace::Weighted(1));
  trace_.Sample(11, {kRoot}, TestTrace::Weighted(1));
  trace_.ThreadTotals(11, {.expected = 2, .recorded = 1, .dropped = 1});  // superseded
  trace_.ThreadTotals(11, {.expected = 6, .recorded = 1, .dropped = 3, .suppressed = 2});
  trace_.ThreadTotals(12, {.expected = 4, .dropped = 4});  // never got a sample through
  nettrace::ReadSummary cut;
  cut.status = Status(StatusCode::kTruncated, "");
  const Profile profile = builder_.Finish(cut);
  EXPECT_FALSE(profile.complete);
  EXPECT_EQ(profile.loss.recorded, 2u);
  EXPECT_EQ(profile.loss.dropped, 7u);
  EXPECT_EQ(profile.loss.suppressed, 2u);
  EXPECT_EQ(profile.loss.expected, 11u);
  EXPECT_EQ(profile.threads.size(), 2u);
  EXPECT_EQ(profile.duration_ns, 5000u);
}

TEST_F(ProfileBuilderTest, LossOfDotNetTracesIsThatOfTheStream) {
  LoadMethods();
  trace_.Sample(11, {kRoot});
  nettrace::ReadSummary summary = GoodEnd();
  summary.lost = 5;
  const Profile profile = builder_.Finish(summary);
  EXPECT_EQ(profile.loss.expected, 6u);
  EXPECT_EQ(profile.loss.recorded, 1u);
  EXPECT_EQ(profile.loss.dropped, 5u);
}

TEST_F(ProfileBuilderTest, BrokenPayloadsAreCountedAndSurvived) {
  nettrace::EventType type;
  type.provider = nettrace::kRuntimeProvider;
  type.event_id = 143;
  type.version = 2;
  nettrace::Event event;
  event.type = &type;
  builder_.OnEvent(event);
  nettrace::EventType sample_type;
  sample_type.provider = nettrace::kSampleProvider;
  event.type = &sample_type;
  const std::uint64_t stack[] = {kRoot};
  event.stack = stack;
  event.thread_id = 11;
  builder_.OnEvent(event);
  const Profile profile = Finish();
  EXPECT_EQ(profile.undecodable_events, 2u);
  EXPECT_EQ(profile.cost.samples, 1u);
  EXPECT_EQ(profile.frames, 1u);
}

TEST_F(ProfileBuilderTest, TreeIsInPreorderWithTheHeaviestChildFirst) {
  trace_.SessionStart();
  LoadMethods();
  trace_.Sample(11, {kLeaf, kRoot}, TestTrace::Weighted(1));
  trace_.Sample(11, {kOther, kRoot}, TestTrace::Weighted(9));
  trace_.Sample(11, {kRoot, kOther, kRoot}, TestTrace::Weighted(2));
  const Profile profile = Finish();
  std::vector<std::string> order;
  std::vector<std::uint32_t> parents;
  for (const ProfileNode& node : profile.NodesOf(profile.threads[0])) {
    order.push_back(node.frame == kNoFrame ? "" : profile.frame_table[node.frame].name.substr(5, 4));
    parents.push_back(node.parent);
  }
  EXPECT_EQ(order, (std::vector<std::string>{"", "Root", "Othe", "Root", "Leaf"}));
  EXPECT_EQ(parents, (std::vector<std::uint32_t>{0, 0, 1, 2, 1}));
  EXPECT_EQ(profile.nodes[1].total.weight, 12u);
}

TEST_F(ProfileBuilderTest, ThreadNamesOfTheStreamAreMadeValidText) {
  builder_.OnThreadName(11, "a\xff");
  trace_.Sample(11, {kRoot});
  EXPECT_EQ(Finish().threads[0].name, "a\xef\xbf\xbd");
}

TEST_F(ProfileBuilderTest, EmptyTraceIsAnEmptyProfile) {
  const Profile profile = Finish();
  EXPECT_TRUE(profile.threads.empty());
  EXPECT_TRUE(profile.nodes.empty());
  EXPECT_EQ(profile.duration_ns, 0u);
}

}  // namespace
}  // namespace stackpipe
