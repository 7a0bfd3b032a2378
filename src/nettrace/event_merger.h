// SPDX-License-Identifier: MIT
//
// EventMerger: brings the events of several capture threads into time order, and counts those that are lost.
//
// Each capture thread's events come in time order, so it has a queue. A sorted event is no later than
// anything that follows in the stream: it lets go all that is earlier, then itself. A sequence point lets go
// everything.
//
// Source: what TraceEvent's EventPipe reader does.
#ifndef STACKPIPE_NETTRACE_EVENT_MERGER_H_
#define STACKPIPE_NETTRACE_EVENT_MERGER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "nettrace/block_pool.h"
#include "nettrace/reader.h"

namespace stackpipe::nettrace {

class EventMerger {
 public:
  // Events that wait, and the blocks that they wait in, take this much at most; then all are let go, in time
  // order among themselves. Writers that mark events as sorted, as all known ones do, stay far below.
  static constexpr std::size_t kDefaultLimit = std::size_t{128} << 20;

  // One capture thread. Made by AddThread.
  struct Thread {
    struct Waiting {
      Event event;
      PooledBlock* block = nullptr;
    };
    std::uint64_t order = 0;  // of creation: decides between equal times
    std::uint32_t last_sequence = 0;
    bool removed = false;
    std::vector<Waiting> queue;
    std::size_t head = 0;  // first of the queue that waits

    bool empty() const { return head == queue.size(); }
  };

  EventMerger(Visitor& visitor, BlockPool& pool, std::size_t limit_bytes = kDefaultLimit)
      : visitor_(visitor), pool_(pool), limit_bytes_(limit_bytes) {}

  // A thread whose last sequence number was `last_sequence`. Stays until RemoveThread.
  Thread* AddThread(std::uint32_t last_sequence);
  // Events of the thread that wait are still delivered.
  void RemoveThread(Thread* thread);

  // Counts the numbers after the thread's last one up to `last_used` as lost. With `zero_is_new`, a thread
  // whose last number is 0 is taken for one that nothing is known of.
  void CountLost(Thread* thread, std::uint32_t last_used, bool zero_is_new);

  // The event's spans lie in `block`, or stay until the next FlushAll.
  void Add(Thread* thread, const Event& event, bool sorted, PooledBlock* block);

  void FlushAll();

  std::uint64_t delivered() const { return delivered_; }
  std::uint64_t lost() const { return lost_; }

 private:
  struct Head {
    std::uint64_t timestamp = 0;
    Thread* thread = nullptr;
    // For the heap functions, whose top is the greatest.
    friend bool operator<(const Head& a, const Head& b) {
      return a.timestamp != b.timestamp ? a.timestamp > b.timestamp : a.thread->order > b.thread->order;
    }
  };

  void PushHead(Thread* thread);
  // Those up to this time.
  void DeliverHeads(std::uint64_t last);
  void DeliverFirst(Thread* thread);
  void Deliver(const Event& event);

  Visitor& visitor_;
  BlockPool& pool_;
  const std::size_t limit_bytes_;
  std::deque<Thread> threads_;
  std::vector<Thread*> unused_threads_;
  std::uint64_t next_order_ = 0;
  std::vector<Head> heads_;  // heap of the threads that have events waiting
  std::size_t waiting_ = 0;
  std::uint64_t delivered_ = 0;
  std::uint64_t lost_ = 0;
};

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_EVENT_MERGER_H_
