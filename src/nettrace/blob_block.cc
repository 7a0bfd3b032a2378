// SPDX-License-Identifier: MIT
#include "nettrace/blob_block.h"

#include <new>

#include "nettrace/byte_writer.h"

namespace stackpipe::nettrace {

bool BlobBlock::Allocate() {
  bytes_.reset(new (std::nothrow) std::byte[format::kBlockSizeMax]);
  return bytes_ != nullptr;
}

std::byte* BlobBlock::Append(const BlobHeader& header) {
  if (empty()) first_time_ = header.timestamp;
  last_time_ = header.timestamp;

  std::byte* const flags_at = bytes_.get() + size_;
  std::uint8_t flags = header.sorted ? format::kIsSorted : std::uint8_t{0};
  ByteWriter out(flags_at + 1);
  if (header.metadata_id != previous_.metadata_id) {
    flags |= format::kHasMetadataId;
    out.PutVarUint(header.metadata_id);
  }
  // Without the field, readers count one on, except in metadata blobs: those have id 0.
  const std::uint32_t implied_sequence = previous_.sequence + (header.metadata_id != 0 ? 1 : 0);
  if (header.sequence != implied_sequence || header.capture_thread != previous_.capture_thread ||
      header.processor != previous_.processor) {
    flags |= format::kHasSequence;
    out.PutVarUint(header.sequence - previous_.sequence - 1);
    out.PutVarUint(header.capture_thread);
    out.PutVarUint(header.processor);
  }
  if (header.thread != previous_.thread) {
    flags |= format::kHasThread;
    out.PutVarUint(header.thread);
  }
  if (header.stack_id != previous_.stack_id) {
    flags |= format::kHasStack;
    out.PutVarUint(header.stack_id);
  }
  out.PutVarUint(header.timestamp - previous_.timestamp);
  if (header.payload_size != previous_.payload_size) {
    flags |= format::kHasPayloadSize;
    out.PutVarUint(header.payload_size);
  }
  *flags_at = static_cast<std::byte>(flags);
  previous_ = header;
  size_ = static_cast<std::size_t>(out.at() - bytes_.get()) + header.payload_size;
  return out.at();
}

std::span<const std::byte> BlobBlock::Finish() {
  ByteWriter out(bytes_.get());
  out.Put(static_cast<std::uint16_t>(format::kBlockHeaderSize));
  out.Put(format::kBlockCompressed);
  out.Put(first_time_);
  out.Put(last_time_);
  return {bytes_.get(), size_};
}

void BlobBlock::Clear() {
  size_ = format::kBlockHeaderSize;
  previous_ = {};
  first_time_ = last_time_ = 0;
}

}  // namespace stackpipe::nettrace
