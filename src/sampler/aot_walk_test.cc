// SPDX-License-Identifier: MIT
//
// AOT images in a walk: who walks their frames, what is noted of them.
//
// Proves: A4, A6
#include <gtest/gtest.h>
#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aot/aot_file.h"
#include "aot/aot_images.h"
#include "aot/aot_test_source.h"
#include "platform/port.h"
#include "sampler/sampler.h"
#include "sampler/walk.h"

namespace stackpipe {
namespace {

using testing::ImageAt;
using testing::TestSource;

constexpr std::uint64_t kRuntimeFrame = 0x1234;

struct Taken {
  std::vector<std::uint64_t> pcs;
  WalkResult result;
  int handed_over = 0;
  std::uint64_t inner_pc = 0;
};

class AotWalkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(native_.Refresh(true).ok());
    walker_.ready = [](void*) { return true; };
    walker_.walk = [](void*, FrameBuffer* frames, void* data) {
      ++static_cast<Taken*>(data)->handed_over;
      frames->Add(kRuntimeFrame);
    };
    walker_.data = &taken_;
  }

  // Walks from where it is called, on a thread whose runtime could be asked at any moment.
  __attribute__((noinline)) void Inner() {
    ucontext_t context;
    getcontext(&context);
    std::uint64_t pcs[256];
    FrameBuffer frames(pcs, 256);
    taken_.inner_pc = port::RegistersOf(&context).pc;
    taken_.result = Walk(&context, port::CurrentThreadStack(), code_, images_, native_, &walker_, &frames);
    const std::size_t count = frames.Finish();
    taken_.pcs.assign(pcs, pcs + count);
  }
  __attribute__((noinline)) const Taken& Outer() {
    taken_ = {};
    Inner();
    return taken_;
  }
  // Where Inner is.
  std::uint64_t InnerPc() { return Outer().inner_pc; }

  // The methods that were noted, by name.
  std::vector<std::string> SeenNames() {
    std::vector<AotHit> seen;
    images_.TakeSeen(&seen);
    std::vector<std::string> names;
    for (const AotHit& hit : seen) {
      AotName name;
      EXPECT_TRUE(images_.Describe(hit.image, hit.method, &name));
      names.push_back(name.name);
    }
    return names;
  }
  static bool HasPart(const std::vector<std::string>& names, const std::string& part) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return name.find(part) != std::string::npos; });
  }

  CodeMap code_;
  AotImages images_{code_};
  NativeUnwinder native_;
  RuntimeWalker walker_;
  Taken taken_;
};

// This program is an image as good as any.
TEST_F(AotWalkTest, FramesOfAnImageAreWalkedByCallFrameInformation) {
  Result<AotImageRegistration> image = OpenLoadedAotFile(InnerPc());
  ASSERT_TRUE(image.ok()) << image.status().context();
  ASSERT_TRUE(images_.RegisterImage(std::move(image.value())).ok());
  const Taken& taken = Outer();
  EXPECT_EQ(taken.handed_over, 0);
  EXPECT_EQ(taken.result.state, SampleState::kManaged);
  EXPECT_EQ(taken.result.stop, StopReason::kComplete);
  EXPECT_EQ(taken.result.native_frames, taken.pcs.size());
  const std::vector<std::string> seen = SeenNames();
  ASSERT_GE(seen.size(), 3u);
  EXPECT_NE(seen[0].find("AotWalkTest::Inner()"), std::string::npos) << seen[0];
  EXPECT_NE(seen[1].find("AotWalkTest::Outer()"), std::string::npos) << seen[1];
  EXPECT_TRUE(HasPart(seen, "main"));
}

TEST_F(AotWalkTest, APrecompiledMethodThatARuntimeRegisteredIsItsWalkersToWalk) {
  const std::uint64_t pc = InnerPc();
  ASSERT_TRUE(code_.Register({.start = pc - 8, .size = 64, .kind = CodeKind::kAot, .name = "f"}).ok());
  const Taken& taken = Outer();
  EXPECT_EQ(taken.handed_over, 1);
  EXPECT_EQ(taken.result.native_frames, 0u);
  EXPECT_EQ(taken.pcs, std::vector<std::uint64_t>{kRuntimeFrame});
}

