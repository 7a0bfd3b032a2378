// SPDX-License-Identifier: MIT
//
// Walks at every single instruction. The processor's trap flag raises SIGTRAP after each instruction; the
// handler keeps a shadow stack of return addresses by watching call instructions and sp, and compares each
// walk with it: in prologues and epilogues, PLT entries, the lazy resolver, hand-written assembly of libc,
// and everything else that runs.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "unwind/native_unwinder.h"
#include "unwind/testdata/shapes.h"
#include "unwind/unwind_test_util.h"

// void unwind_test_trap_on(), void unwind_test_trap_off(): set and clear the trap flag. The first trap comes
// after the instruction behind popfq, so back in the caller.
asm(R"(
  .text
  .type unwind_test_trap_on, @function
unwind_test_trap_on:
  .cfi_startproc
  pushfq
  .cfi_adjust_cfa_offset 8
  orq $0x100, (%rsp)
  popfq
  .cfi_adjust_cfa_offset -8
  ret
  .cfi_endproc
  .size unwind_test_trap_on, . - unwind_test_trap_on
  .type unwind_test_trap_off, @function
unwind_test_trap_off:
  .cfi_startproc
  pushfq
  .cfi_adjust_cfa_offset 8
  andq $~0x100, (%rsp)
  popfq
  .cfi_adjust_cfa_offset -8
  ret
  .cfi_endproc
  .size unwind_test_trap_off, . - unwind_test_trap_off
)");
extern "C" void unwind_test_trap_on();
extern "C" void unwind_test_trap_off();

namespace stackpipe {
namespace {

using testing::CurrentStack;
using testing::PcList;
using testing::RegistersOf;
using testing::ShapeList;
using testing::TwoWalks;

struct ShadowEntry {
  std::uint64_t slot;  // where the return address lies
  std::uint64_t return_address;
};

// Only touched by the stepped thread's handler while it steps.
struct Stepping {
  static constexpr std::size_t kDepthMax = 256;
  static constexpr std::size_t kFailuresMax = 10000;

  void Clear() {
    callers = PcList();
    depth = instructions = calls = complete = ended_early = failure_count = 0;
  }

  struct Failure {
    std::uint64_t pc;
    std::size_t frame;  // the first that differs
    std::uint64_t is, should;
  };

  const NativeUnwinder* unwinder = nullptr;
  StackBounds bounds;
  PcList callers;  // return addresses of the function that begins the stepping, by libgcc
  ShadowEntry shadow[kDepthMax];
  std::size_t depth = 0;
  std::uint64_t previous_pc = 0;
  std::uint64_t previous_sp = 0;

