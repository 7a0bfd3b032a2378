// SPDX-License-Identifier: MIT
//
// Files, plain and compressed.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zstd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <thread>

#include "nettrace/collected_events.h"
#include "nettrace/reader.h"

namespace stackpipe::nettrace {
namespace {

Bytes Compress(std::span<const std::byte> bytes, bool checksum = false) {
  Bytes out(ZSTD_compressBound(bytes.size()));
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, checksum ? 1 : 0);
  out.resize(ZSTD_compress2(context, out.data(), out.size(), bytes.data(), bytes.size()));
  ZSTD_freeCCtx(context);
  return out;
}

class ByteSourceTest : public testing::Test {
 protected:
  std::string Path() const {
    const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
    return testing::TempDir() + info->test_suite_name() + "." + info->name();
  }
  void TearDown() override { std::remove(Path().c_str()); }

  CollectedTrace CollectFile(std::span<const std::byte> bytes) {
    std::FILE* file = std::fopen(Path().c_str(), "wb");
    EXPECT_NE(file, nullptr);
    EXPECT_TRUE(bytes.empty() || std::fwrite(bytes.data(), bytes.size(), 1, file) == 1);
    EXPECT_EQ(std::fclose(file), 0);
    Result<std::unique_ptr<ByteSource>> source = OpenFile(Path().c_str());
    EXPECT_TRUE(source.ok());
    return Collect(*source.value());
  }

  // Header and Trace, metadata, stacks, events, the rest: as a writer that flushes often would compress them.
  std::vector<std::span<const std::byte>> PartsOf(std::span<const std::byte> stream) {
    std::vector<std::span<const std::byte>> parts;
    std::size_t begin = 0;
    for (const StreamBlock& block : BlocksOf(stream)) {
      parts.push_back(stream.subspan(begin, block.end - begin));
      begin = block.end;
    }
    parts.push_back(stream.subspan(begin));
    return parts;
  }

  const Bytes stream_ = ReadFile(STACKPIPE_GOLDEN "/full_v4.nettrace");
  const CollectedTrace expected_ = Collect(stream_);
};

TEST_F(ByteSourceTest, PlainFile) {
  const CollectedTrace trace = CollectFile(stream_);
  EXPECT_TRUE(trace.summary.complete);
  EXPECT_EQ(trace.events, expected_.events);
}

TEST_F(ByteSourceTest, FilesTooShortToTellWhatTheyAre) {
  EXPECT_EQ(CollectFile({}).summary.status.code(), StatusCode::kTruncated);
  EXPECT_EQ(CollectFile(std::span(stream_).first(3)).summary.status.code(), StatusCode::kTruncated);
  const Bytes compressed = Compress(stream_);
  EXPECT_EQ(CollectFile(std::span(compressed).first(3)).summary.status.code(), StatusCode::kFormat);
  EXPECT_EQ(CollectFile(std::span(compressed).first(4)).summary.status.code(), StatusCode::kTruncated);
}

TEST_F(ByteSourceTest, FilesThatAreNotThere) {
  const auto missing = OpenFile("/nonexistent/file");
  EXPECT_EQ(missing.status().code(), StatusCode::kIo);
  EXPECT_EQ(missing.status().os_error(), ENOENT);
  const auto directory = OpenFile("/");
  EXPECT_EQ(directory.status().code(), StatusCode::kIo);
  EXPECT_EQ(directory.status().os_error(), EISDIR);
}

TEST_F(ByteSourceTest, OneFrame) {
  const CollectedTrace trace = CollectFile(Compress(stream_, true));
  EXPECT_TRUE(trace.summary.complete);
  EXPECT_EQ(trace.events, expected_.events);
}

TEST_F(ByteSourceTest, IndependentFrames) {
  Assembler frames;
  for (const auto part : PartsOf(stream_)) frames.Add(Compress(part));
  const CollectedTrace trace = CollectFile(frames.bytes());
  EXPECT_TRUE(trace.summary.complete);
  EXPECT_EQ(trace.summary.bytes, stream_.size()) << "of the stream, not of the file";
  EXPECT_EQ(trace.events, expected_.events);
}

TEST_F(ByteSourceTest, AFrameThatWasCut) {
  Assembler frames;
  std::vector<std::size_t> frame_ends;
  for (const auto part : PartsOf(stream_)) frame_ends.push_back(frames.Add(Compress(part)).bytes().size());
  ASSERT_EQ(frame_ends.size(), 6u);
  std::size_t most = 0;
  for (std::size_t size = 4; size < frames.bytes().size(); size += 5) {
    const CollectedTrace trace = CollectFile(std::span(frames.bytes()).first(size));
    ASSERT_EQ(trace.summary.status.code(), StatusCode::kTruncated) << size;
    ASSERT_GE(trace.events.size(), most);
    ASSERT_TRUE(std::equal(trace.events.begin(), trace.events.end(), expected_.events.begin()));
    most = trace.events.size();
    const bool events_are_whole = size >= frame_ends[3];
    ASSERT_EQ(most == expected_.events.size(), events_are_whole) << size;
  }
}

TEST_F(ByteSourceTest, ABrokenFrameComesBehindGoodOnes) {
  Assembler frames;
  for (const auto part : PartsOf(stream_)) frames.Add(Compress(part));
  frames.Text("no frame at all");
  const CollectedTrace trace = CollectFile(frames.bytes());
  EXPECT_EQ(trace.summary.status.code(), StatusCode::kFormat);
  EXPECT_FALSE(trace.summary.complete);
  EXPECT_EQ(trace.events, expected_.events);
}

TEST_F(ByteSourceTest, LargeFramesAreReadInPieces) {
  Assembler stream;
  stream.Add(StreamBuilder(6).bytes());
  const Bytes noise(1'000'000, std::byte{7});
  for (int i = 0; i < 5; ++i) stream.Put(std::uint32_t{99} << 24 | 1'000'000).Add(noise);
  stream.Put(std::uint32_t{0});
  const CollectedTrace trace = CollectFile(Compress(stream.bytes()));
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  EXPECT_EQ(trace.summary.bytes, stream.bytes().size());
}

TEST_F(ByteSourceTest, Pipes) {
  ASSERT_EQ(mkfifo(Path().c_str(), 0600), 0);
  const Bytes compressed = Compress(stream_);
  std::thread writer([&] {
    std::FILE* file = std::fopen(Path().c_str(), "wb");
    std::setvbuf(file, nullptr, _IONBF, 0);
    for (const std::byte byte : compressed) std::fwrite(&byte, 1, 1, file);
    std::fclose(file);
  });
  Result<std::unique_ptr<ByteSource>> source = OpenFile(Path().c_str());
  ASSERT_TRUE(source.ok());
  const CollectedTrace trace = Collect(*source.value());
  writer.join();
  EXPECT_TRUE(trace.summary.complete);
  EXPECT_EQ(trace.events, expected_.events);
}

}  // namespace
}  // namespace stackpipe::nettrace