TEST_F(AotWalkTest, CodeOfAnImageWithoutCallFrameInformationIsTheRuntimesToWalk) {
  const std::uint64_t pc = InnerPc();
  NativeUnwinder nothing;  // it has no tables yet
  ASSERT_TRUE(
      images_
          .RegisterImage(ImageAt(
              pc - 8, 64, std::make_unique<TestSource>("m", std::vector<testing::TestMethod>{{0, 64}})))
          .ok());
  ucontext_t context;
  getcontext(&context);
  Registers regs = port::RegistersOf(&context);
  regs.pc = pc;
  port::SetRegisters(&context, regs);
  std::uint64_t pcs[16];
  FrameBuffer frames(pcs, 16);
  Walk(&context, port::CurrentThreadStack(), code_, images_, nothing, &walker_, &frames);
  EXPECT_EQ(taken_.handed_over, 1);
}

TEST_F(AotWalkTest, StubsOfAnImageAreNoFrames) {
  class Stub : public TestSource {
   public:
    using TestSource::TestSource;
    bool Decode(std::uint32_t method, AotCode* out) const noexcept override {
      const bool good = TestSource::Decode(method, out);
      out->kind = CodeKind::kTrampoline;
      return good;
    }
  };
  const std::uint64_t pc = InnerPc();
  const std::size_t depth = Outer().pcs.size();
  ASSERT_TRUE(images_
                  .RegisterImage(ImageAt(
                      pc - 8, 64, std::make_unique<Stub>("s", std::vector<testing::TestMethod>{{0, 64}})))
                  .ok());
  const Taken& taken = Outer();
  EXPECT_EQ(taken.inner_pc, pc);
  EXPECT_EQ(taken.result.state, SampleState::kExternal);
  EXPECT_EQ(taken.pcs.size(), depth - 1);
  EXPECT_EQ(std::count(taken.pcs.begin(), taken.pcs.end(), pc), 0);
}

// Code between methods is walked, and has no name.
TEST_F(AotWalkTest, CodeOfNoMethodIsWalkedAndNotNoted) {
  const std::uint64_t pc = InnerPc();
  ASSERT_TRUE(
      images_
          .RegisterImage(ImageAt(pc - 8, 64,
                                 std::make_unique<TestSource>("m", std::vector<testing::TestMethod>{{0, 4}})))
          .ok());
  const Taken& taken = Outer();
  EXPECT_EQ(taken.handed_over, 0);
  EXPECT_EQ(taken.result.state, SampleState::kExternal);
  EXPECT_EQ(taken.result.stop, StopReason::kComplete);
  EXPECT_EQ(std::count(taken.pcs.begin(), taken.pcs.end(), pc), 1);
  EXPECT_TRUE(SeenNames().empty());
}

volatile unsigned sink = 0;
__attribute__((noinline)) void Work() {
  for (unsigned i = 0; i < 1'000'000; ++i) sink = sink * 31 + i;
}

// What a runtime's walker adds may be of an image, too.
TEST_F(AotWalkTest, FramesOfTheRuntimesWalkerAreDecodedInTheHandler) {
  constexpr std::uintptr_t kBase = 0x7000'0000'0000;
  ASSERT_TRUE(images_
                  .RegisterImage(
                      ImageAt(kBase, 3200, std::make_unique<TestSource>("m", testing::MethodsWithGaps(100))))
                  .ok());
  const auto start = reinterpret_cast<std::uintptr_t>(&Work);
  ASSERT_TRUE(code_.Register({.start = start, .size = 64, .kind = CodeKind::kJit, .name = "Work"}).ok());
  walker_.walk = [](void*, FrameBuffer* frames, void*) {
    frames->Add(kBase + 32 + 5);
    frames->Add(kBase + 64 + 20);  // in no method
    frames->Add(kBase + 96);
  };
  Sampler sampler({.period_ns = 1'000'000}, code_, images_, native_);
  ASSERT_TRUE(sampler.Start().ok());
  ASSERT_TRUE(sampler.RegisterCurrentThread(&walker_).ok());
  std::vector<std::string> seen;
  const std::uint64_t end = port::NowNs() + 60'000'000'000;
  while (seen.empty() && port::NowNs() < end) {
    Work();
    seen = SeenNames();
  }
  sampler.Stop();
  EXPECT_EQ(seen, (std::vector<std::string>{"m1", "m3"}));
}

}  // namespace
}  // namespace stackpipe
