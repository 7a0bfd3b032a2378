// SPDX-License-Identifier: MIT
//
// Where all memory of a code map comes from: zeroed pages of the kernel, committed when they are touched.
// The map never calls malloc, so it works at any moment of a program's life, between fork and exec too, and a
// fork in the middle of a change leaves no foreign lock behind.
#ifndef STACKPIPE_CODE_MAP_PAGE_MEMORY_H_
#define STACKPIPE_CODE_MAP_PAGE_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace stackpipe::internal {

// MT-Safe. The size is rounded up to pages. nullptr: out of memory.
void* AllocatePages(std::size_t bytes) noexcept;
// The same for memory that will be used densely. From kHugePage on the kernel is asked for huge pages, so
// that random access to much memory misses the TLB less; they are committed as a whole.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;
void* AllocateDensePages(std::size_t bytes) noexcept;
// Gives the memory back but not the addresses, where zeros are read from then on.
void DropPages(void* pages, std::size_t bytes) noexcept;
void FreePages(void* pages, std::size_t bytes) noexcept;

// Test seam: after `allowed` further allocations each one fails, in the whole process. Negative: none fails.
// Who gives out parts of pages asks AllocationFailsForTest, so that each of those can fail too.
void FailAllocationsForTest(std::int64_t allowed) noexcept;
bool AllocationFailsForTest() noexcept;

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_PAGE_MEMORY_H_
