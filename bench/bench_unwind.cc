// SPDX-License-Identifier: MIT
//
// The native unwinder: a walk, by depth, beside libgcc's; and what happens outside handlers.
// bench_unwind_libunwind.cc compares with libunwind, which must not be linked here: it replaces
// _Unwind_Backtrace.
#include <benchmark/benchmark.h>
#include <execinfo.h>
#include <unwind.h>

#include <chrono>
#include <vector>

#include "bench_unwind_stack.h"
#include "unwind/cfi_compiler.h"
#include "unwind/elf_image.h"

namespace stackpipe::bench {
namespace {

constexpr std::size_t kFramesMax = 4096;

void ReportFrames(benchmark::State& state, std::size_t frames) {
  state.counters["frames"] = static_cast<double>(frames);
  state.counters["per_frame"] =
      benchmark::Counter(static_cast<double>(frames),
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void BM_Walk(benchmark::State& state) {
  NativeUnwinder unwinder;
  if (!unwinder.Refresh(true).ok()) return state.SkipWithError("Refresh");
  OnDeepStack(static_cast<std::size_t>(state.range(0)), [&] {
    static std::uint64_t pcs[kFramesMax];
    const StackBounds bounds = CurrentStack();
    ucontext_t context;
    getcontext(&context);
    const Registers regs = RegistersOf(context);
    std::size_t frames = 0;
    for (auto _ : state) benchmark::DoNotOptimize(frames = Walk(unwinder, regs, bounds, pcs, kFramesMax));
    ReportFrames(state, frames);
  });
}
BENCHMARK(BM_Walk)->Arg(10)->Arg(55)->Arg(500);

// As in a handler that runs a thousand times a second: the program between has used the caches for itself.
// Timed by hand, since clearing them takes longer than the walk.
void BM_WalkColdCaches(benchmark::State& state) {
  NativeUnwinder unwinder;
  if (!unwinder.Refresh(true).ok()) return state.SkipWithError("Refresh");
  std::vector<std::uint64_t> other(static_cast<std::size_t>(state.range(0)) / sizeof(std::uint64_t));
  OnDeepStack(55, [&] {
    std::uint64_t pcs[256];
    const StackBounds bounds = CurrentStack();
    ucontext_t context;
    getcontext(&context);
    const Registers regs = RegistersOf(context);
    std::size_t frames = 0;
    for (auto _ : state) {
      for (std::size_t i = 0; i < other.size(); i += 8) other[i] += frames;
      const auto begin = std::chrono::steady_clock::now();
      benchmark::DoNotOptimize(frames = Walk(unwinder, regs, bounds, pcs, 256));
      const auto end = std::chrono::steady_clock::now();
      state.SetIterationTime(std::chrono::duration<double>(end - begin).count());
    }
    ReportFrames(state, frames);
  });
}
// More than the second and than the third level hold.
BENCHMARK(BM_WalkColdCaches)->Arg(4 << 20)->Iterations(2000)->UseManualTime();
BENCHMARK(BM_WalkColdCaches)->Arg(128 << 20)->Iterations(100)->UseManualTime();

void BM_LibgccUnwindBacktrace(benchmark::State& state) {
  OnDeepStack(static_cast<std::size_t>(state.range(0)), [&] {
    std::size_t frames = 0;
    const auto count = [](_Unwind_Context* context, void* total) {
      benchmark::DoNotOptimize(_Unwind_GetIP(context));
      ++*static_cast<std::size_t*>(total);
      return _URC_NO_REASON;
    };
    for (auto _ : state) {
      frames = 0;
      _Unwind_Backtrace(count, &frames);
    }
    ReportFrames(state, frames);
  });
}
BENCHMARK(BM_LibgccUnwindBacktrace)->Arg(55);

void BM_GlibcBacktrace(benchmark::State& state) {
  OnDeepStack(static_cast<std::size_t>(state.range(0)), [&] {
    void* pcs[256];
    int frames = 0;
    for (auto _ : state) benchmark::DoNotOptimize(frames = backtrace(pcs, 256));
    ReportFrames(state, static_cast<std::size_t>(frames));
  });
}
BENCHMARK(BM_GlibcBacktrace)->Arg(55);

// The first Refresh of a process: reads and compiles the CFI of all its objects.
void BM_FirstRefresh(benchmark::State& state) {
  for (auto _ : state) {
    NativeUnwinder unwinder;
    if (!unwinder.Refresh(true).ok()) return state.SkipWithError("Refresh");
  }
}
BENCHMARK(BM_FirstRefresh)->Unit(benchmark::kMillisecond);

// One file alone: its CFI read and compiled.
void BM_CompileTable(benchmark::State& state, const char* path) {
  std::size_t bytes = 0;
  std::size_t rows = 0;
  for (auto _ : state) {
    ElfImage elf;
    FrameSection frames;
    if (!elf.OpenFile(path) || !(elf.LoadEhFrame(&frames) || elf.LoadDebugFrame(&frames))) {
      return state.SkipWithError("no such file here");
    }
    const CfiTable table = CompileCfi(frames.section, elf.CodeRanges());
    bytes = table.byte_count();
    rows = table.row_count();
  }
  state.counters["bytes"] = static_cast<double>(bytes);
  state.counters["rows"] = static_cast<double>(rows);
}
BENCHMARK_CAPTURE(BM_CompileTable, libc, "/lib/x86_64-linux-gnu/libc.so.6")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_CompileTable, libstdcxx, "/lib/x86_64-linux-gnu/libstdc++.so.6")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_CompileTable, libmonosgen, "/usr/lib/libmonosgen-2.0.so.1")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_CompileTable, libLLVM, "/lib/x86_64-linux-gnu/libLLVM-14.so.1")
    ->Unit(benchmark::kMillisecond);
// Has .debug_frame alone, which is used only if asked for.
BENCHMARK_CAPTURE(BM_CompileTable, mscorlib, "/usr/lib/mono/aot-cache/amd64/mscorlib.dll.so")
    ->Unit(benchmark::kMillisecond);

void BM_RefreshNothingNew(benchmark::State& state) {
  NativeUnwinder unwinder;
  for (auto _ : state) {
    if (!unwinder.Refresh(true).ok()) return state.SkipWithError("Refresh");
  }
}
BENCHMARK(BM_RefreshNothingNew);

void BM_Symbolize(benchmark::State& state) {
  NativeUnwinder unwinder;
  if (!unwinder.Refresh(true).ok()) return state.SkipWithError("Refresh");
  NativeSymbol symbol;
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        unwinder.Symbolize(reinterpret_cast<std::uintptr_t>(&OnDeepStack<void (*)()>), &symbol));
  }
}
BENCHMARK(BM_Symbolize);

}  // namespace
}  // namespace stackpipe::bench
