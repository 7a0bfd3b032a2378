// SPDX-License-Identifier: MIT
//
// The maps that bench_code_map compares, behind one interface:
//
//     bool Load(const std::vector<Range>&)     all of them; false: this map cannot
//     bool Lookup(pc, Answer*)                 copies the answer out
//     Handle Insert(const Range&); void Remove(Handle)
//
// All answer with start, size, id and kind.
#ifndef STACKPIPE_BENCH_CODE_MAP_MAPS_H_
#define STACKPIPE_BENCH_CODE_MAP_MAPS_H_

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#ifdef STACKPIPE_BENCH_ABSL
#include <absl/container/btree_map.h>
#endif
#ifdef STACKPIPE_BENCH_URCU
#define _LGPL_SOURCE 1
#define URCU_INLINE_SMALL_FUNCTIONS 1
#include <urcu/urcu-memb.h>
#endif

#include "code_map/seed_map_model.h"
#include "stackpipe/code_map.h"

namespace stackpipe::bench {

struct Range {
  std::uintptr_t start;
  std::size_t size;
  std::uint32_t id;  // from 1, in order of start
};
using Answer = CodeHit;

class Stackpipe {
 public:
  using Handle = CodeId;
  bool Load(const std::vector<Range>& ranges) {
    for (const Range& range : ranges) {
      if (Insert(range) != range.id) return false;
    }
    return true;
  }
  bool Lookup(std::uintptr_t pc, Answer* out) const { return map_.Lookup(pc, out); }
  Handle Insert(const Range& range) {
    CodeRegistration code;
    code.start = range.start;
    code.size = range.size;
    code.kind = CodeKind::kJit;
    const Result<CodeId> id = map_.Register(code);
    return id.ok() ? id.value() : 0;
  }
  void Remove(Handle id) {
    (void)map_.Unregister(id);
    if (++removed_ % 64 == 0) map_.TrimHistory(map_.epoch());  // as a session's collector does
  }
  bool LoadAtOnce(const std::vector<Range>& ranges) {
    std::vector<CodeRegistration> codes(ranges.size());
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      codes[i].start = ranges[i].start;
      codes[i].size = ranges[i].size;
      codes[i].kind = CodeKind::kJit;
    }
    return map_.RegisterBatch(codes.data(), codes.size(), nullptr).ok();
  }
  CodeMapMemory memory() const { return map_.memory(); }

 private:
  CodeMap map_;
  unsigned removed_ = 0;
};

class SeedTwoVectors {
 public:
  using Handle = const SeedSegment*;
  bool Load(const std::vector<Range>& ranges) {
    for (const Range& range : ranges) Insert(range);
    return true;
  }
  bool Lookup(std::uintptr_t pc, Answer* out) const {
    const SeedSegment* found = map_.Lookup(pc);
    if (found == nullptr) return false;
    *out = {found->id, found->kind, found->start, found->size};
    return true;
  }
  Handle Insert(const Range& range) {
    const auto* segment = new SeedSegment{range.start, range.size, range.id, CodeKind::kJit};
    map_.Insert(segment);
    return segment;
  }
  void Remove(Handle segment) {
    map_.Remove(segment);
    delete segment;
  }

 private:
  SeedMapModel map_;
};

struct Value {
  std::size_t size;
  std::uint32_t id;
  CodeKind kind;
};

// A tree of starts, and a lock that readers share.
template <typename Tree>
class TreeUnderRwlock {
 public:
  using Handle = std::uintptr_t;
  bool Load(const std::vector<Range>& ranges) {
    for (const Range& range : ranges) Insert(range);
    return true;
  }
  bool Lookup(std::uintptr_t pc, Answer* out) const {
    pthread_rwlock_rdlock(&lock_);
    auto it = tree_.upper_bound(pc);
    bool found = false;
    if (it != tree_.begin()) {
      --it;
      found = pc - it->first < it->second.size;
      if (found) *out = {it->second.id, it->second.kind, it->first, it->second.size};
    }
    pthread_rwlock_unlock(&lock_);
    return found;
  }
  Handle Insert(const Range& range) {
    pthread_rwlock_wrlock(&lock_);
    tree_.emplace(range.start, Value{range.size, range.id, CodeKind::kJit});
    pthread_rwlock_unlock(&lock_);
    return range.start;
  }
  void Remove(Handle start) {
    pthread_rwlock_wrlock(&lock_);
    tree_.erase(start);
    pthread_rwlock_unlock(&lock_);
  }

 private:
  mutable pthread_rwlock_t lock_ = PTHREAD_RWLOCK_INITIALIZER;
  Tree tree_;
};
using RbTreeRwlock = TreeUnderRwlock<std::map<std::uintptr_t, Value>>;
#ifdef STACKPIPE_BENCH_ABSL
using AbslBtreeRwlock = TreeUnderRwlock<absl::btree_map<std::uintptr_t, Value>>;
#endif

