// SPDX-License-Identifier: MIT
//
// Lookups in threads and in signal handlers while other threads change the map. Made for ThreadSanitizer and
// for processors that reorder more than x86 does; the verdicts do not depend on who runs when. With
// STACKPIPE_SOAK set it takes minutes.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <semaphore>
#include <thread>
#include <vector>

#include "code_map/map_state.h"
#include "stackpipe/code_map.h"

namespace stackpipe {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || !defined(__x86_64__)
constexpr int kScaleOnce = 4;  // slow
#else
constexpr int kScaleOnce = 20;
#endif
const int kScale = std::getenv("STACKPIPE_SOAK") != nullptr ? kScaleOnce * 150 : kScaleOnce;

constexpr std::uintptr_t kBase = 0x7f0000000000;

// Places for code: kept ones, which are there all the time, and between them others that come and go. The
// size follows from the place, so that a torn answer shows.
constexpr std::uintptr_t kPlaces = 400;
constexpr std::uintptr_t kStep = 0x400;
constexpr bool IsKept(std::uintptr_t place) { return place % 4 == 1; }
constexpr std::uintptr_t StartOf(std::uintptr_t place) { return kBase + place * kStep; }
constexpr std::size_t SizeOf(std::uintptr_t place) { return 0x100 + place * 7 % 0x300; }

CodeRegistration CodeAt(std::uintptr_t place) {
  CodeRegistration code;
  code.start = StartOf(place);
  code.size = SizeOf(place);
  code.kind = static_cast<CodeKind>(place % 8);
  code.name = IsKept(place) ? "kept" : "comes and goes";
  code.owner = place % 5;
  return code;
}

class World {
 public:
  World() {
    for (std::uintptr_t place = 0; place < kPlaces; ++place) {
      if (IsKept(place)) kept_[place] = map.Register(CodeAt(place)).value();
    }
  }

  // Looks some place up; AS-safe. What is found must be what is there or nothing, and kept code is always
  // found.
  void Check(std::uint32_t random) noexcept {
    const std::uintptr_t place = random % kPlaces;
    const std::uintptr_t offset = random / kPlaces % kStep;
    const std::uintptr_t pc = StartOf(place) + offset;
    CodeHit hit;
    const LookupResult result = map.Find(pc, &hit);
    lookups.fetch_add(1, std::memory_order_relaxed);
    if (result == LookupResult::kDeferred) {
      deferred.fetch_add(1, std::memory_order_relaxed);
    } else if (result == LookupResult::kFound) {
      const bool right = offset < SizeOf(place) && hit.start == StartOf(place) && hit.size == SizeOf(place) &&
                         hit.kind == static_cast<CodeKind>(place % 8) &&
                         (!IsKept(place) || hit.id == kept_[place]);
      if (!right) wrong.fetch_add(1, std::memory_order_relaxed);
    } else if (IsKept(place) && offset < SizeOf(place)) {
      missed.fetch_add(1, std::memory_order_relaxed);
    }
  }

  CodeMap map;
  std::atomic<std::uint64_t> lookups{0}, deferred{0}, wrong{0}, missed{0};

 private:
  CodeId kept_[kPlaces] = {};
};

// Registers and unregisters the writer's own places, one by one, in batches, moved and replaced.
void Write(World& world, unsigned writer, unsigned writers, int rounds) {
  std::mt19937 random(writer);
  std::vector<std::uintptr_t> mine;
  for (std::uintptr_t place = 0, next = 0; place < kPlaces; ++place) {
    if (!IsKept(place) && next++ % writers == writer) mine.push_back(place);
  }
  std::vector<CodeId> ids(mine.size(), 0);
  for (int round = 0; round < rounds; ++round) {
    const std::size_t i = random() % mine.size();
    if (ids[i] == 0) {
      const Result<CodeId> id =
          round % 3 == 0 ? world.map.RegisterOver(CodeAt(mine[i])) : world.map.Register(CodeAt(mine[i]));
      ASSERT_TRUE(id.ok()) << id.status().context();
      ids[i] = id.value();
    } else if (round % 5 == 0) {
      const Result<CodeId> id = world.map.Move(ids[i], StartOf(mine[i]));
      ASSERT_TRUE(id.ok()) << id.status().context();
      ids[i] = id.value();
    } else if (round % 7 == 0) {
      std::vector<CodeId> all;
      for (CodeId& id : ids) {
        if (id != 0) all.push_back(id);
        id = 0;
      }
      ASSERT_TRUE(world.map.UnregisterBatch(all.data(), all.size()).ok());
    } else {
      ASSERT_TRUE(world.map.Unregister(ids[i]).ok());
      ids[i] = 0;
    }
    if (round % 16 == 0) world.map.TrimHistory(world.map.epoch() - 100);
  }
}

World* signal_world = nullptr;

void OnSignal(int) {
  static std::atomic<std::uint32_t> next{1};
  for (int i = 0; i < 20; ++i) signal_world->Check(next.fetch_add(2654435761u, std::memory_order_relaxed));
}

// Proves: B2, B11; tests 2, 3 and 7 of the list
TEST(CodeMapStressTest, LookupsInThreadsAndHandlersDuringChanges) {
  constexpr unsigned kWriters = 32;
  constexpr unsigned kReaders = 2;
  World world;
  signal_world = &world;
  struct sigaction action = {};
  struct sigaction old = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, &old);

