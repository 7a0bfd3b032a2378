// SPDX-License-Identifier: MIT
//
// Changes of a CodeMap run one instruction at a time, with the processor's trap flag: after each instruction
// a signal handler looks code up, or forks and uses the map in the child. And lookups run so, counted, and
// with changes of the map at one of their instructions, which is what a reader that is stopped there meets.
//
// Not for ThreadSanitizer, which delays signals.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "code_map/cell_pool.h"
#include "code_map/page_memory.h"
#include "stackpipe/code_map.h"

#if !defined(__x86_64__)
#error "build this test for x86-64 only"
#endif

extern "C" char __executable_start, etext;

namespace stackpipe {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr std::uintptr_t kBase = 0x7f0000000000;

std::uint64_t instructions = 0;
std::uint64_t instructions_elsewhere = 0;  // not of this program: of libc
void (*at_instruction)() = nullptr;

void OnTrap(int, siginfo_t*, void* context) {
  const auto* ucontext = static_cast<ucontext_t*>(context);
  const auto pc = reinterpret_cast<char*>(ucontext->uc_mcontext.gregs[REG_RIP]);
  ++instructions;
  if (pc < &__executable_start || pc >= &etext) ++instructions_elsewhere;
  if (at_instruction != nullptr) at_instruction();
}

inline void SetTrapFlag() {
  asm volatile("lea -128(%%rsp), %%rsp; pushfq; orq $0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::
                   : "cc", "memory");
}
inline void ClearTrapFlag() {
  asm volatile("lea -128(%%rsp), %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::
                   : "cc", "memory");
}

class CodeMapStepTest : public testing::Test {
 protected:
  CodeMapStepTest() {
    // On a stack of its own, as a profiler's handler may be.
    stack_t stack = {};
    stack.ss_sp = signal_stack_;
    stack.ss_size = sizeof signal_stack_;
    sigaltstack(&stack, &old_stack_);
    struct sigaction action = {};
    action.sa_sigaction = OnTrap;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGTRAP, &action, &old_action_);
  }
  ~CodeMapStepTest() override {
    at_instruction = nullptr;
    sigaction(SIGTRAP, &old_action_, nullptr);
    sigaltstack(&old_stack_, nullptr);
  }

  template <typename F>
  static void Step(const F& f) {
    instructions = 0;
    instructions_elsewhere = 0;
    SetTrapFlag();
    f();
    ClearTrapFlag();
  }

 private:
  char signal_stack_[64 * 1024];
  stack_t old_stack_;
  struct sigaction old_action_;
};

CodeRegistration Code(std::uintptr_t start, std::size_t size, std::uint64_t owner = 0,
                      const char* name = "code") {
  CodeRegistration code;
  code.start = start;
  code.size = size;
  code.owner = owner;
  code.name = name;
  return code;
}

constexpr std::uintptr_t kFar = 0xffffffff81000000;

bool IsSoak() { return std::getenv("STACKPIPE_SOAK") != nullptr; }

// A change, on a map that was prepared for it.
struct Scenario {
  const char* name;
  std::function<void(CodeMap&)> prepare;
  std::function<void(CodeMap&)> change;
};

