// SPDX-License-Identifier: MIT
#include "unwind/elf_image.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace stackpipe {

ElfImage::~ElfImage() {
  if (fd_ >= 0) close(fd_);
}

bool ElfImage::OpenFile(const char* path) {
  // O_NONBLOCK: the name may by now be that of a FIFO, which must not hold us up.
  fd_ = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  struct stat status;
  if (fd_ < 0 || fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  identity_ = {status.st_dev, status.st_ino, status.st_size, status.st_mtim};
  size_ = static_cast<std::uint64_t>(status.st_size);
  return ParseHeaders();
}

bool ElfImage::OpenBytes(const std::uint8_t* data, std::size_t size) {
  bytes_ = data;
  size_ = size;
  return ParseHeaders();
}

bool ElfImage::Read(std::uint64_t offset, std::uint64_t size, void* out) const {
  if (offset > size_ || size > size_ - offset) return false;
  if (size == 0) return true;
  if (bytes_ != nullptr) {
    std::memcpy(out, bytes_ + offset, size);
    return true;
  }
  auto* to = static_cast<std::uint8_t*>(out);
  while (size > 0) {
    const ssize_t got = pread(fd_, to, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    offset += static_cast<std::uint64_t>(got);
    size -= static_cast<std::uint64_t>(got);
  }
  return true;
}

bool ElfImage::Read(std::uint64_t offset, std::uint64_t size, std::vector<std::uint8_t>* out) const {
  if (offset > size_ || size > size_ - offset || size > kReadMax) return false;
  out->resize(size);
  return Read(offset, size, out->data());
}

bool ElfImage::ParseHeaders() {
  Elf64_Ehdr header;
  if (!Read(0, sizeof header, &header)) return false;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_machine != EM_X86_64) {
    return false;
  }
  if (header.e_phnum == PN_XNUM || (header.e_phnum != 0 && header.e_phentsize != sizeof(Elf64_Phdr)))
    return false;
  segments_.resize(header.e_phnum);
  if (!Read(header.e_phoff, segments_.size() * sizeof(Elf64_Phdr), segments_.data())) return false;

  // Section headers are optional: stripped files may have none, and an image in memory may lack them.
  if (header.e_shnum == 0 || header.e_shentsize != sizeof(Elf64_Shdr)) return true;
  sections_.resize(header.e_shnum);
  if (!Read(header.e_shoff, sections_.size() * sizeof(Elf64_Shdr), sections_.data())) {
    sections_.clear();
    return true;
  }
  const Elf64_Shdr* names = SectionAt(header.e_shstrndx);
  if (names == nullptr || !Read(names->sh_offset, names->sh_size, &section_names_)) section_names_.clear();
  return true;
}

std::vector<AddressRange> ElfImage::CodeRanges() const {
  std::vector<AddressRange> ranges;
  for (const Elf64_Phdr& segment : segments_) {
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    if (segment.p_memsz > ~segment.p_vaddr) continue;
    ranges.push_back({segment.p_vaddr, segment.p_vaddr + segment.p_memsz});
  }
  return ranges;
}

const Elf64_Shdr* ElfImage::SectionAt(std::uint32_t index) const {
  return index < sections_.size() ? &sections_[index] : nullptr;
}

const Elf64_Shdr* ElfImage::FindSectionByType(std::uint32_t type) const {
  const auto at = std::find_if(sections_.begin(), sections_.end(),
                               [&](const Elf64_Shdr& section) { return section.sh_type == type; });
  return at == sections_.end() ? nullptr : &*at;
}

const Elf64_Shdr* ElfImage::FindSection(std::string_view name) const {
  for (const Elf64_Shdr& section : sections_) {
    if (section.sh_name >= section_names_.size()) continue;
    const char* text = reinterpret_cast<const char*>(section_names_.data()) + section.sh_name;
    if (std::string_view(text, strnlen(text, section_names_.size() - section.sh_name)) == name)
      return &section;
  }
  return nullptr;
}

bool ElfImage::LoadFrameSection(const char* name, FrameSection* out) const {
  const Elf64_Shdr* section = FindSection(name);
  // 4 bytes or less: nothing but an end mark.
  if (section == nullptr || section->sh_type == SHT_NOBITS || (section->sh_flags & SHF_COMPRESSED) != 0 ||
      section->sh_size <= 4 || !Read(section->sh_offset, section->sh_size, &out->bytes)) {
    return false;
  }
  out->section = {.data = out->bytes.data(), .size = out->bytes.size(), .address = section->sh_addr};
  return true;
}

bool ElfImage::LoadDebugFrame(FrameSection* out) const {
  if (!LoadFrameSection(".debug_frame", out)) return false;
  out->section.is_debug_frame = true;
  return true;
}

bool ElfImage::LoadEhFrame(FrameSection* out) const {
  return LoadFrameSection(".eh_frame", out) || (sections_.empty() && LoadEhFrameByHeader(out));
}

bool ElfImage::LoadEhFrameByHeader(FrameSection* out) const {
  const auto header = std::find_if(segments_.begin(), segments_.end(), [](const Elf64_Phdr& segment) {
    return segment.p_type == PT_GNU_EH_FRAME;
  });
  std::uint8_t start[16];
  if (header == segments_.end() || header->p_filesz < sizeof start ||
      !Read(header->p_offset, sizeof start, start)) {
    return false;
  }
  // Version 1, then the encodings of: the address of .eh_frame, the count and the table (not used here).
  ByteReader reader(start, sizeof start);
  const auto version = reader.Read<std::uint8_t>();
  const auto encoding = reader.Read<std::uint8_t>();
  reader.Skip(2);
  std::uint64_t address = 0;
  if (version != 1 || !ReadEncodedPointer(encoding, header->p_vaddr + 4, &reader, &address)) return false;
  for (const Elf64_Phdr& segment : segments_) {
    if (segment.p_type != PT_LOAD || address < segment.p_vaddr ||
        address - segment.p_vaddr >= segment.p_filesz) {
      continue;
    }
    const std::uint64_t into = address - segment.p_vaddr;
    if (segment.p_offset > ~into) return false;
    if (!Read(segment.p_offset + into, segment.p_filesz - into, &out->bytes)) return false;
    out->section = {
        .data = out->bytes.data(), .size = out->bytes.size(), .address = address, .stop_at_zero = true};
    return true;
  }
  return false;
}

std::uint8_t ElfImage::BuildId(std::uint8_t (&out)[20]) const {
  constexpr std::uint64_t kNotesMax = 65536;
  for (const Elf64_Phdr& segment : segments_) {
    std::vector<std::uint8_t> notes;
    if (segment.p_type != PT_NOTE || segment.p_filesz > kNotesMax ||
        !Read(segment.p_offset, segment.p_filesz, &notes)) {
      continue;
    }
    const std::uint64_t align = segment.p_align == 8 ? 8 : 4;
    ByteReader reader(notes.data(), notes.size());
    while (reader.left() >= 12) {
      const auto name_size = reader.Read<std::uint32_t>();
      const auto size = reader.Read<std::uint32_t>();
      const auto type = reader.Read<std::uint32_t>();
      const auto padded = [&](std::uint64_t count) { return (count + align - 1) & ~(align - 1); };
      ByteReader name = reader.Take(std::min<std::uint64_t>(padded(name_size), reader.left()));
      ByteReader id = reader.Take(std::min<std::uint64_t>(padded(size), reader.left()));
      if (type != NT_GNU_BUILD_ID || name_size != 4 || name.left() < 4 ||
          std::memcmp(name.at(), "GNU", 4) != 0) {
        continue;
      }
      if (size == 0 || size > sizeof out || id.left() < size) continue;
      std::memcpy(out, id.at(), size);
      return static_cast<std::uint8_t>(size);
    }
  }
  return 0;
}

}  // namespace stackpipe
