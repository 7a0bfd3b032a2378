// SPDX-License-Identifier: MIT
#include "stackpipe/session.h"

#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <optional>

#include "aot/aot_file.h"
#include "aot/aot_images.h"
#include "lifecycle/event_queue.h"
#include "sampler/sampler.h"
#include "session/collector.h"
#include "session/file_sink.h"
#include "session/handler_tables.h"
#include "session/progress_block.h"
#include "session/trace_writer.h"

namespace stackpipe {

namespace {

constexpr std::uint64_t kRoundNs = 50'000'000;   // the collector drains this often,
constexpr std::uint64_t kFlushNs = 250'000'000;  // and blocks go out at least this often
constexpr std::uint64_t kCheckNs = 1'000'000'000;
constexpr int kEndSignals[] = {SIGINT, SIGTERM, SIGHUP};

// The signal that asked for the end, 0 = none. Stored by the handler below, taken by the collector thread.
std::atomic<int> end_signal{0};
void OnEndSignal(int signal) { end_signal.store(signal); }

ProgressBlock* MapProgress(const std::string& path) {
  if (path.empty()) return nullptr;
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  void* at = MAP_FAILED;
  if (ftruncate(fd, sizeof(ProgressBlock)) == 0) {
    at = mmap(nullptr, sizeof(ProgressBlock), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  close(fd);
  return at == MAP_FAILED ? nullptr : static_cast<ProgressBlock*>(at);
}

}  // namespace

struct Session::Impl {
  explicit Impl(const SessionOptions& given)
      : options(given),
        sampler(SamplerOptions{.period_ns = given.period_ns,
                               .clock = ClockOf(given),
                               .frames_max = given.frames_max,
                               .ring_bytes = RingBytes(given)},
                code, images, native),
        tables(sampler, native, images) {}
  ~Impl() {
    if (progress != nullptr) munmap(progress, sizeof *progress);
  }

  static TickClock ClockOf(const SessionOptions& options) {
    const bool only_running = !options.interrupt_sleep && options.mode == SampleMode::kCpu;
    return only_running ? TickClock::kThreadCpu : TickClock::kMonotonic;
  }
  // Room for what comes in five rounds, if no stack were shorter than the bound.
  static std::size_t RingBytes(const SessionOptions& options) {
    const std::size_t sample = sizeof(RawSample) + 8 + options.frames_max * 8;
    const std::size_t per_round = static_cast<std::size_t>(kRoundNs / options.period_ns) + 1;
    return sample * (per_round * 5 + 16);
  }

  Status Start();
  static void* Main(void* self);
  void Run();
  // False: it was asked already, or this is a forked child.
  bool AskToEnd() {
    if (forked.load() || end_called.exchange(true)) return false;
    stop.store(true);
    sem_post(&wake);
    return true;
  }
  void Finish();
  void ShowProgress();
  void TakeEndSignals();
  void GiveEndSignalsBack();

  const SessionOptions options;
  CodeMap code;
  AotImages images{code};
  NativeUnwinder native;
  EventQueue queue;
  Sampler sampler;
  HandlerTables tables;
  FileSink sink;
  std::optional<TraceWriter> writer;
  std::optional<Collector> collector;
  ProgressBlock* progress = nullptr;

  pthread_t thread{};
  bool thread_started = false;
  sem_t wake{};
  std::atomic<bool> stop{false};
  std::atomic<bool> end_called{false};
  std::atomic<bool> active{true};  // cleared by the collector when it stops to listen
  std::uint64_t start_ns = 0;
  std::uint64_t start_process_cpu_ns = 0;
  struct sigaction previous_end_actions[std::size(kEndSignals)]{};
  bool end_signal_taken[std::size(kEndSignals)] = {};

  // Set in a forked child, where neither the collector thread nor the timers exist.
  static std::atomic<bool> forked;
};

std::atomic<bool> Session::Impl::forked{false};

Status Session::Impl::Start() {
  progress = MapProgress(options.progress_path);
  Status status = sink.Create(options.output_path);
  if (status.ok()) status = native.Refresh(true);
  if (status.ok()) status = sampler.Start();
  if (!status.ok()) {
    if (progress != nullptr)
      progress->start_error.store(status.os_error() != 0 ? static_cast<unsigned>(status.os_error()) : 1);
    return status;
  }
  sem_init(&wake, 0, 0);
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] {
    forked.store(true);
    Sampler::AfterForkInChild();
  });
  (void)at_fork;
  start_ns = port::NowNs();
  start_process_cpu_ns = port::ClockNs(CLOCK_PROCESS_CPUTIME_ID);