// Ids count from 1 in the order of registration.
const std::vector<Scenario>& Scenarios() {
  static const auto fill = [](CodeMap& map, std::uintptr_t count) {
    for (std::uintptr_t i = 0; i < count; ++i) {
      EXPECT_TRUE(map.Register(Code(kBase + 0x100 + i * 64, 48, 1 + i % 2)).ok());
    }
  };
  // As many as a cell holds, or as two thirds of the span of a split one hold.
  static const auto fill_densely = [](CodeMap& map) {
    std::vector<CodeRegistration> codes;
    for (std::uintptr_t i = 0; i < 534; ++i) codes.push_back(Code(kBase + 0x100 + i * 64, 48, 1 + i % 2));
    EXPECT_TRUE(map.RegisterBatch(codes.data(), codes.size(), nullptr).ok());
  };
  static const std::vector<Scenario> all = {
      {"the first code of all", [](CodeMap&) {},
       [](CodeMap& map) { (void)map.Register(Code(kBase + 0x80, 64, 3)); }},
      {"behind all others", [](CodeMap& map) { fill(map, 10); },
       [](CodeMap& map) { (void)map.Register(Code(kBase + 0x1000, 64, 3, "a new name")); }},
      {"between others", [](CodeMap& map) { fill(map, 20); },
       [](CodeMap& map) { (void)map.Register(Code(kBase + 0x100 + 48, 16)); }},
      {"over several cells", [](CodeMap& map) { fill(map, 8); },
       [](CodeMap& map) { (void)map.Register(Code(kBase + 0x8000, 0x38000)); }},
      {"remove one", [](CodeMap& map) { fill(map, 20); }, [](CodeMap& map) { (void)map.Unregister(5); }},
      {"remove the last of all", [](CodeMap& map) { fill(map, 1); },
       [](CodeMap& map) { (void)map.Unregister(1); }},
      {"reuse in place",
       [](CodeMap& map) {
         fill(map, 8);
         (void)map.Unregister(3);
       },
       [](CodeMap& map) { (void)map.Register(Code(kBase + 0x100 + 2 * 64, 30)); }},
      {"move", [](CodeMap& map) { fill(map, 8); },
       [](CodeMap& map) { (void)map.Move(2, kBase + 0x100 + 64 + 8); }},
      {"replace three", [](CodeMap& map) { fill(map, 8); },
       [](CodeMap& map) { (void)map.RegisterOver(Code(kBase + 0x120, 130)); }},
      {"an owner goes", [](CodeMap& map) { fill(map, 8); },
       [](CodeMap& map) { (void)map.UnregisterOwner(2); }},
      {"a batch", [](CodeMap& map) { fill(map, 4); },
       [](CodeMap& map) {
         const CodeRegistration codes[] = {Code(kBase + 0x4000, 10), Code(kBase + 0x20000, 0x20000),
                                           Code(kBase + 0x130, 16)};
         (void)map.RegisterBatch(codes, 3, nullptr);
       }},
      {"forget the past",
       [](CodeMap& map) {
         fill(map, 8);
         (void)map.UnregisterOwner(2);
       },
       [](CodeMap& map) { map.TrimHistory(map.epoch()); }},
      {"a cell whose code is mostly gone gets smaller",
       [](CodeMap& map) {
         fill(map, 100);
         for (CodeId id = 1; id <= 74; ++id) EXPECT_TRUE(map.Unregister(id).ok());
       },
       [](CodeMap& map) { (void)map.Unregister(75); }},
      {"large code where dense code was",
       [](CodeMap& map) {
         fill_densely(map);
         EXPECT_TRUE(map.Register(Code(kBase + 0x100 + 200 * 64 + 48, 10)).ok());
         EXPECT_EQ(map.UnregisterRange(kBase, 0x10000), 535u);
       },
       [](CodeMap& map) { (void)map.Register(Code(kBase + 0x80, 0x28000)); }},
      {"small code over large", [](CodeMap& map) { EXPECT_TRUE(map.Register(Code(kBase, 0x38000)).ok()); },
       [](CodeMap& map) { (void)map.RegisterOver(Code(kBase + 0x15000, 0x100)); }},
      {"large code goes",
       [](CodeMap& map) {
         fill(map, 8);
         EXPECT_TRUE(map.Register(Code(kBase + 0x8000, 0x38000)).ok());
       },
       [](CodeMap& map) { (void)map.Unregister(9); }},
      {"the first code of a far region", [](CodeMap& map) { fill(map, 4); },
       [](CodeMap& map) { (void)map.Register(Code(kFar, 0x1000)); }},
      {"a batch goes", [](CodeMap& map) { fill(map, 12); },
       [](CodeMap& map) {
         const CodeId ids[] = {3, 9, 4};
         (void)map.UnregisterBatch(ids, 3);
       }},
      {"a range goes", [](CodeMap& map) { fill(map, 12); },
       [](CodeMap& map) { (void)map.UnregisterRange(kBase + 0x130, 0x100); }},
      {"a refused overlap", [](CodeMap& map) { fill(map, 12); },
       [](CodeMap& map) {
         const CodeRegistration codes[] = {Code(kBase + 0x4000, 10), Code(kBase + 0x120, 16)};
         (void)map.RegisterBatch(codes, 2, nullptr);
       }},
      {"a refused batch of ids", [](CodeMap& map) { fill(map, 12); },
       [](CodeMap& map) {
         const CodeId ids[] = {3, 9, 400};
         (void)map.UnregisterBatch(ids, 3);
       }},
      {"no memory for a replacement", [](CodeMap& map) { fill(map, 12); },
       [](CodeMap& map) {
         internal::FailAllocationsForTest(3);
         (void)map.RegisterOver(Code(kBase + 0x120, 0x28000, 0, "a new name"));
         internal::FailAllocationsForTest(-1);
       }},
      // Most of a million instructions, so the last, and for soaks only.
      {"a full cell splits", [](CodeMap& map) { fill_densely(map); },
       [](CodeMap& map) { (void)map.Register(Code(kBase + 0x100 + 200 * 64 + 48, 10)); }},
  };
  return all;
}

// What the map says at some places.
constexpr std::size_t kProbes = 56;
std::uintptr_t ProbeAt(std::size_t i) {
  if (i < 40) return kBase + 0x100 + i * 20;
  static constexpr std::uintptr_t kMore[] = {0x80,    0x1010,  0x4001,  0x9000, 0x15000,
                                             0x20003, 0x30000, 0x3ffff, 0x1385, 0x13c5,
                                             0x19c0,  0x3305,  0x3332,  0x7005, 0x8600};
  return i + 1 == kProbes ? kFar + 0x10 : kBase + kMore[i - 40];
}
struct Answers {
  CodeId id[kProbes] = {};
  std::string name[kProbes];
  std::size_t live = 0;
  CodeEpoch epoch = 0;

