// SPDX-License-Identifier: MIT
#include "nettrace/stack_store.h"

#include <cstring>
#include <iterator>

namespace stackpipe::nettrace {

bool StackStore::Add(std::uint32_t id, std::span<const std::byte> bytes, std::size_t pointer_size) {
  if (Lookup(id) != nullptr) return false;
  const std::size_t words = bytes.size() / pointer_size;
  std::uint64_t* to = Allocate(words);
  if (pointer_size == sizeof(std::uint64_t)) {
    if (words != 0) std::memcpy(to, bytes.data(), words * sizeof(std::uint64_t));
  } else {
    for (std::size_t i = 0; i < words; ++i) {
      std::uint32_t address = 0;
      std::memcpy(&address, bytes.data() + i * sizeof address, sizeof address);
      to[i] = address;
    }
  }

  const auto run = runs_.find(last_run_);
  const bool goes_on = run != runs_.end() && run->first + run->second.count == id;
  if (goes_on && id != 0) {  // 0 would be a wrap
    ++run->second.count;
  } else {
    runs_.emplace(id, Run{stacks_.size(), 1});
    last_run_ = id;
  }
  stacks_.emplace_back(to, words);
  return true;
}

std::span<const std::uint64_t> StackStore::Find(std::uint32_t id) const {
  const Stack* stack = Lookup(id);
  return stack == nullptr ? Stack() : *stack;
}

const StackStore::Stack* StackStore::Lookup(std::uint32_t id) const {
  auto run = runs_.upper_bound(id);
  if (run == runs_.begin()) return nullptr;
  run = std::prev(run);
  const std::uint32_t position = id - run->first;
  return position < run->second.count ? &stacks_[run->second.index + position] : nullptr;
}

void StackStore::Clear() {
  runs_.clear();
  stacks_.clear();
  chunks_.clear();
  free_ = nullptr;
  free_words_ = 0;
}

std::uint64_t* StackStore::Allocate(std::size_t words) {
  // A chunk of its own for a long stack, so that no more than a quarter of a shared chunk is ever left
  // unused.
  if (words > kChunkWords / 4) {
    chunks_.push_back(std::make_unique<std::uint64_t[]>(words));
    return chunks_.back().get();
  }
  if (words > free_words_) {
    chunks_.push_back(std::make_unique<std::uint64_t[]>(kChunkWords));
    free_ = chunks_.back().get();
    free_words_ = kChunkWords;
  }
  std::uint64_t* at = free_;
  free_ += words;
  free_words_ -= words;
  return at;
}

}  // namespace stackpipe::nettrace
