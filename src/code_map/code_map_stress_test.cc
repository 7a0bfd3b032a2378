// SPDX-License-Identifier: MIT
//
// Lookups in threads and in signal handlers while other threads change the map. Made for ThreadSanitizer; the
// verdicts do not depend on who runs when.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <random>
#include <semaphore>
#include <thread>
#include <vector>

#include "code_map/map_state.h"
#include "stackpipe/code_map.h"

namespace stackpipe {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kScale = 4;
#else
constexpr int kScale = 20;
#endif

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

// Proves: B2, B11
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
  while (writing.load() != 0) {
    for (std::thread& thread : threads) pthread_kill(thread.native_handle(), SIGUSR1);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  stop.store(true);
  stop.notify_all();
  for (std::thread& thread : threads) thread.join();
  sigaction(SIGUSR1, &old, nullptr);

  EXPECT_EQ(world.wrong.load(), 0u);
  EXPECT_EQ(world.missed.load(), 0u);
  EXPECT_GT(world.lookups.load(), 10'000u);
  // Deferral is for a reader that is overtaken again and again.
  EXPECT_LT(world.deferred.load(), world.lookups.load() / 100 + 1);
}

// Proves: B8
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

// Proves: B3
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

// One of two readers is inside a lookup at each moment: it leaves only when the other one is in.
struct HandOver {
  std::atomic<bool>* mine;
  std::atomic<bool>* other;
  std::atomic<bool>* stop;
  std::atomic<int>* times;
  void operator()() const {
    mine->store(true);
    while (!other->load() && !stop->load()) std::this_thread::yield();
    other->store(false);
    times->fetch_add(1);
  }
};

// Proves: B3
TEST(CodeMapStressTest, OverlappingReadersDoNotStarveAWriter) {
  using internal::MapState;
  MapState* map = MapState::Create();
  CodeEpoch epoch = 1;
  CodeRegistration code;
  code.size = 16;
  code.start = kBase;
  CodeId kept = 0;
  ASSERT_TRUE(map->Register({&code, 1}, internal::OnOverlap::kRefuse, ++epoch, &kept, nullptr).ok());
  std::atomic<bool> inside[2] = {};
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, times{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&, i] {
      while (!stop.load()) {
        CodeHit hit;
        const LookupResult result =
            internal::FindCode(map->root(), kBase, &hit, HandOver{&inside[i], &inside[1 - i], &stop, &times});
        const bool right =
            result == LookupResult::kDeferred || (result == LookupResult::kFound && hit.id == kept);
        if (!right) wrong.fetch_add(1);
      }
    });
  }
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

// Proves: B1
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

// Proves: B1
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
