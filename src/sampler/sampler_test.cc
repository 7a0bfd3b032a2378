// SPDX-License-Identifier: MIT
#include "sampler/sampler.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace stackpipe {
namespace {

using namespace std::chrono_literals;

volatile unsigned sink = 0;

// Uses the CPU for `cpu_ns` of the calling thread.
__attribute__((noinline)) void Spin(std::uint64_t cpu_ns) {
  const std::uint64_t end = port::ClockNs(CLOCK_THREAD_CPUTIME_ID) + cpu_ns;
  while (port::ClockNs(CLOCK_THREAD_CPUTIME_ID) < end) {
    for (unsigned i = 0; i < 1000; ++i) sink = sink * 31 + i;
  }
}

// Works until `done` says so; gives up after a time that no machine needs, so that a check fails and does not
// hang.
template <typename Done>
void SpinUntil(Done done) {
  const std::uint64_t end = port::NowNs() + 20'000'000'000;
  while (!done() && port::NowNs() < end) Spin(1'000'000);
}

class SamplerTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(native_.Refresh(true).ok());
    ASSERT_TRUE(sampler_.Start().ok());
  }

  // What is in the ring of the only record, copied out.
  std::vector<RawSample> Take() {
    std::vector<RawSample> all;
    for (ThreadRecord* record : sampler_.Records()) {
      Ring::Cursor cursor = record->ring.Begin();
      std::size_t size = 0;
      while (const std::byte* bytes = record->ring.Peek(&cursor, &size)) {
        all.push_back(*reinterpret_cast<const RawSample*>(bytes));
        record->ring.Next(&cursor);
      }
      record->ring.Pop(cursor);
    }
    return all;
  }

  CodeMap code_;
  AotImages images_{code_};
  NativeUnwinder native_;
  Sampler sampler_{SamplerOptions{.period_ns = 1'000'000, .ring_bytes = 4 << 20}, code_, images_, native_};
};

TEST_F(SamplerTest, CountsEachTickOfARunningThread) {
  ASSERT_TRUE(sampler_.RegisterCurrentThread(nullptr).ok());
  SpinUntil([this] { return sampler_.Records()[0]->expected.load() >= 200; });
  sampler_.Stop();
  const std::vector<RawSample> samples = Take();
  ASSERT_GT(samples.size(), 5u);
  std::uint64_t ticks = 0;
  std::uint64_t complete = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    ticks += samples[i].ticks;
    complete += samples[i].stop == StopReason::kComplete;
    EXPECT_EQ(samples[i].state, SampleState::kExternal);
    if (i == 0) continue;
    EXPECT_GT(samples[i].time_ns, samples[i - 1].time_ns);
    EXPECT_GE(samples[i].cpu_ns, samples[i - 1].cpu_ns);
  }
  const ThreadRecord* record = sampler_.Records()[0];
  EXPECT_EQ(ticks, record->expected.load());
  EXPECT_EQ(record->ring_full.load(), 0u);
  EXPECT_GE((complete + 1) * 100, samples.size() * 99);  // few samples, on a busy machine
  EXPECT_GT(samples.back().cpu_ns, samples.front().cpu_ns);
}

TEST_F(SamplerTest, CountsTicksThatFindNoRoom) {
  Sampler::AfterForkInChild();  // the fixture's sampler makes way
  Sampler tight(SamplerOptions{.period_ns = 1'000'000, .ring_bytes = 4096}, code_, images_, native_);
  ASSERT_TRUE(tight.Start().ok());
  ASSERT_TRUE(tight.RegisterCurrentThread(nullptr).ok());
  SpinUntil([&tight] { return tight.Records()[0]->ring_full.load() > 0; });
  tight.Stop();
  ThreadRecord* record = tight.Records()[0];
  std::uint64_t in_ring = 0;
  Ring::Cursor cursor = record->ring.Begin();
  std::size_t size = 0;
  while (const std::byte* bytes = record->ring.Peek(&cursor, &size)) {
    in_ring += reinterpret_cast<const RawSample*>(bytes)->ticks;
    record->ring.Next(&cursor);
  }
  EXPECT_GT(record->ring_full.load(), 0u);
  EXPECT_EQ(record->expected.load(), in_ring + record->ring_full.load());
}

