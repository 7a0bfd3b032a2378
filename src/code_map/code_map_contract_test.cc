// SPDX-License-Identifier: MIT
//
// What a map from addresses to code should do, asked of three: ours, the obvious one (a std::map and a mutex)
// and a model of the one that this project began from. Each says which of the properties it has, and the
// tests hold it to that: a property that it is said to lack must be missing.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <vector>

#include "code_map/map_state.h"
#include "code_map/page_memory.h"
#include "code_map/reference_map.h"
#include "code_map/seed_map_model.h"
#include "stackpipe/code_map.h"

namespace stackpipe {
namespace {

constexpr std::uintptr_t kBase = 0x7f0000000000;

enum class Property {
  kRefusesOverlap,
  kRefusesUnknownRemoval,
  kAnswerOutlivesTheCode,
  kResolvesOldSamples,
  kWriterFinishesWhileAReaderIsStopped,
  kWriterFinishesUnderOverlappingReaders,
  kLookupWhileTheWritersLockIsHeld,
  kUsableAfterForkAmidAChange,
  kUnchangedWithoutMemory,
};

using Hook = std::function<void()>;

class Ours {
 public:
  static bool Has(Property) { return true; }

  CodeId Register(std::uintptr_t start, std::size_t size) {
    CodeRegistration code;
    code.start = start;
    code.size = size;
    return map_.Register(code).value();
  }
  bool Unregister(CodeId id) { return map_.Unregister(id).ok(); }
  bool Lookup(std::uintptr_t pc, CodeHit* out) { return map_.Lookup(pc, out); }
  bool LookupAt(std::uintptr_t pc, CodeEpoch epoch, CodeHit* out) { return map_.LookupAt(pc, epoch, out); }
  CodeEpoch epoch() { return map_.epoch(); }

  // The answer to a lookup before, asked for its id after the code was unregistered and freed.
  CodeId IdAfterUnregister(std::uintptr_t pc, CodeId id) {
    CodeHit hit;
    EXPECT_TRUE(map_.Lookup(pc, &hit));
    EXPECT_TRUE(map_.Unregister(id).ok());
    return hit.id;
  }
  // Looks up with `inside` in the middle.
  bool LookupWith(std::uintptr_t pc, CodeHit* out, const Hook& inside) {
    struct Probe {
      const Hook& hook;
      void operator()() const { hook(); }
    };
    internal::MapState* state = internal::MapState::Create();
    CodeRegistration code;
    code.start = pc;
    code.size = 1;
    CodeId id = 0;
    CodeEpoch epoch = 1;
    EXPECT_TRUE(state->Register({&code, 1}, internal::OnOverlap::kRefuse, ++epoch, &id, nullptr).ok());
    state_ = state;
    state_epoch_ = &epoch;
    const bool found = internal::FindCode(state->root(), pc, out, Probe{inside}) == LookupResult::kFound;
    state_ = nullptr;
    internal::MapState::Destroy(state);
    return found;
  }
  // From inside of LookupWith: a change of the map that is being looked up in. False: it would never end.
  bool ChangeWhileLookedUp() {
    CodeRegistration code;
    code.start = kBase + 0x500;
    code.size = 16;
    CodeId id = 0;
    return state_->Register({&code, 1}, internal::OnOverlap::kRefuse, ++*state_epoch_, &id, nullptr).ok() &&
           state_->Unregister({&id, 1}, ++*state_epoch_).ok();
  }
  // A change that calls `inside` while it holds the writers' lock.
  void ChangeWith(std::uintptr_t start, const Hook& inside) {
    CodeRegistration code;
    code.start = start;
    code.size = 16;
    ASSERT_TRUE(map_.Register(code).ok());
    const CodeRetiredVisitor visitor{
        [](void* hook, CodeId, const CodeDescriptor&) { (*static_cast<const Hook*>(hook))(); },
        const_cast<Hook*>(&inside)};
    ASSERT_TRUE(map_.RegisterOver(code, &visitor).ok());
  }
  bool LookupWouldWait() { return false; }
  bool WriterWouldWait() { return false; }
  // Registers with the nth allocation failing, for all n; false: something was changed or worse.
  bool RegisterWithoutMemory(std::uintptr_t start, std::size_t size) {
    for (int allowed = 0;; ++allowed) {
      CodeRegistration code;
      code.start = start;
      code.size = size;
      code.name = "a name that has to be stored";
      internal::FailAllocationsForTest(allowed);
      const Result<CodeId> id = map_.Register(code);
      internal::FailAllocationsForTest(-1);
      if (id.ok()) return allowed > 1;
      CodeHit hit;
      if (map_.Lookup(start, &hit)) return false;
    }
  }

