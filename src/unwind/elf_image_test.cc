// SPDX-License-Identifier: MIT
//
// Reading ELF files: real ones, and ones that somebody damaged.
#include "unwind/elf_image.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "unwind/symbol_table.h"

namespace stackpipe {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes ReadFile(const char* path) {
  std::ifstream stream(path, std::ios::binary);
  return Bytes((std::istreambuf_iterator<char>(stream)), {});
}

Bytes Plugin() { return ReadFile(STACKPIPE_TEST_PLUGIN); }

// All that is ever read of a file.
std::size_t ReadAll(const Bytes& bytes) {
  ElfImage elf;
  if (!elf.OpenBytes(bytes.data(), bytes.size())) return 0;
  FrameSection frames;
  std::size_t seen = 0;
  if (elf.LoadEhFrame(&frames) || elf.LoadDebugFrame(&frames)) {
    seen += CompileCfi(frames.section, elf.CodeRanges()).row_count();
    seen += ListFunctions(frames.section, elf.CodeRanges()).size();
  }
  std::uint8_t id[20];
  seen += elf.BuildId(id);
  SymbolTable symbols;
  symbols.Load(elf);
  for (std::uint64_t address = 0; address < 0x3000; address += 0x35) {
    const SymbolTable::Symbol* symbol = symbols.Find(address);
    if (symbol != nullptr) seen += Demangle(symbols.NameOf(*symbol)).size();
  }
  return seen;
}

TEST(ElfImageTest, ReadsAPlugin) {
  const Bytes bytes = Plugin();
  ElfImage elf;
  ASSERT_TRUE(elf.OpenBytes(bytes.data(), bytes.size()));
  EXPECT_EQ(elf.CodeRanges().size(), 1u);
  FrameSection frames;
  ASSERT_TRUE(elf.LoadEhFrame(&frames));
  EXPECT_FALSE(elf.LoadDebugFrame(&frames));
  ASSERT_TRUE(elf.LoadEhFrame(&frames));
  const auto functions = ListFunctions(frames.section, elf.CodeRanges());
  ASSERT_EQ(functions.size(), 1u);
  std::uint8_t id[20];
  EXPECT_EQ(elf.BuildId(id), 20);
  SymbolTable symbols;
  symbols.Load(elf);
  const SymbolTable::Symbol* symbol = symbols.Find(functions[0].start);
  ASSERT_NE(symbol, nullptr);
  EXPECT_EQ(symbols.NameOf(*symbol), "plugin_call");
  EXPECT_EQ(symbol->start, functions[0].start);
  EXPECT_EQ(symbol->end, functions[0].end);
  EXPECT_EQ(symbols.Find(functions[0].end), nullptr);
}

TEST(ElfImageTest, FileAndBytesAreTheSame) {
  const Bytes bytes = Plugin();
  ElfImage in_memory;
  ElfImage in_file;
  ASSERT_TRUE(in_memory.OpenBytes(bytes.data(), bytes.size()));
  ASSERT_TRUE(in_file.OpenFile(STACKPIPE_TEST_PLUGIN));
  FrameSection a;
  FrameSection b;
  ASSERT_TRUE(in_memory.LoadEhFrame(&a));
  ASSERT_TRUE(in_file.LoadEhFrame(&b));
  EXPECT_EQ(a.bytes, b.bytes);
  EXPECT_EQ(a.section.address, b.section.address);
}

// Without section headers, .eh_frame is found through PT_GNU_EH_FRAME.
TEST(ElfImageTest, FindsFramesWithoutSectionHeaders) {
  Bytes bytes = Plugin();
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.e_shnum = header.e_shstrndx = 0;
  header.e_shoff = 0;
  std::memcpy(bytes.data(), &header, sizeof header);
  ElfImage elf;
  ASSERT_TRUE(elf.OpenBytes(bytes.data(), bytes.size()));
  FrameSection frames;
  ASSERT_TRUE(elf.LoadEhFrame(&frames));
  EXPECT_TRUE(frames.section.stop_at_zero);
  EXPECT_EQ(ListFunctions(frames.section, elf.CodeRanges()).size(), 1u);
}

TEST(ElfImageTest, RefusesWhatIsNotSuchAFile) {
  ElfImage none;
  EXPECT_FALSE(none.OpenFile("/nonexistent"));
  ElfImage directory;
  EXPECT_FALSE(directory.OpenFile("/tmp"));
  ElfImage device;
  EXPECT_FALSE(device.OpenFile("/dev/zero"));
  for (const std::size_t byte : std::vector<std::size_t>{0, 4, 5, 18}) {  // magic, class, byte order, machine
    Bytes bytes = Plugin();
    bytes[byte] ^= 0x40;
    ElfImage elf;
    EXPECT_FALSE(elf.OpenBytes(bytes.data(), bytes.size())) << byte;
  }
}

// Opening one must not wait for a writer.
TEST(ElfImageTest, RefusesFifos) {
  const std::string path = ::testing::TempDir() + "stackpipe-fifo-" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  ElfImage elf;
  EXPECT_FALSE(elf.OpenFile(path.c_str()));
  std::filesystem::remove(path);
}

// A mapped file would raise SIGBUS here.
TEST(ElfImageTest, FileThatShrinksIsReadShort) {
  const std::string path = ::testing::TempDir() + "stackpipe-shrink-" + std::to_string(getpid());
  std::filesystem::copy_file(STACKPIPE_TEST_PLUGIN, path, std::filesystem::copy_options::overwrite_existing);
  ElfImage elf;
  ASSERT_TRUE(elf.OpenFile(path.c_str()));
  std::filesystem::resize_file(path, 100);
  FrameSection frames;
  EXPECT_FALSE(elf.LoadEhFrame(&frames));
  std::filesystem::remove(path);
}

TEST(ElfImageTest, LeavesNoFileOpen) {
  const int before = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(before);
  {
    ElfImage elf;
    ASSERT_TRUE(elf.OpenFile(STACKPIPE_TEST_PLUGIN));
    // A child must not inherit it.
    EXPECT_NE(fcntl(before, F_GETFD) & FD_CLOEXEC, 0);
  }
  const int after = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(after);
  EXPECT_EQ(before, after);
}

TEST(ElfImageTest, CutFiles) {
  const Bytes whole = Plugin();
  ASSERT_GT(ReadAll(whole), 0u);
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    ReadAll(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
  }
}

// (The fuzzer goes further; this is for the sanitizers in each test run.)
TEST(ElfImageTest, DamagedFiles) {
  const Bytes whole = Plugin();
  Elf64_Ehdr header;
  std::memcpy(&header, whole.data(), sizeof header);
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    Bytes bytes = whole;
    for (unsigned i = 0; i < 1 + random() % 3; ++i) {
      // The headers, where it hurts, or anything.
      std::size_t at = random() % bytes.size();
      if (random() % 3 == 0) at = random() % (sizeof header + header.e_phnum * sizeof(Elf64_Phdr));
      if (random() % 3 == 0) at = header.e_shoff + random() % (header.e_shnum * sizeof(Elf64_Shdr));
      bytes[at] = static_cast<std::uint8_t>(random());
    }
    ReadAll(bytes);
  }
}

