// SPDX-License-Identifier: MIT
//
// What the rest of the project needs from the operating system, as a contract. One implementation for each
// system: port_linux.cc.
//
// Functions marked AS-Safe may be called in signal handlers: no lock, no allocation, errno may change (the
// handler saves it once).
#ifndef STACKPIPE_PLATFORM_PORT_H_
#define STACKPIPE_PLATFORM_PORT_H_

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#include "stackpipe/result.h"
#include "unwind/native_unwinder.h"

namespace stackpipe::port {

// The clock of all timestamps: CLOCK_MONOTONIC, ns. AS-Safe.
std::uint64_t NowNs() noexcept;
// Wall clock, ns since 1970 UTC.
std::uint64_t RealtimeNs() noexcept;
// CPU time of a clock (of a thread or the process), ns; 0 if the thread is gone. AS-Safe.
std::uint64_t ClockNs(clockid_t clock) noexcept;

// The kernel's id of the calling thread. AS-Safe.
std::int32_t CurrentTid() noexcept;

// The calling thread's stack, as it may grow. Not AS-Safe (the main thread's is read from /proc).
StackBounds CurrentThreadStack() noexcept;

// A timer that signals one thread. Create on any thread, arm and disarm in handlers too.
class ThreadTimer {
 public:
  // A timer of `clock` that sends `signal` with `value` to the thread `tid`. Errors: kIo.
  Status Create(clockid_t clock, std::int32_t tid, int signal, void* value) noexcept;
  // First expiry after `first_ns` of the timer's clock, then each `period_ns` (0 = once). AS-Safe.
  void Arm(std::uint64_t first_ns, std::uint64_t period_ns) noexcept;
  void Disarm() noexcept { Arm(0, 0); }
  // Deletes the timer; a signal that is under way may still arrive.
  void Delete() noexcept;

 private:
  timer_t timer_{};
  bool created_ = false;
};

// A clock of one thread's CPU time that signals the thread after each period: a perf software event. Unlike
// timers of CPU time it does not wait for the scheduler's tick. After a signal it stands still until Restart.
class PerfClock {
 public:
  // Signals `tid` by `signal`, with si_fd == fd(), after each `period_ns`. Its descriptor
  // is closed by exec, has a high number, and is one of at most a quarter of those that the process may have.
  // Errors: kIo (EACCES, EPERM: the kernel does not allow it), kLimit.
  Status Open(std::int32_t tid, int signal, std::uint64_t period_ns) noexcept;
  // Lets it go on. AS-Safe.
  void Restart() noexcept;
  // A signal that is under way may still arrive. AS-Safe.
  void Close() noexcept;
  int fd() const noexcept { return fd_.load(); }  // -1: not open
  // True if the program has closed the descriptor.
  bool Lost() const noexcept;

 private:
  // Invariant: -1, or the number that Open gave, which is this clock's as long as the program leaves it
  // alone. Pairs: Open and Close store it, under the sampler's lock or in a forked child; the handler of the
  // thread loads it, and what it then does to a number that was closed meanwhile fails without harm.
  std::atomic<int> fd_{-1};
  std::uint64_t id_ = 0;  // the kernel's, of the event
};

// Gives a descriptor a high number, since programs may rely on the numbers that they get, or close all low
// ones. Returns the new number; the old one if there is none.
int MoveDescriptorUp(int descriptor) noexcept;

// The registers of an interrupted context (the third argument of a signal handler). AS-Safe.
Registers RegistersOf(const void* ucontext) noexcept;
// Puts `regs` into a copy of an interrupted context, for walkers that take one. AS-Safe.
void SetRegisters(void* ucontext, const Registers& regs) noexcept;
// True if the interrupted pc stands at or right behind a system call instruction. AS-Safe.
bool InSystemCall(std::uint64_t pc) noexcept;

}  // namespace stackpipe::port

#endif  // STACKPIPE_PLATFORM_PORT_H_
