// SPDX-License-Identifier: MIT
//
// The native unwinder beside libunwind, on the same stack in the same process.
#define UNW_LOCAL_ONLY
#include <benchmark/benchmark.h>
#include <libunwind.h>

#include "bench_unwind_stack.h"

namespace stackpipe::bench {
namespace {

void ReportFrames(benchmark::State& state, std::size_t frames) {
  state.counters["frames"] = static_cast<double>(frames);
  state.counters["per_frame"] =
      benchmark::Counter(static_cast<double>(frames),
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void BM_Walk(benchmark::State& state) {
  NativeUnwinder unwinder;
  if (!unwinder.Refresh(true).ok()) return state.SkipWithError("Refresh");
  OnDeepStack(55, [&] {
    std::uint64_t pcs[256];
    const StackBounds bounds = CurrentStack();
    ucontext_t context;
    getcontext(&context);
    const Registers regs = RegistersOf(context);
    std::size_t frames = 0;
    for (auto _ : state) benchmark::DoNotOptimize(frames = Walk(unwinder, regs, bounds, pcs, 256));
    ReportFrames(state, frames);
  });
}
BENCHMARK(BM_Walk);

void BM_LibunwindCursor(benchmark::State& state) {
  OnDeepStack(55, [&] {
    unw_context_t context;
    unw_getcontext(&context);
    std::size_t frames = 0;
    for (auto _ : state) {
      unw_cursor_t cursor;
      unw_init_local(&cursor, &context);
      frames = 0;
      do {
        unw_word_t pc = 0;
        unw_get_reg(&cursor, UNW_REG_IP, &pc);
        benchmark::DoNotOptimize(pc);
        ++frames;
      } while (unw_step(&cursor) > 0);
    }
    ReportFrames(state, frames);
  });
}
BENCHMARK(BM_LibunwindCursor);

void BM_LibunwindBacktrace(benchmark::State& state) {
  OnDeepStack(55, [&] {
    void* pcs[256];
    int frames = 0;
    for (auto _ : state) benchmark::DoNotOptimize(frames = unw_backtrace(pcs, 256));
    ReportFrames(state, static_cast<std::size_t>(frames));
  });
}
BENCHMARK(BM_LibunwindBacktrace);

}  // namespace
}  // namespace stackpipe::bench
