// SPDX-License-Identifier: MIT
#include "nettrace/stream_reader.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "nettrace/blob_reader.h"
#include "nettrace/format.h"
#include "nettrace/metadata.h"

namespace stackpipe::nettrace {

namespace {

// Decimal text, as version 6 has it; what is none is 0.
std::uint64_t NumberFrom(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int ClampToInt(std::uint64_t value) { return static_cast<int>(std::min<std::uint64_t>(value, 0x7fff'ffff)); }

}  // namespace

void StreamReader::Run() {
  ReadFromStart();
  merger_.FlushAll();
}

ReadSummary StreamReader::Summary() const {
  ReadSummary summary = summary_;
  summary.events = merger_.delivered();
  summary.lost = merger_.lost();
  return summary;
}

void StreamReader::ReadFromStart() {
  char magic[format::kMagic.size()];
  const std::size_t got = input_.Read(reinterpret_cast<std::byte*>(magic), sizeof magic);
  if (std::string_view(magic, got) != format::kMagic.substr(0, got)) {
    Fail(StatusCode::kFormat, "not a nettrace stream", 0, "does not begin with \"Nettrace\"");
    return;
  }
  std::uint32_t selector = 0;
  if (got < sizeof magic) {
    Stopped("the header");
  } else if (Take(&selector, sizeof selector, "the header")) {
    // Version 4 goes on with the length of a text, version 6 with a zero in its place.
    if (selector == format::kSerialization.size()) {
      ReadVersion4();
    } else if (selector == 0) {
      ReadVersion6();
    } else {
      Fail(StatusCode::kFormat, "not a nettrace stream", format::kMagic.size(),
           "neither version 4 nor version 6");
    }
  }
}

bool StreamReader::Take(void* to, std::size_t size, std::string_view what) {
  return input_.Read(static_cast<std::byte*>(to), size) == size || Stopped(what);
}

bool StreamReader::OnTrace(const Content& content) {
  if (!content.whole) return true;
  if (has_trace_) return FailIn(content, 0, "a second one");
  ByteReader in(content.bytes);
  for (std::int16_t& part : trace_.utc) part = in.Take<std::int16_t>();
  trace_.sync_ticks = in.Take<std::uint64_t>();
  trace_.ticks_per_second = in.Take<std::uint64_t>();
  trace_.pointer_size = in.Take<std::int32_t>();
  if (trace_.version == 4) {
    trace_.process_id = in.Take<std::uint32_t>();
    trace_.processor_count = in.Take<std::int32_t>();
    trace_.expected_sampling_rate = in.Take<std::int32_t>();
  } else {
    const auto count = in.Take<std::uint32_t>();
    for (std::uint32_t i = 0; i < count && !in.failed(); ++i) {
      const std::string key = in.TakeUtf8Text();
      const std::uint64_t value = NumberFrom(in.TakeUtf8Text());
      if (key == "ProcessId") trace_.process_id = value;
      if (key == "HardwareThreadCount") trace_.processor_count = ClampToInt(value);
      if (key == "ExpectedCPUSamplingRate") trace_.expected_sampling_rate = ClampToInt(value);
    }
  }
  if (in.failed()) return FailIn(content, content.bytes.size(), "is too short");
  if (trace_.pointer_size != 4 && trace_.pointer_size != 8)
    return FailIn(content, 32, "pointer size not 4 or 8");
  if (static_cast<std::int64_t>(trace_.ticks_per_second) <= 0) return FailIn(content, 24, "no clock rate");
  has_trace_ = true;
  visitor_.OnTrace(trace_);
  return true;
}

bool StreamReader::OnEvents(const Content& content) {
  BlobReader blobs(content.bytes, trace_.version);
  const Thread* capture_thread = nullptr;
  std::uint64_t capture_thread_id = 0;
  while (blobs.Next()) {
    const BlobHeader& header = blobs.header();
    // Only a sorted event may begin another thread's run; an unsorted one belongs to the run that it stands
    // in.
    if (capture_thread == nullptr || (header.sorted && header.capture_thread != capture_thread_id)) {
      capture_thread_id = header.capture_thread;
      capture_thread = FindThread(capture_thread_id, header.sequence - 1);
      if (capture_thread == nullptr)
        return FailIn(content, blobs.event_at(), "event of a thread that is not known");
    }
    CountLost(*capture_thread, header.sequence - 1);
    capture_thread->merged->last_sequence = header.sequence;

    Event event;
    event.type = FindType(header.metadata_id);
    if (event.type == nullptr)
      return FailIn(content, blobs.event_at(), "event of a type that is not described");
    event.timestamp = header.timestamp;
    event.thread_id = header.thread;
    event.capture_thread_id = capture_thread->os_id;
    if (trace_.version == 6) {
      const Thread* thread = FindThread(header.thread, 0);
      if (thread == nullptr) return FailIn(content, blobs.event_at(), "event of a thread that is not known");
      event.thread_id = thread->os_id;
    }
    event.sequence = header.sequence;
    event.processor = header.processor;
    if (header.stack_id != 0) event.stack = stacks_.Find(header.stack_id);
    event.payload = blobs.payload();
    merger_.Add(capture_thread->merged, event, header.sorted, content.block);
  }
  if (blobs.broken() && content.whole) return FailIn(content, blobs.event_at(), "broken event");
  return true;
}

bool StreamReader::OnMetadata4(const Content& content) {
  BlobReader blobs(content.bytes, trace_.version);
  while (blobs.Next()) {
    EventType type;
    if (!ParseMetadata4(blobs.payload(), &type))
      return FailIn(content, blobs.event_at(), "broken description");
    if (!Define(std::move(type), content)) return false;
  }
  if (blobs.broken() && content.whole) return FailIn(content, blobs.event_at(), "broken event");
  return true;
}

bool StreamReader::OnStacks(const Content& content) {
  if (!content.whole) return true;
  ByteReader in(content.bytes);
  const auto first = in.Take<std::uint32_t>();
  const auto count = in.Take<std::uint32_t>();
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t at = content.bytes.size() - in.left();
    const auto bytes = in.TakeBytes(in.Take<std::uint32_t>());
    if (in.failed()) return FailIn(content, at, "broken stack");
    if (!stacks_.Add(first + i, bytes, static_cast<std::size_t>(trace_.pointer_size))) {
      return FailIn(content, at, "stack id " + std::to_string(first + i) + " for the second time");
    }
  }
  if (in.failed() || in.left() != 0) return FailIn(content, 4, "number of stacks is wrong");
  return true;
}

bool StreamReader::OnSequencePoint(const Content& content) {
  merger_.FlushAll();
  if (!content.whole) return true;
  const bool is_version_6 = trace_.version == 6;
  ByteReader in(content.bytes);
  in.Take<std::uint64_t>();  // its time: whatever is in the stream before it is earlier
  const std::uint32_t flags = is_version_6 ? in.Take<std::uint32_t>() : 0;
  const auto count = in.Take<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && !in.failed(); ++i) {
    const std::uint64_t id = is_version_6 ? in.TakeVarUint<std::uint64_t>() : in.Take<std::uint64_t>();
    const std::uint32_t last_used = is_version_6 ? in.TakeVarUint<std::uint32_t>() : in.Take<std::uint32_t>();
    if (in.failed()) break;
    Thread* thread = FindThread(id, last_used);
    if (thread == nullptr)
      return FailIn(content, content.bytes.size() - in.left(), "thread that is not known");
    CountLost(*thread, last_used);
    thread->merged->last_sequence = last_used;
  }
  if (in.failed()) return FailIn(content, content.bytes.size(), "is too short");
  stacks_.Clear();
  if ((flags & format::kFlushThreads) != 0) {
    for (const auto& [id, thread] : threads_) merger_.RemoveThread(thread.merged);
    threads_.clear();
  }
  if ((flags & format::kFlushMetadata) != 0) {
    types_by_id_.clear();
    last_type_ = nullptr;
  }
  return true;
}

bool StreamReader::Define(EventType&& type, const Content& content) {
  if (type.id == 0 || types_by_id_.count(type.id) != 0) {
    return FailIn(content, 0, "event type " + std::to_string(type.id) + " described for the second time");
  }
  types_.push_back(std::move(type));
  types_by_id_.emplace(types_.back().id, &types_.back());
  return true;
}

const EventType* StreamReader::FindType(std::uint32_t id) {
  if (last_type_ != nullptr && last_type_->id == id) return last_type_;
  const auto found = types_by_id_.find(id);
  if (found == types_by_id_.end()) return nullptr;
  last_type_ = found->second;
  return last_type_;
}

StreamReader::Thread* StreamReader::FindThread(std::uint64_t id, std::uint32_t last_sequence) {
  const auto found = threads_.find(id);
  if (found != threads_.end()) return &found->second;
  if (trace_.version == 6) return nullptr;
  return &threads_.emplace(id, Thread{id, merger_.AddThread(last_sequence)}).first->second;
}

void StreamReader::CountLost(const Thread& thread, std::uint32_t last_used) {
  // Version 4 has no table of threads: a thread that was announced with number 0 may begin anywhere.
  merger_.CountLost(thread.merged, last_used, trace_.version == 4);
}

bool StreamReader::Fail(StatusCode code, const char* context, std::uint64_t at, std::string detail) {
  summary_.status = Status(code, context);
  summary_.detail = "at byte " + std::to_string(at) + ": " + std::move(detail);
  return false;
}

bool StreamReader::FailIn(const Content& content, std::size_t at, std::string detail) {
  return Fail(StatusCode::kFormat, "broken block", content.at + at,
              std::string(content.name) + ": " + std::move(detail));
}

bool StreamReader::Stopped(std::string_view where) {
  summary_.status =
      input_.status().ok() ? Status(StatusCode::kTruncated, "end of a stream") : input_.status();
  summary_.detail =
      "the stream stops at byte " + std::to_string(input_.offset()) + ", in " + std::string(where);
  return false;
}

void StreamReader::CheckNothingFollows() {
  summary_.bytes = input_.offset();
  std::byte more{};
  if (input_.Read(&more, 1) != 0) {
    Fail(StatusCode::kFormat, "end of a stream", summary_.bytes, "more bytes after the end mark");
  } else if (!input_.status().ok()) {
    Stopped("what should be its end");
  } else {
    summary_.complete = true;
  }
}

}  // namespace stackpipe::nettrace
