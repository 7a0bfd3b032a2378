// SPDX-License-Identifier: MIT
//
// What only version 6 has: a table of threads, and blocks that may be extended.
#include <gtest/gtest.h>

#include "nettrace/collected_events.h"
#include "nettrace/reader.h"

namespace stackpipe::nettrace {
namespace {

constexpr std::uint64_t kSync = StreamBuilder::kSync;

BlobHeader EventOf(std::uint64_t index, std::uint32_t sequence, std::uint64_t time, bool sorted = true) {
  BlobHeader header;
  header.metadata_id = 1;
  header.sequence = sequence;
  header.capture_thread = index;
  header.thread = index;
  header.timestamp = kSync + time;
  header.sorted = sorted;
  return header;
}

StatusCode StatusOf(const StreamBuilder& stream) { return Collect(stream.bytes()).summary.status.code(); }

TEST(ReaderV6Test, TinyStreamIsReadFieldByField) {
  const CollectedTrace trace = Collect(ReadFile(STACKPIPE_GOLDEN "/tiny_v6.nettrace"));
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  EXPECT_EQ(trace.info.version, 6);
  EXPECT_EQ(trace.info.process_id, 4242u);
  EXPECT_EQ(trace.info.processor_count, 2);
  EXPECT_EQ(trace.info.sync_ticks, 1'000'000'000'000u);
  EXPECT_EQ(trace.thread_names,
            (std::vector<std::pair<std::uint64_t, std::string>>{{1001, "worker"}, {2000, "sampler"}}));
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(trace.events[0].thread_id, 1001u) << "the OS id, not the index";
  EXPECT_EQ(trace.events[0].capture_thread_id, 2000u);
  EXPECT_EQ(trace.events[0].stack, (std::vector<std::uint64_t>{0x7f0000001010, 0x7f0000002020}));
  EXPECT_EQ(trace.types[0].level, 4);
  ASSERT_EQ(trace.types[0].fields.size(), 1u);
  EXPECT_EQ(trace.types[0].fields[0].name, "Type");
  EXPECT_EQ(trace.types[0].fields[0].type, 9);
}

TEST(ReaderV6Test, ThreadsMustBeDeclaredOnce) {
  const Bytes events = EventBlockBuilder().Add(EventOf(1, 1, 1)).content();
  EXPECT_EQ(StatusOf(StreamBuilder(6).Type(1).Thread6(1, 100).Events(events).End()), StatusCode::kOk);
  EXPECT_EQ(StatusOf(StreamBuilder(6).Type(1).Thread6(2, 100).Events(events).End()), StatusCode::kFormat);
  EXPECT_EQ(StatusOf(StreamBuilder(6).Thread6(1, 100).Thread6(1, 100).End()), StatusCode::kFormat);
  EXPECT_EQ(StatusOf(StreamBuilder(6).Point(kSync, {{1, 0}}).End()), StatusCode::kFormat);
  BlobHeader other_thread = EventOf(1, 1, 1);
  other_thread.thread = 2;
  EXPECT_EQ(StatusOf(StreamBuilder(6).Type(1).Thread6(1, 100).Events(
                EventBlockBuilder().Add(other_thread).content())),
            StatusCode::kFormat);
}

TEST(ReaderV6Test, TheFirstNumberOfAThreadIsOne) {
  StreamBuilder stream(6);
  stream.Type(1).Thread6(1, 100).Events(EventBlockBuilder().Add(EventOf(1, 4, 1)).content());
  EXPECT_EQ(Collect(stream.Point(kSync + 2, {{1, 6}}).End().bytes()).summary.lost, 3u + 2u);
}

TEST(ReaderV6Test, RemovedThreads) {
  StreamBuilder stream(6);
  stream.Type(1).Thread6(1, 100).Thread6(100, 7);
  stream.Events(EventBlockBuilder().Add(EventOf(1, 1, 5, false)).content());
  stream.Block(7, "", Assembler().VarUint(1).VarUint(3).bytes());
  stream.Thread6(1, 200, "again").Events(EventBlockBuilder().Add(EventOf(1, 1, 6, false)).content());
  stream.Events(EventBlockBuilder().Add(EventOf(100, 1, 4, false)).content());
  const CollectedTrace trace = Collect(stream.End().bytes());
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  EXPECT_EQ(trace.summary.lost, 2u);
  ASSERT_EQ(trace.events.size(), 3u);
  EXPECT_EQ(trace.events[0].thread_id, 7u) << "a thread whose index is another's OS id stays";
  EXPECT_EQ(trace.events[1].thread_id, 100u) << "delivered although the thread was removed";
  EXPECT_EQ(trace.events[2].thread_id, 200u);
  EXPECT_EQ(StatusOf(StreamBuilder(6).Block(7, "", Assembler().VarUint(1).VarUint(3).bytes())),
            StatusCode::kFormat);
}

TEST(ReaderV6Test, ASequencePointCanEmptyTheTables) {
  const Bytes events = EventBlockBuilder().Add(EventOf(1, 1, 5)).content();
  StreamBuilder stream(6);
  stream.Type(1).Thread6(1, 100).Events(events).Point(kSync + 6, {{1, 1}}, 3);
  stream.Type(1, "Q").Thread6(1, 200).Events(events);
  const CollectedTrace trace = Collect(stream.End().bytes());
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(trace.events[0].type, "P/1");
  EXPECT_EQ(trace.events[1].type, "Q/1");
  EXPECT_EQ(trace.events[1].thread_id, 200u);
  EXPECT_EQ(StatusOf(StreamBuilder(6).Type(1).Thread6(1, 100).Point(kSync + 6, {}, 1).Events(events)),
            StatusCode::kFormat);
  EXPECT_EQ(StatusOf(StreamBuilder(6).Type(1).Thread6(1, 100).Point(kSync + 6, {}, 2).Events(events)),
            StatusCode::kFormat);
}

TEST(ReaderV6Test, LabelsAreSkipped) {
  Assembler content;
  content.Put(std::uint16_t{20}).Put(std::uint16_t{1}).Put(kSync).Put(kSync);
  content.Put(std::uint8_t{0x01 | 0x02 | 0x04 | 0x10 | 0x40 | 0x80})
      .VarUint(1)
      .VarUint(0)
      .VarUint(1)
      .VarUint(2);
  content.VarUint(1).VarUint(kSync + 1).VarUint(300).VarUint(3).Text("abc");
  StreamBuilder stream(6);
  stream.Type(1).Thread6(1, 100).Block(8, "", Bytes(9)).Events(content.bytes());
  const CollectedTrace trace = Collect(stream.End().bytes());
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  ASSERT_EQ(trace.events.size(), 1u);
  EXPECT_EQ(trace.events[0].payload.size(), 3u);
}

TEST(ReaderV6Test, WhatAThreadRowMayHold) {
  Assembler row;
  row.VarUint(1).Put(std::uint8_t{4}).Utf8("key").Utf8("value").Put(std::uint8_t{3}).VarUint(9);
  row.Put(std::uint8_t{1}).Utf8("name").Put(std::uint8_t{77}).Text("what is this");
  Assembler content;
  content.Put(static_cast<std::uint16_t>(row.bytes().size())).Add(row.bytes());
  const CollectedTrace trace = Collect(StreamBuilder(6).Block(6, "", content.bytes()).End().bytes());
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  EXPECT_EQ(trace.thread_names, (std::vector<std::pair<std::uint64_t, std::string>>{{9, "name"}}));
  Assembler broken;
  broken.Put(std::uint16_t{3}).VarUint(1).Put(std::uint8_t{1}).VarUint(20);
  EXPECT_EQ(StatusOf(StreamBuilder(6).Block(6, "", broken.bytes())), StatusCode::kFormat);
}

}  // namespace
}  // namespace stackpipe::nettrace
