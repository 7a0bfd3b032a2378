// SPDX-License-Identifier: MIT
//
// The code map beside others: the model of the map that this project began from, a tree and a btree under a
// read-write lock, an array under RCU, a bare array with binary search, and what the C library and libgcc
// have for loaded objects and registered unwind tables. docs/design/code_map.md shows results and the
// command.
//
// All maps get the same ranges and queries and copy the same answer out; each answer is compared with the
// right one while the clock runs, and a wrong one fails the benchmark.
#include <benchmark/benchmark.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "code_map_maps.h"
#include "code_map_objects.h"

namespace stackpipe::bench {
namespace {

constexpr std::uintptr_t kBase = 0x7f2345670000;
constexpr std::size_t kQueries = std::size_t{1} << 20;

// Code as a JIT lays it out: one after the other, 16-byte aligned, 32 to 400 bytes, a few bytes unused behind
// each. Every tenth place is left free, for changes. 224 bytes for each place on average.
struct Layout {
  std::vector<Range> ranges;
  std::vector<Range> free;
};

const Layout& LayoutOf(std::size_t count) {
  static Layout layout;
  static std::size_t made_for = ~std::size_t{0};
  if (made_for == count) return layout;
  layout = {};
  std::mt19937_64 random(count);
  std::uintptr_t at = kBase;
  std::uint32_t id = 0;
  while (layout.ranges.size() < count) {
    const std::size_t size = 17 + random() % 384;
    if (random() % 10 == 0) {
      layout.free.push_back({at, size, 0});
    } else {
      layout.ranges.push_back({at, size, ++id});
    }
    at += (size + 15) / 16 * 16 + 16;
  }
  if (layout.free.empty()) layout.free.push_back({at, 100, 0});
  made_for = count;
  return layout;
}

struct Queries {
  std::vector<std::uintptr_t> pcs;
  std::vector<std::uint32_t> ids;  // what each must find; 0: nothing
};

const Queries& HitsOf(std::size_t count) {
  static Queries queries;
  static std::size_t made_for = ~std::size_t{0};
  if (made_for == count) return queries;
  const std::vector<Range>& ranges = LayoutOf(count).ranges;
  queries = {};
  std::mt19937_64 random(count + 1);
  for (std::size_t i = 0; i < kQueries; ++i) {
    const Range& range = ranges[random() % ranges.size()];
    queries.pcs.push_back(range.start + random() % range.size);
    queries.ids.push_back(range.id);
  }
  made_for = count;
  return queries;
}

const Queries& MissesOf(std::size_t count) {
  static Queries queries;
  static std::size_t made_for = ~std::size_t{0};
  if (made_for == count) return queries;
  const std::vector<Range>& ranges = LayoutOf(count).ranges;
  queries = {};
  std::mt19937_64 random(count + 2);
  for (std::size_t i = 0; i < kQueries; ++i) {
    const Range& range = ranges[random() % ranges.size()];
    queries.pcs.push_back(range.start + range.size + random() % 16);  // between two
    queries.ids.push_back(0);
  }
  made_for = count;
  return queries;
}

// The map that the last benchmark used, if this one asks for the same: loading takes longer than measuring.
template <typename Map>
Map* Loaded(std::size_t count) {
  static std::unique_ptr<Map> map;
  static std::size_t loaded = ~std::size_t{0};
  if (loaded != count) {
    map = std::make_unique<Map>();
    loaded = count;
    if (!map->Load(LayoutOf(count).ranges)) map = nullptr;
  }
  return map.get();
}

// To the first or second of the cores that the process was started with, if it has as many.
void PinTo(int nth) {
  static const cpu_set_t allowed = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    return set;
  }();
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || nth-- != 0) continue;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    return;
  }
}

std::uint64_t NowNs(clockid_t clock = CLOCK_MONOTONIC) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

template <typename Map>
bool IsRight(const Map& map, std::uintptr_t pc, std::uint32_t id) {
  Answer answer;
  const bool found = map.Lookup(pc, &answer);
  benchmark::DoNotOptimize(answer);
  return found ? answer.id == id && pc - answer.start < answer.size : id == 0;
}

template <typename Map>
void RunQueries(benchmark::State& state, const Map& map, const Queries& queries) {
  std::size_t i = 0;
  std::size_t wrong = 0;
  for (auto _ : state) {
    wrong += IsRight(map, queries.pcs[i], queries.ids[i]) ? 0 : 1;
    i = (i + 1) & (kQueries - 1);
  }
  if (wrong != 0) state.SkipWithError("wrong answers");
}

