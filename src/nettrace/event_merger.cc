// SPDX-License-Identifier: MIT
#include "nettrace/event_merger.h"

#include <algorithm>

namespace stackpipe::nettrace {

EventMerger::Thread* EventMerger::AddThread(std::uint32_t last_sequence) {
  if (unused_threads_.empty()) {
    unused_threads_.push_back(&threads_.emplace_back());
  }
  Thread* thread = unused_threads_.back();
  unused_threads_.pop_back();
  thread->order = next_order_++;
  thread->last_sequence = last_sequence;
  thread->removed = false;
  return thread;
}

void EventMerger::RemoveThread(Thread* thread) {
  thread->removed = true;
  if (thread->empty()) unused_threads_.push_back(thread);
}

void EventMerger::CountLost(Thread* thread, std::uint32_t last_used, bool zero_is_new) {
  if (zero_is_new && thread->last_sequence == 0) return;
  const std::uint32_t missing = last_used - thread->last_sequence;
  // A number that goes back is damage of unknown size; TraceEvent takes it for the most that there can be.
  lost_ += std::min<std::uint32_t>(missing, 0x7fff'ffff);
}

void EventMerger::Add(Thread* thread, const Event& event, bool sorted, PooledBlock* block) {
  if (sorted) {
    DeliverHeads(event.timestamp);
    Deliver(event);
    return;
  }
  if (waiting_ * sizeof(Thread::Waiting) + pool_.waiting_bytes() > limit_bytes_) FlushAll();
  thread->queue.push_back({event, block});
  pool_.AddUser(block);
  ++waiting_;
  if (thread->queue.size() - thread->head == 1) PushHead(thread);
}

void EventMerger::FlushAll() { DeliverHeads(UINT64_MAX); }

void EventMerger::PushHead(Thread* thread) {
  heads_.push_back({thread->queue[thread->head].event.timestamp, thread});
  std::push_heap(heads_.begin(), heads_.end());
}

void EventMerger::DeliverHeads(std::uint64_t last) {
  while (!heads_.empty() && heads_.front().timestamp <= last) {
    Thread* const thread = heads_.front().thread;
    std::pop_heap(heads_.begin(), heads_.end());
    heads_.pop_back();
    // A run of events of this thread goes out without asking the heap again.
    const std::uint64_t next_other = heads_.empty() ? UINT64_MAX : heads_.front().timestamp;
    const auto goes_on = [&] {
      if (thread->empty()) return false;
      const std::uint64_t timestamp = thread->queue[thread->head].event.timestamp;
      return timestamp < next_other && timestamp <= last;
    };
    do {
      DeliverFirst(thread);
    } while (goes_on());
    if (!thread->empty()) {
      PushHead(thread);
    } else if (thread->removed) {
      unused_threads_.push_back(thread);
    }
  }
}

void EventMerger::DeliverFirst(Thread* thread) {
  const Thread::Waiting& first = thread->queue[thread->head];
  Deliver(first.event);
  pool_.RemoveUser(first.block);
  --waiting_;
  ++thread->head;
  // Room of events that are gone is used again, in time that each event has paid for.
  constexpr std::size_t kQueueKept = 1024;
  if (thread->empty()) {
    thread->queue.clear();
    if (thread->queue.capacity() > kQueueKept) std::vector<Thread::Waiting>().swap(thread->queue);
    thread->head = 0;
  } else if (thread->head >= kQueueKept && thread->head * 2 >= thread->queue.size()) {
    thread->queue.erase(thread->queue.begin(),
                        thread->queue.begin() + static_cast<std::ptrdiff_t>(thread->head));
    thread->head = 0;
  }
}

void EventMerger::Deliver(const Event& event) {
  ++delivered_;
  visitor_.OnEvent(event);
}

}  // namespace stackpipe::nettrace
