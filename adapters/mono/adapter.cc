// SPDX-License-Identifier: MIT
//
// libmono-profiler-stackpipe.so: brings Stackpipe to stock Mono 6.8 as one of its profiler modules.
//
//     mono --profile=stackpipe:output=run.nettrace,rate=1000,mode=cpu program.exe
//
// `stackpipe record` loads it by MONO_ENV_OPTIONS and gives its options in the environment
// (common/options.h).
//
// Two things about Mono that this file depends on (both tried; docs/design/mono.md):
// - A jit_done callback is always registered. Without one, Mono's "async-safe" walker decodes precompiled
//   methods in the handler, under its loader lock, and deadlocks or crashes.
// - In image_unloaded the image's name, file and GUID are freed pointers. Nothing is read from it there.
#include <mono/metadata/loader.h>
#include <mono/metadata/profiler.h>
#include <mono/metadata/threads.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>

#include "common/options.h"
#include "images.h"
#include "methods.h"
#include "stackpipe/session.h"

extern "C" {
// Exported by Mono, in no public header.
char* mono_get_runtime_build_info(void);
}

// Mono's name for the state of a profiler module; the module defines it.
struct _MonoProfiler {
  explicit _MonoProfiler(std::unique_ptr<stackpipe::Session> started)
      : session(std::move(started)), methods(*session, images) {}

  std::unique_ptr<stackpipe::Session> session;
  stackpipe::mono::Images images;
  stackpipe::mono::Domains domains;
  stackpipe::mono::Methods methods;
  stackpipe::RuntimeWalker walker;

  std::mutex threads_mutex;                               // guards tids
  std::unordered_map<std::uintptr_t, std::int32_t> tids;  // Mono's thread id (a pthread_t) -> the kernel's
};

