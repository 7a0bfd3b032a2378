// SPDX-License-Identifier: MIT
//
// A native program with registered code of its own, recorded and read back.
#include "stackpipe/session.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "platform/port.h"
#include "session/progress_block.h"
#include "session/read_back.h"

namespace stackpipe {
namespace {

using testing::ReadBack;

volatile unsigned sink = 0;

__attribute__((noinline)) void Spin(std::uint64_t cpu_ns) {
  const std::uint64_t end = port::ClockNs(CLOCK_THREAD_CPUTIME_ID) + cpu_ns;
  while (port::ClockNs(CLOCK_THREAD_CPUTIME_ID) < end) {
    for (unsigned i = 0; i < 1000; ++i) sink = sink * 31 + i;
  }
}

class SessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/stackpipe-session-XXXXXX";
    directory_ = mkdtemp(name);
    options_.output_path = directory_ + "/t.nettrace";
    options_.progress_path = directory_ + "/progress";
  }
  void TearDown() override {
    if (progress_ != nullptr) munmap(const_cast<ProgressBlock*>(progress_), sizeof *progress_);
    unlink(options_.output_path.c_str());
    unlink(options_.progress_path.c_str());
    rmdir(directory_.c_str());
  }
  std::unique_ptr<Session> Start() {
    Result<std::unique_ptr<Session>> session = Session::Start(options_);
    EXPECT_TRUE(session.ok()) << session.status().context();
    return std::move(session.value());
  }

  bool SpinSleepSpin();

  // What the session shows while it runs.
  const ProgressBlock& Progress() {
    if (progress_ == nullptr) {
      const int fd = open(options_.progress_path.c_str(), O_RDONLY);
      void* at = mmap(nullptr, sizeof(ProgressBlock), PROT_READ, MAP_SHARED, fd, 0);
      close(fd);
      EXPECT_NE(at, MAP_FAILED);
      progress_ = static_cast<const ProgressBlock*>(at);
    }
    return *progress_;
  }
  // Works until `done`; gives up after a time that no machine needs, so that a check fails and does not hang.
  template <typename Done>
  void SpinUntil(Done done) {
    const std::uint64_t end = port::NowNs() + 60'000'000'000;
    while (!done() && port::NowNs() < end) Spin(2'000'000);
  }
  void SpinForSamples(std::uint64_t count) {
    const std::uint64_t before = Progress().samples.load();
    SpinUntil([&] { return Progress().samples.load() >= before + count; });
  }

  std::string directory_;
  SessionOptions options_;
  const ProgressBlock* progress_ = nullptr;
};

void ExpectTotalsAddUp(const ReadBack& trace) {
  nettrace::Totals sum;
  for (const auto& [tid, totals] : trace.totals) {
    EXPECT_EQ(totals.expected, totals.recorded + totals.dropped + totals.suppressed);
    sum.expected += totals.expected;
    sum.recorded += totals.recorded;
  }
  EXPECT_EQ(trace.end.totals.expected, sum.expected);
  EXPECT_EQ(trace.end.totals.recorded, trace.samples.size());
}

