// SPDX-License-Identifier: MIT
//
// What a map from addresses to code should do, asked of three: ours, the obvious one (a std::map and a mutex)
// and a model of the one that this project began from. Each says which of the properties it has, and the
// tests hold it to that: a property that it is said to lack must be missing.
//
// Whether somebody would wait for ever is not guessed from the time: who waits is called back in each round,
// and readers only leave when the test lets them.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <semaphore>
#include <set>
#include <thread>
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
  kUsableAfterForkAmidALookup,
  kUnchangedWithoutMemory,
};

using Hook = std::function<void()>;

class Ours {
 public:
  static bool Has(Property) { return true; }

  Ours() {
    CodeRegistration code;
    code.start = kBase;
    code.size = 1;
    EXPECT_TRUE(
        probed_->Register({&code, 1}, internal::OnOverlap::kRefuse, ++probed_epoch_, nullptr, nullptr).ok());
  }
  ~Ours() { internal::MapState::Destroy(probed_); }
  Ours(const Ours&) = delete;
  Ours& operator=(const Ours&) = delete;

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
  // Looks kBase up with `inside` in the middle; true: found. May run in several threads.
  bool LookupWith(const Hook& inside) {
    struct Probe {
      const Hook& hook;
      bool* called;
      void operator()() const {
        if (!*called) hook();
        *called = true;
      }
    };
    bool called = false;
    CodeHit hit;
    return internal::FindCode(probed_->root(), kBase, &hit, Probe{inside, &called}) == LookupResult::kFound;
  }
  // A change of the map that LookupWith looks in. `waiting` is called again and again while it has to wait.
  void ChangeWhileLookedUp(const Hook&) {
    CodeRegistration code;
    code.start = kBase + 0x500;
    code.size = 16;
    CodeId id = 0;
    EXPECT_TRUE(
        probed_->Register({&code, 1}, internal::OnOverlap::kRefuse, ++probed_epoch_, &id, nullptr).ok());
    EXPECT_TRUE(probed_->Unregister({&id, 1}, ++probed_epoch_).ok());
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
  // Another map, with a seam in its lookups, that holds a byte at kBase.
  internal::MapState* probed_ = internal::MapState::Create();
  CodeEpoch probed_epoch_ = 1;
};

// Says whether a mutex is held, by this thread too: a lock that is tried by its holder fails, where a
// std::mutex would be undefined.
bool IsHeld(std::mutex& mutex) {
  pthread_mutex_t* const native = mutex.native_handle();
  if (pthread_mutex_trylock(native) != 0) return true;
  pthread_mutex_unlock(native);
  return false;
}

class Obvious {
 public:
  static bool Has(Property property) {
    return property != Property::kWriterFinishesWhileAReaderIsStopped &&
           property != Property::kWriterFinishesUnderOverlappingReaders &&
           property != Property::kLookupWhileTheWritersLockIsHeld &&
           property != Property::kUsableAfterForkAmidAChange &&
           property != Property::kUsableAfterForkAmidALookup;
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
  bool LookupWith(const Hook& inside) {
    const std::lock_guard lock(mutex_);
    inside();
    return map_.Lookup(kBase).has_value();
  }
  void ChangeWhileLookedUp(const Hook& waiting) {
    while (IsHeld(mutex_)) waiting();
    Unregister(Register(kBase + 0x500, 16));
  }
  void ChangeWith(std::uintptr_t, const Hook& inside) {
    const std::lock_guard lock(mutex_);
    inside();
  }
  bool LookupWouldWait() { return IsHeld(mutex_); }
  bool WriterWouldWait() { return IsHeld(mutex_); }
  // An allocation that fails ends the change, and the program: nothing has changed, at least.
  bool RegisterWithoutMemory(std::uintptr_t start, std::size_t size) { return Register(start, size) != 0; }

 private:
  static bool Copy(const std::optional<ReferenceMap::Range>& range, CodeHit* out) {
    if (range) *out = {range->id, CodeKind::kUnknown, range->start, range->size};
    return range.has_value();
  }
  std::mutex mutex_;
  ReferenceMap map_;
  std::map<CodeId, std::uintptr_t> start_of_;
  CodeId next_id_ = 1;
};

class Seed {
 public:
  // All else it was found to lack: it trusts its callers, hands out pointers, knows no past, waits for
  // readers, ends the process where the second of its two vectors cannot grow, and has a lock and a counter
  // that a child inherits as they are.
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
  bool LookupWith(const Hook& inside) { return map_.Lookup(kBase, inside) != nullptr; }
  void ChangeWhileLookedUp(const Hook& waiting) {
    segments_.push_back(std::make_unique<SeedSegment>(SeedSegment{kBase + 0x500, 16, next_id_++}));
    map_.Insert(segments_.back().get(), waiting);
    map_.Remove(segments_.back().get(), waiting);
  }
  void ChangeWith(std::uintptr_t, const Hook& inside) {
    const std::lock_guard lock(map_.mutators_mutex());
    inside();
  }
  bool LookupWouldWait() { return false; }
  bool WriterWouldWait() { return IsHeld(map_.mutators_mutex()); }
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

// Proves: B1; tests 6 and 24 of the list
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

// Proves: B1; test 25 of the list
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

// Proves: B6; test 8 of the list
TYPED_TEST(CodeMapContractTest, RefusesOverlap) {
  this->map_.Register(kBase, 100);
  this->ExpectAsSaid(Property::kRefusesOverlap, this->map_.Register(kBase + 99, 100) == 0);
}

// Proves: B6; test 8 of the list
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

// Proves: B7; test 9 of the list
TYPED_TEST(CodeMapContractTest, ResolvesOldSamples) {
  const CodeId old = this->map_.Register(kBase, 100);
  const CodeEpoch epoch = this->map_.epoch();
  ASSERT_TRUE(this->map_.Unregister(old));
  this->map_.Register(kBase + 10, 100);
  CodeHit hit;
  this->ExpectAsSaid(Property::kResolvesOldSamples,
                     this->map_.LookupAt(kBase + 50, epoch, &hit) && hit.id == old);
}

// So many rounds of waiting, for something that only the test can bring about, are for ever.
constexpr int kRoundsForEver = 2000;

// The reader is let go when the writer has waited for ever.
//
// Proves: B3; test 1 of the list
TYPED_TEST(CodeMapContractTest, AWriterFinishesWhileAReaderIsStopped) {
  if constexpr (!std::is_same_v<TypeParam, Ours>) this->map_.Register(kBase, 1);
  std::binary_semaphore inside{0}, go_on{0};
  bool found = false;
  std::thread reader([&] {
    found = this->map_.LookupWith([&] {
      inside.release();
      go_on.acquire();
    });
  });
  inside.acquire();
  int rounds = 0;
  this->map_.ChangeWhileLookedUp([&] {
    if (++rounds == kRoundsForEver) go_on.release();
    sched_yield();
  });
  const bool finished = rounds < kRoundsForEver;
  if (finished) go_on.release();
  reader.join();
  EXPECT_TRUE(found);
  this->ExpectAsSaid(Property::kWriterFinishesWhileAReaderIsStopped, finished);
}

// No reader stays, but from the first on there always is one: each leaves when another one is inside.
//
// Proves: B3; test 2 of the list
TYPED_TEST(CodeMapContractTest, AWriterFinishesUnderOverlappingReaders) {
  if constexpr (!std::is_same_v<TypeParam, Ours>) this->map_.Register(kBase, 1);
  std::atomic<int> entered{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        this->map_.LookupWith([&] {
          const int mine = entered.fetch_add(1) + 1;
          while (entered.load() == mine && !stop.load()) sched_yield();
        });
      }
    });
  }
  while (entered.load() == 0) sched_yield();
  int rounds = 0;
  this->map_.ChangeWhileLookedUp([&] {
    if (++rounds == kRoundsForEver) stop.store(true);
    sched_yield();
  });
  const bool finished = rounds < kRoundsForEver;
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  this->ExpectAsSaid(Property::kWriterFinishesUnderOverlappingReaders, finished);
}

