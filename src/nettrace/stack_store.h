// SPDX-License-Identifier: MIT
//
// StackStore: the stacks of one sequence-point region by their ids, as a reader needs them.
#ifndef STACKPIPE_NETTRACE_STACK_STORE_H_
#define STACKPIPE_NETTRACE_STACK_STORE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace stackpipe::nettrace {

class StackStore {
 public:
  // Adds addresses of `pointer_size` (4 or 8) bytes each; bytes that make no whole address are ignored.
  // Returns false if the id is taken.
  bool Add(std::uint32_t id, std::span<const std::byte> bytes, std::size_t pointer_size);

  // The stack, empty if there is none. Stays where it is until Clear().
  std::span<const std::uint64_t> Find(std::uint32_t id) const;

  void Clear();

 private:
  static constexpr std::size_t kChunkWords = 8192;
  // Ids come in long runs: each run is a range of `stacks_`.
  struct Run {
    std::size_t index = 0;
    std::uint32_t count = 0;
  };
  using Stack = std::span<const std::uint64_t>;

  const Stack* Lookup(std::uint32_t id) const;
  std::uint64_t* Allocate(std::size_t words);

  std::map<std::uint32_t, Run> runs_;  // by first id
  std::uint32_t last_run_ = 0;         // first id of the run that was added to last
  std::vector<Stack> stacks_;
  std::vector<std::unique_ptr<std::uint64_t[]>> chunks_;
  std::uint64_t* free_ = nullptr;
  std::size_t free_words_ = 0;
};

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_STACK_STORE_H_
