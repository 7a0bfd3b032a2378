// SPDX-License-Identifier: MIT
#include "nettrace/reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>

#include "nettrace/collected_events.h"

namespace stackpipe::nettrace {
namespace {

constexpr std::uint64_t kSync = StreamBuilder::kSync;

BlobHeader EventOf(std::uint64_t capture_thread, std::uint32_t sequence, std::uint64_t time,
                   bool sorted = true) {
  BlobHeader header;
  header.metadata_id = 1;
  header.sequence = sequence;
  header.capture_thread = capture_thread;
  header.thread = capture_thread;
  header.timestamp = kSync + time;
  header.sorted = sorted;
  return header;
}

std::vector<std::uint64_t> TimesOf(const CollectedTrace& trace) {
  std::vector<std::uint64_t> times;
  for (const CollectedEvent& event : trace.events) times.push_back(event.timestamp - kSync);
  return times;
}

TEST(ReaderTest, TinyStreamIsReadFieldByField) {
  const CollectedTrace trace = Collect(ReadFile(STACKPIPE_GOLDEN "/tiny_v4.nettrace"));
  EXPECT_TRUE(trace.summary.complete);
  EXPECT_EQ(trace.summary.bytes, 466u);
  EXPECT_EQ(trace.traces, 1);
  EXPECT_EQ(trace.info.version, 4);
  EXPECT_EQ(trace.info.utc[0], 2026);
  EXPECT_EQ(trace.info.utc[2], 5);
  EXPECT_EQ(trace.info.utc[7], 678);
  EXPECT_EQ(trace.info.sync_ticks, 1'000'000'000'000u);
  EXPECT_EQ(trace.info.ticks_per_second, 1'000'000'000u);
  EXPECT_EQ(trace.info.pointer_size, 8);
  EXPECT_EQ(trace.info.process_id, 4242u);
  EXPECT_EQ(trace.info.processor_count, 2);
  EXPECT_EQ(trace.info.expected_sampling_rate, 1'000'000);
  ASSERT_EQ(trace.events.size(), 2u);
  const CollectedEvent& event = trace.events[1];
  EXPECT_EQ(event.type, "Microsoft-DotNETCore-SampleProfiler/0");
  EXPECT_EQ(event.timestamp, 1'000'002'000'000u);
  EXPECT_EQ(event.thread_id, 1001u);
  EXPECT_EQ(event.capture_thread_id, 2000u);
  EXPECT_EQ(event.sequence, 2u);
  EXPECT_EQ(event.stack, (std::vector<std::uint64_t>{0x7f0000001010, 0x7f0000002020}));
  EXPECT_EQ(event.payload, (Bytes{std::byte{2}, std::byte{0}, std::byte{0}, std::byte{0}}));
  EXPECT_EQ(trace.types[1].level, 4);
  EXPECT_EQ(trace.types[1].id, 1u);
}

TEST(ReaderTest, InputsThatAreNoStream) {
  const auto status_of = [](std::string_view text) {
    const CollectedTrace trace = Collect(std::as_bytes(std::span(text)));
    EXPECT_EQ(trace.traces, 0);
    EXPECT_FALSE(trace.summary.detail.empty());
    return trace.summary.status.code();
  };
  EXPECT_EQ(status_of(""), StatusCode::kTruncated);
  EXPECT_EQ(status_of("Nett"), StatusCode::kTruncated);
  EXPECT_EQ(status_of("Nett!"), StatusCode::kFormat);
  EXPECT_EQ(status_of("hello"), StatusCode::kFormat);
  EXPECT_EQ(status_of("Nettrace"), StatusCode::kTruncated);
  EXPECT_EQ(status_of("NettraceABCD"), StatusCode::kFormat);
  using std::string_view_literals::operator""sv;
  EXPECT_EQ(status_of("Nettrace\x14\0\0\0!FastSerialization.2"sv), StatusCode::kFormat);
  EXPECT_EQ(status_of("Nettrace\x14\0\0\0!FastSerialization.1\1"sv), StatusCode::kFormat)
      << "no Trace object";
  EXPECT_EQ(status_of("Nettrace\0\0\0\0\x07\0\0\0\0\0\0\0"sv), StatusCode::kUnsupported);
  EXPECT_EQ(status_of("Nettrace\0\0\0\0\x06\0\0\0\x09\0\0\0\0\0\0\0"sv), StatusCode::kFormat)
      << "no Trace block";
}

TEST(ReaderTest, VersionsThatAreTooNew) {
  StreamBuilder block(4);
  block.Begin("EventBlock", 3);
  EXPECT_EQ(Collect(block.bytes()).summary.status.code(), StatusCode::kUnsupported);
  Bytes trace = StreamBuilder(4).End().bytes();
  ASSERT_TRUE(Collect(trace).summary.complete);
  trace[32 + 7] = std::byte{5};  // least version of a reader
  EXPECT_EQ(Collect(trace).summary.status.code(), StatusCode::kUnsupported);
}

// Trap 8.
TEST(ReaderTest, NothingMayFollowTheEndMark) {
  for (const int version : {4, 6}) {
    Bytes bytes = StreamBuilder(version).End().bytes();
    EXPECT_TRUE(Collect(bytes).summary.complete);
    const std::size_t size = bytes.size();
    bytes.push_back(std::byte{0});
    const CollectedTrace trace = Collect(bytes);
    EXPECT_FALSE(trace.summary.complete);
    EXPECT_EQ(trace.summary.status.code(), StatusCode::kFormat);
    EXPECT_EQ(trace.summary.bytes, size);
  }
}

TEST(ReaderTest, UnknownBlocks) {
  const Bytes content(5);
  EXPECT_EQ(Collect(StreamBuilder(4).Block(0, "NewBlock", content).End().bytes()).summary.status.code(),
            StatusCode::kFormat);
  EXPECT_TRUE(Collect(StreamBuilder(6).Block(99, "", content).End().bytes()).summary.complete)
      << "version 6 may be extended";
}

TEST(ReaderTest, ABrokenTraceObject) {
  EXPECT_EQ(Collect(StreamBuilder(4).Block(0, "Trace", {}).bytes()).summary.status.code(),
            StatusCode::kFormat)
      << "a second one";
  Bytes bytes = StreamBuilder(4).End().bytes();
  const std::size_t content_at = BlocksOf(bytes)[0].content_at;
  bytes[content_at + 32] = std::byte{3};
  EXPECT_EQ(Collect(bytes).summary.status.code(), StatusCode::kFormat) << "pointer size";
  bytes = StreamBuilder(4).End().bytes();
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(content_at) + 24, 8, std::byte{0});
  EXPECT_EQ(Collect(bytes).summary.status.code(), StatusCode::kFormat) << "clock rate: readers divide by it";
}

// Trap 1: an event that is not sorted belongs to the run that it stands in, whatever its capture thread says.
TEST(ReaderTest, OnlySortedEventsBeginARun) {
  const Bytes stream = StreamBuilder(4)
                           .Type(1)
                           .Events(EventBlockBuilder()
                                       .Add(EventOf(1, 1, 1))
                                       .Add(EventOf(1, 2, 5, false))
                                       .Add(EventOf(9, 3, 6, false))
                                       .Add(EventOf(2, 1, 2))
                                       .Add(EventOf(2, 2, 7, false))
                                       .content())
                           .End()
                           .bytes();
  const CollectedTrace trace = Collect(stream);
  EXPECT_TRUE(trace.summary.complete);
  EXPECT_EQ(TimesOf(trace), (std::vector<std::uint64_t>{1, 2, 5, 6, 7}));
  EXPECT_EQ(trace.events[3].capture_thread_id, 1u);
  EXPECT_EQ(trace.summary.lost, 0u);
}

// Trap 1.
TEST(ReaderTest, TheFirstEventOfABlockBeginsARun) {
  const Bytes stream = StreamBuilder(4)
                           .Type(1)
                           .Events(EventBlockBuilder().Add(EventOf(1, 1, 4, false)).content())
                           .Events(EventBlockBuilder().Add(EventOf(2, 1, 3, false)).content())
                           .End()
                           .bytes();
  EXPECT_EQ(TimesOf(Collect(stream)), (std::vector<std::uint64_t>{3, 4}));
}

// Trap 2.
TEST(ReaderTest, TypesAreDescribedOnceAndBeforeUse) {
  EXPECT_EQ(Collect(StreamBuilder(4).Type(1).Type(1).End().bytes()).summary.status.code(),
            StatusCode::kFormat);
  EXPECT_EQ(Collect(StreamBuilder(4).Type(0).End().bytes()).summary.status.code(), StatusCode::kFormat);
  const Bytes events = EventBlockBuilder().Add(EventOf(1, 1, 1)).content();
  const CollectedTrace trace = Collect(StreamBuilder(4).Type(2).Events(events).Type(1).End().bytes());
  EXPECT_EQ(trace.summary.status.code(), StatusCode::kFormat);
  EXPECT_TRUE(trace.events.empty());
}

// Trap 2.
TEST(ReaderTest, StackIdsAreValidUpToTheNextSequencePoint) {
  BlobHeader event = EventOf(1, 1, 1);
  event.stack_id = 5;
  BlobHeader later = EventOf(1, 2, 3);
  later.stack_id = 5;
  BlobHeader last = EventOf(1, 3, 5);
  last.stack_id = 5;
  const Bytes stream = StreamBuilder(4)
                           .Type(1)
                           .Stack(5, {10, 11})
                           .Events(EventBlockBuilder().Add(event).content())
                           .Point(kSync + 2, {{1, 1}})
                           .Events(EventBlockBuilder().Add(later).content())
                           .Stack(5, {12})
                           .Events(EventBlockBuilder().Add(last).content())
                           .End()
                           .bytes();
  const CollectedTrace trace = Collect(stream);
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  ASSERT_EQ(trace.events.size(), 3u);
  EXPECT_EQ(trace.events[0].stack, (std::vector<std::uint64_t>{10, 11}));
  EXPECT_TRUE(trace.events[1].stack.empty()) << "an id that is not known means no stack";
  EXPECT_EQ(trace.events[2].stack, std::vector<std::uint64_t>{12});
  EXPECT_EQ(Collect(StreamBuilder(4).Stack(5, {1}).Stack(5, {1}).End().bytes()).summary.status.code(),
            StatusCode::kFormat);
}

// The stack of an event that waits is the one that the id meant when the event was written.
TEST(ReaderTest, WaitingEventsKeepTheirStacks) {
  BlobHeader event = EventOf(1, 1, 1, false);
  event.stack_id = 1;
  const Bytes stream = StreamBuilder(4)
                           .Type(1)
                           .Stack(1, {10})
                           .Events(EventBlockBuilder().Add(event).content())
                           .Point(kSync + 2, {{1, 1}})
                           .Stack(1, {20})
                           .End()
                           .bytes();
  const CollectedTrace trace = Collect(stream);
  ASSERT_EQ(trace.events.size(), 1u);
  EXPECT_EQ(trace.events[0].stack, std::vector<std::uint64_t>{10});
}

TEST(ReaderTest, BrokenStacksAndPoints) {
  const auto status_of = [](const StreamBuilder& stream) {
    return Collect(stream.bytes()).summary.status.code();
  };
  EXPECT_EQ(status_of(StreamBuilder(4).Stacks(Assembler().Put(1).Put(2).Put(0).bytes()).End()),
            StatusCode::kFormat);
  EXPECT_EQ(status_of(StreamBuilder(4).Stacks(Assembler().Put(1).Put(1).Put(8).Put(0).bytes()).End()),
            StatusCode::kFormat);
  EXPECT_EQ(status_of(StreamBuilder(4).Stacks(Assembler().Put(1).Put(0).Put(0).bytes()).End()),
            StatusCode::kFormat);
  EXPECT_EQ(status_of(StreamBuilder(4).SequencePoint(Assembler().Put(kSync).Put(1).Put(7).bytes()).End()),
            StatusCode::kFormat);
  EXPECT_EQ(status_of(StreamBuilder(4).Events(Assembler().Put(std::uint16_t{19}).bytes()).End()),
            StatusCode::kFormat);
}

TEST(ReaderTest, BlockHeadersMayGrow) {
  Assembler content;
  content.Put(std::uint16_t{24}).Put(std::uint16_t{1}).Put(kSync).Put(kSync).Put(77);
  const Bytes events = EventBlockBuilder().Add(EventOf(1, 1, 1)).content();
  content.Add(std::span(events).subspan(20));
  const CollectedTrace trace = Collect(StreamBuilder(4).Type(1).Events(content.bytes()).End().bytes());
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  EXPECT_EQ(TimesOf(trace), std::vector<std::uint64_t>{1});
}

// Trap 4.
TEST(ReaderTest, LostEvents) {
  const Bytes stream = StreamBuilder(4)
                           .Type(1)
                           .Events(EventBlockBuilder()
                                       .Add(EventOf(1, 5, 1))  // the first: nobody knows what was before
                                       .Add(EventOf(1, 6, 2))
                                       .Add(EventOf(1, 9, 3))  // 7, 8
                                       .Add(EventOf(2, 1, 4))
                                       .content())
                           .Point(kSync + 5, {{1, 10}, {2, 1}, {3, 100}})                  // 10
                           .Events(EventBlockBuilder().Add(EventOf(3, 102, 6)).content())  // 101
                           .End()
                           .bytes();
  const CollectedTrace trace = Collect(stream);
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  EXPECT_EQ(trace.summary.lost, 4u);
  EXPECT_EQ(trace.summary.events, 5u);
}

// A sequence point may name a thread before its first event.
TEST(ReaderTest, AThreadAnnouncedWithZeroMayBeginAnywhere) {
  const Bytes stream = StreamBuilder(4)
                           .Type(1)
                           .Point(kSync + 1, {{1, 0}})
                           .Events(EventBlockBuilder().Add(EventOf(1, 9, 2)).Add(EventOf(1, 11, 3)).content())
                           .End()
                           .bytes();
  EXPECT_EQ(Collect(stream).summary.lost, 1u);
}

TEST(ReaderTest, ABlockMustEndWhereItsSizeSays) {
  Bytes bytes = StreamBuilder(4).Type(1).End().bytes();
  const std::size_t end = BlocksOf(bytes)[1].end;
  bytes[end - 1] = std::byte{5};
  const CollectedTrace trace = Collect(bytes);
  EXPECT_EQ(trace.summary.status.code(), StatusCode::kFormat);
  EXPECT_LT(trace.summary.bytes, end);
  EXPECT_NE(trace.summary.detail.find("byte " + std::to_string(end - 1)), std::string::npos)
      << trace.summary.detail;
}

// Trap 4: without the field the number is the next one, also over the wrap.
TEST(ReaderTest, SequenceNumbersWrap) {
  const Bytes stream = StreamBuilder(4)
                           .Type(1)
                           .Events(EventBlockBuilder()
                                       .Add(EventOf(1, 0xffff'fffe, 1))
                                       .Add(EventOf(1, 0xffff'ffff, 2))
                                       .Add(EventOf(1, 0, 3))
                                       .Add(EventOf(1, 1, 4))
                                       .content())
                           .End()
                           .bytes();
  const CollectedTrace trace = Collect(stream);
  EXPECT_EQ(trace.summary.lost, 0u);
  EXPECT_EQ(trace.events[3].sequence, 1u);
}

// Trap 5.
TEST(ReaderTest, ARecycledThreadIdMustNotStartAgain) {
  const Bytes stream = StreamBuilder(4)
                           .Type(1)
                           .Events(EventBlockBuilder().Add(EventOf(1, 7, 1)).Add(EventOf(1, 1, 2)).content())
                           .End()
                           .bytes();
  EXPECT_EQ(Collect(stream).summary.lost, 0x7fff'ffffu);
}

// Trap 5: TraceEvent drops events beyond 5000 capture threads; here nothing is lost.
TEST(ReaderTest, ManyCaptureThreads) {
  StreamBuilder stream(4);
  stream.Type(1);
  constexpr std::uint64_t kThreads = 8000;
  for (std::uint64_t thread = 1; thread <= kThreads; ++thread) {
    stream.Events(EventBlockBuilder().Add(EventOf(thread, 1, 2 * kThreads - thread, false)).content());
  }
  const CollectedTrace trace = Collect(stream.End().bytes());
  EXPECT_TRUE(trace.summary.complete);
  ASSERT_EQ(trace.events.size(), kThreads);
  for (std::size_t i = 0; i < kThreads; ++i) ASSERT_EQ(trace.events[i].thread_id, kThreads - i);
}

// Trap 6: bit 31 of the type's id says "not sorted".
TEST(ReaderTest, UncompressedHeaders) {
  for (const int version : {4, 6}) {
    Assembler content;
    content.Put(std::uint16_t{20}).Put(std::uint16_t{0}).Put(kSync).Put(kSync);
    const auto add = [&](std::uint32_t id, std::uint32_t sequence, std::uint64_t thread, std::uint64_t time,
                         std::string_view payload) {
      Assembler event;
      event.Put(id).Put(sequence).Put(thread).Put(thread).Put(3).Put(1).Put(kSync + time);
      event.Add(Bytes(version == 4 ? 32 : 4)).Put(static_cast<std::uint32_t>(payload.size())).Text(payload);
      content.Put(static_cast<std::uint32_t>(event.bytes().size())).Add(event.bytes());
      while (version == 4 && content.bytes().size() % 4 != 0) content.Put(std::uint8_t{0});
    };
    add(1, 1, 10, 1, "a");
    add(1 | 0x8000'0000, 2, 10, 9, "bc");
    add(1, 1, 11, 5, "");
    StreamBuilder stream(version);
    stream.Type(1).Stack(1, {44});
    if (version == 6) stream.Thread6(10, 10).Thread6(11, 11);
    const CollectedTrace trace = Collect(stream.Events(content.bytes()).End().bytes());
    EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
    EXPECT_EQ(TimesOf(trace), (std::vector<std::uint64_t>{1, 5, 9}));
    EXPECT_EQ(trace.events[2].payload.size(), 2u);
    EXPECT_EQ(trace.events[2].thread_id, 10u);
    EXPECT_EQ(trace.events[2].stack, std::vector<std::uint64_t>{44});
    EXPECT_EQ(trace.summary.lost, 0u);
  }
}

TEST(ReaderTest, ActivityIdsAreSkipped) {
  Assembler content;
  content.Put(std::uint16_t{20}).Put(std::uint16_t{1}).Put(kSync).Put(kSync);
  content.Put(std::uint8_t{0x01 | 0x02 | 0x10 | 0x20 | 0x40 | 0x80})
      .VarUint(1)
      .VarUint(0)
      .VarUint(7)
      .VarUint(2);
  content.VarUint(kSync + 1).Add(Bytes(32)).VarUint(3).Text("abc");
  content.Put(std::uint8_t{0x40}).VarUint(1).Text("def");
  const CollectedTrace trace = Collect(StreamBuilder(4).Type(1).Events(content.bytes()).End().bytes());
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(trace.events[1].sequence, 2u);
  EXPECT_EQ(trace.events[1].payload[0], std::byte{'d'});
}

// A source that hands out `pieces` one by one, and then an error.
struct PiecewiseSource : ByteSource {
  std::vector<std::span<const std::byte>> pieces;
  Status last;  // ok: the end
  std::function<void(std::size_t)> before_piece;
  std::size_t next = 0;

  Result<std::size_t> Read(std::byte* to, std::size_t size) override {
    if (before_piece) before_piece(next);
    if (next == pieces.size()) return last.ok() ? Result<std::size_t>(0) : Result<std::size_t>(last);
    const std::span<const std::byte> piece = pieces[next];
    EXPECT_LE(piece.size(), size);
    std::copy(piece.begin(), piece.end(), to);
    ++next;
    return piece.size();
  }
};

// Trap 9: a live reader shows a sorted event, and all that was before it, as soon as its block is there.
TEST(ReaderTest, LiveStreamsAreShownWhileTheyCome) {
  StreamBuilder stream(4);
  stream.Type(1);
  std::vector<std::size_t> ends = {stream.bytes().size()};
  stream.Events(EventBlockBuilder().Add(EventOf(1, 1, 1)).Add(EventOf(1, 2, 2, false)).content());
  ends.push_back(stream.bytes().size());
  stream.Events(EventBlockBuilder().Add(EventOf(1, 3, 3)).content());
  ends.push_back(stream.bytes().size());
  stream.Events(EventBlockBuilder().Add(EventOf(1, 4, 4, false)).content());
  ends.push_back(stream.bytes().size());
  stream.Point(kSync + 5, {{1, 4}});
  ends.push_back(stream.bytes().size());
  stream.End();

  PiecewiseSource source;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    source.pieces.push_back(std::span(stream.bytes()).subspan(begin, end - begin));
    begin = end;
  }
  source.pieces.push_back(std::span(stream.bytes()).subspan(begin));
  CollectedTrace trace;
  std::vector<std::size_t> seen;
  source.before_piece = [&](std::size_t) { seen.push_back(trace.events.size()); };
  EXPECT_TRUE(Read(source, trace).complete);
  EXPECT_EQ(seen, (std::vector<std::size_t>{0, 0, 1, 3, 3, 4, 4}));
}

TEST(ReaderTest, PiecesMayBeOfAnySize) {
  const Bytes stream = ReadFile(STACKPIPE_GOLDEN "/full_v4.nettrace");
  const CollectedTrace whole = Collect(stream);
  for (std::size_t size = 1; size < 50; ++size) {
    PiecewiseSource source;
    for (std::size_t at = 0; at < stream.size(); at += size) {
      source.pieces.push_back(std::span(stream).subspan(at, std::min(size, stream.size() - at)));
    }
    const CollectedTrace trace = Collect(source);
    ASSERT_TRUE(trace.summary.complete);
    ASSERT_EQ(trace.events, whole.events);
  }
}

TEST(ReaderTest, AnErrorOfTheSourceComesBehindTheEvents) {
  const Bytes stream = ReadFile(STACKPIPE_GOLDEN "/tiny_v4.nettrace");
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, std::size_t{0x1a0}, stream.size()}) {
    PiecewiseSource source;
    source.pieces.push_back(std::span(stream).first(size));
    if (size == 0) source.pieces.clear();
    source.last = {StatusCode::kIo, "read", 5};
    const CollectedTrace trace = Collect(source);
    EXPECT_EQ(trace.summary.status.code(), StatusCode::kIo);
    EXPECT_EQ(trace.summary.status.os_error(), 5);
    EXPECT_FALSE(trace.summary.complete);
    EXPECT_EQ(trace.events.size(), size > 400 ? 2u : 0u);
  }
}

TEST(ReaderTest, NoExceptionGetsOut) {
  struct Thrower : Visitor {
    void OnEvent(const Event&) override { throw std::runtime_error("no"); }
  } visitor;
  const Bytes stream = ReadFile(STACKPIPE_GOLDEN "/tiny_v4.nettrace");
  const std::unique_ptr<ByteSource> source = FromMemory(stream);
  EXPECT_EQ(Read(*source, visitor).status.code(), StatusCode::kInvalidArgument);

  struct OutOfMemory : Visitor {
    void OnEvent(const Event&) override { throw std::bad_alloc(); }
  } out_of_memory;
  const std::unique_ptr<ByteSource> again = FromMemory(stream);
  EXPECT_EQ(Read(*again, out_of_memory).status.code(), StatusCode::kOutOfMemory);
}

// Trap 10: a time that goes back is written as a huge difference.
TEST(ReaderTest, TimesThatGoBack) {
  const Bytes stream = StreamBuilder(4)
                           .Type(1)
                           .Events(EventBlockBuilder()
                                       .Add(EventOf(1, 1, 10, false))
                                       .Add(EventOf(2, 1, 3))
                                       .Add(EventOf(2, 2, 4))
                                       .content())
                           .End()
                           .bytes();
  const CollectedTrace trace = Collect(stream);
  EXPECT_TRUE(trace.summary.complete);
  EXPECT_EQ(TimesOf(trace), (std::vector<std::uint64_t>{3, 4, 10}));
}

}  // namespace
}  // namespace stackpipe::nettrace
