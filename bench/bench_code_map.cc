// SPDX-License-Identifier: MIT
//
// Lookups in the code map, and changes of it, at several sizes. The argument: ranges registered.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "stackpipe/code_map.h"

namespace {

using namespace stackpipe;

constexpr std::uintptr_t kBase = 0x7f00'0000'0000;
constexpr std::size_t kStride = 256;

void Fill(CodeMap* map, std::size_t ranges) {
  for (std::size_t i = 0; i < ranges; ++i) {
    (void)map->Register(
        {.start = kBase + i * kStride, .size = 200, .kind = CodeKind::kJit, .name = "method"});
  }
}

// Random addresses, more than fit into the branch predictor.
std::vector<std::uintptr_t> Queries(std::size_t ranges) {
  std::mt19937_64 random(11);
  std::vector<std::uintptr_t> pcs(1 << 16);
  for (auto& pc : pcs) pc = kBase + random() % ranges * kStride + random() % 200;
  return pcs;
}

void BM_Lookup(benchmark::State& state) {
  const auto ranges = static_cast<std::size_t>(state.range(0));
  CodeMap map;
  Fill(&map, ranges);
  const auto pcs = Queries(ranges);
  std::size_t next = 0;
  CodeHit hit;
  for (auto _ : state) {
    if (!map.Lookup(pcs[next++ & 0xffff], &hit)) state.SkipWithError("a registered range was not found");
    benchmark::DoNotOptimize(hit);
  }
}
BENCHMARK(BM_Lookup)->Name("BM_Lookup/stackpipe")->Arg(1'000)->Arg(30'000)->Arg(1'000'000);

void BM_LookupMiss(benchmark::State& state) {
  const auto ranges = static_cast<std::size_t>(state.range(0));
  CodeMap map;
  Fill(&map, ranges);
  std::mt19937_64 random(13);
  std::vector<std::uintptr_t> pcs(1 << 16);
  for (auto& pc : pcs) pc = kBase + random() % ranges * kStride + 200 + random() % 56;
  std::size_t next = 0;
  CodeHit hit;
  for (auto _ : state) benchmark::DoNotOptimize(map.Lookup(pcs[next++ & 0xffff], &hit));
}
BENCHMARK(BM_LookupMiss)->Name("BM_LookupMiss/stackpipe")->Arg(30'000);

void BM_LookupEmpty(benchmark::State& state) {
  const CodeMap map;
  CodeHit hit;
  std::uintptr_t pc = kBase;
  for (auto _ : state) benchmark::DoNotOptimize(map.Lookup(pc += 64, &hit));
}
BENCHMARK(BM_LookupEmpty)->Name("BM_LookupEmpty/stackpipe");

void BM_InsertRemove(benchmark::State& state) {
  const auto ranges = static_cast<std::size_t>(state.range(0));
  CodeMap map;
  Fill(&map, ranges);
  std::mt19937_64 random(17);
  for (auto _ : state) {
    // Into the gap behind a range.
    const std::uintptr_t start = kBase + random() % ranges * kStride + 208;
    const Result<CodeId> id =
        map.Register({.start = start, .size = 32, .kind = CodeKind::kJit, .name = "method"});
    if (!id.ok() || !map.Unregister(id.value()).ok()) state.SkipWithError("a change was refused");
    map.TrimHistory(map.epoch());
  }
}
BENCHMARK(BM_InsertRemove)->Name("BM_InsertRemove/stackpipe")->Arg(10'000)->Arg(1'000'000);

}  // namespace