template <typename Map>
void BM_Lookup(benchmark::State& state, std::size_t count) {
  Map* map = Loaded<Map>(count);
  if (map == nullptr) return state.SkipWithError("cannot load");
  RunQueries(state, *map, HitsOf(count));
}

template <typename Map>
void BM_LookupMiss(benchmark::State& state, std::size_t count) {
  Map* map = Loaded<Map>(count);
  if (map == nullptr) return state.SkipWithError("cannot load");
  RunQueries(state, *map, MissesOf(count));
}

template <typename Map>
void BM_LookupEmpty(benchmark::State& state) {
  const Map map;
  std::uintptr_t pc = kBase;
  for (auto _ : state) {
    Answer answer;
    benchmark::DoNotOptimize(map.Lookup(pc, &answer));
    pc += 64;
  }
}

// One hot range, by one thread and by two: readers that write to a shared line pay here. cpu_ns_0 and
// cpu_ns_1: the CPU time of each thread for a lookup of its own. (The wall time that is shown is divided by
// the lookups of both; and when two threads must share a core, it counts the waiting.)
template <typename Map>
void BM_LookupHot(benchmark::State& state, std::size_t count) {
  static std::mutex loading;
  PinTo(state.thread_index());
  Map* map = nullptr;
  Range range;
  {
    const std::lock_guard lock(loading);
    map = Loaded<Map>(count);
    range = LayoutOf(count).ranges[count / 2];
  }
  std::size_t wrong = map == nullptr ? 1 : 0;
  const std::uint64_t before = NowNs(CLOCK_THREAD_CPUTIME_ID);
  for (auto _ : state) wrong += map != nullptr && IsRight(*map, range.start + 1, range.id) ? 0 : 1;
  state.counters["cpu_ns_" + std::to_string(state.thread_index())] =
      static_cast<double>(NowNs(CLOCK_THREAD_CPUTIME_ID) - before) / static_cast<double>(state.iterations());
  if (wrong != 0) state.SkipWithError("wrong answers");
}

// With nothing of the map in the processor's caches.
template <typename Map>
void BM_LookupCold(benchmark::State& state, std::size_t count) {
  Map* map = Loaded<Map>(count);
  if (map == nullptr) return state.SkipWithError("cannot load");
  const Queries& queries = HitsOf(count);
  static std::vector<std::uint64_t> other(std::size_t{64} << 17);  // 64 MiB
  std::size_t i = 0;
  std::size_t wrong = 0;
  for (auto _ : state) {
    for (std::size_t k = 0; k < other.size(); k += 8) other[k] += k;
    const std::uintptr_t pc = queries.pcs[i];
    const std::uint32_t id = queries.ids[i];
    const std::uint64_t before = NowNs();
    wrong += IsRight(*map, pc, id) ? 0 : 1;
    state.SetIterationTime(static_cast<double>(NowNs() - before) * 1e-9);
    i = (i + 1) & (kQueries - 1);
  }
  if (wrong != 0) state.SkipWithError("wrong answers");
}

// Inside a real signal handler, many lookups for each signal; the time for one lookup.
template <typename Map>
struct InSignal {
  static inline const Map* map;
  static inline const Queries* queries;
  static inline std::size_t next;
  static inline std::size_t wrong;
  static inline std::uint64_t ns;

  static constexpr std::size_t kLookups = 1000;

  static void Handle(int) {
    const std::uint64_t before = NowNs();
    for (std::size_t i = 0; i < kLookups; ++i) {
      wrong += IsRight(*map, queries->pcs[next], queries->ids[next]) ? 0 : 1;
      next = (next + 1) & (kQueries - 1);
    }
    ns = NowNs() - before;
  }
};

template <typename Map>
void BM_LookupInSignal(benchmark::State& state, std::size_t count) {
  using Signal = InSignal<Map>;
  Signal::map = Loaded<Map>(count);
  if (Signal::map == nullptr) return state.SkipWithError("cannot load");
  Signal::queries = &HitsOf(count);
  Signal::wrong = 0;
  struct sigaction action = {};
  struct sigaction old = {};
  action.sa_handler = Signal::Handle;
  sigaction(SIGUSR1, &action, &old);
  for (auto _ : state) {
    pthread_kill(pthread_self(), SIGUSR1);
    state.SetIterationTime(static_cast<double>(Signal::ns) * 1e-9 / Signal::kLookups);
  }
  sigaction(SIGUSR1, &old, nullptr);
  if (Signal::wrong != 0) state.SkipWithError("wrong answers");
}

