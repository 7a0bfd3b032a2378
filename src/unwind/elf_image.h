// SPDX-License-Identifier: MIT
//
// ElfImage: the parts of a 64-bit little-endian ELF file that unwinding and naming need, read from a file or
// from bytes. Nothing in the file is believed: what lies outside it, or makes no sense, is as if absent.
//
// Files are read, not mapped: a file that somebody truncates then yields a short read instead of a SIGBUS.
//
// Source: System V ABI (ELF-64), LSB 5.0 (PT_GNU_EH_FRAME).
#ifndef STACKPIPE_UNWIND_ELF_IMAGE_H_
#define STACKPIPE_UNWIND_ELF_IMAGE_H_

#include <elf.h>
#include <sys/types.h>
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "unwind/cfi_compiler.h"

namespace stackpipe {

// Tells two files, or two states of one file, apart.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  timespec modified{};

  bool operator==(const FileIdentity& other) const {
    return device == other.device && inode == other.inode && size == other.size &&
           modified.tv_sec == other.modified.tv_sec && modified.tv_nsec == other.modified.tv_nsec;
  }
};

// A section's bytes together with their description.
struct FrameSection {
  std::vector<std::uint8_t> bytes;
  CfiSection section;  // its data is `bytes`
};

class ElfImage {
 public:
  // No section or symbol table above this is read.
  static constexpr std::uint64_t kReadMax = std::uint64_t{1} << 30;

  ElfImage() = default;
  ~ElfImage();
  ElfImage(const ElfImage&) = delete;
  ElfImage& operator=(const ElfImage&) = delete;

  // Opens `path` and reads its headers. Call one of the two, once. False: not a regular file, or not such an
  // ELF file.
  bool OpenFile(const char* path);
  // The same of an image in memory, which must outlive this.
  bool OpenBytes(const std::uint8_t* data, std::size_t size);

  const FileIdentity& identity() const { return identity_; }
  const std::vector<Elf64_Phdr>& segments() const { return segments_; }
  // The executable segments, as file addresses.
  std::vector<AddressRange> CodeRanges() const;

  // Copies `size` bytes at `offset` of the file. False: they are not there.
  bool Read(std::uint64_t offset, std::uint64_t size, void* out) const;
  bool Read(std::uint64_t offset, std::uint64_t size, std::vector<std::uint8_t>* out) const;

  // Finds .eh_frame: by section header, else through PT_GNU_EH_FRAME. False: none that holds anything.
  bool LoadEhFrame(FrameSection* out) const;
  // Finds .debug_frame. Compressed sections are not read.
  bool LoadDebugFrame(FrameSection* out) const;

  // The build id: up to 20 bytes into `out`. Returns its size, 0 = none.
  std::uint8_t BuildId(std::uint8_t (&out)[20]) const;

  // The first section of that type (SHT_SYMTAB, SHT_DYNSYM), or nullptr.
  const Elf64_Shdr* FindSectionByType(std::uint32_t type) const;
  // Section `index`, or nullptr.
  const Elf64_Shdr* SectionAt(std::uint32_t index) const;
  // The first section of that name, or nullptr.
  const Elf64_Shdr* FindSection(std::string_view name) const;

  // The open file, for mapping it; -1 after OpenBytes. It is closed with this.
  int fd() const { return fd_; }

 private:
  bool ParseHeaders();
  bool LoadFrameSection(const char* name, FrameSection* out) const;
  bool LoadEhFrameByHeader(FrameSection* out) const;

  int fd_ = -1;
  const std::uint8_t* bytes_ = nullptr;
  std::uint64_t size_ = 0;
  FileIdentity identity_;
  std::vector<Elf64_Phdr> segments_;
  std::vector<Elf64_Shdr> sections_;
  std::vector<std::uint8_t> section_names_;
};

}  // namespace stackpipe

#endif  // STACKPIPE_UNWIND_ELF_IMAGE_H_
