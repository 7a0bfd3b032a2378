// SPDX-License-Identifier: MIT
//
// The unwinder's part outside handlers: tables, names, objects that come and go. walk_test.cc has the stacks.
#include "unwind/native_unwinder.h"

#include <dlfcn.h>
#include <elf.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "unwind/unwind_test_util.h"

namespace stackpipe {
namespace {

using testing::CurrentStack;
using testing::RegistersOf;
using testing::TwoWalks;
using testing::WalkBothWays;
using testing::WalkFrom;
using testing::WalkOutcome;

// A directory for copies of the plugin, so that it can be loaded many times at once.
class PluginDirectory {
 public:
  PluginDirectory() {
    char name[] = "/tmp/stackpipe-unwind-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~PluginDirectory() { std::filesystem::remove_all(path_); }
  std::string Copy(const std::string& name) const {
    const std::string copy = path_ + "/" + name;
    std::filesystem::copy_file(STACKPIPE_TEST_PLUGIN, copy,
                               std::filesystem::copy_options::overwrite_existing);
    return copy;
  }

 private:
  std::string path_;
};

using PluginCall = void (*)(void (*callback)(void*), void* context);

PluginCall FindCall(void* plugin) { return reinterpret_cast<PluginCall>(dlsym(plugin, "plugin_call")); }

struct CallbackState {
  const NativeUnwinder* unwinder;
  TwoWalks walks;
};

void WalkInCallback(void* context) {
  auto* state = static_cast<CallbackState*>(context);
  state->walks = WalkBothWays(*state->unwinder);
}

// Walks from inside the plugin's caller chain.
TwoWalks WalkThrough(const NativeUnwinder& unwinder, PluginCall call) {
  CallbackState state = {&unwinder, {}};
  call(WalkInCallback, &state);
  return state.walks;
}

TEST(NativeUnwinderTest, KnowsNothingBeforeRefresh) {
  NativeUnwinder unwinder;
  EXPECT_TRUE(unwinder.Stale());
  ucontext_t context;
  getcontext(&context);
  EXPECT_EQ(WalkFrom(unwinder, RegistersOf(&context), CurrentStack()).reason, StopReason::kUnknownCode);
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  EXPECT_FALSE(unwinder.Stale());
}

__attribute__((noinline)) void NamedFunction() { asm volatile(""); }

TEST(NativeUnwinderTest, NamesFunctionsOfTheProgram) {
  NativeUnwinder unwinder;
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  const auto pc = reinterpret_cast<std::uintptr_t>(&NamedFunction);
  NativeSymbol symbol;
  ASSERT_TRUE(unwinder.Symbolize(pc, &symbol));
  EXPECT_EQ(symbol.function, "stackpipe::(anonymous namespace)::NamedFunction()");
  EXPECT_EQ(symbol.function_start, pc);
  EXPECT_GT(symbol.function_end, pc);
  EXPECT_NE(symbol.object_path.find("native_unwinder_test"), std::string::npos);
  EXPECT_LE(symbol.object_start, pc);
  EXPECT_GT(symbol.object_end, pc);
}

TEST(NativeUnwinderTest, NamesFunctionsOfLibc) {
  NativeUnwinder unwinder;
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  void* libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  ASSERT_NE(libc, nullptr);
  NativeSymbol symbol;
  ASSERT_TRUE(unwinder.Symbolize(reinterpret_cast<std::uintptr_t>(dlsym(libc, "qsort")) + 1, &symbol));
  EXPECT_EQ(symbol.function, "qsort");
  EXPECT_EQ(symbol.build_id_size, 20);
  EXPECT_NE(symbol.object_path.find("libc.so.6"), std::string::npos);
  dlclose(libc);
}

// Debian's libc has no .symtab: its internal functions have no names, but CFI says where they are.
TEST(NativeUnwinderTest, GivesRangeWithoutNameWhereNoSymbolCovers) {
  NativeUnwinder unwinder;
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  std::thread([&] {
    const TwoWalks walks = WalkBothWays(unwinder);
    const std::uint64_t start_thread = walks.ours.pcs[walks.ours.pcs.size() - 2] - 1;
    NativeSymbol symbol;
    ASSERT_TRUE(unwinder.Symbolize(start_thread, &symbol));
    if (!symbol.function.empty()) GTEST_SKIP() << "this libc has a symbol table";
    EXPECT_LT(symbol.function_start, start_thread);
    EXPECT_GT(symbol.function_end, start_thread);
  }).join();
}

TEST(NativeUnwinderTest, NamesNothingOutsideObjects) {
  NativeUnwinder unwinder;
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  int on_stack = 0;
  NativeSymbol symbol;
  EXPECT_FALSE(unwinder.Symbolize(reinterpret_cast<std::uintptr_t>(&on_stack), &symbol));
  EXPECT_FALSE(unwinder.Symbolize(0, &symbol));
  EXPECT_FALSE(unwinder.Symbolize(~std::uintptr_t{0}, &symbol));
}

TEST(NativeUnwinderTest, NamesTheVdso) {
  NativeUnwinder unwinder;
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  void* vdso = dlopen("linux-vdso.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (vdso == nullptr) GTEST_SKIP() << "this kernel maps no vdso";
  NativeSymbol symbol;
  ASSERT_TRUE(
      unwinder.Symbolize(reinterpret_cast<std::uintptr_t>(dlsym(vdso, "__vdso_clock_gettime")) + 1, &symbol));
  EXPECT_EQ(symbol.object_path, "[vdso]");
  EXPECT_TRUE(symbol.function.ends_with("clock_gettime")) << symbol.function;
  dlclose(vdso);
}

TEST(NativeUnwinderTest, WalksThroughObjectsLoadedSinceTheLastRefresh) {
  NativeUnwinder unwinder;
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  PluginDirectory directory;
  void* plugin = dlopen(directory.Copy("late.so").c_str(), RTLD_NOW);
  ASSERT_NE(plugin, nullptr);
  EXPECT_TRUE(unwinder.Stale());
  EXPECT_EQ(WalkThrough(unwinder, FindCall(plugin)).ours.reason, StopReason::kUnknownCode);
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  const TwoWalks walks = WalkThrough(unwinder, FindCall(plugin));
  EXPECT_EQ(walks.ours.reason, StopReason::kComplete);
  EXPECT_TRUE(std::equal(walks.ours.pcs.begin() + 1, walks.ours.pcs.end(), walks.reference.begin() + 1,
                         walks.reference.end()));
  dlclose(plugin);
}

TEST(NativeUnwinderTest, RemembersNamesOfUnloadedObjects) {
  NativeUnwinder unwinder;
  PluginDirectory directory;
  void* plugin = dlopen(directory.Copy("gone.so").c_str(), RTLD_NOW);
  ASSERT_NE(plugin, nullptr);
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  const auto pc = reinterpret_cast<std::uintptr_t>(FindCall(plugin)) + 1;
  dlclose(plugin);
  ASSERT_TRUE(unwinder.Refresh(true).ok());
  // The name was not asked for before the unload: it comes from the file now.
  NativeSymbol symbol;
  ASSERT_TRUE(unwinder.Symbolize(pc, &symbol));
  EXPECT_EQ(symbol.function, "plugin_call");
  EXPECT_TRUE(symbol.object_path.ends_with("/gone.so"));
}

TEST(NativeUnwinderTest, GivesNoNamesFromAFileThatWasReplaced) {
  NativeUnwinder unwinder;
  PluginDirectory directory;
  const std::string path = directory.Copy("replaced.so");
  void* plugin = dlopen(path.c_str(), RTLD_NOW);
  ASSERT_NE(plugin, nullptr);
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  std::filesystem::remove(path);
  directory.Copy("replaced.so");
  NativeSymbol symbol;
  ASSERT_TRUE(unwinder.Symbolize(reinterpret_cast<std::uintptr_t>(FindCall(plugin)) + 1, &symbol));
  EXPECT_EQ(symbol.function, "");
  EXPECT_TRUE(symbol.object_path.ends_with("/replaced.so"));
  dlclose(plugin);
}

// Another object now lies under the name of one that is loaded: its tables would send walks astray.
TEST(NativeUnwinderTest, UsesNoTablesOfAFileThatIsNotWhatIsMapped) {
  NativeUnwinder unwinder;
  PluginDirectory directory;
  const std::string path = directory.Copy("swapped.so");
  void* plugin = dlopen(path.c_str(), RTLD_NOW);
  ASSERT_NE(plugin, nullptr);
  std::filesystem::remove(path);
  std::filesystem::copy_file(STACKPIPE_TEST_OTHER_PLUGIN, path);
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  EXPECT_EQ(WalkThrough(unwinder, FindCall(plugin)).ours.reason, StopReason::kUnknownCode);
  NativeSymbol symbol;
  ASSERT_TRUE(unwinder.Symbolize(reinterpret_cast<std::uintptr_t>(FindCall(plugin)) + 1, &symbol));
  EXPECT_EQ(symbol.function, "");
  dlclose(plugin);
}

// The two files differ in their build id alone.
TEST(NativeUnwinderTest, ComparesBuildIds) {
  NativeUnwinder unwinder;
  PluginDirectory directory;
  const std::string path = directory.Copy("rebuilt.so");
  void* plugin = dlopen(path.c_str(), RTLD_NOW);
  ASSERT_NE(plugin, nullptr);
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  NativeSymbol symbol;
  ASSERT_TRUE(unwinder.Symbolize(reinterpret_cast<std::uintptr_t>(FindCall(plugin)) + 1, &symbol));
  ASSERT_EQ(symbol.build_id_size, 20);
  const std::string id(reinterpret_cast<const char*>(symbol.build_id), 20);

  std::ifstream original(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(original)), {});
  const std::size_t at = bytes.find(id);
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  std::filesystem::remove(path);  // not in place: the mapped pages must stay what they are
  std::ofstream(path, std::ios::binary) << bytes;
  NativeUnwinder later;
  ASSERT_TRUE(later.Refresh(false).ok());
  EXPECT_EQ(WalkThrough(later, FindCall(plugin)).ours.reason, StopReason::kUnknownCode);
  dlclose(plugin);
}

// As when packages are upgraded under a running program: what is mapped is still the old object, and its
// tables are good.
TEST(NativeUnwinderTest, KeepsTablesWhenFilesAreReplacedLater) {
  NativeUnwinder unwinder;
  PluginDirectory directory;
  const std::string path = directory.Copy("upgraded.so");
  void* plugin = dlopen(path.c_str(), RTLD_NOW);
  void* other = dlopen(directory.Copy("other.so").c_str(), RTLD_NOW);
  ASSERT_NE(plugin, nullptr);
  ASSERT_NE(other, nullptr);
  ASSERT_TRUE(unwinder.Refresh(true).ok());
  const auto pc = reinterpret_cast<std::uintptr_t>(FindCall(plugin)) + 1;
  NativeSymbol before;
  ASSERT_TRUE(unwinder.Symbolize(pc, &before));
  std::filesystem::remove(path);
  std::filesystem::copy_file(STACKPIPE_TEST_OTHER_PLUGIN, path);
  dlclose(other);
  ASSERT_TRUE(unwinder.Refresh(true).ok());
  EXPECT_EQ(WalkThrough(unwinder, FindCall(plugin)).ours.reason, StopReason::kComplete);
  NativeSymbol after;
  ASSERT_TRUE(unwinder.Symbolize(pc, &after));
  EXPECT_EQ(after.object_id, before.object_id);
  EXPECT_EQ(after.function, "plugin_call");
  dlclose(plugin);
}

// An object whose file is gone from the start has no tables, but it is one load with one id.
TEST(NativeUnwinderTest, KeepsTheIdOfAnUnknownObject) {
  NativeUnwinder unwinder;
  PluginDirectory directory;
  const std::string path = directory.Copy("deleted.so");
  void* plugin = dlopen(path.c_str(), RTLD_NOW);
  void* other = dlopen(directory.Copy("other.so").c_str(), RTLD_NOW);
  std::filesystem::remove(path);
  ASSERT_TRUE(unwinder.Refresh(true).ok());
  const auto pc = reinterpret_cast<std::uintptr_t>(FindCall(plugin)) + 1;
  NativeSymbol before;
  ASSERT_TRUE(unwinder.Symbolize(pc, &before));
  dlclose(other);
  ASSERT_TRUE(unwinder.Refresh(true).ok());
  NativeSymbol after;
  ASSERT_TRUE(unwinder.Symbolize(pc, &after));
  EXPECT_EQ(after.object_id, before.object_id);
  EXPECT_EQ(after.function, "");
  dlclose(plugin);
}

// Another file at the same address under the same name: what was known of the first must not be used for the
// second.
TEST(NativeUnwinderTest, SeesThatAnotherObjectTookThePlace) {
  NativeUnwinder unwinder;
  PluginDirectory directory;
  const std::string path = directory.Copy("again.so");
  void* plugin = dlopen(path.c_str(), RTLD_NOW);
  ASSERT_NE(plugin, nullptr);
  ASSERT_TRUE(unwinder.Refresh(true).ok());
  const auto pc = reinterpret_cast<std::uintptr_t>(FindCall(plugin)) + 1;
  NativeSymbol before;
  ASSERT_TRUE(unwinder.Symbolize(pc, &before));
  dlclose(plugin);

  std::ifstream original(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(original)), {});
  const std::size_t at = bytes.find(std::string(reinterpret_cast<const char*>(before.build_id), 20));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
  plugin = dlopen(path.c_str(), RTLD_NOW);
  ASSERT_NE(plugin, nullptr);
  // At the same address, as a rule; the checks hold at another one too.
  const std::uintptr_t pc_now = reinterpret_cast<std::uintptr_t>(FindCall(plugin)) + 1;
  ASSERT_TRUE(unwinder.Refresh(true).ok());
  NativeSymbol after;
  ASSERT_TRUE(unwinder.Symbolize(pc_now, &after));
  EXPECT_NE(after.object_id, before.object_id);
  EXPECT_NE(std::memcmp(after.build_id, before.build_id, 20), 0);
  EXPECT_EQ(WalkThrough(unwinder, FindCall(plugin)).ours.reason, StopReason::kComplete);
  dlclose(plugin);
}

// The loader knows it by a relative name, which means nothing after a chdir.
TEST(NativeUnwinderTest, FindsFilesByTheirMapping) {
  NativeUnwinder unwinder;
  PluginDirectory directory;
  const std::filesystem::path path = directory.Copy("relative.so");
  const std::filesystem::path previous = std::filesystem::current_path();
  std::filesystem::current_path(path.parent_path());
  void* plugin = dlopen("./relative.so", RTLD_NOW);
  std::filesystem::current_path(previous);
  ASSERT_NE(plugin, nullptr);
  ASSERT_TRUE(unwinder.Refresh(true).ok());
  EXPECT_EQ(WalkThrough(unwinder, FindCall(plugin)).ours.reason, StopReason::kComplete);
  NativeSymbol symbol;
  ASSERT_TRUE(unwinder.Symbolize(reinterpret_cast<std::uintptr_t>(FindCall(plugin)) + 1, &symbol));
  EXPECT_EQ(symbol.function, "plugin_call");
  EXPECT_EQ(symbol.object_path, path.string());
  dlclose(plugin);
}

// The build id alone does not make a file the one that is mapped: here a program header differs.
TEST(NativeUnwinderTest, ComparesProgramHeaders) {
  PluginDirectory directory;
  const std::string path = directory.Copy("headers.so");
  void* plugin = dlopen(path.c_str(), RTLD_NOW);
  ASSERT_NE(plugin, nullptr);
  std::ifstream original(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(original)), {});
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  Elf64_Phdr last;
  const std::size_t at = header.e_phoff + (header.e_phnum - 1u) * sizeof last;
  std::memcpy(&last, bytes.data() + at, sizeof last);
  last.p_paddr ^= 0x1000;  // of no use to anybody, but different
  std::memcpy(bytes.data() + at, &last, sizeof last);
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
  NativeUnwinder unwinder;
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  EXPECT_EQ(WalkThrough(unwinder, FindCall(plugin)).ours.reason, StopReason::kUnknownCode);
  dlclose(plugin);
}

TEST(NativeUnwinderTest, GivesEachLoadItsOwnId) {
  NativeUnwinder unwinder;
  PluginDirectory directory;
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < 3; ++i) {
    void* plugin = dlopen(directory.Copy("load" + std::to_string(i) + ".so").c_str(), RTLD_NOW);
    ASSERT_NE(plugin, nullptr);
    ASSERT_TRUE(unwinder.Refresh(true).ok());
    NativeSymbol symbol;
    ASSERT_TRUE(unwinder.Symbolize(reinterpret_cast<std::uintptr_t>(FindCall(plugin)) + 1, &symbol));
    EXPECT_TRUE(symbol.object_path.ends_with("/load" + std::to_string(i) + ".so"));
    ids.push_back(symbol.object_id);
    dlclose(plugin);
  }
  EXPECT_LT(ids[0], ids[1]);
  EXPECT_LT(ids[1], ids[2]);
}

