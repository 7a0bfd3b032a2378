// SPDX-License-Identifier: MIT
//
// The entries of .eh_frame and .debug_frame: CIEs and FDEs.
#include "unwind/cfi_compiler.h"

namespace stackpipe {
namespace {

constexpr std::uint8_t kEncodingOmit = 0xff;
constexpr std::uint8_t kEncodingIndirect = 0x80;
constexpr std::uint8_t kEncodingFormat = 0x0f;
constexpr std::uint8_t kEncodingRelation = 0x70;
constexpr std::uint8_t kEncodingPcRelative = 0x10;
constexpr std::uint8_t kEncodingAligned = 0x50;

constexpr std::uint64_t kReturnAddressColumn = 16;

// Reads a number in the format of a pointer encoding, without its relation.
bool ReadFormat(std::uint8_t encoding, ByteReader* reader, std::uint64_t* value) {
  switch (encoding & kEncodingFormat) {
    case 0x00:  // absptr
    case 0x04:  // udata8
    case 0x0c:  // sdata8
      *value = reader->Read<std::uint64_t>();
      break;
    case 0x01:
      *value = reader->ReadUleb();
      break;
    case 0x02:
      *value = reader->Read<std::uint16_t>();
      break;
    case 0x03:
      *value = reader->Read<std::uint32_t>();
      break;
    case 0x09:
      *value = static_cast<std::uint64_t>(reader->ReadSleb());
      break;
    case 0x0a:
      *value = static_cast<std::uint64_t>(std::int64_t{reader->Read<std::int16_t>()});
      break;
    case 0x0b:
      *value = static_cast<std::uint64_t>(std::int64_t{reader->Read<std::int32_t>()});
      break;
    default:
      return false;
  }
  return !reader->failed();
}

}  // namespace

bool ReadEncodedPointer(std::uint8_t encoding, std::uint64_t address, ByteReader* reader,
                        std::uint64_t* value) {
  if (encoding == kEncodingOmit || (encoding & kEncodingIndirect) != 0) return false;
  if (!ReadFormat(encoding, reader, value)) return false;
  switch (encoding & kEncodingRelation) {
    case 0:
      return true;
    case kEncodingPcRelative:
      *value += address;
      return true;
    default:
      return false;
  }
}

bool FrameParser::Next(FrameDescription* fde) {
  while (rest_.left() >= 4) {
    const auto entry_offset = static_cast<std::uint64_t>(rest_.at() - section_.data);
    std::uint64_t length = rest_.Read<std::uint32_t>();
    if (length == 0) {
      if (section_.stop_at_zero) return false;
      continue;
    }
    const bool is_64bit = length == 0xffffffff;
    if (is_64bit) length = rest_.Read<std::uint64_t>();
    const auto id_offset = static_cast<std::uint64_t>(rest_.at() - section_.data);
    ByteReader body = rest_.Take(length);
    if (rest_.failed()) return false;

    // In .eh_frame the id has 4 bytes even after a 64-bit length (LSB 5.0).
    const bool wide_id = is_64bit && section_.is_debug_frame;
    const std::uint64_t id = wide_id ? body.Read<std::uint64_t>() : body.Read<std::uint32_t>();
    if (body.failed()) continue;
    const std::uint64_t cie_id =
        !section_.is_debug_frame ? 0 : (wide_id ? ~std::uint64_t{0} : std::uint64_t{0xffffffff});
    if (id == cie_id) continue;
    if (ParseDescription(entry_offset, id_offset, id, body, fde)) return true;
  }
  return false;
}

bool FrameParser::ParseDescription(std::uint64_t entry_offset, std::uint64_t id_offset, std::uint64_t id,
                                   ByteReader body, FrameDescription* fde) {
  // .eh_frame: the distance back from the id itself. .debug_frame: an offset in the section.
  const std::uint64_t cie_offset = section_.is_debug_frame ? id : id_offset - id;
  if (cie_offset != cached_offset_) {
    cached_offset_ = cie_offset;
    cached_good_ =
        cie_offset < section_.size && cie_offset != entry_offset && ParseCommon(cie_offset, &cached_);
  }
  if (!cached_good_) return false;
  fde->common = cached_;

  const auto address_of = [&] {
    return section_.address + static_cast<std::uint64_t>(body.at() - section_.data);
  };
  std::uint64_t size = 0;
  if (!ReadEncodedPointer(cached_.pointer_encoding, address_of(), &body, &fde->start)) return false;
  if (!ReadFormat(cached_.pointer_encoding, &body, &size)) return false;
  fde->end = fde->start + size;
  if (fde->end <= fde->start) return false;  // empty, or it wraps
  if (cached_.has_augmentation_data) body.Skip(body.ReadUleb());
  if (body.failed()) return false;
  fde->program_address = address_of();
  fde->program = body;
  return true;
}

bool FrameParser::ParseCommon(std::uint64_t offset, CommonInformation* common) const {
  *common = CommonInformation();
  ByteReader reader(section_.data + offset, section_.size - offset);
  std::uint64_t length = reader.Read<std::uint32_t>();
  const bool is_64bit = length == 0xffffffff;
  if (is_64bit) length = reader.Read<std::uint64_t>();
  reader = reader.Take(length);
  const bool wide_id = is_64bit && section_.is_debug_frame;
  const std::uint64_t id = wide_id ? reader.Read<std::uint64_t>() : reader.Read<std::uint32_t>();
  const std::uint64_t cie_id =
      !section_.is_debug_frame ? 0 : (wide_id ? ~std::uint64_t{0} : std::uint64_t{0xffffffff});
  if (reader.failed() || id != cie_id) return false;

  const auto version = reader.Read<std::uint8_t>();
  if (version != 1 && version != 3 && version != 4) return false;
  const char* augmentation = reader.ReadCString();
  if (augmentation == nullptr) return false;
  if (version == 4) {
    const auto address_size = reader.Read<std::uint8_t>();
    const auto segment_selector_size = reader.Read<std::uint8_t>();
    if (address_size != 8 || segment_selector_size != 0) return false;
  }
  common->code_align = reader.ReadUleb();
  common->data_align = reader.ReadSleb();
  const std::uint64_t return_column = version == 1 ? reader.Read<std::uint8_t>() : reader.ReadUleb();
  if (reader.failed() || return_column != kReturnAddressColumn) return false;

  if (*augmentation == 'z') {
    common->has_augmentation_data = true;
    ByteReader data = reader.Take(reader.ReadUleb());
    for (const char* letter = augmentation + 1; *letter != '\0'; ++letter) {
      switch (*letter) {
        case 'R':
          common->pointer_encoding = data.Read<std::uint8_t>();
          break;
        case 'L':
          data.Skip(1);
          break;
        case 'P': {
          std::uint64_t personality = 0;
          const auto encoding = data.Read<std::uint8_t>();
          if (encoding == kEncodingOmit) break;
          if ((encoding & kEncodingRelation) == kEncodingAligned) return false;
          if (!ReadFormat(encoding, &data, &personality)) return false;
          break;
        }
        case 'S':
          common->signal_frame = true;
          break;
        default:
          return false;  // it may change what the rest means
      }
    }
    if (data.failed()) return false;
  } else if (*augmentation != '\0') {
    return false;
  }
  if (reader.failed()) return false;
  common->program = reader;
  return true;
}

}  // namespace stackpipe
