// SPDX-License-Identifier: MIT
//
// Lookups into which writers are let at each step, without threads: every interleaving here is one that a
// stopped thread or a signal can make, and it comes each time. The rule is always the same: the answer of a
// lookup is one that the map gave at some moment between the lookup's start and end, or "deferred".
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "code_map/map_state.h"
#include "code_map/radix.h"

namespace stackpipe::internal {
namespace {

constexpr std::uintptr_t kBase = 0x7f0000000000;

// Calls `at_step(step)` between the steps of a lookup, numbered from 0.
struct StepProbe {
  const std::function<void(int)>& at_step;
  int* step;
  void operator()() const { at_step((*step)++); }
};

class FindCodeTest : public testing::Test {
 protected:
  ~FindCodeTest() override { MapState::Destroy(map_); }

  CodeId Add(std::uintptr_t start, std::size_t size) {
    CodeRegistration code;
    code.start = start;
    code.size = size;
    CodeId id = 0;
    EXPECT_TRUE(map_->Register({&code, 1}, OnOverlap::kRefuse, ++epoch_, &id, nullptr).ok());
    Saw();
    return id;
  }
  CodeId AddOver(std::uintptr_t start, std::size_t size) {
    CodeRegistration code;
    code.start = start;
    code.size = size;
    CodeId id = 0;
    EXPECT_TRUE(map_->Register({&code, 1}, OnOverlap::kRetire, ++epoch_, &id, nullptr).ok());
    Saw();
    return id;
  }
  void Remove(CodeId id) {
    EXPECT_TRUE(map_->Unregister({&id, 1}, ++epoch_).ok());
    Saw();
  }
  CodeId Move(CodeId id, std::uintptr_t to) {
    const Result<CodeId> moved = map_->Move(id, to, ++epoch_);
    EXPECT_TRUE(moved.ok());
    Saw();
    return moved.value();
  }

  struct Answer {
    CodeId id = 0;
    std::uintptr_t start = 0;
    std::size_t size = 0;
    bool operator==(const Answer&) const = default;
  };
  Answer Ask(std::uintptr_t pc) {
    CodeHit hit;
    if (FindCode(map_->root(), pc, &hit, NoProbe{}) != LookupResult::kFound) return {};
    return {hit.id, hit.start, hit.size};
  }

  // Looks `pc` up with `at_step` between the steps; returns how many there were, or -1 after a failure.
  int Lookup(std::uintptr_t pc, const std::function<void(int)>& at_step) {
    pc_ = pc;
    seen_.clear();
    Saw();
    int steps = 0;
    CodeHit hit;
    const LookupResult result = FindCode(map_->root(), pc, &hit, StepProbe{at_step, &steps});
    deferred_ = result == LookupResult::kDeferred;
    if (deferred_) return steps;
    Answer answer;
    if (result == LookupResult::kFound) answer = {hit.id, hit.start, hit.size};
    const bool right = std::find(seen_.begin(), seen_.end(), answer) != seen_.end();
    EXPECT_TRUE(right) << "id " << answer.id << " at " << std::hex << answer.start << " for " << pc;
    return right ? steps : -1;
  }

  // Runs `prepare`, then looks up with `change` at step 0; the same with step 1, and so on, each on a new
  // map.
  void AtEachStep(std::uintptr_t pc, const std::function<void()>& prepare,
                  const std::function<void()>& change) {
    for (int at = 0;; ++at) {
      SCOPED_TRACE(testing::Message() << "change at step " << at);
      MapState::Destroy(map_);
      map_ = MapState::Create();
      prepare();
      const int steps = Lookup(pc, [&](int step) {
        if (step == at) change();
      });
      ASSERT_GE(steps, 0);
      EXPECT_FALSE(deferred_);  // one change costs one more attempt, not the answer
      if (at >= steps) return;
    }
  }

  // Notes what the map says now about the pc that is being looked up.
  void Saw() {
    if (pc_ != 0) seen_.push_back(Ask(pc_));
  }