// ---- Symbols
// ------------------------------------------------------------------------------------------------------

// A file of nothing but headers, .symtab and its names.
Bytes FileWithSymbols(const std::vector<Elf64_Sym>& symbols, const std::string& names) {
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_machine = EM_X86_64;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  header.e_shoff = sizeof header;
  Elf64_Shdr sections[3] = {};
  sections[1].sh_type = SHT_SYMTAB;
  sections[1].sh_offset = sizeof header + sizeof sections;
  sections[1].sh_size = symbols.size() * sizeof(Elf64_Sym);
  sections[1].sh_entsize = sizeof(Elf64_Sym);
  sections[1].sh_link = 2;
  sections[2].sh_type = SHT_STRTAB;
  sections[2].sh_offset = sections[1].sh_offset + sections[1].sh_size;
  sections[2].sh_size = names.size();
  Bytes bytes;
  const auto append = [&](const void* data, std::size_t size) {
    const auto* begin = static_cast<const std::uint8_t*>(data);
    bytes.insert(bytes.end(), begin, begin + size);
  };
  append(&header, sizeof header);
  append(sections, sizeof sections);
  append(symbols.data(), symbols.size() * sizeof(Elf64_Sym));
  append(names.data(), names.size());
  return bytes;
}

Elf64_Sym Symbol(std::uint32_t name, std::uint64_t start, std::uint64_t size, unsigned bind = STB_GLOBAL,
                 unsigned type = STT_FUNC, std::uint16_t section = 1) {
  Elf64_Sym symbol = {};
  symbol.st_name = name;
  symbol.st_info = static_cast<unsigned char>(ELF64_ST_INFO(bind, type));
  symbol.st_shndx = section;
  symbol.st_value = start;
  symbol.st_size = size;
  return symbol;
}

