// SPDX-License-Identifier: MIT
#include "sampler/sampler.h"

#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

namespace stackpipe {

std::atomic<Sampler*> Sampler::active_{nullptr};
std::atomic<int> Sampler::handlers_{0};

namespace {

// What our timers' signals carry: a mark that no pointer and no small number has, the record's index, and the
// lowest bit set for the wake timer. A program's own timers may use the same signal, so nothing is taken for
// a pointer.
constexpr std::uint64_t kMark = 0x5354'504b'0000'0000;  // "STPK"
constexpr std::uint64_t kMarkMask = 0xffff'ffff'0000'0000;
constexpr std::uint64_t kWakeBit = 1;

void* TimerValue(std::size_t index, bool wake) {
  return reinterpret_cast<void*>(kMark | index << 1 | (wake ? kWakeBit : 0));
}

// A thread that used less than this share of the time since its last tick, and stands in a system call, was
// asleep.
constexpr std::uint64_t kAsleepDivisor = 2;

// A wake timer is set to the shortest CPU time there is: it fires at the first scheduler tick that finds the
// thread running.
constexpr std::uint64_t kWakeAfterCpuNs = 1;

// The calling thread's record, and the number that its sampler has among all. Handlers read it too, on the
// thread itself, which sets it before its clock starts.
struct CurrentThread {
  std::uint64_t sampler = 0;
  ThreadRecord* record = nullptr;
};
thread_local CurrentThread current;
std::atomic<std::uint64_t> samplers{0};

// The kernel says what happened to a descriptor, so the signal may be of a perf clock.
bool MayBePerf(const siginfo_t* info) { return info->si_code == POLL_IN || info->si_code == POLL_HUP; }

bool PendingAnywhere(int signal) {
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return true;
  bool pending = false;
  while (const dirent* task = readdir(tasks)) {
    char path[300];
    std::snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
    std::FILE* status = std::fopen(path, "re");
    if (status == nullptr) continue;
    char line[256];
    while (std::fgets(line, sizeof line, status) != nullptr) {
      unsigned long long mask = 0;
      if (std::sscanf(line, "SigPnd: %llx", &mask) == 1 || std::sscanf(line, "ShdPnd: %llx", &mask) == 1) {
        pending |= (mask >> (signal - 1) & 1) != 0;
      }
    }
    std::fclose(status);
  }
  closedir(tasks);
  return pending;
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options, const CodeMap& code, const AotImages& images,
                 const NativeUnwinder& native)
    : options_(options), code_(code), images_(images), native_(native), number_(samplers.fetch_add(1) + 1) {}

Sampler::~Sampler() {
  Stop();
  for (const ThreadRecord* record : Records()) delete record;
}

Status Sampler::Start() {
  records_.reset(new (std::nothrow) std::atomic<ThreadRecord*>[kThreadsMax] {});
  if (!records_) return {StatusCode::kOutOfMemory, "starting the sampler"};
  Sampler* none = nullptr;
  if (!active_.compare_exchange_strong(none, this)) return {StatusCode::kLimit, "another sampler is running"};
  struct sigaction action {};
  action.sa_sigaction = &Sampler::OnSignal;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  if (sigaction(options_.signal, &action, &previous_) != 0) {
    const int error = errno;
    active_.store(nullptr);
    return {StatusCode::kIo, "installing the sampling signal's handler", error};
  }
  const std::lock_guard lock(threads_mutex_);
  installed_ = true;
  return {};
}

void Sampler::Stop() {
  if (!installed_) return;
  active_.store(nullptr);
  // Handlers are short and block nothing, so this ends as soon as their threads are scheduled.
  while (handlers_.load() != 0) usleep(100);
  {
    // No handler arms a timer any more; and no thread registers or leaves meanwhile.
    const std::lock_guard lock(threads_mutex_);
    installed_ = false;
    for (std::size_t i = 0; i < record_count_; ++i) {
      records_[i].load()->tick.Delete();
      records_[i].load()->wake.Delete();
      records_[i].load()->perf.Close();
    }
  }
  for (int tries = 0; tries < 100; ++tries) {
    if (!PendingAnywhere(options_.signal)) {
      struct sigaction now {};
      sigaction(options_.signal, nullptr, &now);
      if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &Sampler::OnSignal) {
        sigaction(options_.signal, &previous_, nullptr);
      }
      return;
    }
    usleep(1000);
  }
}

ThreadRecord* Sampler::FindCurrent() const { return current.sampler == number_ ? current.record : nullptr; }

Status Sampler::RegisterCurrentThread(const RuntimeWalker* walker) {
  if (FindCurrent() != nullptr) return {};
  const std::lock_guard lock(threads_mutex_);
  if (!installed_) return {StatusCode::kLimit, "registering a thread: the sampler does not run"};
  if (free_.empty()) {
    if (record_count_ == kThreadsMax) return {StatusCode::kLimit, "registering a thread"};
    std::unique_ptr<ThreadRecord> fresh(new (std::nothrow) ThreadRecord);
    if (!fresh || !fresh->ring.Allocate(options_.ring_bytes)) {
      return {StatusCode::kOutOfMemory, "registering a thread"};
    }
    fresh->index = record_count_;
    free_.reserve(record_count_ + 1);
    free_.push_back(fresh.get());
    records_[record_count_++].store(fresh.release());
  }
  ThreadRecord* const record = free_.back();
  record->ring.Clear();
  record->tid = port::CurrentTid();
  record->thread = pthread_self();
  pthread_getcpuclockid(record->thread, &record->cpu_clock);
  record->stack = port::CurrentThreadStack();
  record->walker = walker;
  ++record->generation;
  record->start_ns = record->last_tick_ns = port::NowNs();
  record->start_cpu_ns = record->last_tick_cpu_ns = port::ClockNs(CLOCK_THREAD_CPUTIME_ID);
  record->asleep = false;
  record->expected.store(0);
  record->ring_full.store(0);
  record->handler_ns.store(0);
  record->handler_times.Clear();
  current = {number_, record};
  record->state.store(ThreadRecord::State::kActive);
  const bool by_time = options_.clock == TickClock::kMonotonic;
  Status status;
  if (by_time || !record->perf.Open(record->tid, options_.signal, options_.period_ns).ok()) {
    status = record->tick.Create(by_time ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, record->tid,
                                 options_.signal, TimerValue(record->index, false));
  }
  if (status.ok() && by_time) {
    status = record->wake.Create(CLOCK_THREAD_CPUTIME_ID, record->tid, options_.signal,
                                 TimerValue(record->index, true));
  }
  if (!status.ok()) {
    record->tick.Delete();
    record->wake.Delete();
    current = {};
    record->state.store(ThreadRecord::State::kFree);
    return status;
  }
  free_.pop_back();
  // The first tick falls anywhere in the period: threads that start together are not sampled in step.
  const std::uint64_t phase = port::NowNs() % options_.period_ns + 1;
  record->tick.Arm(phase, options_.period_ns);
  return {};
}

void Sampler::UnregisterCurrentThread() {
  ThreadRecord* record = FindCurrent();
  if (record == nullptr) return;
  current = {};
  {
    const std::lock_guard lock(threads_mutex_);
    record->tick.Delete();
    record->wake.Delete();
    record->perf.Close();
  }
  // The producer's side of the ring is the handler's; with the signal blocked it is ours.
  sigset_t ours, old;
  sigemptyset(&ours);
  sigaddset(&ours, options_.signal);
  pthread_sigmask(SIG_BLOCK, &ours, &old);
  RawSample end;
  end.time_ns = port::NowNs();
  end.cpu_ns = port::ClockNs(CLOCK_THREAD_CPUTIME_ID);
  end.flags = RawSample::kThreadEnd;
  if (std::byte* room = record->ring.Reserve(sizeof end)) {
    std::memcpy(room, &end, sizeof end);
    record->ring.Commit(sizeof end);
  }
  record->state.store(ThreadRecord::State::kEnded);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

std::vector<ThreadRecord*> Sampler::Records() {
  const std::lock_guard lock(threads_mutex_);
  std::vector<ThreadRecord*> all;
  all.reserve(record_count_);
  for (std::size_t i = 0; i < record_count_; ++i) all.push_back(records_[i].load());
  return all;
}

std::uint64_t Sampler::Watermark(std::uint64_t now, const std::vector<ThreadRecord*>& records) const {
  std::uint64_t watermark = now;
  for (const ThreadRecord* record : records) {
    const std::uint64_t began = record->in_handler.load();  // pairs with the stores in Sample
    // A handler that has not read its clock yet will do so later than `now` was read, or was about to when it
    // was: waiting for the next round is cheap, guessing is not.
    if (began == ThreadRecord::kEntering) return 0;
    if (began != 0 && began < watermark) watermark = began;
  }
  return watermark;
}

void Sampler::StartGrace(const std::vector<ThreadRecord*>& records) {
  in_grace_.clear();
  for (const ThreadRecord* record : records) {
    const std::uint64_t run = record->handler_runs.load();
    if (run % 2 != 0) in_grace_.emplace_back(record, run);
  }
}

bool Sampler::GraceOver() {
  for (const auto& [record, run] : in_grace_) {
    if (record->handler_runs.load() == run) return false;
  }
  in_grace_.clear();
  return true;
}

void Sampler::CheckClocks() {
  if (options_.clock != TickClock::kThreadCpu) return;
  const std::lock_guard lock(threads_mutex_);
  for (std::size_t i = 0; installed_ && i < record_count_; ++i) {
    ThreadRecord* record = records_[i].load();
    if (record->state.load() != ThreadRecord::State::kActive || !record->perf.Lost()) continue;
    record->perf.Close();
    (void)record->perf.Open(record->tid, options_.signal, options_.period_ns);
  }
}

void Sampler::Release(ThreadRecord* record) {
  const std::lock_guard lock(threads_mutex_);
  record->state.store(ThreadRecord::State::kFree);
  free_.push_back(record);
}

void Sampler::AfterForkInChild() noexcept {
  // Timers are not inherited; this makes a handler that the fork interrupted, or a signal from elsewhere,
  // find nothing. Descriptors are.
  if (Sampler* sampler = active_.load()) {
    for (std::size_t i = 0; i < sampler->record_count_; ++i) sampler->records_[i].load()->perf.Close();
  }
  active_.store(nullptr);
  handlers_.store(0);
}

ThreadRecord* Sampler::RecordOf(const siginfo_t* info) const noexcept {
  if (MayBePerf(info)) {
    const bool is_its = current.sampler == number_ && current.record->perf.fd() == info->si_fd;
    return is_its ? current.record : nullptr;
  }
  const auto value = reinterpret_cast<std::uint64_t>(info->si_value.sival_ptr);
  if (info->si_code != SI_TIMER || (value & kMarkMask) != kMark) return nullptr;
  const std::size_t index = (value & ~kMarkMask) >> 1;
  ThreadRecord* record = index < kThreadsMax ? records_[index].load() : nullptr;
  return record != nullptr && pthread_equal(record->thread, pthread_self()) ? record : nullptr;
}

void Sampler::OnSignal(int signal, siginfo_t* info, void* ucontext) {
  const int saved_errno = errno;
  handlers_.fetch_add(1);
  Sampler* sampler = active_.load();
  const auto value = reinterpret_cast<std::uint64_t>(info->si_value.sival_ptr);
  ThreadRecord* record = sampler != nullptr ? sampler->RecordOf(info) : nullptr;
  // Ours, too, if it comes late, when there is no record any more.
  const bool ours =
      record != nullptr || (info->si_code == SI_TIMER && (value & kMarkMask) == kMark) ||
      (sampler != nullptr && sampler->options_.clock == TickClock::kThreadCpu && MayBePerf(info));
  struct sigaction previous {};
  previous.sa_handler = SIG_IGN;
  if (ours) {
    if (record != nullptr && record->state.load() == ThreadRecord::State::kActive) {
      const bool woke = !MayBePerf(info) && (value & kWakeBit) != 0;
      sampler->Sample(record, woke, MayBePerf(info) ? 0 : info->si_overrun, ucontext);
    }
  } else if (sampler != nullptr) {
    previous = sampler->previous_;
  }
  handlers_.fetch_sub(1);
  // Somebody else's signal goes to whoever took it before us. That handler may never return (it may jump, or
  // wait), so Stop does not wait for it: from here on nothing of the sampler's is touched.
  if (!ours) {
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
      previous.sa_sigaction(signal, info, ucontext);
    } else if (previous.sa_handler != SIG_IGN && previous.sa_handler != SIG_DFL) {
      previous.sa_handler(signal);
    } else if (previous.sa_handler == SIG_DFL) {
      // Somebody else sent the signal, and nobody was there to take it: what would have happened, happens.
      sigaction(signal, &previous, nullptr);
      raise(signal);
    }
  }
  errno = saved_errno;
}

void Sampler::Sample(ThreadRecord* record, bool woke, int overrun, const void* ucontext) noexcept {
  record->handler_runs.fetch_add(1);
  record->in_handler.store(ThreadRecord::kEntering);
  const std::uint64_t now = port::NowNs();
  record->in_handler.store(now);

  const std::uint64_t cpu = port::ClockNs(CLOCK_THREAD_CPUTIME_ID);
  const std::uint32_t ticks = 1 + static_cast<std::uint32_t>(overrun > 0 ? overrun : 0);
  record->expected.fetch_add(ticks);

  const bool in_kernel = port::InSystemCall(port::RegistersOf(ucontext).pc);
  const std::uint64_t wall_passed = now - record->last_tick_ns;
  const std::uint64_t cpu_passed = cpu - record->last_tick_cpu_ns;
  const bool off_cpu = options_.clock == TickClock::kMonotonic && !woke && in_kernel &&
                       cpu_passed < wall_passed / kAsleepDivisor;
  const bool was_asleep = record->asleep;
  record->last_tick_ns = now;
  record->last_tick_cpu_ns = cpu;
  record->asleep = off_cpu;

  const std::size_t room_bytes = sizeof(RawSample) + options_.frames_max * sizeof(std::uint64_t);
  if (std::byte* room = record->ring.Reserve(room_bytes)) {
    auto* sample = new (room) RawSample;
    sample->time_ns = now;
    sample->cpu_ns = cpu;
    sample->ticks = ticks;
    sample->epoch = code_.epoch();
    FrameBuffer frames(sample->pcs(), options_.frames_max);
    const WalkResult walk = Walk(ucontext, record->stack, code_, images_, native_, record->walker, &frames);
    const bool handed_over = frames.seen() > walk.native_frames;
    sample->elided = static_cast<std::uint32_t>(frames.elided());
    sample->frame_count = static_cast<std::uint16_t>(frames.Finish());
    // What the runtime's walker found may be in AOT images too. The walk has decoded the rest.
    for (std::size_t i = 0; handed_over && i < sample->frame_count; ++i) {
      AotHit method;
      images_.Decode(sample->pcs()[i], &method);
    }
    sample->native_frames = static_cast<std::uint16_t>(walk.native_frames);
    sample->state = walk.state;
    sample->stop = sample->elided != 0 ? StopReason::kDepth : walk.stop;
    sample->flags =
        static_cast<std::uint8_t>((in_kernel ? RawSample::kInKernel : 0) |
                                  (off_cpu ? RawSample::kOffCpu : 0) | (was_asleep ? RawSample::kWoke : 0));
    record->ring.Commit(sizeof(RawSample) + sample->frame_count * sizeof(std::uint64_t));
    if (walk.stop == StopReason::kUnknownCode && tell_of_unknown_code_.load() != nullptr) {
      if (sem_t* wake = tell_of_unknown_code_.exchange(nullptr)) sem_post(wake);
    }
  } else {
    record->ring_full.fetch_add(ticks);
  }

  if (record->perf.fd() >= 0) {
    record->perf.Restart();
  } else if (off_cpu) {
    record->tick.Disarm();
    record->wake.Arm(kWakeAfterCpuNs, 0);
  } else if (was_asleep) {
    record->tick.Arm(options_.period_ns, options_.period_ns);
  }

  record->in_handler.store(0);
  record->handler_runs.fetch_add(1);
  // CPU time, not time that passed: a handler that waits for a processor costs the program nothing.
  const std::uint64_t took = port::ClockNs(CLOCK_THREAD_CPUTIME_ID) - cpu;
  record->handler_ns.fetch_add(took);
  record->handler_times.Add(took);
}

}  // namespace stackpipe
