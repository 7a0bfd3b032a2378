// SPDX-License-Identifier: MIT
#include "nettrace/id_table.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace stackpipe::nettrace {

std::uint32_t IdTable::Hash(std::span<const std::uint64_t> key) {
  // Two lanes, so that the multiplications overlap. The constant is odd and random-looking, nothing more.
  constexpr std::uint64_t kOdd = 0x9e37'79b9'7f4a'7c15;
  std::uint64_t a = key.size() * kOdd;
  std::uint64_t b = ~a;
  std::size_t i = 0;
  for (; i + 2 <= key.size(); i += 2) {
    a = (a ^ key[i]) * kOdd;
    b = (b ^ key[i + 1]) * kOdd;
    a ^= a >> 29;
    b ^= b >> 31;
  }
  if (i < key.size()) a = (a ^ key[i]) * kOdd;
  a = (a ^ a >> 32 ^ b << 1 ^ b >> 33) * kOdd;
  return static_cast<std::uint32_t>(a >> 32);
}

std::uint32_t IdTable::Find(std::span<const std::uint64_t> key, std::uint32_t hash) const {
  if (slot_count_ == 0) return 0;
  for (std::size_t i = hash;; ++i) {
    const Slot slot = slots_[i & (slot_count_ - 1)];
    if (slot.at == 0) return 0;
    if (slot.hash != hash) continue;
    const std::uint64_t* entry = words_.get() + (slot.at - 1);
    if (*entry >> 32 != key.size()) continue;
    if (std::memcmp(entry + 1, key.data(), key.size_bytes()) == 0) return static_cast<std::uint32_t>(*entry);
  }
}

void IdTable::Insert(std::span<const std::uint64_t> key, std::uint32_t hash, std::uint32_t id) {
  const std::size_t words = key.size() + 1;
  if (used_words_ + words > limit_words_) return;
  if (used_words_ + words > word_capacity_ && !GrowWords(words)) return;
  if ((keys_ + 1) * 2 > slot_count_ && !GrowSlots()) return;
  std::uint64_t* entry = words_.get() + used_words_;
  *entry = static_cast<std::uint64_t>(key.size()) << 32 | id;
  std::copy(key.begin(), key.end(), entry + 1);
  Place(slots_.get(), slot_count_, {hash, static_cast<std::uint32_t>(used_words_ + 1)});
  used_words_ += words;
  ++keys_;
}

void IdTable::Clear() {
  if (keys_ != 0) std::fill_n(slots_.get(), slot_count_, Slot{});
  keys_ = 0;
  used_words_ = 0;
}

bool IdTable::GrowWords(std::size_t words) {
  const std::size_t needed = used_words_ + words;
  const std::size_t capacity =
      std::min(limit_words_, std::max({needed, word_capacity_ * 2, std::size_t{1024}}));
  std::unique_ptr<std::uint64_t[]> grown(new (std::nothrow) std::uint64_t[capacity]);
  if (grown == nullptr) return false;
  std::copy_n(words_.get(), used_words_, grown.get());
  words_ = std::move(grown);
  word_capacity_ = capacity;
  return true;
}

bool IdTable::GrowSlots() {
  const std::size_t count = std::max(slot_count_ * 2, std::size_t{256});
  std::unique_ptr<Slot[]> grown(new (std::nothrow) Slot[count]);
  if (grown == nullptr) return false;
  for (std::size_t i = 0; i < slot_count_; ++i) {
    if (slots_[i].at != 0) Place(grown.get(), count, slots_[i]);
  }
  slots_ = std::move(grown);
  slot_count_ = count;
  return true;
}

void IdTable::Place(Slot* slots, std::size_t slot_count, Slot slot) {
  std::size_t i = slot.hash & (slot_count - 1);
  while (slots[i].at != 0) i = (i + 1) & (slot_count - 1);
  slots[i] = slot;
}

}  // namespace stackpipe::nettrace
