// SPDX-License-Identifier: MIT
//
// Walks of real stacks, frame by frame beside libgcc's unwinder; and of stacks that are not what their CFI
// says.
#include <gtest/gtest.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "unwind/native_unwinder.h"
#include "unwind/step.h"
#include "unwind/testdata/shapes.h"
#include "unwind/unwind_test_util.h"

// Each of these has CFI that is right as far as it goes. What they are called with decides what the stack
// holds.
asm(R"(
  .text

  # void unwind_test_with_bp(void (*callback)(void*), void* context, uint64_t bp)
  # Calls back with rbp = bp, and says that the frame is found by rbp.
  .globl unwind_test_with_bp
  .type unwind_test_with_bp, @function
unwind_test_with_bp:
  .cfi_startproc
  push %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  mov %rdx, %rbp
  .cfi_def_cfa %rbp, 16
  mov %rdi, %rax
  mov %rsi, %rdi
  call *%rax
  .globl unwind_test_with_bp_return
unwind_test_with_bp_return:
  pop %rbp
  .cfi_def_cfa %rsp, 8
  ret
  .cfi_endproc
  .size unwind_test_with_bp, . - unwind_test_with_bp

  # void unwind_test_last_call(void (*callback)(void*), void* context)
  # Its last instruction is the call, which must not return. Without padding follows:
  # void unwind_test_first_instruction(): stops at its first instruction with SIGILL.
  .globl unwind_test_last_call
  .type unwind_test_last_call, @function
unwind_test_last_call:
  .cfi_startproc
  sub $56, %rsp
  .cfi_def_cfa_offset 64
  mov %rdi, %rax
  mov %rsi, %rdi
  call *%rax
  .cfi_endproc
  .size unwind_test_last_call, . - unwind_test_last_call
  .globl unwind_test_first_instruction
  .type unwind_test_first_instruction, @function
unwind_test_first_instruction:
  .cfi_startproc
  ud2
  ret
  .cfi_endproc
  .size unwind_test_first_instruction, . - unwind_test_first_instruction
)");

extern "C" void unwind_test_with_bp(void (*callback)(void*), void* context, std::uint64_t bp);
extern "C" void unwind_test_with_bp_return();
extern "C" void unwind_test_last_call(void (*callback)(void*), void* context);
extern "C" void unwind_test_first_instruction();

namespace stackpipe {
namespace {

using testing::CurrentStack;
using testing::RegistersOf;
using testing::Shape;
using testing::ShapeList;
using testing::TwoWalks;
using testing::WalkBothWays;
using testing::WalkFrom;
using testing::WalkOutcome;

class WalkTest : public ::testing::Test {
 public:
  void SetUp() override {
    ASSERT_TRUE(unwinder_.Refresh(true).ok());
    // So that handlers need not allocate.
    walks_.reserve(16);
    CurrentStack();
  }

  // For callbacks: walks, and keeps the walks.
  static void Callback(void* context) {
    auto* test = static_cast<WalkTest*>(context);
    test->walks_.push_back(WalkBothWays(test->unwinder_));
  }

  void ExpectSameWalks() {
    EXPECT_FALSE(walks_.empty());
    for (const TwoWalks& walks : walks_) {
      EXPECT_EQ(walks.ours.reason, StopReason::kComplete);
      ASSERT_EQ(walks.ours.pcs.size(), walks.reference.size());
      for (std::size_t i = 1; i < walks.reference.size(); ++i) {
        ASSERT_EQ(walks.ours.pcs[i], walks.reference[i]) << "frame " << i;
      }
    }
    walks_.clear();
  }

  std::string NameOf(std::uint64_t pc) const {
    NativeSymbol symbol;
    return unwinder_.Symbolize(pc, &symbol) ? symbol.function : "";
  }