  void Take(const CodeMap& map) {
    for (std::size_t i = 0; i < kProbes; ++i) {
      CodeHit hit;
      id[i] = map.Find(ProbeAt(i), &hit) == LookupResult::kFound ? hit.id : 0;
      CodeDescriptor code;
      if (id[i] != 0 && map.Describe(id[i], &code)) name[i] = code.name;
    }
    live = map.live_count();
    epoch = map.epoch();
  }
  bool operator==(const Answers&) const = default;
};
// What it says about the time before the change.
struct OldAnswers {
  static constexpr CodeEpoch kAges = 4;
  CodeId id[kAges][kProbes] = {};

  void Take(const CodeMap& map, CodeEpoch epoch) {
    for (CodeEpoch age = 0; age < kAges; ++age) {
      for (std::size_t i = 0; i < kProbes; ++i) {
        CodeHit hit;
        id[age][i] = map.LookupAt(ProbeAt(i), epoch - age, &hit) ? hit.id : 0;
      }
    }
  }
};

// The handlers' view of the change that is being stepped through.
struct {
  CodeMap* map;
  Answers before, after;
  OldAnswers old_before, old_after;
  std::uint64_t wrong;
  std::uint64_t fork_every;
  std::uint64_t fork_each_from;  // and at each instruction from this one on, where the change is committed
  int (*in_child)();
  std::uint64_t forks;
  int child_status;
} stepped;

void LookUp() {
  for (std::size_t i = 0; i < kProbes; ++i) {
    CodeHit hit;
    const LookupResult result = stepped.map->Find(ProbeAt(i), &hit);
    const CodeId id = result == LookupResult::kFound ? hit.id : 0;
    const bool right =
        result != LookupResult::kDeferred && (id == stepped.before.id[i] || id == stepped.after.id[i]);
    CodeDescriptor code;
    if (!right || (id != 0 && (!stepped.map->Describe(id, &code) || ProbeAt(i) - code.start >= code.size))) {
      ++stepped.wrong;
    }
  }
}

// Runs in the child, in the handler, where the change stopped for ever. Returns the number of the first check
// that failed.
int UseMapInChild() {
  CodeMap& map = *stepped.map;
  internal::FailAllocationsForTest(-1);
  LookUp();
  if (stepped.wrong != 0) return 1;
  CodeId seen[kProbes] = {};
  for (std::size_t i = 0; i < kProbes; ++i) {
    CodeHit hit;
    if (map.Find(ProbeAt(i), &hit) == LookupResult::kFound) seen[i] = hit.id;
  }
  // The first use of the writers' side mends the map: the change happened as a whole or not at all.
  CodeHit hit;
  (void)map.LookupAt(kBase, map.epoch(), &hit);
  Answers now;
  now.Take(map);
  if (now != stepped.before && now != stepped.after) return 2;
  for (std::size_t i = 0; i < kProbes; ++i) {
    if (now.id[i] == 0) continue;
    CodeDescriptor code;
    if (!map.Describe(now.id[i], &code)) return 3;
    if (code.death != 0 || code.birth == 0 || code.birth > map.epoch() || code.name.empty()) return 4;
    if (ProbeAt(i) - code.start >= code.size) return 5;
  }
  // The past is what it was, or forgotten if that was the change.
  OldAnswers old;
  old.Take(map, stepped.before.epoch);
  for (CodeEpoch age = 0; age < OldAnswers::kAges; ++age) {
    for (std::size_t i = 0; i < kProbes; ++i) {
      if (old.id[age][i] != stepped.old_before.id[age][i] && old.id[age][i] != stepped.old_after.id[age][i])
        return 6;
    }
  }
  // And it goes on.
  const Result<CodeId> id = map.Register(Code(kBase + 0x70000, 0x100, 9, "of the child"));
  if (!id.ok()) return 7;
  for (std::size_t i = 0; i < kProbes; ++i) {
    if (id.value() == seen[i] || id.value() == now.id[i]) return 8;  // no id twice, if a lookup saw it
  }
  if (!map.Lookup(kBase + 0x70010, &hit) || hit.id != id.value()) return 9;
  if (map.live_count() != now.live + 1) return 10;
  if (map.UnregisterOwner(9) != 1) return 11;
  if (map.Lookup(kBase + 0x70010, &hit)) return 12;
  if (map.UnregisterRange(kBase, 0x100000) + map.UnregisterRange(kFar, 0x1000) != now.live) return 13;
  if (map.live_count() != 0) return 14;
  return 0;
}

