// SPDX-License-Identifier: MIT
//
// Sampler: takes stacks of registered threads from signals of their own timers, into one ring for each
// thread.
//
// Each thread has two timers. The *tick* timer (CLOCK_MONOTONIC) samples it at the period while it runs. A
// thread that a tick finds asleep in a system call gets one last sample, its tick timer is stopped, and its
// *wake* timer (of the thread's CPU clock) is set: that fires when the thread has run again, takes a sample
// and starts the ticks. So a sleeping thread costs nothing, and is not woken again and again.
// Where sleeps may not be interrupted (TickClock::kThreadCpu), one clock of the thread's CPU time ticks
// instead. docs/design/sampling.md walks the races.
//
// What a sample stands for is worked out by the collector from the clocks that each sample carries.
#ifndef STACKPIPE_SAMPLER_SAMPLER_H_
#define STACKPIPE_SAMPLER_SAMPLER_H_

#include <semaphore.h>
#include <signal.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/histogram.h"
#include "base/ring.h"
#include "platform/port.h"
#include "sampler/walk.h"
#include "stackpipe/result.h"

namespace stackpipe {

// One record in a thread's ring, followed by `frame_count` pcs.
struct RawSample {
  static constexpr std::uint8_t kInKernel = 1;   // the leaf was inside a system call
  static constexpr std::uint8_t kOffCpu = 2;     // and the thread had slept there: its ticks stop now
  static constexpr std::uint8_t kWoke = 4;       // the first sample after a kOffCpu one
  static constexpr std::uint8_t kThreadEnd = 8;  // not a sample: the thread left; only the clocks count

  std::uint64_t time_ns = 0;  // read first of all
  std::uint64_t cpu_ns = 0;   // the thread's CPU clock
  CodeEpoch epoch = 0;        // at which the stack was true
  std::uint32_t ticks = 0;    // timer expirations that this sample answers
  std::uint32_t elided = 0;
  SampleState state = SampleState::kError;
  StopReason stop = StopReason::kNotWalked;
  std::uint8_t flags = 0;
  std::uint8_t unused = 0;
  std::uint16_t frame_count = 0;
  std::uint16_t native_frames = 0;

  std::uint64_t* pcs() { return reinterpret_cast<std::uint64_t*>(this + 1); }
  const std::uint64_t* pcs() const { return reinterpret_cast<const std::uint64_t*>(this + 1); }
};
static_assert(sizeof(RawSample) % 8 == 0);

// What is kept of each thread. Records are never freed while the sampler lives (a late signal may still name
// one) and are used again for later threads once they are drained.
struct ThreadRecord {
  // Set by RegisterCurrentThread before `state` says kActive; constant until the record is reused.
  std::int32_t tid = 0;
  pthread_t thread{};
  clockid_t cpu_clock{};
  StackBounds stack;
  std::uint64_t start_ns = 0, start_cpu_ns = 0;
  const RuntimeWalker* walker = nullptr;
  port::ThreadTimer tick, wake;
  port::PerfClock perf;          // open: it ticks instead of `tick`
  std::uint64_t generation = 0;  // counts the threads that had this record
  std::size_t index = 0;         // of this record, constant

  // kFree -> kActive (register) -> kEnded (unregister) -> kFree (the collector, once the ring is drained).
  enum class State : std::uint8_t { kFree, kActive, kEnded };
  std::atomic<State> state{State::kFree};

  // Written by the thread's own handler only.
  std::uint64_t last_tick_ns = 0, last_tick_cpu_ns = 0;
  bool asleep = false;

  // 0: no handler runs. kEntering: one has begun and not read the clock yet. Else: the time at which it
  // began. Pairs with Sampler::Watermark: the handler stores kEntering before it reads the clock, the
  // collector reads the clock before it loads this, both seq_cst, so a handler that the collector does not
  // see begins at or after its clock.
  static constexpr std::uint64_t kEntering = 1;
  std::atomic<std::uint64_t> in_handler{0};
  // Counts handlers begun and ended: odd while one runs. Pairs with Sampler::StartGrace and GraceOver.
  std::atomic<std::uint64_t> handler_runs{0};

  // Ticks that came, and those whose sample found no room. Written by the handler, read by the collector.
  std::atomic<std::uint64_t> expected{0}, ring_full{0};
  // CPU time of the handlers, from the first reading of the CPU clock to the last.
  std::atomic<std::uint64_t> handler_ns{0};
  Histogram handler_times;

