// SPDX-License-Identifier: MIT
//
// For tests: counts what a signal handler must not call. This takes the place of libc's malloc, locks and
// loader functions in the whole program, so one file of a program includes it, and it has no place in builds
// with sanitizers, which do the same. The program must have one thread while it watches.
#ifndef STACKPIPE_BASE_HANDLER_WATCH_H_
#define STACKPIPE_BASE_HANDLER_WATCH_H_

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <cstddef>

namespace stackpipe::testing {

// Says whether a handler runs now; null: nothing is counted. It may call nothing itself.
inline bool (*volatile watched_handler_runs)() = nullptr;
// Calls that came while one ran. Plain: a thread-local variable might allocate.
inline volatile int calls_in_handler = 0;

inline void CountCall() {
  if (watched_handler_runs != nullptr && watched_handler_runs()) calls_in_handler = calls_in_handler + 1;
}

template <typename F>
F LibcFunction(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

}  // namespace stackpipe::testing

extern "C" {
void* __libc_malloc(std::size_t size);
void __libc_free(void* at);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* at, std::size_t size);

void* malloc(std::size_t size) {
  stackpipe::testing::CountCall();
  return __libc_malloc(size);
}
void free(void* at) {
  stackpipe::testing::CountCall();
  __libc_free(at);
}
void* calloc(std::size_t count, std::size_t size) {
  stackpipe::testing::CountCall();
  return __libc_calloc(count, size);
}
void* realloc(void* at, std::size_t size) {
  stackpipe::testing::CountCall();
  return __libc_realloc(at, size);
}
int pthread_mutex_lock(pthread_mutex_t* mutex) {
  stackpipe::testing::CountCall();
  static const auto next = stackpipe::testing::LibcFunction<int (*)(pthread_mutex_t*)>("pthread_mutex_lock");
  return next(mutex);
}
int dl_iterate_phdr(int (*callback)(dl_phdr_info*, std::size_t, void*), void* data) {
  stackpipe::testing::CountCall();
  static const auto next =
      stackpipe::testing::LibcFunction<int (*)(int (*)(dl_phdr_info*, std::size_t, void*), void*)>(
          "dl_iterate_phdr");
  return next(callback, data);
}
}

#endif  // STACKPIPE_BASE_HANDLER_WATCH_H_