 private:
  CodeMap map_;
  internal::MapState* state_ = nullptr;
  CodeEpoch* state_epoch_ = nullptr;
};

class Obvious {
 public:
  static bool Has(Property property) {
    return property != Property::kWriterFinishesWhileAReaderIsStopped &&
           property != Property::kWriterFinishesUnderOverlappingReaders &&
           property != Property::kLookupWhileTheWritersLockIsHeld &&
           property != Property::kUsableAfterForkAmidAChange;
  }

  CodeId Register(std::uintptr_t start, std::size_t size) {
    const std::lock_guard lock(mutex_);
    if (map_.Overlaps(start, size)) return 0;
    map_.Register(start, size, next_id_, 0);
    start_of_[next_id_] = start;
    return next_id_++;
  }
  bool Unregister(CodeId id) {
    const std::lock_guard lock(mutex_);
    const auto it = start_of_.find(id);
    if (it == start_of_.end()) return false;
    map_.Unregister({it->second});
    start_of_.erase(it);
    return true;
  }
  bool Lookup(std::uintptr_t pc, CodeHit* out) {
    const std::lock_guard lock(mutex_);
    return Copy(map_.Lookup(pc), out);
  }
  bool LookupAt(std::uintptr_t pc, CodeEpoch epoch, CodeHit* out) {
    const std::lock_guard lock(mutex_);
    return Copy(map_.LookupAt(pc, epoch), out);
  }
  CodeEpoch epoch() { return map_.epoch(); }

  CodeId IdAfterUnregister(std::uintptr_t pc, CodeId id) {
    CodeHit hit;
    EXPECT_TRUE(Lookup(pc, &hit));
    EXPECT_TRUE(Unregister(id));
    return hit.id;
  }
  bool LookupWith(std::uintptr_t pc, CodeHit* out, const Hook& inside) {
    Register(pc, 1);
    ChangeWith(pc, inside);
    return Lookup(pc, out);
  }
  bool ChangeWhileLookedUp() { return !held_; }
  void ChangeWith(std::uintptr_t, const Hook& inside) {
    const std::lock_guard lock(mutex_);
    held_ = true;
    inside();
    held_ = false;
  }
  bool LookupWouldWait() { return held_; }
  bool WriterWouldWait() { return held_; }
  // An allocation that fails ends the change, and the program: nothing has changed, at least.
  bool RegisterWithoutMemory(std::uintptr_t start, std::size_t size) { return Register(start, size) != 0; }

 private:
  static bool Copy(const std::optional<ReferenceMap::Range>& range, CodeHit* out) {
    if (range) *out = {range->id, CodeKind::kUnknown, range->start, range->size};
    return range.has_value();
  }
  std::mutex mutex_;
  bool held_ = false;  // during a hook, where the answer to "is the mutex free?" is known
  ReferenceMap map_;
  std::map<CodeId, std::uintptr_t> start_of_;
  CodeId next_id_ = 1;
};

class Seed {
 public:
  // What it was found to lack: it trusts its callers, hands out pointers, knows no past, waits for readers,
  // and has a lock and a counter that a child inherits as they are.
  static bool Has(Property property) { return property == Property::kLookupWhileTheWritersLockIsHeld; }

  CodeId Register(std::uintptr_t start, std::size_t size) {
    segments_.push_back(std::make_unique<SeedSegment>(SeedSegment{start, size, next_id_}));
    if (!map_.Insert(segments_.back().get())) return 0;
    return next_id_++;
  }
  bool Unregister(CodeId id) {
    // It is handed the segment; one that was removed before is removed again, or another one in its place.
    for (const auto& segment : segments_) {
      if (segment->id != id) continue;
      if (removed_.insert(id).second) map_.Remove(segment.get());
      return true;
    }
    return true;
  }
  bool Lookup(std::uintptr_t pc, CodeHit* out) { return Copy(map_.Lookup(pc), out); }
  bool LookupAt(std::uintptr_t pc, CodeEpoch, CodeHit* out) { return Lookup(pc, out); }
  CodeEpoch epoch() { return 0; }

