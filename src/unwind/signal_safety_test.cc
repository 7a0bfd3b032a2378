// SPDX-License-Identifier: MIT
//
// Step in signal handlers: it allocates nothing, takes no lock, asks the loader nothing, and uses little
// stack.
//
// Proves: A2
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>

#include "unwind/native_unwinder.h"
#include "unwind/unwind_test_util.h"

namespace {

// Set while a handler is in Step. Plain variables: thread-local ones might allocate.
volatile bool in_step = false;
volatile int forbidden_calls = 0;

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static void Note() {
  if (in_step) forbidden_calls = forbidden_calls + 1;
}

// These take the place of libc's for the whole program.
extern "C" {
void* __libc_malloc(std::size_t size);
void __libc_free(void* block);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* block, std::size_t size);

void* malloc(std::size_t size) {
  Note();
  return __libc_malloc(size);
}
void free(void* block) {
  Note();
  __libc_free(block);
}
void* calloc(std::size_t count, std::size_t size) {
  Note();
  return __libc_calloc(count, size);
}
void* realloc(void* block, std::size_t size) {
  Note();
  return __libc_realloc(block, size);
}
int pthread_mutex_lock(pthread_mutex_t* mutex) {
  Note();
  static const auto next =
      reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  return next(mutex);
}
int dl_iterate_phdr(int (*callback)(dl_phdr_info*, std::size_t, void*), void* data) {
  Note();
  static const auto next = reinterpret_cast<decltype(&dl_iterate_phdr)>(dlsym(RTLD_NEXT, "dl_iterate_phdr"));
  return next(callback, data);
}
}
#endif

namespace stackpipe {
namespace {

using testing::CurrentStack;
using testing::RegistersOf;

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
    forbidden_calls = 0;
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
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers' own malloc and locks cannot be replaced";
#endif
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
  EXPECT_EQ(forbidden_calls, 0);

  // That the trap works.
  in_step = true;
  void* volatile block = malloc(1);
  free(block);
  in_step = false;
  EXPECT_EQ(forbidden_calls, 2);
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
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers' frames are larger";
#endif
  const std::size_t floor = StackUse([](int, siginfo_t*, void*) {});
  const std::size_t with_walk = StackUse([](int, siginfo_t*, void* context) { WalkHere(context); });
  EXPECT_EQ(stop_reason, StopReason::kComplete);
  std::printf("stack used by a handler that walks: %zu bytes above an empty handler's\n", with_walk - floor);
  EXPECT_GT(with_walk, floor);
  EXPECT_LT(with_walk, floor + 1024);
}

}  // namespace
}  // namespace stackpipe
