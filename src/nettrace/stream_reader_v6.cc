// SPDX-License-Identifier: MIT
//
// Framing of version 6: blocks of a kind and a size; and the blocks that version 4 does not have.
#include <iterator>
#include <string>
#include <utility>

#include "nettrace/format.h"
#include "nettrace/metadata.h"
#include "nettrace/stream_reader.h"

namespace stackpipe::nettrace {

using format::BlockKind;

void StreamReader::ReadVersion6() {
  trace_.version = 6;
  std::uint32_t versions[2];  // major, minor: a reader may ignore the minor one
  if (!Take(versions, sizeof versions, "the header")) return;
  if (versions[0] != format::kMajorVersion) {
    Fail(StatusCode::kUnsupported, "version of a stream", 12,
         "version " + std::to_string(versions[0]) + " of nettrace is not known");
    return;
  }
  while (true) {
    summary_.bytes = input_.offset();
    std::uint32_t word = 0;
    if (!Take(&word, sizeof word, has_trace_ ? "front of its end mark" : "the header")) return;
    const auto kind = static_cast<BlockKind>(word >> 24);
    if ((kind == BlockKind::kTrace) == has_trace_) {
      Fail(StatusCode::kFormat, "broken stream", summary_.bytes,
           "the Trace block has to come first, and once");
      return;
    }
    if (kind == BlockKind::kEndOfStream) break;
    if (!ReadBlock6(word)) return;
  }
  CheckNothingFollows();
}

bool StreamReader::ReadBlock6(std::uint32_t word) {
  constexpr std::string_view kNames[] = {
      "",           "Trace",       "EventBlock",        "MetadataBlock", "SPBlock",
      "StackBlock", "ThreadBlock", "RemoveThreadBlock", "LabelListBlock"};
  const std::uint32_t kind = word >> 24;
  const std::string_view name =
      kind < std::size(kNames) ? kNames[kind] : "a block of a kind that is not known";
  return TakeContent(word & 0xff'ffff, name,
                     [this, kind](const Content& content) { return OnBlock6(kind, content); });
}

bool StreamReader::OnBlock6(std::uint32_t kind, const Content& content) {
  switch (static_cast<BlockKind>(kind)) {
    case BlockKind::kTrace:
      return OnTrace(content);
    case BlockKind::kEvent:
      return OnEvents(content);
    case BlockKind::kMetadata:
      return OnMetadata6(content);
    case BlockKind::kSequencePoint:
      return OnSequencePoint(content);
    case BlockKind::kStack:
      return OnStacks(content);
    case BlockKind::kThread:
      return OnThreads6(content);
    case BlockKind::kRemoveThread:
      return OnRemoveThreads6(content);
    default:
      return true;  // labels are not read; other kinds may be added to the format
  }
}

bool StreamReader::OnMetadata6(const Content& content) {
  if (!content.whole) return true;
  ByteReader in(content.bytes);
  in.TakeBytes(in.Take<std::uint16_t>());  // a header, for later versions
  while (in.left() > 0) {
    const std::size_t at = content.bytes.size() - in.left();
    const auto row = in.TakeBytes(in.Take<std::uint16_t>());
    EventType type;
    if (in.failed() || !ParseMetadata6(row, &type)) return FailIn(content, at, "broken description");
    if (!Define(std::move(type), content)) return false;
  }
  if (in.failed()) return FailIn(content, 0, "is too short");
  return true;
}

bool StreamReader::OnThreads6(const Content& content) {
  enum : std::uint8_t { kName = 1, kProcessId, kThreadId, kKeyValue };
  if (!content.whole) return true;
  ByteReader in(content.bytes);
  while (in.left() > 0) {
    const std::size_t at = content.bytes.size() - in.left();
    ByteReader row(in.TakeBytes(in.Take<std::uint16_t>()));
    const auto index = row.TakeVarUint<std::uint64_t>();
    std::string name;
    std::uint64_t os_id = 0;
    bool known = true;
    while (known && row.left() > 0) {
      switch (row.Take<std::uint8_t>()) {
        case kName:
          name = row.TakeUtf8Text();
          break;
        case kProcessId:
          row.TakeVarUint<std::uint64_t>();
          break;
        case kThreadId:
          os_id = row.TakeVarUint<std::uint64_t>();
          break;
        case kKeyValue:
          row.TakeUtf8Text();
          row.TakeUtf8Text();
          break;
        default:
          known = false;  // the row has a size: what cannot be read is skipped
      }
    }
    if (in.failed() || row.failed()) return FailIn(content, at, "broken thread");
    if (threads_.count(index) != 0)
      return FailIn(content, at, "thread " + std::to_string(index) + " a second time");
    threads_.emplace(index, Thread{os_id, merger_.AddThread(0)});
    if (!name.empty()) visitor_.OnThreadName(os_id, name);
  }
  return true;
}

bool StreamReader::OnRemoveThreads6(const Content& content) {
  if (!content.whole) return true;
  ByteReader in(content.bytes);
  while (in.left() > 0) {
    const std::size_t at = content.bytes.size() - in.left();
    const auto index = in.TakeVarUint<std::uint64_t>();
    const auto last_used = in.TakeVarUint<std::uint32_t>();
    if (in.failed()) return FailIn(content, at, "is too short");
    const Thread* thread = FindThread(index, last_used);
    if (thread == nullptr) return FailIn(content, at, "thread that is not known");
    CountLost(*thread, last_used);
    merger_.RemoveThread(thread->merged);
    threads_.erase(index);
  }
  return true;
}

}  // namespace stackpipe::nettrace
