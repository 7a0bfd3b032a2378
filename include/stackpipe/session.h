// SPDX-License-Identifier: MIT
//
// Session: profiles the process it lives in, into a nettrace file. A runtime's adapter starts one and tells
// it of code, modules, domains and threads.
//
//     SessionOptions options;
//     options.output_path = "run.nettrace";
//     Result<std::unique_ptr<Session>> session = Session::Start(options);
//     session.value()->RegisterCurrentThread(&walker);
//     ...
//     session.value()->End();
//
// Threads: every function may be called from any thread unless it says otherwise, but from no signal handler.
// Guests behave: nothing is printed, no file descriptor is inherited by children, and a forked child is not
// profiled.
#ifndef STACKPIPE_SESSION_H_
#define STACKPIPE_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "stackpipe/code_map.h"
#include "stackpipe/lifecycle.h"
#include "stackpipe/result.h"
#include "stackpipe/runtime_adapter.h"

namespace stackpipe {

// What a sample's weight counts.
enum class SampleMode : std::uint8_t {
  kCpu,   // CPU time that the thread used
  kWall,  // time that passed, on the CPU or off it
};

struct SessionOptions {
  std::string output_path;    // created; must not exist
  std::string progress_path;  // a file of sizeof(ProgressBlock) bytes to keep up to date, or empty
  std::string runtime;        // "mono 6.8.0"
  SampleMode mode = SampleMode::kCpu;
  std::uint64_t period_ns = 1'000'000;
  std::uint64_t duration_ns = 0;  // ends by itself after this time; 0 = never
  std::size_t frames_max = 128;   // kept per stack
  // Whether a tick may come while a thread sleeps in a system call: once for each sleep, which then returns
  // EINTR where the kernel does not go on with it. False: in cpu mode, only threads that run are signalled;
  // where perf events are not allowed, no more often than the kernel's timer ticks, mostly 250 times a
  // second.
  bool interrupt_sleep = true;
  // SIGINT, SIGTERM and SIGHUP, where their action is the default one, end the session before they end the
  // process.
  bool end_on_signals = false;
};

class Session {
 public:
  // Starts the collector and the sampler. One session for each process at a time.
  // Errors: kIo (the file: status.os_error() is EEXIST if it is there already), kOutOfMemory, kLimit.
  static Result<std::unique_ptr<Session>> Start(const SessionOptions& options);
  // Ends the session if it still runs.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // False once the session has ended, by End or by itself: what is told from then on goes nowhere.
  bool active() const;

  // The map of this session: register code in it before it first runs.
  CodeMap& code();

  // Registers the shared object that is loaded at `address` (of any function or variable in it) as an image
  // of precompiled code, such as wasm2c or `mono --aot` makes: its functions are methods of kind AOT, which
  // are named when samples meet them. Call it once the object is loaded and before it is used: what runs
  // earlier is sampled as native code. Its frames are walked by call frame information; where it has none, by
  // the thread's RuntimeWalker. End it by RetireCode once no thread is in it, and before the object is
  // closed. Samples that were taken until then keep its names. Takes the loader's lock and reads the object's
  // file, about a millisecond for 10,000 functions. Once the session has ended: no effect, and id 0. Errors:
  // kNotFound (nothing is loaded there, its file is not what is loaded, or it has no functions), kOverlap
  // (some of it is registered), kFormat, kLimit (4 GB), kOutOfMemory.
  Result<CodeId> RegisterAotImage(const void* address);

  // Looks at which native objects are loaded. The session does so by itself at intervals; who calls this
  // right before and right after a dlclose has the object's samples named for sure, and never by what is
  // loaded in its place.
  void NativeObjectsChange();

  // Unregisters code or an AOT image, and says so in the stream. Unknown ids: no effect.
  void RetireCode(CodeId id);

  // Each is written at its true time, in order. `module` and `domain` are copied.
  void OnModule(LifecyclePhase phase, const ModuleSnapshot& module);
  void OnDomain(LifecyclePhase phase, const DomainSnapshot& domain);

  // Samples the calling thread from now on. `walker` may be null and must outlive the registration.
  Status RegisterCurrentThread(const RuntimeWalker* walker);
  // Must come from the thread itself before it ends. Its last samples are kept.
  void UnregisterCurrentThread();
  // A thread's name, now. `tid` is the kernel's thread id.
  void SetThreadName(std::int32_t tid, const std::string& name);

  // Stops sampling, writes rundown and end mark, closes the file. Again: no effect. Bounded: a few hundred ms
  // at most beyond what the file system takes.
  void End();
  // The same, but waits `wait_ns` at most for what the session's own thread does: that may need a lock which
  // the caller holds. False: it has not ended by then, and the session may never be destroyed. May be called
  // in signal handlers.
  bool EndWithin(std::uint64_t wait_ns);

  // Samples that are in the file. After End.
  std::uint64_t samples() const;

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace stackpipe

#endif  // STACKPIPE_SESSION_H_
