// SPDX-License-Identifier: MIT
//
// FlatMap: a hash table from 64-bit keys to small values, in one array. The call tree asks it once for each
// new frame of a stack, and a node-based map costs three cache misses there instead of one.
//
// Not thread-safe. Nothing is ever removed.
#ifndef STACKPIPE_PROFILE_FLAT_MAP_H_
#define STACKPIPE_PROFILE_FLAT_MAP_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace stackpipe {

template <typename Value>
class FlatMap {
 public:
  // Not allowed as a key.
  static constexpr std::uint64_t kNoKey = ~std::uint64_t{0};

  // The value of `key`, made from `value` if there was none. The pointer is valid until the next call.
  std::pair<Value*, bool> TryEmplace(std::uint64_t key, const Value& value) {
    if ((size_ + 1) * 3 > slots_.size() * 2) Grow();
    Slot& slot = Find(key);
    const bool is_new = slot.key == kNoKey;
    if (is_new) {
      slot = {key, value};
      ++size_;
    }
    return {&slot.value, is_new};
  }

  std::size_t size() const { return size_; }

 private:
  struct Slot {
    std::uint64_t key = kNoKey;
    Value value{};
  };

  // The slot of `key`, or the empty one where it belongs. Ends, because a third of the slots are empty.
  Slot& Find(std::uint64_t key) {
    std::uint64_t hash = key * 0x9e3779b97f4a7c15u;  // 2^64 divided by the golden ratio: spreads neighbours
    hash ^= hash >> 32;
    std::size_t at = hash & (slots_.size() - 1);
    while (slots_[at].key != kNoKey && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    return slots_[at];
  }

  void Grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kNoKey) Find(slot.key) = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two
  std::size_t size_ = 0;
};

}  // namespace stackpipe

#endif  // STACKPIPE_PROFILE_FLAT_MAP_H_
