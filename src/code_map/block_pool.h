// SPDX-License-Identifier: MIT
//
// BlockPool: memory in blocks of a few different sizes. What is freed is kept for the next of its size, so a
// block of some size stays one; its first eight bytes change when it is freed. For the writer only; not
// thread-safe.
#ifndef STACKPIPE_CODE_MAP_BLOCK_POOL_H_
#define STACKPIPE_CODE_MAP_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>

namespace stackpipe::internal {

class BlockPool {
 public:
  BlockPool() = default;
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // At least `bytes`, aligned to 8, not zeroed. At most kSizesMax different sizes may be asked for, none
  // above 64 KiB. nullptr: out of memory.
  void* Allocate(std::size_t bytes) noexcept;
  void Free(void* block, std::size_t bytes) noexcept;

  // Bytes of all blocks, used or free.
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::size_t kSizesMax = 12;
  struct Link {
    Link* next;
  };
  struct Size {
    std::size_t bytes;
    Link* free;
  };
  struct Chunk {
    Chunk* next;
    std::size_t bytes;
  };

  Size* SizeOf(std::size_t bytes) noexcept;

  Size sizes_[kSizesMax] = {};
  Chunk* chunks_ = nullptr;
  std::byte* chunk_at_ = nullptr;
  std::size_t chunk_left_ = 0;
  std::size_t next_chunk_bytes_ = std::size_t{64} << 10;
  std::size_t bytes_ = 0;
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_BLOCK_POOL_H_