  MapState* map_ = MapState::Create();
  CodeEpoch epoch_ = 1;
  std::uintptr_t pc_ = 0;
  std::vector<Answer> seen_;
  bool deferred_ = false;
};

TEST_F(FindCodeTest, RemoveUnderALookup) {
  CodeId id = 0, other = 0;
  AtEachStep(
      kBase + 50,
      [&] {
        id = Add(kBase, 100);
        other = Add(kBase + 1000, 100);
      },
      [&] { Remove(id); });
  AtEachStep(
      kBase + 50, [&] { id = Add(kBase, 100); }, [&] { Remove(id); });
  (void)other;
}

// Proves: B7; test 4 of the list
TEST_F(FindCodeTest, ReuseOfTheAddressUnderALookup) {
  CodeId id = 0;
  const auto prepare = [&] {
    Add(kBase + 0x1000, 10);
    id = Add(kBase, 100);
    Add(kBase + 200, 10);
  };
  AtEachStep(kBase + 50, prepare, [&] {  // in place
    Remove(id);
    Add(kBase, 60);
  });
  AtEachStep(kBase + 50, prepare, [&] {  // another start
    Remove(id);
    Add(kBase + 40, 60);
  });
  AtEachStep(kBase + 50, prepare, [&] { AddOver(kBase + 10, 80); });
  AtEachStep(kBase + 50, prepare, [&] { Move(id, kBase + 45); });
}

// Proves: B3; test 5 of the list
TEST_F(FindCodeTest, AppendUnderALookup) {
  for (const std::uintptr_t count : {1u, 5u, 6u, 7u, 11u, 12u}) {
    const std::uintptr_t end = kBase + count * 16;
    AtEachStep(
        end + 8,
        [&] {
          for (std::uintptr_t i = 0; i < count; ++i) Add(kBase + i * 16, 16);
        },
        [&] { Add(end, 16); });
    // A reader of the last range of the cell is not confused by what comes behind it.
    AtEachStep(
        0x7f000000ffff,
        [&] {
          for (std::uintptr_t i = 0; i < count; ++i) Add(kBase + i * 16, 16);
        },
        [&] {
          Add(end, 16);
          Add(kBase + 0xfff0, 16);
        });
  }
}

TEST_F(FindCodeTest, FirstCodeOfATableUnderALookup) {
  AtEachStep(
      kBase + 50, [] {}, [&] { Add(kBase, 100); });
  AtEachStep(
      0xffffffff81000010, [&] { Add(kBase, 100); }, [&] { Add(0xffffffff81000000, 100); });
}

// Proves: B3; test 5 of the list
TEST_F(FindCodeTest, SplitUnderALookup) {
  for (const std::uintptr_t pc : {kBase + 3 * 64 + 1, kBase + 0xf001, kBase - 0x10}) {
    AtEachStep(
        pc,
        [&] {
          Add(kBase - 0x100, 0x180);  // crosses into the cell
          for (std::uintptr_t i = 2; i < kCellEntriesMax; ++i) Add(kBase + i * 64, 64);
        },
        [&] {
          Add(kBase + 0xfff0, 0x100);
          Add(kBase + 0xf000, 10);
        });
  }
}

TEST_F(FindCodeTest, LargeRangesComeAndGoUnderALookup) {
  CodeId id = 0;
  for (const std::uintptr_t pc : {kBase + 0x50000, kBase + 0x8010, kBase + 0x90000}) {
    AtEachStep(
        pc,
        [&] {
          Add(kBase, 16);
          id = Add(kBase + 0x8000, 0x88100);
        },
        [&] {
          Remove(id);
          Add(kBase + 0x7000, 0x20000);
          Add(kBase + 0x40000, 0x60000);
        });
  }
}

// A reader that is stopped for long: every cell that it saw has been used again many times over.
//
// Proves: B3; tests 1 and 4 of the list
TEST_F(FindCodeTest, RecycledCellsAreNeverRead) {
  CodeId id = 0;
  const auto prepare = [&] {
    for (std::uintptr_t i = 0; i < 10; ++i) Add(kBase + 0x1000 + i * 32, 16);
    id = Add(kBase, 100);
  };
  const auto churn = [&](int changes) {
    // The same size of cell, with other code at the same offset, for another span of addresses.
    for (int i = 0; i < changes; ++i) {
      const CodeId here = Add(kBase + 0x200, 16);
      const CodeId there = Add(kBase + 0x10000 + 10, 100);
      Remove(here);
      for (std::uintptr_t k = 0; k < 10; ++k) AddOver(kBase + 0x10000 + 0x1000 - k * 32 - (i & 1), 16);
      Remove(there);
    }
  };
  AtEachStep(kBase + 50, prepare, [&] { churn(40); });
  AtEachStep(kBase + 50, prepare, [&] {
    churn(40);
    Remove(id);
    churn(40);
    Add(kBase + 20, 40);
    churn(40);
  });
}

// The map changes at each step of the reader: it must give up after its bound, and be right until then.
//
// Proves: B2; test 27 of the list
TEST_F(FindCodeTest, StepsAreBoundedWhateverWritersDo) {
  Add(kBase, 100);
  for (std::uintptr_t i = 0; i < 20; ++i) Add(kBase + 0x1000 + i * 32, 16);
  CodeId id = Add(kBase + 200, 50);
  const int steps = Lookup(kBase + 50, [&](int) {
    for (int i = 0; i < 20; ++i) {
      Remove(id);
      id = Add(kBase + 200 + static_cast<std::uintptr_t>(i), 50);
    }
  });
  EXPECT_TRUE(deferred_);
  EXPECT_GT(steps, 0);
  EXPECT_LE(steps, kFindAttempts * 12);
}

// A lookup inside a lookup, as when a signal comes during a walk.
//
// Proves: B2; test 12 of the list
TEST_F(FindCodeTest, LookupsNest) {
  const CodeId id = Add(kBase, 100);
  const CodeId other = Add(kBase + 100, 100);
  const int steps = Lookup(kBase + 50, [&](int) {
    EXPECT_EQ(Ask(kBase + 150).id, other);
    EXPECT_EQ(Ask(kBase + 50).id, id);
    EXPECT_EQ(Ask(kBase + 250).id, 0u);
  });
  EXPECT_GT(steps, 5);
}

TEST_F(FindCodeTest, RandomChangesAtRandomSteps) {
  constexpr std::uintptr_t kSpan = 0x28000;
  std::mt19937 random(7);
  const auto below = [&](unsigned limit) {
    return std::uniform_int_distribution<unsigned>(0, limit - 1)(random);
  };
  struct Range {
    CodeId id;
    std::uintptr_t start;
    std::size_t size;
  };
  std::vector<Range> live;
  const auto some_place = [&] { return kBase + 0x8000 + below(kSpan) / 16 * 16; };
  const auto change = [&] {
    if (live.size() > 200 || (!live.empty() && below(2) == 0)) {
      const std::size_t at = below(static_cast<unsigned>(live.size()));
      Remove(live[at].id);
      live[at] = live.back();
      live.pop_back();
      return;
    }
    Range range{0, some_place(), 1 + below(below(10) == 0 ? 0x18000 : 0x200)};
    std::erase_if(live, [&](const Range& other) {
      return other.start < range.start + range.size && range.start < other.start + other.size;
    });
    range.id = AddOver(range.start, range.size);
    live.push_back(range);
  };
  for (int i = 0; i < 100; ++i) change();
#if defined(__SANITIZE_THREAD__)
  constexpr int kLookups = 4'000;
#else
  constexpr int kLookups = 20'000;
#endif
  int answered = 0;
  for (int i = 0; i < kLookups; ++i) {
    const unsigned busy = 1 + below(30);  // how rarely something happens at a step
    ASSERT_GE(Lookup(some_place() + below(0x100),
                     [&](int) {
                       if (below(busy) != 0) return;
                       for (unsigned k = below(40); k > 0; --k) change();
                     }),
              0);
    answered += deferred_ ? 0 : 1;
  }
  EXPECT_GT(answered, kLookups / 2);
}

}  // namespace
}  // namespace stackpipe::internal
