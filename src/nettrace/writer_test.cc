// SPDX-License-Identifier: MIT
#include "nettrace/writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>

#include "nettrace/byte_reader.h"
#include "nettrace/clr_events.h"
#include "nettrace/stream_blocks.h"

namespace stackpipe::nettrace {
namespace {

constexpr std::uint64_t kSync = 1'000'000'000'000;
constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kThread = 1001;
constexpr std::uint64_t kCaptureThread = 2000;

StreamHeader GoldenHeader() {
  return {
      .utc = {2026, 1, 5, 2, 3, 4, 5, 678}, .sync_ticks = kSync, .process_id = 4242, .processor_count = 2};
}

Bytes Int32(std::int32_t value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::string> NamesOf(const std::vector<StreamBlock>& blocks) {
  std::vector<std::string> names;
  for (const StreamBlock& block : blocks) names.push_back(block.name);
  return names;
}

class WriterTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(writer_.Begin(GoldenHeader()).ok()); }

  Status Sample(std::uint64_t time, const std::vector<std::uint64_t>& stack) {
    return writer_.Event(kSampleType, time, kThread, true, stack, Int32(2));
  }

  MemorySink sink_;
  Writer writer_{sink_, kCaptureThread};
};

TEST_F(WriterTest, WritesTheGoldenBytes) {
  const std::uint64_t stack[] = {0x7f0000001010, 0x7f0000002020};
  ASSERT_TRUE(writer_.Event(kSampleType, kSync + kMs, kThread, true, stack, Int32(2)).ok());
  ASSERT_TRUE(writer_.Event(kSampleType, kSync + 2 * kMs, kThread, false, stack, Int32(2)).ok());
  ASSERT_TRUE(writer_.End(kSync + 3 * kMs).ok());
  const Bytes golden = ReadFile(STACKPIPE_GOLDEN "/tiny_v4.nettrace");
  ASSERT_EQ(golden.size(), 466u);
  EXPECT_EQ(sink_.bytes, golden);
  EXPECT_EQ(writer_.bytes(), 466u);
}

TEST_F(WriterTest, MetadataStacksEventsComeInThisOrderAndInOneWrite) {
  ASSERT_TRUE(Sample(kSync + 1, {1}).ok());
  ASSERT_TRUE(writer_.Event(kThreadNameType, kSync + 2, kThread, true, {}, {}).ok());
  EXPECT_EQ(sink_.ends.size(), 1u) << "only the header is out before a flush";
  ASSERT_TRUE(writer_.Flush().ok());
  ASSERT_TRUE(Sample(kSync + 3, {1}).ok());
  ASSERT_TRUE(writer_.Flush().ok());
  ASSERT_TRUE(writer_.Flush().ok());
  const std::vector<StreamBlock> blocks = BlocksOf(sink_.bytes);
  EXPECT_EQ(NamesOf(blocks),
            (std::vector<std::string>{"Trace", "MetadataBlock", "StackBlock", "EventBlock", "EventBlock"}));
  EXPECT_EQ(sink_.ends, (std::vector<std::size_t>{blocks[0].end, blocks[3].end, blocks[4].end}));
}

// Trap 1: readers switch threads on sorted events only, and need each capture thread in time order.
TEST_F(WriterTest, RefusesTimesThatGoBack) {
  ASSERT_TRUE(Sample(kSync + 10, {1}).ok());
  EXPECT_EQ(Sample(kSync + 9, {1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer_.SequencePoint(kSync + 9).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer_.End(kSync + 9).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Sample(kSync + 10, {1}).ok());
  ASSERT_TRUE(writer_.SequencePoint(kSync + 20).ok());
  EXPECT_EQ(Sample(kSync + 19, {1}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Sample(kSync + 20, {1}).ok());
}

// Trap 10: a relative time of 0 means "no time" to readers.
TEST_F(WriterTest, RefusesTimesUpToTheSyncTime) {
  EXPECT_EQ(Sample(kSync, {1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Sample(0, {1}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Sample(kSync + 1, {1}).ok());
}

// Trap 2.
TEST_F(WriterTest, StackIdsAreUniqueInARegionAndStartAgainAfterIt) {
  ASSERT_TRUE(Sample(kSync + 1, {1, 2}).ok());
  ASSERT_TRUE(Sample(kSync + 2, {1, 3}).ok());
  ASSERT_TRUE(writer_.Flush().ok());
  ASSERT_TRUE(Sample(kSync + 3, {1, 2}).ok());
  ASSERT_TRUE(Sample(kSync + 4, {4}).ok());
  ASSERT_TRUE(writer_.SequencePoint(kSync + 5).ok());
  ASSERT_TRUE(Sample(kSync + 6, {1, 3}).ok());
  ASSERT_TRUE(writer_.End(kSync + 7).ok());
  std::vector<std::pair<std::uint32_t, std::uint32_t>> first_and_count;
  for (const StreamBlock& block : BlocksOf(sink_.bytes)) {
    if (block.name == "StackBlock") {
      first_and_count.emplace_back(At<std::uint32_t>(block.content, 0), At<std::uint32_t>(block.content, 4));
    }
    if (block.name == "SPBlock") first_and_count.emplace_back(0, 0);
  }
  EXPECT_EQ(first_and_count,
            (std::vector<std::pair<std::uint32_t, std::uint32_t>>{{1, 2}, {3, 1}, {0, 0}, {1, 1}, {0, 0}}));
}

// Trap 2.
TEST_F(WriterTest, ATypeIsDescribedOnceEvenAfterASequencePoint) {
  ASSERT_TRUE(Sample(kSync + 1, {1}).ok());
  ASSERT_TRUE(writer_.SequencePoint(kSync + 2).ok());
  ASSERT_TRUE(Sample(kSync + 3, {1}).ok());
  ASSERT_TRUE(writer_.End(kSync + 4).ok());
  const std::vector<std::string> names = NamesOf(BlocksOf(sink_.bytes));
  EXPECT_EQ(std::count(names.begin(), names.end(), "MetadataBlock"), 1);
}

// Trap 3: padding counts from the start of the stream.
TEST_F(WriterTest, BlockContentsAreAligned) {
  std::uint64_t time = kSync;
  std::mt19937 random(3);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(writer_.Event(kThreadNameType, ++time, random() % 1000, true, {}, Bytes(random() % 50)).ok());
    ASSERT_TRUE(writer_.Flush().ok());
  }
  const std::vector<StreamBlock> blocks = BlocksOf(sink_.bytes);
  EXPECT_EQ(blocks.size(), 102u);
  std::size_t sum_of_ends = 0;
  for (const StreamBlock& block : blocks) {
    if (block.name == "Trace") continue;
    EXPECT_EQ(block.content_at % 4, 0u);
    sum_of_ends |= block.end % 4;
  }
  EXPECT_EQ(sum_of_ends, 3u) << "blocks must end anywhere for this test to mean something";
}

// Trap 4: a sequence number is written as its distance less one, and left out when it is the next one.
TEST_F(WriterTest, SequenceNumbers) {
  ASSERT_TRUE(writer_.Event(kThreadNameType, kSync + 1, kThread, true, {}, {}).ok());
  ASSERT_TRUE(writer_.Event(kThreadNameType, kSync + 2, kThread, true, {}, {}).ok());
  writer_.SkipSequence(5);
  ASSERT_TRUE(writer_.Event(kThreadNameType, kSync + 3, kThread, true, {}, {}).ok());
  writer_.SkipSequence(3);
  ASSERT_TRUE(writer_.End(kSync + 4).ok());
  const std::vector<StreamBlock> blocks = BlocksOf(sink_.bytes);
  ASSERT_EQ(NamesOf(blocks), (std::vector<std::string>{"Trace", "MetadataBlock", "EventBlock", "SPBlock"}));

  ByteReader metadata(std::span(blocks[1].content).subspan(20));
  EXPECT_EQ(metadata.Take<std::uint8_t>(), 0xc0) << "sorted, payload size; no sequence number";

  ByteReader events(std::span(blocks[2].content).subspan(20));
  EXPECT_EQ(events.Take<std::uint8_t>(), 0x47) << "type, sequence, thread, sorted";
  EXPECT_EQ(events.TakeVarUint<std::uint32_t>(), 1u);
  EXPECT_EQ(events.TakeVarUint<std::uint32_t>(), 0u) << "number 1 is 0 + 0 + 1";
  EXPECT_EQ(events.TakeVarUint<std::uint64_t>(), kCaptureThread);
  EXPECT_EQ(events.TakeVarUint<std::uint32_t>(), 0xffff'ffff) << "processor not known";
  EXPECT_EQ(events.TakeVarUint<std::uint64_t>(), kThread);
  EXPECT_EQ(events.TakeVarUint<std::uint64_t>(), kSync + 1);
  EXPECT_EQ(events.Take<std::uint8_t>(), 0x40);
  EXPECT_EQ(events.TakeVarUint<std::uint64_t>(), 1u);
  EXPECT_EQ(events.Take<std::uint8_t>(), 0x42);
  EXPECT_EQ(events.TakeVarUint<std::uint32_t>(), 5u);
  EXPECT_EQ(events.TakeVarUint<std::uint64_t>(), kCaptureThread);
  EXPECT_EQ(events.TakeVarUint<std::uint32_t>(), 0xffff'ffff);
  EXPECT_EQ(events.TakeVarUint<std::uint64_t>(), 1u);
  EXPECT_EQ(events.left(), 0u);

  EXPECT_EQ(At<std::uint64_t>(blocks[3].content, 0), kSync + 4);
  EXPECT_EQ(At<std::uint32_t>(blocks[3].content, 8), 1u);
  EXPECT_EQ(At<std::uint64_t>(blocks[3].content, 12), kCaptureThread);
  EXPECT_EQ(At<std::uint32_t>(blocks[3].content, 20), 11u) << "attempted: 3 events and 8 that were skipped";
}

// Trap 7.
TEST_F(WriterTest, LimitsOfStackAndPayload) {
  EXPECT_TRUE(Sample(kSync + 1, std::vector<std::uint64_t>(65'527 / 8, 5)).ok());
  EXPECT_EQ(Sample(kSync + 1, std::vector<std::uint64_t>(65'527 / 8 + 1, 5)).code(), StatusCode::kLimit);
  EXPECT_TRUE(writer_.Event(kThreadNameType, kSync + 1, kThread, true, {}, Bytes(65'535)).ok());
  EXPECT_EQ(writer_.Event(kThreadNameType, kSync + 1, kThread, true, {}, Bytes(65'536)).code(),
            StatusCode::kLimit);
  ASSERT_TRUE(writer_.End(kSync + 2).ok());
  EXPECT_EQ(At<std::uint32_t>(BlocksOf(sink_.bytes).back().content, 20), 2u)
      << "refused events are not counted";
}

// Trap 7.
TEST_F(WriterTest, MetadataThatIsTooLongIsRefused) {
  const std::string long_name(33'000, 'n');
  const TypeInfo type{"P", 1, long_name.c_str(), 0, 0, 4, {}};
  EXPECT_EQ(writer_.Event(type, kSync + 1, kThread, true, {}, {}).code(), StatusCode::kLimit);
}

// Trap 7.
TEST_F(WriterTest, BlocksStayBelow100KiB) {
  std::uint64_t time = kSync;
  std::mt19937 random(7);
  std::vector<TypeInfo> types(300);
  for (TypeInfo& type : types) type = {"A provider with a long name", 1, "Event", 0, 0, 4, {}};
  const std::string name(300, 'n');
  for (std::size_t i = 0; i < 3000; ++i) {
    const TypeInfo& type = types[i % types.size()];
    std::vector<std::uint64_t> stack(random() % 200);
    for (std::uint64_t& address : stack) address = random() % 8;
    ASSERT_TRUE(
        writer_.Event(type, ++time, i % 7, true, stack, Bytes(i % 3 == 0 ? random() % 65'536 : 4)).ok());
  }
  ASSERT_TRUE(writer_.End(time).ok());
  std::size_t largest = 0;
  for (const StreamBlock& block : BlocksOf(sink_.bytes)) largest = std::max(largest, block.content.size());
  EXPECT_LE(largest, 100u * 1024);
  EXPECT_GT(largest, 99u * 1024);
}

// Trap 8: what the sink has got ends between blocks, always; the end mark comes with the last blocks.
TEST_F(WriterTest, EachWriteEndsBetweenBlocks) {
  std::uint64_t time = kSync;
  for (std::uint64_t i = 0; i < 20'000; ++i) ASSERT_TRUE(Sample(++time, {i, i + 1, i + 2}).ok());
  ASSERT_TRUE(writer_.End(++time).ok());
  ASSERT_GT(sink_.ends.size(), 5u);
  std::vector<std::size_t> block_ends;
  for (const StreamBlock& block : BlocksOf(sink_.bytes)) block_ends.push_back(block.end);
  for (const std::size_t end : sink_.ends) {
    const std::size_t behind_end_tag = end == sink_.bytes.size() ? 1 : 0;
    EXPECT_TRUE(std::binary_search(block_ends.begin(), block_ends.end(), end - behind_end_tag)) << end;
  }
  EXPECT_EQ(sink_.bytes.back(), std::byte{1});
}

TEST_F(WriterTest, AStackIsWrittenOnceInARegion) {
  std::uint64_t time = kSync;
  std::vector<std::uint64_t> stack(50);
  for (int i = 0; i < 100'000; ++i) {
    stack[0] = static_cast<std::uint64_t>(i) % 100;
    ASSERT_TRUE(Sample(++time, stack).ok());
  }
  const std::uint64_t stacks = 100 * (4 + 50 * 8);
  EXPECT_LT(writer_.stack_bytes(), stacks + 100'000 * 8);
  EXPECT_GT(writer_.stack_bytes(), stacks + 100'000 * 3);
}

TEST_F(WriterTest, StackBytesAreThoseOfStacksAndTheirEvents) {
  ASSERT_TRUE(writer_.Event(kThreadNameType, kSync + 1, kThread, true, {}, Bytes(1000)).ok());
  EXPECT_EQ(writer_.stack_bytes(), 0u);
  ASSERT_TRUE(Sample(kSync + 2, {1, 2}).ok());
  // A stack of 4 + 16; flags, type, stack, time, payload size 1 each, payload 4.
  EXPECT_EQ(writer_.stack_bytes(), 20u + 9u);
  ASSERT_TRUE(Sample(kSync + 3, {1, 2}).ok());
  EXPECT_EQ(writer_.stack_bytes(), 29u + 6u);
}

TEST_F(WriterTest, AsksForASequencePointBeforeItForgetsStacks) {
  std::uint64_t time = kSync;
  std::vector<std::uint64_t> stack(99);
  std::uint64_t distinct = 0;
  while (!writer_.WantsSequencePoint()) {
    stack[0] = ++distinct;
    ASSERT_TRUE(Sample(++time, stack).ok());
    ASSERT_LT(distinct, 100'000u);
  }
  EXPECT_GT(distinct, 4000u);
  const std::uint64_t before = writer_.stack_bytes();
  stack[0] = 1;
  ASSERT_TRUE(Sample(++time, stack).ok());
  EXPECT_LT(writer_.stack_bytes() - before, 20u) << "known until the sequence point";
  ASSERT_TRUE(writer_.SequencePoint(++time).ok());
  EXPECT_FALSE(writer_.WantsSequencePoint());
  ASSERT_TRUE(Sample(++time, stack).ok());
  EXPECT_GT(writer_.stack_bytes() - before, 99u * 8);
}

TEST_F(WriterTest, FourBytePointers) {
  MemorySink sink;
  Writer writer(sink, kCaptureThread);
  StreamHeader header = GoldenHeader();
  header.pointer_size = 4;
  ASSERT_TRUE(writer.Begin(header).ok());
  const std::uint64_t stack[] = {0x1000, 0xfffffff0};
  ASSERT_TRUE(writer.Event(kSampleType, kSync + 1, kThread, true, stack, Int32(2)).ok());
  ASSERT_TRUE(writer.Flush().ok());
  const StreamBlock block = BlocksOf(sink.bytes)[2];
  ASSERT_EQ(block.name, "StackBlock");
  ASSERT_EQ(block.content.size(), 8u + 4 + 8);
  EXPECT_EQ(At<std::uint32_t>(block.content, 8), 8u);
  EXPECT_EQ(At<std::uint32_t>(block.content, 16), 0xfffffff0u);
}

TEST(WriterOrderTest, CallsInTheWrongOrder) {
  MemorySink sink;
  Writer writer(sink, kCaptureThread);
  EXPECT_EQ(writer.Event(kSampleType, kSync, kThread, true, {}, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.Flush().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.End(kSync).code(), StatusCode::kInvalidArgument);
  StreamHeader header = GoldenHeader();
  header.pointer_size = 16;
  EXPECT_EQ(writer.Begin(header).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(writer.Begin(GoldenHeader()).ok());
  EXPECT_EQ(writer.Begin(GoldenHeader()).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(writer.End(kSync + 1).ok());
  const std::size_t size = sink.bytes.size();
  EXPECT_EQ(writer.Event(kSampleType, kSync + 2, kThread, true, {}, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.Flush().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer.End(kSync + 2).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sink.bytes.size(), size);
}

TEST(WriterErrorTest, TheFirstErrorOfTheSinkStays) {
  MemorySink sink;
  sink.fail_with = {StatusCode::kIo, "disk full", 28};
  sink.fail_from = 2;
  Writer writer(sink, kCaptureThread);
  ASSERT_TRUE(writer.Begin(GoldenHeader()).ok());
  ASSERT_TRUE(writer.Event(kSampleType, kSync + 1, kThread, true, {}, {}).ok());
  ASSERT_TRUE(writer.Flush().ok());
  const std::uint64_t written = writer.bytes();
  ASSERT_TRUE(writer.Event(kSampleType, kSync + 2, kThread, true, {}, {}).ok());
  EXPECT_EQ(writer.Flush().os_error(), 28);
  sink.fail_from = SIZE_MAX;  // the sink would take more: the stream has lost a block and must not go on
  EXPECT_EQ(writer.Flush().code(), StatusCode::kIo);
  EXPECT_EQ(writer.Event(kSampleType, kSync + 3, kThread, true, {}, {}).code(), StatusCode::kIo);
  EXPECT_EQ(writer.SequencePoint(kSync + 3).code(), StatusCode::kIo);
  EXPECT_EQ(writer.End(kSync + 3).code(), StatusCode::kIo);
  EXPECT_EQ(writer.bytes(), written);
  EXPECT_EQ(sink.bytes.size(), written);
}

TEST(WriterErrorTest, AnErrorInTheMiddleOfAnEventCall) {
  MemorySink sink;
  sink.fail_with = {StatusCode::kIo, "disk full", 28};
  sink.fail_from = 1;
  Writer writer(sink, kCaptureThread);
  ASSERT_TRUE(writer.Begin(GoldenHeader()).ok());
  const Bytes payload(60'000);
  ASSERT_TRUE(writer.Event(kSampleType, kSync + 1, kThread, true, {}, payload).ok());
  EXPECT_EQ(writer.Event(kSampleType, kSync + 2, kThread, true, {}, payload).code(), StatusCode::kIo);
  EXPECT_EQ(BlocksOf(sink.bytes).size(), 1u);
}

// Leaves a file for the strict reader (the test nettrace_strict_reader): all types, several regions, lost
// events.
TEST(WriterFileTest, WritesAFileForTheStrictReader) {
  MemorySink sink;
  Writer writer(sink, kCaptureThread);
  ASSERT_TRUE(writer.Begin(GoldenHeader()).ok());
  const TypeInfo* types[] = {
      &kSampleType,      &kProcessInfoType,   &kMethodLoadVerboseType,  &kMethodUnloadVerboseType,
      &kModuleLoadType,  &kModuleUnloadType,  &kAppDomainLoadType,      &kAppDomainUnloadType,
      &kDcEndInitType,   &kDcEndCompleteType, &kModuleDcEndType,        &kSessionStartType,
      &kThreadNameType,  &kCodeInfoType,      &kThreadTotalsType,       &kModulePhaseType,
      &kDomainPhaseType, &kSessionEndType,    &kMethodDcEndVerboseType,
  };
  std::mt19937 random(11);
  std::uint64_t time = kSync;
  for (int i = 0; i < 20'000; ++i) {
    const TypeInfo& type = i % 4 == 0 ? *types[random() % std::size(types)] : kSampleType;
    std::vector<std::uint64_t> stack(random() % 5 == 0 ? 0 : 1 + random() % 40);
    for (std::uint64_t& address : stack) address = 0x7f0000000000 + random() % 3;
    time += 1 + random() % 100'000;
    ASSERT_TRUE(
        writer.Event(type, time, 1 + random() % 5, random() % 3 != 0, stack, Bytes(random() % 40)).ok());
    if (random() % 500 == 0) {
      ASSERT_TRUE(writer.Flush().ok());
    }
    if (random() % 3000 == 0) {
      ASSERT_TRUE(writer.SequencePoint(time).ok());
    }
    if (random() % 100 == 0) writer.SkipSequence(static_cast<std::uint32_t>(random() % 10));
  }
  ASSERT_TRUE(writer.End(time + 1).ok());
  std::FILE* file = std::fopen(STACKPIPE_WRITTEN, "wb");
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(std::fwrite(sink.bytes.data(), 1, sink.bytes.size(), file), sink.bytes.size());
  EXPECT_EQ(std::fclose(file), 0);
}

}  // namespace
}  // namespace stackpipe::nettrace