  NativeUnwinder unwinder_;
  std::vector<TwoWalks> walks_;
};

TEST_F(WalkTest, MainThread) {
  Callback(this);
  ExpectSameWalks();
}

TEST_F(WalkTest, OtherThread) {
  std::thread(Callback, this).join();
  ExpectSameWalks();
}

TEST_F(WalkTest, EveryShapeOfFrame) {
  for (const ShapeList& list :
       {testing::ShapesO0(), testing::ShapesO2(), testing::ShapesOs(), testing::ShapesFramePointer()}) {
    for (std::size_t i = 0; i < list.count; ++i) {
      SCOPED_TRACE(std::string(list.options) + " " + list.shapes[i].name);
      list.shapes[i].run(Callback, this);
      ExpectSameWalks();
    }
  }
}

TEST_F(WalkTest, ThroughCallbacksOfLibc) {
  static WalkTest* test;
  test = this;
  int numbers[] = {3, 1, 2};
  qsort(numbers, 3, sizeof numbers[0], [](const void* a, const void* b) {
    Callback(test);
    return *static_cast<const int*>(a) - *static_cast<const int*>(b);
  });
  ExpectSameWalks();
}

TEST_F(WalkTest, ThroughColdParts) {
  const ShapeList list = testing::ShapesO2();
  const auto* cold = std::find_if(list.shapes, list.shapes + list.count,
                                  [](const Shape& shape) { return std::string("ColdPart") == shape.name; });
  cold->run(Callback, this);
  bool found = false;
  for (const std::uint64_t pc : walks_.at(0).ours.pcs) {
    found = found || NameOf(pc - 1).find("[clone .cold]") != std::string::npos;
  }
  ExpectSameWalks();
#if defined(__GNUC__) && !defined(__clang__)
  EXPECT_TRUE(found);  // clang does not split functions
#endif
}

// Code without CFI: the walk says so at that frame, and what it has until there is right.
TEST_F(WalkTest, CodeWithoutTablesEndsTheWalk) {
  const ShapeList list = testing::ShapesNoTables();
  for (std::size_t i = 0; i < list.count; ++i) {
    list.shapes[i].run(Callback, this);
    ASSERT_FALSE(walks_.empty());
    for (const TwoWalks& walks : walks_) {
      EXPECT_EQ(walks.ours.reason, StopReason::kUnknownCode) << list.shapes[i].name;
      ASSERT_GE(walks.ours.pcs.size(), 3u);
      const std::string name = NameOf(walks.ours.pcs.back() - 1);
      EXPECT_NE(name.find("stackpipe::testing::"), std::string::npos) << name;
    }
    walks_.clear();
  }
}

__attribute__((noinline)) std::size_t CountFrames(const NativeUnwinder& unwinder) {
  ucontext_t context;
  getcontext(&context);
  const WalkOutcome walk = WalkFrom(unwinder, RegistersOf(&context), CurrentStack());
  EXPECT_EQ(walk.reason, StopReason::kComplete);
  return walk.pcs.size();
}

__attribute__((noinline)) std::size_t Deep(const NativeUnwinder& unwinder, int depth) {
  const std::size_t frames = depth == 0 ? CountFrames(unwinder) : Deep(unwinder, depth - 1);
  asm volatile("" : : : "memory");
  return frames;
}

TEST_F(WalkTest, DeepRecursion) {
  const std::size_t shallow = Deep(unwinder_, 0);
  EXPECT_EQ(Deep(unwinder_, 20000), shallow + 20000);
}

// ---- Signal frames
// ----------------------------------------------------------------------------------------------

void SetHandler(int signal, void (*handler)(int, siginfo_t*, void*), int flags = 0) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  ASSERT_EQ(sigaction(signal, &action, nullptr), 0);
}

class SignalWalkTest : public WalkTest {
 protected:
  void SetUp() override {
    WalkTest::SetUp();
    current_ = this;
  }
  static void Walk() { Callback(static_cast<WalkTest*>(current_)); }

