// SPDX-License-Identifier: MIT
//
// Changes of a CodeMap run one instruction at a time, with the processor's trap flag: after each instruction
// a signal handler looks code up, or forks and uses the map in the child. And lookups run so, counted.
//
// Not for ThreadSanitizer, which delays signals.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "code_map/cell_pool.h"
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
  };
  return all;
}

// What the map says at some places.
constexpr std::size_t kProbes = 48;
std::uintptr_t ProbeAt(std::size_t i) {
  if (i < 40) return kBase + 0x100 + i * 20;
  static constexpr std::uintptr_t kMore[] = {0x80,    0x1010,  0x4001,  0x9000,
                                             0x15000, 0x20003, 0x30000, 0x3ffff};
  return kBase + kMore[i - 40];
}
struct Answers {
  CodeId id[kProbes] = {};
  std::size_t live = 0;
  CodeEpoch epoch = 0;

  void Take(const CodeMap& map) {
    for (std::size_t i = 0; i < kProbes; ++i) {
      CodeHit hit;
      id[i] = map.Find(ProbeAt(i), &hit) == LookupResult::kFound ? hit.id : 0;
    }
    live = map.live_count();
    epoch = map.epoch();
  }
  bool operator==(const Answers&) const = default;
};

// The handlers' view of the change that is being stepped through.
struct {
  CodeMap* map;
  Answers before, after;
  std::uint64_t wrong;
  std::uint64_t fork_every;
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
    if (!right) ++stepped.wrong;
  }
}

// Runs in the child, in the handler, where the change stopped for ever. Returns the number of the first check
// that failed.
int UseMapInChild() {
  CodeMap& map = *stepped.map;
  LookUp();
  if (stepped.wrong != 0) return 1;
  Answers seen;
  seen.Take(map);
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
  // What was gone before the change is still known, or forgotten.
  if (map.LookupAt(ProbeAt(2), stepped.before.epoch - 1, &hit) && ProbeAt(2) - hit.start >= hit.size)
    return 6;
  // And it goes on.
  const Result<CodeId> id = map.Register(Code(kBase + 0x70000, 0x100, 9, "of the child"));
  if (!id.ok()) return 7;
  for (std::size_t i = 0; i < kProbes; ++i) {
    if (id.value() == seen.id[i] || id.value() == now.id[i]) return 8;  // no id twice, if a lookup saw it
  }
  if (!map.Lookup(kBase + 0x70010, &hit) || hit.id != id.value()) return 9;
  if (map.live_count() != now.live + 1) return 10;
  if (map.UnregisterOwner(9) != 1) return 11;
  if (map.Lookup(kBase + 0x70010, &hit)) return 12;
  if (map.UnregisterRange(kBase, 0x100000) != now.live) return 13;
  if (map.live_count() != 0) return 14;
  return 0;
}

void ForkAndUse() {
  if (instructions % stepped.fork_every != 0 || stepped.child_status != 0) return;
  ++stepped.forks;
  const pid_t child = _Fork();
  if (child == 0) _exit(UseMapInChild());
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
    scenario().change(twin);
    stepped.after.Take(twin);
    scenario().prepare(map);
    stepped.map = &map;
  }
};

// Proves: B2
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

// Proves: B3
TEST_P(CodeMapScenarioTest, ForkAtAnyInstructionOfAChange) {
  SCOPED_TRACE(scenario().name);
  CodeMap map;
  Prepare(map);
  at_instruction = nullptr;
  CodeMap twin;
  scenario().prepare(twin);
  Step([&] { scenario().change(twin); });
  // A fork takes its time: a prime number of instructions apart, all of them in a soak.
  static constexpr std::uint64_t kStrides[] = {1, 3, 7, 13, 29, 59, 127, 251, 509, 1021, 2039, 4093};
  const std::uint64_t forks_max = std::getenv("STACKPIPE_SOAK") != nullptr ? 1u << 20 : kSanitized ? 20 : 250;
  stepped.fork_every = 1;
  for (const std::uint64_t stride : kStrides) {
    stepped.fork_every = stride;
    if (instructions / stride <= forks_max) break;
  }
  at_instruction = ForkAndUse;
  Step([&] { scenario().change(map); });
  EXPECT_EQ(stepped.child_status, 0) << "after instruction " << instructions;
  EXPECT_GT(stepped.forks, 5u);
}

INSTANTIATE_TEST_SUITE_P(Scenarios, CodeMapScenarioTest, testing::Range(std::size_t{0}, Scenarios().size()));

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
// few, and none is of another library: no allocation, no lock, no system call.
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
  RecordProperty("instructions_max", static_cast<int>(most));
  std::printf("instructions_max %d\n", static_cast<int>(most));
}

}  // namespace
}  // namespace stackpipe
