// SPDX-License-Identifier: MIT
#include "nettrace/blob_reader.h"

#include <algorithm>

#include "nettrace/format.h"

namespace stackpipe::nettrace {

BlobReader::BlobReader(std::span<const std::byte> content, int version)
    : begin_(content.data()), in_(content), is_version_6_(version == 6) {
  const auto header_size = in_.Take<std::uint16_t>();
  const auto flags = in_.Take<std::uint16_t>();
  compressed_ = (flags & format::kBlockCompressed) != 0;
  if (header_size < format::kBlockHeaderSize) in_.Fail();
  // The times of the first and the last event, and what later versions may add.
  in_.TakeBytes(header_size - 2 * sizeof(std::uint16_t));
}

bool BlobReader::Next() {
  if (in_.left() == 0) return false;
  event_at_ = static_cast<std::size_t>(in_.at() - begin_);
  if (compressed_) {
    TakeCompressedHeader();
    payload_ = in_.TakeBytes(header_.payload_size);
  } else {
    TakeUncompressed();
  }
  return !in_.failed();
}

void BlobReader::TakeCompressedHeader() {
  const auto flags = in_.Take<std::uint8_t>();
  if ((flags & format::kHasMetadataId) != 0) header_.metadata_id = in_.TakeVarUint<std::uint32_t>();
  if ((flags & format::kHasSequence) != 0) {
    header_.sequence += in_.TakeVarUint<std::uint32_t>() + 1;
    header_.capture_thread = in_.TakeVarUint<std::uint64_t>();
    header_.processor = in_.TakeVarUint<std::uint32_t>();
  } else {
    ++header_.sequence;  // not so in metadata blocks, but nobody counts their events
  }
  if ((flags & format::kHasThread) != 0) header_.thread = in_.TakeVarUint<std::uint64_t>();
  if ((flags & format::kHasStack) != 0) header_.stack_id = in_.TakeVarUint<std::uint32_t>();
  header_.timestamp += in_.TakeVarUint<std::uint64_t>();
  if ((flags & format::kHasActivity) != 0) {
    if (is_version_6_) {
      in_.TakeVarUint<std::uint32_t>();  // the label list
    } else {
      in_.TakeBytes(format::kActivityIdSize);
    }
  }
  if ((flags & format::kHasRelatedActivity) != 0 && !is_version_6_) in_.TakeBytes(format::kActivityIdSize);
  header_.sorted = (flags & format::kIsSorted) != 0;
  if ((flags & format::kHasPayloadSize) != 0) header_.payload_size = in_.TakeVarUint<std::uint32_t>();
}

void BlobReader::TakeUncompressed() {
  ByteReader event(in_.TakeBytes(in_.Take<std::uint32_t>()));
  const auto id = event.Take<std::uint32_t>();
  header_.metadata_id = id & 0x7fff'ffff;
  header_.sorted = id >> 31 == 0;  // the bit says "not sorted", whatever the format's document says
  header_.sequence = event.Take<std::uint32_t>();
  header_.thread = event.Take<std::uint64_t>();
  header_.capture_thread = event.Take<std::uint64_t>();
  header_.processor = event.Take<std::uint32_t>();
  header_.stack_id = event.Take<std::uint32_t>();
  header_.timestamp = event.Take<std::uint64_t>();
  event.TakeBytes(is_version_6_ ? sizeof(std::uint32_t) : 2 * format::kActivityIdSize);
  header_.payload_size = event.Take<std::uint32_t>();
  payload_ = event.TakeBytes(header_.payload_size);
  if (event.failed()) in_.Fail();
  if (!is_version_6_) {
    const auto used = static_cast<std::size_t>(in_.at() - begin_);
    const std::size_t padding = (format::kAlignment - used % format::kAlignment) % format::kAlignment;
    in_.TakeBytes(std::min(padding, in_.left()));
  }
}

}  // namespace stackpipe::nettrace
