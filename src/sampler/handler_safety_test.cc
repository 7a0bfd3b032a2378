// SPDX-License-Identifier: MIT
//
// The handler calls nothing that locks or allocates, and uses little stack.
//
// Proves: A2, A7
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "aot/aot_file.h"
#include "base/handler_watch.h"
#include "sampler/sampler.h"

namespace stackpipe {
namespace {

using testing::calls_in_handler;
using testing::watched_handler_runs;

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
  AotImages images(code);
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
  Sampler sampler({.period_ns = 200'000}, code, images, native);
  ASSERT_TRUE(sampler.Start().ok());
  ASSERT_TRUE(sampler.RegisterCurrentThread(&bad).ok());
  calls_in_handler = 0;
  // Makes the walk of every sample reach the registered code.
  std::vector<std::uintptr_t> spread;
  for (std::uintptr_t at = start + 64; at < start + 4096; at += 64) {
    (void)code.Register({.start = at, .size = 64, .kind = CodeKind::kJit, .name_space = "t", .name = "g"});
  }
  watched_handler_runs = &Sampler::HandlerRuns;
  for (int i = 0; i < 100 && calls_in_handler == 0; ++i) WorkNear(200'000'000);
  watched_handler_runs = nullptr;
  sampler.Stop();
  EXPECT_GT(calls_in_handler, 0);
}

TEST(HandlerSafetyTest, TheHandlerAllocatesAndLocksNothing) {
  CodeMap code;
  AotImages images(code);
  NativeUnwinder native;
  ASSERT_TRUE(native.Refresh(true).ok());
  // This program is an AOT image, so the handler decodes methods, too.
  Result<AotImageRegistration> image = OpenLoadedAotFile(reinterpret_cast<std::uintptr_t>(&WorkNear));
  ASSERT_TRUE(image.ok());
  ASSERT_TRUE(images.RegisterImage(std::move(image.value())).ok());
  Sampler sampler({.period_ns = 100'000, .ring_bytes = 1 << 20}, code, images, native);
  ASSERT_TRUE(sampler.Start().ok());
  ASSERT_TRUE(sampler.RegisterCurrentThread(nullptr).ok());
  calls_in_handler = 0;
  watched_handler_runs = &Sampler::HandlerRuns;
  WorkNear(700'000'000);
  watched_handler_runs = nullptr;
  sampler.Stop();
  EXPECT_GT(sampler.Records()[0]->expected.load(), 500u);
  EXPECT_EQ(calls_in_handler, 0);
  std::vector<AotHit> seen;
  images.TakeSeen(&seen);
  EXPECT_FALSE(seen.empty());
}

// The other clock; and walks that end in unknown code, for there are no tables: the handler tells so, once.
TEST(HandlerSafetyTest, TheHandlerOfCpuTimeAllocatesAndLocksNothing) {
  CodeMap code;
  AotImages images(code);
  NativeUnwinder native;
  Sampler sampler({.period_ns = 100'000, .clock = TickClock::kThreadCpu, .ring_bytes = 1 << 20}, code, images,
                  native);
  sem_t wake;
  sem_init(&wake, 0, 0);
  ASSERT_TRUE(sampler.Start().ok());
  ASSERT_TRUE(sampler.RegisterCurrentThread(nullptr).ok());
  sampler.TellOfUnknownCode(&wake);
  calls_in_handler = 0;
  watched_handler_runs = &Sampler::HandlerRuns;
  WorkNear(700'000'000);
  watched_handler_runs = nullptr;
  sampler.Stop();
  EXPECT_GT(sampler.Records()[0]->expected.load(), 500u);
  EXPECT_EQ(calls_in_handler, 0);
  int told = 0;
  sem_getvalue(&wake, &told);
  EXPECT_EQ(told, 1);
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
  AotImages images(code);
  NativeUnwinder native;
  ASSERT_TRUE(native.Refresh(true).ok());
  Sampler sampler({.period_ns = 200'000}, code, images, native);
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
