// SPDX-License-Identifier: MIT
//
// StreamReader: one reading of a stream from its first byte to its end or to the first thing that is wrong.
// What the versions share is in stream_reader.cc, their framing in stream_reader_v4.cc and
// stream_reader_v6.cc.
//
// A step that returns false has noted in the summary why the reading stops.
#ifndef STACKPIPE_NETTRACE_STREAM_READER_H_
#define STACKPIPE_NETTRACE_STREAM_READER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "nettrace/block_pool.h"
#include "nettrace/byte_reader.h"
#include "nettrace/event_merger.h"
#include "nettrace/reader.h"
#include "nettrace/stack_store.h"
#include "nettrace/stream_input.h"

namespace stackpipe::nettrace {

class StreamReader {
 public:
  StreamReader(ByteSource& source, Visitor& visitor)
      : input_(source), visitor_(visitor), merger_(visitor, pool_) {}

  // Throws only what the visitor throws, and bad_alloc.
  void Run();
  ReadSummary Summary() const;

 private:
  // The content of a block, or as much as there is of it.
  struct Content {
    std::string_view name;  // for a person
    std::uint64_t at = 0;   // offset in the stream
    std::span<const std::byte> bytes;
    bool whole = true;
    PooledBlock* block = nullptr;  // where the bytes are
  };
  // A thread as the stream names it: by its OS id (version 4), or by its place in the table of threads
  // (version 6).
  struct Thread {
    std::uint64_t os_id = 0;
    EventMerger::Thread* merged = nullptr;
  };

  void ReadFromStart();
  void ReadVersion4();
  bool ReadObject4();
  bool ReadBlock4(std::string_view name);
  void ReadVersion6();
  bool ReadBlock6(std::uint32_t word);
  bool OnBlock6(std::uint32_t kind, const Content& content);
  bool OnMetadata6(const Content& content);
  bool OnThreads6(const Content& content);
  bool OnRemoveThreads6(const Content& content);

  // The next `size` bytes; notes that the stream stops inside `what` if they are not there.
  bool Take(void* to, std::size_t size, std::string_view what);
  // Takes a block of `size` bytes and hands it to `use`, cut if it is.
  template <typename Use>
  bool TakeContent(std::size_t size, std::string_view name, Use use);

  bool OnTrace(const Content& content);
  bool OnEvents(const Content& content);
  bool OnMetadata4(const Content& content);
  bool OnStacks(const Content& content);
  bool OnSequencePoint(const Content& content);

  bool Define(EventType&& type, const Content& content);
  const EventType* FindType(std::uint32_t id);
  // Makes the thread if the version allows it, as one that has used the number `last_sequence`; else null.
  Thread* FindThread(std::uint64_t id, std::uint32_t last_sequence);
  void CountLost(const Thread& thread, std::uint32_t last_used);

  // `at` is an offset in the stream.
  bool Fail(StatusCode code, const char* context, std::uint64_t at, std::string detail);
  bool FailIn(const Content& content, std::size_t at, std::string detail);
  bool Stopped(std::string_view where);
  // The end mark was read: nothing may follow.
  void CheckNothingFollows();

  StreamInput input_;
  Visitor& visitor_;
  BlockPool pool_;
  EventMerger merger_;
  StackStore stacks_;
  std::deque<EventType> types_;  // all there ever were: visitors keep pointers to them
  std::unordered_map<std::uint32_t, const EventType*> types_by_id_;
  const EventType* last_type_ = nullptr;
  std::unordered_map<std::uint64_t, Thread> threads_;
  TraceInfo trace_;
  bool has_trace_ = false;
  ReadSummary summary_;
};

template <typename Use>
bool StreamReader::TakeContent(std::size_t size, std::string_view name, Use use) {
  PooledBlock* const block = pool_.Acquire();
  Content content;
  content.name = name;
  content.at = input_.offset();
  const std::size_t got = input_.ReadGrowing(size, &block->bytes);
  content.bytes = std::span<const std::byte>(block->bytes).first(got);
  content.whole = got == size;
  content.block = block;
  const bool good = use(content);
  pool_.RemoveUser(block);
  if (good && !content.whole) return Stopped(name);
  return good;
}

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_STREAM_READER_H_