// The same, but the child has no memory at first, for the mending neither: an error, and lookups as before.
int UseMapInChildWithoutMemory() {
  CodeMap& map = *stepped.map;
  for (int allowed = 0;; ++allowed) {
    if (allowed == 10'000) return 20;
    internal::FailAllocationsForTest(allowed);
    const Result<CodeId> id = map.Register(Code(kBase + 0x60000, 0x100, 8, "of the child"));
    internal::FailAllocationsForTest(-1);
    LookUp();
    if (stepped.wrong != 0) return 21;
    CodeHit hit;
    if (map.Lookup(kBase + 0x60010, &hit) != id.ok()) return 22;
    if (!id.ok()) {
      if (id.status().code() != StatusCode::kOutOfMemory) return 23;
      continue;
    }
    if (allowed < 3) return 24;  // there was nothing to fail
    return map.UnregisterOwner(8) == 1 ? 0 : 25;
  }
}

void ForkAndUse() {
  if (instructions % stepped.fork_every != 0 && instructions < stepped.fork_each_from) return;
  if (stepped.child_status != 0) return;
  ++stepped.forks;
  const pid_t child = _Fork();
  if (child == 0) _exit(stepped.in_child());
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child) status = -1;
  stepped.child_status = WIFEXITED(status) ? WEXITSTATUS(status) : status;
}

class CodeMapScenarioTest : public CodeMapStepTest, public testing::WithParamInterface<std::size_t> {
 protected:
  const Scenario& scenario() const { return Scenarios()[GetParam()]; }

  void Prepare(CodeMap& map) {
    CodeMap twin;
    scenario().prepare(twin);
    stepped = {};
    stepped.before.Take(twin);
    stepped.old_before.Take(twin, stepped.before.epoch);
    scenario().change(twin);
    stepped.after.Take(twin);
    stepped.old_after.Take(twin, stepped.before.epoch);
    scenario().prepare(map);
    stepped.map = &map;
  }

  // Makes the change with a fork each few instructions, `forks_max` of them at most, and at each of the last
  // `each_of_last`.
  void ForkDuringTheChange(CodeMap& map, int (*in_child)(), std::uint64_t forks_max,
                           std::uint64_t each_of_last) {
    at_instruction = nullptr;
    CodeMap twin;
    scenario().prepare(twin);
    Step([&] { scenario().change(twin); });
    static constexpr std::uint64_t kStrides[] = {1, 3, 7, 13, 29, 59, 127, 251, 509, 1021, 2039, 4093};
    for (const std::uint64_t stride : kStrides) {
      stepped.fork_every = stride;
      if (instructions / stride <= forks_max) break;
    }
    stepped.fork_each_from = instructions - std::min(instructions, each_of_last);
    stepped.in_child = in_child;
    at_instruction = ForkAndUse;
    Step([&] { scenario().change(map); });
    at_instruction = nullptr;
    EXPECT_EQ(stepped.child_status, 0) << "after instruction " << instructions;
    EXPECT_GT(stepped.forks, 5u);
  }
};

// Proves: B2; tests 3 and 20 of the list
TEST_P(CodeMapScenarioTest, LookupsInASignalAtAnyInstructionOfAChange) {
  SCOPED_TRACE(scenario().name);
  CodeMap map;
  Prepare(map);
  at_instruction = LookUp;
  Step([&] { scenario().change(map); });
  EXPECT_EQ(stepped.wrong, 0u);
  EXPECT_GT(instructions, 100u);
  Answers now;
  now.Take(map);
  EXPECT_EQ(now, stepped.after);
}

// A fork takes its time: a prime number of instructions apart, all of them in a soak.
//
// Proves: B3; test 19 of the list
TEST_P(CodeMapScenarioTest, ForkAtAnyInstructionOfAChange) {
  SCOPED_TRACE(scenario().name);
  CodeMap map;
  Prepare(map);
  ForkDuringTheChange(map, UseMapInChild, IsSoak() ? 1u << 14 : kSanitized ? 20 : 150, kSanitized ? 0 : 60);
}

// Proves: B5; tests 19 and 22 of the list
TEST_P(CodeMapScenarioTest, ForkAndNoMemoryToMendTheMap) {
  SCOPED_TRACE(scenario().name);
  CodeMap map;
  Prepare(map);
  ForkDuringTheChange(map, UseMapInChildWithoutMemory, IsSoak() ? 500 : 12, 0);
}

INSTANTIATE_TEST_SUITE_P(Scenarios, CodeMapScenarioTest,
                         testing::Range(std::size_t{0}, Scenarios().size() - (IsSoak() ? 0 : 1)));

// A lookup that is stopped after one of its instructions, or after each, while the map changes.
struct Stopped {
  CodeMap* map = nullptr;
  std::uintptr_t pc = 0;
  std::uint64_t at = 0;  // 0: each instruction
  const std::function<void()>* change = nullptr;
  std::vector<CodeId> seen;  // all that the map said meanwhile, 0 for nothing

