// SPDX-License-Identifier: MIT
#include "unwind/symbol_table.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <tuple>

namespace stackpipe {

bool IsFunctionSymbol(const Elf64_Sym& symbol) {
  const unsigned type = ELF64_ST_TYPE(symbol.st_info);
  return (type == STT_FUNC || type == STT_GNU_IFUNC || type == STT_NOTYPE) && symbol.st_shndx != SHN_UNDEF &&
         symbol.st_size != 0 && symbol.st_size <= ~symbol.st_value;
}

std::uint8_t SymbolRank(const Elf64_Sym& symbol) {
  std::uint8_t rank = 0;
  switch (ELF64_ST_BIND(symbol.st_info)) {
    case STB_GLOBAL:
      rank = 0;
      break;
    case STB_WEAK:
      rank = 1;
      break;
    default:
      rank = 2;
      break;
  }
  return static_cast<std::uint8_t>(ELF64_ST_TYPE(symbol.st_info) == STT_NOTYPE ? rank + 3 : rank);
}

void SymbolTable::Load(const ElfImage& image) {
  for (const unsigned type : {unsigned{SHT_SYMTAB}, unsigned{SHT_DYNSYM}}) {
    if (const Elf64_Shdr* section = image.FindSectionByType(type)) Append(image, *section);
  }
  std::sort(symbols_.begin(), symbols_.end(), [](const Symbol& a, const Symbol& b) {
    return std::tie(a.start, a.rank, a.name) < std::tie(b.start, b.rank, b.name);
  });
  end_before_.reserve(symbols_.size());
  std::uint64_t end = 0;
  for (const Symbol& symbol : symbols_) {
    end = std::max(end, symbol.end);
    end_before_.push_back(end);
  }
}

void SymbolTable::Append(const ElfImage& image, const Elf64_Shdr& section) {
  const Elf64_Shdr* strings = image.SectionAt(section.sh_link);
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint8_t> text;
  if (section.sh_entsize != sizeof(Elf64_Sym) || strings == nullptr ||
      !image.Read(section.sh_offset, section.sh_size, &bytes) ||
      !image.Read(strings->sh_offset, strings->sh_size, &text)) {
    return;
  }
  const std::size_t names_begin = names_.size();
  if (names_begin + text.size() >= UINT32_MAX) return;
  names_.insert(names_.end(), text.begin(), text.end());
  names_.push_back('\0');
  for (std::size_t at = 0; at + sizeof(Elf64_Sym) <= bytes.size(); at += sizeof(Elf64_Sym)) {
    Elf64_Sym symbol;
    std::memcpy(&symbol, bytes.data() + at, sizeof symbol);
    if (!IsFunctionSymbol(symbol) || symbol.st_name >= text.size() || text[symbol.st_name] == 0) continue;
    symbols_.push_back({symbol.st_value, symbol.st_value + symbol.st_size,
                        static_cast<std::uint32_t>(names_begin + symbol.st_name), SymbolRank(symbol)});
  }
}

const SymbolTable::Symbol* SymbolTable::Find(std::uint64_t address) const {
  auto at = std::upper_bound(symbols_.begin(), symbols_.end(), address,
                             [](std::uint64_t value, const Symbol& symbol) { return value < symbol.start; });
  const Symbol* best = nullptr;
  while (at != symbols_.begin()) {
    --at;
    if (best != nullptr && at->start != best->start) break;
    if (address < at->end) best = &*at;  // the first of those that start here ranks best
    if (best == nullptr && end_before_[static_cast<std::size_t>(at - symbols_.begin())] <= address) break;
  }
  return best;
}

std::string_view SymbolTable::NameOf(const Symbol& symbol) const {
  const std::string_view name(names_.data() + symbol.name);
  return name.substr(0, name.find('@'));
}

std::string Demangle(std::string_view name) {
  std::string text(name);
  if (name.substr(0, 2) != "_Z") return text;
  int status = 0;
  char* readable = abi::__cxa_demangle(text.c_str(), nullptr, nullptr, &status);
  if (status == 0 && readable != nullptr) text = readable;
  std::free(readable);
  return text;
}

}  // namespace stackpipe