  std::atomic<unsigned> writing{kWriters};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kWriters; ++i) {
    threads.emplace_back([&, i] {
      Write(world, i, kWriters, 200 * kScale);
      writing.fetch_sub(1);
      stop.wait(false);  // signals go on coming
    });
  }
  for (unsigned i = 0; i < kReaders; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(1000 + i);
      while (!stop.load()) world.Check(static_cast<std::uint32_t>(random()));
    });
  }
  while (writing.load() != 0 || world.lookups.load() <= 10'000) {
    for (std::thread& thread : threads) pthread_kill(thread.native_handle(), SIGUSR1);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  stop.store(true);
  stop.notify_all();
  for (std::thread& thread : threads) thread.join();
  sigaction(SIGUSR1, &old, nullptr);

  EXPECT_EQ(world.wrong.load(), 0u);
  EXPECT_EQ(world.missed.load(), 0u);
  // Deferral is for a reader that is overtaken again and again.
  EXPECT_LT(world.deferred.load(), world.lookups.load() / 100 + 1);
}

// Proves: B8; test 21 of the list
TEST(CodeMapStressTest, TheMapMayBecomeEmptyUnderLookups) {
  CodeMap map;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> wrong{0}, found{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        CodeHit hit;
        if (!map.Lookup(kBase + 5, &hit)) continue;
        found.fetch_add(1);
        if (hit.start != kBase || hit.size != 10) wrong.fetch_add(1);
      }
    });
  }
  CodeRegistration code;
  code.start = kBase;
  code.size = 10;
  for (int i = 0; i < 2000 * kScale || found.load() == 0; ++i) {
    const Result<CodeId> id = map.Register(code);
    CodeHit hit;
    ASSERT_TRUE(map.Lookup(kBase + 5, &hit));
    ASSERT_EQ(hit.id, id.value());
    ASSERT_TRUE(map.Unregister(id.value()).ok());
    ASSERT_FALSE(map.Lookup(kBase + 5, &hit));
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong.load(), 0u);
}

