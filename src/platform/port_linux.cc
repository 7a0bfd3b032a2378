// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "platform/port.h"

// Debian 12's headers do not name the member that SIGEV_THREAD_ID uses.
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace stackpipe::port {

std::uint64_t ClockNs(clockid_t clock) noexcept {
  timespec ts{};
  if (clock_gettime(clock, &ts) != 0) return 0;
  return static_cast<std::uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(ts.tv_nsec);
}

std::uint64_t NowNs() noexcept { return ClockNs(CLOCK_MONOTONIC); }
std::uint64_t RealtimeNs() noexcept { return ClockNs(CLOCK_REALTIME); }

std::int32_t CurrentTid() noexcept { return static_cast<std::int32_t>(syscall(SYS_gettid)); }

StackBounds CurrentThreadStack() noexcept {
  StackBounds bounds;
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return bounds;
  void* low = nullptr;
  std::size_t size = 0;
  if (pthread_attr_getstack(&attributes, &low, &size) == 0) {
    bounds.low = reinterpret_cast<std::uintptr_t>(low);
    bounds.high = bounds.low + size;
  }
  pthread_attr_destroy(&attributes);
  return bounds;
}

Status ThreadTimer::Create(clockid_t clock, std::int32_t tid, int signal, void* value) noexcept {
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = signal;
  event.sigev_value.sival_ptr = value;
  event.sigev_notify_thread_id = tid;
  if (timer_create(clock, &event, &timer_) != 0) return {StatusCode::kIo, "creating a thread timer", errno};
  created_ = true;
  return {};
}

void ThreadTimer::Arm(std::uint64_t first_ns, std::uint64_t period_ns) noexcept {
  itimerspec spec{};
  spec.it_value.tv_sec = static_cast<time_t>(first_ns / 1'000'000'000u);
  spec.it_value.tv_nsec = static_cast<long>(first_ns % 1'000'000'000u);
  spec.it_interval.tv_sec = static_cast<time_t>(period_ns / 1'000'000'000u);
  spec.it_interval.tv_nsec = static_cast<long>(period_ns % 1'000'000'000u);
  if (created_) timer_settime(timer_, 0, &spec, nullptr);
}

void ThreadTimer::Delete() noexcept {
  if (created_) timer_delete(timer_);
  created_ = false;
}

namespace {

// Descriptors of clocks that are open now. A count alone: nothing is published by it, so it has no partner.
std::atomic<rlim_t> clock_fds{0};

}  // namespace

Status PerfClock::Open(std::int32_t tid, int signal, std::uint64_t period_ns) noexcept {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);  // fails for no argument of ours
  if (clock_fds.fetch_add(1) >= files.rlim_cur / 4) {
    clock_fds.fetch_sub(1);
    return {StatusCode::kLimit, "opening a perf clock: too many descriptors"};
  }
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = PERF_TYPE_SOFTWARE;
  attributes.config = PERF_COUNT_SW_CPU_CLOCK;
  attributes.sample_period = period_ns;
  attributes.wakeup_events = 1;
  attributes.disabled = 1;
  int fd = static_cast<int>(syscall(SYS_perf_event_open, &attributes, tid, -1, -1, PERF_FLAG_FD_CLOEXEC));
  int error = errno;
  if (fd >= 0) {
    fd = MoveDescriptorUp(fd);
    fd_.store(fd);
    f_owner_ex owner{F_OWNER_TID, tid};
    if (ioctl(fd, PERF_EVENT_IOC_ID, &id_) == 0 && fcntl(fd, F_SETFL, O_ASYNC) == 0 &&
        fcntl(fd, F_SETSIG, signal) == 0 && fcntl(fd, F_SETOWN_EX, &owner) == 0 &&
        ioctl(fd, PERF_EVENT_IOC_REFRESH, 1) == 0) {
      return {};
    }
    error = errno;
    close(fd);
  }
  fd_.store(-1);
  clock_fds.fetch_sub(1);
  return {StatusCode::kIo, "opening a perf clock", error};
}

void PerfClock::Restart() noexcept { ioctl(fd_.load(), PERF_EVENT_IOC_REFRESH, 1); }

bool PerfClock::Lost() const noexcept {
  std::uint64_t id = 0;
  return fd_.load() >= 0 && (ioctl(fd_.load(), PERF_EVENT_IOC_ID, &id) != 0 || id != id_);
}

void PerfClock::Close() noexcept {
  if (fd_.load() < 0) return;
  if (!Lost()) close(fd_.load());
  fd_.store(-1);
  clock_fds.fetch_sub(1);
}

int MoveDescriptorUp(int descriptor) noexcept {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return descriptor;
  const int least = static_cast<int>(files.rlim_cur > 65'536 ? 32'768 : files.rlim_cur / 2);
  const int high = fcntl(descriptor, F_DUPFD_CLOEXEC, least);
  if (high < 0) return descriptor;
  close(descriptor);
  return high;
}

#if defined(__x86_64__)

Registers RegistersOf(const void* ucontext) noexcept {
  const greg_t* g = static_cast<const ucontext_t*>(ucontext)->uc_mcontext.gregs;
  const auto at = [g](int index) { return static_cast<std::uint64_t>(g[index]); };
  return {.pc = at(REG_RIP),
          .sp = at(REG_RSP),
          .bp = at(REG_RBP),
          .bx = at(REG_RBX),
          .r12 = at(REG_R12),
          .r13 = at(REG_R13),
          .r14 = at(REG_R14),
          .r15 = at(REG_R15)};
}

void SetRegisters(void* ucontext, const Registers& regs) noexcept {
  greg_t* g = static_cast<ucontext_t*>(ucontext)->uc_mcontext.gregs;
  g[REG_RIP] = static_cast<greg_t>(regs.pc);
  g[REG_RSP] = static_cast<greg_t>(regs.sp);
  g[REG_RBP] = static_cast<greg_t>(regs.bp);
  g[REG_RBX] = static_cast<greg_t>(regs.bx);
  g[REG_R12] = static_cast<greg_t>(regs.r12);
  g[REG_R13] = static_cast<greg_t>(regs.r13);
  g[REG_R14] = static_cast<greg_t>(regs.r14);
  g[REG_R15] = static_cast<greg_t>(regs.r15);
}

// A blocked call that the kernel will restart leaves the pc at the instruction, one that returns leaves it
// behind. The bytes are read only where the page of the pc itself, which was being executed, holds them.
bool InSystemCall(std::uint64_t pc) noexcept {
  constexpr std::uint64_t kPageMask = 4095;
  constexpr std::uint64_t kUserEnd = std::uint64_t{1} << 47;
  if (pc >= kUserEnd) return false;
  const auto is_syscall = [](std::uint64_t at) {
    unsigned char bytes[2];
    std::memcpy(bytes, reinterpret_cast<const void*>(at), sizeof bytes);
    return bytes[0] == 0x0f && bytes[1] == 0x05;
  };
  if ((pc & kPageMask) >= 2 && is_syscall(pc - 2)) return true;
  return (pc & kPageMask) <= kPageMask - 1 && is_syscall(pc);
}

#else
#error "only x86-64 is supported yet"
#endif

}  // namespace stackpipe::port
