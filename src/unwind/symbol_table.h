// SPDX-License-Identifier: MIT
//
// The function symbols of one ELF file, sorted for lookup by address.
#ifndef STACKPIPE_UNWIND_SYMBOL_TABLE_H_
#define STACKPIPE_UNWIND_SYMBOL_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "unwind/elf_image.h"

namespace stackpipe {

// True for functions, and for sized labels of hand-written assembly, that have an address.
bool IsFunctionSymbol(const Elf64_Sym& symbol);

// Which of several symbols at one address names it: the lowest. Global before weak before local, functions
// before labels.
std::uint8_t SymbolRank(const Elf64_Sym& symbol);

class SymbolTable {
 public:
  struct Symbol {
    std::uint64_t start = 0, end = 0;
    std::uint32_t name = 0;  // offset in names_
    std::uint8_t rank = 0;   // of SymbolRank
  };

  // Reads .symtab and .dynsym. A table that is broken is as if absent.
  void Load(const ElfImage& image);

  // The symbol whose [st_value, st_value + st_size) holds `address`; of several, the one that starts last; of
  // several that start there, a global before a weak before a local one. Null: none.
  const Symbol* Find(std::uint64_t address) const;

  // As the file has it, without a version ("memcpy@@GLIBC_2.14" is "memcpy").
  std::string_view NameOf(const Symbol& symbol) const;

 private:
  void Append(const ElfImage& image, const Elf64_Shdr& section);

  std::vector<Symbol> symbols_;
  std::vector<std::uint64_t> end_before_;  // the largest end of symbols_[0..i]: bounds the search backwards
  std::vector<char> names_;
};

// The readable form of a C++ name; other names as they are.
std::string Demangle(std::string_view name);

}  // namespace stackpipe

#endif  // STACKPIPE_UNWIND_SYMBOL_TABLE_H_
