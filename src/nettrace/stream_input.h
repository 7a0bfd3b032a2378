// SPDX-License-Identifier: MIT
//
// StreamInput: a ByteSource read in pieces of wanted sizes, with the offset in the stream.
#ifndef STACKPIPE_NETTRACE_STREAM_INPUT_H_
#define STACKPIPE_NETTRACE_STREAM_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "nettrace/reader.h"

namespace stackpipe::nettrace {

class StreamInput {
 public:
  explicit StreamInput(ByteSource& source)
      : source_(source), buffer_(std::make_unique_for_overwrite<std::byte[]>(kBufferSize)) {}

  // Reads `size` bytes and returns how many there were: fewer only at the end of the input, or if the source
  // failed. Never asks the source for more while it has what is wanted, so that a live stream is seen as it
  // comes.
  std::size_t Read(std::byte* to, std::size_t size);

  // The same, into the beginning of `to`, which grows only as bytes come in: a size that a broken stream
  // claims costs nothing.
  std::size_t ReadGrowing(std::size_t size, std::vector<std::byte>* to);

  // Bytes read so far.
  std::uint64_t offset() const { return offset_; }
  // The error of the source, if it had one.
  Status status() const { return status_; }

 private:
  static constexpr std::size_t kBufferSize = std::size_t{16} << 10;

  // What the source has, at most `size` bytes; 0 = no more.
  std::size_t Fetch(std::byte* to, std::size_t size);

  ByteSource& source_;
  const std::unique_ptr<std::byte[]> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint64_t offset_ = 0;
  bool ended_ = false;
  Status status_;
};

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_STREAM_INPUT_H_
