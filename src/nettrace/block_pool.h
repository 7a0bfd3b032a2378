// SPDX-License-Identifier: MIT
//
// BlockPool: memory of blocks that are read, each kept while an event in it waits to be delivered, then used
// again.
#ifndef STACKPIPE_NETTRACE_BLOCK_POOL_H_
#define STACKPIPE_NETTRACE_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace stackpipe::nettrace {

struct PooledBlock {
  std::vector<std::byte> bytes;  // at least as many as the block has; never shrunk while in use
  std::uint32_t users = 0;       // who fills it, and the events that wait in it
  std::size_t counted = 0;       // as waiting
};

class BlockPool {
 public:
  // A block with one user.
  PooledBlock* Acquire() {
    if (idle_.empty()) {
      blocks_.push_back(std::make_unique<PooledBlock>());
      idle_.reserve(blocks_.size());  // so that Release cannot fail
      idle_.push_back(blocks_.back().get());
    }
    PooledBlock* block = idle_.back();
    idle_.pop_back();
    block->users = 1;
    return block;
  }

  // Bytes of blocks in which events wait.
  std::size_t waiting_bytes() const { return waiting_bytes_; }

  void AddUser(PooledBlock* block) {
    ++block->users;
    if (block->counted != 0) return;
    block->counted = block->bytes.size();
    waiting_bytes_ += block->counted;
  }

  void RemoveUser(PooledBlock* block) {
    if (--block->users != 0) return;
    waiting_bytes_ -= block->counted;
    block->counted = 0;
    if (idle_.size() >= kIdleMax || block->bytes.size() > kIdleSizeMax)
      std::vector<std::byte>().swap(block->bytes);
    idle_.push_back(block);
  }

 private:
  static constexpr std::size_t kIdleMax = 4;
  static constexpr std::size_t kIdleSizeMax = std::size_t{1} << 20;

  std::vector<std::unique_ptr<PooledBlock>> blocks_;
  std::vector<PooledBlock*> idle_;
  std::size_t waiting_bytes_ = 0;
};

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_BLOCK_POOL_H_