// Litmus: what a writer told after a change (release) and a reader heard (acquire) before a lookup, the
// lookup must agree with: the code is there, or it is gone, and the epoch is not older. Over a cell's life:
// it is appended to, copied, emptied and used again.
//
// Proves: B4, B7; test 7 of the list
TEST(CodeMapStressTest, WhatWasToldBeforeALookupIsTrueInIt) {
  constexpr std::uint32_t kSlots = 64;
  struct Told {
    // 4n: the code is not there. 4n + 2: it is. Odd: a change is under way. A reader that finds the same
    // number before and after its lookup met no change.
    std::atomic<std::uint64_t> change{0};
    std::atomic<CodeId> id{0};
    std::atomic<CodeEpoch> epoch{0};
  };
  CodeMap map;
  const auto told = std::make_unique<Told[]>(kSlots);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> wrong{0}, there{0}, gone{0};
  const auto place = [](std::uint32_t i) { return kBase + i * 0x800; };  // two cells
  std::vector<std::thread> readers;
  for (unsigned r = 0; r < 2; ++r) {
    readers.emplace_back([&, r] {
      std::mt19937 random(r);
      while (!stop.load(std::memory_order_relaxed)) {
        const std::uint32_t i = static_cast<std::uint32_t>(random()) % kSlots;
        Told& slot = told[i];
        const std::uint64_t before = slot.change.load(std::memory_order_acquire);
        const CodeId id = slot.id.load(std::memory_order_acquire);
        const CodeEpoch epoch = slot.epoch.load(std::memory_order_acquire);
        if (before % 2 != 0) continue;
        CodeHit hit;
        const CodeEpoch now = map.epoch();
        const LookupResult result = map.Find(place(i) + 5, &hit);
        if (result == LookupResult::kDeferred || slot.change.load() != before) continue;
        bool right = now >= epoch;
        if (before % 4 == 2) {
          right = right && result == LookupResult::kFound && hit.id == id && hit.start == place(i);
          there.fetch_add(1, std::memory_order_relaxed);
        } else {
          right = right && result == LookupResult::kNone;
          gone.fetch_add(1, std::memory_order_relaxed);
        }
        if (!right) wrong.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  std::mt19937 random(77);
  const auto enough = [&] { return there.load() > 100 && gone.load() > 100; };
  for (int round = 0; round < 2000 * kScale || !enough(); ++round) {
    const std::uint32_t i = static_cast<std::uint32_t>(random()) % kSlots;
    Told& slot = told[i];
    const std::uint64_t was = slot.change.load(std::memory_order_relaxed);
    slot.change.store(was + 1);
    if (was % 4 == 0) {
      CodeRegistration code;
      code.start = place(i);
      code.size = 0x100 + random() % 0x700;
      slot.id.store(map.Register(code).value(), std::memory_order_relaxed);
    } else {
      ASSERT_TRUE(map.Unregister(slot.id.load(std::memory_order_relaxed)).ok());
    }
    slot.epoch.store(map.epoch(), std::memory_order_relaxed);
    slot.change.store(was + 2, std::memory_order_release);
    if (round % 64 == 0) map.TrimHistory(map.epoch());
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong.load(), 0u);
}

// One address is used again and again, each time with another start, size and kind: a hit is all of one code.
// Ids count up by one, so each tells what its code was.
//
// Proves: B4, B7; tests 4 and 7 of the list
TEST(CodeMapStressTest, AHitIsNeverMadeOfTwo) {
  CodeMap map;
  const auto shape = [](CodeId id) {
    CodeRegistration code;
    code.start = kBase + 0x400 - id % 7 * 16 - (id % 3 == 0 ? 0x8000 : 0);  // some cross into the cell
    code.size = kBase + 0x420 + id % 11 * 8 + (id % 5 == 0 ? 0x20000 : 0) - code.start;
    code.kind = static_cast<CodeKind>(id % 8);
    return code;
  };
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> wrong{0}, found{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 2; ++r) {
    readers.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        CodeHit hit;
        if (!map.Lookup(kBase + 0x410, &hit)) continue;
        const CodeRegistration want = shape(hit.id);
        if (hit.start != want.start || hit.size != want.size || hit.kind != want.kind)
          wrong.fetch_add(1, std::memory_order_relaxed);
        found.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  CodeId id = 1;
  for (int round = 0; round < 1500 * kScale || found.load() < 100; ++round, ++id) {
    const Result<CodeId> got = round % 2 == 0 ? map.RegisterOver(shape(id)) : map.Register(shape(id));
    ASSERT_EQ(got.value(), id);
    if (round % 2 == 0) {  // else the next one replaces it
      ASSERT_TRUE(map.Unregister(id).ok());
    }
    if (round % 64 == 0) map.TrimHistory(map.epoch());
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong.load(), 0u);
}

// Cells, tables and regions come into being under readers that go through all that is registered so far.
//
// Proves: B3; tests 5 and 7 of the list
TEST(CodeMapStressTest, StorageGrowsUnderAScan) {
  const std::uint32_t count = static_cast<std::uint32_t>(1000 * std::min(kScale, 100));
  const auto place = [](std::uint32_t i) {
    // Ascending, descending and far apart.
    switch (i % 4) {
      case 0:
        return kBase + i * std::uintptr_t{16};
      case 1:
        return kBase - 0x10000 - i * std::uintptr_t{24};
      case 2:
        return kBase + 0x4'0000'0000 + i * std::uintptr_t{0x100'0000};
      default:
        return (std::uintptr_t{1 + i % 7} << 47) + i * std::uintptr_t{64};
    }
  };
  CodeMap map;
  const auto ids = std::make_unique<std::atomic<CodeId>[]>(count);
  std::atomic<std::uint32_t> registered{0};
  std::atomic<std::uint64_t> wrong{0}, looked_up{0};
  std::vector<std::thread> readers;
  for (unsigned r = 0; r < 2; ++r) {
    readers.emplace_back([&, r] {
      std::mt19937 random(r);
      for (std::uint32_t seen = 0; seen < count;) {
        seen = registered.load(std::memory_order_acquire);
        if (seen == 0) continue;
        for (int k = 0; k < 50; ++k) {
          // Mostly the latest.
          const std::uint32_t i = k % 2 == 0
                                      ? seen - 1 - static_cast<std::uint32_t>(random()) % std::min(seen, 16u)
                                      : static_cast<std::uint32_t>(random()) % seen;
          CodeHit hit;
          const LookupResult result = map.Find(place(i) + 7, &hit);
          looked_up.fetch_add(1, std::memory_order_relaxed);
          if (result == LookupResult::kDeferred) continue;
          if (result != LookupResult::kFound || hit.id != ids[i].load(std::memory_order_relaxed))
            wrong.fetch_add(1, std::memory_order_relaxed);
        }
      }
    });
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    CodeRegistration code;
    code.start = place(i);
    code.size = 8;
    ids[i].store(map.Register(code).value(), std::memory_order_relaxed);
    registered.store(i + 1, std::memory_order_release);
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_GT(looked_up.load(), 100u);
}

#if !defined(__SANITIZE_THREAD__)

// Forks from one thread, with all that fork does, while others are somewhere in changes.
//
// Proves: B3; test 19 of the list
TEST(CodeMapStressTest, AChildOfForkUsesTheMapWhateverOtherThreadsDid) {
  static World world;
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (unsigned i = 0; i < 2; ++i) {
    writers.emplace_back([&, i] {
      for (unsigned round = 0; !stop.load(); ++round) {
        const std::uintptr_t place = 4 * (round % 50) + 2 * i;  // not a kept one
        (void)world.map.RegisterOver(CodeAt(place));
        if (round % 3 != 0) (void)world.map.UnregisterRange(StartOf(place), 1);
        if (round % 20 == 0) world.map.TrimHistory(world.map.epoch());
      }
    });
  }
  int failed = 0;
  for (int i = 0; i < 5 * kScale && failed == 0; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      std::uint32_t random = 12345;
      for (int k = 0; k < 500; ++k) world.Check(random = random * 2654435761u + 1);
      if (world.wrong.load() != 0 || world.missed.load() != 0) _exit(1);
      const std::size_t live = world.map.live_count();
      CodeRegistration code;
      code.start = kBase + 0x1000000;
      code.size = 100;
      const Result<CodeId> id = world.map.Register(code);
      CodeHit hit;
      if (!id.ok() || !world.map.Lookup(code.start, &hit) || hit.id != id.value()) _exit(2);
      for (int k = 0; k < 500; ++k) world.Check(random = random * 2654435761u + 1);
      if (world.wrong.load() != 0 || world.missed.load() != 0) _exit(3);
      std::size_t counted = 0;
      world.map.ForEachLive([](void* to, CodeId) { ++*static_cast<std::size_t*>(to); }, &counted);
      if (counted != world.map.live_count() || counted + 2 < live || counted > live + 3) _exit(4);
      if (world.map.UnregisterRange(0, ~std::size_t{0}) != counted || world.map.live_count() != 0) _exit(5);
      _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    failed = WIFEXITED(status) ? WEXITSTATUS(status) : status;
  }
  stop.store(true);
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(failed, 0);
}

#endif

// What a probe does in the middle of a lookup: once, it lets the others go on and waits for them.
struct StopHere {
  std::binary_semaphore* inside;
  std::binary_semaphore* go_on;
  int* step;
  int at;
  void operator()() const {
    if ((*step)++ != at) return;
    inside->release();
    go_on->acquire();
  }
};

// Proves: B3; tests 1 and 4 of the list
TEST(CodeMapStressTest, AWriterFinishesWhileAReaderIsStoppedInsideALookup) {
  using internal::MapState;
  for (int at = 0; at < 8; ++at) {
    MapState* map = MapState::Create();
    CodeEpoch epoch = 1;
    const auto add = [&](std::uintptr_t start) {
      CodeRegistration code;
      code.start = start;
      code.size = 16;
      CodeId id = 0;
      EXPECT_TRUE(map->Register({&code, 1}, internal::OnOverlap::kRefuse, ++epoch, &id, nullptr).ok());
      return id;
    };
    const CodeId kept = add(kBase + 0x100);
    add(kBase + 0x200);
    std::binary_semaphore inside{0}, go_on{0};
    CodeHit hit;
    LookupResult result = LookupResult::kNone;
    std::thread reader([&] {
      int step = 0;
      result = internal::FindCode(map->root(), kBase + 0x108, &hit, StopHere{&inside, &go_on, &step, at});
    });
    inside.acquire();
    for (int i = 0; i < 500; ++i) {
      const CodeId id = add(kBase);
      EXPECT_TRUE(map->Unregister({&id, 1}, ++epoch).ok());
      const CodeId other = add(kBase + 0x10100);
      EXPECT_TRUE(map->Unregister({&other, 1}, ++epoch).ok());
    }
    go_on.release();
    reader.join();
    EXPECT_EQ(result, LookupResult::kFound);
    EXPECT_EQ(hit.id, kept);
    MapState::Destroy(map);
  }
}

// From the first entry on a reader is inside at each moment: one leaves only when another came in after it.
struct HandOver {
  std::atomic<int>* entered;
  std::atomic<bool>* stop;
  void operator()() const {
    const int mine = entered->fetch_add(1) + 1;
    while (entered->load() == mine && !stop->load()) std::this_thread::yield();
  }
};

// Proves: B3; test 2 of the list
TEST(CodeMapStressTest, OverlappingReadersDoNotStarveAWriter) {
  using internal::MapState;
  MapState* map = MapState::Create();
  CodeEpoch epoch = 1;
  CodeRegistration code;
  code.size = 16;
  code.start = kBase;
  CodeId kept = 0;
  ASSERT_TRUE(map->Register({&code, 1}, internal::OnOverlap::kRefuse, ++epoch, &kept, nullptr).ok());
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, times{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        CodeHit hit;
        const LookupResult result = internal::FindCode(map->root(), kBase, &hit, HandOver{&times, &stop});
        const bool right =
            result == LookupResult::kDeferred || (result == LookupResult::kFound && hit.id == kept);
        if (!right) wrong.fetch_add(1);
      }
    });
  }
  while (times.load() == 0) std::this_thread::yield();  // from here on there always is a reader
  code.start = kBase + 0x100;
  for (int i = 0; i < 500 || times.load() < 500; ++i) {
    CodeId id = 0;
    EXPECT_TRUE(map->Register({&code, 1}, internal::OnOverlap::kRefuse, ++epoch, &id, nullptr).ok());
    EXPECT_TRUE(map->Unregister({&id, 1}, ++epoch).ok());
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong.load(), 0);
  MapState::Destroy(map);
}

// Proves: B1; test 13 of the list
TEST(CodeMapStressTest, LookupsWorkWhenAThreadIsOnItsWayOut) {
  static CodeMap map;
  static std::atomic<int> right{0};
  CodeRegistration code;
  code.start = kBase;
  code.size = 16;
  const CodeId id = map.Register(code).value();
  static CodeId want = id;
  pthread_key_t key;
  ASSERT_EQ(pthread_key_create(&key,
                               [](void*) {  // runs after thread-local objects were destroyed
                                 CodeHit hit;
                                 if (map.Lookup(kBase + 1, &hit) && hit.id == want) right.fetch_add(1);
                               }),
            0);
  std::thread([&] { pthread_setspecific(key, &map); }).join();
  EXPECT_EQ(right.load(), 1);
  pthread_key_delete(key);
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

struct Question {
  const CodeMap* map;
  CodeHit hit;
  LookupResult result;
};

// Runs without thread-local storage: whatever touches any, the stack protector too, crashes.
__attribute__((no_stack_protector)) int AskWithoutThreadLocalStorage(void* argument) {
  auto* question = static_cast<Question*>(argument);
  constexpr long kArchSetFs = 0x1002;
  long result = SYS_arch_prctl;
  asm volatile("syscall" : "+a"(result) : "D"(kArchSetFs), "S"(0L) : "rcx", "r11", "memory");
  question->result = question->map->Find(kBase + 1, &question->hit);
  return result == 0 ? 0 : 1;
}

// Proves: B1; test 13 of the list
TEST(CodeMapStressTest, LookupsNeedNoThreadLocalStorage) {
  CodeMap map;
  CodeRegistration code;
  code.start = kBase;
  code.size = 16;
  const CodeId id = map.Register(code).value();
  Question question{&map, {}, LookupResult::kNone};
  std::vector<char> stack(64 * 1024);
  const int task =
      clone(AskWithoutThreadLocalStorage, stack.data() + stack.size(), CLONE_VM | SIGCHLD, &question);
  ASSERT_GT(task, 0);
  int status = -1;
  ASSERT_EQ(waitpid(task, &status, 0), task);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(question.result, LookupResult::kFound);
  EXPECT_EQ(question.hit.id, id);
}

#endif

}  // namespace
}  // namespace stackpipe
