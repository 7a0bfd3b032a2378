// SPDX-License-Identifier: MIT
#include "aot/mono_source.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "aot/aot_file.h"
#include "aot/aot_images.h"
#include "unwind/symbol_table.h"

namespace stackpipe {
namespace {

// Made by the package's installation.
constexpr char kMscorlib[] = "/usr/lib/mono/aot-cache/amd64/mscorlib.dll.so";
// Made of testdata/managed.cs, with a method of each form.
const char kManaged[] = STACKPIPE_TEST_MONO_IMAGE;

std::string Letters(std::string_view text) {
  std::string letters;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) letters += c;
  }
  return letters;
}

struct Listed {
  AotName name;
  CodeKind kind = CodeKind::kUnknown;
};

std::vector<Listed> List(ElfSource* source) {
  std::vector<Listed> methods(source->table().count);
  for (std::uint32_t i = 0; i < methods.size(); ++i) {
    AotCode code;
    EXPECT_TRUE(source->Decode(i, &code));
    methods[i].kind = code.kind;
    source->Describe(i, &methods[i].name);
  }
  return methods;
}

TEST(MonoSourceTest, SplitsTheNamesOfTheDebugInformation) {
  const auto expect = [](std::string_view text, CodeKind kind, const char* name_space, const char* name) {
    const AotName split = MonoSource::Split(text);
    EXPECT_EQ(split.kind, kind) << text;
    EXPECT_EQ(split.name_space, name_space) << text;
    EXPECT_EQ(split.name, name) << text;
    EXPECT_EQ(split.signature, "") << text;
  };
  // These were written by Mono 6.8.
  expect("System.Decimal/DecCalc:.cctor", CodeKind::kUnknown, "System.Decimal/DecCalc", ".cctor");
  expect("System.Threading.Tasks.Task`1<TResult_REF>:ContinueWith<TNewResult_REF>", CodeKind::kUnknown,
         "System.Threading.Tasks.Task`1<TResult_REF>", "ContinueWith<TNewResult_REF>");
  expect("(wrapper_managed-to-native)_P:getpid", CodeKind::kWrapper, "(wrapper managed-to-native) P",
         "getpid");
  expect("(wrapper_delegate-invoke)_<Module>:invoke_int_int", CodeKind::kWrapper,
         "(wrapper delegate-invoke) <Module>", "invoke_int_int");
  // And these by nobody.
  expect("", CodeKind::kUnknown, "", "");
  expect("name", CodeKind::kUnknown, "", "name");
  expect("(wrapper", CodeKind::kUnknown, "", "(wrapper");
  expect("(wrapper_x", CodeKind::kUnknown, "", "(wrapper_x");
  expect("(wrapper_x)", CodeKind::kUnknown, "", "(wrapper_x)");
  expect("(wrapper_x)_", CodeKind::kWrapper, "(wrapper x) ", "");
}

class MscorlibTest : public testing::Test {
 protected:
  void SetUp() override {
    if (access(kMscorlib, R_OK) != 0) GTEST_SKIP() << "needs " << kMscorlib << " (mono-runtime makes it)";
    Result<std::unique_ptr<ElfSource>> source = OpenAotFile(kMscorlib);
    ASSERT_TRUE(source.ok()) << source.status().context();
    source_ = std::move(source.value());
    ElfImage elf;
    ASSERT_TRUE(elf.OpenFile(kMscorlib) && MonoSource::Recognises(elf));
  }
  std::unique_ptr<ElfSource> source_;
};

