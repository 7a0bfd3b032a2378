// SPDX-License-Identifier: MIT
//
// libstackpipe-agent.so: profiles any program that it is preloaded into.
//
//     LD_PRELOAD=.../libstackpipe-agent.so STACKPIPE_OUTPUT=run.nettrace program
//
// `stackpipe record` does that and gives its options in the environment (common/options.h). Without
// STACKPIPE_OUTPUT, and in programs whose runtime has an adapter of its own, it does nothing.
//
// It stands in front of a few functions of the C library:
//   pthread_create, thrd_create
//                         each thread is sampled from its start to its end
//   dlclose               what is unloaded was certainly there until then
//   execv, execve, ...    the program is replaced: its trace is closed first, and gives its name up
//   _exit, _Exit          the process ends without its exit handlers: its trace is closed first
//
// A forked child is not profiled, unless it executes a program: that one loads the agent anew. A child of
// vfork runs in its parent's memory, so everything here asks for the process id first.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <threads.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <type_traits>

#include "common/options.h"
#include "stackpipe/session.h"

namespace stackpipe::native {
namespace {

// Alive until the process ends or executes another program: threads call at any time.
std::atomic<Session*> session{nullptr};
pid_t session_pid = 0;
SessionOptions* options = nullptr;  // of the session

// What stands behind the wrappers. Found at the first call or when the agent is loaded, for dlsym takes the
// loader's lock, which is nobody's to give back in a child of fork.
struct CLibrary {
  int (*pthread_create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  int (*thrd_create)(thrd_t*, thrd_start_t, void*);
  int (*dlclose)(void*);
  int (*execve)(const char*, char* const*, char* const*);
  int (*execvpe)(const char*, char* const*, char* const*);
  void (*exit_now)(int);
};
const CLibrary& Next() {
  static const CLibrary library = [] {
    CLibrary found{};
    const auto find = [](auto* function, const char* name) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(RTLD_NEXT, name));
    };
    find(&found.pthread_create, "pthread_create");
    find(&found.thrd_create, "thrd_create");
    find(&found.dlclose, "dlclose");
    find(&found.execve, "execve");
    find(&found.execvpe, "execvpe");
    find(&found.exit_now, "_exit");
    return found;
  }();
  return library;
}

// Mono walks and names its own frames by its adapter.
bool HasOwnAdapter() { return dlsym(RTLD_DEFAULT, "mono_stack_walk_async_safe") != nullptr; }

// The session of this process; null in a child of fork or vfork, too.
Session* Current() {
  Session* current = session.load();
  return current != nullptr && getpid() == session_pid ? current : nullptr;
}

// The end may be asked for in a signal handler that interrupted malloc, which the session's thread needs. It
// is never waited for without a bound: least where programs do so by right.
constexpr std::uint64_t kExitWaitNs = 5'000'000'000, kExitNowWaitNs = 500'000'000;
bool EndWithin(std::uint64_t wait_ns) {
  Session* current = Current();
  return current != nullptr && current->EndWithin(wait_ns);
}
void End() { (void)EndWithin(kExitWaitNs); }

void Start() {
  auto* read = new (std::nothrow) SessionOptions;
  if (read == nullptr || !adapter::ReadOptions(nullptr, read)) return;
  read->runtime = "native";
  read->interrupt_sleep = false;
  Result<std::unique_ptr<Session>> started = adapter::StartSession(read);
  if (!started.ok()) return;
  session_pid = getpid();
  options = read;
  session.store(started.value().release());
  (void)session.load()->RegisterCurrentThread(nullptr);
}

__attribute__((constructor)) void OnLoad() {
  Next();
  if (getenv("STACKPIPE_OUTPUT") == nullptr || HasOwnAdapter()) return;
  Start();
  if (Current() == nullptr) return;
  atexit(&End);
  at_quick_exit(&End);
}

// ---- Threads ----

// The program's function of a thread; Result is void* for pthread_create, int for thrd_create.
template <typename Result>
struct Routine {
  Result (*function)(void*);
  void* argument;
};

void Enter() {
  Session* current = Current();
  if (current == nullptr) return;
  // Libraries that start threads of their own (liblzma is one) block all signals in them.
  sigset_t sampling;
  sigemptyset(&sampling);
  sigaddset(&sampling, SIGPROF);
  pthread_sigmask(SIG_UNBLOCK, &sampling, nullptr);
  (void)current->RegisterCurrentThread(nullptr);
}

void Leave(void*) {
  Session* current = Current();
  if (current == nullptr) return;
  char name[16] = {};
  if (pthread_getname_np(pthread_self(), name, sizeof name) == 0) current->SetThreadName(gettid(), name);
  current->UnregisterCurrentThread();
}

template <typename Result>
Result RunThread(void* given) {
  const Routine<Result> routine = *static_cast<Routine<Result>*>(given);
  delete static_cast<Routine<Result>*>(given);
  Enter();
  Result result{};
  pthread_cleanup_push(&Leave, nullptr);  // pthread_exit and cancellation end it too
  result = routine.function(routine.argument);
  pthread_cleanup_pop(1);
  return result;
}

// Calls `create(function, argument)` so that the thread is sampled. `no_memory` is its error for that.
template <typename Result, typename Create>
int CreateThread(Result (*function)(void*), void* argument, int no_memory, const Create& create) {
  if (Current() == nullptr) return create(function, argument);
  auto* routine = new (std::nothrow) Routine<Result>{function, argument};
  if (routine == nullptr) return no_memory;
  const int error = create(&RunThread<Result>, routine);
  if (error != 0) delete routine;
  return error;
}

void NativeObjectsChange() {
  if (Session* current = Current()) current->NativeObjectsChange();
}

// ---- The program is replaced ----

// Whether execve would find something to run. It may fail for other reasons still.
bool CanRun(const char* path) { return path != nullptr && access(path, X_OK) == 0; }

// Closes the trace, and lets the next program have its name. False: there is none.
bool EndBeforeExec() {
  Session* current = Current();
  if (current == nullptr || !current->active() || !current->EndWithin(kExitNowWaitNs)) return false;
  if (current->samples() == 0) {
    unlink(options->output_path.c_str());
  } else {
    rename(options->output_path.c_str(),
           (options->output_path + ".before-exec-" + std::to_string(session_pid)).c_str());
  }
  unlink(options->progress_path.c_str());
  return true;
}

// After a failed exec this thread is recorded again. Other threads are not: there is rarely one.
int ExecFailed(bool ended, int result) {
  const int error = errno;
  if (ended) Start();
  errno = error;
  return result;
}

int Exec(const char* path, char* const* arguments, char* const* environment) {
  const bool ended = Current() != nullptr && CanRun(path) && EndBeforeExec();
  return ExecFailed(ended, Next().execve(path, arguments, environment));
}

// `file` as execvp finds it; empty: it does not.
std::string Find(const char* file) {
  if (strchr(file, '/') != nullptr) return file;
  const char* path = getenv("PATH");
  std::string rest = path != nullptr ? path : "/bin:/usr/bin";
  while (true) {
    const std::size_t colon = rest.find(':');
    const std::string directory = rest.substr(0, colon);
    const std::string candidate = (directory.empty() ? "." : directory) + "/" + file;
    if (CanRun(candidate.c_str())) return candidate;
    if (colon == std::string::npos) return {};
    rest.erase(0, colon + 1);
  }
}

int ExecFound(const char* file, char* const* arguments, char* const* environment) {
  const bool ended = Current() != nullptr && CanRun(Find(file).c_str()) && EndBeforeExec();
  return ExecFailed(ended, Next().execvpe(file, arguments, environment));
}

// Number of words of execl and its kind, with the null pointer.
std::size_t CountWords(const char* first, va_list from) {
  va_list rest;
  va_copy(rest, from);
  std::size_t count = 1;
  for (const char* word = first; word != nullptr; word = va_arg(rest, const char*)) ++count;
  va_end(rest);
  return count;
}

}  // namespace
}  // namespace stackpipe::native

