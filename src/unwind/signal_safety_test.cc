// SPDX-License-Identifier: MIT
//
// Step in signal handlers: it allocates nothing, takes no lock, asks the loader nothing, and uses little
// stack.
//
// Proves: A2
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>

#include "base/handler_watch.h"
#include "unwind/native_unwinder.h"
#include "unwind/unwind_test_util.h"

namespace stackpipe {
namespace {

using testing::calls_in_handler;
using testing::CurrentStack;
using testing::RegistersOf;

volatile bool in_step = false;
const NativeUnwinder* unwinder = nullptr;
StackBounds stack_bounds;
std::size_t frame_count = 0;
StopReason stop_reason = StopReason::kNotWalked;

void WalkHere(const void* ucontext) {
  Registers regs = RegistersOf(ucontext);
  bool is_caller = false;
  StepHint hint;
  frame_count = 1;
  while (unwinder->Step(&regs, &is_caller, stack_bounds, &stop_reason, &hint)) ++frame_count;
}

class SignalSafetyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(unwinder_.Refresh(true).ok());
    unwinder = &unwinder_;
    stack_bounds = CurrentStack();
    stop_reason = StopReason::kNotWalked;
    calls_in_handler = 0;
    testing::watched_handler_runs = [] { return bool{in_step}; };
  }
  void TearDown() override { signal(SIGUSR1, SIG_DFL); }

  static void SetHandler(void (*handler)(int, siginfo_t*, void*), int flags = 0) {
    struct sigaction action = {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | flags;
    ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  }

  NativeUnwinder unwinder_;
};

TEST_F(SignalSafetyTest, CallsNothingThatLocksOrAllocates) {
  SetHandler([](int, siginfo_t*, void* context) {
    in_step = true;
    WalkHere(context);
    in_step = false;
  });
  // From below a callback of libc's, so that all kinds of rules are used.
  int numbers[] = {2, 1};
  qsort(numbers, 2, sizeof numbers[0], [](const void*, const void*) {
    raise(SIGUSR1);
    return 0;
  });
  EXPECT_EQ(stop_reason, StopReason::kComplete);
  EXPECT_GT(frame_count, 5u);
  EXPECT_EQ(calls_in_handler, 0);

  // That the trap works.
  in_step = true;
  void* volatile block = malloc(1);
  free(block);
  in_step = false;
  EXPECT_EQ(calls_in_handler, 2);
}

TEST_F(SignalSafetyTest, KeepsErrno) {
  SetHandler([](int, siginfo_t*, void* context) { WalkHere(context); });
  errno = 12345;
  raise(SIGUSR1);
  EXPECT_EQ(errno, 12345);
}

// How much of a painted alternate stack a handler used.
std::size_t StackUse(void (*handler)(int, siginfo_t*, void*)) {
  constexpr std::size_t kSize = 1 << 18;
  static char* block =
      static_cast<char*>(mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  stack_t stack = {};
  stack.ss_sp = block;
  stack.ss_size = kSize;
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGUSR1, &action, nullptr);
  // Twice: the first time may bind symbols.
  std::size_t used = 0;
  for (int round = 0; round < 2; ++round) {
    memset(block, 0x5a, kSize);
    raise(SIGUSR1);
    used = kSize;
    for (const char* at = block; *at == 0x5a; ++at) --used;
  }
  stack.ss_flags = SS_DISABLE;
  sigaltstack(&stack, nullptr);
  return used;
}

TEST_F(SignalSafetyTest, UsesLittleStack) {
  const std::size_t floor = StackUse([](int, siginfo_t*, void*) {});
  const std::size_t with_walk = StackUse([](int, siginfo_t*, void* context) { WalkHere(context); });
  EXPECT_EQ(stop_reason, StopReason::kComplete);
  std::printf("stack used by a handler that walks: %zu bytes above an empty handler's\n", with_walk - floor);
  EXPECT_GT(with_walk, floor);
  EXPECT_LT(with_walk, floor + 1024);
}

}  // namespace
}  // namespace stackpipe