  static SignalWalkTest* current_;
};
SignalWalkTest* SignalWalkTest::current_ = nullptr;

TEST_F(SignalWalkTest, HandlerInsideHandler) {
  SetHandler(SIGUSR1, [](int, siginfo_t*, void*) {
    raise(SIGUSR2);
    asm volatile("");
  });
  SetHandler(SIGUSR2, [](int, siginfo_t*, void*) { Walk(); });
  raise(SIGUSR1);
  ExpectSameWalks();
}

// The handler runs on a stack of its own: the walk shows its frames, and ends where they do.
TEST_F(SignalWalkTest, AlternateStackIsForeign) {
  static std::vector<char> block(1 << 18);
  static WalkOutcome inside;
  static WalkOutcome by_own_bounds;
  stack_t stack = {};
  stack.ss_sp = block.data();
  stack.ss_size = block.size();
  ASSERT_EQ(sigaltstack(&stack, nullptr), 0);
  SetHandler(
      SIGUSR1,
      [](int, siginfo_t*, void*) {
        ucontext_t context;
        getcontext(&context);
        const auto low = reinterpret_cast<std::uintptr_t>(block.data());
        // By the thread's bounds the handler's stack is foreign from the start.
        inside = WalkFrom(current_->unwinder_, RegistersOf(&context), CurrentStack());
        // By those of the alternate stack, the thread's is.
        by_own_bounds = WalkFrom(current_->unwinder_, RegistersOf(&context), {low, low + block.size()});
      },
      SA_ONSTACK);
  raise(SIGUSR1);
  stack.ss_flags = SS_DISABLE;
  sigaltstack(&stack, nullptr);
  EXPECT_EQ(inside.reason, StopReason::kForeignStack);
  EXPECT_EQ(inside.pcs.size(), 1u);
  EXPECT_TRUE(by_own_bounds.reason == StopReason::kForeignStack ||
              by_own_bounds.reason == StopReason::kNoProgress);
  ASSERT_GE(by_own_bounds.pcs.size(), 3u);  // the handler, the trampoline and what it interrupted
}

// libunwind#1059, one side: the call is the last instruction, so the return address is the next function's.
TEST_F(SignalWalkTest, ReturnAddressBehindTheFunction) {
  static jmp_buf back;
  if (setjmp(back) == 0) {
    unwind_test_last_call(
        [](void* context) {
          Callback(context);
          longjmp(back, 1);
        },
        static_cast<WalkTest*>(this));
  }
  const auto next = reinterpret_cast<std::uint64_t>(&unwind_test_first_instruction);
  const auto& pcs = walks_.at(0).ours.pcs;
  EXPECT_NE(std::find(pcs.begin(), pcs.end(), next), pcs.end());
  ExpectSameWalks();
}

// The other side: interrupted at a function's first instruction, whose pc must not be taken for a return
// address.
TEST_F(SignalWalkTest, InterruptedAtTheFirstInstruction) {
  SetHandler(SIGILL, [](int, siginfo_t*, void* context) {
    Walk();
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP] += 2;
  });
  unwind_test_first_instruction();
  signal(SIGILL, SIG_DFL);
  const auto start = reinterpret_cast<std::uint64_t>(&unwind_test_first_instruction);
  const auto& pcs = walks_.at(0).ours.pcs;
  EXPECT_NE(std::find(pcs.begin(), pcs.end(), start), pcs.end());
  ExpectSameWalks();
}

// ---- Stacks that lie: libunwind#581, tikv#9765
// --------------------------------------------------------------------

class LyingStackTest : public WalkTest {
 protected:
  WalkOutcome WalkWithBp(std::uint64_t bp) {
    outcome_ = WalkOutcome();
    unwind_test_with_bp(
        [](void* context) {
          auto* test = static_cast<LyingStackTest*>(context);
          ucontext_t here;
          getcontext(&here);
          test->outcome_ = WalkFrom(test->unwinder_, RegistersOf(&here), test->stack_);
        },
        this, bp);
    return outcome_;
  }

  StackBounds stack_ = CurrentStack();
  WalkOutcome outcome_;
};

TEST_F(LyingStackTest, BpThatPointsNowhere) {
  for (const std::uint64_t bp :
       {std::uint64_t{0}, std::uint64_t{8}, std::uint64_t{0xdead0000}, std::uint64_t{0x7fffffffe000},
        std::uint64_t{0xffff888000000000}, ~std::uint64_t{0}, ~std::uint64_t{7}, ~std::uint64_t{15},
        std::uint64_t{stack_.low - 24}, std::uint64_t{stack_.high - 8}, std::uint64_t{stack_.high}}) {
    EXPECT_EQ(WalkWithBp(bp).reason, StopReason::kBadMemory) << std::hex << bp;
    EXPECT_EQ(outcome_.pcs.back(), reinterpret_cast<std::uint64_t>(&unwind_test_with_bp_return));
  }
}

