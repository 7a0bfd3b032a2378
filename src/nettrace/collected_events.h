// SPDX-License-Identifier: MIT
//
// For tests: what a reader delivers, kept; and version 4 and 6 streams put together block by block, also such
// as no writer would write.
#ifndef STACKPIPE_NETTRACE_COLLECTED_EVENTS_H_
#define STACKPIPE_NETTRACE_COLLECTED_EVENTS_H_

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nettrace/blob_block.h"
#include "nettrace/byte_writer.h"
#include "nettrace/format.h"
#include "nettrace/reader.h"
#include "nettrace/stream_blocks.h"

namespace stackpipe::nettrace {

struct CollectedEvent {
  std::string type;  // provider/id
  std::uint64_t timestamp = 0;
  std::uint64_t thread_id = 0;
  std::uint64_t capture_thread_id = 0;
  std::uint32_t sequence = 0;
  std::vector<std::uint64_t> stack;
  Bytes payload;

  bool operator==(const CollectedEvent&) const = default;

  friend std::ostream& operator<<(std::ostream& out, const CollectedEvent& event) {
    return out << event.type << " at " << event.timestamp << ", thread " << event.thread_id << ", number "
               << event.sequence << ", " << event.stack.size() << " frames, " << event.payload.size()
               << " bytes";
  }
};

struct CollectedTrace : Visitor {
  int traces = 0;
  TraceInfo info;
  std::vector<CollectedEvent> events;
  std::vector<EventType> types;  // of the events, in parallel
  std::vector<std::pair<std::uint64_t, std::string>> thread_names;
  ReadSummary summary;

