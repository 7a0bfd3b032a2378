// SPDX-License-Identifier: MIT
//
// AOT images in a session: opened, sampled by timers, closed, and opened again at another address, or another
// one at the same address; and what the trace then says.
//
// Proves: A4, A6, A9
#include "stackpipe/session.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "platform/port.h"
#include "session/progress_block.h"
#include "session/read_back.h"

namespace stackpipe {
namespace {

using testing::ReadBack;
using Names = std::vector<std::string>;
using RunFunction = unsigned (*)(unsigned);

const char kWasmModule[] = STACKPIPE_TEST_WASM_MODULE;
const char kSpinA[] = STACKPIPE_TEST_SPIN_A;
const char kSpinB[] = STACKPIPE_TEST_SPIN_B;

constexpr auto kAot = static_cast<std::int32_t>(CodeKind::kAot);

struct Range {
  std::uintptr_t start = 0, end = 0;
  bool Holds(std::uintptr_t pc) const { return pc >= start && pc < end; }
};

// Where the code lies of the object that holds `address`.
Range CodeRangeAt(const void* address) {
  struct Query {
    std::uintptr_t address;
    Range found;
  } query = {reinterpret_cast<std::uintptr_t>(address), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto* asked = static_cast<Query*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = info->dlpi_phdr[i];
          const std::uintptr_t start = info->dlpi_addr + segment.p_vaddr;
          const Range range = {start, start + segment.p_memsz};
          if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0 && range.Holds(asked->address))
            asked->found = range;
        }
        return 0;
      },
      &query);
  return query.found;
}

// One time that an image was open.
struct Load {
  std::string path;
  Range code;
  std::uint64_t opened_ns = 0, closed_ns = ~std::uint64_t{0};
};

class AotSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/stackpipe-aot-session-XXXXXX";
    directory_ = mkdtemp(name);
    options_.output_path = directory_ + "/t.nettrace";
    options_.progress_path = directory_ + "/progress";
  }
  void TearDown() override {
    session_.reset();
    unlink(options_.output_path.c_str());
    unlink(options_.progress_path.c_str());
    rmdir(directory_.c_str());
  }

  // Samples a thread that does `work`, and ends the session.
  template <typename Work>
  void Record(Work work) {
    Result<std::unique_ptr<Session>> session = Session::Start(options_);
    ASSERT_TRUE(session.ok()) << session.status().context();
    session_ = std::move(session.value());
    const int fd = open(options_.progress_path.c_str(), O_RDONLY);
    void* at = mmap(nullptr, sizeof(ProgressBlock), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    ASSERT_NE(at, MAP_FAILED);
    progress_ = static_cast<const ProgressBlock*>(at);
    std::thread([&] {
      ASSERT_TRUE(session_->RegisterCurrentThread(nullptr).ok());
      work();
      session_->UnregisterCurrentThread();
    }).join();
    session_->End();
    munmap(at, sizeof(ProgressBlock));
  }

  // Does `work` again and again until so many samples more are written. Gives up after a time that no machine
  // needs.
  template <typename Work>
  void UntilSamples(std::uint64_t count, Work work) {
    const std::uint64_t goal = progress_->samples.load() + count;
    const std::uint64_t end = port::NowNs() + 60'000'000'000;
    while (progress_->samples.load() < goal && port::NowNs() < end) work();
  }

  void Open(const char* path) {
    handle_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle_, nullptr) << dlerror();
  }
  template <typename F = RunFunction>
  F Function(const char* name) {
    return reinterpret_cast<F>(dlsym(handle_, name));
  }
  void Register(const char* path, RunFunction function) {
    ASSERT_NE(function, nullptr);
    loads_.push_back({.path = path, .code = CodeRangeAt(reinterpret_cast<const void*>(function))});
    const Result<CodeId> id = session_->RegisterAotImage(reinterpret_cast<const void*>(function));
    ASSERT_TRUE(id.ok()) << id.status().context();
    id_ = id.value();
    loads_.back().opened_ns = port::NowNs();
  }
  void Close() {
    loads_.back().closed_ns = port::NowNs();
    session_->RetireCode(id_);
    ASSERT_EQ(dlclose(handle_), 0);
  }

  // The modules of the stream that are loads of ours, in the order of their loads.
  std::vector<std::uint64_t> ModuleIds(const ReadBack& trace) const {
    std::set<std::string> paths;
    for (const Load& load : loads_) paths.insert(load.path);
    std::vector<std::uint64_t> ids;  // ids ascend with time
    for (const auto& [id, module] : trace.modules) {
      if (paths.count(module.il_path) != 0 && id >> 33 != 0) ids.push_back(id);
    }
    return ids;
  }

  // Each frame that lies where an image was open then is a method of that image and of no other. Counts the
  // frames by their names, for each load.
  std::vector<std::map<std::string, int>> CheckFrames(const ReadBack& trace) const {
    const std::vector<std::uint64_t> modules = ModuleIds(trace);
    std::vector<std::map<std::string, int>> counts(loads_.size());
    EXPECT_EQ(modules.size(), loads_.size());
    if (modules.size() != loads_.size()) return counts;
    for (const ReadBack::Sample& sample : trace.samples) {
      for (const ReadBack::Frame& frame : sample.frames) {
        for (std::size_t i = 0; i < loads_.size(); ++i) {
          const Load& load = loads_[i];
          if (!load.code.Holds(frame.pc) || sample.time < load.opened_ns || sample.time > load.closed_ns)
            continue;
          EXPECT_NE(frame.name, "");
          EXPECT_EQ(frame.module_id, modules[i]) << frame.name;
          EXPECT_EQ(frame.kind, kAot) << frame.name;
          ++counts[i][frame.name];
        }
      }
    }
    return counts;
  }

  // The names that the stream gave to methods of a module, sorted.
  static Names NamesOf(const ReadBack& trace, std::uint64_t module_id) {
    Names names;
    for (const nettrace::Method& method : trace.loads) {
      if (method.module_id == module_id) names.push_back(method.name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string directory_;
  SessionOptions options_;
  std::unique_ptr<Session> session_;
  const ProgressBlock* progress_ = nullptr;
  void* handle_ = nullptr;
  CodeId id_ = 0;
  std::vector<Load> loads_;
};

// A real image: a WebAssembly module that wasm2c (package wabt) makes C of.
TEST_F(AotSessionTest, AWasmModuleIsNamedAgainWhenItIsOpenedElsewhere) {
  if (*kWasmModule == '\0') GTEST_SKIP() << "needs wasm2c and wat2wasm (wabt)";
  std::vector<void*> blockers;
  Record([&] {
    for (int time = 0; time < 2; ++time) {
      ASSERT_NO_FATAL_FAILURE(Open(kWasmModule));
      const RunFunction run = Function("aot_wasm_run");
      ASSERT_NO_FATAL_FAILURE(Register(kWasmModule, run));
      UntilSamples(50, [&] { ASSERT_EQ(run(200), 200u * (1000u * 999u / 2) + 1); });
      ASSERT_NO_FATAL_FAILURE(Close());
      // Takes the address, so that the module must go elsewhere. It also shows that the module is gone.
      const Range code = loads_.back().code;
      void* const page = reinterpret_cast<void*>(code.start & ~std::uintptr_t{4095});
      blockers.push_back(mmap(page, code.end - code.start, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
      ASSERT_EQ(blockers.back(), page);
    }
  });
  for (std::size_t i = 0; i < blockers.size(); ++i)
    munmap(blockers[i], loads_[i].code.end - loads_[i].code.start);
  ASSERT_EQ(loads_.size(), 2u);
  ASSERT_NE(loads_[0].code.start, loads_[1].code.start);

  const ReadBack trace(options_.output_path);
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  std::vector<std::map<std::string, int>> counts = CheckFrames(trace);
  const Names chain = {"w2c_sum_below", "w2c_sum_of_sums", "w2c_run", "Z_sumZ_run", "aot_wasm_run"};
  const std::vector<std::uint64_t> modules = ModuleIds(trace);
  ASSERT_EQ(modules.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const Names told = NamesOf(trace, modules[i]);
    EXPECT_EQ(std::set<std::string>(told.begin(), told.end()).size(), told.size());  // each once
    for (const std::string& name : chain) {
      EXPECT_TRUE(std::binary_search(told.begin(), told.end(), name)) << name;
      EXPECT_GT(counts[i][name], 10) << name;
    }
    EXPECT_EQ(trace.unloaded_at.count(modules[i]), 1u);
    EXPECT_EQ(trace.module_rundown.count(modules[i]), 0u);
  }
  // From the loop outwards, each by its name in the module.
  std::size_t in_the_loop = 0;
  for (const ReadBack::Sample& sample : trace.samples) {
    Names names;
    for (const ReadBack::Frame& frame : sample.frames) names.push_back(frame.name);
    const auto loop = std::find(names.begin(), names.end(), chain[0]);
    if (loop == names.end()) continue;
    ++in_the_loop;
    ASSERT_GE(names.end() - loop, static_cast<std::ptrdiff_t>(chain.size()));
    EXPECT_TRUE(std::equal(chain.begin(), chain.end(), loop));
  }
  EXPECT_GT(in_the_loop, 50u);
}

// Two files that take the same address in turn, faster than samples are drained: an old sample is of the file
// that lay there when it was taken.
TEST_F(AotSessionTest, AnAddressThatTwoImagesTakeInTurnHasTheNamesOfItsTime) {
  Record([&] {
    UntilSamples(150, [&] {
      for (const char* path : {kSpinA, kSpinB}) {
        ASSERT_NO_FATAL_FAILURE(Open(path));
        const RunFunction run = Function("aot_spin_run");
        ASSERT_NO_FATAL_FAILURE(Register(path, run));
        const std::uint64_t end = port::ClockNs(CLOCK_THREAD_CPUTIME_ID) + 5'000'000;
        while (port::ClockNs(CLOCK_THREAD_CPUTIME_ID) < end) run(10'000);
        ASSERT_NO_FATAL_FAILURE(Close());
      }
    });
  });
  const ReadBack trace(options_.output_path);
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  std::vector<std::map<std::string, int>> counts = CheckFrames(trace);
  int total[2] = {};
  for (std::size_t i = 0; i < loads_.size(); ++i) {
    EXPECT_EQ(loads_[i].code.start, loads_[0].code.start);
    EXPECT_EQ(loads_[i].code.end, loads_[0].code.end);
    const bool is_a = loads_[i].path == kSpinA;
    for (const auto& [name, count] : counts[i]) {
      EXPECT_TRUE(name == "aot_spin_run" || name == (is_a ? "aot_spin_a" : "aot_spin_b")) << name;
      if (name != "aot_spin_run") total[is_a ? 0 : 1] += count;
    }
  }
  EXPECT_GT(total[0], 20);
  EXPECT_GT(total[1], 20);
  // All of them are closed, in the stream as well.
  EXPECT_EQ(trace.unloaded_at.size(), trace.modules.size() - trace.module_rundown.size());
  for (const std::uint64_t id : ModuleIds(trace)) {
    EXPECT_EQ(trace.unloaded_at.count(id), 1u);
    EXPECT_EQ(trace.modules.at(id).native_pdb_signature[0], 0x12);  // the build id
    EXPECT_EQ(trace.modules.at(id).native_pdb_signature[7], 0xf0);
  }
}

// The middle of a deep stack is not in its sample; but handlers met those methods, and the trace has them.
// Test 15 of the list
TEST_F(AotSessionTest, MethodsThatOnlyTheHandlerMetAreInTheTrace) {
  options_.frames_max = 4;
  Record([&] {
    ASSERT_NO_FATAL_FAILURE(Open(kSpinA));
    const RunFunction run = Function("aot_spin_run_deep");
    ASSERT_NO_FATAL_FAILURE(Register(kSpinA, run));
    UntilSamples(50, [&] { run(100'000); });
    ASSERT_NO_FATAL_FAILURE(Close());
  });
  const ReadBack trace(options_.output_path);
  CheckFrames(trace);
  const std::vector<std::uint64_t> modules = ModuleIds(trace);
  ASSERT_EQ(modules.size(), 1u);
  const Names told = NamesOf(trace, modules[0]);
  // A stack of four frames shows one of them only if a tick falls on the few instructions at the chain's
  // ends.
  for (const char* name : {"aot_spin_link2", "aot_spin_link3", "aot_spin_link4"}) {
    EXPECT_TRUE(std::binary_search(told.begin(), told.end(), name)) << name;
  }
}

// Code that ran before it was registered has native names until then; and what is open at the end is in the
// rundown.
TEST_F(AotSessionTest, AnImageThatIsRegisteredLateAndStaysOpen) {
  Record([&] {
    ASSERT_NO_FATAL_FAILURE(Open(kSpinB));
    const RunFunction run = Function("aot_spin_run");
    UntilSamples(30, [&] { run(10'000); });
    ASSERT_NO_FATAL_FAILURE(Register(kSpinB, run));
    UntilSamples(30, [&] { run(10'000); });
  });
  const ReadBack trace(options_.output_path);
  std::vector<std::map<std::string, int>> counts = CheckFrames(trace);
  const std::vector<std::uint64_t> modules = ModuleIds(trace);
  ASSERT_EQ(modules.size(), 1u);
  EXPECT_GT(counts[0]["aot_spin_b"], 5);
  std::size_t native = 0;
  for (const ReadBack::Sample& sample : trace.samples) {
    if (sample.time >= loads_[0].opened_ns) continue;
    for (const ReadBack::Frame& frame : sample.frames)
      native += frame.name == "aot_spin_b" && frame.module_id != modules[0];
  }
  EXPECT_GT(native, 5u);
  EXPECT_EQ(trace.unloaded_at.count(modules[0]), 0u);
  EXPECT_EQ(trace.module_rundown.count(modules[0]), 1u);
  Names rundown;
  for (const auto& [id, method] : trace.rundown) {
    if (method.module_id == modules[0]) rundown.push_back(method.name);
  }
  std::sort(rundown.begin(), rundown.end());
  EXPECT_EQ(rundown, NamesOf(trace, modules[0]));
  // Nothing is in it but what samples needed; the image itself is no method.
  for (const auto& [id, method] : trace.rundown) EXPECT_EQ(trace.kinds.count(id), 1u) << method.name;
  // After the end nothing is registered any more.
  const Result<CodeId> late = session_->RegisterAotImage(dlsym(handle_, "aot_spin_run"));
  EXPECT_TRUE(late.ok());
  EXPECT_EQ(late.value(), 0u);
  dlclose(handle_);
}

// The sample that closes a thread repeats its last stack. That was native code when it was taken, and is
// not any more: it gets no second name.
TEST_F(AotSessionTest, AnImageThatIsRegisteredRightBeforeTheThreadEnds) {
  Record([&] {
    ASSERT_NO_FATAL_FAILURE(Open(kSpinB));
    const RunFunction run = Function("aot_spin_run");
    UntilSamples(30, [&] { run(10'000); });
    ASSERT_NO_FATAL_FAILURE(Register(kSpinB, run));
  });
  const ReadBack trace(options_.output_path);
  EXPECT_TRUE(trace.summary.complete) << trace.summary.detail;
  CheckFrames(trace);
  dlclose(handle_);
}

// What is kept of a closed image goes once no sample can need it: its file, which the names come from, is not
// mapped any more.
TEST_F(AotSessionTest, AClosedImageIsForgotten) {
  const auto is_mapped = [] {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find(kSpinA) != std::string::npos) return true;
    }
    return false;
  };
  Record([&] {
    ASSERT_NO_FATAL_FAILURE(Open(kSpinA));
    const RunFunction run = Function("aot_spin_run");
    ASSERT_NO_FATAL_FAILURE(Register(kSpinA, run));
    UntilSamples(10, [&] { run(10'000); });
    ASSERT_NO_FATAL_FAILURE(Close());
    const std::uint64_t end = port::NowNs() + 60'000'000'000;
    while (is_mapped() && port::NowNs() < end) usleep(10'000);
    EXPECT_FALSE(is_mapped());
  });
}

TEST_F(AotSessionTest, CodeOfNoMethodStaysWithoutAName) {
  Range gap;
  Record([&] {
    ASSERT_NO_FATAL_FAILURE(Open(kSpinA));
    const auto spin = Function<void (*)(unsigned)>("aot_spin_gap");
    gap = {reinterpret_cast<std::uintptr_t>(spin), reinterpret_cast<std::uintptr_t>(spin) + 7};
    ASSERT_NO_FATAL_FAILURE(Register(kSpinA, Function("aot_spin_run")));
    UntilSamples(30, [&] { spin(100'000); });
    ASSERT_NO_FATAL_FAILURE(Close());
  });
  const ReadBack trace(options_.output_path);
  std::size_t in_the_gap = 0;
  for (const ReadBack::Sample& sample : trace.samples) {
    if (sample.frames.empty() || !gap.Holds(sample.frames[0].pc)) continue;
    ++in_the_gap;
    EXPECT_EQ(sample.frames[0].name, "");
    EXPECT_EQ(sample.frames.size() > 2, true);  // and is walked through
  }
  EXPECT_GT(in_the_gap, 5u);
}

TEST_F(AotSessionTest, AnAddressIsRegisteredOnceAndOnlyWhereAnObjectIs) {
  Record([&] {
    const int on_the_stack = 0;
    EXPECT_EQ(session_->RegisterAotImage(&on_the_stack).status().code(), StatusCode::kNotFound);
    ASSERT_NO_FATAL_FAILURE(Open(kSpinA));
    const RunFunction run = Function("aot_spin_run");
    ASSERT_NO_FATAL_FAILURE(Register(kSpinA, run));
    EXPECT_EQ(session_->RegisterAotImage(reinterpret_cast<const void*>(run)).status().code(),
              StatusCode::kOverlap);
    ASSERT_NO_FATAL_FAILURE(Close());
    session_->RetireCode(id_);  // again: no effect
  });
  // An image that no sample met is a module of the trace all the same.
  const ReadBack trace(options_.output_path);
  const std::vector<std::uint64_t> modules = ModuleIds(trace);
  ASSERT_EQ(modules.size(), 1u);
  EXPECT_EQ(trace.unloaded_at.count(modules[0]), 1u);
  EXPECT_TRUE(NamesOf(trace, modules[0]).empty());
}

}  // namespace
}  // namespace stackpipe
