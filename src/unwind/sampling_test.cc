// SPDX-License-Identifier: MIT
//
// Threads that are interrupted by timers wherever they are, as in real sampling: in callbacks of qsort,
// std::sort, printf, malloc, the loader's resolver, while exceptions fly. Nearly every walk must reach the
// thread's start.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "unwind/native_unwinder.h"
#include "unwind/unwind_test_util.h"

namespace stackpipe {
namespace {

using testing::CurrentStack;
using testing::RegistersOf;

// ThreadSanitizer calls handlers late, with the registers of the interruption but on a stack that has moved
// on: then this only shows that a walk of such a stack does no harm.
constexpr bool kContextsAreTrue = !testing::kThreadSanitized;

// What a thread's handler has seen. One for each thread.
struct ThreadSamples {
  static constexpr std::size_t kKept = 64;
  struct Incomplete {
    std::uint64_t leaf, last;
    StopReason reason;
    std::size_t frames;
  };

  StackBounds bounds;
  std::atomic<std::size_t> samples{0};  // the rest is read when the thread is through
  std::size_t complete = 0;
  std::size_t without_work = 0;  // complete, but the function that works is not on the stack
  std::array<Incomplete, kKept> incomplete;
};

const NativeUnwinder* unwinder = nullptr;
thread_local ThreadSamples* samples = nullptr;
std::uint64_t work_start = 0, work_end = 0;

void OnSample(int, siginfo_t*, void* ucontext) {
  const int saved_errno = errno;
  ThreadSamples* to = samples;
  Registers regs = RegistersOf(ucontext);
  const std::uint64_t leaf = regs.pc;
  bool is_caller = false;
  bool at_work = false;
  StopReason reason = StopReason::kNotWalked;
  StepHint hint;
  std::size_t frames = 1;
  do {
    at_work = at_work || (regs.pc >= work_start && regs.pc <= work_end);
    ++frames;
  } while (unwinder->Step(&regs, &is_caller, to->bounds, &reason, &hint));
  if (reason == StopReason::kComplete) {
    ++to->complete;
    to->without_work += !at_work;
  } else {
    to->incomplete[(to->samples - to->complete) % ThreadSamples::kKept] = {leaf, regs.pc, reason, frames};
  }
  ++to->samples;
  errno = saved_errno;
}

int CompareInts(const void* a, const void* b) {
  return *static_cast<const int*>(a) - *static_cast<const int*>(b);
}

__attribute__((noinline)) void ThrowDeep(int depth) {
  if (depth == 0) throw std::runtime_error("deep");
  std::string on_each_level = std::to_string(depth);
  ThrowDeep(depth - 1);
  asm volatile("" : : "r"(&on_each_level));
}

__attribute__((noinline)) std::size_t Work(const std::atomic<bool>& done) {
  std::size_t rounds = 0;
  while (!done.load()) {
    int numbers[200];
    for (int i = 0; i < 200; ++i) numbers[i] = i * 37 % 200;
    qsort(numbers, 200, sizeof numbers[0], CompareInts);
    std::vector<std::string> words;
    for (int i = 0; i < 50; ++i)
      words.push_back(std::to_string(i * 7919 % 1000) + " and more than fits inside");
    std::sort(words.begin(), words.end());
    char text[100];
    for (int i = 0; i < 50; ++i) snprintf(text, sizeof text, "%d %s %x", i, words[0].c_str(), i);
    void* blocks[50];
    for (std::size_t i = 0; i < 50; ++i) blocks[i] = malloc(i * 100);
    for (void* block : blocks) free(block);
    timespec now;
    for (int i = 0; i < 50; ++i) clock_gettime(CLOCK_MONOTONIC, &now);
    for (int i = 0; i < 50; ++i) syscall(SYS_getppid);
    ++rounds;
  }
  return rounds;
}

__attribute__((noinline)) std::size_t WorkWithExceptions(const std::atomic<bool>& done) {
  std::size_t rounds = 0;
  while (!done.load()) {
    try {
      ThrowDeep(20);
    } catch (const std::runtime_error&) {
      ++rounds;
    }
  }
  return rounds;
}

using Workload = std::size_t (*)(const std::atomic<bool>& done);

// Below all work. It has no part elsewhere, as functions with landing pads may.
__attribute__((noinline)) std::size_t CallWork(Workload work, const std::atomic<bool>& done) {
  const std::size_t rounds = work(done);
  asm volatile("");
  return rounds;
}

class SamplingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(unwinder_.Refresh(true).ok());
    unwinder = &unwinder_;
    struct sigaction action = {};
    action.sa_sigaction = OnSample;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    ASSERT_EQ(sigaction(SIGPROF, &action, nullptr), 0);
  }
  void TearDown() override { signal(SIGPROF, SIG_IGN); }

