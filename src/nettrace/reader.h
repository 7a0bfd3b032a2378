// SPDX-License-Identifier: MIT
//
// Reads a nettrace stream (version 4 and 6) as a stream: memory is bounded by the largest block, the live
// stacks of one sequence-point region and the thread table, not by the file.
//
// Source: the NetTrace format of .NET (dotnet/diagnostics and microsoft/perfview, format documents), and what
// TraceEvent does where they are silent.
#ifndef STACKPIPE_NETTRACE_READER_H_
#define STACKPIPE_NETTRACE_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stackpipe/result.h"

namespace stackpipe::nettrace {

// What the Trace object says.
struct TraceInfo {
  int version = 0;           // 4 or 6
  std::int16_t utc[8] = {};  // year, month, day of week (Sunday 0), day, hour, minute, second, millisecond
  std::uint64_t sync_ticks = 0;
  std::uint64_t ticks_per_second = 0;
  int pointer_size = 0;
  std::uint64_t process_id = 0;
  int processor_count = 0;
  int expected_sampling_rate = 0;
};

// One field of an event type; `type` is the format's type code.
struct EventField {
  int type = 0;
  int element_type = 0;  // arrays
  std::string name;
  std::vector<EventField> fields;  // type Object
};

// One metadata record. Lives as long as the reader.
struct EventType {
  std::uint32_t id = 0;
  std::string provider;
  std::int32_t event_id = 0;
  std::string name;
  std::uint64_t keywords = 0;
  std::int32_t version = 0;
  std::int32_t level = 0;
  std::int32_t opcode = 0;
  std::vector<EventField> fields;
};

// One event, delivered in time order. The spans are valid during the call only.
struct Event {
  const EventType* type = nullptr;
  std::uint64_t timestamp = 0;  // ticks
  std::uint64_t thread_id = 0;  // OS thread id
  std::uint64_t capture_thread_id = 0;
  std::uint32_t sequence = 0;
  std::uint32_t processor = 0;
  std::span<const std::uint64_t> stack;  // leaf first
  std::span<const std::byte> payload;
};

// Receives what is read. All calls come from the thread that calls Read().
class Visitor {
 public:
  virtual ~Visitor() = default;
  virtual void OnTrace(const TraceInfo&) {}
  virtual void OnEvent(const Event&) = 0;
  virtual void OnThreadName(std::uint64_t /*thread_id*/, std::string_view /*name*/) {}  // v6 thread table
};

// Where bytes come from.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Reads up to `size` bytes; 0 = end of input. Errors: kIo; those of OpenFile also kFormat, kUnsupported and
  // kOutOfMemory, from decompression.
  virtual Result<std::size_t> Read(std::byte* to, std::size_t size) = 0;
};

// A file, plain or (by its content, not by its name) independent zstd frames. Errors: kIo (with errno).
Result<std::unique_ptr<ByteSource>> OpenFile(const char* path);
// Bytes in memory; they must outlive the source.
std::unique_ptr<ByteSource> FromMemory(std::span<const std::byte> bytes);

struct ReadSummary {
  bool complete = false;  // the end mark was there, and nothing after it
  std::uint64_t events = 0;
  std::uint64_t lost = 0;   // by sequence numbers and sequence points, TraceEvent's arithmetic
  std::uint64_t bytes = 0;  // good bytes: up to the end of the last whole block
  // ok; kTruncated; kFormat; kUnsupported (a newer version); kIo, or whatever else the source returned;
  // kOutOfMemory; kInvalidArgument if the visitor has thrown.
  Status status;
  std::string detail;  // for a person: what was wrong, and at which offset of the stream
};

// Reads all of `source`. Events that were whole are delivered whatever comes after them: a truncated stream
// gives status kTruncated and complete = false; a broken one kFormat. Never throws, never aborts, whatever
// the input; what a visitor throws ends the reading. In a truncated v4/v6 stream the events of a block that
// was cut are delivered as far as they are whole.
ReadSummary Read(ByteSource& source, Visitor& visitor);

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_READER_H_
