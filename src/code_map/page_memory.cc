// SPDX-License-Identifier: MIT
#include "code_map/page_memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

namespace stackpipe::internal {

namespace {

std::atomic<std::int64_t> allowed_for_test{-1};

}  // namespace

void* AllocatePages(std::size_t bytes) noexcept {
  if (AllocationFailsForTest()) return nullptr;
  const int saved_errno = errno;
  void* pages =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  errno = saved_errno;
  return pages == MAP_FAILED ? nullptr : pages;
}

void* AllocateDensePages(std::size_t bytes) noexcept {
  if (bytes < kHugePage) return AllocatePages(bytes);
  // Huge pages are aligned: takes one more, and gives back what lies before and behind.
  auto* const pages = static_cast<std::byte*>(AllocatePages(bytes + kHugePage));
  if (pages == nullptr) return nullptr;
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(pages) & (kHugePage - 1);
  if (before != 0) munmap(pages, before);
  if (before != kHugePage) munmap(pages + before + bytes, kHugePage - before);
  const int saved_errno = errno;
  madvise(pages + before, bytes, MADV_HUGEPAGE);  // may fail: they are small ones then
  errno = saved_errno;
  return pages + before;
}

void DropPages(void* pages, std::size_t bytes) noexcept {
  const int saved_errno = errno;
  madvise(pages, bytes, MADV_DONTNEED);
  errno = saved_errno;
}

void FreePages(void* pages, std::size_t bytes) noexcept {
  if (pages != nullptr) munmap(pages, bytes);
}

void FailAllocationsForTest(std::int64_t allowed) noexcept { allowed_for_test.store(allowed); }

bool AllocationFailsForTest() noexcept {
  std::int64_t left = allowed_for_test.load(std::memory_order_relaxed);
  if (left < 0) return false;
  // Stays at 0 once it is there: every later allocation fails too.
  while (left > 0 && !allowed_for_test.compare_exchange_weak(left, left - 1)) {
  }
  return left == 0;
}

}  // namespace stackpipe::internal