// The child inherits that somebody is inside of a lookup, but not who is.
//
// Proves: B3; test 19 of the list
TYPED_TEST(CodeMapContractTest, AChildForkedAmidALookupGoesOn) {
  if constexpr (!std::is_same_v<TypeParam, Ours>) this->map_.Register(kBase, 1);
  int status = -1;
  this->map_.LookupWith([&] {
    const pid_t child = _Fork();
    if (child == 0) {
      int rounds = 0;
      this->map_.ChangeWhileLookedUp([&] {
        if (++rounds == kRoundsForEver) _exit(1);
      });
      _exit(0);
    }
    waitpid(child, &status, 0);
  });
  this->ExpectAsSaid(Property::kUsableAfterForkAmidALookup, WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Proves: B2; test 3 of the list
TYPED_TEST(CodeMapContractTest, ALookupNeedsNotTheWritersLock) {
  const CodeId id = this->map_.Register(kBase + 0x1000, 100);
  bool found = false;
  this->map_.ChangeWith(kBase,
                        [&] { found = !this->map_.LookupWouldWait() && this->IdAt(kBase + 0x1000) == id; });
  this->ExpectAsSaid(Property::kLookupWhileTheWritersLockIsHeld, found);
}

// Proves: B3; test 19 of the list
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

// Proves: B5; test 22 of the list
TYPED_TEST(CodeMapContractTest, WithoutMemoryTheMapIsUnchanged) {
  const bool unchanged = this->map_.RegisterWithoutMemory(kBase + 0x8000, 0x40000);
  this->ExpectAsSaid(Property::kUnchangedWithoutMemory, unchanged);
  if (unchanged) {
    EXPECT_NE(this->IdAt(kBase + 0x8000), 0u);
  }
}

}  // namespace
}  // namespace stackpipe
