// SPDX-License-Identifier: MIT
//
// libmono-profiler-floor.so: signals each Mono thread at a rate, with a handler that does nothing. What it
// costs is the floor below which no profiler that samples by signals can come.
//
//     mono --profile=floor:1000 program.exe
#include <mono/metadata/profiler.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "platform/port.h"

struct _MonoProfiler {
  std::uint64_t period_ns = 1'000'000;
};

namespace {

_MonoProfiler profiler;

void Signal(_MonoProfiler* p) {
  stackpipe::port::ThreadTimer timer;  // lives until the process ends
  if (timer.Create(CLOCK_MONOTONIC, stackpipe::port::CurrentTid(), SIGPROF, nullptr).ok()) {
    timer.Arm(p->period_ns, p->period_ns);
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void mono_profiler_init_floor(const char* description) {
  const char* colon = description != nullptr ? std::strchr(description, ':') : nullptr;
  if (colon != nullptr) profiler.period_ns = static_cast<std::uint64_t>(1e9 / std::atof(colon + 1));
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigaction(SIGPROF, &action, nullptr);
  const MonoProfilerHandle handle = mono_profiler_create(&profiler);
  mono_profiler_set_runtime_initialized_callback(handle, &Signal);
  mono_profiler_set_thread_started_callback(handle, [](_MonoProfiler* p, std::uintptr_t tid) {
    if (tid == static_cast<std::uintptr_t>(pthread_self())) Signal(p);
  });
}
