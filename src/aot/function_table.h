// SPDX-License-Identifier: MIT
//
// FunctionTable: the functions of a file as a sorted method table of ranges that do not overlap, made of what
// symbols and call frame information claim.
#ifndef STACKPIPE_AOT_FUNCTION_TABLE_H_
#define STACKPIPE_AOT_FUNCTION_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aot/aot_source.h"

namespace stackpipe {

// A function as the file claims it: [start, end), as offsets from the start of the code.
struct FunctionRange {
  static constexpr std::uint32_t kNoName = UINT32_MAX;

  std::uint32_t start = 0, end = 0;
  std::uint32_t name = kNoName;  // whatever the maker finds the name by
  std::uint32_t rank = 0;        // SymbolRank
};

class FunctionTable {
 public:
  // Of several named ranges that hold an address, the one that starts last has it, and of several that start
  // there the one with the lowest rank, then the lowest name: what SymbolTable::Find says. A function that
  // others cut up makes several entries. `unnamed` ranges get what is left, by the same rule. Empty ranges do
  // not count.
  void Build(std::vector<FunctionRange> named, std::vector<FunctionRange> unnamed);

  AotMethodTable table() const noexcept {
    return {starts_.data(), static_cast<std::uint32_t>(starts_.size())};
  }
  // AS-safe.
  std::uint32_t size(std::uint32_t index) const noexcept { return sizes_.data()[index]; }
  std::uint32_t name(std::uint32_t index) const { return names_[index]; }
  std::size_t count() const noexcept { return starts_.size(); }

 private:
  void Append(const FunctionRange& piece);

  std::vector<std::uint32_t> starts_;
  std::vector<std::uint32_t> sizes_;
  std::vector<std::uint32_t> names_;
};

}  // namespace stackpipe

#endif  // STACKPIPE_AOT_FUNCTION_TABLE_H_
