// SPDX-License-Identifier: MIT
//
// The reader on streams that were cut, changed, or made to hurt.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "nettrace/clr_events.h"
#include "nettrace/collected_events.h"
#include "nettrace/counted_memory.h"
#include "nettrace/reader.h"
#include "nettrace/writer.h"

namespace stackpipe::nettrace {
namespace {

// Several regions, blocks and types; few bytes, for each of them is cut off and changed.
Bytes WrittenStream() {
  MemorySink sink;
  Writer writer(sink, 2000);
  StreamHeader header;
  header.sync_ticks = 1000;
  Payload payload;
  EXPECT_TRUE(writer.Begin(header).ok());
  std::uint64_t time = 1000;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const std::uint64_t stack[] = {1, i % 7, 3};
    Encode(Sample{.type = SampleType::kManaged, .weight_ns = i * 1000}, &payload);
    EXPECT_TRUE(writer.Event(kSampleType, ++time, 10 + i % 3, i % 3 == 0, stack, payload).ok());
    if (i % 10 == 4) {
      Encode(ThreadName{.thread_id = 7, .name = "name"}, &payload);
      EXPECT_TRUE(writer.Event(kThreadNameType, ++time, 10, true, {}, payload).ok());
    }
    if (i % 20 == 9) writer.SkipSequence(2);
    EXPECT_TRUE(i % 12 != 11 || writer.Flush().ok());
    EXPECT_TRUE(i % 25 != 24 || writer.SequencePoint(time).ok());
  }
  EXPECT_TRUE(writer.End(++time).ok());
  return sink.bytes;
}

struct NamedStream {
  const char* name;
  Bytes bytes;
};

std::vector<NamedStream> SmallStreams() {
  return {{"tiny_v4", ReadFile(STACKPIPE_GOLDEN "/tiny_v4.nettrace")},
          {"full_v4", ReadFile(STACKPIPE_GOLDEN "/full_v4.nettrace")},
          {"tiny_v6", ReadFile(STACKPIPE_GOLDEN "/tiny_v6.nettrace")},
          {"written", WrittenStream()}};
}

// Trap 8.
TEST(ReaderDamageTest, EveryTruncationGivesAPrefix) {
  for (const NamedStream& stream : SmallStreams()) {
    const CollectedTrace full = Collect(stream.bytes);
    ASSERT_TRUE(full.summary.complete) << stream.name << ": " << full.summary.detail;
    ASSERT_FALSE(full.events.empty());
    std::size_t most = 0;
    for (std::size_t size = 0; size < stream.bytes.size(); ++size) {
      const CollectedTrace cut = Collect(std::span(stream.bytes).first(size));
      ASSERT_EQ(cut.summary.status.code(), StatusCode::kTruncated) << stream.name << " cut at " << size;
      ASSERT_FALSE(cut.summary.complete);
      ASSERT_FALSE(cut.summary.detail.empty());
      ASSERT_LE(cut.summary.bytes, size);
      ASSERT_GE(cut.events.size(), most) << stream.name << " cut at " << size;
      ASSERT_LE(cut.events.size(), full.events.size());
      ASSERT_TRUE(std::equal(cut.events.begin(), cut.events.end(), full.events.begin()))
          << stream.name << " cut at " << size;
      most = cut.events.size();
    }
    EXPECT_EQ(most, full.events.size()) << stream.name << ": all events are there before the end mark";
  }
}

TEST(ReaderDamageTest, EventsOfABlockThatWasCutAreDeliveredWhileTheyAreWhole) {
  const Bytes stream = ReadFile(STACKPIPE_GOLDEN "/tiny_v4.nettrace");
  // The payload of the first event ends at 0x194, that of the second at 0x19c.
  EXPECT_EQ(Collect(std::span(stream).first(0x193)).events.size(), 0u);
  EXPECT_EQ(Collect(std::span(stream).first(0x194)).events.size(), 1u);
  EXPECT_EQ(Collect(std::span(stream).first(0x19b)).events.size(), 1u);
  EXPECT_EQ(Collect(std::span(stream).first(0x19c)).events.size(), 2u);
}

TEST(ReaderDamageTest, GoodBytesEndBehindTheLastWholeBlock) {
  const Bytes stream = WrittenStream();
  std::vector<std::size_t> ends;
  for (const StreamBlock& block : BlocksOf(stream)) ends.push_back(block.end);
  ASSERT_GT(ends.size(), 8u);
  for (std::size_t size = 32; size < stream.size(); ++size) {
    const auto next = std::upper_bound(ends.begin(), ends.end(), size);
    ASSERT_EQ(Collect(std::span(stream).first(size)).summary.bytes, next == ends.begin() ? 32u : *(next - 1))
        << size;
  }
}

TEST(ReaderDamageTest, EveryChangedByteIsSurvived) {
  for (const NamedStream& stream : SmallStreams()) {
    for (const std::byte change : {std::byte{0xff}, std::byte{1}}) {
      Bytes bytes = stream.bytes;
      std::size_t noticed = 0;
      for (std::byte& byte : bytes) {
        byte ^= change;
        ResetPeakMemory();
        const CollectedTrace trace = Collect(bytes);
        ASSERT_EQ(trace.summary.complete, trace.summary.status.ok());
        ASSERT_EQ(trace.summary.events, trace.events.size());
        ASSERT_LT(PeakMemory(), (std::size_t{1} << 20) + 100 * bytes.size());
        noticed += trace.summary.status.ok() ? 0 : 1;
        byte ^= change;
      }
      EXPECT_GT(noticed, bytes.size() / 10) << stream.name;
    }
  }
}

TEST(ReaderDamageTest, NoiseIsSurvived) {
  std::mt19937 random(5);
  const std::vector<NamedStream> streams = SmallStreams();
  for (int round = 0; round < 3000; ++round) {
    Bytes bytes = streams[random() % streams.size()].bytes;
    for (std::uint32_t changes = 1 + static_cast<std::uint32_t>(random() % 8); changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    const CollectedTrace trace = Collect(bytes);
    ASSERT_EQ(trace.summary.complete, trace.summary.status.ok());
  }
}

TEST(ReaderDamageTest, AClaimedSizeCostsNothing) {
  Assembler four;
  four.Add(StreamBuilder(4).bytes());
  four.Put(std::uint8_t{5})
      .Put(std::uint8_t{5})
      .Put(std::uint8_t{1})
      .Put(2)
      .Put(2)
      .Put(10)
      .Text("EventBlock");
  four.Put(std::uint8_t{6}).Put(0x7fff'ffff).Text("some bytes");
  StreamBuilder six(6);
  const Bytes six_bytes = Assembler().Add(six.bytes()).Put(0x02ff'ffff).Text("some bytes").bytes();
  StreamBuilder stacks(4);
  stacks.Stacks(Assembler().Put(1).Put(0x7fff'ffff).bytes());
  StreamBuilder point(4);
  point.SequencePoint(Assembler().Put(std::uint64_t{1}).Put(0x7fff'ffff).bytes());
  Assembler fields;
  fields.Put(1).Utf16("P").Put(1).Utf16("").Put(std::uint64_t{0}).Put(0).Put(0).Put(0x7fff'ffff);
  StreamBuilder metadata(4);
  metadata.Description(fields.bytes());
  for (const Bytes& bytes : {four.bytes(), six_bytes, stacks.bytes(), point.bytes(), metadata.bytes()}) {
    ResetPeakMemory();
    EXPECT_FALSE(Collect(bytes).summary.complete);
    EXPECT_LT(PeakMemory(), std::size_t{300} << 10);
  }
}

// Objects in objects without end.
TEST(ReaderDamageTest, NestedFieldsDoNotExhaustTheStack) {
  Assembler fields;
  fields.Put(1).Utf16("P").Put(1).Utf16("").Put(std::uint64_t{0}).Put(0).Put(0);
  for (int depth = 0; depth < 1'000'000; ++depth) fields.Put(1).Put(1);  // one field; it is an object
  Assembler block;
  block.Put(std::uint16_t{20}).Put(std::uint16_t{1}).Put(std::uint64_t{0}).Put(std::uint64_t{0});
  block.Put(std::uint8_t{0x80}).VarUint(1).VarUint(fields.bytes().size()).Add(fields.bytes());
  const CollectedTrace four = Collect(StreamBuilder(4).Metadata(block.bytes()).End().bytes());
  EXPECT_TRUE(four.summary.complete) << four.summary.detail;

  Assembler row;
  row.VarUint(1).Utf8("P").VarUint(1).Utf8("").Put(std::uint16_t{1}).Put(std::uint16_t{60'000}).Utf8("f");
  for (int depth = 0; depth < 60'000; ++depth) row.Put(std::uint8_t{19});  // an array of arrays
  const CollectedTrace six = Collect(StreamBuilder(6).Row6(row.bytes()).End().bytes());
  EXPECT_TRUE(six.summary.complete) << six.summary.detail;
}

// Makes a stream while it is read.
class GeneratedStream : public ByteSource {
 public:
  explicit GeneratedStream(std::uint64_t size) : size_(size) {
    StreamHeader header;
    header.sync_ticks = time_;
    EXPECT_TRUE(writer_.Begin(header).ok());
  }

  Result<std::size_t> Read(std::byte* to, std::size_t size) override {
    while (used_ == sink_.bytes.size() && !ended_) {
      sink_.bytes.clear();
      sink_.ends.clear();
      used_ = 0;
      Produce();
    }
    const std::size_t piece = std::min(size, sink_.bytes.size() - used_);
    if (piece != 0) std::memcpy(to, sink_.bytes.data() + used_, piece);
    used_ += piece;
    return piece;
  }

  std::uint64_t events() const { return events_; }

 private:
  void Produce() {
    if (writer_.bytes() >= size_) {
      EXPECT_TRUE(writer_.End(time_).ok());
      ended_ = true;
      return;
    }
    for (int i = 0; i < 500; ++i) {
      std::uint64_t stack[50] = {};
      stack[0] = random_() % 1024;
      stack[1] = random_() % 4;
      const std::byte payload[400] = {};
      ++time_;
      EXPECT_TRUE(writer_.Event(kSampleType, time_, random_() % 100, i % 100 == 0, stack, payload).ok());
      ++events_;
    }
    const bool want = writer_.WantsSequencePoint() || events_ % 20'000 == 0;
    EXPECT_TRUE(want ? writer_.SequencePoint(time_).ok() : true);
  }

  const std::uint64_t size_;
  MemorySink sink_;
  Writer writer_{sink_, 2000};
  std::mt19937 random_{9};
  std::uint64_t time_ = 1000;
  std::uint64_t events_ = 0;
  std::size_t used_ = 0;
  bool ended_ = false;
};

TEST(ReaderMemoryTest, ALongStreamIsReadInLittleMemory) {
  struct Counter : Visitor {
    std::uint64_t events = 0, frames = 0;
    void OnEvent(const Event& event) override {
      ++events;
      frames += event.stack.size();
    }
  } counter;
  ResetPeakMemory();
  GeneratedStream stream(std::uint64_t{64} << 20);
  const ReadSummary summary = Read(stream, counter);
  EXPECT_TRUE(summary.complete) << summary.detail;
  EXPECT_GE(summary.bytes, std::uint64_t{64} << 20);
  EXPECT_EQ(counter.events, stream.events());
  EXPECT_EQ(counter.frames, 50 * stream.events());
  // 4096 stacks of 400 bytes at the writer and at the reader, and blocks.
  EXPECT_LT(PeakMemory(), std::size_t{8} << 20);
}

}  // namespace
}  // namespace stackpipe::nettrace
