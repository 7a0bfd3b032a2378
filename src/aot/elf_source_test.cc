// SPDX-License-Identifier: MIT
#include "aot/elf_source.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "aot/aot_file.h"
#include "aot/aot_images.h"
#include "unwind/symbol_table.h"

namespace stackpipe {
namespace {

namespace fs = std::filesystem;

const char kPlugin[] = STACKPIPE_TEST_PLUGIN;
const char kStrippedPlugin[] = STACKPIPE_TEST_STRIPPED_PLUGIN;
const char kDebugFramePlugin[] = STACKPIPE_TEST_DEBUG_FRAME_PLUGIN;

std::unique_ptr<ElfSource> Open(const std::string& path) {
  Result<std::unique_ptr<ElfSource>> source = OpenAotFile(path.c_str());
  EXPECT_TRUE(source.ok()) << path << ": " << source.status().context();
  return source.ok() ? std::move(source.value()) : nullptr;
}

// The method that holds a file address; the table's count if none does.
std::uint32_t MethodAt(const ElfSource& source, std::uint64_t address) {
  const AotMethodTable table = source.table();
  const std::uint64_t offset = address - source.code_start();
  if (offset >= source.code_size()) return table.count;
  const std::uint32_t* next = std::upper_bound(table.starts, table.starts + table.count, offset);
  if (next == table.starts) return table.count;
  const auto method = static_cast<std::uint32_t>(next - table.starts - 1);
  AotCode code;
  EXPECT_TRUE(source.Decode(method, &code));
  return offset - table.starts[method] < code.size ? method : table.count;
}

std::string NameOf(ElfSource* source, std::uint32_t method) {
  AotName name;
  source->Describe(method, &name);
  return name.name;
}

// The path of the loaded object that has `function`.
std::string PathOf(const void* function) {
  Dl_info info;
  return dladdr(function, &info) != 0 ? fs::canonical(info.dli_fname).string() : "";
}

// A copy of a file that a test may damage.
class FileCopy {
 public:
  explicit FileCopy(const std::string& of) {
    const char* directory = std::getenv("TMPDIR");
    path_ = std::string(directory != nullptr ? directory : "/tmp") + "/stackpipe-aot-XXXXXX";
    const int fd = mkstemp(path_.data());
    EXPECT_GE(fd, 0);
    close(fd);
    fs::copy_file(of, path_, fs::copy_options::overwrite_existing);
  }
  ~FileCopy() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }
  void Write(const std::vector<char>& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::string path_;
};

std::vector<char> BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Library {
 public:
  explicit Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_NE(handle_, nullptr) << dlerror();
  }
  ~Library() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  std::uintptr_t At(const char* name) const { return reinterpret_cast<std::uintptr_t>(dlsym(handle_, name)); }

 private:
  void* handle_;
};

// Each method against the symbol table that names native code: the two must never disagree on a name.
void ExpectSymbolsNames(const std::string& path) {
  const std::unique_ptr<ElfSource> source = Open(path);
  ASSERT_NE(source, nullptr);
  ElfImage elf;
  ASSERT_TRUE(elf.OpenFile(path.c_str()));
  SymbolTable symbols;
  symbols.Load(elf);
  const AotMethodTable table = source->table();
  std::size_t named = 0;
  std::uint64_t end = 0;
  for (std::uint32_t method = 0; method < table.count; ++method) {
    AotCode code;
    ASSERT_TRUE(source->Decode(method, &code));
    ASSERT_GT(code.size, 0u);
    ASSERT_GE(table.starts[method], end);
    end = table.starts[method] + std::uint64_t{code.size};
    ASSERT_LE(end, source->code_size());
    const std::uint64_t start = source->code_start() + table.starts[method];
    const std::string name = NameOf(source.get(), method);
    for (const std::uint64_t address : {start, start + code.size / 2, start + code.size - 1}) {
      const SymbolTable::Symbol* symbol = symbols.Find(address);
      ASSERT_EQ(name, symbol == nullptr ? "" : Demangle(symbols.NameOf(*symbol))) << std::hex << address;
    }
    if (!name.empty()) ++named;
  }
  EXPECT_GT(named, 100u);
  // And the other way round: wherever there is a symbol there is a method.
  std::mt19937_64 random(7);
  std::size_t hits = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t address = source->code_start() + random() % source->code_size();
    if (symbols.Find(address) == nullptr) continue;
    ++hits;
    ASSERT_NE(MethodAt(*source, address), table.count) << std::hex << address;
  }
  EXPECT_GT(hits, 1000u);
}

TEST(ElfSourceTest, NamesLibcAsItsSymbolsDo) {
  ExpectSymbolsNames(PathOf(reinterpret_cast<const void*>(&getpid)));
}

