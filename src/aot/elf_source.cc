// SPDX-License-Identifier: MIT
#include "aot/elf_source.h"

#include <algorithm>
#include <new>
#include <utility>

#include "unwind/symbol_table.h"

namespace stackpipe {

namespace {

constexpr std::size_t kLabelsMax = 64;

// The hull of the executable segments.
AddressRange CodeOf(const ElfImage& elf) {
  AddressRange code;
  for (const AddressRange& range : elf.CodeRanges()) {
    if (range.start == range.end) continue;
    if (code.start == code.end) code = range;
    code.start = std::min(code.start, range.start);
    code.end = std::max(code.end, range.end);
  }
  return code;
}

}  // namespace

Result<std::unique_ptr<ElfSource>> ElfSource::Open(const ElfImage& elf, const char* path) {
  std::unique_ptr<ElfSource> source(new (std::nothrow) ElfSource);
  if (source == nullptr) return Status(StatusCode::kOutOfMemory, "there is no memory for an AOT image");
  if (const Status status = source->Load(elf, path, nullptr); !status.ok()) return status;
  return source;
}

Status ElfSource::Load(const ElfImage& elf, const char* path, std::vector<Label>* labels) {
  const AddressRange code = CodeOf(elf);
  if (code.start == code.end) return {StatusCode::kFormat, "the file has no code"};
  if (code.end - code.start > UINT32_MAX)
    return {StatusCode::kFormat, "the file's code spans more than 4 GB"};
  path_ = path;
  code_start_ = code.start;
  code_size_ = static_cast<std::uint32_t>(code.end - code.start);
  std::uint8_t id[20];
  build_id_.assign(id, id + elf.BuildId(id));

  std::vector<FunctionRange> named;
  std::vector<FunctionRange> unnamed;
  if (const Elf64_Shdr* section = elf.FindSectionByType(SHT_SYMTAB))
    named = ReadSymbols(elf, *section, labels);
  if (named.empty()) {
    if (const Elf64_Shdr* section = elf.FindSectionByType(SHT_DYNSYM))
      named = ReadSymbols(elf, *section, nullptr);
    unnamed = ReadFrames(elf);
  }
  functions_.Build(std::move(named), std::move(unnamed));
  if (functions_.count() == 0) return {StatusCode::kNotFound, "the file names no functions"};
  // Without it there are no names, but all else.
  file_.Map(elf.fd(), static_cast<std::uint64_t>(elf.identity().size));
  return Status();
}

std::vector<FunctionRange> ElfSource::ReadSymbols(const ElfImage& elf, const Elf64_Shdr& section,
                                                  std::vector<Label>* labels) {
  std::vector<FunctionRange> functions;
  const Elf64_Shdr* strings = elf.SectionAt(section.sh_link);
  const auto file_size = static_cast<std::uint64_t>(elf.identity().size);
  const auto is_in_file = [&](const Elf64_Shdr& part) {
    return part.sh_offset <= file_size && part.sh_size <= file_size - part.sh_offset;
  };
  if (section.sh_entsize != sizeof(Elf64_Sym) || strings == nullptr || !is_in_file(section) ||
      !is_in_file(*strings) || strings->sh_size > UINT32_MAX) {
    return functions;
  }
  strings_begin_ = strings->sh_offset;
  strings_end_ = strings->sh_offset + strings->sh_size;

  constexpr std::size_t kAtOnce = 2048;
  const std::unique_ptr<Elf64_Sym[]> symbols(new (std::nothrow) Elf64_Sym[kAtOnce]);
  if (symbols == nullptr) return functions;
  std::uint64_t left = section.sh_size / sizeof(Elf64_Sym);
  functions.reserve(left);
  std::uint64_t offset = section.sh_offset;
  while (left > 0) {
    const std::size_t count = std::min<std::uint64_t>(left, kAtOnce);
    if (!elf.Read(offset, count * sizeof(Elf64_Sym), symbols.get())) break;
    offset += count * sizeof(Elf64_Sym);
    left -= count;
    for (std::size_t i = 0; i < count; ++i) {
      const Elf64_Sym& symbol = symbols[i];
      const std::uint64_t start = symbol.st_value - code_start_;  // wraps below it: then past the end too
      if (start >= code_size_ || symbol.st_name == 0 || symbol.st_name >= strings->sh_size) continue;
      if (IsFunctionSymbol(symbol)) {
        const std::uint64_t size = std::min<std::uint64_t>(symbol.st_size, code_size_ - start);
        functions.push_back({static_cast<std::uint32_t>(start), static_cast<std::uint32_t>(start + size),
                             symbol.st_name, SymbolRank(symbol)});
      } else if (labels != nullptr && labels->size() < kLabelsMax && symbol.st_size == 0 &&
                 symbol.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol.st_info) == STT_NOTYPE) {
        labels->push_back({static_cast<std::uint32_t>(start), symbol.st_name});
      }
    }
  }
  return functions;
}

std::vector<FunctionRange> ElfSource::ReadFrames(const ElfImage& elf) const {
  std::vector<FunctionRange> functions;
  FrameSection frames;
  if (!elf.LoadEhFrame(&frames) && !elf.LoadDebugFrame(&frames)) return functions;
  for (const AddressRange& range : ListFunctions(frames.section, elf.CodeRanges())) {
    functions.push_back({static_cast<std::uint32_t>(range.start - code_start_),
                         static_cast<std::uint32_t>(range.end - code_start_)});
  }
  return functions;
}

bool ElfSource::Decode(std::uint32_t method, AotCode* out) const noexcept {
  *out = {functions_.size(method), CodeKind::kAot};
  return true;
}

std::string ElfSource::SymbolName(std::uint32_t name) const {
  std::string text;
  if (name != FunctionRange::kNoName) file_.ReadText(strings_begin_ + name, strings_end_, &text);
  return text;
}

std::string ElfSource::SymbolNameOf(std::uint32_t method) const {
  std::string name = SymbolName(functions_.name(method));
  return name.substr(0, name.find('@'));
}

void ElfSource::Describe(std::uint32_t method, AotName* out) {
  *out = AotName();
  out->name = Demangle(SymbolNameOf(method));
}

}  // namespace stackpipe
