// SPDX-License-Identifier: MIT
//
// For tests and benchmarks: a model of the process-wide map that this one began from (SpiderMonkey's for wasm
// code): two sorted vectors of pointers, of which readers see one. A writer changes the hidden one, swaps
// them, waits until no reader is counted, and changes the other one. Written anew from that description.
#ifndef STACKPIPE_CODE_MAP_SEED_MAP_MODEL_H_
#define STACKPIPE_CODE_MAP_SEED_MAP_MODEL_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "stackpipe/code_map.h"

namespace stackpipe {

struct SeedSegment {
  std::uintptr_t start;
  std::size_t size;
  CodeId id;
  CodeKind kind = CodeKind::kUnknown;
};

class SeedMapModel {
 public:
  // `segment` belongs to the caller, who may free it after Remove. False: out of memory.
  bool Insert(const SeedSegment* segment) {
    return Insert(segment, [] {});
  }
  // `waiting` is called in each round of the wait. The original ends the process when the second change
  // fails; here that is noted (see crashed).
  template <typename Waiting>
  bool Insert(const SeedSegment* segment, const Waiting& waiting) {
    const std::lock_guard lock(mutators_mutex_);
    if (!InsertInto(writable_, segment)) return false;
    SwapAndWait(waiting);
    crashed_ |= !InsertInto(writable_, segment);
    return true;
  }
  void Remove(const SeedSegment* segment) {
    Remove(segment, [] {});
  }
  template <typename Waiting>
  void Remove(const SeedSegment* segment, const Waiting& waiting) {
    const std::lock_guard lock(mutators_mutex_);
    writable_->erase(Position(*writable_, segment->start));
    SwapAndWait(waiting);
    writable_->erase(Position(*writable_, segment->start));
  }

  const SeedSegment* Lookup(std::uintptr_t pc) const {
    return Lookup(pc, [] {});
  }
  // `inside` is called in the middle.
  template <typename Inside>
  const SeedSegment* Lookup(std::uintptr_t pc, const Inside& inside) const {
    observers_.fetch_add(1);
    const Segments* segments = readonly_.load();
    inside();
    const auto behind =
        std::upper_bound(segments->begin(), segments->end(), pc,
                         [](std::uintptr_t at, const SeedSegment* s) { return at < s->start; });
    const SeedSegment* found = nullptr;
    if (behind != segments->begin() && pc - (*std::prev(behind))->start < (*std::prev(behind))->size) {
      found = *std::prev(behind);
    }
    observers_.fetch_sub(1);
    return found;
  }

  std::size_t size() const { return readonly_.load()->size(); }
  std::mutex& mutators_mutex() { return mutators_mutex_; }

  // Test seams.
  bool crashed() const { return crashed_; }
  void FailInsertIntoVector(int nth) { fail_insert_ = nth; }

 private:
  using Segments = std::vector<const SeedSegment*>;

  static Segments::const_iterator Position(const Segments& segments, std::uintptr_t start) {
    return std::lower_bound(segments.begin(), segments.end(), start,
                            [](const SeedSegment* s, std::uintptr_t at) { return s->start < at; });
  }
  bool InsertInto(Segments* segments, const SeedSegment* segment) {
    if (fail_insert_ > 0 && --fail_insert_ == 0) return false;
    segments->insert(Position(*segments, segment->start), segment);
    return true;
  }
  template <typename Waiting>
  void SwapAndWait(const Waiting& waiting) {
    Segments* const shown = writable_;
    writable_ = const_cast<Segments*>(readonly_.load());
    readonly_.store(shown);
    while (observers_.load() != 0) waiting();
  }

  std::mutex mutators_mutex_;
  Segments first_, second_;
  std::atomic<const Segments*> readonly_{&first_};
  Segments* writable_ = &second_;
  mutable std::atomic<std::size_t> observers_{0};
  bool crashed_ = false;
  int fail_insert_ = 0;
};

}  // namespace stackpipe

#endif  // STACKPIPE_CODE_MAP_SEED_MAP_MODEL_H_
