// SPDX-License-Identifier: MIT
//
// The unwinder on stacks of this process: basics. walk_test.cc has the hard cases.
#include "unwind/native_unwinder.h"

#include <execinfo.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <ucontext.h>

#include <string>
#include <thread>
#include <vector>

namespace stackpipe {
namespace {

StackBounds CurrentStack() {
  pthread_attr_t attributes;
  void* low = nullptr;
  std::size_t size = 0;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &low, &size);
  pthread_attr_destroy(&attributes);
  return {reinterpret_cast<std::uintptr_t>(low), reinterpret_cast<std::uintptr_t>(low) + size};
}

Registers RegistersOf(const ucontext_t& context) {
  const auto& gregs = context.uc_mcontext.gregs;
  const auto reg = [&](int index) { return static_cast<std::uint64_t>(gregs[index]); };
  return {reg(REG_RIP), reg(REG_RSP), reg(REG_RBP), reg(REG_RBX),
          reg(REG_R12), reg(REG_R13), reg(REG_R14), reg(REG_R15)};
}

struct WalkOutcome {
  std::vector<std::uint64_t> pcs;
  StopReason reason = StopReason::kNotWalked;
};

WalkOutcome WalkFrom(const NativeUnwinder& unwinder, Registers regs, const StackBounds& bounds) {
  WalkOutcome outcome;
  bool is_caller = false;
  for (int i = 0; i < 100000; ++i) {
    outcome.pcs.push_back(regs.pc);
    if (!unwinder.Step(&regs, &is_caller, bounds, &outcome.reason)) return outcome;
  }
  outcome.reason = StopReason::kDepth;
  return outcome;
}

// Walks from here, by our unwinder and by glibc's; the frames above this one must be the same.
__attribute__((noinline)) void CompareWithBacktrace(const NativeUnwinder& unwinder) {
  void* theirs[256];
  ucontext_t context;
  const int count = backtrace(theirs, 256);
  getcontext(&context);
  const WalkOutcome ours = WalkFrom(unwinder, RegistersOf(context), CurrentStack());
  EXPECT_EQ(ours.reason, StopReason::kComplete);
  ASSERT_EQ(ours.pcs.size(), static_cast<std::size_t>(count));
  for (std::size_t i = 1; i < ours.pcs.size(); ++i) {
    EXPECT_EQ(ours.pcs[i], reinterpret_cast<std::uint64_t>(theirs[i])) << i;
  }
}

TEST(NativeUnwinderTest, WalksMainThreadLikeBacktrace) {
  NativeUnwinder unwinder;
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  CompareWithBacktrace(unwinder);
}

TEST(NativeUnwinderTest, WalksOtherThreadLikeBacktrace) {
  NativeUnwinder unwinder;
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  std::thread([&] { CompareWithBacktrace(unwinder); }).join();
}

TEST(NativeUnwinderTest, KnowsNothingBeforeRefresh) {
  NativeUnwinder unwinder;
  EXPECT_TRUE(unwinder.Stale());
  ucontext_t context;
  getcontext(&context);
  EXPECT_EQ(WalkFrom(unwinder, RegistersOf(context), CurrentStack()).reason, StopReason::kUnknownCode);
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  EXPECT_FALSE(unwinder.Stale());
}

__attribute__((noinline)) void NamedFunction() { asm volatile(""); }

TEST(NativeUnwinderTest, NamesFunctions) {
  NativeUnwinder unwinder;
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  const auto pc = reinterpret_cast<std::uintptr_t>(&NamedFunction);
  NativeSymbol symbol;
  ASSERT_TRUE(unwinder.Symbolize(pc, &symbol));
  EXPECT_EQ(symbol.function, "stackpipe::(anonymous namespace)::NamedFunction()");
  EXPECT_EQ(symbol.function_start, pc);
  EXPECT_GT(symbol.function_end, pc);
  EXPECT_NE(symbol.object_path.find("native_unwinder_test"), std::string::npos);
  EXPECT_LE(symbol.object_start, pc);
  EXPECT_GT(symbol.object_end, pc);

  ASSERT_TRUE(unwinder.Symbolize(reinterpret_cast<std::uintptr_t>(&qsort), &symbol));
  EXPECT_EQ(symbol.function, "qsort");
  EXPECT_EQ(symbol.build_id_size, 20);
  EXPECT_NE(symbol.object_path.find("libc.so.6"), std::string::npos);

  int on_stack = 0;
  EXPECT_FALSE(unwinder.Symbolize(reinterpret_cast<std::uintptr_t>(&on_stack), &symbol));
}

}  // namespace
}  // namespace stackpipe
