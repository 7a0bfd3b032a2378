// SPDX-License-Identifier: MIT
//
// Writing and reading nettrace streams: ns and bytes for a sample, bytes and events per second.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "nettrace/clr_events.h"
#include "nettrace/reader.h"
#include "nettrace/writer.h"

namespace {

using namespace stackpipe;
using namespace stackpipe::nettrace;

struct MemorySink : Sink {
  std::vector<std::byte> bytes;
  Status Write(std::span<const std::byte> more) override {
    bytes.insert(bytes.end(), more.begin(), more.end());
    return {};
  }
};

struct NullSink : Sink {
  Status Write(std::span<const std::byte>) override { return {}; }
};

// Samples as a profiler takes them, about 1000 a second: some stacks are frequent, most are not.
class SampleMaker {
 public:
  SampleMaker(std::size_t stack_count, std::size_t frame_count) : stacks_(stack_count) {
    std::mt19937_64 random(5);
    for (auto& stack : stacks_) {
      stack.resize(frame_count);
      // The leaf half differs, the root half is shared by many.
      for (std::size_t i = 0; i < frame_count; ++i) {
        stack[i] = 0x7f0000000000 + random() % (i < frame_count / 2 ? 1 << 20 : 64) * 16;
      }
    }
    for (Pick& pick : picks_) {
      const std::uint64_t range = random() % 2 == 0 ? stack_count : stack_count / 16 + 1;
      pick = {static_cast<std::uint32_t>(random() % range),
              static_cast<std::uint32_t>(990'000 + random() % 20'000)};
    }
  }

  Status WriteNext(Writer* writer) {
    const Pick& pick = picks_[next_++ % std::size(picks_)];
    const Sample sample{.type = SampleType::kManaged, .weight_ns = pick.interval_ns};
    Encode(sample, &payload_);
    time_ += pick.interval_ns;
    const Status written = writer->Event(kSampleType, time_, 1000, true, stacks_[pick.stack], payload_);
    return written.ok() && writer->WantsSequencePoint() ? writer->SequencePoint(time_) : written;
  }
  std::uint64_t time() const { return time_; }

 private:
  struct Pick {
    std::uint32_t stack = 0;
    std::uint32_t interval_ns = 0;
  };
  std::vector<std::vector<std::uint64_t>> stacks_;
  std::vector<Pick> picks_ = std::vector<Pick>(1 << 20);
  std::size_t next_ = 0;
  std::uint64_t time_ = 0;
  Payload payload_;
};

// Arguments: different stacks, and frames in each.
void BM_WriteSample(benchmark::State& state) {
  SampleMaker samples(static_cast<std::size_t>(state.range(0)), static_cast<std::size_t>(state.range(1)));
  NullSink sink;
  Writer writer(sink, 1);
  Status status = writer.Begin({});
  for (auto _ : state) {
    if (const Status written = samples.WriteNext(&writer); !written.ok()) status = written;
  }
  if (!status.ok()) state.SkipWithError(status.context());
  state.SetItemsProcessed(state.iterations());
  state.counters["bytes_per_sample"] =
      static_cast<double>(writer.stack_bytes()) / static_cast<double>(state.iterations());
}
BENCHMARK(BM_WriteSample)->Args({16, 20})->Args({1024, 20})->Args({1024, 100})->Args({65536, 20});

struct Counter : Visitor {
  std::uint64_t events = 0;
  void OnEvent(const Event&) override { ++events; }
};

void ReadAgainAndAgain(benchmark::State& state, std::span<const std::byte> stream) {
  Counter counter;
  for (auto _ : state) {
    const std::unique_ptr<ByteSource> source = FromMemory(stream);
    if (!Read(*source, counter).complete) state.SkipWithError("the stream is not whole");
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(stream.size()));
  state.SetItemsProcessed(static_cast<std::int64_t>(counter.events));
}

// A stream of 50 MB. Argument: different stacks of 20 frames.
void BM_ReadSamples(benchmark::State& state) {
  SampleMaker samples(static_cast<std::size_t>(state.range(0)), 20);
  MemorySink sink;
  Writer writer(sink, 1);
  Status status = writer.Begin({});
  while (status.ok() && sink.bytes.size() < 50'000'000) status = samples.WriteNext(&writer);
  if (!status.ok() || !writer.End(samples.time()).ok()) {
    state.SkipWithError("the stream could not be written");
    return;
  }
  ReadAgainAndAgain(state, sink.bytes);
}
BENCHMARK(BM_ReadSamples)->Arg(16)->Arg(1024)->Arg(65536)->Unit(benchmark::kMillisecond);

// What dotnet-trace recorded: several capture threads, many stacks, long payloads.
void BM_ReadDotnetTrace(benchmark::State& state) {
  const Result<std::unique_ptr<ByteSource>> file = OpenFile(STACKPIPE_GOLDEN "/dotnet/async.nettrace");
  std::vector<std::byte> bytes(std::size_t{4} << 20);
  std::size_t size = 0;
  while (file.ok() && size < bytes.size()) {
    const Result<std::size_t> got = file.value()->Read(bytes.data() + size, bytes.size() - size);
    if (!got.ok() || got.value() == 0) break;
    size += got.value();
  }
  ReadAgainAndAgain(state, std::span(bytes).first(size));
}
BENCHMARK(BM_ReadDotnetTrace)->Unit(benchmark::kMillisecond);

}  // namespace