  CodeId IdAfterUnregister(std::uintptr_t pc, CodeId id) {
    const SeedSegment* found = map_.Lookup(pc);
    Unregister(id);
    for (const auto& segment : segments_) {
      if (segment->id == id)
        segment->id = 0xdddddddd;  // the owner frees it; its memory becomes something else
    }
    return found->id;
  }
  bool LookupWith(std::uintptr_t pc, CodeHit* out, const Hook& inside) {
    Register(pc, 1);
    return Copy(map_.Lookup(pc, inside), out);
  }
  bool ChangeWhileLookedUp() {
    segments_.push_back(std::make_unique<SeedSegment>(SeedSegment{kBase + 0x500, 16, next_id_++}));
    int rounds = 0;
    map_.Insert(segments_.back().get(), [&] {
      if (++rounds == 1000) map_.GiveUpWaiting();
    });
    return rounds < 1000;
  }
  void ChangeWith(std::uintptr_t, const Hook& inside) {
    const std::lock_guard lock(map_.mutators_mutex());
    held_ = true;
    inside();
    held_ = false;
  }
  bool LookupWouldWait() { return false; }
  bool WriterWouldWait() { return held_; }
  bool RegisterWithoutMemory(std::uintptr_t start, std::size_t size) {
    for (int nth = 1;; ++nth) {
      map_.FailInsertIntoVector(nth);
      const CodeId id = Register(start, size);
      map_.FailInsertIntoVector(0);
      if (map_.crashed()) return false;
      if (id != 0) return true;
    }
  }

 private:
  static bool Copy(const SeedSegment* segment, CodeHit* out) {
    if (segment != nullptr) *out = {segment->id, segment->kind, segment->start, segment->size};
    return segment != nullptr;
  }

  SeedMapModel map_;
  bool held_ = false;  // as above
  std::vector<std::unique_ptr<SeedSegment>> segments_;
  std::set<CodeId> removed_;
  CodeId next_id_ = 1;
};

template <typename Map>
class CodeMapContractTest : public testing::Test {
 protected:
  void ExpectAsSaid(Property property, bool holds) { EXPECT_EQ(holds, Map::Has(property)); }
  CodeId IdAt(std::uintptr_t pc) {
    CodeHit hit;
    return map_.Lookup(pc, &hit) ? hit.id : 0;
  }

