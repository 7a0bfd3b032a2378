// SPDX-License-Identifier: MIT
#include "code_map/fork_safe_lock.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "code_map/page_memory.h"

namespace stackpipe::internal {

namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr int kSpins = 100;  // a change takes about as long as this; sleeping takes ten times that

void Futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value) {
  const int saved_errno = errno;
  syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0);
  errno = saved_errno;
}

}  // namespace

ForkSafeLock::ForkSafeLock() noexcept : word_(nullptr) {
  void* page = AllocatePages(kPageBytes);
  if (page == nullptr) return;
  const int saved_errno = errno;
  madvise(page, kPageBytes,
          MADV_WIPEONFORK);  // an older kernel refuses: only a fork amid a change is unsafe then
  errno = saved_errno;
  word_ = new (page) std::atomic<std::uint32_t>(0);
}

ForkSafeLock::~ForkSafeLock() { FreePages(word_, kPageBytes); }

void ForkSafeLock::Lock() noexcept {
  std::uint32_t seen = 0;
  for (int i = 0; i < kSpins; ++i) {
    seen = 0;
    if (word_->compare_exchange_weak(seen, 1, std::memory_order_acquire, std::memory_order_relaxed)) return;
    if (seen == 2) break;
  }
  // From here on we hold it as 2: we cannot know whether others sleep.
  while (word_->exchange(2, std::memory_order_acquire) != 0) Futex(word_, FUTEX_WAIT_PRIVATE, 2);
}

void ForkSafeLock::Unlock() noexcept {
  if (word_->exchange(0, std::memory_order_release) == 2) Futex(word_, FUTEX_WAKE_PRIVATE, 1);
}

}  // namespace stackpipe::internal
