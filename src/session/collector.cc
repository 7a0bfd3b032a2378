// SPDX-License-Identifier: MIT
#include "session/collector.h"

#include <algorithm>

namespace stackpipe {

namespace {

// How long the stream waits, from a sample on, for the registration of code that a runtime's walker has seen
// already.
constexpr std::uint64_t kLateNsMax = 150'000'000;

}  // namespace

Collector::Collector(SampleMode mode, std::uint64_t period_ns, Sampler& sampler, EventQueue& queue,
                     CodeMap& code, AotImages& images, HandlerTables& tables, TraceWriter& writer)
    : mode_(mode),
      period_ns_(period_ns),
      sampler_(sampler),
      queue_(queue),
      code_(code),
      images_(images),
      tables_(tables),
      writer_(writer) {}

bool Collector::Round() {
  tables_.Refresh();
  const bool changed = tables_.TakeObjectsChanged();
  if (changed) writer_.NativeObjectsChanged(written_until_ns_);
  Drain(false);
  return changed;
}

Collector::Thread& Collector::ThreadOf(ThreadRecord* record) {
  if (record->index >= threads_.size()) threads_.resize(record->index + 1);
  Thread& thread = threads_[record->index];
  if (thread.generation != record->generation) {
    thread = Thread{};
    thread.generation = record->generation;
    thread.tid = record->tid;
    thread.last_ns = record->start_ns;
    thread.last_cpu_ns = record->start_cpu_ns;
  }
  return thread;
}

void Collector::Drain(bool everything) {
  const std::vector<ThreadRecord*> records = sampler_.Records();
  const CodeEpoch epoch = code_.epoch();
  const std::uint64_t now = port::NowNs();
  const std::uint64_t until = everything ? ~std::uint64_t{0} : sampler_.Watermark(now, records);
  // Taken after the clock was read: what is told from here on has a later time.
  queue_.Take(&events_);

  items_.clear();
  pending_.clear();
  for (ThreadRecord* record : records) {
    if (record->state.load() == ThreadRecord::State::kFree) continue;
    ThreadOf(record);
    Ring::Cursor cursor = record->ring.Begin();
    pending_.push_back({record, cursor});
    std::size_t size = 0;
    while (const std::byte* bytes = record->ring.Peek(&cursor, &size)) {
      const auto* raw = reinterpret_cast<const RawSample*>(bytes);
      if (raw->time_ns >= until) break;
      items_.push_back({raw->time_ns, raw, pending_.size() - 1});
      record->ring.Next(&cursor);
    }
  }
  for (std::size_t i = 0; i < events_.size() && events_[i].time_ns < until; ++i) {
    items_.push_back({events_[i].time_ns, nullptr, i});
  }
  std::stable_sort(items_.begin(), items_.end(),
                   [](const Item& a, const Item& b) { return a.time_ns < b.time_ns; });

  // What these samples met was seen before they came into the rings.
  images_.TakeSeen(&seen_);
  AnnounceSeen();

  std::size_t events_written = 0;
  bool waiting = false;
  for (const Item& item : items_) {
    if (item.sample == nullptr) {
      writer_.Write(events_[item.source]);
      ++events_written;
      if (!seen_.empty()) AnnounceSeen();  // an image may have opened
      continue;
    }
    if (!Resolve(*item.sample) && !everything && now - item.time_ns < kLateNsMax) {
      waiting = true;
      break;  // this and all that is later waits for the next round
    }
    auto& [record, written] = pending_[item.source];
    WriteSample(record, *item.sample);
    std::size_t size = 0;
    record->ring.Peek(&written, &size);
    record->ring.Next(&written);
  }
  events_.erase(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(events_written));

  for (const auto& [record, written] : pending_) {
    Thread& thread = ThreadOf(record);
    // In this order: after its end a thread counts nothing more.
    const bool ended = record->state.load() == ThreadRecord::State::kEnded;
    CountRingFull(record, &thread);
    record->ring.Pop(written);
    if (ended && record->ring.Empty()) {
      // The record's last entry is the end mark; where the ring had no room for it, the clocks are not known.
      WriteTotals(thread, written_until_ns_);
      closed_handler_ns_ += record->handler_ns.load();
      closed_handler_times_.AddAll(record->handler_times);
      NoteFlushed();
      const bool unflushed = thread.tally.flush_count == flush_count_;
      const nettrace::Totals buffered = unflushed ? thread.tally.unflushed : nettrace::Totals{};
      CountRecorded(&closed_, buffered);
      closed_.totals.expected += thread.tally.totals.expected;
      closed_.totals.recorded += thread.tally.totals.recorded - buffered.recorded;
      closed_.totals.dropped += thread.tally.totals.dropped;
      closed_.totals.suppressed += thread.tally.totals.suppressed - buffered.suppressed;
      thread.tally = {};
      sampler_.Release(record);
    }
  }
  // Whatever was not taken was sampled after the clock was read, hence at `epoch` or later; unless a handler
  // is still running, or a sample waits.
  if (until == now && !waiting) {
    code_.TrimHistory(epoch);
    tables_.Reclaim(epoch);
  }
  if (writer_.WantsSequencePoint()) writer_.SequencePoint(written_until_ns_);
}

bool Collector::Resolve(const RawSample& raw) {
  bool all = true;
  ids_.clear();
  for (std::size_t i = 0; i < raw.frame_count; ++i) {
    // Where the walker found nothing, the last frame is one that it does not know.
    const bool walked = raw.stop == StopReason::kComplete || raw.stop == StopReason::kDepth;
    const bool managed = walked && i >= raw.native_frames;
    ids_.push_back(ResolveFrame(raw.pcs()[i], raw.epoch, managed));
    all = all && (!managed || ids_.back() != 0);
  }
  return all;
}

// A frame of the runtime's walker may be of code that was on its way into the map when it was seen: what is
// registered there next is that code.
CodeId Collector::ResolveFrame(std::uint64_t pc, CodeEpoch epoch, bool managed) const {
  CodeHit hit;
  if (code_.LookupAt(pc, epoch, &hit)) return hit.id;
  CodeDescriptor code;
  if (managed && code_.LookupAt(pc, code_.epoch(), &hit) && code_.Describe(hit.id, &code) &&
      code.birth > epoch) {
    return hit.id;
  }
  return 0;
}

void Collector::AnnounceSeen() {
  std::erase_if(seen_,
                [this](const AotHit& method) { return writer_.AnnounceSeen(method, written_until_ns_); });
}

bool Collector::Announce(CodeId id, std::uint64_t pc, std::uint64_t time_ns) {
  return id != 0 ? writer_.AnnounceCode(id, pc, time_ns) : writer_.AnnounceNative(pc, time_ns);
}

void Collector::Count(Thread* thread, bool written, std::uint64_t ticks) {
  NoteFlushed();
  thread->tally.totals.expected += ticks;
  if (written) {
    CountRecorded(&thread->tally, {.recorded = 1, .suppressed = ticks - 1});
  } else {
    thread->tally.totals.dropped += ticks;
  }
}

void Collector::CountRecorded(Tally* tally, const nettrace::Totals& fresh) {
  if (tally->flush_count != flush_count_) tally->unflushed = {};
  tally->flush_count = flush_count_;
  for (nettrace::Totals* totals : {&tally->totals, &tally->unflushed}) {
    totals->recorded += fresh.recorded;
    totals->suppressed += fresh.suppressed;
  }
}

void Collector::NoteFlushed() {
  if (writer_.bytes() != flushed_bytes_) {
    flushed_bytes_ = writer_.bytes();
    ++flush_count_;
  }
  if (!writer_.failed() || failure_counted_) return;
  failure_counted_ = true;
  const auto lose = [this](Tally* tally) {
    if (tally->flush_count != flush_count_) return;
    tally->totals.recorded -= tally->unflushed.recorded;
    tally->totals.suppressed -= tally->unflushed.suppressed;
    tally->totals.dropped += tally->unflushed.recorded + tally->unflushed.suppressed;
  };
  for (Thread& thread : threads_) lose(&thread.tally);
  lose(&closed_);
}

void Collector::CountRingFull(ThreadRecord* record, Thread* thread) {
  const std::uint64_t full = record->ring_full.load();
  const std::uint64_t fresh = full - thread->ring_full_seen;
  if (fresh == 0) return;
  thread->ring_full_seen = full;
  thread->tally.totals.expected += fresh;
  thread->tally.totals.dropped += fresh;
  writer_.CountLost(static_cast<std::uint32_t>(fresh));
}

void Collector::WriteSample(ThreadRecord* record, const RawSample& raw) {
  Thread& thread = ThreadOf(record);
  written_until_ns_ = std::max(written_until_ns_, raw.time_ns);
  if ((raw.flags & RawSample::kThreadEnd) != 0) {
    CloseThread(&thread, raw.time_ns, raw.cpu_ns);
    return;
  }

  const std::uint64_t wall = raw.time_ns > thread.last_ns ? raw.time_ns - thread.last_ns : 0;
  const std::uint64_t cpu = raw.cpu_ns > thread.last_cpu_ns ? raw.cpu_ns - thread.last_cpu_ns : 0;
  const bool off_cpu = (raw.flags & RawSample::kOffCpu) != 0;
  std::uint64_t weight = 0;
  if (mode_ == SampleMode::kCpu) {
    weight = off_cpu ? 0 : cpu;
    if (!off_cpu) thread.last_cpu_ns = raw.cpu_ns;
  } else {
    weight = wall;
    if ((raw.flags & RawSample::kWoke) != 0 && thread.last.valid) {
      weight = std::min(cpu, wall);
      WriteClosing(&thread, thread.last, raw.time_ns, wall - weight);
    }
    thread.last_cpu_ns = raw.cpu_ns;
  }
  thread.last_ns = raw.time_ns;

  stack_.clear();
  std::size_t named = 0;
  for (std::size_t i = 0; i < raw.frame_count; ++i) {
    const std::uint64_t pc = raw.pcs()[i];
    named += Announce(ids_[i], pc, raw.time_ns);
    stack_.push_back(pc);
  }

  SampleOut out;
  out.time_ns = raw.time_ns;
  out.tid = thread.tid;
  // Off the CPU is external whatever the frames are: a thread-time view charges the stack until the next
  // sample.
  out.sample.type = off_cpu && raw.state == SampleState::kManaged
                        ? nettrace::SampleType::kExternal
                        : static_cast<nettrace::SampleType>(raw.state);
  out.sample.flags =
      static_cast<std::uint8_t>(static_cast<std::uint8_t>(raw.stop) |
                                ((raw.flags & RawSample::kInKernel) != 0 ? nettrace::kSampleInKernel : 0) |
                                (off_cpu ? nettrace::kSampleOffCpu : 0));
  out.sample.weight_ns = weight;
  out.sample.elided = raw.elided;
  out.stack = &stack_;
  Count(&thread, writer_.Write(out), raw.ticks);

  const auto keep = [&](Kept* kept) {
    kept->valid = true;
    kept->out = out;
    kept->stack = stack_;
    kept->ids = ids_;
    kept->named = named;
  };
  if (mode_ == SampleMode::kWall) {
    keep(&thread.last);
  } else if (!off_cpu) {
    keep(&thread.last_on_cpu);
  }
}

void Collector::WriteClosing(Thread* thread, const Kept& kept, std::uint64_t time_ns,
                             std::uint64_t weight_ns) {
  std::size_t named = 0;
  for (std::size_t i = 0; i < kept.stack.size(); ++i) named += Announce(kept.ids[i], kept.stack[i], time_ns);
  static const std::vector<std::uint64_t> kNoStack;
  SampleOut closing = kept.out;
  closing.time_ns = time_ns;
  closing.sample.weight_ns = weight_ns;
  closing.stack = named == kept.named ? &kept.stack : &kNoStack;
  Count(thread, writer_.Write(closing), 1);
}

void Collector::CloseThread(Thread* thread, std::uint64_t time_ns, std::uint64_t cpu_ns) {
  written_until_ns_ = std::max(written_until_ns_, time_ns);
  const std::uint64_t cpu = cpu_ns > thread->last_cpu_ns ? cpu_ns - thread->last_cpu_ns : 0;
  const std::uint64_t wall = time_ns > thread->last_ns ? time_ns - thread->last_ns : 0;
  const bool by_wall = mode_ == SampleMode::kWall;
  const Kept& kept = by_wall ? thread->last : thread->last_on_cpu;
  const std::uint64_t weight = by_wall ? wall : cpu;
  if (kept.valid) {
    WriteClosing(thread, kept, time_ns, weight);
  } else if (weight >= period_ns_) {
    // No tick ever saw the thread, although it ran for long enough: where, nobody knows.
    Kept unseen;
    unseen.out.tid = thread->tid;
    unseen.out.sample.flags = static_cast<std::uint8_t>(StopReason::kNotWalked);
    WriteClosing(thread, unseen, time_ns, weight);
  }
  thread->last_ns = time_ns;
  thread->last_cpu_ns = cpu_ns;
}

void Collector::WriteTotals(const Thread& thread, std::uint64_t time_ns) {
  nettrace::ThreadTotals totals;
  totals.thread_id = thread.tid;
  totals.totals = thread.tally.totals;
  writer_.Write(totals, time_ns);
}

void Collector::Finish() {
  Drain(true);
  const std::uint64_t now = port::NowNs();
  for (ThreadRecord* record : sampler_.Records()) {
    if (record->state.load() != ThreadRecord::State::kActive) continue;
    Thread& thread = ThreadOf(record);
    CloseThread(&thread, now, port::ClockNs(record->cpu_clock));
    WriteTotals(thread, now);
  }
}

nettrace::Totals Collector::totals() {
  NoteFlushed();
  nettrace::Totals sum = closed_.totals;
  for (const Thread& thread : threads_) {
    sum.expected += thread.tally.totals.expected;
    sum.recorded += thread.tally.totals.recorded;
    sum.dropped += thread.tally.totals.dropped;
    sum.suppressed += thread.tally.totals.suppressed;
  }
  return sum;
}

void Collector::SumHandlerTimes(Histogram* to) const {
  to->AddAll(closed_handler_times_);
  for (const ThreadRecord* record : sampler_.Records()) {
    if (record->state.load() != ThreadRecord::State::kFree) to->AddAll(record->handler_times);
  }
}

std::uint64_t Collector::handler_ns() const {
  std::uint64_t sum = closed_handler_ns_;
  for (const ThreadRecord* record : sampler_.Records()) {
    if (record->state.load() != ThreadRecord::State::kFree) sum += record->handler_ns.load();
  }
  return sum;
}

}  // namespace stackpipe
