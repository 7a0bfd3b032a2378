// SPDX-License-Identifier: MIT
//
// ForkSafeLock: a lock that a child of fork always finds free, whoever held it in the parent.
//
// Its word lies on a page that the kernel gives to the child zeroed (MADV_WIPEONFORK, Linux 4.14), and zero
// means free. Nothing has to be called around fork, and a fork that runs no atfork handlers is as good. What
// the lock protects may be half changed in the child; whoever uses it must be able to tell (see
// CodeMap::Impl::changing).
#ifndef STACKPIPE_CODE_MAP_FORK_SAFE_LOCK_H_
#define STACKPIPE_CODE_MAP_FORK_SAFE_LOCK_H_

#include <atomic>
#include <cstdint>

namespace stackpipe::internal {

class ForkSafeLock {
 public:
  ForkSafeLock() noexcept;
  ~ForkSafeLock();
  ForkSafeLock(const ForkSafeLock&) = delete;
  ForkSafeLock& operator=(const ForkSafeLock&) = delete;

  // False: out of memory, do not use.
  bool ok() const noexcept { return word_ != nullptr; }

  // MT-Safe, not AS-Safe, not recursive. errno is kept.
  void Lock() noexcept;
  void Unlock() noexcept;

 private:
  // 0 free, 1 held, 2 held and somebody may sleep on it.
  std::atomic<std::uint32_t>* word_;
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_FORK_SAFE_LOCK_H_