TEST_F(SamplerTest, LeavesASleepingThreadAloneAndFindsItAgain) {
  std::uint64_t while_asleep = 0;
  std::thread([&] {
    ASSERT_TRUE(sampler_.RegisterCurrentThread(nullptr).ok());
    ThreadRecord* record = sampler_.Records()[0];
    Spin(20'000'000);
    // The first tick in a sleep may come late.
    while (!record->asleep) std::this_thread::sleep_for(50ms);
    std::this_thread::sleep_for(50ms);
    const std::uint64_t before = record->expected.load();
    std::this_thread::sleep_for(300ms);
    while_asleep = record->expected.load() - before;
    const std::uint64_t slept = record->expected.load();
    SpinUntil([&] { return record->expected.load() >= slept + 20; });
    sampler_.UnregisterCurrentThread();
  }).join();
  sampler_.Stop();
  EXPECT_LE(while_asleep, 3u) << "300 ticks of a timer that would not stop";
  bool slept = false, woke = false;
  std::uint64_t after = 0;
  for (const RawSample& sample : Take()) {
    if ((sample.flags & RawSample::kOffCpu) != 0) slept = true;
    if (slept && (sample.flags & RawSample::kWoke) != 0) woke = true;
    after += woke;
  }
  EXPECT_TRUE(slept);
  EXPECT_TRUE(woke);
  EXPECT_GT(after, 1u);
}

TEST_F(SamplerTest, AThreadThatEndsLeavesAnEndMarkAndItsRecord) {
  for (int i = 0; i < 50; ++i) {
    std::thread([&] {
      ASSERT_TRUE(sampler_.RegisterCurrentThread(nullptr).ok());
      Spin(1'000'000);
      sampler_.UnregisterCurrentThread();
    }).join();
    const std::vector<RawSample> samples = Take();
    ASSERT_FALSE(samples.empty());
    EXPECT_EQ(samples.back().flags, RawSample::kThreadEnd);
    for (ThreadRecord* record : sampler_.Records()) {
      EXPECT_EQ(record->state.load(), ThreadRecord::State::kEnded);
      sampler_.Release(record);
    }
  }
  EXPECT_EQ(sampler_.Records().size(), 1u) << "a free record is used again";
}

TEST_F(SamplerTest, KeepsErrno) {
  ASSERT_TRUE(sampler_.RegisterCurrentThread(nullptr).ok());
  const std::uint64_t end = port::NowNs() + 100'000'000;
  while (port::NowNs() < end) {
    errno = 4711;
    for (unsigned i = 0; i < 10000; ++i) sink = sink + i;
    ASSERT_EQ(errno, 4711);
  }
  sampler_.Stop();
  EXPECT_FALSE(Take().empty());
}

int foreign_signals = 0;

TEST(SamplerSignalTest, PassesForeignSignalsOnAndPutsTheDispositionBack) {
  struct sigaction mine {};
  mine.sa_handler = [](int) { ++foreign_signals; };
  struct sigaction original {};
  sigaction(SIGPROF, &mine, &original);
  CodeMap code;
  AotImages images(code);
  NativeUnwinder native;
  {
    Sampler sampler({}, code, images, native);
    ASSERT_TRUE(sampler.Start().ok());
    ASSERT_TRUE(sampler.RegisterCurrentThread(nullptr).ok());
    raise(SIGPROF);
    EXPECT_EQ(foreign_signals, 1);
    // A timer of the program's own, with a value that looks like an index.
    port::ThreadTimer timer;
    ASSERT_TRUE(
        timer.Create(CLOCK_MONOTONIC, port::CurrentTid(), SIGPROF, reinterpret_cast<void*>(std::uintptr_t{2}))
            .ok());
    // Again and again: ThreadSanitizer holds signals back, and keeps but one of a number.
    timer.Arm(1'300'000, 1'300'000);
    const std::uint64_t end = port::NowNs() + 2'000'000'000;
    while (foreign_signals < 2 && port::NowNs() < end) sink = sink + 1;
    EXPECT_GE(foreign_signals, 2);
    timer.Delete();
  }
  struct sigaction now {};
  sigaction(SIGPROF, &original, &now);
  EXPECT_EQ(now.sa_handler, mine.sa_handler);
}

TEST_F(SamplerTest, OneSamplerAtATime) {
  Sampler second({}, code_, images_, native_);
  EXPECT_EQ(second.Start().code(), StatusCode::kLimit);
}

TEST_F(SamplerTest, AForkedChildIsNotSampled) {
  ASSERT_TRUE(sampler_.RegisterCurrentThread(nullptr).ok());
  Spin(10'000'000);
  const pid_t child = fork();
  if (child == 0) {
    const ThreadRecord* record = sampler_.Records()[0];
    const std::uint64_t before = record->expected.load();
    Spin(50'000'000);
    _exit(record->expected.load() == before ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace stackpipe