struct Entry {
  std::uintptr_t start;
  std::uint32_t size;
  std::uint32_t id;
};

// A sorted array of 16-byte entries, its starts apart so that the search touches as few lines as can be.
// Nothing protects it: the fastest that a binary search can be, for readers that never meet a writer.
class FlatArray {
 public:
  using Handle = std::uintptr_t;
  bool Load(const std::vector<Range>& ranges) {
    for (const Range& range : ranges) {
      starts_.push_back(range.start);
      rest_.push_back({static_cast<std::uint32_t>(range.size), range.id});
    }
    return true;
  }
  bool Lookup(std::uintptr_t pc, Answer* out) const {
    // Without a branch that depends on the data.
    const std::uintptr_t* base = starts_.data();
    std::size_t left = starts_.size();
    if (left == 0) return false;
    while (left > 1) {
      const std::size_t half = left / 2;
      base = base[half] <= pc ? base + half : base;
      left -= half;
    }
    const Rest& rest = rest_[static_cast<std::size_t>(base - starts_.data())];
    if (pc - *base >= rest.size) return false;
    *out = {rest.id, CodeKind::kJit, *base, rest.size};
    return true;
  }
  Handle Insert(const Range& range) {
    const auto at = std::lower_bound(starts_.begin(), starts_.end(), range.start) - starts_.begin();
    starts_.insert(starts_.begin() + at, range.start);
    rest_.insert(rest_.begin() + at, {static_cast<std::uint32_t>(range.size), range.id});
    return range.start;
  }
  void Remove(Handle start) {
    const auto at = std::lower_bound(starts_.begin(), starts_.end(), start) - starts_.begin();
    starts_.erase(starts_.begin() + at);
    rest_.erase(rest_.begin() + at);
  }

 private:
  struct Rest {
    std::uint32_t size;
    std::uint32_t id;
  };
  std::vector<std::uintptr_t> starts_;
  std::vector<Rest> rest_;
};

#ifdef STACKPIPE_BENCH_URCU
// A sorted array that is copied for each change and freed after a grace period.
class UrcuArray {
 public:
  using Handle = std::uintptr_t;
  UrcuArray() { array_.store(new std::vector<Entry>); }
  ~UrcuArray() { delete array_.load(); }
  bool Load(const std::vector<Range>& ranges) {
    auto* array = new std::vector<Entry>;
    for (const Range& range : ranges) {
      array->push_back({range.start, static_cast<std::uint32_t>(range.size), range.id});
    }
    delete array_.exchange(array);
    return true;
  }
  bool Lookup(std::uintptr_t pc, Answer* out) const {
    thread_local const Registration registration;
    (void)registration;
    urcu_memb_read_lock();
    const std::vector<Entry>& array = *array_.load(std::memory_order_acquire);
    const auto behind =
        std::upper_bound(array.begin(), array.end(), pc,
                         [](std::uintptr_t at, const Entry& entry) { return at < entry.start; });
    bool found = false;
    if (behind != array.begin()) {
      const Entry& entry = *std::prev(behind);
      found = pc - entry.start < entry.size;
      if (found) *out = {entry.id, CodeKind::kJit, entry.start, entry.size};
    }
    urcu_memb_read_unlock();
    return found;
  }
  Handle Insert(const Range& range) {
    Change([&](std::vector<Entry>& array) {
      array.insert(Position(array, range.start),
                   {range.start, static_cast<std::uint32_t>(range.size), range.id});
    });
    return range.start;
  }
  void Remove(Handle start) {
    Change([&](std::vector<Entry>& array) { array.erase(Position(array, start)); });
  }

 private:
  struct Registration {
    Registration() { urcu_memb_register_thread(); }
    ~Registration() { urcu_memb_unregister_thread(); }
  };
  static std::vector<Entry>::iterator Position(std::vector<Entry>& array, std::uintptr_t start) {
    return std::lower_bound(array.begin(), array.end(), start,
                            [](const Entry& entry, std::uintptr_t at) { return entry.start < at; });
  }
  template <typename F>
  void Change(const F& change) {
    const std::lock_guard lock(mutex_);
    const std::vector<Entry>* old = array_.load();
    auto* fresh = new std::vector<Entry>;
    fresh->reserve(old->size() + 1);
    fresh->assign(old->begin(), old->end());
    change(*fresh);
    array_.store(fresh, std::memory_order_release);
    urcu_memb_synchronize_rcu();
    delete old;
  }

  std::mutex mutex_;
  std::atomic<const std::vector<Entry>*> array_;
};
#endif

}  // namespace stackpipe::bench

#endif  // STACKPIPE_BENCH_CODE_MAP_MAPS_H_