// Loads that stay keep their ids and names when others come and go.
TEST(NativeUnwinderTest, KeepsObjectsThatStay) {
  NativeUnwinder unwinder;
  PluginDirectory directory;
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  const auto here = reinterpret_cast<std::uintptr_t>(&NamedFunction);
  NativeSymbol before;
  ASSERT_TRUE(unwinder.Symbolize(here, &before));
  void* plugin = dlopen(directory.Copy("passing.so").c_str(), RTLD_NOW);
  ASSERT_TRUE(unwinder.Refresh(true).ok());
  dlclose(plugin);
  ASSERT_TRUE(unwinder.Refresh(true).ok());
  NativeSymbol after;
  ASSERT_TRUE(unwinder.Symbolize(here, &after));
  EXPECT_EQ(before.object_id, after.object_id);
  EXPECT_EQ(WalkBothWays(unwinder).ours.reason, StopReason::kComplete);
}

// The plugin here has .debug_frame and no .eh_frame.
TEST(NativeUnwinderTest, UsesDebugFrameOnlyIfAsked) {
  void* plugin = dlopen(STACKPIPE_TEST_DEBUG_FRAME_PLUGIN, RTLD_NOW);
  ASSERT_NE(plugin, nullptr) << dlerror();
  NativeUnwinder without;
  ASSERT_TRUE(without.Refresh(false).ok());
  EXPECT_EQ(WalkThrough(without, FindCall(plugin)).ours.reason, StopReason::kUnknownCode);
  NativeUnwinder with(NativeUnwinderOptions{.use_debug_frame = true});
  ASSERT_TRUE(with.Refresh(false).ok());
  EXPECT_EQ(WalkThrough(with, FindCall(plugin)).ours.reason, StopReason::kComplete);
  dlclose(plugin);
}