  std::size_t instructions = 0;
  std::size_t calls = 0;
  std::size_t complete = 0, ended_early = 0;
  std::size_t failure_count = 0;
  Failure failures[kFailuresMax];
};
Stepping* stepping = nullptr;
Stepping& TheStepping() {
  static Stepping state;
  return state;
}

bool IsCall(std::uint64_t pc) {
  const auto* code = reinterpret_cast<const std::uint8_t*>(pc);
  for (int i = 0; i < 4; ++i, ++code) {
    if (*code == 0xe8) return true;
    if (*code == 0xff) return (code[1] >> 3 & 7) == 2;
    const bool is_prefix = *code == 0x66 || *code == 0x67 || *code == 0x2e || *code == 0x3e ||
                           *code == 0xf2 || *code == 0xf3 || (*code & 0xf0) == 0x40;
    if (!is_prefix) return false;
  }
  return false;
}

void CompareWithShadow(Stepping* state, const Registers& at) {
  Registers regs = at;
  bool is_caller = false;
  StopReason reason = StopReason::kNotWalked;
  StepHint hint;
  const std::size_t expected_count = state->depth + state->callers.size();
  const auto expected = [&](std::size_t frame) {
    return frame < state->depth ? state->shadow[state->depth - 1 - frame].return_address
                                : state->callers[frame - state->depth];
  };
  std::size_t frame = 0;
  while (state->unwinder->Step(&regs, &is_caller, state->bounds, &reason, &hint)) {
    if (frame == expected_count || regs.pc != expected(frame)) {
      if (state->failure_count < Stepping::kFailuresMax) {
        state->failures[state->failure_count] = {at.pc, frame, regs.pc,
                                                 frame < expected_count ? expected(frame) : 0};
      }
      ++state->failure_count;
      return;
    }
    ++frame;
  }
  if (frame == expected_count && reason == StopReason::kComplete) {
    ++state->complete;
  } else if (reason != StopReason::kComplete) {
    ++state->ended_early;
  } else {
    ++state->failure_count;  // pretends to be complete
  }
}

__attribute__((no_sanitize("address"))) void OnTrap(int, siginfo_t*, void* ucontext) {
  Stepping* state = stepping;
  const Registers regs = RegistersOf(ucontext);
  // Returned from, jumped or thrown out of.
  while (state->depth > 0 && state->shadow[state->depth - 1].slot < regs.sp) --state->depth;
  if (state->instructions > 0 && regs.sp == state->previous_sp - 8 && IsCall(state->previous_pc)) {
    const std::uint64_t pushed = *reinterpret_cast<const std::uint64_t*>(regs.sp);
    if (pushed - state->previous_pc < 16 && state->depth < Stepping::kDepthMax) {
      state->shadow[state->depth++] = {regs.sp, pushed};
      ++state->calls;
    }
  }
  // The unwinder of exceptions rewrites return addresses before it jumps.
  for (std::size_t i = 0; i < state->depth; ++i) {
    state->shadow[i].return_address = *reinterpret_cast<const std::uint64_t*>(state->shadow[i].slot);
  }
  ++state->instructions;
  state->previous_pc = regs.pc;
  state->previous_sp = regs.sp;
  CompareWithShadow(state, regs);
}

// The functions of `list` call this.
void Nothing(void*) { asm volatile(""); }

class SingleStepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::kThreadSanitized)
      GTEST_SKIP() << "ThreadSanitizer delivers SIGTRAP later, not after each instruction";
    ASSERT_TRUE(unwinder_.Refresh(true).ok());
    struct sigaction action = {};
    action.sa_sigaction = OnTrap;
    action.sa_flags = SA_SIGINFO;
    ASSERT_EQ(sigaction(SIGTRAP, &action, nullptr), 0);
  }
  void TearDown() override {
    signal(SIGTRAP, SIG_DFL);
    std::printf("%zu instructions: %zu walks complete, %zu ended early, %zu went wrong by wrong CFI\n",
                instructions_, complete_, ended_early_, wrong_cfi_);
  }

  // Runs `function` instruction by instruction.
  __attribute__((noinline, no_sanitize("address"))) void StepThrough(void (*function)(void*),
                                                                     void* argument) {
    state_.Clear();
    state_.unwinder = &unwinder_;
    state_.bounds = CurrentStack();
    const auto visit = [](_Unwind_Context* context, void* list) {
      if (_Unwind_GetIP(context) != 0) static_cast<PcList*>(list)->push_back(_Unwind_GetIP(context));
      return _URC_NO_REASON;
    };
    PcList here;
    _Unwind_Backtrace(visit, &here);
    for (std::size_t i = 1; i < here.size(); ++i) state_.callers.push_back(here[i]);
    stepping = &state_;
    unwind_test_trap_on();
    function(argument);
    unwind_test_trap_off();
  }

  // __mpn_mul_1, by which printf and strtod convert numbers, pushes two registers and does not say so in its
  // CFI.
  static bool HasWrongCfi(const NativeSymbol& function) {
    static const char kMultiply[] = "\x53\x55\x48\x8d\x1a\x48\xf7\xdb";
    return function.object_path.find("libc.so.6") != std::string::npos && function.function_start != 0 &&
           memcmp(reinterpret_cast<const char*>(function.function_start), kMultiply, sizeof kMultiply - 1) ==
               0;
  }

  // While libgcc moves a thrown exception to its landing pad, it has the pad for a return address already,
  // but not yet the pad's stack: for some instructions there is no true answer.
  static bool IsLanding(const NativeSymbol& function, std::size_t frame) {
    return function.object_path.find("libgcc_s.so.1") != std::string::npos && frame > 0;
  }

  void ExpectNoFailure(std::size_t ended_early_max = 0) {
    std::size_t wrong_cfi = 0;
    std::size_t shown = 0;
    for (std::size_t i = 0; i < std::min(state_.failure_count, Stepping::kFailuresMax); ++i) {
      const auto& failure = state_.failures[i];
      NativeSymbol symbol;
      unwinder_.Symbolize(failure.pc, &symbol);
      if (HasWrongCfi(symbol) || IsLanding(symbol, failure.frame)) {
        ++wrong_cfi;
      } else if (++shown <= 20) {
        ADD_FAILURE() << std::hex << "at 0x" << failure.pc << " " << symbol.function << "+0x"
                      << failure.pc - symbol.function_start << " (" << symbol.object_path << "+0x"
                      << failure.pc - symbol.object_start << "): frame " << std::dec << failure.frame
                      << " is 0x" << std::hex << failure.is << ", should be 0x" << failure.should;
      }
    }
    EXPECT_EQ(state_.failure_count - wrong_cfi, 0u) << "of " << state_.instructions;
    EXPECT_LE(wrong_cfi, state_.instructions / 100);
    EXPECT_LE(state_.ended_early, ended_early_max) << "of " << state_.instructions;
    instructions_ += state_.instructions;
    complete_ += state_.complete;
    ended_early_ += state_.ended_early;
    wrong_cfi_ += wrong_cfi;
  }

  NativeUnwinder unwinder_;
  Stepping& state_ = TheStepping();
  std::size_t instructions_ = 0, complete_ = 0, ended_early_ = 0, wrong_cfi_ = 0;
};

