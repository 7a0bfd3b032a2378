// SPDX-License-Identifier: MIT
//
// AOT images: what registering one costs, and what a handler pays for a method: at its first sample, from the
// cache, and with the arena full.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "aot/aot_file.h"
#include "aot/aot_images.h"

namespace stackpipe::bench {
namespace {

constexpr std::uintptr_t kBase = 0x7000'0000'0000;
constexpr std::uint32_t kMethodBytes = 128;
constexpr char kMscorlib[] = "/usr/lib/mono/aot-cache/amd64/mscorlib.dll.so";

// A runtime's own table.
class TableSource : public AotSource {
 public:
  explicit TableSource(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) starts_.push_back(i * kMethodBytes);
  }
  AotMethodTable table() const noexcept override {
    return {starts_.data(), static_cast<std::uint32_t>(starts_.size())};
  }
  bool Decode(std::uint32_t, AotCode* out) const noexcept override {
    *out = {kMethodBytes, CodeKind::kAot};
    return true;
  }
  void Describe(std::uint32_t, AotName*) override {}

 private:
  std::vector<std::uint32_t> starts_;
};

AotImageRegistration Image(std::uint32_t methods) {
  AotImageRegistration image;
  image.start = kBase;
  image.size = std::size_t{methods} * kMethodBytes;
  image.source = std::make_unique<TableSource>(methods);
  image.name = "image";
  return image;
}

// Addresses of all methods in random order.
std::vector<std::uintptr_t> Addresses(std::uint32_t methods) {
  std::vector<std::uintptr_t> addresses;
  for (std::uint32_t i = 0; i < methods; ++i)
    addresses.push_back(kBase + std::uintptr_t{i} * kMethodBytes + 40);
  std::shuffle(addresses.begin(), addresses.end(), std::mt19937(1));
  return addresses;
}

// Before the first sample: the image enters the code map and the handlers' snapshot.
void BM_RegisterImage(benchmark::State& state) {
  const auto methods = static_cast<std::uint32_t>(state.range(0));
  CodeMap code;
  AotImages images(code);
  std::size_t cache_bytes = 0;
  for (auto _ : state) {
    state.PauseTiming();
    AotImageRegistration image = Image(methods);
    state.ResumeTiming();
    const Result<CodeId> id = images.RegisterImage(std::move(image));
    state.PauseTiming();
    AotHit hit;
    if (!id.ok() || images.Decode(kBase, &hit) != AotResult::kFound)
      return state.SkipWithError("RegisterImage");
    cache_bytes = images.stats().cache_bytes;
    if (!images.UnregisterImage(id.value()).ok()) return state.SkipWithError("UnregisterImage");
    for (int i = 0; i < 2; ++i) images.Reclaim(true, code.epoch());
    state.ResumeTiming();
  }
  state.counters["cache_bytes_at_first_sample"] = static_cast<double>(cache_bytes);
}
BENCHMARK(BM_RegisterImage)->Arg(1000)->Arg(30'000)->Unit(benchmark::kMicrosecond);

// The same as a process meets it: once, with an empty code map and nothing in the processor's caches. Only
// the first one of a process is that, hence one iteration; bench/code_map_goals.py takes the median of
// processes.
void BM_RegisterFirstImage(benchmark::State& state) {
  const auto methods = static_cast<std::uint32_t>(state.range(0));
  std::vector<std::uint64_t> other(std::size_t{64} << 17);  // 64 MiB
  std::size_t cache_bytes = 0;
  for (auto _ : state) {
    CodeMap code;
    AotImages images(code);
    AotImageRegistration image = Image(methods);
    for (std::size_t i = 0; i < other.size(); i += 8) other[i] += i;
    benchmark::DoNotOptimize(other.data());
    const auto before = std::chrono::steady_clock::now();
    const Result<CodeId> id = images.RegisterImage(std::move(image));
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count());
    AotHit hit;
    if (!id.ok() || images.Decode(kBase, &hit) != AotResult::kFound)
      return state.SkipWithError("RegisterImage");
    cache_bytes = images.stats().cache_bytes;
  }
  state.counters["cache_bytes_at_first_sample"] = static_cast<double>(cache_bytes);
}
BENCHMARK(BM_RegisterFirstImage)->Arg(30'000)->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);

// The same of real files, from opening the file on: mscorlib has 36,676 methods and stubs.
void OpenAndRegister(benchmark::State& state, const char* path) {
  CodeMap code;
  AotImages images(code);
  std::size_t methods = 0;
  for (auto _ : state) {
    Result<std::unique_ptr<ElfSource>> source = OpenAotFile(path);
    if (!source.ok()) return state.SkipWithError(source.status().context());
    methods = source.value()->table().count;
    AotImageRegistration image;
    image.start = kBase;
    image.size = source.value()->code_size();
    image.source = std::move(source.value());
    const Result<CodeId> id = images.RegisterImage(std::move(image));
    state.PauseTiming();
    if (!id.ok() || !images.UnregisterImage(id.value()).ok()) return state.SkipWithError("RegisterImage");
    for (int i = 0; i < 2; ++i) images.Reclaim(true, code.epoch());
    state.ResumeTiming();
  }
  state.counters["methods"] = static_cast<double>(methods);
}
BENCHMARK_CAPTURE(OpenAndRegister, mscorlib, kMscorlib)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(OpenAndRegister, libstdcxx, "/usr/lib/x86_64-linux-gnu/libstdc++.so.6")
    ->Unit(benchmark::kMicrosecond);

// Each method once.
void BM_DecodeFirst(benchmark::State& state) {
  const auto methods = static_cast<std::uint32_t>(state.range(0));
  const std::vector<std::uintptr_t> addresses = Addresses(methods);
  CodeMap code;
  std::unique_ptr<AotImages> images;
  std::size_t next = methods;
  for (auto _ : state) {
    if (next == methods) {
      state.PauseTiming();
      images = std::make_unique<AotImages>(code, AotImagesOptions{.cached_methods_max = methods});
      code.UnregisterRange(kBase, 1);
      if (!images->RegisterImage(Image(methods)).ok()) return state.SkipWithError("RegisterImage");
      next = 0;
      state.ResumeTiming();
    }
    AotHit hit;
    benchmark::DoNotOptimize(images->Decode(addresses[next++], &hit));
    benchmark::DoNotOptimize(hit);
  }
}
BENCHMARK(BM_DecodeFirst)->Arg(30'000);

// Again and again, over `range(1)` methods of one image; the arena has room for 8192.
void BM_Decode(benchmark::State& state) {
  const auto methods = static_cast<std::uint32_t>(state.range(0));
  CodeMap code;
  AotImages images(code);
  if (!images.RegisterImage(Image(methods)).ok()) return state.SkipWithError("RegisterImage");
  std::vector<std::uintptr_t> addresses = Addresses(methods);
  addresses.resize(static_cast<std::size_t>(state.range(1)));
  AotHit hit;
  for (const std::uintptr_t pc : addresses) images.Decode(pc, &hit);
  const std::uint64_t uncached_before = images.stats().uncached;
  std::size_t next = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(images.Decode(addresses[next], &hit));
    benchmark::DoNotOptimize(hit);
    if (++next == addresses.size()) next = 0;
  }
  state.counters["uncached_percent"] = 100 * static_cast<double>(images.stats().uncached - uncached_before) /
                                       static_cast<double>(state.iterations());
}
BENCHMARK(BM_Decode)->Args({30'000, 10})->Args({30'000, 1000})->Args({30'000, 8000})->Args({30'000, 30'000});

// No image at all: one load.
void BM_DecodeNoImages(benchmark::State& state) {
  CodeMap code;
  const AotImages images(code);
  AotHit hit;
  for (auto _ : state) benchmark::DoNotOptimize(images.Decode(kBase, &hit));
}
BENCHMARK(BM_DecodeNoImages);

// What the collector pays for the first name of mscorlib, which reads 6 MB of debug information.
void BM_FirstName(benchmark::State& state) {
  for (auto _ : state) {
    state.PauseTiming();
    Result<std::unique_ptr<ElfSource>> source = OpenAotFile(kMscorlib);
    if (!source.ok()) return state.SkipWithError(source.status().context());
    state.ResumeTiming();
    AotName name;
    source.value()->Describe(0, &name);
    benchmark::DoNotOptimize(name);
    state.PauseTiming();
    source.value().reset();
    state.ResumeTiming();
  }
}
BENCHMARK(BM_FirstName)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace stackpipe::bench
