// SPDX-License-Identifier: MIT
//
// A stack to walk: 64 functions with frames of different sizes and saved registers call each other in a
// random order.
#ifndef STACKPIPE_BENCH_BENCH_UNWIND_STACK_H_
#define STACKPIPE_BENCH_BENCH_UNWIND_STACK_H_

#include <pthread.h>
#include <ucontext.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "unwind/native_unwinder.h"

namespace stackpipe::bench {

struct DeepStack {
  using Function = std::uint64_t (*)(DeepStack* stack, std::size_t depth);
  std::vector<Function> calls;  // calls[i] is called at depth i
  std::function<void()> at_leaf;

  std::uint64_t Next(std::size_t depth) {
    if (depth == calls.size()) {
      at_leaf();
      return 1;
    }
    return calls[depth](this, depth + 1);
  }
};

// Values that live across the call make the compiler save registers: more of them for a higher N.
template <std::size_t N>
__attribute__((noinline)) std::uint64_t Frame(DeepStack* stack, std::size_t depth) {
  volatile std::uint64_t source = depth;
  std::uint64_t a = source, b = source + 1, c = source + 2, d = source + 3;
  volatile char local[16 + 24 * (N / 8)];
  local[0] = static_cast<char>(N);
  std::uint64_t result = stack->Next(depth);
  if constexpr (N % 5 > 0) result += a;
  if constexpr (N % 5 > 1) result ^= b;
  if constexpr (N % 5 > 2) result += c;
  if constexpr (N % 5 > 3) result ^= d;
  return result + static_cast<std::uint64_t>(local[0]);
}

template <std::size_t... N>
std::array<DeepStack::Function, sizeof...(N)> AllFrames(std::index_sequence<N...>) {
  return {&Frame<N>...};
}

// Calls `at_leaf` below `depth` of these functions.
template <typename AtLeaf>
void OnDeepStack(std::size_t depth, AtLeaf at_leaf) {
  static const auto frames = AllFrames(std::make_index_sequence<64>());
  std::mt19937 random(42);
  DeepStack stack;
  for (std::size_t i = 0; i < depth; ++i) stack.calls.push_back(frames[random() % frames.size()]);
  stack.at_leaf = at_leaf;
  stack.Next(0);
}

inline StackBounds CurrentStack() {
  pthread_attr_t attributes;
  void* low = nullptr;
  std::size_t size = 0;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &low, &size);
  pthread_attr_destroy(&attributes);
  return {reinterpret_cast<std::uintptr_t>(low), reinterpret_cast<std::uintptr_t>(low) + size};
}

inline Registers RegistersOf(const ucontext_t& context) {
  const auto& gregs = context.uc_mcontext.gregs;
  const auto reg = [&](int index) { return static_cast<std::uint64_t>(gregs[index]); };
  return {reg(REG_RIP), reg(REG_RSP), reg(REG_RBP), reg(REG_RBX),
          reg(REG_R12), reg(REG_R13), reg(REG_R14), reg(REG_R15)};
}

// Returns the number of frames.
inline std::size_t Walk(const NativeUnwinder& unwinder, Registers regs, const StackBounds& bounds,
                        std::uint64_t* pcs, std::size_t capacity) {
  bool is_caller = false;
  StopReason reason = StopReason::kNotWalked;
  StepHint hint;
  std::size_t count = 0;
  do {
    pcs[count++] = regs.pc;
  } while (count < capacity && unwinder.Step(&regs, &is_caller, bounds, &reason, &hint));
  return count;
}

}  // namespace stackpipe::bench

#endif  // STACKPIPE_BENCH_BENCH_UNWIND_STACK_H_