#define STACKPIPE_WRAPPER extern "C" __attribute__((visibility("default")))

using namespace stackpipe::native;  // NOLINT: what follows is the C library's

STACKPIPE_WRAPPER int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                     void* (*function)(void*), void* argument) {
  return CreateThread(function, argument, EAGAIN, [=](void* (*run)(void*), void* given) {
    return Next().pthread_create(thread, attributes, run, given);
  });
}
STACKPIPE_WRAPPER int thrd_create(thrd_t* thread, thrd_start_t function, void* argument) {
  return CreateThread(function, argument, thrd_nomem,
                      [=](thrd_start_t run, void* given) { return Next().thrd_create(thread, run, given); });
}

STACKPIPE_WRAPPER int dlclose(void* library) {
  NativeObjectsChange();
  const int result = Next().dlclose(library);
  NativeObjectsChange();
  return result;
}

STACKPIPE_WRAPPER int execve(const char* path, char* const* arguments, char* const* environment) {
  return Exec(path, arguments, environment);
}
STACKPIPE_WRAPPER int execv(const char* path, char* const* arguments) {
  return Exec(path, arguments, environ);
}
STACKPIPE_WRAPPER int execvp(const char* file, char* const* arguments) {
  return ExecFound(file, arguments, environ);
}
STACKPIPE_WRAPPER int execvpe(const char* file, char* const* arguments, char* const* environment) {
  return ExecFound(file, arguments, environment);
}
// The words go onto the stack: a child of fork or vfork may not allocate.
#define STACKPIPE_WORDS(words, rest, first)                                                 \
  const std::size_t words##_count = CountWords(first, rest);                                \
  auto* const words = static_cast<char**>(__builtin_alloca(words##_count * sizeof(char*))); \
  words[0] = const_cast<char*>(first);                                                      \
  for (std::size_t i = 1; i < words##_count; ++i) words[i] = va_arg(rest, char*)

STACKPIPE_WRAPPER int execl(const char* path, const char* argument, ...) {
  va_list rest;
  va_start(rest, argument);
  STACKPIPE_WORDS(words, rest, argument);
  va_end(rest);
  return Exec(path, words, environ);
}
STACKPIPE_WRAPPER int execlp(const char* file, const char* argument, ...) {
  va_list rest;
  va_start(rest, argument);
  STACKPIPE_WORDS(words, rest, argument);
  va_end(rest);
  return ExecFound(file, words, environ);
}
STACKPIPE_WRAPPER int execle(const char* path, const char* argument, ...) {
  va_list rest;
  va_start(rest, argument);
  STACKPIPE_WORDS(words, rest, argument);
  char* const* environment = va_arg(rest, char* const*);
  va_end(rest);
  return Exec(path, words, environment);
}

STACKPIPE_WRAPPER __attribute__((noreturn)) void _exit(int code) {
  (void)EndWithin(kExitNowWaitNs);
  Next().exit_now(code);
  __builtin_unreachable();
}
STACKPIPE_WRAPPER __attribute__((noreturn)) void _Exit(int code) { _exit(code); }
