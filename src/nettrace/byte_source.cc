// SPDX-License-Identifier: MIT
//
// The byte sources of reader.h: memory, files, and zstd frames in files.
#include <fcntl.h>
#include <unistd.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "nettrace/reader.h"

namespace stackpipe::nettrace {

namespace {

class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Result<std::size_t> Read(std::byte* to, std::size_t size) override {
    const std::size_t piece = std::min(size, bytes_.size());
    if (piece != 0) std::memcpy(to, bytes_.data(), piece);
    bytes_ = bytes_.subspan(piece);
    return piece;
  }

 private:
  std::span<const std::byte> bytes_;
};

constexpr std::array kZstdMagic = {std::byte{0x28}, std::byte{0xb5}, std::byte{0x2f}, std::byte{0xfd}};

class FileSource : public ByteSource {
 public:
  FileSource() = default;
  ~FileSource() override {
    if (fd_ >= 0) close(fd_);
  }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  // Opens the file and reads its first bytes: that way a directory is found out here, and a pipe works.
  Status Open(const char* path) {
    fd_ = open(path, O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) return {StatusCode::kIo, "open of a trace", errno};
    while (head_size_ < head_.size()) {
      const Result<std::size_t> got = ReadFile(head_.data() + head_size_, head_.size() - head_size_);
      if (!got.ok()) return got.status();
      if (got.value() == 0) break;
      head_size_ += got.value();
    }
    return {};
  }

  bool is_zstd() const { return head_ == kZstdMagic; }

  Result<std::size_t> Read(std::byte* to, std::size_t size) override {
    if (head_used_ == head_size_) return ReadFile(to, size);
    const std::size_t piece = std::min(size, head_size_ - head_used_);
    std::memcpy(to, head_.data() + head_used_, piece);
    head_used_ += piece;
    return piece;
  }

 private:
  Result<std::size_t> ReadFile(std::byte* to, std::size_t size) {
    ssize_t got = 0;
    do {
      got = read(fd_, to, size);
    } while (got < 0 && errno == EINTR);
    if (got < 0) return Status{StatusCode::kIo, "read of a trace", errno};
    return static_cast<std::size_t>(got);
  }

  int fd_ = -1;
  std::array<std::byte, kZstdMagic.size()> head_{};
  std::size_t head_size_ = 0;
  std::size_t head_used_ = 0;
};

// Frames one behind the other. A last frame that was cut yields what its whole blocks hold, then the end.
class ZstdSource : public ByteSource {
 public:
  explicit ZstdSource(std::unique_ptr<ByteSource> source)
      : source_(std::move(source)), context_(ZSTD_createDCtx()) {}
  ~ZstdSource() override { ZSTD_freeDCtx(context_); }
  ZstdSource(const ZstdSource&) = delete;
  ZstdSource& operator=(const ZstdSource&) = delete;

  Result<std::size_t> Read(std::byte* to, std::size_t size) override {
    if (context_ == nullptr) return Status{StatusCode::kOutOfMemory, "zstd context"};
    ZSTD_outBuffer out{to, size, 0};
    while (true) {
      // Also without input: the decoder may hold more output than the last call had room for.
      const std::size_t result = ZSTD_decompressStream(context_, &out, &in_);
      if (ZSTD_isError(result)) return ErrorOf(result);
      if (out.pos != 0) return out.pos;
      if (in_.pos < in_.size) continue;
      const Result<std::size_t> got = source_->Read(buffer_.data(), buffer_.size());
      if (!got.ok() || got.value() == 0) return got;
      in_ = {buffer_.data(), got.value(), 0};
    }
  }

 private:
  static Status ErrorOf(std::size_t result) {
    switch (ZSTD_getErrorCode(result)) {
      case ZSTD_error_memory_allocation:
        return {StatusCode::kOutOfMemory, "zstd window"};
      case ZSTD_error_frameParameter_windowTooLarge:
        return {StatusCode::kUnsupported, "zstd window of more than 128 MiB"};
      default:
        return {StatusCode::kFormat, "broken zstd frame"};
    }
  }

  std::unique_ptr<ByteSource> source_;
  ZSTD_DCtx* context_;
  std::array<std::byte, std::size_t{64} << 10> buffer_;
  ZSTD_inBuffer in_{buffer_.data(), 0, 0};
};

}  // namespace

std::unique_ptr<ByteSource> FromMemory(std::span<const std::byte> bytes) {
  return std::make_unique<MemorySource>(bytes);
}

Result<std::unique_ptr<ByteSource>> OpenFile(const char* path) {
  auto file = std::make_unique<FileSource>();
  if (const Status opened = file->Open(path); !opened.ok()) return opened;
  if (file->is_zstd()) return std::unique_ptr<ByteSource>(std::make_unique<ZstdSource>(std::move(file)));
  return std::unique_ptr<ByteSource>(std::move(file));
}

}  // namespace stackpipe::nettrace
