// SPDX-License-Identifier: MIT
#include "profile/symbolizer.h"

#include <gtest/gtest.h>

#include "profile/test_trace.h"

namespace stackpipe {
namespace {

class SymbolizerTest : public testing::Test {
 protected:
  // The frame of each symbol, all finished together.
  std::vector<ProfileFrame> Frames(const std::vector<SymbolId>& symbols) {
    const auto frame_of = symbolizer_.Finish(std::vector<bool>(symbolizer_.symbol_count(), true), &profile_);
    std::vector<ProfileFrame> frames;
    for (const SymbolId symbol : symbols) frames.push_back(profile_.frame_table[frame_of[symbol]]);
    return frames;
  }
  static nettrace::Method Method(std::uint64_t id, std::uint64_t start, std::uint32_t size,
                                 const char* name) {
    return TestTrace::Method(id, start, size, name);
  }
  static nettrace::Module Module(std::uint64_t id, const char* path) {
    nettrace::Module module;
    module.module_id = id;
    module.il_path = path;
    return module;
  }

  Symbolizer symbolizer_;
  Profile profile_;
};

TEST_F(SymbolizerTest, LiveMethodCoversItsRangeOnly) {
  symbolizer_.OnMethodLoad(Method(1, 0x1000, 0x100, "F"));
  const auto frames = Frames({symbolizer_.Resolve(0xfff), symbolizer_.Resolve(0x1000),
                              symbolizer_.Resolve(0x10ff), symbolizer_.Resolve(0x1100)});
  EXPECT_FALSE(frames[0].named);
  EXPECT_EQ(frames[1].name, "Demo.F(int32)");
  EXPECT_EQ(frames[2].name, "Demo.F(int32)");
  EXPECT_EQ(frames[3].name, "0x1100");
  EXPECT_EQ(frames[3].kind, CodeKind::kUnknown);
}

// Proves: B7
TEST_F(SymbolizerTest, ReusedAddressIsTwoFrames) {
  symbolizer_.SetAnnounced();
  symbolizer_.OnMethodLoad(Method(1, 0x1000, 0x100, "First"));
  const SymbolId before = symbolizer_.Resolve(0x1010);
  symbolizer_.OnMethodUnload(Method(1, 0x1000, 0x100, "First"));
  const SymbolId between = symbolizer_.Resolve(0x1010);
  symbolizer_.OnMethodLoad(Method(2, 0x1000, 0x100, "Second"));
  const SymbolId after = symbolizer_.Resolve(0x1010);
  const auto frames = Frames({before, between, after});
  EXPECT_EQ(frames[0].name, "Demo.First(int32)");
  EXPECT_EQ(frames[1].name, "0x1010");
  EXPECT_EQ(frames[2].name, "Demo.Second(int32)");
}

TEST_F(SymbolizerTest, LoadReplacesWhatItOverlaps) {
  symbolizer_.OnMethodLoad(Method(1, 0x1000, 0x100, "Old"));
  symbolizer_.OnMethodLoad(Method(2, 0x1080, 0x100, "New"));
  const auto frames = Frames({symbolizer_.Resolve(0x1010), symbolizer_.Resolve(0x1090)});
  EXPECT_FALSE(frames[0].named);  // nobody knows what is left of Old
  EXPECT_EQ(frames[1].name, "Demo.New(int32)");
}

TEST_F(SymbolizerTest, RundownNamesWhatWasSeenBefore) {
  const SymbolId seen = symbolizer_.Resolve(0x1010);
  EXPECT_EQ(symbolizer_.Resolve(0x1010), seen);
  symbolizer_.OnMethodRundown(Method(1, 0x1000, 0x100, "F"));
  const SymbolId later = symbolizer_.Resolve(0x1010);
  EXPECT_NE(later, seen);  // consumed
  const auto frames = Frames({seen, later});
  EXPECT_EQ(frames[0].name, "Demo.F(int32)");
  EXPECT_FALSE(frames[1].named);
}

TEST_F(SymbolizerTest, TwoLifetimesOfOneAddressNamedByTheirUnloads) {
  const SymbolId first = symbolizer_.Resolve(0x1010);
  symbolizer_.OnMethodUnload(Method(1, 0x1000, 0x100, "First"));
  const SymbolId second = symbolizer_.Resolve(0x1010);
  symbolizer_.OnMethodUnload(Method(2, 0x1000, 0x100, "Second"));
  const auto frames = Frames({first, second});
  EXPECT_EQ(frames[0].name, "Demo.First(int32)");
  EXPECT_EQ(frames[1].name, "Demo.Second(int32)");
}

TEST_F(SymbolizerTest, LateLoadNamesAtTheEndUnlessSomethingBetterCame) {
  const SymbolId late = symbolizer_.Resolve(0x1010);
  const SymbolId contested = symbolizer_.Resolve(0x2010);
  symbolizer_.OnMethodLoad(Method(1, 0x1000, 0x100, "First"));
  symbolizer_.OnMethodLoad(Method(2, 0x1000, 0x100, "Second"));
  symbolizer_.OnMethodLoad(Method(3, 0x2000, 0x100, "Loaded"));
  symbolizer_.OnMethodUnload(Method(4, 0x2000, 0x100, "Unloaded"));
  const auto frames = Frames({late, contested});
  EXPECT_EQ(frames[0].name, "Demo.First(int32)");
  EXPECT_EQ(frames[1].name, "Demo.Unloaded(int32)");
}

TEST_F(SymbolizerTest, LateLoadOfCodeThatIsNotJittedNamesNothing) {
  const SymbolId late = symbolizer_.Resolve(0x1010);
  nettrace::Method method = Method(1, 0x1000, 0x100, "F");
  method.flags = 0;
  symbolizer_.OnMethodLoad(method);
  const auto frames = Frames({late, symbolizer_.Resolve(0x1010)});
  EXPECT_FALSE(frames[0].named);
  EXPECT_EQ(frames[1].name, "Demo.F(int32)");  // live is live
  EXPECT_EQ(frames[1].kind, CodeKind::kAot);
}

// A name that comes after the sample may be that of the address's next owner.
TEST_F(SymbolizerTest, NothingLateNamesAnAddressWhereCodeIsAnnounced) {
  symbolizer_.SetAnnounced();
  const SymbolId by_load = symbolizer_.Resolve(0x1010);
  const SymbolId by_unload = symbolizer_.Resolve(0x2010);
  const SymbolId by_rundown = symbolizer_.Resolve(0x3010);
  symbolizer_.OnMethodLoad(Method(1, 0x1000, 0x100, "A"));
  symbolizer_.OnMethodUnload(Method(2, 0x2000, 0x100, "B"));
  symbolizer_.OnMethodRundown(Method(3, 0x3000, 0x100, "C"));
  for (const ProfileFrame& frame : Frames({by_load, by_unload, by_rundown}))
    EXPECT_FALSE(frame.named) << frame.name;
}

TEST_F(SymbolizerTest, CodeInfoGivesKindAndSource) {
  nettrace::CodeInfo info;
  info.method_id = 1;
  info.kind = static_cast<std::int32_t>(CodeKind::kNative);
  info.source_file = "/src/a.c";
  info.source_line = 12;
  symbolizer_.OnCodeInfo(info);
  nettrace::Method method = Method(1, 0x1000, 0x100, "memcpy");
  method.name_space = "native";
  method.signature.clear();
  symbolizer_.OnMethodLoad(method);
  const auto frames = Frames({symbolizer_.Resolve(0x1000)});
  EXPECT_EQ(frames[0].name, "memcpy");
  EXPECT_EQ(frames[0].kind, CodeKind::kNative);
  EXPECT_EQ(frames[0].source_file, "/src/a.c");
  EXPECT_EQ(frames[0].source_line, 12);
}

TEST_F(SymbolizerTest, TwoBodiesOfOneMethodAreOneFrame) {
  symbolizer_.OnMethodLoad(Method(1, 0x1000, 0x100, "F"));
  symbolizer_.OnMethodLoad(Method(2, 0x2000, 0x80, "F"));
  symbolizer_.OnMethodLoad(Method(3, 0x3000, 0x80, "G"));
  Frames({symbolizer_.Resolve(0x1000), symbolizer_.Resolve(0x2000), symbolizer_.Resolve(0x3000)});
  EXPECT_EQ(profile_.frame_table.size(), 2u);
}

TEST_F(SymbolizerTest, ModuleMayBeNamedAfterItsMethods) {
  symbolizer_.OnMethodLoad(Method(1, 0x1000, 0x100, "F"));
  const SymbolId symbol = symbolizer_.Resolve(0x1000);
  symbolizer_.OnModule(Module(7, "/opt/app/demo.dll"));
  const auto frames = Frames({symbol});
  EXPECT_EQ(profile_.modules[frames[0].module].name, "demo.dll");
  EXPECT_EQ(profile_.modules[frames[0].module].path, "/opt/app/demo.dll");
}

TEST_F(SymbolizerTest, ReusedModuleIdIsTwoModules) {
  symbolizer_.OnModule(Module(7, "a.dll"));
  symbolizer_.OnMethodLoad(Method(1, 0x1000, 0x100, "F"));
  const SymbolId first = symbolizer_.Resolve(0x1000);
  symbolizer_.OnMethodUnload(Method(1, 0x1000, 0x100, "F"));
  symbolizer_.OnModule(Module(7, "a.dll"));  // its unload
  symbolizer_.OnModule(Module(7, "C:\\b.dll"));
  symbolizer_.OnMethodLoad(Method(2, 0x1000, 0x100, "F"));
  const auto frames = Frames({first, symbolizer_.Resolve(0x1000)});
  EXPECT_EQ(profile_.modules[frames[0].module].name, "a.dll");
  EXPECT_EQ(profile_.modules[frames[1].module].name, "b.dll");
}

TEST_F(SymbolizerTest, EmptyAndWrappingRangesAreIgnored) {
  symbolizer_.OnMethodLoad(Method(3, 0x4000, 0x100, "Real"));
  symbolizer_.OnMethodLoad(Method(4, 0x4000, 0, "Empty"));
  symbolizer_.OnMethodLoad(Method(1, 0x1000, 0, "Empty"));
  symbolizer_.OnMethodLoad(Method(2, ~std::uint64_t{0} - 10, 0x100, "Wraps"));
  const auto frames = Frames(
      {symbolizer_.Resolve(0x1000), symbolizer_.Resolve(~std::uint64_t{0}), symbolizer_.Resolve(0x4000)});
  EXPECT_FALSE(frames[0].named);
  EXPECT_FALSE(frames[1].named);
  EXPECT_EQ(frames[1].name, "0xffffffffffffffff");
  EXPECT_EQ(frames[2].name, "Demo.Real(int32)");
}

}  // namespace
}  // namespace stackpipe
