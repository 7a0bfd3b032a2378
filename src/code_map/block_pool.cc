// SPDX-License-Identifier: MIT
#include "code_map/block_pool.h"

#include "code_map/atomic_word.h"
#include "code_map/page_memory.h"

namespace stackpipe::internal {

BlockPool::~BlockPool() {
  while (chunks_ != nullptr) {
    Chunk* const chunk = chunks_;
    chunks_ = chunk->next;
    FreePages(chunk, chunk->bytes);
  }
}

BlockPool::Size* BlockPool::SizeOf(std::size_t bytes) noexcept {
  Size* size = sizes_;
  while (size->bytes != bytes && size->bytes != 0) ++size;
  size->bytes = bytes;
  return size;
}

void* BlockPool::Allocate(std::size_t bytes) noexcept {
  if (AllocationFailsForTest()) return nullptr;
  bytes = (bytes + 7) & ~std::size_t{7};
  Size* const size = SizeOf(bytes);
  if (Link* const link = size->free; link != nullptr) {
    size->free = link->next;
    return link;
  }
  if (chunk_left_ < bytes) {
    // The rest of the old chunk is left.
    auto* const chunk = static_cast<Chunk*>(AllocateDensePages(next_chunk_bytes_));
    if (chunk == nullptr) return nullptr;
    *chunk = {chunks_, next_chunk_bytes_};
    chunks_ = chunk;
    chunk_at_ = reinterpret_cast<std::byte*>(chunk + 1);
    chunk_left_ = next_chunk_bytes_ - sizeof(Chunk);
    if (next_chunk_bytes_ < kHugePage) next_chunk_bytes_ *= 2;
  }
  void* const block = chunk_at_;
  chunk_at_ += bytes;
  chunk_left_ -= bytes;
  bytes_ += bytes;
  return block;
}

void BlockPool::Free(void* block, std::size_t bytes) noexcept {
  Size* const size = SizeOf((bytes + 7) & ~std::size_t{7});
  auto* const link = static_cast<Link*>(block);
  Release(&link->next, size->free);
  size->free = link;
}

}  // namespace stackpipe::internal