std::string NameAt(const std::vector<Elf64_Sym>& list, std::uint64_t address) {
  using namespace std::string_literals;
  const Bytes bytes = FileWithSymbols(list, "\0a\0b\0c\0memcpy@@GLIBC_2.14\0_ZN1x1yEv\0not ended"s);
  ElfImage elf;
  EXPECT_TRUE(elf.OpenBytes(bytes.data(), bytes.size()));
  SymbolTable table;
  table.Load(elf);
  const SymbolTable::Symbol* symbol = table.Find(address);
  return symbol == nullptr ? "" : Demangle(table.NameOf(*symbol));
}

constexpr std::uint32_t kA = 1, kB = 3, kC = 5, kVersioned = 7, kMangled = 26, kNotEnded = 36;

TEST(SymbolTableTest, OnlyBetweenStartAndEnd) {
  const std::vector<Elf64_Sym> list = {Symbol(kA, 0x100, 0x10), Symbol(kB, 0x120, 0x10)};
  EXPECT_EQ(NameAt(list, 0xff), "");
  EXPECT_EQ(NameAt(list, 0x100), "a");
  EXPECT_EQ(NameAt(list, 0x10f), "a");
  EXPECT_EQ(NameAt(list, 0x110), "");  // not the nearest: none
  EXPECT_EQ(NameAt(list, 0x120), "b");
  EXPECT_EQ(NameAt(list, 0x130), "");
}

TEST(SymbolTableTest, InnerBeforeOuter) {
  const std::vector<Elf64_Sym> list = {Symbol(kA, 0x100, 0x100), Symbol(kB, 0x140, 0x10),
                                       Symbol(kC, 0x160, 0x10)};
  EXPECT_EQ(NameAt(list, 0x145), "b");
  EXPECT_EQ(NameAt(list, 0x155), "a");
  EXPECT_EQ(NameAt(list, 0x1ff), "a");
}

TEST(SymbolTableTest, GlobalBeforeWeakBeforeLocal) {
  const Elf64_Sym local = Symbol(kA, 0x100, 0x10, STB_LOCAL);
  const Elf64_Sym weak = Symbol(kB, 0x100, 0x10, STB_WEAK);
  const Elf64_Sym global = Symbol(kC, 0x100, 0x10);
  EXPECT_EQ(NameAt({local, weak, global}, 0x100), "c");
  EXPECT_EQ(NameAt({weak, local}, 0x100), "b");
  // Of a larger one that starts there too, if the first is too short.
  EXPECT_EQ(NameAt({Symbol(kC, 0x100, 0x8), Symbol(kA, 0x100, 0x10, STB_LOCAL)}, 0x108), "a");
}

TEST(SymbolTableTest, WhatIsNoFunction) {
  EXPECT_EQ(NameAt({Symbol(kA, 0x100, 0x10, STB_GLOBAL, STT_OBJECT)}, 0x100), "");
  EXPECT_EQ(NameAt({Symbol(kA, 0x100, 0x10, STB_GLOBAL, STT_FUNC, SHN_UNDEF)}, 0x100), "");
  EXPECT_EQ(NameAt({Symbol(kA, 0x100, 0)}, 0x100), "");
  EXPECT_EQ(NameAt({Symbol(0, 0x100, 0x10)}, 0x100), "");
  EXPECT_EQ(NameAt({Symbol(1000, 0x100, 0x10)}, 0x100), "");
  EXPECT_EQ(NameAt({Symbol(kA, 0x100, ~std::uint64_t{0})}, 0x100), "");
  EXPECT_EQ(NameAt({Symbol(kA, 0x100, 0x10, STB_GLOBAL, STT_GNU_IFUNC)}, 0x100), "a");
  EXPECT_EQ(NameAt({Symbol(kA, 0x100, 0x10, STB_GLOBAL, STT_NOTYPE)}, 0x100), "a");
}

TEST(SymbolTableTest, Names) {
  EXPECT_EQ(NameAt({Symbol(kVersioned, 0x100, 0x10)}, 0x100), "memcpy");
  EXPECT_EQ(NameAt({Symbol(kMangled, 0x100, 0x10)}, 0x100), "x::y()");
  EXPECT_EQ(NameAt({Symbol(kNotEnded, 0x100, 0x10)}, 0x100), "not ended");
}

}  // namespace
}  // namespace stackpipe
