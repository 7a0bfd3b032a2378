// SPDX-License-Identifier: MIT
//
// TextStore: each distinct text once, counted, behind a handle of 32 bits. A text does not move while
// somebody holds it. For the writer only, but for View.
#ifndef STACKPIPE_CODE_MAP_TEXT_STORE_H_
#define STACKPIPE_CODE_MAP_TEXT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "code_map/hash_index.h"

namespace stackpipe::internal {

class TextStore {
 public:
  TextStore() = default;
  ~TextStore();
  TextStore(const TextStore&) = delete;
  TextStore& operator=(const TextStore&) = delete;

  // Holds `text` once more; 0 is the empty text. False: out of memory (or the text is larger than 4 GiB), and
  // nothing has changed.
  bool Intern(std::string_view text, std::uint32_t* handle) noexcept;
  // Holds a text once more that is held already.
  void Hold(std::uint32_t handle) noexcept;
  // Holds it once less. True: that was the last, the text is gone.
  bool Release(std::uint32_t handle) noexcept;
  // True if one Release would be the last.
  bool HeldOnce(std::uint32_t handle) const noexcept;
  // Valid as long as the handle is held. Any thread, no lock; while the handle is not held the view may be of
  // anything, but looking for it does no harm.
  std::string_view View(std::uint32_t handle) const noexcept;

  // Bytes of all texts, used or free, and of the index.
  std::size_t bytes() const noexcept { return bytes_ + index_.bytes(); }

 private:
  // In front of the characters. Memory is given out in units of its size.
  struct Text {
    std::uint32_t hash;
    std::uint32_t held;
    std::uint32_t length;
    std::uint32_t next_free;
  };
  static constexpr std::size_t kUnit = 16;
  static_assert(sizeof(Text) == kUnit);
  // A handle is chunk << 16 | unit. A text that is too large for a chunk has one of its own.
  static constexpr std::size_t kChunkUnits = std::size_t{1} << 16;
  static constexpr std::size_t kChunksMax = std::size_t{1} << 16;
  static constexpr unsigned kExactClasses = 64;             // 1 to 64 units
  static constexpr unsigned kClasses = kExactClasses + 10;  // then powers of two up to a chunk
  // Memory is given back when the store goes: a reader may look at a handle that is not held any more.
  struct Chunk {
    std::byte* memory;
    std::size_t bytes;
    std::uint32_t next_free;
  };

  static std::size_t UnitsFor(std::size_t length) { return 1 + (length + kUnit - 1) / kUnit; }
  static unsigned ClassOf(std::size_t units);
  static std::size_t UnitsOf(unsigned size_class);
  Text* At(std::uint32_t handle) const {
    return reinterpret_cast<Text*>(chunks_[handle >> 16].memory + (handle & 0xffff) * kUnit);
  }
  std::uint32_t Allocate(std::size_t length) noexcept;
  std::uint32_t AllocateLarge(std::size_t bytes) noexcept;
  std::uint32_t NewChunk(std::size_t bytes) noexcept;
  void Free(std::uint32_t handle) noexcept;

  HashIndex index_;          // hash of a text -> handles
  Chunk* chunks_ = nullptr;  // kChunksMax of them, committed as they are touched
  std::uint32_t chunk_count_ = 0;
  std::uint32_t first_free_chunk_ = 0;  // of those whose text was large
  std::uint32_t fill_chunk_ = 0;        // the chunk that is being given out, and how much of it
  std::size_t fill_used_ = kChunkUnits;
  std::uint32_t free_[kClasses] = {};
  std::size_t bytes_ = 0;
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_TEXT_STORE_H_
