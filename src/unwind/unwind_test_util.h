// SPDX-License-Identifier: MIT
//
// For the tests of this folder: walks of the test's own stacks, by our unwinder and by the compiler's.
#ifndef STACKPIPE_UNWIND_UNWIND_TEST_UTIL_H_
#define STACKPIPE_UNWIND_UNWIND_TEST_UTIL_H_

#include <pthread.h>
#include <ucontext.h>
#include <unwind.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "unwind/native_unwinder.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACKPIPE_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define STACKPIPE_TEST_SANITIZED 1
#endif
#endif
#ifndef STACKPIPE_TEST_SANITIZED
#define STACKPIPE_TEST_SANITIZED 0
#endif

namespace stackpipe::testing {

inline StackBounds CurrentStack() {
  pthread_attr_t attributes;
  void* low = nullptr;
  std::size_t size = 0;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &low, &size);
  pthread_attr_destroy(&attributes);
  return {reinterpret_cast<std::uintptr_t>(low), reinterpret_cast<std::uintptr_t>(low) + size};
}

inline Registers RegistersOf(const void* ucontext) {
  const auto& gregs = static_cast<const ucontext_t*>(ucontext)->uc_mcontext.gregs;
  const auto reg = [&](int index) { return static_cast<std::uint64_t>(gregs[index]); };
  return {reg(REG_RIP), reg(REG_RSP), reg(REG_RBP), reg(REG_RBX),
          reg(REG_R12), reg(REG_R13), reg(REG_R14), reg(REG_R15)};
}

struct WalkOutcome {
  std::vector<std::uint64_t> pcs;  // the leaf's, then return addresses (interrupted pcs as they are)
  StopReason reason = StopReason::kNotWalked;
};

inline WalkOutcome WalkFrom(const NativeUnwinder& unwinder, Registers regs, const StackBounds& bounds) {
  WalkOutcome outcome;
  bool is_caller = false;
  for (int i = 0; i < 1'000'000; ++i) {
    outcome.pcs.push_back(regs.pc);
    if (!unwinder.Step(&regs, &is_caller, bounds, &outcome.reason)) return outcome;
  }
  outcome.reason = StopReason::kDepth;
  return outcome;
}

// One stack, walked by us and by the compiler's runtime (libgcc), which parses the CFI at each step.
struct TwoWalks {
  WalkOutcome ours;
  std::vector<std::uint64_t> reference;
};

// Walks from here on. The first pc of each lies in this function; all that follow must be the same.
__attribute__((noinline)) inline TwoWalks WalkBothWays(const NativeUnwinder& unwinder) {
  TwoWalks walks;
  const auto visit = [](_Unwind_Context* context, void* list) {
    const std::uint64_t pc = _Unwind_GetIP(context);
    if (pc != 0) static_cast<std::vector<std::uint64_t>*>(list)->push_back(pc);
    return _URC_NO_REASON;
  };
  _Unwind_Backtrace(visit, &walks.reference);
  ucontext_t context;
  getcontext(&context);
  walks.ours = WalkFrom(unwinder, RegistersOf(&context), CurrentStack());
  return walks;
}

}  // namespace stackpipe::testing

#endif  // STACKPIPE_UNWIND_UNWIND_TEST_UTIL_H_
