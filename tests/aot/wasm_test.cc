// SPDX-License-Identifier: MIT
//
// A real AOT image: a WebAssembly module that wasm2c (package wabt) compiles to C and the C compiler to a
// shared object. It is opened, sampled, closed, and opened again at another address; the samples of both
// times are named afterwards, when both are closed.
//
// Proves: A6
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "aot/aot_file.h"
#include "aot/aot_images.h"
#include "platform/port.h"
#include "unwind/native_unwinder.h"

namespace stackpipe {
namespace {

const char kModule[] = STACKPIPE_TEST_WASM_MODULE;

struct Sample {
  static constexpr std::size_t kFramesMax = 32;
  CodeEpoch epoch = 0;
  std::size_t count = 0;
  std::uintptr_t pcs[kFramesMax];
  AotResult results[kFramesMax];
};

// What the handler uses. Without malloc; one thread.
constexpr std::size_t kSamplesMax = 4000;
Sample samples[kSamplesMax];
volatile std::size_t sample_count = 0;
const CodeMap* code = nullptr;
const AotImages* images = nullptr;
const NativeUnwinder* native = nullptr;
StackBounds stack;

void OnTimer(int, siginfo_t*, void* context) {
  const int saved_errno = errno;
  if (sample_count < kSamplesMax) {
    Sample& sample = samples[sample_count];
    sample.count = 0;
    sample.epoch = code->epoch();
    Registers regs = port::RegistersOf(context);
    bool is_caller = false;
    StopReason reason = StopReason::kComplete;
    do {
      const std::uintptr_t pc = is_caller ? regs.pc - 1 : regs.pc;
      AotHit hit;
      sample.results[sample.count] = images->Decode(pc, &hit);
      sample.pcs[sample.count++] = pc;
    } while (sample.count < Sample::kFramesMax && native->Step(&regs, &is_caller, stack, &reason));
    sample_count = sample_count + 1;
  }
  errno = saved_errno;
}

using RunFunction = unsigned (*)(unsigned);

// Runs the module until `count` samples more were taken in it.
void Sampled(RunFunction run, std::size_t count) {
  struct sigaction action {};
  action.sa_sigaction = OnTimer;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGPROF, &action, &before), 0);
  const itimerval each = {{0, 1000}, {0, 1000}};
  ASSERT_EQ(setitimer(ITIMER_PROF, &each, nullptr), 0);
  const std::size_t end = std::min(kSamplesMax, sample_count + count);
  while (sample_count < end) {
    const unsigned sum = run(2000);
    ASSERT_EQ(sum, 2000u * (1000u * 999u / 2) + 1);
  }
  const itimerval never = {};
  ASSERT_EQ(setitimer(ITIMER_PROF, &never, nullptr), 0);
  sigaction(SIGPROF, &before, nullptr);
}

// The name of a frame, as the collector finds it; "" if it is not of a known image.
std::string NameOf(std::uintptr_t pc, CodeEpoch epoch, CodeId* image) {
  CodeHit range;
  AotHit hit;
  AotName name;
  *image = 0;
  if (!code->LookupAt(pc, epoch, &range) || images->Find(range.id, pc, &hit) != AotResult::kFound ||
      !images->Describe(hit.image, hit.method, &name)) {
    return "";
  }
  *image = range.id;
  return name.name;
}

TEST(WasmTest, AModuleIsNamedAgainWhenItIsOpenedElsewhere) {
  if (*kModule == '\0') GTEST_SKIP() << "needs wasm2c and wat2wasm (wabt)";
  CodeMap the_code;
  AotImages the_images(the_code);
  NativeUnwinder the_native;
  code = &the_code;
  images = &the_images;
  native = &the_native;
  stack = port::CurrentThreadStack();

  std::vector<CodeId> ids;
  std::vector<std::uintptr_t> starts;
  std::vector<std::size_t> first_sample;
  std::vector<AotHit> seen;
  std::vector<void*> blockers;
  std::size_t size = 0;
  for (int time = 0; time < 2; ++time) {
    void* handle = dlopen(kModule, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr) << dlerror();
    const auto run = reinterpret_cast<RunFunction>(dlsym(handle, "aot_wasm_run"));
    ASSERT_NE(run, nullptr);
    Result<AotImageRegistration> image = OpenLoadedAotFile(reinterpret_cast<std::uintptr_t>(run));
    ASSERT_TRUE(image.ok()) << image.status().context();
    starts.push_back(image.value().start);
    size = image.value().size;
    const Result<CodeId> id = the_images.RegisterImage(std::move(image.value()));
    ASSERT_TRUE(id.ok()) << id.status().context();
    ids.push_back(id.value());
    ASSERT_TRUE(the_native.Refresh(true).ok());
    first_sample.push_back(std::size_t{sample_count});
    Sampled(run, 30);
    if (HasFatalFailure()) return;
    the_images.TakeSeen(&seen);
    ASSERT_TRUE(the_images.UnregisterImage(id.value()).ok());
    ASSERT_EQ(dlclose(handle), 0);
    // Takes the address, so that the module must go elsewhere. It also shows that the module is gone.
    void* const page = reinterpret_cast<void*>(starts.back());
    blockers.push_back(mmap(page, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
    ASSERT_EQ(blockers.back(), page);
  }
  ASSERT_NE(starts[0], starts[1]);
  ASSERT_NE(ids[0], ids[1]);

  for (int time = 0; time < 2; ++time) {
    const std::size_t begin = first_sample[static_cast<std::size_t>(time)];
    const std::size_t end = time == 0 ? first_sample[1] : sample_count;
    ASSERT_GE(end - begin, 30u);
    std::size_t in_the_loop = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const Sample& sample = samples[i];
      std::vector<std::string> names;
      for (std::size_t frame = 0; frame < sample.count; ++frame) {
        CodeId image = 0;
        const std::string name = NameOf(sample.pcs[frame], sample.epoch, &image);
        // The handler's answer and the collector's agree.
        EXPECT_EQ(sample.results[frame] == AotResult::kFound, !name.empty());
        if (name.empty()) continue;
        names.push_back(name);
        EXPECT_EQ(image, ids[static_cast<std::size_t>(time)]);
        // What the handler decoded was told to the collector at its first sight.
        EXPECT_TRUE(std::any_of(seen.begin(), seen.end(), [&](const AotHit& hit) {
          return hit.image == image && sample.pcs[frame] - hit.start < hit.size;
        })) << name;
      }
      // From the loop outwards, each by its name in the module.
      const auto loop = std::find(names.begin(), names.end(), "w2c_sum_below");
      if (loop == names.end()) continue;
      ++in_the_loop;
      const std::vector<std::string> callers(loop + 1, names.end());
      EXPECT_EQ(callers,
                (std::vector<std::string>{"w2c_sum_of_sums", "w2c_run", "Z_sumZ_run", "aot_wasm_run"}));
    }
    EXPECT_GT(in_the_loop, (end - begin) / 2);
  }

  // Nothing needs them any more.
  for (int i = 0; i < 2; ++i) the_images.Reclaim(true, the_code.epoch());
  EXPECT_EQ(the_images.image_count(), 0u);
  for (void* blocker : blockers) munmap(blocker, size);
}

}  // namespace
}  // namespace stackpipe