TEST_F(SingleStepTest, EveryShapeOfFrame) {
  for (const ShapeList& list :
       {testing::ShapesO0(), testing::ShapesO2(), testing::ShapesOs(), testing::ShapesFramePointer()}) {
    for (std::size_t i = 0; i < list.count; ++i) {
      if (std::string(list.shapes[i].name) == "Exception") continue;  // has a test of its own
      SCOPED_TRACE(std::string(list.options) + " " + list.shapes[i].name);
      StepThrough([](void* shape) { static_cast<const testing::Shape*>(shape)->run(Nothing, nullptr); },
                  const_cast<testing::Shape*>(&list.shapes[i]));
      EXPECT_GT(state_.calls, 1u);
      EXPECT_GT(state_.instructions, 10u);
      // Prologues and epilogues of realigned frames have the CFA in r10.
      ExpectNoFailure(std::string(list.shapes[i].name) == "RealignedWithAlloca" ? 30 : 0);
    }
  }
}

// The first call goes through the PLT to the loader's resolver, the second straight on.
TEST_F(SingleStepTest, LazyBinding) {
  static volatile std::size_t result;
  const auto call = [](void* text) { result = strcspn(static_cast<const char*>(text), "z"); };
  char text[] = "abcz";
  StepThrough(call, text);
  const std::size_t first = state_.instructions;
  EXPECT_EQ(result, 3u);
  ExpectNoFailure();
  StepThrough(call, text);
  ExpectNoFailure();
  // Programs that are bound when they start take no longer way.
  std::printf("first call: %zu instructions, second: %zu\n", first, state_.instructions);
}

TEST_F(SingleStepTest, Libc) {
  StepThrough(
      [](void*) {
        char text[200];
        snprintf(text, sizeof text, "%d %s %.17g %Lg %p", 42, "text", 0.1, 1e300L, static_cast<void*>(text));
        volatile double number = strtod("1.25e-7", nullptr);
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        struct tm parts;
        gmtime_r(&now.tv_sec, &parts);
        strftime(text, sizeof text, "%A %c", &parts);
        int numbers[50];
        for (int i = 0; i < 50; ++i) numbers[i] = i * 37 % 50;
        qsort(numbers, 50, sizeof numbers[0], [](const void* a, const void* b) {
          return *static_cast<const int*>(a) - *static_cast<const int*>(b);
        });
        void* block = malloc(100000);
        memset(block, static_cast<int>(number), 100000);
        block = realloc(block, 300000);
        free(block);
        getenv("PATH");
      },
      nullptr);
  EXPECT_GT(state_.instructions, 5000u);
  ExpectNoFailure();
}

TEST_F(SingleStepTest, Libstdcxx) {
  StepThrough(
      [](void*) {
        std::vector<std::string> words;
        for (int i = 0; i < 20; ++i)
          words.push_back(std::to_string(i * 7919 % 1000) + " is a longer text than fits");
        std::sort(words.begin(), words.end());
        std::stable_sort(words.rbegin(), words.rend());
      },
      nullptr);
  EXPECT_GT(state_.instructions, 5000u);
  ExpectNoFailure();
}

TEST_F(SingleStepTest, Exceptions) {
  const ShapeList list = testing::ShapesO2();
  const auto* shape = std::find_if(
      list.shapes, list.shapes + list.count,
      [](const testing::Shape& candidate) { return std::string("Exception") == candidate.name; });
  StepThrough([](void* exception) { static_cast<const testing::Shape*>(exception)->run(Nothing, nullptr); },
              const_cast<testing::Shape*>(shape));
  EXPECT_GT(state_.instructions, 5000u);
  ExpectNoFailure(10);  // landings
}

}  // namespace
}  // namespace stackpipe
