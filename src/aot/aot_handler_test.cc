// SPDX-License-Identifier: MIT
//
// Decode in signal handlers: it calls nothing that locks or allocates, and it may be interrupted by itself at
// any instruction.
//
// Proves: A2, A7
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "aot/aot_images.h"
#include "aot/aot_test_source.h"
#include "base/handler_watch.h"

// Set and clear the processor's trap flag: SIGTRAP comes after each instruction from the caller's next one
// on.
asm(R"(
  .text
  .type aot_test_trap_on, @function
aot_test_trap_on:
  pushfq
  orq $0x100, (%rsp)
  popfq
  ret
  .size aot_test_trap_on, . - aot_test_trap_on
  .type aot_test_trap_off, @function
aot_test_trap_off:
  pushfq
  andq $~0x100, (%rsp)
  popfq
  ret
  .size aot_test_trap_off, . - aot_test_trap_off
)");
extern "C" void aot_test_trap_on();
extern "C" void aot_test_trap_off();

namespace stackpipe {
namespace {

using testing::calls_in_handler;
using testing::ImageAt;
using testing::MethodsWithGaps;
using testing::TestSource;

constexpr std::uintptr_t kBase = 0x7000'0000'0000;
constexpr std::uint32_t kMethods = 5000;

volatile bool handler_runs = false;

// What the handler uses.
AotImages* images = nullptr;
volatile std::uint32_t handlers = 0;
volatile std::uint32_t wrong = 0;

void OnTimer(int) {
  const int saved_errno = errno;
  handler_runs = true;
  // Each run meets methods for the first time, and some again.
  for (std::uint32_t i = 0; i < 20; ++i) {
    const std::uint32_t method = (handlers * 13 + i * 97) % kMethods;
    AotHit hit;
    if (images->Decode(kBase + method * 32 + 5, &hit) != AotResult::kFound || hit.method != method)
      wrong = wrong + 1;
    if (images->Decode(kBase + method * 32 + 20, &hit) != AotResult::kNoMethod) wrong = wrong + 1;
  }
  handlers = handlers + 1;
  handler_runs = false;
  errno = saved_errno;
}

volatile unsigned sink = 0;

// Works in malloc, free and locks until so many handlers have run.
void WorkUnderTimer(std::uint32_t count) {
  struct sigaction action {};
  action.sa_handler = OnTimer;
  action.sa_flags = SA_RESTART;
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGPROF, &action, &before), 0);
  handlers = 0;
  testing::watched_handler_runs = [] { return bool{handler_runs}; };
  const itimerval each = {{0, 1000}, {0, 1000}};
  ASSERT_EQ(setitimer(ITIMER_PROF, &each, nullptr), 0);
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  while (handlers < count) {
    std::string text(10 + sink % 500, 'x');
    pthread_mutex_lock(&mutex);
    sink = sink + static_cast<unsigned>(text[5]);
    pthread_mutex_unlock(&mutex);
  }
  const itimerval never = {};
  ASSERT_EQ(setitimer(ITIMER_PROF, &never, nullptr), 0);
  sigaction(SIGPROF, &before, nullptr);
}

// Does what a decoder must not do.
class LockingSource : public TestSource {
 public:
  using TestSource::TestSource;
  bool Decode(std::uint32_t method, AotCode* out) const noexcept override {
    void* volatile block = std::malloc(10);
    std::free(block);
    return TestSource::Decode(method, out);
  }
};

TEST(AotHandlerTest, TheWatchSeesADecoderThatAllocates) {
  CodeMap code;
  AotImages with_bad_source(code);
  images = &with_bad_source;
  auto source = std::make_unique<LockingSource>("m", MethodsWithGaps(kMethods));
  ASSERT_TRUE(with_bad_source.RegisterImage(ImageAt(kBase, kMethods * 32, std::move(source))).ok());
  calls_in_handler = 0;
  WorkUnderTimer(3);
  EXPECT_GT(calls_in_handler, 0);
}

TEST(AotHandlerTest, DecodeAllocatesAndLocksNothing) {
  CodeMap code;
  AotImages good(code, {.cached_methods_max = 300});  // the arena gets full, too
  images = &good;
  auto source = std::make_unique<TestSource>("m", MethodsWithGaps(kMethods));
  ASSERT_TRUE(good.RegisterImage(ImageAt(kBase, kMethods * 32, std::move(source))).ok());
  calls_in_handler = 0;
  wrong = 0;
  WorkUnderTimer(60);
  EXPECT_EQ(calls_in_handler, 0);
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(good.stats().cached_methods, 300u);
  EXPECT_GT(good.stats().uncached, 0u);
}

// The steps of one Decode: after instruction number `at`, the trap's handler decodes `nested` in the middle
// of it.
struct Interruption {
  std::uint32_t at = 0;
  std::uint32_t nested = 0;
  std::uint32_t count = 0;  // instructions so far
  std::uint32_t failures = 0;
};
Interruption* interruption = nullptr;

void OnTrap(int, siginfo_t*, void* context) {
  if (interruption->count++ != interruption->at) return;
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~0x100;  // the rest at full speed
  AotHit hit;
  const bool good = images->Decode(kBase + interruption->nested * 32, &hit) == AotResult::kFound &&
                    hit.method == interruption->nested && hit.size == 16;
  if (!good) ++interruption->failures;
}

TEST(AotHandlerTest, DecodeMayInterruptItselfAtAnyInstruction) {  // Proves: A8
  struct sigaction action {};
  action.sa_sigaction = OnTrap;
  action.sa_flags = SA_SIGINFO;
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGTRAP, &action, &before), 0);
  // The same method; another one of its bucket (70 methods have 3); one of another bucket.
  for (const std::uint32_t nested : {10u, 13u, 11u}) {
    bool passed_the_end = false;
    std::uint32_t at = 0;
    for (; !passed_the_end; ++at) {
      CodeMap code;
      AotImages stepped(code);
      images = &stepped;
      auto source = std::make_unique<TestSource>("m", MethodsWithGaps(70));
      const TestSource* watched = source.get();
      ASSERT_TRUE(stepped.RegisterImage(ImageAt(kBase, 70 * 32, std::move(source))).ok());
      Interruption step{.at = at, .nested = nested};
      interruption = &step;
      AotHit hit;
      aot_test_trap_on();
      const AotResult result = stepped.Decode(kBase + 10 * 32 + 1, &hit);
      aot_test_trap_off();
      passed_the_end = step.count <= at;
      ASSERT_EQ(result, AotResult::kFound);
      ASSERT_EQ(hit.method, 10u);
      ASSERT_EQ(hit.size, 16u);
      ASSERT_EQ(step.failures, 0u) << at;
      if (passed_the_end) break;
      // Each of the methods has one item, and is found in the cache from now on.
      const std::size_t distinct = nested == 10 ? 1 : 2;
      ASSERT_EQ(stepped.stats().cached_methods, distinct) << at;
      std::vector<AotHit> seen;
      stepped.TakeSeen(&seen);
      ASSERT_EQ(seen.size(), distinct);
      const std::uint32_t decodes = watched->decodes.load();
      ASSERT_EQ(stepped.Decode(kBase + 10 * 32, &hit), AotResult::kFound);
      ASSERT_EQ(stepped.Decode(kBase + nested * 32, &hit), AotResult::kFound);
      ASSERT_EQ(watched->decodes.load(), decodes) << at;
      ASSERT_EQ(stepped.stats().uncached, 0u);
    }
    EXPECT_GT(at, 100u);
  }
  sigaction(SIGTRAP, &before, nullptr);
}

}  // namespace
}  // namespace stackpipe