// A new range in a free place among the others, at an address where there was none, and its removal.
template <typename Map>
class Changer {
 public:
  Changer(Map* map, std::size_t count) : map_(map) {
    // Chosen beforehand, so that the clock runs for the map alone.
    const std::vector<Range>& free = LayoutOf(count).free;
    std::mt19937_64 random(7);
    for (Range& range : ranges_) {
      range = free[random() % free.size()];
      const std::size_t skip = random() % range.size;
      range.start += skip;
      range.size -= skip;
      range.id = 0xffffff;
    }
  }
  void InsertAndRemove() {
    const auto handle = map_->Insert(ranges_[next_]);
    failed_ += handle == typename Map::Handle{} ? 1 : 0;
    map_->Remove(handle);
    next_ = (next_ + 1) % ranges_.size();
  }
  // That no change failed, and that changes do what they claim: for when the clock is stopped.
  bool Works() {
    for (int i = 0; i < 5; ++i) {
      const Range& range = ranges_[next_];
      Answer answer;
      const auto handle = map_->Insert(range);
      const bool found = map_->Lookup(range.start, &answer) && answer.start == range.start;
      map_->Remove(handle);
      if (!found || map_->Lookup(range.start, &answer)) return false;
      next_ = (next_ + 1) % ranges_.size();
    }
    return failed_ == 0;
  }

 private:
  Map* map_;
  std::vector<Range> ranges_ = std::vector<Range>(std::size_t{1} << 16);
  std::size_t next_ = 0;
  std::size_t failed_ = 0;
};

template <typename Map>
void BM_InsertRemove(benchmark::State& state, std::size_t count) {
  Map* map = Loaded<Map>(count);
  if (map == nullptr) return state.SkipWithError("cannot load");
  Changer<Map> changer(map, count);
  for (auto _ : state) changer.InsertAndRemove();
  if (!changer.Works()) state.SkipWithError("changes without effect");
}

// A reader that a signal stops inside a lookup, between its call and its return. It stays there until this is
// destroyed, or until no change was reported for half a second: then the writer waits for the reader.
template <typename Map>
class StoppedReader {
 public:
  StoppedReader(const Map& map, const Queries& queries) {
    release_ = eventfd(0, EFD_CLOEXEC);
    done_ = false;
    waited_for_ = false;
    changes_ = 0;
    wrong_ = 0;
    struct sigaction action = {};
    action.sa_handler = Stop;
    sigaction(SIGUSR2, &action, &old_);
    thread_ = std::thread([&] {
      PinTo(1);
      for (std::size_t i = 0; !done_.load(); i = (i + 1) & (kQueries - 1)) {
        in_lookup_ = 1;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        const bool right = IsRight(map, queries.pcs[i], queries.ids[i]);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        in_lookup_ = 0;
        wrong_ += right ? 0 : 1;
      }
    });
    do {
      handled_ = false;
      pthread_kill(thread_.native_handle(), SIGUSR2);
      while (!handled_.load()) sched_yield();
    } while (!stopped_.load());
  }
  ~StoppedReader() { Release(); }
  StoppedReader(const StoppedReader&) = delete;
  StoppedReader& operator=(const StoppedReader&) = delete;

