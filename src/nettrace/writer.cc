// SPDX-License-Identifier: MIT
#include "nettrace/writer.h"

#include <algorithm>
#include <new>
#include <string_view>

#include "nettrace/byte_writer.h"
#include "nettrace/format.h"

namespace stackpipe::nettrace {

namespace {

// Tags, versions, name and size in front of a block, its padding, and the tag behind it.
constexpr std::size_t kWrapperSizeMax = 48;
constexpr std::size_t kClosingSizeMax = 128;
constexpr std::size_t kOutSize = 3 * (format::kBlockSizeMax + kWrapperSizeMax) + kClosingSizeMax;

constexpr std::size_t kStackBlockHeaderSize = 8;
constexpr std::uint32_t kIdMax = 0x7fff'ffff;  // readers take ids for signed

constexpr Status kLate{StatusCode::kInvalidArgument, "event or sequence point before one that is written"};

void BeginObject(ByteWriter* out, std::string_view name, std::int32_t version) {
  out->Put(format::kTagBeginObject);
  out->Put(format::kTagBeginObject);
  out->Put(format::kTagNull);
  out->Put(version);
  out->Put(version);  // least version of a reader
  out->Put(static_cast<std::int32_t>(name.size()));
  out->PutText(name);
  out->Put(format::kTagEndObject);
}

// `begin` is where the bytes start that will be at `offset` in the stream: the padding is counted in the
// stream.
void PutBlock(ByteWriter* out, const std::byte* begin, std::uint64_t offset, std::string_view name,
              std::span<const std::byte> content) {
  BeginObject(out, name, format::kBlockVersion);
  out->Put(static_cast<std::int32_t>(content.size()));
  while ((offset + static_cast<std::uint64_t>(out->at() - begin)) % format::kAlignment != 0) {
    out->Put(std::uint8_t{0});
  }
  out->PutBytes(content);
  out->Put(format::kTagEndObject);
}

std::size_t Utf16Size(const char* text) { return 2 * (Utf16Units(text) + 1); }

std::size_t MetadataSize(const TypeInfo& type) {
  std::size_t size = 4 + Utf16Size(type.provider) + 4 + Utf16Size(type.name) + 8 + 4 + 4 + 4;
  for (const TypeField& field : type.fields) size += 4 + Utf16Size(field.name);
  return size;
}

void PutMetadata(std::byte* to, const TypeInfo& type, std::uint32_t id) {
  ByteWriter out(to);
  out.Put(id);
  out.PutUtf16Text(type.provider);
  out.Put(type.event_id);
  out.PutUtf16Text(type.name);
  out.Put(type.keywords);
  out.Put(type.version);
  out.Put(type.level);
  out.Put(static_cast<std::int32_t>(type.fields.size()));
  for (const TypeField& field : type.fields) {
    out.Put(field.type);
    out.PutUtf16Text(field.name);
  }
}

std::uint64_t AddressWord(const TypeInfo& type) { return reinterpret_cast<std::uintptr_t>(&type); }

}  // namespace

Status Writer::Begin(const StreamHeader& header) {
  if (!sink_status_.ok()) return sink_status_;
  if (state_ != State::kNew) return {StatusCode::kInvalidArgument, "the stream was begun already"};
  if (header.pointer_size != 4 && header.pointer_size != 8) {
    return {StatusCode::kInvalidArgument, "the pointer size is not 4 or 8"};
  }
  stacks_.reset(new (std::nothrow) std::byte[format::kBlockSizeMax]);
  out_.reset(new (std::nothrow) std::byte[kOutSize]);
  if (!metadata_.Allocate() || !events_.Allocate() || stacks_ == nullptr || out_ == nullptr) {
    return {StatusCode::kOutOfMemory, "buffers of a trace"};
  }
  stacks_size_ = kStackBlockHeaderSize;
  pointer_size_ = static_cast<std::size_t>(header.pointer_size);
  last_time_ = header.sync_ticks + 1;

  ByteWriter out(out_.get());
  out.PutText(format::kMagic);
  out.Put(static_cast<std::int32_t>(format::kSerialization.size()));
  out.PutText(format::kSerialization);
  BeginObject(&out, format::kTraceName, format::kTraceVersion);
  for (const std::int16_t part : header.utc) out.Put(part);
  out.Put(header.sync_ticks);
  out.Put(header.ticks_per_second);
  out.Put(header.pointer_size);
  out.Put(header.process_id);
  out.Put(header.processor_count);
  out.Put(header.expected_sampling_rate);
  out.Put(format::kTagEndObject);
  state_ = State::kOpen;
  return WriteOut(static_cast<std::size_t>(out.at() - out_.get()));
}

Status Writer::Ready(std::uint64_t timestamp) const {
  if (!sink_status_.ok()) return sink_status_;
  if (state_ != State::kOpen) return {StatusCode::kInvalidArgument, "the stream is not begun, or ended"};
  if (timestamp < last_time_) return kLate;
  return {};
}

bool Writer::StackFits(std::size_t stack_size) const {
  return stacks_size_ + sizeof(std::int32_t) + stack_size <= format::kBlockSizeMax;
}

Status Writer::Event(const TypeInfo& type, std::uint64_t timestamp, std::uint64_t thread_id, bool sorted,
                     std::span<const std::uint64_t> stack, std::span<const std::byte> payload) {
  if (const Status ready = Ready(timestamp); !ready.ok()) return ready;
  const std::size_t stack_size = stack.size() * pointer_size_;
  if (stack_size > format::kStackSizeMax) return {StatusCode::kLimit, "stack of more than 65,527 bytes"};
  if (payload.size() > format::kPayloadSizeMax)
    return {StatusCode::kLimit, "payload of more than 65,535 bytes"};

  const std::uint64_t type_word = AddressWord(type);
  std::uint32_t type_id = type_ids_.Find({&type_word, 1}, IdTable::Hash({&type_word, 1}));
  const std::size_t metadata_size = type_id == 0 ? MetadataSize(type) : 0;
  if (metadata_size > format::kPayloadSizeMax)
    return {StatusCode::kLimit, "metadata of more than 65,535 bytes"};

  const std::uint32_t stack_hash = stack.empty() ? 0 : IdTable::Hash(stack);
  std::uint32_t stack_id = stack.empty() ? 0 : stack_ids_.Find(stack, stack_hash);
  const bool new_stack = !stack.empty() && stack_id == 0;

  if (std::max(next_type_id_, next_stack_id_) == kIdMax)
    return {StatusCode::kLimit, "ids of types or stacks"};
  if (!events_.Fits(payload.size()) || (type_id == 0 && !metadata_.Fits(metadata_size)) ||
      (new_stack && !StackFits(stack_size))) {
    if (const Status flushed = Flush(); !flushed.ok()) return flushed;
  }

  if (type_id == 0) type_id = AddType(type, metadata_size, timestamp);
  if (new_stack) stack_id = AddStack(stack, stack_hash);

  const std::size_t size_before = events_.size();
  BlobHeader header;
  header.metadata_id = type_id;
  header.sequence = ++sequence_;
  header.capture_thread = capture_thread_;
  header.processor = format::kNoProcessor;
  header.thread = thread_id;
  header.stack_id = stack_id;
  header.timestamp = timestamp;
  header.payload_size = static_cast<std::uint32_t>(payload.size());
  header.sorted = sorted;
  ByteWriter(events_.Append(header)).PutBytes(payload);
  if (!stack.empty()) stack_bytes_ += events_.size() - size_before;
  last_time_ = timestamp;
  return {};
}

std::uint32_t Writer::AddType(const TypeInfo& type, std::size_t metadata_size, std::uint64_t timestamp) {
  const std::uint32_t id = next_type_id_++;
  const std::uint64_t word = AddressWord(type);
  type_ids_.Insert({&word, 1}, IdTable::Hash({&word, 1}), id);
  BlobHeader header;  // metadata has neither thread nor sequence number
  header.timestamp = timestamp;
  header.payload_size = static_cast<std::uint32_t>(metadata_size);
  header.sorted = true;
  PutMetadata(metadata_.Append(header), type, id);
  return id;
}

std::uint32_t Writer::AddStack(std::span<const std::uint64_t> stack, std::uint32_t hash) {
  const std::uint32_t id = next_stack_id_++;
  stack_ids_.Insert(stack, hash, id);
  ByteWriter out(stacks_.get() + stacks_size_);
  out.Put(static_cast<std::int32_t>(stack.size() * pointer_size_));
  if (pointer_size_ == sizeof(std::uint64_t)) {
    out.PutBytes(std::as_bytes(stack));
  } else {
    for (const std::uint64_t address : stack) out.Put(static_cast<std::uint32_t>(address));
  }
  const auto size = static_cast<std::size_t>(out.at() - stacks_.get());
  stack_bytes_ += size - stacks_size_;
  stacks_size_ = size;
  return id;
}

Status Writer::Flush() {
  if (const Status ready = Ready(last_time_); !ready.ok()) return ready;
  return HandOver(Closing::kNothing, 0);
}

Status Writer::SequencePoint(std::uint64_t timestamp) {
  if (const Status ready = Ready(timestamp); !ready.ok()) return ready;
  return HandOver(Closing::kSequencePoint, timestamp);
}

Status Writer::End(std::uint64_t timestamp) {
  if (const Status ready = Ready(timestamp); !ready.ok()) return ready;
  state_ = State::kEnded;
  return HandOver(Closing::kEnd, timestamp);
}

Status Writer::HandOver(Closing closing, std::uint64_t timestamp) {
  ByteWriter out(out_.get());
  if (!metadata_.empty()) {
    PutBlock(&out, out_.get(), offset_, format::kMetadataBlockName, metadata_.Finish());
    metadata_.Clear();
  }
  if (stacks_size_ > kStackBlockHeaderSize) {
    ByteWriter header(stacks_.get());
    header.Put(first_stack_id_);
    header.Put(next_stack_id_ - first_stack_id_);
    PutBlock(&out, out_.get(), offset_, format::kStackBlockName, {stacks_.get(), stacks_size_});
    stacks_size_ = kStackBlockHeaderSize;
    first_stack_id_ = next_stack_id_;
  }
  if (!events_.empty()) {
    PutBlock(&out, out_.get(), offset_, format::kEventBlockName, events_.Finish());
    events_.Clear();
  }
  if (closing != Closing::kNothing) {
    // The time, and for each capture thread its id and the last sequence number that it has used.
    std::byte content[24];
    ByteWriter point(content);
    point.Put(timestamp);
    point.Put(std::int32_t{1});
    point.Put(capture_thread_);
    point.Put(sequence_);
    PutBlock(&out, out_.get(), offset_, format::kSequencePointName, content);
    last_time_ = timestamp;
    stack_ids_.Clear();
    first_stack_id_ = next_stack_id_ = 1;
  }
  if (closing == Closing::kEnd) out.Put(format::kTagNull);
  const auto size = static_cast<std::size_t>(out.at() - out_.get());
  return size == 0 ? Status() : WriteOut(size);
}

Status Writer::WriteOut(std::size_t size) {
  sink_status_ = sink_.Write({out_.get(), size});
  if (sink_status_.ok()) offset_ += size;
  return sink_status_;
}

}  // namespace stackpipe::nettrace