  // Runs `work` on some threads, each of which is sampled at about `hz`, until all have enough samples.
  void Sample(Workload work, int hz, std::size_t samples_each) {
    NativeSymbol symbol;
    ASSERT_TRUE(unwinder_.Symbolize(reinterpret_cast<std::uintptr_t>(&CallWork), &symbol));
    work_start = symbol.function_start;
    work_end = symbol.function_end;
    std::atomic<bool> done{false};
    std::array<ThreadSamples, 3> all;
    std::vector<std::thread> threads;
    for (ThreadSamples& own : all) threads.emplace_back([&] { RunSampled(work, done, hz, &own); });
    const auto has_enough = [&](const ThreadSamples& thread) {
      return thread.samples.load() >= samples_each;
    };
    while (!std::all_of(all.begin(), all.end(), has_enough))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    done = true;
    for (std::thread& thread : threads) thread.join();
    Evaluate(all);
  }

  static void RunSampled(Workload work, const std::atomic<bool>& done, int hz, ThreadSamples* own) {
    own->bounds = CurrentStack();
    samples = own;
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGPROF;
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    timer_t timer;
    ASSERT_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    itimerspec interval = {};
    interval.it_interval.tv_nsec = interval.it_value.tv_nsec = 1'000'000'000 / hz;
    ASSERT_EQ(timer_settime(timer, 0, &interval, nullptr), 0);
    EXPECT_GT(CallWork(work, done), 0u);
    timer_delete(timer);
  }

  void Evaluate(const std::array<ThreadSamples, 3>& all) {
    std::size_t total = 0, complete = 0;
    std::map<std::string, std::size_t> why;
    for (const ThreadSamples& thread : all) {
      total += thread.samples;
      complete += thread.complete;
      // Some come before and after the work.
      if (kContextsAreTrue) {
        EXPECT_LE(thread.without_work, 3 + thread.samples / 1000);
      }
      const std::size_t incomplete = thread.samples - thread.complete;
      for (std::size_t i = 0; i < std::min(incomplete, ThreadSamples::kKept); ++i) {
        const auto& sample = thread.incomplete[i];
        NativeSymbol at;
        unwinder_.Symbolize(sample.last, &at);
        ++why["reason " + std::to_string(static_cast<int>(sample.reason)) + " after " +
              std::to_string(sample.frames) + " frames in " + at.function + " of " + at.object_path + "+" +
              std::to_string(sample.last - at.object_start)];
      }
    }
    std::printf("%zu samples, %zu complete\n", total, complete);
    for (const auto& [text, count] : why) std::printf("  %zu: %s\n", count, text.c_str());
    total_ = total;
    complete_ = complete;
  }

  NativeUnwinder unwinder_;
  std::size_t total_ = 0, complete_ = 0;
};

TEST_F(SamplingTest, ReachesTheThreadsStart) {
  Sample(Work, 2000, 500);
  if (kContextsAreTrue) {
    EXPECT_GE(complete_ * 1000, total_ * 999);
  }
}

TEST_F(SamplingTest, WhileExceptionsFly) {
  Sample(WorkWithExceptions, 2000, 300);
  // Not all: where libgcc jumps to a landing pad, no CFI says how the stack stands (single_step_test.cc).
  if (kContextsAreTrue) {
    EXPECT_GE(complete_ * 1000, total_ * 980);
  }
}

}  // namespace
}  // namespace stackpipe
