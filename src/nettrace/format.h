// SPDX-License-Identifier: MIT
//
// Numbers and names of the nettrace format that the writer and the reader share.
//
// Source: the NetTrace format documents of dotnet/diagnostics and microsoft/perfview.
#ifndef STACKPIPE_NETTRACE_FORMAT_H_
#define STACKPIPE_NETTRACE_FORMAT_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stackpipe::nettrace::format {

// All numbers in a stream are little-endian, and are copied as they are in memory.
static_assert(std::endian::native == std::endian::little);

inline constexpr std::string_view kMagic = "Nettrace";

// Version 4: objects of FastSerialization.
inline constexpr std::string_view kSerialization = "!FastSerialization.1";
inline constexpr std::uint8_t kTagNull = 1;
inline constexpr std::uint8_t kTagBeginObject = 5;
inline constexpr std::uint8_t kTagEndObject = 6;
inline constexpr std::int32_t kTraceVersion = 4;
inline constexpr std::int32_t kBlockVersion = 2;
inline constexpr std::string_view kTraceName = "Trace";
inline constexpr std::string_view kMetadataBlockName = "MetadataBlock";
inline constexpr std::string_view kStackBlockName = "StackBlock";
inline constexpr std::string_view kEventBlockName = "EventBlock";
inline constexpr std::string_view kSequencePointName = "SPBlock";
inline constexpr std::size_t kTypeNameSizeMax = 38;  // longer ones are an error to TraceEvent
inline constexpr std::size_t kTraceSize = 48;
inline constexpr std::size_t kAlignment = 4;  // of a block's content in the stream

// Version 6: blocks of a kind and a size.
inline constexpr std::uint32_t kMajorVersion = 6;
enum class BlockKind : std::uint8_t {
  kEndOfStream = 0,
  kTrace = 1,
  kEvent = 2,
  kMetadata = 3,
  kSequencePoint = 4,
  kStack = 5,
  kThread = 6,
  kRemoveThread = 7,
  kLabelList = 8,
};
inline constexpr std::uint32_t kFlushThreads = 1;  // flags of a sequence point
inline constexpr std::uint32_t kFlushMetadata = 2;

// Event and metadata blocks begin with: u16 size of this header, u16 flags, i64 first time, i64 last time.
inline constexpr std::size_t kBlockHeaderSize = 20;
inline constexpr std::uint16_t kBlockCompressed = 1;

// Flags of a compressed event header: which fields differ from those of the event before.
inline constexpr std::uint8_t kHasMetadataId = 0x01;
inline constexpr std::uint8_t kHasSequence = 0x02;  // and capture thread, and processor
inline constexpr std::uint8_t kHasThread = 0x04;
inline constexpr std::uint8_t kHasStack = 0x08;
inline constexpr std::uint8_t kHasActivity = 0x10;  // version 6: the label list
inline constexpr std::uint8_t kHasRelatedActivity = 0x20;
inline constexpr std::uint8_t kIsSorted = 0x40;
inline constexpr std::uint8_t kHasPayloadSize = 0x80;
inline constexpr std::size_t kActivityIdSize = 16;

inline constexpr std::uint32_t kNoProcessor = 0xffff'ffff;

// What the runtime keeps to, and TraceEvent can read: its lengths have 16 bits.
inline constexpr std::size_t kBlockSizeMax = 100 * 1024;
inline constexpr std::size_t kPayloadSizeMax = 65'535;
inline constexpr std::size_t kStackSizeMax = 65'527;

// Field types of metadata that this project writes, or has to know the shape of.
inline constexpr std::int32_t kTypeObject = 1;
inline constexpr std::int32_t kTypeInt32 = 9;
inline constexpr std::int32_t kTypeInt64 = 11;
inline constexpr std::int32_t kTypeUint64 = 12;
inline constexpr std::int32_t kTypeString = 18;  // UTF-16 with a NUL
inline constexpr std::int32_t kTypeArray = 19;
inline constexpr std::int32_t kTypeFixedLengthArray = 22;
inline constexpr std::int32_t kTypeRelLoc = 24;
inline constexpr std::int32_t kTypeDataLoc = 25;

// Tags behind the fields of version 4 metadata.
inline constexpr std::uint8_t kTagOpcode = 1;
inline constexpr std::uint8_t kTagParameters = 2;

}  // namespace stackpipe::nettrace::format

#endif  // STACKPIPE_NETTRACE_FORMAT_H_
