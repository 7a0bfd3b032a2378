// SPDX-License-Identifier: MIT
//
// BlobBlock: the content of one EventBlock or MetadataBlock while it is filled: a block header, then for each
// event a compressed header, which says what differs from the event before, and the payload.
#ifndef STACKPIPE_NETTRACE_BLOB_BLOCK_H_
#define STACKPIPE_NETTRACE_BLOB_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "nettrace/format.h"

namespace stackpipe::nettrace {

struct BlobHeader {
  std::uint32_t metadata_id = 0;
  std::uint32_t sequence = 0;
  std::uint64_t capture_thread = 0;
  std::uint32_t processor = 0;
  std::uint64_t thread = 0;
  std::uint32_t stack_id = 0;
  std::uint64_t timestamp = 0;
  std::uint32_t payload_size = 0;
  bool sorted = false;
};

// Used by one thread at a time.
class BlobBlock {
 public:
  // Gets the memory. Returns false if there is none.
  bool Allocate();

  bool empty() const { return size_ == format::kBlockHeaderSize; }
  bool Fits(std::size_t payload_size) const {
    return size_ + kHeaderSizeMax + payload_size <= format::kBlockSizeMax;
  }

  // Events come in time order. Appends the header and room for `header.payload_size` bytes of payload, which
  // the caller fills in at once. Requires Fits(header.payload_size).
  std::byte* Append(const BlobHeader& header);

  // The content of the block. Valid until the next Append or Clear.
  std::span<const std::byte> Finish();
  void Clear();
  // Bytes so far, to see how many an event took.
  std::size_t size() const { return size_; }

 private:
  // Flags, metadata id, sequence, capture thread, processor, thread, stack, time, payload size.
  static constexpr std::size_t kHeaderSizeMax = 1 + 5 + 5 + 10 + 5 + 10 + 5 + 10 + 5;

  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_ = format::kBlockHeaderSize;
  BlobHeader previous_;  // all zero at the start of a block
  std::uint64_t first_time_ = 0;
  std::uint64_t last_time_ = 0;
};

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_BLOB_BLOCK_H_
