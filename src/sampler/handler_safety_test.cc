// SPDX-License-Identifier: MIT
//
// The handler calls nothing that locks or allocates: this program's malloc, free, lock and loader functions
// count calls that come while a handler runs. There is one thread, so such a call comes from the handler.
//
// Proves: A2
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "sampler/sampler.h"

namespace {

int calls_in_handler = 0;
bool watching = false;

void Watch() {
  if (watching && stackpipe::Sampler::HandlerRuns()) ++calls_in_handler;
}

template <typename F>
F Next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {
void* __libc_malloc(size_t size);
void __libc_free(void* at);

void* malloc(size_t size) {
  Watch();
  return __libc_malloc(size);
}
void free(void* at) {
  Watch();
  __libc_free(at);
}
int pthread_mutex_lock(pthread_mutex_t* mutex) {
  Watch();
  static const auto next = Next<int (*)(pthread_mutex_t*)>("pthread_mutex_lock");
  return next(mutex);
}
int dl_iterate_phdr(int (*callback)(dl_phdr_info*, size_t, void*), void* data) {
  Watch();
  static const auto next = Next<int (*)(int (*)(dl_phdr_info*, size_t, void*), void*)>("dl_iterate_phdr");
  return next(callback, data);
}
}

namespace stackpipe {
namespace {

volatile unsigned sink = 0;

// Work in malloc and free, in locks and in the loader: where a handler must not go itself.
void WorkNear(std::uint64_t wall_ns) {
  const std::uint64_t end = port::NowNs() + wall_ns;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  while (port::NowNs() < end) {
    for (int i = 0; i < 200; ++i) {
      std::string text(static_cast<std::size_t>(10 + i * 3), 'x');
      pthread_mutex_lock(&mutex);
      sink = sink + static_cast<unsigned>(text[5]);
      pthread_mutex_unlock(&mutex);
    }
  }
}

TEST(HandlerSafetyTest, TheWatchSeesCallsFromHandlers) {
  // A walker that allocates: what the watch is there to find.
  CodeMap code;
  NativeUnwinder native;
  ASSERT_TRUE(native.Refresh(true).ok());
  const auto start = reinterpret_cast<std::uintptr_t>(&WorkNear);
  ASSERT_TRUE(
      code.Register({.start = start, .size = 64, .kind = CodeKind::kJit, .name_space = "t", .name = "f"})
          .ok());
  static RuntimeWalker bad;
  bad.ready = [](void*) { return true; };
  bad.walk = [](void*, FrameBuffer* frames, void*) {
    void* volatile block = std::malloc(10);
    std::free(block);
    frames->Add(1);
  };
  Sampler sampler({.period_ns = 200'000}, code, native);
  ASSERT_TRUE(sampler.Start().ok());
  ASSERT_TRUE(sampler.RegisterCurrentThread(&bad).ok());
  calls_in_handler = 0;
  // Makes the walk of every sample reach the registered code.
  std::vector<std::uintptr_t> spread;
  for (std::uintptr_t at = start + 64; at < start + 4096; at += 64) {
    (void)code.Register({.start = at, .size = 64, .kind = CodeKind::kJit, .name_space = "t", .name = "g"});
  }
  watching = true;
  for (int i = 0; i < 100 && calls_in_handler == 0; ++i) WorkNear(200'000'000);
  watching = false;
  sampler.Stop();
  EXPECT_GT(calls_in_handler, 0);
}

TEST(HandlerSafetyTest, TheHandlerAllocatesAndLocksNothing) {
  CodeMap code;
  NativeUnwinder native;
  ASSERT_TRUE(native.Refresh(true).ok());
  Sampler sampler({.period_ns = 100'000, .ring_bytes = 1 << 20}, code, native);
  ASSERT_TRUE(sampler.Start().ok());
  ASSERT_TRUE(sampler.RegisterCurrentThread(nullptr).ok());
  calls_in_handler = 0;
  watching = true;
  WorkNear(700'000'000);
  watching = false;
  sampler.Stop();
  EXPECT_GT(sampler.Records()[0]->expected.load(), 500u);
  EXPECT_EQ(calls_in_handler, 0);
}

// The stack that the handler uses, measured on an alternate stack that was painted.
TEST(HandlerSafetyTest, TheHandlerUsesLittleStack) {
  constexpr std::size_t kSize = 64 * 1024;
  auto* memory = static_cast<unsigned char*>(
      mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 0xa5, kSize);
  stack_t alternate{};
  alternate.ss_sp = memory;
  alternate.ss_size = kSize;
  stack_t old{};
  ASSERT_EQ(sigaltstack(&alternate, &old), 0);
  // What an empty handler costs (the kernel's frame with all vector registers) is not ours.
  struct sigaction empty {};
  empty.sa_handler = [](int) {};
  empty.sa_flags = SA_ONSTACK;
  struct sigaction before {};
  sigaction(SIGPROF, &empty, &before);
  raise(SIGPROF);
  const auto used = [memory] {
    std::size_t at = 0;
    while (at < kSize && memory[at] == 0xa5) ++at;
    return kSize - at;
  };
  const std::size_t floor = used();
  sigaction(SIGPROF, &before, nullptr);

  CodeMap code;
  NativeUnwinder native;
  ASSERT_TRUE(native.Refresh(true).ok());
  Sampler sampler({.period_ns = 200'000}, code, native);
  ASSERT_TRUE(sampler.Start().ok());
  ASSERT_TRUE(sampler.RegisterCurrentThread(nullptr).ok());
  WorkNear(200'000'000);
  sampler.Stop();
  const std::size_t own = used() - floor;
  sigaltstack(&old, nullptr);
  munmap(memory, kSize);
  RecordProperty("handler_stack_bytes", static_cast<int>(own));
  EXPECT_GT(own, 0u);
  EXPECT_LE(own, 8u * 1024);
}

}  // namespace
}  // namespace stackpipe
