// SPDX-License-Identifier: MIT
//
// IdTable: which sequences of words are in the stream already, by their content, and under which id. It owns
// its memory, grows up to a limit and is used again after Clear(). At its limit, or without memory, it
// forgets nothing and learns nothing: what is not in it is written once more under a new id, which costs
// bytes and breaks no rule.
#ifndef STACKPIPE_NETTRACE_ID_TABLE_H_
#define STACKPIPE_NETTRACE_ID_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace stackpipe::nettrace {

// Used by one thread at a time.
class IdTable {
 public:
  // `limit_bytes` holds the keys, with a word more for each. The slots beside them take as much at most,
  // which is for keys of one word.
  explicit IdTable(std::size_t limit_bytes) : limit_words_(limit_bytes / kWord) {}

  static std::uint32_t Hash(std::span<const std::uint64_t> key);

  // The id of `key`, or 0. `hash` is Hash(key). Cost: BM_WriteSample.
  std::uint32_t Find(std::span<const std::uint64_t> key, std::uint32_t hash) const;

  // Remembers `key`, which is not in the table, under `id`, which is not 0.
  void Insert(std::span<const std::uint64_t> key, std::uint32_t hash, std::uint32_t id);

  void Clear();

  // Bytes of keys held.
  std::size_t bytes() const { return used_words_ * kWord; }

 private:
  static constexpr std::size_t kWord = sizeof(std::uint64_t);
  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t at = 0;  // index in words_ plus one; 0 = free
  };

  bool GrowWords(std::size_t words);
  bool GrowSlots();
  static void Place(Slot* slots, std::size_t slot_count, Slot slot);

  const std::size_t limit_words_;
  // For each key a word (id in the low half, number of words in the high half), then its words.
  std::unique_ptr<std::uint64_t[]> words_;
  std::size_t used_words_ = 0;
  std::size_t word_capacity_ = 0;
  // Open addressing, linear probing, at most half full; the number of slots is a power of two.
  std::unique_ptr<Slot[]> slots_;
  std::size_t slot_count_ = 0;
  std::size_t keys_ = 0;
};

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_ID_TABLE_H_