  Ring ring;
};

// What a thread's tick timer counts.
enum class TickClock : std::uint8_t {
  kMonotonic,  // time, while the thread runs: each tick at its time, but each sleep is interrupted once
  // The thread's CPU time, so that no sleep is ever interrupted: by a perf event where the kernel allows it,
  // else by a timer, which gives no more than HZ ticks a second.
  kThreadCpu,
};

struct SamplerOptions {
  std::uint64_t period_ns = 1'000'000;
  TickClock clock = TickClock::kMonotonic;
  int signal = SIGPROF;
  std::size_t frames_max = 128;      // kept per stack
  std::size_t ring_bytes = 1 << 17;  // per thread
};

class Sampler {
 public:
  // `code`, `images` and `native` must outlive the sampler.
  Sampler(const SamplerOptions& options, const CodeMap& code, const AotImages& images,
          const NativeUnwinder& native);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Installs the signal handler. One sampler for each process at a time. Errors: kIo, kLimit (another is
  // running).
  Status Start();
  // Stops all timers and waits until no handler runs. What is in the rings stays for the collector. The
  // previous disposition of the signal comes back unless somebody else's handler was installed over ours, or
  // one of our signals is still pending at a thread that blocks it (the default action would end the
  // process).
  void Stop();

  // Begins to sample the calling thread; `walker` (may be null) must outlive the registration. Threads: the
  // one that is to be sampled. Registering twice is no error and changes nothing. Errors: kOutOfMemory, kIo,
  // kLimit.
  Status RegisterCurrentThread(const RuntimeWalker* walker);
  // Ends it. Must be called on the thread itself, before it ends. Unknown threads: no effect.
  void UnregisterCurrentThread();

  // For the collector. All records that exist, in any state; the pointers stay valid.
  std::vector<ThreadRecord*> Records();
  // The time before which every sample is in its ring already: `now`, or earlier if a handler is still
  // running.
  std::uint64_t Watermark(std::uint64_t now, const std::vector<ThreadRecord*>& records) const;
  // A grace period: StartGrace notes the handlers that run; GraceOver is true once each of them has ended (or
  // none was noted). What was unpublished before StartGrace may then be freed. Neither waits.
  void StartGrace(const std::vector<ThreadRecord*>& records);
  bool GraceOver();
  // The next walk that ends in unknown code posts `wake`, once: objects may have been loaded. `wake` must
  // outlive the sampler's work.
  void TellOfUnknownCode(sem_t* wake) { tell_of_unknown_code_.store(wake); }
  // Opens perf clocks again that the program has closed. Asks the kernel for each thread.
  void CheckClocks();
  // Gives an ended, drained record back.
  void Release(ThreadRecord* record);

  // True while a handler runs on any thread. For tests that watch what handlers call.
  static bool HandlerRuns() noexcept { return handlers_.load() != 0; }

  // In a forked child: nothing is sampled any more.
  static void AfterForkInChild() noexcept;

 private:
  static constexpr std::size_t kThreadsMax = 65536;  // threads alive at one time

  static void OnSignal(int signal, siginfo_t* info, void* ucontext);
  ThreadRecord* RecordOf(const siginfo_t* info) const noexcept;
  void Sample(ThreadRecord* record, bool woke, int overrun, const void* ucontext) noexcept;
  ThreadRecord* FindCurrent() const;

  const SamplerOptions options_;
  const CodeMap& code_;
  const AotImages& images_;
  const NativeUnwinder& native_;
  const std::uint64_t number_;  // of this sampler among all that there were

  // Guards record_count_, the growth of records_, free_, the state kFree -> kActive, installed_, and the life
  // of all timers.
  std::mutex threads_mutex_;
  std::size_t record_count_ = 0;
  std::vector<ThreadRecord*> free_;  // has room for all records
  // Entries are set once, in order, and never change until the sampler is destroyed, when no handler runs any
  // more. The handler finds its record here by index. Pairs: RegisterCurrentThread stores, OnSignal loads.
  std::unique_ptr<std::atomic<ThreadRecord*>[]> records_;
  std::vector<std::pair<const ThreadRecord*, std::uint64_t>> in_grace_;

  // Whom the next walk that ends in unknown code wakes; null: nobody. Pairs: the collector stores it, the
  // handler that takes it posts it.
  std::atomic<sem_t*> tell_of_unknown_code_{nullptr};

  struct sigaction previous_ {};
  bool installed_ = false;

  // The sampler that the handler serves, or null. Pairs: Start/Stop store it, OnSignal loads it.
  static std::atomic<Sampler*> active_;
  // Handlers that run now, on any thread. Stop stores active_ = null, then waits for 0; a handler adds
  // itself, then loads active_. Both seq_cst: one of the two sees the other.
  static std::atomic<int> handlers_;
  static_assert(std::atomic<Sampler*>::is_always_lock_free && std::atomic<int>::is_always_lock_free);
};

}  // namespace stackpipe

#endif  // STACKPIPE_SAMPLER_SAMPLER_H_