  void Saw() {
    CodeHit hit;
    const LookupResult result = map->Find(pc, &hit);  // in the middle of another one
    EXPECT_NE(result, LookupResult::kDeferred);
    seen.push_back(result == LookupResult::kFound ? hit.id : 0);
  }
};
Stopped* stopped = nullptr;

void ChangeMap() {
  if (stopped->at == 0 || stopped->at == instructions) (*stopped->change)();
}

// One of many small changes around the code at kBase, of which kBase + 50 is looked up, so that what a reader
// stands on is copied, and then used again for other code at the same offset of another cell.
void Churn(CodeMap& map, std::uintptr_t i) {
  switch (i % 4) {
    case 0:
      EXPECT_TRUE(map.RegisterOver(Code(kBase + 0x200 + i % 16, 16)).ok());
      break;
    case 1:
      EXPECT_TRUE(map.RegisterOver(Code(kBase + 0x10000 + 10 + i % 8, 100)).ok());
      break;
    case 2:
      EXPECT_EQ(map.UnregisterRange(kBase + 0x200, 0x40), 1u);
      break;
    default:
      EXPECT_TRUE(map.RegisterOver(Code(kBase + 0x10000 + 0x1000 - i % 64 * 8, 16)).ok());
  }
}

class CodeMapStoppedReaderTest : public CodeMapStepTest {
 protected:
  // For each instruction of a lookup of `pc`: prepares a new map and runs `change` when the lookup is there.
  // `saw` notes what the map says after a part of the change.
  using Change = std::function<void(CodeMap& map, const std::function<void()>& saw)>;
  void AtEachInstruction(std::uintptr_t pc, const std::function<void(CodeMap&)>& prepare,
                         const Change& change, std::uint64_t stride = 1) {
    if (IsSoak()) stride = 1;
    if (kSanitized) stride *= 5;
    std::uint64_t answered = 0, steps = 0;
    for (std::uint64_t at = 1;; at += stride, ++steps) {
      CodeMap map;
      prepare(map);
      Stopped here;
      const std::function<void()> saw = [&here] { here.Saw(); };
      const std::function<void()> change_here = [&] { change(map, saw); };
      here.map = &map;
      here.pc = pc;
      here.at = at;
      here.change = &change_here;
      here.seen.reserve(1000);
      here.Saw();
      stopped = &here;
      at_instruction = ChangeMap;
      CodeHit hit;
      LookupResult result = LookupResult::kDeferred;
      Step([&] { result = map.Find(pc, &hit); });
      at_instruction = nullptr;
      stopped = nullptr;
      if (instructions < at) break;
      if (result == LookupResult::kDeferred) continue;
      ++answered;
      const CodeId id = result == LookupResult::kFound ? hit.id : 0;
      ASSERT_NE(std::find(here.seen.begin(), here.seen.end(), id), here.seen.end())
          << "id " << id << ", changed after instruction " << at;
      if (id != 0) {
        CodeDescriptor code;
        ASSERT_TRUE(map.Describe(id, &code));
        ASSERT_EQ(hit.start, code.start);
        ASSERT_EQ(hit.size, code.size);
      }
    }
    EXPECT_GT(steps, 2u);
    EXPECT_EQ(answered, steps);  // one interruption costs one more attempt, not the answer
  }

  static void Prepare(CodeMap& map) {
    for (std::uintptr_t i = 0; i < 10; ++i) {
      EXPECT_TRUE(map.Register(Code(kBase + 0x1000 + i * 32, 16)).ok());
      EXPECT_TRUE(map.Register(Code(kBase + 0x11000 + i * 32, 16)).ok());
    }
    EXPECT_TRUE(map.Register(Code(kBase, 100)).ok());
  }
};

// The lookup goes on after 1, 2, 3 and many changes, with which a writer was done while it stood still.
//
// Proves: B3; tests 1, 4 and 12 of the list
TEST_F(CodeMapStoppedReaderTest, AnyNumberOfChangesFitIntoALookupAndNothingRecycledIsRead) {
  for (const std::uintptr_t changes : {1u, 2u, 3u, 20u, 60u, 200u}) {
    SCOPED_TRACE(changes);
    const std::uint64_t stride = changes < 20 ? 1 : changes / 5;
    AtEachInstruction(
        kBase + 50, Prepare,
        [&](CodeMap& map, const std::function<void()>& saw) {
          for (std::uintptr_t i = 0; i < changes; ++i) {
            Churn(map, i);
            saw();
          }
        },
        stride);
    // The code itself goes too, and its address is used again.
    AtEachInstruction(
        kBase + 50, Prepare,
        [&](CodeMap& map, const std::function<void()>& saw) {
          for (std::uintptr_t i = 0; i < changes; ++i) {
            if (i % 5 == 0) {
              EXPECT_TRUE(map.RegisterOver(Code(kBase + i % 32, 60)).ok());
            } else if (i % 5 == 1) {
              EXPECT_EQ(map.UnregisterRange(kBase + 50, 1), 1u);
            }
            saw();
            Churn(map, i);
            saw();
          }
        },
        stride);
  }
}

