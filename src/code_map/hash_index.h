// SPDX-License-Identifier: MIT
//
// HashIndex: from a 32-bit key to 32-bit values that are not 0, several for one key too. Open addressing with
// linear probing, 8 bytes an entry. For the writer only; not thread-safe.
#ifndef STACKPIPE_CODE_MAP_HASH_INDEX_H_
#define STACKPIPE_CODE_MAP_HASH_INDEX_H_

#include <cstddef>
#include <cstdint>

#include "code_map/page_memory.h"

namespace stackpipe::internal {

class HashIndex {
 public:
  HashIndex() = default;
  ~HashIndex() { FreePages(entries_, bytes()); }
  HashIndex(const HashIndex&) = delete;
  HashIndex& operator=(const HashIndex&) = delete;

  // Makes room for `more` entries, so that as many Inserts cannot fail. False: out of memory, nothing
  // changed.
  bool Reserve(std::size_t more) noexcept {
    const std::size_t need = (used_ + more) * 4 / 3 + 1;
    return need <= capacity() || Grow(need);
  }
  void Insert(std::uint32_t key, std::uint32_t value) noexcept {
    std::size_t at = Home(key);
    while (entries_[at] != 0) at = (at + 1) & mask_;
    entries_[at] = Entry(key, value);
    ++used_;
  }
  // The first value of `key` for which `matches(value)`; 0: none.
  template <typename Matches>
  std::uint32_t Find(std::uint32_t key, const Matches& matches) const noexcept {
    const std::size_t at = PositionOf(key, matches);
    return at == kNowhere ? 0 : Value(entries_[at]);
  }
  // Both: the entry (key, value) is there.
  void Replace(std::uint32_t key, std::uint32_t value, std::uint32_t new_value) noexcept {
    entries_[PositionOf(key, [&](std::uint32_t v) { return v == value; })] = Entry(key, new_value);
  }
  void Erase(std::uint32_t key, std::uint32_t value) noexcept {
    std::size_t hole = PositionOf(key, [&](std::uint32_t v) { return v == value; });
    // Moves up what was pushed over the hole.
    for (std::size_t at = (hole + 1) & mask_; entries_[at] != 0; at = (at + 1) & mask_) {
      const std::size_t distance = (at - Home(Key(entries_[at]))) & mask_;
      if (distance < ((at - hole) & mask_)) continue;
      entries_[hole] = entries_[at];
      hole = at;
    }
    entries_[hole] = 0;
    --used_;
  }

  std::size_t bytes() const noexcept { return entries_ == nullptr ? 0 : (mask_ + 1) * sizeof(std::uint64_t); }

 private:
  static constexpr std::size_t kNowhere = ~std::size_t{0};

  static std::uint64_t Entry(std::uint32_t key, std::uint32_t value) {
    return std::uint64_t{key} << 32 | value;
  }
  static std::uint32_t Key(std::uint64_t entry) { return static_cast<std::uint32_t>(entry >> 32); }
  static std::uint32_t Value(std::uint64_t entry) { return static_cast<std::uint32_t>(entry); }
  std::size_t capacity() const { return entries_ == nullptr ? 0 : mask_ + 1; }
  // Spreads keys that count up: runs of old and new ones would meet otherwise.
  std::size_t Home(std::uint32_t key) const { return (key * 0x9e3779b97f4a7c15u >> shift_) & mask_; }

  template <typename Matches>
  std::size_t PositionOf(std::uint32_t key, const Matches& matches) const noexcept {
    if (entries_ == nullptr) return kNowhere;
    for (std::size_t at = Home(key); entries_[at] != 0; at = (at + 1) & mask_) {
      if (Key(entries_[at]) == key && matches(Value(entries_[at]))) return at;
    }
    return kNowhere;
  }

  bool Grow(std::size_t need) noexcept {
    std::size_t size = 512;
    unsigned bits = 9;
    for (; size < need; size *= 2) ++bits;
    auto* entries = static_cast<std::uint64_t*>(AllocateDensePages(size * sizeof(std::uint64_t)));
    if (entries == nullptr) return false;
    std::uint64_t* const old = entries_;
    const std::size_t old_capacity = capacity();
    entries_ = entries;
    mask_ = size - 1;
    shift_ = 64 - bits;
    used_ = 0;
    for (std::size_t i = 0; i < old_capacity; ++i) {
      if (old[i] != 0) Insert(Key(old[i]), Value(old[i]));
    }
    FreePages(old, old_capacity * sizeof(std::uint64_t));
    return true;
  }

  std::uint64_t* entries_ = nullptr;
  std::size_t mask_ = 0;
  unsigned shift_ = 0;
  std::size_t used_ = 0;
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_HASH_INDEX_H_
