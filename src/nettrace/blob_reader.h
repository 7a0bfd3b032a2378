// SPDX-License-Identifier: MIT
//
// BlobReader: the events of one EventBlock or MetadataBlock, one after the other; versions 4 and 6,
// compressed headers and uncompressed ones.
#ifndef STACKPIPE_NETTRACE_BLOB_READER_H_
#define STACKPIPE_NETTRACE_BLOB_READER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "nettrace/blob_block.h"
#include "nettrace/byte_reader.h"

namespace stackpipe::nettrace {

class BlobReader {
 public:
  // `content` is that of the block, or as much of it as there is.
  BlobReader(std::span<const std::byte> content, int version);

  // Takes the next event. False at the end, and if the rest of the block is not a whole event: then broken()
  // is true.
  bool Next();

  bool broken() const { return in_.failed(); }
  const BlobHeader& header() const { return header_; }
  std::span<const std::byte> payload() const { return payload_; }
  // Where the event that Next() took, or could not take, begins in the content.
  std::size_t event_at() const { return event_at_; }

 private:
  void TakeCompressedHeader();
  void TakeUncompressed();

  const std::byte* const begin_;
  ByteReader in_;
  const bool is_version_6_;
  bool compressed_ = false;
  BlobHeader header_;
  std::span<const std::byte> payload_;
  std::size_t event_at_ = 0;
};

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_BLOB_READER_H_