TEST(ElfSourceTest, NamesLibstdcxxAsItsSymbolsDo) {
  ExpectSymbolsNames(PathOf(reinterpret_cast<const void*>(&std::set_terminate)));
}

TEST(ElfSourceTest, NamesThisProgramAsItsSymbolsDo) {
  ExpectSymbolsNames(fs::canonical("/proc/self/exe").string());
}

TEST(ElfSourceTest, ListsHiddenAndReadableFunctions) {
  const std::unique_ptr<ElfSource> source = Open(kPlugin);
  ASSERT_NE(source, nullptr);
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < source->table().count; ++i) names.push_back(NameOf(source.get(), i));
  for (const char* name : {"aot_plugin_twice", "aot_plugin_hidden", "aot_plugin_entry",
                           "aot_plugin::Shape<long>::Area(long) const"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  }
  EXPECT_EQ(source->path(), kPlugin);
}

TEST(ElfSourceTest, ReadsTheBuildId) {
  const std::unique_ptr<ElfSource> source = Open(kPlugin);
  ASSERT_NE(source, nullptr);
  EXPECT_EQ(source->build_id(), (std::vector<std::uint8_t>{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0}));
}

// Without symbols, call frame information still says where functions begin and end.
TEST(ElfSourceTest, FindsUnnamedFunctionsOfStrippedFiles) {
  const std::unique_ptr<ElfSource> full = Open(kPlugin);
  const std::unique_ptr<ElfSource> stripped = Open(kStrippedPlugin);
  ASSERT_TRUE(full != nullptr && stripped != nullptr);
  std::size_t unnamed = 0;
  for (std::uint32_t i = 0; i < full->table().count; ++i) {
    AotCode code;
    ASSERT_TRUE(full->Decode(i, &code));
    const std::uint64_t start = full->code_start() + full->table().starts[i];
    const std::uint32_t method = MethodAt(*stripped, start);
    const std::string name = NameOf(full.get(), i);
    if (name.find("aot_plugin") == std::string::npos) continue;
    ASSERT_NE(method, stripped->table().count) << name;
    EXPECT_EQ(stripped->code_start() + stripped->table().starts[method], start) << name;
    AotCode same;
    ASSERT_TRUE(stripped->Decode(method, &same));
    EXPECT_EQ(same.size, code.size) << name;
    EXPECT_EQ(NameOf(stripped.get(), method), name == "aot_plugin_hidden" ? "" : name);
    if (name == "aot_plugin_hidden") ++unnamed;
  }
  EXPECT_EQ(unnamed, 1u);
}

TEST(ElfSourceTest, FindsUnnamedFunctionsByDebugFrameToo) {
  const Library library(kDebugFramePlugin);
  const std::unique_ptr<ElfSource> source = Open(kDebugFramePlugin);
  ASSERT_NE(source, nullptr);
  const auto hidden = *reinterpret_cast<const std::uintptr_t*>(library.At("aot_plugin_where_hidden_is"));
  Dl_info info;
  ASSERT_NE(dladdr(reinterpret_cast<const void*>(hidden), &info), 0);
  const std::uint64_t address = hidden - reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  const std::uint32_t method = MethodAt(*source, address);
  ASSERT_NE(method, source->table().count);
  EXPECT_EQ(source->code_start() + source->table().starts[method], address);
  EXPECT_EQ(NameOf(source.get(), method), "");
}

TEST(ElfSourceTest, NamesFunctionsOfALoadedObject) {
  const Library library(kPlugin);
  const std::uintptr_t entry = library.At("aot_plugin_entry");
  ASSERT_NE(entry, 0u);
  Result<AotImageRegistration> image = OpenLoadedAotFile(entry + 1);
  ASSERT_TRUE(image.ok()) << image.status().context();
  EXPECT_EQ(image.value().name, fs::path(kPlugin).filename().string());
  CodeMap code;
  AotImages images(code);
  const Result<CodeId> id = images.RegisterImage(std::move(image.value()));
  ASSERT_TRUE(id.ok()) << id.status().context();
  AotHit hit;
  ASSERT_EQ(images.Decode(entry + 1, &hit), AotResult::kFound);
  EXPECT_EQ(hit.start, entry);
  AotName name;
  ASSERT_TRUE(images.Describe(hit.image, hit.method, &name));
  EXPECT_EQ(name.name, "aot_plugin_entry");
  CodeHit range;
  ASSERT_TRUE(code.Lookup(entry, &range));
  EXPECT_EQ(range.id, id.value());
  EXPECT_EQ(range.kind, CodeKind::kAot);
}

