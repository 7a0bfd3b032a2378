// SPDX-License-Identifier: MIT
#include "aot/mono_source.h"

#include <algorithm>
#include <new>
#include <utility>

#include "aot/dwarf_names.h"

namespace stackpipe {

namespace {

// Of debug information; mscorlib has 6 MB.
constexpr std::uint64_t kInfoMax = std::uint64_t{1} << 28;

void NoteSection(const ElfImage& elf, std::string_view name, std::uint64_t* begin, std::uint64_t* end) {
  const auto file_size = static_cast<std::uint64_t>(elf.identity().size);
  const Elf64_Shdr* section = elf.FindSection(name);
  if (section == nullptr || section->sh_type == SHT_NOBITS || (section->sh_flags & SHF_COMPRESSED) != 0 ||
      section->sh_size > kInfoMax || section->sh_offset > file_size ||
      section->sh_size > file_size - section->sh_offset) {
    return;
  }
  *begin = section->sh_offset;
  *end = section->sh_offset + section->sh_size;
}

}  // namespace

bool MonoSource::Recognises(const ElfImage& elf) {
  // Mono finds its images by this symbol, next to the only one that they export.
  constexpr std::string_view kInfo("mono_aot_file_info", 19);  // with the NUL
  constexpr std::size_t kSymbolsMax = 16;
  const Elf64_Shdr* section = elf.FindSectionByType(SHT_DYNSYM);
  if (section == nullptr || section->sh_entsize != sizeof(Elf64_Sym)) return false;
  const Elf64_Shdr* strings = elf.SectionAt(section->sh_link);
  if (strings == nullptr) return false;
  const std::size_t count = std::min<std::uint64_t>(section->sh_size / sizeof(Elf64_Sym), kSymbolsMax);
  for (std::size_t i = 0; i < count; ++i) {
    Elf64_Sym symbol;
    char name[kInfo.size()];
    if (elf.Read(section->sh_offset + i * sizeof symbol, sizeof symbol, &symbol) &&
        symbol.st_name < strings->sh_size &&
        elf.Read(strings->sh_offset + symbol.st_name, sizeof name, name) &&
        std::string_view(name, sizeof name) == kInfo) {
      return true;
    }
  }
  return false;
}

Result<std::unique_ptr<ElfSource>> MonoSource::Open(const ElfImage& elf, const char* path) {
  std::unique_ptr<MonoSource> source(new (std::nothrow) MonoSource);
  if (source == nullptr) return Status(StatusCode::kOutOfMemory, "there is no memory for an AOT image");
  std::vector<Label> labels;
  if (const Status status = source->Load(elf, path, &labels); !status.ok()) return status;
  bool has_begin = false;
  bool has_end = false;
  for (const Label& label : labels) {
    const std::string name = source->SymbolName(label.name);
    if (name == "jit_code_start") {
      source->methods_begin_ = label.offset;
      has_begin = true;
    } else if (name == "jit_code_end") {
      source->methods_end_ = label.offset;
      has_end = true;
    }
  }
  if (!has_begin || !has_end) return Status(StatusCode::kUnsupported, "the Mono image is stripped");
  NoteSection(elf, ".debug_info", &source->info_begin_, &source->info_end_);
  NoteSection(elf, ".debug_abbrev", &source->abbrev_begin_, &source->abbrev_end_);
  return std::unique_ptr<ElfSource>(std::move(source));
}

bool MonoSource::Decode(std::uint32_t method, AotCode* out) const noexcept {
  if (!ElfSource::Decode(method, out)) return false;
  const std::uint32_t start = table().starts[method];
  if (start < methods_begin_ || start >= methods_end_) out->kind = CodeKind::kTrampoline;
  return true;
}

void MonoSource::LoadNames() {
  names_loaded_ = true;
  std::vector<std::uint8_t> info(info_end_ - info_begin_);
  std::vector<std::uint8_t> abbrev(abbrev_end_ - abbrev_begin_);
  if (!file().Read(info_begin_, info.size(), info.data()) ||
      !file().Read(abbrev_begin_, abbrev.size(), abbrev.data())) {
    return;
  }
  for (const DwarfName& name : ReadDwarfNames(info.data(), info.size(), abbrev.data(), abbrev.size())) {
    const std::uint64_t start = name.address - code_start();
    if (start < code_size())
      names_.push_back({static_cast<std::uint32_t>(start), info_begin_ + name.text_offset});
  }
  std::sort(names_.begin(), names_.end(), [](const Name& a, const Name& b) { return a.start < b.start; });
}

void MonoSource::Describe(std::uint32_t method, AotName* out) {
  *out = AotName();
  if (!names_loaded_) LoadNames();
  const std::uint32_t start = table().starts[method];
  const auto at = std::lower_bound(names_.begin(), names_.end(), start,
                                   [](const Name& name, std::uint32_t value) { return name.start < value; });
  std::string text;
  if (at != names_.end() && at->start == start && file().ReadText(at->text, info_end_, &text)) {
    *out = Split(text);
  } else {
    out->name = SymbolNameOf(method);
  }
}

AotName MonoSource::Split(std::string_view text) {
  AotName name;
  // Mono prints "(wrapper alloc) object:Alloc"; the AOT compiler puts underscores for its blanks.
  constexpr std::string_view kWrapper = "(wrapper";
  if (text.substr(0, kWrapper.size()) == kWrapper && text.size() > kWrapper.size() + 1) {
    const std::size_t end = text.find(')');
    if (end != std::string_view::npos && end + 2 <= text.size()) {
      name.kind = CodeKind::kWrapper;
      name.name_space = "(wrapper ";
      name.name_space += text.substr(kWrapper.size() + 1, end - kWrapper.size());
      name.name_space += ' ';
      text.remove_prefix(end + 2);
    }
  }
  const std::size_t colon = text.rfind(':');
  if (colon != std::string_view::npos) {
    name.name_space += text.substr(0, colon);
    text.remove_prefix(colon + 1);
  }
  name.name = text;
  return name;
}

}  // namespace stackpipe