TEST_F(LyingStackTest, BpThatIsNotAligned) {
  std::uint64_t words[4] = {};
  EXPECT_EQ(WalkWithBp(reinterpret_cast<std::uint64_t>(words) + 1).reason, StopReason::kBadMemory);
}

// The lowest words of the stack, below all frames.
TEST_F(LyingStackTest, BpBelowTheFrame) {
  const auto here = reinterpret_cast<std::uint64_t>(__builtin_frame_address(0));
  EXPECT_EQ(WalkWithBp((here - 65536) & ~std::uint64_t{7}).reason, StopReason::kNoProgress);
}

TEST_F(LyingStackTest, BpThatPointsToItself) {
  std::uint64_t words[2];
  words[0] = reinterpret_cast<std::uint64_t>(words);
  words[1] = reinterpret_cast<std::uint64_t>(&unwind_test_with_bp_return);
  EXPECT_EQ(WalkWithBp(words[0]).reason, StopReason::kNoProgress);
}

TEST_F(LyingStackTest, BpThatGoesInACircle) {
  std::uint64_t words[6];
  words[0] = reinterpret_cast<std::uint64_t>(words + 2);
  words[2] = reinterpret_cast<std::uint64_t>(words + 4);
  words[4] = reinterpret_cast<std::uint64_t>(words);
  words[1] = words[3] = words[5] = reinterpret_cast<std::uint64_t>(&unwind_test_with_bp_return);
  EXPECT_EQ(WalkWithBp(words[2] - 32).reason, StopReason::kNoProgress);
}

TEST_F(LyingStackTest, ReturnAddressThatIsNoCode) {
  std::uint64_t words[2] = {0, reinterpret_cast<std::uint64_t>(this)};
  EXPECT_EQ(WalkWithBp(reinterpret_cast<std::uint64_t>(words)).reason, StopReason::kUnknownCode);
  words[1] = 0x1234567812345678;
  EXPECT_EQ(WalkWithBp(reinterpret_cast<std::uint64_t>(words)).reason, StopReason::kUnknownCode);
  words[1] = 0;
  EXPECT_EQ(WalkWithBp(reinterpret_cast<std::uint64_t>(words)).reason, StopReason::kComplete);
}

TEST_F(LyingStackTest, RandomBpEndsWithAReason) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    // Half of them on the stack.
    const std::uint64_t bp = i % 2 == 0 ? random() : stack_.high - random() % 65536;
    WalkWithBp(bp);
    ASSERT_NE(outcome_.reason, StopReason::kNotWalked);
    ASSERT_LT(outcome_.pcs.size(), 10000u);
  }
}

// Random registers at real code: nothing outside the bounds may be read, or this crashes.
TEST_F(LyingStackTest, RandomRegistersEndWithAReason) {
  Callback(this);
  const testing::PcList code = walks_.at(0).ours.pcs;
  std::mt19937_64 random(4);
  const auto anything = [&]() -> std::uint64_t {
    switch (random() % 3) {
      case 0:
        return random();
      case 1:
        return stack_.high - 8 * (random() % 1000);
      default:
        return stack_.low + 8 * (random() % 1000) - 4000;
    }
  };
  // The lower part of the stack may not be mapped yet: bounds that are.
  std::vector<std::uint64_t> block(2000);
  for (std::uint64_t& word : block) word = random() % 2 == 0 ? anything() : code[random() % code.size()];
  stack_ = {reinterpret_cast<std::uintptr_t>(block.data()),
            reinterpret_cast<std::uintptr_t>(block.data() + 2000)};
  for (int i = 0; i < 200000; ++i) {
    const Registers regs = {code[random() % code.size()] - random() % 64,
                            anything(),
                            anything(),
                            anything(),
                            anything(),
                            anything(),
                            anything(),
                            anything()};
    const WalkOutcome outcome = WalkFrom(unwinder_, regs, stack_);
    ASSERT_LT(outcome.pcs.size(), 2001u);
  }
}