// The symbols were written by another part of Mono's compiler than the debug information: they are the same
// names with all but letters and digits replaced, followed by the types of the parameters.
TEST_F(MscorlibTest, NamesEachMethodAsItsSymbolDoes) {
  ElfImage elf;
  ASSERT_TRUE(elf.OpenFile(kMscorlib));
  SymbolTable symbols;
  symbols.Load(elf);
  const std::vector<Listed> methods = List(source_.get());
  std::size_t managed = 0;
  std::size_t stubs = 0;
  for (std::uint32_t i = 0; i < methods.size(); ++i) {
    AotCode code;
    ASSERT_TRUE(source_->Decode(i, &code));
    const std::uint64_t start = source_->code_start() + source_->table().starts[i];
    const SymbolTable::Symbol* symbol = symbols.Find(start);
    ASSERT_NE(symbol, nullptr);
    ASSERT_EQ(symbol->start, start);
    ASSERT_EQ(symbol->end, start + code.size);
    const std::string_view symbol_name = symbols.NameOf(*symbol);
    if (methods[i].kind == CodeKind::kTrampoline) {
      ++stubs;
      ASSERT_EQ(methods[i].name.name, symbol_name);
      ASSERT_EQ(symbol_name.substr(0, 4), "plt_");
      continue;
    }
    ++managed;
    ASSERT_EQ(methods[i].kind, CodeKind::kAot);
    ASSERT_NE(methods[i].name.name_space, "") << symbol_name;
    const std::string letters = Letters(methods[i].name.name_space) + Letters(methods[i].name.name);
    ASSERT_EQ(Letters(symbol_name).substr(0, letters.size()), letters);
  }
  EXPECT_GT(managed, 20'000u);
  EXPECT_GT(stubs, 5'000u);
}

TEST_F(MscorlibTest, IsRegisteredAndSampledLikeAnyImage) {
  constexpr std::uintptr_t kBase = 0x7000'0000'0000;
  const AotMethodTable table = source_->table();
  std::vector<std::uint32_t> starts(table.starts, table.starts + table.count);
  AotImageRegistration image;
  image.start = kBase;
  image.size = source_->code_size();
  image.name = "mscorlib.dll.so";
  image.source = std::move(source_);
  CodeMap code;
  AotImages images(code);
  const Result<CodeId> id = images.RegisterImage(std::move(image));
  ASSERT_TRUE(id.ok()) << id.status().context();
  EXPECT_EQ(images.stats().cache_bytes, 0u);
  AotHit hit;
  ASSERT_EQ(images.Decode(kBase + starts[100] + 1, &hit), AotResult::kFound);
  EXPECT_LE(images.stats().cache_bytes, (table.count / 32 + 1) * 8u + 64);
  std::size_t concat = 0;
  for (std::uint32_t i = 0; i < starts.size(); ++i) {
    ASSERT_EQ(images.Decode(kBase + starts[i], &hit), AotResult::kFound);
    ASSERT_EQ(hit.method, i);
    ASSERT_EQ(images.Decode(kBase + starts[i] + hit.size - 1, &hit), AotResult::kFound);
    ASSERT_EQ(hit.method, i);
    AotName name;
    ASSERT_TRUE(images.Describe(id.value(), i, &name));
    concat += name.name_space == "string" && name.name == "Concat" ? 1 : 0;
  }
  EXPECT_GT(concat, 3u);  // overloads
  std::vector<AotHit> seen;
  images.TakeSeen(&seen);
  ASSERT_EQ(seen.size(), 8192u);  // the arena's size
  EXPECT_EQ(seen[0].method, 100u);
  EXPECT_EQ(seen[1].method, 0u);
}

class ManagedTest : public testing::Test {
 protected:
  void SetUp() override {
    if (*kManaged == '\0') GTEST_SKIP() << "needs mono and mcs (mono-runtime, mono-mcs)";
    Result<std::unique_ptr<ElfSource>> source = OpenAotFile(kManaged);
    ASSERT_TRUE(source.ok()) << source.status().context();
    source_ = std::move(source.value());
  }
  std::unique_ptr<ElfSource> source_;
};

TEST_F(ManagedTest, NamesMethodsOfEachForm) {
  const std::vector<Listed> methods = List(source_.get());
  const auto count = [&](CodeKind kind, const char* name_space, const char* name) {
    return std::count_if(methods.begin(), methods.end(), [&](const Listed& method) {
      return (method.name.kind != CodeKind::kUnknown ? method.name.kind : method.kind) == kind &&
             method.name.name_space == name_space && method.name.name == name;
    });
  };
  EXPECT_EQ(count(CodeKind::kAot, "Aot.Test.Program", "Main"), 1);
  EXPECT_EQ(count(CodeKind::kAot, "Aot.Test.Program", "Twice"), 2);  // overloads
  EXPECT_EQ(count(CodeKind::kAot, "Aot.Test.Program", "<Main>m__0"), 1);
  EXPECT_GE(count(CodeKind::kAot, "Aot.Test.Shape`1<T_REF>", "Area"), 1);
  EXPECT_EQ(count(CodeKind::kWrapper, "(wrapper managed-to-native) Aot.Test.Program", "getpid"), 1);
}

// A method that the debug information does not have is named by its symbol, never by its neighbour.
TEST_F(ManagedTest, AMethodWithoutDebugInformationKeepsItsSymbolsName) {
  std::uint32_t main = 0;
  AotName name;
  for (; main < source_->table().count; ++main) {
    source_->Describe(main, &name);
    if (name.name == "Main") break;
  }
  ASSERT_EQ(name.name_space, "Aot.Test.Program");
  std::ifstream file(kManaged, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  // Move the address that its entry has, which follows its name, by one.
  std::uint64_t address = source_->code_start() + source_->table().starts[main];
  const std::size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&address), sizeof address),
                                    bytes.find("Aot.Test.Program:Main"));
  ASSERT_NE(at, std::string::npos);
  address -= 1;
  bytes.replace(at, sizeof address, reinterpret_cast<const char*>(&address), sizeof address);
  const std::string path = std::string(kManaged) + ".moved";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  Result<std::unique_ptr<ElfSource>> moved = OpenAotFile(path.c_str());
  unlink(path.c_str());
  ASSERT_TRUE(moved.ok());
  moved.value()->Describe(main, &name);
  EXPECT_EQ(name.name_space, "");
  EXPECT_EQ(name.name, "Aot_Test_Program_Main");
}

}  // namespace
}  // namespace stackpipe
