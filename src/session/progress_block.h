// SPDX-License-Identifier: MIT
//
// ProgressBlock: what a running session shows to the `stackpipe record` that started it, in a small file that
// both have mapped. The session writes, the tool reads; each field is one atomic store, none depends on
// another.
#ifndef STACKPIPE_SESSION_PROGRESS_BLOCK_H_
#define STACKPIPE_SESSION_PROGRESS_BLOCK_H_

#include <atomic>
#include <cstdint>

namespace stackpipe {

struct ProgressBlock {
  static constexpr std::uint64_t kMagic = 0x31'50'52'47'4b'50'54'53;  // "STPKGRP1"

  std::atomic<std::uint64_t> magic{0};  // kMagic once the session runs
  std::atomic<std::uint64_t> process_id{0};
  std::atomic<std::uint64_t> samples{0};  // in the file
  std::atomic<std::uint64_t> dropped{0};
  std::atomic<std::uint64_t> bytes{0};        // of the file
  std::atomic<std::uint64_t> write_error{0};  // errno of the first write that failed
  std::atomic<std::uint64_t> start_error{
      0};                               // errno, or 1 for another reason, if the session could not start
  std::atomic<std::uint64_t> ended{0};  // 1 once the end mark is written
  char output_path[4096] = {};          // written before `magic`
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace stackpipe

#endif  // STACKPIPE_SESSION_PROGRESS_BLOCK_H_