// Proves: B3; test 5 of the list
TEST_F(CodeMapStoppedReaderTest, StorageGrowsUnderALookup) {
  const auto grow = [](CodeMap& map, const std::function<void()>& saw) {
    for (std::uintptr_t i = 0; i < 700; i += 100) {  // more than one cell holds
      std::vector<CodeRegistration> codes;
      for (std::uintptr_t k = i; k < i + 100; ++k) codes.push_back(Code(kBase + 0x2000 + k * 64, 16));
      EXPECT_TRUE(map.RegisterBatch(codes.data(), codes.size(), nullptr).ok());
      saw();
    }
    EXPECT_TRUE(map.Register(Code(kBase - (std::uintptr_t{1} << 33), 0x30000)).ok());
    EXPECT_TRUE(map.Register(Code(kFar, 0x1000)).ok());
    saw();
  };
  AtEachInstruction(kBase + 50, Prepare, grow, 3);
  AtEachInstruction(kBase + 0x2000 + 350 * 64 + 5, Prepare, grow, 3);
  AtEachInstruction(kFar + 5, Prepare, grow, 3);
  AtEachInstruction(
      kFar + 5, [](CodeMap&) {}, grow, 3);
}

// A description is read while all that it is made of goes to others: the code, its record in the history, its
// page of ids, its texts and lines. It comes whole, or not at all.
//
// Proves: B3, B9
TEST_F(CodeMapStoppedReaderTest, ADescriptionIsOfTheIdThatWasAskedFor) {
  static constexpr CodeId kId = 3;
  static constexpr std::uint32_t kNumber = 7;  // of its code; those of the others are larger
  static constexpr CodeLine kLines[] = {{0, 11}, {8, 12}}, kOtherLines[] = {{0, 91}, {8, 92}};
  // Has the number in all that is described, or has no description but its size.
  const auto code_of = [](std::uintptr_t start, std::uint32_t number, bool described) {
    CodeRegistration code;
    code.start = start;
    code.size = 16 + number % 64;
    if (!described) return code;
    code.name = number == kNumber ? "this" : "another one";
    code.owner = number;
    code.source_line = number;
    code.lines = number == kNumber ? kLines : kOtherLines;
    return code;
  };
  // The code goes (1), is forgotten (2), others take its places (3), and so many come and go that its page of
  // ids is replaced (4).
  struct Run {
    int before, first, last;
  };
  const auto go = [&](CodeMap& map, int first, int last, bool described) {
    const auto does = [&](int what) { return first <= what && what <= last; };
    if (does(1)) {
      EXPECT_TRUE(map.Unregister(kId).ok());
    }
    if (does(2)) map.TrimHistory(map.epoch());
    for (std::uint32_t i = 0; does(3) && i < 40; ++i) {
      EXPECT_TRUE(map.RegisterOver(code_of(kBase + 0x118 - i % 4 * 8, 1000 + i, described)).ok());
      if (i % 3 == 0) map.TrimHistory(map.epoch());
    }
    if (!does(4)) return;
    std::vector<CodeRegistration> codes;
    for (std::uint32_t i = 0; i < 3000; ++i)
      codes.push_back(code_of(kBase + 0x10000 + i * 128u, 5000 + i, described));
    for (int round = 0; round < 2; ++round) {
      EXPECT_TRUE(map.RegisterBatch(codes.data(), codes.size(), nullptr).ok());
      EXPECT_EQ(map.UnregisterRange(kBase + 0x10000, 3000 * 128), 3000u);
      map.TrimHistory(map.epoch());
    }
  };
  for (const auto& [before, first, last] :
       {Run{0, 1, 1}, Run{0, 1, 2}, Run{0, 1, 3}, Run{0, 1, 4}, Run{1, 2, 3}, Run{1, 2, 4}, Run{0, 4, 4}}) {
    SCOPED_TRACE(testing::Message() << "after " << before << ": " << first << " to " << last);
    const bool stays = first > 2 || last < 2;
    std::uint64_t whole = 0, nothing = 0;
    const std::uint64_t stride = (IsSoak() ? 1 : last == 4 ? 37 : 5) * (kSanitized ? 7 : 1);
    std::uint64_t done = 0;
    // Describe, Frames, and Describe of code that has no description.
    for (std::uint64_t at = 1, what = 0; done != 7; what = (what + 1) % 3, at += what == 0 ? stride : 0) {
      if ((done >> what & 1) != 0) continue;
      const bool described = what != 2;
      CodeMap map;
      for (std::uintptr_t i = 0; i < 4; ++i) {
        ASSERT_TRUE(map.Register(code_of(kBase + i * 128, kNumber, described)).ok());
      }
      go(map, 1, before, described);
      const std::function<void()> change = [&, begin = first, end = last] { go(map, begin, end, described); };
      Stopped here;
      here.map = &map;
      here.at = at;
      here.change = &change;
      stopped = &here;
      at_instruction = ChangeMap;
      CodeDescriptor code;
      CodeFrame frame;
      bool found = false;
      Step([&] { found = what == 1 ? map.Frames(kId, 9, &frame, 1) == 1 : map.Describe(kId, &code); });
      at_instruction = nullptr;
      stopped = nullptr;
      if (instructions < at) done |= 1u << what;
      ++(found ? whole : nothing);
      if (!found) continue;
      if (what == 1) {
        ASSERT_EQ(frame.line, 12u) << at;
        continue;
      }
      ASSERT_EQ(code.start, kBase + (kId - 1) * 128) << at;
      ASSERT_EQ(code.size, 16 + kNumber) << at;
      ASSERT_EQ(code.birth, 1u + kId) << at;
      ASSERT_TRUE(code.death == 0 || code.death == 6) << at << " " << code.death;
      ASSERT_EQ(code.name, described ? "this" : "") << at;
      ASSERT_EQ(code.source_line, described ? kNumber : 0) << at;
      ASSERT_EQ(code.owner, described ? kNumber : 0) << at;
    }
    EXPECT_GT(whole, 0u);
    EXPECT_EQ(nothing == 0, stays) << nothing;
  }
}

