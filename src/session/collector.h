// SPDX-License-Identifier: MIT
//
// Collector: the consumer side of the rings. In each round it takes all samples and lifecycle events that are
// older than the watermark, merges them by time, works out what each sample stands for, and hands them to the
// TraceWriter.
//
// How samples are weighted (docs/design/sampling.md):
//  cpu mode   the CPU time since the thread's last sample on the CPU. A sample that finds the thread asleep
//             weighs nothing; what was used before it fell asleep goes to the next sample on the CPU, or at
//             the thread's end to the last one. The weights of a thread add up to the CPU time that it used.
//  wall mode  the time since the thread's last sample. When a thread wakes, the time that it slept goes to
//             the stack that it slept in, and the CPU time used since to the stack that it is in now.
#ifndef STACKPIPE_SESSION_COLLECTOR_H_
#define STACKPIPE_SESSION_COLLECTOR_H_

#include <cstdint>
#include <vector>

#include "lifecycle/event_queue.h"
#include "sampler/sampler.h"
#include "session/handler_tables.h"
#include "session/trace_writer.h"

namespace stackpipe {

// Collector thread only.
class Collector {
 public:
  Collector(SampleMode mode, std::uint64_t period_ns, Sampler& sampler, EventQueue& queue, CodeMap& code,
            AotImages& images, HandlerTables& tables, TraceWriter& writer);

  // Takes and writes what is ready. True: native objects had come or gone.
  bool Round();
  // After Sampler::Stop: takes the rest, and writes each thread's closing sample and totals.
  void Finish();

  nettrace::Totals totals();
  std::uint64_t handler_ns() const;
  // Duration of the handlers, of all threads.
  void SumHandlerTimes(Histogram* to) const;

 private:
  // A sample that was written, with what is needed to write another one of its stack.
  struct Kept {
    bool valid = false;
    SampleOut out;
    std::vector<std::uint64_t> stack;
    std::vector<CodeId> ids;
    std::size_t named = 0;  // frames that the stream named then
  };
  // Ticks counted; and which part of them is of samples that had not reached the file after `flush_count`
  // flushes.
  struct Tally {
    nettrace::Totals totals;
    nettrace::Totals unflushed;
    std::uint64_t flush_count = 0;
  };
  // What the collector remembers of a thread, by record.
  struct Thread {
    std::uint64_t generation = 0;
    std::int32_t tid = 0;
    std::uint64_t last_ns = 0;      // time of the last sample
    std::uint64_t last_cpu_ns = 0;  // CPU time that is accounted for
    std::uint64_t ring_full_seen = 0;
    Tally tally;
    Kept last, last_on_cpu;  // repeated by closing samples
  };
  struct Item {
    std::uint64_t time_ns;
    const RawSample* sample;  // null: a lifecycle event
    std::size_t source;       // index of the sample's ring in pending_, or of the event in events_
  };
  // A ring that is being drained: what lies before the cursor is written.
  struct Pending {
    ThreadRecord* record;
    Ring::Cursor written;
  };

  void Drain(bool everything);
  // Finds the code of each frame, into ids_. False: a frame is of code whose registration has not come yet.
  bool Resolve(const RawSample& raw);
  CodeId ResolveFrame(std::uint64_t pc, CodeEpoch epoch, bool managed) const;
  // Makes the stream name what handlers decoded first, as far as their images are open in the stream.
  void AnnounceSeen();
  // Makes the stream name a frame of registered code (`id`), or of native code (0).
  bool Announce(CodeId id, std::uint64_t pc, std::uint64_t time_ns);
  void WriteSample(ThreadRecord* record, const RawSample& raw);
  // One sample more, with the stack of `kept`; with none, if code on it is gone since: its address may have
  // another name by now.
  void WriteClosing(Thread* thread, const Kept& kept, std::uint64_t time_ns, std::uint64_t weight_ns);
  void CloseThread(Thread* thread, std::uint64_t time_ns, std::uint64_t cpu_ns);
  void WriteTotals(const Thread& thread, std::uint64_t time_ns);
  Thread& ThreadOf(ThreadRecord* record);
  void CountRingFull(ThreadRecord* record, Thread* thread);
  void CountRecorded(Tally* tally, const nettrace::Totals& fresh);
  void Count(Thread* thread, bool written, std::uint64_t ticks);
  // Notes what reached the file, or, once a write has failed, moves what did not from recorded to dropped.
  void NoteFlushed();

  const SampleMode mode_;
  const std::uint64_t period_ns_;
  Sampler& sampler_;
  EventQueue& queue_;
  CodeMap& code_;
  AotImages& images_;
  HandlerTables& tables_;
  TraceWriter& writer_;

  std::vector<Thread> threads_;         // by ThreadRecord::index
  std::vector<LifecycleEvent> events_;  // taken, not written yet
  std::vector<AotHit> seen_;            // methods of AOT images, taken, not told yet
  std::vector<Item> items_;
  std::vector<Pending> pending_;
  std::vector<std::uint64_t> stack_;
  std::vector<CodeId> ids_;  // of the frames of the sample at hand; 0 = native, or unknown
  Tally closed_;             // of threads that are gone
  std::uint64_t closed_handler_ns_ = 0;
  Histogram closed_handler_times_;
  std::uint64_t flushed_bytes_ = 0, flush_count_ = 0;
  bool failure_counted_ = false;
  std::uint64_t written_until_ns_ = 0;
};

}  // namespace stackpipe

#endif  // STACKPIPE_SESSION_COLLECTOR_H_