TEST_F(SessionTest, CpuWeightsAddUpToTheCpuTime) {
  auto session = Start();
  std::uint64_t cpu = 0;
  std::int32_t tid = 0;
  std::thread([&] {
    ASSERT_TRUE(session->RegisterCurrentThread(nullptr).ok());
    const std::uint64_t begin = port::ClockNs(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < 4; ++i) {
      Spin(25'000'000);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    cpu = port::ClockNs(CLOCK_THREAD_CPUTIME_ID) - begin;
    tid = port::CurrentTid();
    session->UnregisterCurrentThread();
  }).join();
  session->End();
  const ReadBack trace(options_.output_path);
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  EXPECT_EQ(trace.summary.lost, 0u);
  EXPECT_NEAR(static_cast<double>(trace.WeightOf(static_cast<std::uint64_t>(tid))), static_cast<double>(cpu),
              2e6);
  EXPECT_TRUE(std::is_sorted(trace.times.begin(), trace.times.end()));
  ExpectTotalsAddUp(trace);
}

TEST_F(SessionTest, WallWeightsAddUpToTheTimeAndSleepGoesToTheStackThatSlept) {
  options_.mode = SampleMode::kWall;
  bool undisturbed = false;
  for (int attempt = 0; attempt < 10 && !undisturbed; ++attempt) undisturbed = SpinSleepSpin();
  if (!undisturbed)
    std::printf("others used the processor in ten attempts: the time awake was not checked\n");
}

// False: the thread had the processor for less than four fifths of the time that it was awake.
bool SessionTest::SpinSleepSpin() {
  unlink(options_.output_path.c_str());
  auto session = Start();
  std::uint64_t wall = 0, slept = 0, cpu = 0;
  std::int32_t tid = 0;
  std::thread([&] {
    EXPECT_TRUE(session->RegisterCurrentThread(nullptr).ok());
    const std::uint64_t begin = port::NowNs();
    Spin(30'000'000);
    slept = port::NowNs();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    slept = port::NowNs() - slept;
    Spin(30'000'000);
    wall = port::NowNs() - begin;
    cpu = port::ClockNs(CLOCK_THREAD_CPUTIME_ID);
    tid = port::CurrentTid();
    session->UnregisterCurrentThread();
  }).join();
  session->End();
  const ReadBack trace(options_.output_path);
  EXPECT_NEAR(static_cast<double>(trace.WeightOf(static_cast<std::uint64_t>(tid))), static_cast<double>(wall),
              3e6);
  std::uint64_t asleep = 0;
  for (const auto& sample : trace.samples) {
    if ((sample.flags & nettrace::kSampleOffCpu) != 0) asleep += sample.weight;
  }
  // Sleep is noticed at the first tick in it; a thread that has woken and waits for a processor still counts
  // as asleep.
  EXPECT_GE(asleep + 20'000'000, slept);
  ExpectTotalsAddUp(trace);
  if (cpu * 5 < (wall - slept) * 4) return false;
  EXPECT_GE(wall - asleep, cpu / 2);
  return true;
}

// Code that runs at one address under one name, goes, and is followed there by other code.
TEST_F(SessionTest, AnAddressThatIsUsedAgainHasTheNameOfItsTime) {
  auto session = Start();
  // The instructions of a counting loop: rdi times.
  constexpr unsigned char kLoop[] = {0x48, 0x89, 0xf8, 0x48, 0xff, 0xc8, 0x75, 0xfb, 0xc3};
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  std::memcpy(page, kLoop, sizeof kLoop);
  const auto run = reinterpret_cast<std::uint64_t (*)(std::uint64_t)>(page);
  ASSERT_TRUE(session->RegisterCurrentThread(nullptr).ok());
  std::vector<std::uint64_t> changes;
  for (int i = 0; i < 6; ++i) {
    const std::string name = "life" + std::to_string(i);
    const Result<CodeId> id = session->code().Register({.start = reinterpret_cast<std::uintptr_t>(page),
                                                        .size = sizeof kLoop,
                                                        .kind = CodeKind::kJit,
                                                        .name_space = "Test",
                                                        .name = name});
    ASSERT_TRUE(id.ok());
    changes.push_back(port::NowNs());
    const std::uint64_t before = Progress().samples.load();
    const std::uint64_t end = port::NowNs() + 60'000'000'000;
    while (Progress().samples.load() < before + 20 && port::NowNs() < end) run(1'000'000);
    session->RetireCode(id.value());
  }
  session->End();
  munmap(page, 4096);
  const ReadBack trace(options_.output_path);
  std::map<std::string, int> seen;
  for (const auto& sample : trace.samples) {
    const auto life = std::upper_bound(changes.begin(), changes.end(), sample.time) - changes.begin();
    for (const auto& frame : sample.frames) {
      if (frame.pc < reinterpret_cast<std::uintptr_t>(page) ||
          frame.pc >= reinterpret_cast<std::uintptr_t>(page) + 4096)
        continue;
      EXPECT_EQ(frame.name, "life" + std::to_string(life - 1));
      ++seen[frame.name];
    }
  }
  EXPECT_EQ(seen.size(), 6u);
}

// Proves: C2 C3 C4; test 18 of the list
TEST_F(SessionTest, NestedUnloadsKeepTheirOrderAndTheirFields) {
  auto session = Start();
  ModuleSnapshot outer{.id = 1, .path = "outer.dll"}, inner{.id = 2, .path = "inner.dll"};
  for (const LifecyclePhase phase : {LifecyclePhase::kLoading, LifecyclePhase::kLoaded}) {
    session->OnModule(phase, outer);
    session->OnModule(phase, inner);
  }
  session->OnModule(LifecyclePhase::kUnloading, outer);
  session->OnModule(LifecyclePhase::kUnloading, inner);
  session->OnModule(LifecyclePhase::kUnloaded, inner);
  session->OnModule(LifecyclePhase::kUnloaded, outer);
  session->End();
  const ReadBack trace(options_.output_path);
  const std::vector<std::string> expected = {
      "loading outer.dll",   "loading inner.dll",   "loaded outer.dll",   "loaded inner.dll",
      "unloading outer.dll", "unloading inner.dll", "unloaded inner.dll", "unloaded outer.dll"};
  EXPECT_EQ(trace.order, expected);
}

TEST_F(SessionTest, NamesNativeFrames) {
  auto session = Start();
  ASSERT_TRUE(session->RegisterCurrentThread(nullptr).ok());
  SpinForSamples(100);
  session->End();
  const ReadBack trace(options_.output_path);
  std::size_t to_main = 0;
  for (const auto& sample : trace.samples) {
    for (const auto& frame : sample.frames) to_main += frame.name == "main";
  }
  EXPECT_GT(to_main, 20u);
}

TEST_F(SessionTest, RefusesAFileThatIsThere) {
  close(open(options_.output_path.c_str(), O_CREAT | O_WRONLY, 0600));
  const Result<std::unique_ptr<Session>> session = Session::Start(options_);
  EXPECT_FALSE(session.ok());
  EXPECT_EQ(session.status().os_error(), EEXIST);
}

TEST_F(SessionTest, AFullDiskLosesSamplesAndSaysSo) {
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 8'000;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  auto session = Start();
  ASSERT_TRUE(session->RegisterCurrentThread(nullptr).ok());
  SpinUntil([this] { return Progress().write_error.load() != 0; });
  SpinUntil([this, seen = Progress().dropped.load()] { return Progress().dropped.load() > seen; });
  session->End();
  setrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(Progress().write_error.load(), static_cast<std::uint64_t>(EFBIG));
  EXPECT_GT(Progress().dropped.load(), 0u);
  EXPECT_EQ(Progress().ended.load(), 0u);
  const ReadBack trace(options_.output_path);
  EXPECT_EQ(trace.summary.status.code(), StatusCode::kTruncated);
  EXPECT_FALSE(trace.summary.complete);
}

TEST_F(SessionTest, AForkedChildIsInertAndTheParentGoesOn) {
  auto session = Start();
  ASSERT_TRUE(session->RegisterCurrentThread(nullptr).ok());
  const pid_t child = fork();
  if (child == 0) {
    Spin(20'000'000);
    session->End();  // must neither hang nor touch the parent's file
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  SpinForSamples(20);
  session->End();
  const ReadBack trace(options_.output_path);
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  EXPECT_GT(trace.samples.size(), 10u);
}

TEST_F(SessionTest, EndsByItselfAfterItsDuration) {
  options_.duration_ns = 100'000'000;
  auto session = Start();
  ASSERT_TRUE(session->RegisterCurrentThread(nullptr).ok());
  SpinUntil([this] { return Progress().ended.load() != 0; });
  session->End();
  const ReadBack trace(options_.output_path);
  EXPECT_TRUE(trace.summary.complete);
  EXPECT_GE(trace.end.duration_ns, 100'000'000u);
}

// Threads that live shortly, many of them: none is lost, none leaves anything behind.
TEST_F(SessionTest, ShortThreadsAreAllAccountedFor) {
  auto session = Start();
  std::vector<std::int32_t> tids;
  for (int i = 0; i < 200; ++i) {
    std::thread([&] {
      ASSERT_TRUE(session->RegisterCurrentThread(nullptr).ok());
      tids.push_back(port::CurrentTid());
      Spin(2'000'000);
      session->UnregisterCurrentThread();
    }).join();
  }
  session->End();
  const ReadBack trace(options_.output_path);
  for (const std::int32_t tid : tids) EXPECT_GT(trace.totals.count(tid), 0u);
  double weight = 0;
  for (const auto& sample : trace.samples) weight += static_cast<double>(sample.weight);
  EXPECT_GT(weight, 200 * 2e6 * 0.7);
}

}  // namespace
}  // namespace stackpipe