namespace stackpipe::mono {
namespace {

using Profiler = _MonoProfiler;

// ---- left of the ring: called in signal handlers ----

mono_bool OnFrame(MonoMethod*, MonoDomain*, void* base, int offset, void* data) {
  const auto start = reinterpret_cast<std::uintptr_t>(base);
  // Mono has moved callers' addresses into the call instruction already.
  const std::uintptr_t pc = start + static_cast<std::uintptr_t>(offset > 0 ? offset : 0);
  return static_cast<FrameBuffer*>(data)->Add(pc) ? 0 : 1;
}

void WalkFrames(void* ucontext, FrameBuffer* frames, void*) {
  mono_stack_walk_async_safe(&OnFrame, ucontext, frames);
}

// The walker asserts that the thread has a domain.
bool ReadyToWalk(void*) { return mono_domain_get() != nullptr; }

// ---- Mono's callbacks ----

void OnJitDone(Profiler* p, MonoMethod* method, MonoJitInfo* info) { p->methods.Compiled(method, info); }

void OnCodeBuffer(Profiler* p, const mono_byte* start, std::uint64_t size, MonoProfilerCodeBufferType type,
                  const void* data) {
  switch (type) {
    case MONO_PROFILER_CODE_BUFFER_METHOD:  // comes as jit_done too
      return;
    case MONO_PROFILER_CODE_BUFFER_SPECIFIC_TRAMPOLINE:
      return p->methods.StubMade(start, size,
                                 data != nullptr ? static_cast<const char*>(data) : "trampoline");
    default:
      return p->methods.StubMade(start, size, "trampoline");
  }
}

void OnChunkCreated(Profiler* p, const mono_byte* chunk, std::uintptr_t size) {
  p->methods.ChunkCreated(chunk, size);
}
void OnChunkDestroyed(Profiler* p, const mono_byte* chunk) { p->methods.ChunkDestroyed(chunk); }
void OnMethodFree(Profiler* p, MonoMethod* method) { p->methods.Freed(method); }

template <LifecyclePhase kPhase>
void OnImage(Profiler* p, MonoImage* image) {
  p->session->OnModule(kPhase, p->images.Snapshot(kPhase, image));
}
void OnImageFailed(Profiler* p, MonoImage* image) { p->images.Forget(image); }

template <LifecyclePhase kPhase>
void OnDomain(Profiler* p, MonoDomain* domain) {
  p->session->OnDomain(kPhase, p->domains.Snapshot(kPhase, domain));
}
void OnDomainName(Profiler* p, MonoDomain* domain, const char* name) { p->domains.SetName(domain, name); }

void SampleThisThread(Profiler* p) {
  {
    const std::lock_guard lock(p->threads_mutex);
    p->tids[static_cast<std::uintptr_t>(pthread_self())] = gettid();
  }
  (void)p->session->RegisterCurrentThread(&p->walker);
}
void OnRuntimeInitialized(Profiler* p) { SampleThisThread(p); }
void OnThreadStarted(Profiler* p, std::uintptr_t tid) {
  if (tid == static_cast<std::uintptr_t>(pthread_self())) SampleThisThread(p);
}
// Comes before Mono takes down what its walker needs on this thread.
void OnThreadStopping(Profiler* p, std::uintptr_t tid) {
  if (tid != static_cast<std::uintptr_t>(pthread_self())) return;
  p->session->UnregisterCurrentThread();
  const std::lock_guard lock(p->threads_mutex);
  p->tids.erase(tid);
}
void OnThreadName(Profiler* p, std::uintptr_t tid, const char* name) {
  if (name == nullptr) return;
  std::int32_t kernel_tid = 0;
  {
    const std::lock_guard lock(p->threads_mutex);
    const auto it = p->tids.find(tid);
    if (it == p->tids.end()) return;
    kernel_tid = it->second;
  }
  p->session->SetThreadName(kernel_tid, name);
}
void OnShutdown(Profiler* p) { p->session->End(); }

std::string RuntimeName() {
  char* build = mono_get_runtime_build_info();
  std::string name = "mono ";
  if (build != nullptr) name += build;
  mono_free(build);
  return name;
}

// Alive until the process ends: Mono may call back at any time.
Profiler* profiler = nullptr;

void Init(const char* description) {
  SessionOptions options;
  if (!adapter::ReadOptions(description, &options)) return;
  options.runtime = RuntimeName();
  Result<std::unique_ptr<Session>> session = adapter::StartSession(&options);
  if (!session.ok()) return;
  profiler = new (std::nothrow) Profiler(std::move(session.value()));
  if (profiler == nullptr) return;
  profiler->walker = {&WalkFrames, &ReadyToWalk, nullptr};

  const MonoProfilerHandle handle = mono_profiler_create(profiler);
  mono_profiler_set_jit_done_callback(handle, &OnJitDone);
  mono_profiler_set_jit_code_buffer_callback(handle, &OnCodeBuffer);
  mono_profiler_set_jit_chunk_created_callback(handle, &OnChunkCreated);
  mono_profiler_set_jit_chunk_destroyed_callback(handle, &OnChunkDestroyed);
  mono_profiler_set_method_free_callback(handle, &OnMethodFree);
  mono_profiler_set_image_loading_callback(handle, &OnImage<LifecyclePhase::kLoading>);
  mono_profiler_set_image_loaded_callback(handle, &OnImage<LifecyclePhase::kLoaded>);
  mono_profiler_set_image_unloading_callback(handle, &OnImage<LifecyclePhase::kUnloading>);
  mono_profiler_set_image_unloaded_callback(handle, &OnImage<LifecyclePhase::kUnloaded>);
  mono_profiler_set_image_failed_callback(handle, &OnImageFailed);
  mono_profiler_set_domain_loading_callback(handle, &OnDomain<LifecyclePhase::kLoading>);
  mono_profiler_set_domain_loaded_callback(handle, &OnDomain<LifecyclePhase::kLoaded>);
  mono_profiler_set_domain_unloading_callback(handle, &OnDomain<LifecyclePhase::kUnloading>);
  mono_profiler_set_domain_unloaded_callback(handle, &OnDomain<LifecyclePhase::kUnloaded>);
  mono_profiler_set_domain_name_callback(handle, &OnDomainName);
  mono_profiler_set_runtime_initialized_callback(handle, &OnRuntimeInitialized);
  mono_profiler_set_thread_started_callback(handle, &OnThreadStarted);
  mono_profiler_set_thread_stopping_callback(handle, &OnThreadStopping);
  mono_profiler_set_thread_name_callback(handle, &OnThreadName);
  mono_profiler_set_runtime_shutdown_begin_callback(handle, &OnShutdown);
  // For a process that ends without shutting Mono down.
  std::atexit([] { profiler->session->End(); });
}

}  // namespace
}  // namespace stackpipe::mono

extern "C" __attribute__((visibility("default"))) void mono_profiler_init_stackpipe(const char* description) {
  stackpipe::mono::Init(description);
}