TEST_F(LyingStackTest, StepThatFailsChangesNothing) {
  ucontext_t context;
  getcontext(&context);
  const Registers regs = RegistersOf(&context);
  for (const StackBounds& bounds :
       {StackBounds{0, 0}, StackBounds{regs.sp, regs.sp}, StackBounds{regs.sp, regs.sp + 4},
        StackBounds{regs.sp + 8, stack_.high}, StackBounds{stack_.low, regs.sp}}) {
    for (const bool caller : {false, true}) {
      Registers after = regs;
      bool is_caller = caller;
      StopReason reason = StopReason::kNotWalked;
      EXPECT_FALSE(unwinder_.Step(&after, &is_caller, bounds, &reason));
      EXPECT_EQ(std::memcmp(&after, &regs, sizeof regs), 0);
      EXPECT_EQ(is_caller, caller);
      EXPECT_TRUE(reason == StopReason::kForeignStack || reason == StopReason::kBadMemory);
    }
  }
}

// ---- One step by a table made by hand
// ----------------------------------------------------------------------------

// A table of one stretch of code, [0x1000, 0x2000).
CfiTable OneRow(const CfiShape& shape, std::uint32_t number, std::vector<CfiExtendedRule> extended) {
  return CfiTable({{0x1000, {(1u << CfiRow::kNumberBits) | number}}, {0x2000, {0}}}, {CfiShape(), shape},
                  std::move(extended));
}

// A saved register's slot may lie below the stack's bounds though the CFA lies inside.
TEST(StepByTableTest, SlotsBelowTheStackAreNotRead) {
  std::vector<std::uint64_t> words(64, 0x1111);
  const auto at = [&](std::size_t i) { return reinterpret_cast<std::uint64_t>(&words[i]); };
  CfiShape shape;
  shape.kind = CfiShape::Kind::kPlain;
  shape.saved[0] = -8;
  shape.depth = 64;
  const CfiTable table = OneRow(shape, 2, {});
  for (const bool inside : {true, false}) {
    // CFA = sp + 16 = words 34; rbp's slot is word 26.
    const StackBounds bounds = {at(inside ? 26 : 27), at(64)};
    Registers regs;
    regs.pc = 0x1000;
    regs.sp = at(32);
    bool is_caller = false;
    StopReason reason = StopReason::kNotWalked;
    EXPECT_EQ(StepByTable(table.View(0), regs.pc, bounds, &regs, &is_caller, &reason), inside);
    EXPECT_EQ(reason, inside ? StopReason::kNotWalked : StopReason::kBadMemory);
  }
}

// The same for rules that are not plain: neither outside nor at an address that is not a word's.
TEST(StepByTableTest, ExtendedRulesReadWordsOfTheStackOnly) {
  std::vector<std::uint64_t> words(64, 0x1111);
  const auto at = [&](std::size_t i) { return reinterpret_cast<std::uint64_t>(&words[i]); };
  CfiShape shape;
  shape.kind = CfiShape::Kind::kExtended;
  CfiExtendedRule rule;
  rule.cfa_offset = 64;
  rule.return_address.kind = CfiLocation::Kind::kAtRegister;
  rule.return_address.base = kRegBx;
  const CfiTable table = OneRow(shape, 0, {rule});
  const auto step = [&](std::uint64_t bx) {
    Registers regs;
    regs.pc = 0x1000;
    regs.sp = at(16);
    regs.bx = bx;
    bool is_caller = false;
    StopReason reason = StopReason::kNotWalked;
    const StackBounds bounds = {at(8), at(56)};
    if (StepByTable(table.View(0), regs.pc, bounds, &regs, &is_caller, &reason))
      return StopReason::kNotWalked;
    return reason;
  };
  EXPECT_EQ(step(at(8)), StopReason::kNotWalked);
  EXPECT_EQ(step(at(55)), StopReason::kNotWalked);
  EXPECT_EQ(step(at(7)), StopReason::kBadMemory);
  EXPECT_EQ(step(at(56)), StopReason::kBadMemory);
  EXPECT_EQ(step(at(20) + 4), StopReason::kBadMemory);
  EXPECT_EQ(step(0), StopReason::kBadMemory);
  EXPECT_EQ(step(~std::uint64_t{7}), StopReason::kBadMemory);
}

}  // namespace
}  // namespace stackpipe
