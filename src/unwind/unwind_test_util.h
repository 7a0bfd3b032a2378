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

#include "unwind/native_unwinder.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

namespace stackpipe::testing {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

// Of the calling thread. The first call on a thread must not be in a handler.
inline const StackBounds& CurrentStack() {
  thread_local const StackBounds bounds = [] {
    pthread_attr_t attributes;
    void* low = nullptr;
    std::size_t size = 0;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &low, &size);
    pthread_attr_destroy(&attributes);
    const auto start = reinterpret_cast<std::uintptr_t>(low);
    return StackBounds{start, start + size};
  }();
  return bounds;
}

inline Registers RegistersOf(const void* ucontext) {
  const auto& gregs = static_cast<const ucontext_t*>(ucontext)->uc_mcontext.gregs;
  const auto reg = [&](int index) { return static_cast<std::uint64_t>(gregs[index]); };
  return {reg(REG_RIP), reg(REG_RSP), reg(REG_RBP), reg(REG_RBX),
          reg(REG_R12), reg(REG_R13), reg(REG_R14), reg(REG_R15)};
}

// A list that may be filled in handlers. What does not fit is counted only.
class PcList {
 public:
  static constexpr std::size_t kCapacity = 512;

  void push_back(std::uint64_t pc) {
    if (size_ < kCapacity) pcs_[size_] = pc;
    ++size_;
  }
  std::size_t size() const { return size_; }
  const std::uint64_t* begin() const { return pcs_; }
  const std::uint64_t* end() const { return pcs_ + (size_ < kCapacity ? size_ : kCapacity); }
  std::uint64_t back() const { return end()[-1]; }
  std::uint64_t operator[](std::size_t index) const { return pcs_[index]; }

 private:
  std::size_t size_ = 0;
  std::uint64_t pcs_[kCapacity];
};

struct WalkOutcome {
  PcList pcs;  // the leaf's, then return addresses (interrupted pcs as they are)
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
  PcList reference;
};

// Walks from here on. The first pc of each lies in this function; all that follow must be the same.
__attribute__((noinline)) inline TwoWalks WalkBothWays(const NativeUnwinder& unwinder) {
  TwoWalks walks;
  const auto visit = [](_Unwind_Context* context, void* list) {
    const std::uint64_t pc = _Unwind_GetIP(context);
    if (pc != 0) static_cast<PcList*>(list)->push_back(pc);
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