// cases.md, async-profiler#843: a walker and a reader of names run while 200 objects come and go. The walker
// counts its walks begun and ended, as handlers do, so that old tables are freed under its feet if ever too
// early.
TEST(NativeUnwinderTest, SurvivesAStormOfLoads) {
  PluginDirectory directory;
  std::vector<std::string> paths;
  for (int i = 0; i < 200; ++i) paths.push_back(directory.Copy("storm" + std::to_string(i) + ".so"));
  NativeUnwinder unwinder;
  ASSERT_TRUE(unwinder.Refresh(false).ok());
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> runs{0};  // odd: a walk is under way
  std::atomic<std::uintptr_t> some_pc{0};
  std::atomic<std::uint64_t> walks{0};
  std::atomic<std::uint64_t> refreshes{0};
  std::uint64_t complete = 0;

  std::thread walker([&] {
    const StackBounds bounds = CurrentStack();
    while (!done) {
      ucontext_t context;
      getcontext(&context);
      runs.fetch_add(1);
      Registers regs = RegistersOf(&context);
      bool is_caller = false;
      StopReason reason = StopReason::kNotWalked;
      while (unwinder.Step(&regs, &is_caller, bounds, &reason)) {
      }
      runs.fetch_add(1);
      ++walks;
      complete += reason == StopReason::kComplete;
    }
  });
  std::thread refresher([&] {
    std::uint64_t noted = 1;  // of `runs` after the last Refresh
    while (!done) {
      const bool quiescent = noted % 2 == 0 || runs.load() != noted;
      ASSERT_TRUE(unwinder.Refresh(quiescent).ok());
      noted = runs.load();
      // An object that went before its file was compared has no names; no other name may come.
      NativeSymbol symbol;
      if (unwinder.Symbolize(some_pc, &symbol)) {
        EXPECT_TRUE(symbol.function == "plugin_call" || symbol.function.empty());
      }
      ++refreshes;
    }
  });
  while (walks == 0 || refreshes == 0) std::this_thread::yield();
  std::vector<void*> open(paths.size());
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < paths.size(); ++i) {
      open[i] = dlopen(paths[i].c_str(), RTLD_NOW);
      ASSERT_NE(open[i], nullptr);
      some_pc = reinterpret_cast<std::uintptr_t>(FindCall(open[i])) + 1;
      if (i >= 10) dlclose(open[i - 10]);
    }
    for (std::size_t i = paths.size() - 10; i < paths.size(); ++i) dlclose(open[i]);
  }
  done = true;
  walker.join();
  refresher.join();
  EXPECT_EQ(complete, walks);
}

}  // namespace
}  // namespace stackpipe