// From nothing to the first code and back, under a lookup.
//
// Proves: B8; test 21 of the list
TEST_F(CodeMapStoppedReaderTest, TheMapComesToLifeAndEmptiesUnderALookup) {
  const auto come_and_go = [](CodeMap& map, const std::function<void()>& saw) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(map.Register(Code(kBase, 100)).ok());
      saw();
      EXPECT_EQ(map.UnregisterRange(kBase, 100), 1u);
      saw();
    }
  };
  AtEachInstruction(
      kBase + 50, [](CodeMap& map) { EXPECT_TRUE(map.Register(Code(kBase, 10)).ok()); },
      [&](CodeMap& map, const std::function<void()>& saw) {
        EXPECT_EQ(map.UnregisterRange(kBase, 100), 1u);
        saw();
        come_and_go(map, saw);
      });
  // At the first instructions the flag says that there is nothing; then that is the answer.
  AtEachInstruction(
      kBase + 50, [](CodeMap&) {}, come_and_go);
  AtEachInstruction(
      kBase + 50,
      [](CodeMap& map) {
        EXPECT_TRUE(map.Register(Code(kBase, 100)).ok());
        EXPECT_EQ(map.UnregisterRange(kBase, 100), 1u);
      },
      come_and_go);
}

// The map changes after each instruction of the lookup: it ends within its bound, however long that goes on.
//
// Proves: B2; test 27 of the list
TEST_F(CodeMapStoppedReaderTest, ALookupEndsWhateverWritersDo) {
  CodeMap map;
  Prepare(map);
  std::uintptr_t round = 0;
  const std::function<void()> change = [&] {
    for (int i = 0; i < 4; ++i) Churn(map, round++);
  };
  Stopped here;
  here.map = &map;
  here.change = &change;
  stopped = &here;
  at_instruction = ChangeMap;
  CodeHit hit;
  LookupResult result = LookupResult::kFound;
  Step([&] { result = map.Find(kBase + 50, &hit); });
  at_instruction = nullptr;
  stopped = nullptr;
  EXPECT_EQ(result, LookupResult::kDeferred);
  if (!kSanitized) {
    EXPECT_LE(instructions, 8u * 400);
  }
  EXPECT_GT(round, 100u);
}

// A cell that is filled again, as a reader that still stands on it sees it.
struct {
  const std::uint64_t* words;
  std::size_t count;
  std::vector<std::uint64_t> before, last;
  std::uint64_t unnoticed;  // instructions after which a word had changed and seq had not
  std::uint64_t late;       // after which a word changed that seq, even again, had vouched for
} refilled;

void CompareCell() {
  const std::uint64_t seq = refilled.words[0];
  bool changed = false;
  bool changing = false;
  for (std::size_t i = 1; i < refilled.count; ++i) {
    changed |= refilled.words[i] != refilled.before[i];
    changing |= refilled.words[i] != refilled.last[i];
    refilled.last[i] = refilled.words[i];
  }
  if (changed && seq == refilled.before[0]) ++refilled.unnoticed;
  if (changing && seq != refilled.before[0] && seq % 2 == 0) ++refilled.late;
}

