// SPDX-License-Identifier: MIT
//
// Writes a nettrace v4 stream. One writer serves one stream and is used by one thread at a time; it does no
// I/O itself but hands whole blocks to a Sink, so that what the sink has got is at every moment a prefix that
// ends between blocks.
//
// The writer keeps the format's rules that readers depend on: a type's metadata is written before its first
// use, stack ids start again after a sequence point, blocks stay below 100 KiB, block contents are aligned to
// 4 bytes counted from the start of the stream. Its user keeps one: events come in time order (there is one
// capture thread). Its memory is bounded: under 1 MB of blocks, and at most 18 MB of tables.
//
// Source: the NetTrace format of .NET, version 4.
#ifndef STACKPIPE_NETTRACE_WRITER_H_
#define STACKPIPE_NETTRACE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "nettrace/blob_block.h"
#include "nettrace/id_table.h"
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
  // `capture_thread` is the id under which all events are filed. `sink` outlives the writer.
  Writer(Sink& sink, std::uint64_t capture_thread) : sink_(sink), capture_thread_(capture_thread) {}
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Errors of all calls below: what the sink returned, and from then on always that (the stream ends there,
  // between blocks); kInvalidArgument where the order of calls or of times is wrong; else as said. With
  // kInvalidArgument and kLimit nothing was written or counted, and the writer goes on.

  // The first call: header and Trace object. Errors: kOutOfMemory; kInvalidArgument if the pointer size is
  // not 4 or 8.
  Status Begin(const StreamHeader& header);

  // Appends an event. `type` must stay at the same address for the life of the writer (it is the key).
  // `timestamp` is later than the header's sync_ticks and not before that of the last event or sequence
  // point. `stack` is leaf first and may be empty (no stack). Sorted events make a live reader show what came
  // before. Errors: kLimit if the payload or the stack is longer than 65,535 or 65,527 bytes: readers cannot
  // take those.
  Status Event(const TypeInfo& type, std::uint64_t timestamp, std::uint64_t thread_id, bool sorted,
               std::span<const std::uint64_t> stack, std::span<const std::byte> payload);

  // Counts `count` events that were attempted and are not in the stream: readers see them as lost. (Not those
  // before the first event: the format has no way to say so.)
  void SkipSequence(std::uint32_t count) { sequence_ += count; }

  // Hands all that is buffered to the sink, in one call: metadata, stacks, events, in this order.
  Status Flush();

  // True when the table of stacks has become large (some MB; readers hold the same ones): it is time for a
  // sequence point. The writer's memory stays bounded without, but stacks may then be written more than once.
  bool WantsSequencePoint() const { return stack_ids_.bytes() >= kStackTableSize / 2; }

  // Flush, then a sequence point at `timestamp`; stack ids start again.
  Status SequencePoint(std::uint64_t timestamp);

  // Flush, a last sequence point, the end tag. No call but the accessors is valid after it.
  Status End(std::uint64_t timestamp);

  // Bytes handed to the sink so far.
  std::uint64_t bytes() const { return offset_; }
  // Bytes of stacks and of events that have one, buffered ones as well: without names and modules, for the
  // cost per sample.
  std::uint64_t stack_bytes() const { return stack_bytes_; }

 private:
  static constexpr std::size_t kStackTableSize = std::size_t{8} << 20;
  static constexpr std::size_t kTypeTableSize = std::size_t{1} << 20;

  enum class State : std::uint8_t { kNew, kOpen, kEnded };
  // What goes out after the blocks.
  enum class Closing : std::uint8_t { kNothing, kSequencePoint, kEnd };

  Status Ready(std::uint64_t timestamp) const;
  bool StackFits(std::size_t stack_size) const;
  std::uint32_t AddType(const TypeInfo& type, std::size_t metadata_size, std::uint64_t timestamp);
  std::uint32_t AddStack(std::span<const std::uint64_t> stack, std::uint32_t hash);
  Status HandOver(Closing closing, std::uint64_t timestamp);
  Status WriteOut(std::size_t size);

  Sink& sink_;
  const std::uint64_t capture_thread_;
  State state_ = State::kNew;
  Status sink_status_;  // the first error of the sink
  std::uint32_t sequence_ = 0;
  std::uint64_t last_time_ = 0;
  std::uint64_t offset_ = 0;
  std::uint64_t stack_bytes_ = 0;
  std::size_t pointer_size_ = 8;

  IdTable type_ids_{kTypeTableSize};  // by address
  std::uint32_t next_type_id_ = 1;
  IdTable stack_ids_{kStackTableSize};
  std::uint32_t next_stack_id_ = 1;

  BlobBlock metadata_;
  BlobBlock events_;
  std::unique_ptr<std::byte[]> stacks_;  // content of the StackBlock that is being filled
  std::size_t stacks_size_ = 0;
  std::uint32_t first_stack_id_ = 1;  // in stacks_
  std::unique_ptr<std::byte[]> out_;  // what one call of the sink gets
};

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_WRITER_H_
