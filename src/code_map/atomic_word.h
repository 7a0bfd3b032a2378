// SPDX-License-Identifier: MIT
//
// AtomicWord: a 64-bit word that readers load while a writer stores. Unlike std::atomic it is trivial, so
// pages that come zeroed from the kernel are arrays of it without being touched. Acquire and Release are the
// same for fields of any type.
#ifndef STACKPIPE_CODE_MAP_ATOMIC_WORD_H_
#define STACKPIPE_CODE_MAP_ATOMIC_WORD_H_

#include <atomic>
#include <cstdint>

namespace stackpipe::internal {

struct AtomicWord {
  std::uint64_t raw;

  std::uint64_t Load(std::memory_order order = std::memory_order_seq_cst) const noexcept {
    return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(raw)).load(order);
  }
  void Store(std::uint64_t value, std::memory_order order = std::memory_order_seq_cst) noexcept {
    std::atomic_ref<std::uint64_t>(raw).store(value, order);
  }
};
static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free, "handlers load AtomicWords");
static_assert(sizeof(void*) == sizeof(std::uint64_t), "AtomicWords hold pointers");

template <typename T>
T Acquire(const T& field) noexcept {
  return std::atomic_ref<T>(const_cast<T&>(field)).load(std::memory_order_acquire);
}
template <typename T>
void Release(T* field, T value) noexcept {
  std::atomic_ref<T>(*field).store(value, std::memory_order_release);
}

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_ATOMIC_WORD_H_
