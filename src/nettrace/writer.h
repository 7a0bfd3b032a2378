// SPDX-License-Identifier: MIT
//
// Writes a nettrace v4 stream. One writer serves one stream and is used by one thread at a time; it does no I/O itself
// but hands whole blocks to a Sink, so that what the sink has got is at every moment a prefix that ends between blocks.
//
// The writer keeps the format's rules that readers depend on: a type's metadata is written before its first use, stack
// ids start again after a sequence point, blocks stay below 100 KiB, block contents are aligned to 4 bytes counted from
// the start of the stream. Its user keeps one: events come in time order (there is one capture thread).
//
// Source: the NetTrace format of .NET, version 4.
#ifndef STACKPIPE_NETTRACE_WRITER_H_
#define STACKPIPE_NETTRACE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stackpipe/result.h"

namespace stackpipe::nettrace {

// Takes the finished bytes.
class Sink {
 public:
  virtual ~Sink() = default;
  // Writes all of `bytes` (one or more whole blocks), or nothing that a reader would see.
  virtual Status Write(std::span<const std::byte> bytes) = 0;
};

struct StreamHeader {
  std::int16_t utc[8] = {};  // as TraceInfo::utc
  std::uint64_t sync_ticks = 0;
  std::uint64_t ticks_per_second = 1'000'000'000;
  std::int32_t pointer_size = 8;
  std::int32_t process_id = 0;
  std::int32_t processor_count = 0;
  std::int32_t expected_sampling_rate = 1'000'000;
};

// A type of event as its metadata describes it. Field type codes as in the format; `fields` may be empty.
struct TypeField {
  std::int32_t type;
  const char* name;
};
struct TypeInfo {
  const char* provider;
  std::int32_t event_id;
  const char* name;
  std::uint64_t keywords;
  std::int32_t version;
  std::int32_t level;
  std::span<const TypeField> fields;
};

class Writer {
 public:
  // `capture_thread` is the id under which all events are filed.
  Writer(Sink& sink, std::uint64_t capture_thread);

  // The first call: header and Trace object.
  Status Begin(const StreamHeader& header);

  // Appends an event. `type` must stay at the same address for the life of the writer (it is the key). `stack` is leaf
  // first and may be empty (no stack). Sorted events make a live reader show what came before.
  Status Event(const TypeInfo& type, std::uint64_t timestamp, std::uint64_t thread_id, bool sorted,
               std::span<const std::uint64_t> stack, std::span<const std::byte> payload);

  // Counts `count` events that were attempted and are not in the stream: readers see them as lost.
  void SkipSequence(std::uint32_t count) { sequence_ += count; }

  // Hands all that is buffered to the sink: metadata, stacks, events, in this order.
  Status Flush();

  // Flush, then a sequence point at `timestamp`; stack ids start again.
  Status SequencePoint(std::uint64_t timestamp);

  // Flush, a last sequence point, the end tag.
  Status End(std::uint64_t timestamp);

  // Bytes handed to the sink so far.
  std::uint64_t bytes() const { return offset_; }
  // Bytes of stacks and events alone (without names and module events), for the cost per sample.
  std::uint64_t stack_bytes() const { return stack_bytes_; }

  struct Block;  // implementation
 private:
  struct PreviousHeader;
  // helper H1: replace this private part as you see fit
  Sink& sink_;
  std::uint64_t capture_thread_;
  std::uint32_t sequence_ = 0;
  std::uint64_t offset_ = 0;
  std::uint64_t stack_bytes_ = 0;
};

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_WRITER_H_
