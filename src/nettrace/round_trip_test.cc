// SPDX-License-Identifier: MIT
//
// What the writer writes, the reader reads: random streams.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "nettrace/clr_events.h"
#include "nettrace/collected_events.h"
#include "nettrace/reader.h"
#include "nettrace/writer.h"

namespace stackpipe::nettrace {
namespace {

class RoundTripTest : public testing::TestWithParam<std::uint32_t> {
 protected:
  std::uint64_t Random(std::uint64_t below) { return random_() % below; }
  bool Chance(std::uint64_t one_in) { return Random(one_in) == 0; }

  Bytes RandomBytes(std::size_t size) {
    Bytes bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }

  std::mt19937_64 random_{GetParam()};
};

TEST_P(RoundTripTest, EventsComeBackAsTheyWere) {
  const std::uint64_t pointer_mask = Chance(2) ? ~std::uint64_t{0} : 0xffff'ffff;
  const std::uint64_t sync = Random(std::uint64_t{1} << 50);
  const std::uint64_t capture_thread = Random(100'000);
  StreamHeader header;
  header.sync_ticks = sync;
  header.pointer_size = pointer_mask == 0xffff'ffff ? 4 : 8;
  header.process_id = 77;

  std::vector<TypeInfo> types(1 + Random(20));
  for (std::size_t i = 0; i < types.size(); ++i) {
    types[i] = {i % 2 == 0 ? "Provider" : "Another", static_cast<std::int32_t>(i), "Name", i, 1, 2, {}};
  }
  std::vector<std::vector<std::uint64_t>> stacks(1 + Random(300));
  for (auto& stack : stacks) {
    stack.resize(Chance(20) ? Random(65'527 / 8) : Random(40));
    for (std::uint64_t& address : stack) address = random_() & pointer_mask & 0xffff'ffff'ff00;
  }

  MemorySink sink;
  Writer writer(sink, capture_thread);
  ASSERT_TRUE(writer.Begin(header).ok());
  std::vector<CollectedEvent> written;
  std::uint64_t time = sync + 1;
  std::uint64_t lost = 0;
  std::uint64_t skipped = 0;  // since the last event
  std::uint32_t sequence = 0;
  const std::uint64_t count = Random(4000);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!Chance(3)) time += Chance(50) ? Random(std::uint64_t{1} << 40) : Random(2'000'000);
    const std::size_t type = Random(types.size());
    const std::uint64_t thread = Chance(100) ? random_() : 1000 + Random(5);
    const auto& stack = stacks[Random(stacks.size())];
    const Bytes payload = RandomBytes(Chance(100) ? Random(65'536) : Random(30));
    const bool sorted = Chance(2);
    if (Chance(50)) {  // goes back: refused, and not there
      const std::uint64_t early = written.empty() ? sync : written.back().timestamp - 1;
      ASSERT_EQ(writer.Event(types[type], early - Random(early + 1), thread, sorted, stack, payload).code(),
                StatusCode::kInvalidArgument);
    }
    ASSERT_TRUE(writer.Event(types[type], time, thread, sorted, stack, payload).ok());
    lost += written.empty() ? 0 : skipped;  // nobody knows of those before the first
    sequence += static_cast<std::uint32_t>(skipped) + 1;
    skipped = 0;
    written.push_back({std::string(types[type].provider) + "/" + std::to_string(types[type].event_id), time,
                       thread, capture_thread, sequence, stack, payload});
    if (Chance(40)) {
      skipped = Random(10);
      writer.SkipSequence(static_cast<std::uint32_t>(skipped));
    }
    if (Chance(100)) {
      ASSERT_TRUE(writer.Flush().ok());
    }
    if (Chance(300)) {
      ASSERT_TRUE(writer.SequencePoint(time).ok());
      lost += skipped;
      sequence += static_cast<std::uint32_t>(skipped);
      skipped = 0;
    }
  }
  ASSERT_TRUE(writer.End(time).ok());
  if (!written.empty()) lost += skipped;

  const CollectedTrace trace = Collect(sink.bytes);
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  EXPECT_EQ(trace.summary.bytes, writer.bytes());
  EXPECT_EQ(trace.summary.events, written.size());
  EXPECT_EQ(trace.summary.lost, lost);
  EXPECT_EQ(trace.info.pointer_size, header.pointer_size);
  ASSERT_EQ(trace.events.size(), written.size());
  for (std::size_t i = 0; i < written.size(); ++i) ASSERT_EQ(trace.events[i], written[i]) << i;

  // What the sink had after one of its writes is a good beginning.
  const std::size_t end = sink.ends[Random(sink.ends.size())];
  const CollectedTrace part = Collect(std::span(sink.bytes).first(end));
  EXPECT_EQ(part.summary.bytes, end);
  EXPECT_EQ(part.summary.complete, end == sink.bytes.size());
  ASSERT_LE(part.events.size(), written.size());
  EXPECT_TRUE(std::equal(part.events.begin(), part.events.end(), written.begin()));
}

INSTANTIATE_TEST_SUITE_P(Seeds, RoundTripTest, testing::Range(1u, 21u));

TEST(RoundTripTypesTest, TypesComeBackAsTheyAre) {
  MemorySink sink;
  Writer writer(sink, 1);
  ASSERT_TRUE(writer.Begin({}).ok());
  const TypeInfo* types[] = {&kSampleType, &kProcessInfoType, &kModuleLoadType, &kSessionStartType,
                             &kSessionEndType};
  std::uint64_t time = 0;
  for (const TypeInfo* type : types) ASSERT_TRUE(writer.Event(*type, ++time, 1, true, {}, {}).ok());
  ASSERT_TRUE(writer.End(++time).ok());
  const CollectedTrace trace = Collect(sink.bytes);
  ASSERT_EQ(trace.types.size(), std::size(types));
  for (std::size_t i = 0; i < std::size(types); ++i) {
    const EventType& read = trace.types[i];
    EXPECT_EQ(read.provider, types[i]->provider);
    EXPECT_EQ(read.event_id, types[i]->event_id);
    EXPECT_EQ(read.name, types[i]->name);
    EXPECT_EQ(read.keywords, types[i]->keywords);
    EXPECT_EQ(read.version, types[i]->version);
    EXPECT_EQ(read.level, types[i]->level);
    ASSERT_EQ(read.fields.size(), types[i]->fields.size());
    for (std::size_t j = 0; j < read.fields.size(); ++j) {
      EXPECT_EQ(read.fields[j].name, types[i]->fields[j].name);
      EXPECT_EQ(read.fields[j].type, types[i]->fields[j].type);
    }
  }
}

}  // namespace
}  // namespace stackpipe::nettrace