  void Changed() { changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  void Release() {
    if (!thread_.joinable()) return;
    done_ = true;
    const std::uint64_t one = 1;
    (void)!write(release_, &one, sizeof one);
    thread_.join();
    sigaction(SIGUSR2, &old_, nullptr);
    close(release_);
  }
  // Once it is released.
  bool waited_for() const { return waited_for_.load(); }
  std::size_t wrong() const { return wrong_; }

 private:
  static void Stop(int) {
    const bool stop = in_lookup_ != 0;
    stopped_ = stop;
    handled_ = true;
    pollfd released = {release_, POLLIN, 0};
    for (std::uint64_t seen = 0; stop && poll(&released, 1, 500) == 0;) {
      const std::uint64_t changes = changes_.load();
      waited_for_ = changes == seen;
      if (changes == seen) return;
      seen = changes;
    }
  }

  static inline int release_;
  static inline std::atomic<bool> done_, handled_, stopped_, waited_for_;
  static inline std::atomic<std::uint64_t> changes_;
  static inline volatile std::sig_atomic_t in_lookup_;
  static inline std::size_t wrong_;
  struct sigaction old_;
  std::thread thread_;
};

template <typename Map>
void BM_InsertWithStoppedReader(benchmark::State& state, std::size_t count) {
  Map* map = Loaded<Map>(count);
  if (map == nullptr) return state.SkipWithError("cannot load");
  PinTo(0);
  Changer<Map> changer(map, count);
  StoppedReader<Map> reader(*map, HitsOf(count));
  for (auto _ : state) {
    changer.InsertAndRemove();
    reader.Changed();
  }
  reader.Release();
  if (reader.waited_for()) return state.SkipWithError("the writer waits for the stopped reader");
  if (reader.wrong() != 0) return state.SkipWithError("wrong answers");
  if (!changer.Works()) state.SkipWithError("changes without effect");
}

// Each lookup's own time, while another thread makes so many changes a second.
template <typename Map>
void BM_LookupUnderChurn(benchmark::State& state, std::size_t count, std::uint64_t changes_per_s) {
  Map* map = Loaded<Map>(count);
  if (map == nullptr) return state.SkipWithError("cannot load");
  const Queries& queries = HitsOf(count);
  PinTo(0);
  std::atomic<bool> ready{false};
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> changes{0};
  bool works = true;
  std::thread writer([&] {
    PinTo(1);
    if (changes_per_s == 0) return ready.store(true);
    Changer<Map> changer(map, count);
    ready.store(true);
    const std::uint64_t begin = NowNs();
    for (std::uint64_t pairs = 0; !stop.load();) {
      if ((NowNs() - begin) * changes_per_s / 2 < pairs * 1'000'000'000) continue;
      changer.InsertAndRemove();
      ++pairs;
      changes.store(2 * pairs, std::memory_order_relaxed);
    }
    works = changer.Works();
  });
  // In steps of 1 ns up to 64 us; what takes longer is in the last one.
  std::vector<std::uint64_t> histogram(65536);
  std::uint64_t longest = 0;
  std::size_t i = 0;
  std::size_t wrong = 0;
  while (!ready.load()) sched_yield();
  const std::uint64_t begin = NowNs();
  std::uint64_t before = begin;
  for (auto _ : state) {
    // The time of the clock itself is in it, about 25 ns.
    before = NowNs();
    wrong += IsRight(*map, queries.pcs[i], queries.ids[i]) ? 0 : 1;
    const std::uint64_t took = NowNs() - before;
    ++histogram[std::min<std::uint64_t>(took, histogram.size() - 1)];
    longest = std::max(longest, took);
    i = (i + 1) & (kQueries - 1);
  }
  const std::uint64_t elapsed = NowNs() - begin;
  stop.store(true);
  writer.join();
  std::uint64_t total = 0;
  for (const std::uint64_t n : histogram) total += n;
  const auto percentile = [&](double part) {
    auto left = static_cast<std::uint64_t>(static_cast<double>(total) * part);
    std::size_t ns = 0;
    for (; ns + 1 < histogram.size() && histogram[ns] <= left; ++ns) left -= histogram[ns];
    return static_cast<double>(ns);
  };
  state.counters["p50_ns"] = percentile(0.5);
  state.counters["p99_ns"] = percentile(0.99);
  state.counters["p99.9_ns"] = percentile(0.999);
  state.counters["max_ns"] = static_cast<double>(longest);
  state.counters["changes_per_s"] = static_cast<double>(changes.load()) * 1e9 / static_cast<double>(elapsed);
  if (wrong != 0) return state.SkipWithError("wrong answers, or none for a registered range");
  if (!works) state.SkipWithError("changes without effect");
}

std::size_t ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  long size = 0, resident = 0;
  if (std::fscanf(file, "%ld %ld", &size, &resident) != 2) resident = 0;
  std::fclose(file);
  return static_cast<std::size_t>(resident * sysconf(_SC_PAGESIZE));
}

// All ranges one by one, in the order of their addresses; the time for one. bytes: of the process, for each
// range.
template <typename Map>
void BM_Load(benchmark::State& state, std::size_t count) {
  const Layout& layout = LayoutOf(count);
  double bytes = 0;
  CodeMapMemory memory;
  for (auto _ : state) {
    const std::size_t resident = ResidentBytes();
    auto map = std::make_unique<Map>();
    const std::uint64_t before = NowNs();
    if (!map->Load(layout.ranges)) return state.SkipWithError("cannot load");
    state.SetIterationTime(static_cast<double>(NowNs() - before) * 1e-9 / static_cast<double>(count));
    bytes = static_cast<double>(ResidentBytes()) - static_cast<double>(resident);
    if constexpr (std::is_same_v<Map, Stackpipe>) memory = map->memory();
  }
  state.counters["bytes"] = bytes / static_cast<double>(count);
  if constexpr (std::is_same_v<Map, Stackpipe>) {
    state.counters["lookup_bytes"] = static_cast<double>(memory.lookup) / static_cast<double>(count);
    state.counters["descriptor_bytes"] = static_cast<double>(memory.descriptors) / static_cast<double>(count);
  }
}

void BM_LoadAtOnce(benchmark::State& state, std::size_t count) {
  const Layout& layout = LayoutOf(count);
  for (auto _ : state) {
    Stackpipe map;
    const std::uint64_t before = NowNs();
    if (!map.LoadAtOnce(layout.ranges)) return state.SkipWithError("cannot load");
    state.SetIterationTime(static_cast<double>(NowNs() - before) * 1e-9 / static_cast<double>(count));
  }
}

std::string Name(const char* benchmark, const char* map, std::size_t count) {
  return std::string(benchmark) + "/" + map + "/" + std::to_string(count);
}

// In the order of counts and not of benchmarks, so that each map is loaded once for each count.
template <typename Map>
void RegisterAll(const char* map, bool has_cheap_changes) {
  using benchmark::RegisterBenchmark;
  RegisterBenchmark((std::string("BM_LookupEmpty/") + map).c_str(), BM_LookupEmpty<Map>);
  for (const std::size_t count : {1'000u, 10'000u, 30'000u, 1'000'000u}) {
    RegisterBenchmark(Name("BM_InsertRemove", map, count).c_str(), BM_InsertRemove<Map>, count);
    if (count == 10'000) continue;  // only to compare the cost of changes with that at a million
    RegisterBenchmark(Name("BM_Lookup", map, count).c_str(), BM_Lookup<Map>, count);
    RegisterBenchmark(Name("BM_LookupMiss", map, count).c_str(), BM_LookupMiss<Map>, count);
    RegisterBenchmark(Name("BM_LookupHot", map, count).c_str(), BM_LookupHot<Map>, count)
        ->ThreadRange(1, 2)
        ->UseRealTime();
    RegisterBenchmark(Name("BM_LookupCold", map, count).c_str(), BM_LookupCold<Map>, count)
        ->UseManualTime()
        ->Iterations(20);
    RegisterBenchmark(Name("BM_LookupInSignal", map, count).c_str(), BM_LookupInSignal<Map>, count)
        ->UseManualTime()
        ->Iterations(200);
    // Not where nothing protects a reader; and once where the writer waits until the reader gives way.
    if (has_cheap_changes && (count == 1'000 || std::is_same_v<Map, Stackpipe>)) {
      RegisterBenchmark(Name("BM_InsertWithStoppedReader", map, count).c_str(),
                        BM_InsertWithStoppedReader<Map>, count)
          ->UseRealTime();
    }
    for (const std::uint64_t rate : {0u, 1'000u, 100'000u}) {
      if (!has_cheap_changes && rate != 0) continue;
      const std::string name = Name("BM_LookupUnderChurn", map, count) + "/" + std::to_string(rate);
      RegisterBenchmark(name.c_str(), BM_LookupUnderChurn<Map>, count, rate)->UseRealTime();
    }
    RegisterBenchmark(Name("BM_Load", map, count).c_str(), BM_Load<Map>, count)
        ->UseManualTime()
        ->Iterations(count > 100'000 ? 1 : 5);
  }
}

[[maybe_unused]] const bool registered = [] {
  RegisterAll<Stackpipe>("stackpipe", true);
  for (const std::size_t count : {1'000u, 1'000'000u}) {
    benchmark::RegisterBenchmark(Name("BM_LoadAtOnce", "stackpipe", count).c_str(), BM_LoadAtOnce, count)
        ->UseManualTime()
        ->Iterations(count > 100'000 ? 1 : 5);
  }
  RegisterAll<FlatArray>("flat_array", false);
  RegisterAll<SeedTwoVectors>("seed_two_vectors", true);
  RegisterAll<RbTreeRwlock>("rb_tree_rwlock", true);
#ifdef STACKPIPE_BENCH_ABSL
  RegisterAll<AbslBtreeRwlock>("absl_btree_rwlock", true);
#endif
#ifdef STACKPIPE_BENCH_URCU
  RegisterAll<UrcuArray>("urcu_array", true);
#endif
  for (const std::size_t count : {16u, 256u, 1000u}) {
    benchmark::RegisterBenchmark(Name("BM_Lookup", "dl_find_object", count).c_str(),
                                 BM_LookupObject<DlFindObject>, count);
    benchmark::RegisterBenchmark(Name("BM_Lookup", "libgcc_fde", count).c_str(), BM_LookupObject<LibgccFde>,
                                 count);
    benchmark::RegisterBenchmark(Name("BM_LookupObjects", "stackpipe", count).c_str(),
                                 BM_LookupObject<ObjectsInStackpipe>, count);
  }
  return true;
}();

}  // namespace
}  // namespace stackpipe::bench
