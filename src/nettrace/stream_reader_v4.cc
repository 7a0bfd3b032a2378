// SPDX-License-Identifier: MIT
//
// Framing of version 4: objects of FastSerialization, each with its type's name and version in front.
#include <string>
#include <utility>

#include "nettrace/format.h"
#include "nettrace/stream_reader.h"

namespace stackpipe::nettrace {

void StreamReader::ReadVersion4() {
  trace_.version = 4;
  char serialization[format::kSerialization.size()];
  if (!Take(serialization, sizeof serialization, "the header")) return;
  if (std::string_view(serialization, sizeof serialization) != format::kSerialization) {
    Fail(StatusCode::kFormat, "not a nettrace stream", 12, "the header is broken");
    return;
  }
  std::uint8_t tag = 0;
  while (true) {
    summary_.bytes = input_.offset();
    if (!Take(&tag, sizeof tag, has_trace_ ? "front of its end mark" : "the header")) return;
    if (tag == format::kTagNull) break;
    if (tag != format::kTagBeginObject) {
      Fail(StatusCode::kFormat, "broken stream", summary_.bytes, "no block where one should begin");
      return;
    }
    if (!ReadObject4()) return;
  }
  if (has_trace_) {
    CheckNothingFollows();
  } else {
    Fail(StatusCode::kFormat, "broken stream", summary_.bytes, "ends without a Trace object");
  }
}

bool StreamReader::ReadObject4() {
  const std::uint64_t at = summary_.bytes;
  constexpr std::string_view kWhere = "the head of a block";
  std::uint8_t tags[2];
  std::int32_t numbers[3];  // version, least version of a reader, length of the name
  if (!Take(tags, sizeof tags, kWhere) || !Take(numbers, sizeof numbers, kWhere)) return false;
  const auto name_size = static_cast<std::uint32_t>(numbers[2]);
  if (tags[0] != format::kTagBeginObject || tags[1] != format::kTagNull ||
      name_size > format::kTypeNameSizeMax) {
    return Fail(StatusCode::kFormat, "broken stream", at, "no block where one should begin");
  }
  char name_bytes[format::kTypeNameSizeMax + 1];  // and the tag
  if (!Take(name_bytes, name_size + 1, kWhere)) return false;
  const std::string_view name(name_bytes, name_size);
  if (static_cast<std::uint8_t>(name_bytes[name_size]) != format::kTagEndObject) {
    return Fail(StatusCode::kFormat, "broken stream", at, "no block where one should begin");
  }

  const bool is_trace = name == format::kTraceName;
  if (is_trace == has_trace_) {
    return Fail(StatusCode::kFormat, "broken stream", at, "the Trace object has to come first, and once");
  }
  // The second number says how new a reader has to be.
  if (numbers[1] > (is_trace ? format::kTraceVersion : format::kBlockVersion)) {
    return Fail(StatusCode::kUnsupported, "version of a stream", at,
                "version " + std::to_string(numbers[1]) + " of nettrace's objects is not known");
  }
  if (is_trace) {
    if (!TakeContent(format::kTraceSize, format::kTraceName,
                     [this](const Content& c) { return OnTrace(c); })) {
      return false;
    }
  } else if (!ReadBlock4(name)) {
    return false;
  }
  std::uint8_t end_tag = 0;
  if (!Take(&end_tag, sizeof end_tag, "the end of a block")) return false;
  if (end_tag != format::kTagEndObject) {
    return Fail(StatusCode::kFormat, "broken stream", input_.offset() - 1,
                "a block is not where its size says");
  }
  return true;
}

bool StreamReader::ReadBlock4(std::string_view name) {
  using Handler = bool (StreamReader::*)(const Content&);
  constexpr std::pair<std::string_view, Handler> kBlocks[] = {
      {format::kEventBlockName, &StreamReader::OnEvents},
      {format::kMetadataBlockName, &StreamReader::OnMetadata4},
      {format::kStackBlockName, &StreamReader::OnStacks},
      {format::kSequencePointName, &StreamReader::OnSequencePoint},
  };
  for (const auto& [block_name, handler] : kBlocks) {
    if (name != block_name) continue;
    std::int32_t size = 0;
    if (!Take(&size, sizeof size, block_name)) return false;
    if (size < 0)
      return Fail(StatusCode::kFormat, "broken stream", input_.offset() - 4, "negative size of a block");
    std::byte padding[format::kAlignment];
    const std::size_t padding_size = static_cast<std::size_t>(-input_.offset() % format::kAlignment);
    if (!Take(padding, padding_size, block_name)) return false;
    return TakeContent(
        static_cast<std::size_t>(size), block_name,
        [this, handler = handler](const Content& content) { return (this->*handler)(content); });
  }
  return Fail(StatusCode::kFormat, "broken stream", summary_.bytes,
              "a kind of block that version 4 does not have");
}

}  // namespace stackpipe::nettrace