// Proves: B3
TEST_F(CodeMapStepTest, SeqChangesBeforeAnyWordOfACellAndIsEvenAfterTheLast) {
  using namespace internal;
  CellPool pool;
  CellImage image;
  image.bounds = {};
  const auto fill = [&](Cell* cell, CodeId first_id) {
    image.count = 40;
    for (std::uint32_t i = 0; i < image.count; ++i) {
      image.entries[i] = {i * 32 + first_id, Payload(first_id + i, CodeKind::kJit, 16, false, false)};
    }
    cell->Fill(nullptr, image, nullptr);
  };
  Cell* const old = pool.Allocate(60);
  Cell* const cell = pool.Allocate(60);
  fill(old, 1);
  fill(cell, 7);
  refilled.words = reinterpret_cast<const std::uint64_t*>(cell);
  refilled.count = Cell::Lines(cell->side()->capacity_blocks) * kLineWords;
  refilled.before.assign(refilled.words, refilled.words + refilled.count);
  refilled.last = refilled.before;
  refilled.unnoticed = refilled.late = 0;
  image.count = 1;
  image.entries[0] = {0x7000, Payload(999, CodeKind::kJit, 16, false, false)};
  at_instruction = CompareCell;
  Step([&] { cell->Fill(old, image, nullptr); });
  EXPECT_EQ(refilled.unnoticed, 0u);
  EXPECT_EQ(refilled.late, 0u);
  EXPECT_EQ(cell->seq(), refilled.before[0] + 2);
  EXPECT_EQ(cell->count(), 41u);
}

// Counts the instructions of lookups, which does not depend on the machine: whatever is in the map they are
// few, and none is of another library: no allocation, no lock, no system call. An instruction of x86 that is
// used here loads once at most, so this is a bound on the loads too.
//
// Proves: B2; tests 14 and 27 of the list
TEST_F(CodeMapStepTest, InstructionsOfALookupAreBoundedAndItsOwn) {
  constexpr std::uint64_t kInstructionsMax = 400;
  CodeMap map;
  std::uint64_t most = 0;
  const auto count = [&](std::uintptr_t pc, LookupResult want) {
    CodeHit hit;
    LookupResult result = LookupResult::kDeferred;
    Step([&] { result = map.Find(pc, &hit); });
    EXPECT_EQ(result, want) << std::hex << pc;
    most = std::max(most, instructions);
    if (!kSanitized) {
      EXPECT_EQ(instructions_elsewhere, 0u);
      EXPECT_LE(instructions, kInstructionsMax) << std::hex << pc;
    }
  };
  count(kBase, LookupResult::kNone);
  ASSERT_TRUE(map.Register(Code(kBase, 16)).ok());
  count(kBase + 15, LookupResult::kFound);
  count(kBase + 16, LookupResult::kNone);
  // The fullest cell; then more, so that it splits; then bytes, so that it splits twice.
  for (std::uintptr_t i = 1; i < internal::kCellEntriesMax; ++i) {
    ASSERT_TRUE(map.Register(Code(kBase + i * 64, 16)).ok());
  }
  count(kBase + 64 * 300, LookupResult::kFound);
  count(kBase + 64 * 300 + 63, LookupResult::kNone);
  for (std::uintptr_t i = 1; i < 0x10000; i += 64) {
    for (std::uintptr_t k = 15; k < 63; ++k) (void)map.Register(Code(kBase + i + k, 1));
  }
  count(kBase + 64 * 300 + 17, LookupResult::kFound);
  count(kBase + 64 * 300 + 63, LookupResult::kFound);
  // Large code, crossing code, and the far regions, the last of as many as there can be.
  ASSERT_TRUE(map.Register(Code(kBase + 0x1ff00, 0x40000)).ok());
  count(kBase + 0x1ff80, LookupResult::kFound);
  count(kBase + 0x30000, LookupResult::kFound);
  count(kBase + 0x5fe00, LookupResult::kFound);
  for (std::uintptr_t region = 1; region <= 15; ++region) {
    ASSERT_TRUE(map.Register(Code(region << 47, 16)).ok());
  }
  count(std::uintptr_t{15} << 47, LookupResult::kFound);
  count(std::uintptr_t{16} << 47, LookupResult::kNone);
  // Everywhere in the densest code that there can be, and in code of random sizes; as many more ranges, of
  // which the bound must not know.
  std::mt19937 random(11);
  const auto count_any = [&](std::uintptr_t pc) {
    CodeHit hit;
    count(pc, map.Find(pc, &hit));
  };
  for (int i = 0; i < 300; ++i) count_any(kBase + random() % 0x10000);
  for (std::uintptr_t at = 0; at < 0x200000;) {
    const std::size_t size = 1 + random() % 300;
    ASSERT_TRUE(map.Register(Code(kBase + 0x1000000 + at, size)).ok());
    at += size;
  }
  EXPECT_GT(map.live_count(), 50'000u);
  for (int i = 0; i < 300; ++i) count_any(kBase + 0x1000000 + random() % 0x200000);
  RecordProperty("instructions_max", static_cast<int>(most));
  std::printf("instructions_max %d\n", static_cast<int>(most));
}

}  // namespace
}  // namespace stackpipe