  // The collector takes no signal: none of the program's handlers may run on it.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  const int error = pthread_create(&thread, nullptr, &Impl::Main, this);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (error != 0) {
    sampler.Stop();
    return {StatusCode::kIo, "starting the collector thread", error};
  }
  thread_started = true;
  pthread_setname_np(thread, "stackpipe");
  if (options.end_on_signals) TakeEndSignals();
  if (progress != nullptr) {
    std::snprintf(progress->output_path, sizeof progress->output_path, "%s", options.output_path.c_str());
    progress->process_id.store(static_cast<std::uint64_t>(getpid()));
    progress->magic.store(ProgressBlock::kMagic);
  }
  return {};
}

void Session::Impl::TakeEndSignals() {
  for (std::size_t i = 0; i < std::size(kEndSignals); ++i) {
    struct sigaction& previous = previous_end_actions[i];
    if (sigaction(kEndSignals[i], nullptr, &previous) != 0 || previous.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_handler = &OnEndSignal;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    end_signal_taken[i] = sigaction(kEndSignals[i], &action, nullptr) == 0;
  }
}

void Session::Impl::GiveEndSignalsBack() {
  for (std::size_t i = 0; i < std::size(kEndSignals); ++i) {
    struct sigaction now {};
    if (end_signal_taken[i] && sigaction(kEndSignals[i], nullptr, &now) == 0 &&
        now.sa_handler == &OnEndSignal) {
      sigaction(kEndSignals[i], &previous_end_actions[i], nullptr);
    }
    end_signal_taken[i] = false;
  }
}

void* Session::Impl::Main(void* self) {
  static_cast<Impl*>(self)->Run();
  return nullptr;
}

void Session::Impl::ShowProgress() {
  if (progress == nullptr) return;
  const nettrace::Totals totals = collector->totals();
  progress->samples.store(totals.recorded);
  progress->dropped.store(totals.dropped);
  progress->bytes.store(sink.bytes());
  progress->write_error.store(static_cast<std::uint64_t>(sink.write_error()));
}

void Session::Impl::Run() {
  writer.emplace(sink, port::CurrentTid(), code, images, native);
  collector.emplace(options.mode, options.period_ns, sampler, queue, code, images, tables, *writer);
  writer->Begin(options);
  std::uint64_t last_flush = port::NowNs(), last_check = last_flush;
  sampler.TellOfUnknownCode(&wake);
  while (!stop.load() && end_signal.load() == 0 &&
         (options.duration_ns == 0 || port::NowNs() - start_ns < options.duration_ns)) {
    timespec until{};
    clock_gettime(CLOCK_REALTIME, &until);
    const std::uint64_t ns = static_cast<std::uint64_t>(until.tv_nsec) + kRoundNs;
    until.tv_sec += static_cast<time_t>(ns / 1'000'000'000u);
    until.tv_nsec = static_cast<long>(ns % 1'000'000'000u);
    // A walk that met unknown code ends the wait: its code may have been loaded just now. Where it was not,
    // no other does so until the wait is over.
    const bool woken = sem_timedwait(&wake, &until) == 0;
    if (collector->Round() || !woken) sampler.TellOfUnknownCode(&wake);
    if (port::NowNs() - last_flush >= kFlushNs) {
      writer->Flush();
      last_flush = port::NowNs();
    }
    if (port::NowNs() - last_check >= kCheckNs) {
      sampler.CheckClocks();
      last_check = port::NowNs();
    }
    ShowProgress();
  }
  Finish();
  if (const int signal = end_signal.exchange(0); signal != 0) kill(getpid(), signal);
}

void Session::Impl::Finish() {
  sampler.Stop();
  active.store(false);
  collector->Finish();
  nettrace::SessionEnd end;
  end.totals = collector->totals();
  end.handler_ns = collector->handler_ns();
  Histogram handler_times;
  collector->SumHandlerTimes(&handler_times);
  end.handler_max_ns = handler_times.Quantile(1);
  end.handler_p50_ns = handler_times.Quantile(0.5);
  end.handler_p99_ns = handler_times.Quantile(0.99);
  end.collector_cpu_ns = port::ClockNs(CLOCK_THREAD_CPUTIME_ID);
  end.process_cpu_ns = port::ClockNs(CLOCK_PROCESS_CPUTIME_ID) - start_process_cpu_ns;
  end.duration_ns = port::NowNs() - start_ns;
  writer->End(end, port::NowNs());
  const bool closed = sink.Close().ok();
  ShowProgress();
  GiveEndSignalsBack();
  if (progress != nullptr && closed && !writer->failed()) progress->ended.store(1);
}

Result<std::unique_ptr<Session>> Session::Start(const SessionOptions& options) {
  std::unique_ptr<Impl> impl(new (std::nothrow) Impl(options));
  if (!impl) return Status(StatusCode::kOutOfMemory, "starting a session");
  const Status status = impl->Start();
  if (!status.ok()) return status;
  return std::unique_ptr<Session>(new Session(std::move(impl)));
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Session::~Session() { End(); }

bool Session::active() const { return impl_->active.load() && !Impl::forked.load(); }

CodeMap& Session::code() { return impl_->code; }

Result<CodeId> Session::RegisterAotImage(const void* address) {
  if (!active()) return CodeId{0};
  Result<AotImageRegistration> image = OpenLoadedAotFile(reinterpret_cast<std::uintptr_t>(address));
  if (!image.ok()) return image.status();
  // Its frames can be walked from the first one on; and not by what is known of an object that lay there.
  impl_->tables.Refresh();
  const Result<CodeId> id = impl_->images.RegisterImage(std::move(image.value()));
  if (id.ok()) impl_->queue.Push(AotImageOpened{id.value()});
  return id;
}

void Session::NativeObjectsChange() {
  if (active()) impl_->tables.Refresh();
}

void Session::RetireCode(CodeId id) {
  // Told first: once the map forgets a description (TrimHistory), the collector must have heard of the end.
  if (active()) impl_->queue.Push(CodeRetired{id});
  if (!impl_->images.UnregisterImage(id).ok()) (void)impl_->code.Unregister(id);
  if (!active()) impl_->code.TrimHistory(impl_->code.epoch());
}

void Session::OnModule(LifecyclePhase phase, const ModuleSnapshot& module) {
  if (active()) impl_->queue.Push(ModuleEvent{phase, module});
}

void Session::OnDomain(LifecyclePhase phase, const DomainSnapshot& domain) {
  if (active()) impl_->queue.Push(DomainEvent{phase, domain});
}

Status Session::RegisterCurrentThread(const RuntimeWalker* walker) {
  if (!active()) return {};
  char name[17] = {};
  if (pthread_getname_np(pthread_self(), name, sizeof name) == 0) SetThreadName(port::CurrentTid(), name);
  return impl_->sampler.RegisterCurrentThread(walker);
}

void Session::UnregisterCurrentThread() { impl_->sampler.UnregisterCurrentThread(); }

void Session::SetThreadName(std::int32_t tid, const std::string& name) {
  if (active() && !name.empty()) impl_->queue.Push(ThreadNamed{tid, name});
}

void Session::End() {
  if (!impl_->AskToEnd()) return;
  if (impl_->thread_started) pthread_join(impl_->thread, nullptr);
}

bool Session::EndWithin(std::uint64_t wait_ns) {
  if (!impl_->AskToEnd() || !impl_->thread_started) return true;
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  const std::uint64_t ns = static_cast<std::uint64_t>(until.tv_nsec) + wait_ns;
  until.tv_sec += static_cast<time_t>(ns / 1'000'000'000u);
  until.tv_nsec = static_cast<long>(ns % 1'000'000'000u);
  return pthread_clockjoin_np(impl_->thread, nullptr, CLOCK_MONOTONIC, &until) == 0;
}

std::uint64_t Session::samples() const { return impl_->collector ? impl_->collector->totals().recorded : 0; }

}  // namespace stackpipe