  void OnTrace(const TraceInfo& trace) override {
    ++traces;
    info = trace;
  }
  void OnEvent(const Event& event) override {
    events.push_back({event.type->provider + "/" + std::to_string(event.type->event_id),
                      event.timestamp,
                      event.thread_id,
                      event.capture_thread_id,
                      event.sequence,
                      {event.stack.begin(), event.stack.end()},
                      {event.payload.begin(), event.payload.end()}});
    types.push_back(*event.type);
  }
  void OnThreadName(std::uint64_t thread_id, std::string_view name) override {
    thread_names.emplace_back(thread_id, name);
  }
};

inline CollectedTrace Collect(ByteSource& source) {
  CollectedTrace trace;
  trace.summary = Read(source, trace);
  return trace;
}

inline CollectedTrace Collect(std::span<const std::byte> stream) {
  const std::unique_ptr<ByteSource> source = FromMemory(stream);
  return Collect(*source);
}

// Bytes one behind the other.
class Assembler {
 public:
  template <typename T>
  Assembler& Put(T value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Assembler& VarUint(std::uint64_t value) {
    std::byte buffer[kVarUint64SizeMax];
    ByteWriter writer(buffer);
    writer.PutVarUint(value);
    return Add({buffer, static_cast<std::size_t>(writer.at() - buffer)});
  }
  Assembler& Text(std::string_view text) { return Add(std::as_bytes(std::span(text))); }
  Assembler& Utf8(std::string_view text) { return VarUint(text.size()).Text(text); }
  Assembler& Utf16(std::string_view ascii) {
    for (const char c : ascii) Put(static_cast<std::uint16_t>(c));
    return Put(std::uint16_t{0});
  }
  Assembler& Add(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

// Events of one block; payloads are four bytes.
class EventBlockBuilder {
 public:
  EventBlockBuilder() { block_.Allocate(); }
  EventBlockBuilder& Add(BlobHeader header) {
    header.payload_size = 4;
    ByteWriter(block_.Append(header)).Put(header.sequence);
    return *this;
  }
  Bytes content() {
    const std::span<const std::byte> content = block_.Finish();
    return {content.begin(), content.end()};
  }

 private:
  BlobBlock block_;
};

inline Bytes MetadataPayload4(std::uint32_t id, std::string_view provider, std::int32_t event_id,
                              std::string_view name = "") {
  Assembler out;
  out.Put(id).Utf16(provider).Put(event_id).Utf16(name);
  return out.Put(std::uint64_t{0}).Put(std::int32_t{0}).Put(std::int32_t{4}).Put(std::int32_t{0}).bytes();
}

class StreamBuilder {
 public:
  static constexpr std::uint64_t kSync = 1'000'000;

  explicit StreamBuilder(int version) : version_(version) {
    Assembler trace;
    for (const int part : {2026, 1, 5, 2, 3, 4, 5, 678}) trace.Put(static_cast<std::int16_t>(part));
    trace.Put(kSync).Put(std::uint64_t{1'000'000'000}).Put(std::int32_t{8});
    if (version == 4) {
      out_.Text("Nettrace").Put(std::int32_t{20}).Text("!FastSerialization.1");
      trace.Put(std::int32_t{42}).Put(std::int32_t{2}).Put(std::int32_t{1});
      Begin("Trace", 4).Add(trace.bytes()).Put(std::uint8_t{6});
    } else {
      out_.Text("Nettrace").Put(0).Put(6).Put(0);
      trace.Put(0);
      Block(1, "", trace.bytes());
    }
  }

  StreamBuilder& Block(std::uint32_t kind6, std::string_view name4, std::span<const std::byte> content) {
    if (version_ == 4) {
      Begin(name4, 2).Put(static_cast<std::int32_t>(content.size()));
      while (out_.bytes().size() % 4 != 0) out_.Put(std::uint8_t{0});
      out_.Add(content).Put(std::uint8_t{6});
    } else {
      out_.Put(kind6 << 24 | static_cast<std::uint32_t>(content.size())).Add(content);
    }
    return *this;
  }
  StreamBuilder& Events(std::span<const std::byte> content) { return Block(2, "EventBlock", content); }
  StreamBuilder& Metadata(std::span<const std::byte> content) { return Block(3, "MetadataBlock", content); }
  StreamBuilder& SequencePoint(std::span<const std::byte> content) { return Block(4, "SPBlock", content); }
  StreamBuilder& Stacks(std::span<const std::byte> content) { return Block(5, "StackBlock", content); }

  // A type without fields.
  StreamBuilder& Type(std::uint32_t id, std::string_view provider = "P") {
    if (version_ == 4) return Description(MetadataPayload4(id, provider, 1));
    Assembler row;
    row.VarUint(id).Utf8(provider).VarUint(1).Utf8("").Put(std::uint16_t{0}).Put(std::uint16_t{0});
    return Row6(row.bytes());
  }
  // Version 4: a metadata event with this payload. Version 6: a metadata block with this row.
  StreamBuilder& Description(std::span<const std::byte> payload) {
    BlobBlock block;
    block.Allocate();
    BlobHeader header;
    header.sorted = true;
    header.payload_size = static_cast<std::uint32_t>(payload.size());
    ByteWriter(block.Append(header)).PutBytes(payload);
    return Metadata(block.Finish());
  }
  StreamBuilder& Row6(std::span<const std::byte> row) {
    Assembler content;
    content.Put(std::uint16_t{0}).Put(static_cast<std::uint16_t>(row.size())).Add(row);
    return Metadata(content.bytes());
  }
  StreamBuilder& Thread6(std::uint64_t index, std::uint64_t os_id, std::string_view name = "") {
    Assembler row;
    row.VarUint(index);
    if (!name.empty()) row.Put(std::uint8_t{1}).Utf8(name);
    row.Put(std::uint8_t{2}).VarUint(42).Put(std::uint8_t{3}).VarUint(os_id);
    Assembler content;
    content.Put(static_cast<std::uint16_t>(row.bytes().size())).Add(row.bytes());
    return Block(6, "", content.bytes());
  }
  StreamBuilder& Stack(std::uint32_t id, const std::vector<std::uint64_t>& stack) {
    Assembler content;
    content.Put(id).Put(1).Put(static_cast<std::int32_t>(8 * stack.size()));
    for (const std::uint64_t address : stack) content.Put(address);
    return Stacks(content.bytes());
  }
  StreamBuilder& Point(std::uint64_t timestamp,
                       const std::vector<std::pair<std::uint64_t, std::uint32_t>>& threads,
                       std::uint32_t flags6 = 0) {
    Assembler content;
    content.Put(timestamp);
    if (version_ == 6) content.Put(flags6);
    content.Put(static_cast<std::uint32_t>(threads.size()));
    for (const auto& [id, last] : threads) {
      version_ == 4 ? content.Put(id).Put(last) : content.VarUint(id).VarUint(last);
    }
    return SequencePoint(content.bytes());
  }
  StreamBuilder& End() {
    version_ == 4 ? out_.Put(std::uint8_t{1}) : out_.Put(std::uint32_t{0});
    return *this;
  }
  // Version 4: the front of an object, up to its payload.
  Assembler& Begin(std::string_view name, std::int32_t object_version) {
    out_.Put(std::uint8_t{5})
        .Put(std::uint8_t{5})
        .Put(std::uint8_t{1})
        .Put(object_version)
        .Put(object_version);
    return out_.Put(static_cast<std::int32_t>(name.size())).Text(name).Put(std::uint8_t{6});
  }
  const Bytes& bytes() const { return out_.bytes(); }

 private:
  int version_;
  Assembler out_;
};

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_COLLECTED_EVENTS_H_