TEST(ElfSourceTest, KnowsTheProgramItself) {
  const auto here = reinterpret_cast<std::uintptr_t>(&ExpectSymbolsNames);
  Result<AotImageRegistration> image = OpenLoadedAotFile(here);
  ASSERT_TRUE(image.ok()) << image.status().context();
  EXPECT_EQ(image.value().name, fs::canonical("/proc/self/exe").filename().string());
  EXPECT_LT(here - image.value().start, image.value().size);
}

TEST(ElfSourceTest, FindsNoFileWhereNothingIsLoaded) {
  int local = 0;
  EXPECT_EQ(OpenLoadedAotFile(reinterpret_cast<std::uintptr_t>(&local)).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(OpenLoadedAotFile(0).status().code(), StatusCode::kNotFound);
}

// A library that was upgraded while the program runs: another file has its name now.
TEST(ElfSourceTest, RefusesAFileThatIsNotWhatIsLoaded) {
  const FileCopy copy(kPlugin);
  const Library library(copy.path());
  const std::uintptr_t entry = library.At("aot_plugin_entry");
  EXPECT_TRUE(OpenLoadedAotFile(entry).ok());
  unlink(copy.path().c_str());
  fs::copy_file(kDebugFramePlugin, copy.path());
  EXPECT_EQ(OpenLoadedAotFile(entry).status().code(), StatusCode::kNotFound);
}

TEST(ElfSourceTest, NamesComeFromTheFileThatWasOpened) {
  FileCopy copy(kPlugin);
  const std::unique_ptr<ElfSource> source = Open(copy.path());
  ASSERT_NE(source, nullptr);
  std::vector<std::string> before;
  for (std::uint32_t i = 0; i < source->table().count; ++i) before.push_back(NameOf(source.get(), i));
  unlink(copy.path().c_str());
  copy.Write(std::vector<char>(100'000, 'x'));  // another file
  for (std::uint32_t i = 0; i < source->table().count; ++i) EXPECT_EQ(NameOf(source.get(), i), before[i]);
}

TEST(ElfSourceTest, AFileThatWasCutShortHasNoNamesAndDoesNoHarm) {
  const FileCopy copy(kPlugin);
  const std::unique_ptr<ElfSource> source = Open(copy.path());
  ASSERT_NE(source, nullptr);
  ASSERT_NE(NameOf(source.get(), 0), "");
  ASSERT_EQ(truncate(copy.path().c_str(), 0), 0);
  for (std::uint32_t i = 0; i < source->table().count; ++i) {
    AotCode code;
    EXPECT_TRUE(source->Decode(i, &code));
    EXPECT_EQ(NameOf(source.get(), i), "");
  }
}

TEST(ElfSourceTest, RefusesWhatIsNoElfFile) {
  EXPECT_EQ(OpenAotFile("/nowhere").status().code(), StatusCode::kFormat);
  EXPECT_EQ(OpenAotFile("/etc/passwd").status().code(), StatusCode::kFormat);
  EXPECT_EQ(OpenAotFile("/dev/null").status().code(), StatusCode::kFormat);
}

// Whatever a file says: no crash, and a table that keeps the rules.
TEST(ElfSourceTest, SurvivesDamagedFiles) {
  std::mt19937 random(99);
  for (const char* path : {kPlugin, kStrippedPlugin, kDebugFramePlugin}) {
    const std::vector<char> good = BytesOf(path);
    ASSERT_GT(good.size(), 1000u);
    FileCopy copy(path);
    std::size_t opened = 0;
    for (int round = 0; round < 150; ++round) {
      std::vector<char> bytes = good;
      const std::size_t changes = 1 + random() % 20;
      for (std::size_t i = 0; i < changes; ++i) {
        // Headers and tables at both ends of the file are the interesting parts.
        const std::size_t at = random() % 3 == 0 ? random() % 600 : random() % bytes.size();
        bytes[at] = static_cast<char>(random() % 4 == 0 ? 0xff : random());
      }
      if (round % 10 == 0) bytes.resize(random() % bytes.size());
      copy.Write(bytes);
      Result<std::unique_ptr<ElfSource>> source = OpenAotFile(copy.path().c_str());
      if (!source.ok()) continue;
      ++opened;
      const AotMethodTable table = source.value()->table();
      ASSERT_GT(table.count, 0u);
      std::uint64_t end = 0;
      for (std::uint32_t i = 0; i < table.count; ++i) {
        AotCode code;
        ASSERT_TRUE(source.value()->Decode(i, &code));
        ASSERT_GE(table.starts[i], end);
        ASSERT_GT(code.size, 0u);
        end = table.starts[i] + std::uint64_t{code.size};
        NameOf(source.value().get(), i);
      }
      ASSERT_LE(end, source.value()->code_size());
    }
    EXPECT_GT(opened, 30u);
  }
}

}  // namespace
}  // namespace stackpipe