  Map map_;
};

using Maps = testing::Types<Ours, Obvious, Seed>;
TYPED_TEST_SUITE(CodeMapContractTest, Maps);

TYPED_TEST(CodeMapContractTest, EachByteResolvesAfterAnyMixOfChanges) {
  std::mt19937 random(3);
  std::map<std::uintptr_t, std::pair<std::size_t, CodeId>> live;
  for (int i = 0; i < 2000; ++i) {
    const std::uintptr_t start = kBase + random() % 0x400 * 64;
    const auto there = live.find(start);
    if (there == live.end()) {
      const std::size_t size = 1 + random() % 64;
      const CodeId id = this->map_.Register(start, size);
      ASSERT_NE(id, 0u);
      live[start] = {size, id};
    } else {
      ASSERT_TRUE(this->map_.Unregister(there->second.second));
      live.erase(there);
    }
  }
  for (std::uintptr_t pc = kBase - 64; pc < kBase + 0x10040; ++pc) {
    const auto it = live.find(pc & ~std::uintptr_t{63});
    const bool inside = it != live.end() && pc - it->first < it->second.first;
    ASSERT_EQ(this->IdAt(pc), inside ? it->second.second : 0) << std::hex << pc;
  }
}

TYPED_TEST(CodeMapContractTest, LargeCodeResolvesAndItsNeighboursToo) {
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  const CodeId before = this->map_.Register(kBase - 1, 1);
  const CodeId large = this->map_.Register(kBase, kGiB);
  const CodeId behind = this->map_.Register(kBase + kGiB, 1);
  EXPECT_EQ(this->IdAt(kBase - 1), before);
  EXPECT_EQ(this->IdAt(kBase), large);
  EXPECT_EQ(this->IdAt(kBase + kGiB / 3), large);
  EXPECT_EQ(this->IdAt(kBase + kGiB - 1), large);
  EXPECT_EQ(this->IdAt(kBase + kGiB), behind);
  EXPECT_EQ(this->IdAt(kBase + kGiB + 1), 0u);
}

TYPED_TEST(CodeMapContractTest, RefusesOverlap) {
  this->map_.Register(kBase, 100);
  this->ExpectAsSaid(Property::kRefusesOverlap, this->map_.Register(kBase + 99, 100) == 0);
}

TYPED_TEST(CodeMapContractTest, RefusesToRemoveTheUnknown) {
  const CodeId id = this->map_.Register(kBase, 100);
  ASSERT_TRUE(this->map_.Unregister(id));
  this->ExpectAsSaid(Property::kRefusesUnknownRemoval,
                     !this->map_.Unregister(id) && !this->map_.Unregister(99));
}

// Proves: B7
TYPED_TEST(CodeMapContractTest, TheAnswerOutlivesTheCode) {
  const CodeId id = this->map_.Register(kBase, 100);
  this->ExpectAsSaid(Property::kAnswerOutlivesTheCode, this->map_.IdAfterUnregister(kBase + 5, id) == id);
}

// Proves: B7
TYPED_TEST(CodeMapContractTest, ResolvesOldSamples) {
  const CodeId old = this->map_.Register(kBase, 100);
  const CodeEpoch epoch = this->map_.epoch();
  ASSERT_TRUE(this->map_.Unregister(old));
  this->map_.Register(kBase + 10, 100);
  CodeHit hit;
  this->ExpectAsSaid(Property::kResolvesOldSamples,
                     this->map_.LookupAt(kBase + 50, epoch, &hit) && hit.id == old);
}

// Proves: B3
TYPED_TEST(CodeMapContractTest, AWriterFinishesWhileAReaderIsStopped) {
  bool finished = true;
  int calls = 0;
  CodeHit hit;
  EXPECT_TRUE(this->map_.LookupWith(kBase, &hit, [&] {
    if (calls++ == 0) finished = this->map_.ChangeWhileLookedUp();
  }));
  this->ExpectAsSaid(Property::kWriterFinishesWhileAReaderIsStopped, finished);
}

// While the writer waits, readers come and go, but there is always one: here a second one that begins before
// the first has ended.
TYPED_TEST(CodeMapContractTest, AWriterFinishesUnderOverlappingReaders) {
  bool finished = true;
  int calls = 0;
  CodeHit hit;
  this->map_.LookupWith(kBase, &hit, [&] {
    if (calls++ != 0) return;
    for (int i = 0; i < 100 && !this->map_.WriterWouldWait(); ++i) this->IdAt(kBase);
    finished = this->map_.ChangeWhileLookedUp();
  });
  this->ExpectAsSaid(Property::kWriterFinishesUnderOverlappingReaders, finished);
}

// Proves: B2
TYPED_TEST(CodeMapContractTest, ALookupNeedsNotTheWritersLock) {
  const CodeId id = this->map_.Register(kBase + 0x1000, 100);
  bool found = false;
  this->map_.ChangeWith(kBase,
                        [&] { found = !this->map_.LookupWouldWait() && this->IdAt(kBase + 0x1000) == id; });
  this->ExpectAsSaid(Property::kLookupWhileTheWritersLockIsHeld, found);
}

TYPED_TEST(CodeMapContractTest, AChildForkedAmidAChangeGoesOn) {
  const CodeId id = this->map_.Register(kBase + 0x1000, 100);
  int status = -1;
  this->map_.ChangeWith(kBase, [&] {
    const pid_t child = _Fork();
    if (child == 0) {
      if (this->map_.WriterWouldWait()) _exit(1);
      const CodeId other = this->map_.Register(kBase + 0x2000, 100);
      if (this->IdAt(kBase + 0x1000) != id || other == 0 || this->IdAt(kBase + 0x2000) != other) _exit(2);
      if (!this->map_.Unregister(id) || this->IdAt(kBase + 0x1000) != 0) _exit(3);
      _exit(0);
    }
    waitpid(child, &status, 0);
  });
  this->ExpectAsSaid(Property::kUsableAfterForkAmidAChange, WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Proves: B5
TYPED_TEST(CodeMapContractTest, WithoutMemoryTheMapIsUnchanged) {
  const bool unchanged = this->map_.RegisterWithoutMemory(kBase + 0x8000, 0x40000);
  this->ExpectAsSaid(Property::kUnchangedWithoutMemory, unchanged);
  if (unchanged) {
    EXPECT_NE(this->IdAt(kBase + 0x8000), 0u);
  }
}

}  // namespace
}  // namespace stackpipe
