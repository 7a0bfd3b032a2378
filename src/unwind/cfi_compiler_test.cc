// SPDX-License-Identifier: MIT
//
// Tables from hand-made CFI: what it can say, and what happens when it says nonsense.
#include "unwind/cfi_compiler.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "unwind/cfi_test_bytes.h"

namespace stackpipe {
namespace {

using testing::AppendFixed;
using testing::Bytes;
using testing::CfiBytes;
using testing::CieOptions;
using Kind = CfiShape::Kind;

constexpr std::uint64_t kCode = 0x1000;
const std::vector<AddressRange> kCodeRanges = {{0x1000, 0x9000}};

struct Compiled {
  CfiTable table;
  CfiView view;

  explicit Compiled(const CfiBytes& bytes, const std::vector<AddressRange>& code = kCodeRanges)
      : table(CompileCfi(bytes.Section(), code)), view(table.View(0)) {}

  Kind KindAt(std::uint64_t pc) const { return view.ShapeOf(view.Find(pc)).kind; }
  const CfiShape& ShapeAt(std::uint64_t pc) const { return view.ShapeOf(view.Find(pc)); }
  const CfiExtendedRule& ExtendedAt(std::uint64_t pc) const {
    EXPECT_EQ(KindAt(pc), Kind::kExtended);
    return view.ExtendedOf(ShapeAt(pc), view.Find(pc));
  }
  // The offset of a plain row's CFA.
  std::uint64_t OffsetAt(std::uint64_t pc) const {
    EXPECT_EQ(KindAt(pc), Kind::kPlain) << std::hex << pc;
    return 8 * std::uint64_t{view.Find(pc).number()};
  }
};

// One function at kCode, 0x100 bytes long, with that program.
Compiled CompileOne(const Bytes& program, const CieOptions& options = {}) {
  CfiBytes bytes;
  const std::size_t cie = bytes.AddCie(options);
  bytes.AddFde(cie, kCode, 0x100, program);
  return Compiled(bytes);
}

TEST(CfiCompilerTest, FollowsPushesAndPops) {
  // push rbx at +1, push rbp at +2, sub rsp 0x1000 at +8, and all of it back from +0x80 on.
  const Compiled compiled = CompileOne({0x41, 0x0e, 16,   0x83, 2,                     // rbx at CFA-16
                                        0x41, 0x0e, 24,   0x86, 3,                     // rbp at CFA-24
                                        0x46, 0x0e, 0x98, 0x20,                        // CFA = rsp + 0x1018
                                        0x02, 0x78, 0x0e, 24,   0x41, 0xc6, 0x0e, 16,  // restore rbp
                                        0x41, 0xc3, 0x0e, 8});
  EXPECT_EQ(compiled.OffsetAt(kCode), 8u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 1), 16u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 2), 24u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 7), 24u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 8), 0x1018u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 0x7f), 0x1018u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 0x80), 24u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 0x81), 16u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 0x82), 8u);
  const CfiShape& full = compiled.ShapeAt(kCode + 8);
  EXPECT_EQ(full.saved[kRegBx - kFirstSaved], -2);
  EXPECT_EQ(full.saved[kRegBp - kFirstSaved], -3);
  EXPECT_EQ(full.saved[kRegR12 - kFirstSaved], 0);
  EXPECT_EQ(full.depth, 24);
  EXPECT_EQ(compiled.ShapeAt(kCode + 0x81).saved[kRegBp - kFirstSaved], 0);
  EXPECT_EQ(compiled.ShapeAt(kCode + 0x81).saved[kRegBx - kFirstSaved], -2);
}

TEST(CfiCompilerTest, CodeOutsideFunctionsIsUnknown) {
  CfiBytes bytes;
  const std::size_t cie = bytes.AddCie();
  bytes.AddFde(cie, kCode + 0x10, 0x20, {});
  bytes.AddFde(cie, kCode + 0x2000, 0x20, {});
  const Compiled compiled(bytes);
  EXPECT_EQ(compiled.KindAt(0), Kind::kUnknown);
  EXPECT_EQ(compiled.KindAt(kCode + 0xf), Kind::kUnknown);
  EXPECT_EQ(compiled.KindAt(kCode + 0x10), Kind::kPlain);
  EXPECT_EQ(compiled.KindAt(kCode + 0x2f), Kind::kPlain);
  EXPECT_EQ(compiled.KindAt(kCode + 0x30), Kind::kUnknown);
  EXPECT_EQ(compiled.KindAt(kCode + 0x1fff), Kind::kUnknown);
  EXPECT_EQ(compiled.KindAt(kCode + 0x201f), Kind::kPlain);
  EXPECT_EQ(compiled.KindAt(kCode + 0x2020), Kind::kUnknown);
  EXPECT_EQ(compiled.KindAt(~std::uint64_t{0}), Kind::kUnknown);
}

TEST(CfiCompilerTest, RememberAndRestoreNest) {
  const Compiled compiled = CompileOne({0x44, 0x0e, 16,        // +4: 16
                                        0x44, 0x0a, 0x0e, 32,  // +8: remember, 32
                                        0x44, 0x0a, 0x0e, 48,  // +12: remember, 48
                                        0x44, 0x0b,            // +16: back to 32
                                        0x44, 0x0b});          // +20: back to 16
  EXPECT_EQ(compiled.OffsetAt(kCode + 8), 32u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 12), 48u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 16), 32u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 20), 16u);
}

TEST(CfiCompilerTest, AllWaysToAdvance) {
  Bytes program = {0x02, 0x10, 0x0e, 16, 0x03, 0x20, 0x00, 0x0e, 24, 0x04, 0x30, 0, 0, 0, 0x0e, 32, 0x01};
  CfiBytes bytes;
  const std::size_t cie = bytes.AddCie();
  // set_loc, to kCode + 0x90: relative to where its operand lies.
  const std::uint64_t operand = CfiBytes::kAddress + bytes.bytes.size() + 4 + 4 + 8 + 1 + program.size();
  AppendFixed(&program, kCode + 0x90 - operand, 4);
  program.insert(program.end(), {0x0e, 40});
  bytes.AddFde(cie, kCode, 0x100, program);
  const Compiled compiled(bytes);
  EXPECT_EQ(compiled.OffsetAt(kCode + 0x0f), 8u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 0x10), 16u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 0x30), 24u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 0x60), 32u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 0x8f), 32u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 0x90), 40u);
}

TEST(CfiCompilerTest, UndefinedReturnAddressIsTheEnd) {
  EXPECT_EQ(CompileOne({0x07, 16}).KindAt(kCode), Kind::kEnd);
}

TEST(CfiCompilerTest, SignalFrames) {
  CieOptions options;
  options.augmentation = "zRS";
  // As libc describes __restore_rt: CFA = *(rsp + 160), rsp at rsp + 160, rip at rsp + 168, rbx at rsp + 128.
  options.program = {};
  const Compiled compiled = CompileOne({0x0f, 4,  0x77, 0xa0, 0x01, 0x06, 0x10, 7, 3, 0x77, 0xa0, 0x01,  //
                                        0x10, 16, 3,    0x77, 0xa8, 0x01, 0x10, 3, 3, 0x77, 0x80, 0x01},
                                       options);
  const CfiExtendedRule& rule = compiled.ExtendedAt(kCode);
  EXPECT_TRUE(rule.signal_frame);
  EXPECT_EQ(rule.cfa_kind, CfiExtendedRule::CfaKind::kDeref);
  EXPECT_EQ(rule.cfa_register, kRegSp);
  EXPECT_EQ(rule.cfa_offset, 160);
  EXPECT_EQ(rule.return_address.kind, CfiLocation::Kind::kAtRegister);
  EXPECT_EQ(rule.return_address.offset, 168);
  EXPECT_EQ(rule.saved[kRegBx - kFirstSaved].offset, 128);
  EXPECT_EQ(rule.saved[kRegBp - kFirstSaved].kind, CfiLocation::Kind::kSame);
}

// sp has a rule of its own that is not the CFA: a walk would need both.
TEST(CfiCompilerTest, SpThatIsNotTheCfaIsUnknown) {
  CieOptions options;
  options.program = {};
  EXPECT_EQ(CompileOne({0x0f, 4, 0x77, 0xa0, 0x01, 0x06, 0x10, 7, 3, 0x77, 0xa8, 0x01, 0x90, 1}, options)
                .KindAt(kCode),
            Kind::kUnknown);
  EXPECT_EQ(CompileOne({0x87, 2}).KindAt(kCode), Kind::kUnknown);
  EXPECT_EQ(CompileOne({0x09, 7, 3}).KindAt(kCode), Kind::kUnknown);
}

TEST(CfiCompilerTest, LazyPltEntries) {
  const Compiled compiled =
      CompileOne({0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22});
  const CfiExtendedRule& rule = compiled.ExtendedAt(kCode);
  EXPECT_EQ(rule.cfa_kind, CfiExtendedRule::CfaKind::kPlt);
  EXPECT_EQ(rule.cfa_offset, 8);
  EXPECT_EQ(rule.cfa_addend, 11);
}

// A frame realigned by way of a saved pointer: CFA = *(rbp - 8), rbp at rbp + 0.
TEST(CfiCompilerTest, RealignedFrames) {
  const Compiled compiled = CompileOne({0x0f, 3, 0x76, 0x78, 0x06, 0x10, 6, 2, 0x76, 0});
  const CfiExtendedRule& rule = compiled.ExtendedAt(kCode);
  EXPECT_EQ(rule.cfa_kind, CfiExtendedRule::CfaKind::kDeref);
  EXPECT_EQ(rule.cfa_register, kRegBp);
  EXPECT_EQ(rule.cfa_offset, -8);
  EXPECT_EQ(rule.saved[0].kind, CfiLocation::Kind::kAtRegister);
  EXPECT_EQ(rule.return_address.kind, CfiLocation::Kind::kAtCfa);
  EXPECT_EQ(rule.return_address.offset, -8);
}

// As GCC leaves it at the end: CFA = rsp + 8, but rbp and rbx still at rbp + n. They are back in place.
TEST(CfiCompilerTest, EndOfRealignedFrames) {
  const Compiled compiled = CompileOne({0x10, 6, 2, 0x76, 0, 0x10, 3, 2, 0x76, 0x50, 0x10, 12, 2, 0x77, 0});
  const CfiExtendedRule& rule = compiled.ExtendedAt(kCode);
  EXPECT_EQ(rule.saved[kRegBp - kFirstSaved].kind, CfiLocation::Kind::kSame);
  EXPECT_EQ(rule.saved[kRegBx - kFirstSaved].kind, CfiLocation::Kind::kSame);
  EXPECT_EQ(rule.saved[kRegR12 - kFirstSaved].kind, CfiLocation::Kind::kAtRegister);
}

TEST(CfiCompilerTest, BasesThatAWalkHas) {
  EXPECT_EQ(CompileOne({0x0d, 6}).ShapeAt(kCode).cfa_register, kRegBp);
  EXPECT_EQ(CompileOne({0x0d, 3}).ShapeAt(kCode).cfa_register, kRegBx);
  EXPECT_EQ(CompileOne({0x0d, 15}).ShapeAt(kCode).cfa_register, kRegR15);
  EXPECT_EQ(CompileOne({0x0d, 10}).KindAt(kCode), Kind::kUnknown);  // r10, which calls do not keep
  EXPECT_EQ(CompileOne({0x0d, 200, 1}).KindAt(kCode), Kind::kUnknown);
}

// Sizes that a plain row has no room for.
TEST(CfiCompilerTest, LargeAndOddOffsets) {
  EXPECT_EQ(CompileOne({0x0e, 0xf8, 0xff, 0x07}).OffsetAt(kCode), 0x1fff8u);  // the largest that fits
  EXPECT_EQ(CompileOne({0x0e, 0x80, 0x80, 0x08}).ExtendedAt(kCode).cfa_offset, 0x20000);
  EXPECT_EQ(CompileOne({0x0e, 12}).ExtendedAt(kCode).cfa_offset, 12);
  EXPECT_EQ(CompileOne({0x13, 1}).ExtendedAt(kCode).cfa_offset, -8);
  // rbx at CFA - 1024 fits, at CFA - 1032 not.
  EXPECT_EQ(CompileOne({0x83, 0x80, 0x01}).ShapeAt(kCode).saved[kRegBx - kFirstSaved], -128);
  EXPECT_EQ(CompileOne({0x83, 0x80, 0x01}).ShapeAt(kCode).depth, 1024);
  EXPECT_EQ(CompileOne({0x83, 0x81, 0x01}).ExtendedAt(kCode).saved[kRegBx - kFirstSaved].offset, -1032);
  // 4 GB.
  EXPECT_EQ(CompileOne({0x0e, 0x80, 0x80, 0x80, 0x80, 0x10}).KindAt(kCode), Kind::kUnknown);
}

TEST(CfiCompilerTest, OtherRulesForRegisters) {
  using Location = CfiLocation::Kind;
  const auto rbx = [](const Bytes& program) {
    return CompileOne(program).ExtendedAt(kCode).saved[kRegBx - kFirstSaved];
  };
  EXPECT_EQ(rbx({0x07, 3}).kind, Location::kUndefined);
  EXPECT_EQ(rbx({0x14, 3, 2}).kind, Location::kCfaPlus);  // val_offset
  EXPECT_EQ(rbx({0x14, 3, 2}).offset, -16);
  EXPECT_EQ(rbx({0x15, 3, 0x7e}).offset, 16);  // val_offset_sf
  EXPECT_EQ(rbx({0x09, 3, 12}).kind, Location::kRegisterPlus);
  EXPECT_EQ(rbx({0x09, 3, 12}).base, kRegR12);
  EXPECT_EQ(rbx({0x16, 3, 2, 0x76, 8}).kind, Location::kRegisterPlus);  // val_expression: rbp + 8
  EXPECT_EQ(rbx({0x16, 3, 2, 0x76, 8}).offset, 8);
  EXPECT_EQ(rbx({0x11, 3, 0x7e}).offset, 16);                         // offset_extended_sf: above the CFA
  EXPECT_EQ(rbx({0x2f, 3, 2}).offset, 16);                            // GNU_negative_offset_extended
  EXPECT_EQ(rbx({0x10, 3, 4, 0x77, 8, 0x23, 8}).offset, 16);          // plus_uconst
  EXPECT_EQ(CompileOne({0x09, 3, 0}).KindAt(kCode), Kind::kUnknown);  // in rax
  EXPECT_EQ(CompileOne({0x05, 3, 2}).ShapeAt(kCode).saved[kRegBx - kFirstSaved], -2);       // offset_extended
  EXPECT_EQ(CompileOne({0x83, 2, 0x08, 3}).ShapeAt(kCode).saved[kRegBx - kFirstSaved], 0);  // same_value
  EXPECT_EQ(CompileOne({0x83, 2, 0x06, 3}).ShapeAt(kCode).saved[kRegBx - kFirstSaved],
            0);                                                // restore_extended
  EXPECT_EQ(CompileOne({0x05, 0x20, 2}).OffsetAt(kCode), 8u);  // xmm15, which a walk does not need
  EXPECT_EQ(CompileOne({0x2e, 0x40}).OffsetAt(kCode), 8u);     // GNU_args_size
}

// The return address must have a rule; without one, or with one that a walk cannot follow, nothing is known.
TEST(CfiCompilerTest, ReturnAddresses) {
  CieOptions options;
  options.program = {0x0c, 7, 8};
  EXPECT_EQ(CompileOne({}, options).KindAt(kCode), Kind::kUnknown);
  EXPECT_EQ(CompileOne({0x08, 16}).KindAt(kCode), Kind::kUnknown);
  EXPECT_EQ(CompileOne({0x09, 16, 2}).KindAt(kCode), Kind::kUnknown);  // in rcx
  EXPECT_EQ(CompileOne({0x09, 16, 3}).ExtendedAt(kCode).return_address.base, kRegBx);
  EXPECT_EQ(CompileOne({0x90, 2}).ExtendedAt(kCode).return_address.offset, -16);
  options.return_register = 15;
  EXPECT_EQ(CompileOne({0x90, 1}, options).KindAt(kCode), Kind::kUnknown);
}

// What came before the nonsense holds; from there on nothing does.
TEST(CfiCompilerTest, BrokenPrograms) {
  const auto broken_from = [](Bytes nonsense) {
    Bytes program = {0x44, 0x0e, 16, 0x44};
    program.insert(program.end(), nonsense.begin(), nonsense.end());
    const Compiled compiled = CompileOne(program);
    EXPECT_EQ(compiled.OffsetAt(kCode + 3), 8u);
    EXPECT_EQ(compiled.OffsetAt(kCode + 7), 16u);
    return compiled.KindAt(kCode + 8) == Kind::kUnknown && compiled.KindAt(kCode + 0xff) == Kind::kUnknown;
  };
  EXPECT_TRUE(broken_from({0x17}));                             // no such opcode
  EXPECT_TRUE(broken_from({0x2d}));                             // GNU_window_save
  EXPECT_TRUE(broken_from({0x0b}));                             // restores what was not remembered
  EXPECT_TRUE(broken_from({0x0e}));                             // the operand is missing
  EXPECT_TRUE(broken_from({0x0e, 0x80}));                       // the operand does not end
  EXPECT_TRUE(broken_from({0x0f, 9, 0x77}));                    // the expression is longer than the rest
  EXPECT_TRUE(broken_from({0x0f, 1, 0x96}));                    // an expression that is not understood
  EXPECT_TRUE(broken_from({0x0f, 0}));                          // an empty one
  EXPECT_TRUE(broken_from({0x0f, 3, 0x77, 8, 0x22, 0x0e, 8}));  // then an offset without a register
  EXPECT_TRUE(broken_from({0x0e, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}));
  EXPECT_TRUE(
      broken_from({0x83, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}));  // the product overflows
  EXPECT_TRUE(broken_from({0x01, 0, 0, 0xf0, 0xff}));                              // set_loc, backwards
  EXPECT_TRUE(broken_from(Bytes(100, 0x0a)));                                      // remembers without end
}

TEST(CfiCompilerTest, AdvanceBeyondTheFunctionIsCut) {
  CfiBytes bytes;
  const std::size_t cie = bytes.AddCie();
  bytes.AddFde(cie, kCode, 0x10,
               {0x44, 0x0e, 16, 0x02, 0xff, 0x0e, 24, 0x04, 0xff, 0xff, 0xff, 0xff, 0x0e, 32});
  bytes.AddFde(cie, kCode + 0x10, 0x100, {});
  const Compiled compiled(bytes);
  EXPECT_EQ(compiled.OffsetAt(kCode + 0xf), 16u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 0x10), 8u);
  EXPECT_EQ(compiled.OffsetAt(kCode + 0x10f), 8u);
}

TEST(CfiCompilerTest, CommonProgramMayNotNameAddressesOrRestore) {
  CieOptions options;
  options.program = {0x0c, 7, 8, 0x90, 1, 0x41};
  EXPECT_EQ(CompileOne({}, options).KindAt(kCode), Kind::kUnknown);
  options.program.back() = 0xc3;
  EXPECT_EQ(CompileOne({}, options).KindAt(kCode), Kind::kUnknown);
}

// Who is right cannot be told.
TEST(CfiCompilerTest, CodeOfTwoFunctionsIsUnknown) {
  CfiBytes bytes;
  const std::size_t cie = bytes.AddCie();
  bytes.AddFde(cie, kCode, 0x100, {});
  bytes.AddFde(cie, kCode + 0x80, 0x20, {0x0e, 16});
  bytes.AddFde(cie, kCode + 0x200, 0x10, {});
  bytes.AddFde(cie, kCode + 0x200, 0x10, {});
  const Compiled compiled(bytes);
  EXPECT_EQ(compiled.KindAt(kCode + 0x7f), Kind::kPlain);
  EXPECT_EQ(compiled.KindAt(kCode + 0x80), Kind::kUnknown);
  EXPECT_EQ(compiled.KindAt(kCode + 0x9f), Kind::kUnknown);
  EXPECT_EQ(compiled.KindAt(kCode + 0x200), Kind::kUnknown);
}

TEST(CfiCompilerTest, FunctionsOutsideTheCodeAreDropped) {
  CfiBytes bytes;
  const std::size_t cie = bytes.AddCie();
  bytes.AddFde(cie, 0, 0x100, {});
  bytes.AddFde(cie, 0x8ff0, 0x20, {});
  bytes.AddFde(cie, ~std::uint64_t{0xf}, 0x20, {});
  EXPECT_TRUE(Compiled(bytes).table.empty());
}

TEST(CfiCompilerTest, SortsFunctions) {
  CfiBytes bytes;
  const std::size_t cie = bytes.AddCie();
  for (std::uint64_t i = 0; i < 15; ++i) {
    const std::uint64_t at = i * 7 % 15;
    bytes.AddFde(cie, kCode + at * 0x100, 0x100, {0x0e, static_cast<std::uint8_t>(8 * at + 8)});
  }
  const Compiled compiled(bytes);
  for (std::uint64_t at = 0; at < 15; ++at) EXPECT_EQ(compiled.OffsetAt(kCode + at * 0x100), 8 * at + 8);
  const auto functions = ListFunctions(bytes.Section(), kCodeRanges);
  ASSERT_EQ(functions.size(), 15u);
  EXPECT_EQ(functions[3].start, kCode + 0x300);
  EXPECT_EQ(functions[3].end, kCode + 0x400);
}

TEST(CfiCompilerTest, EncodingsOfAddresses) {
  for (const std::uint8_t encoding : Bytes{0x00, 0x02, 0x03, 0x04, 0x0a, 0x0b, 0x0c, 0x14, 0x1b, 0x1c}) {
    CieOptions options;
    options.pointer_encoding = encoding;
    EXPECT_EQ(CompileOne({}, options).OffsetAt(kCode + 0xff), 8u) << int{encoding};
  }
  // Indirect, relative to text, data or function, aligned, absent, unknown format.
  for (const std::uint8_t encoding : Bytes{0x9b, 0x2b, 0x3b, 0x4b, 0x50, 0xff, 0x05}) {
    CieOptions options;
    options.pointer_encoding = encoding;
    EXPECT_EQ(CompileOne({}, options).KindAt(kCode), Kind::kUnknown) << int{encoding};
  }
}

TEST(CfiCompilerTest, Augmentations) {
  CieOptions options;
  options.augmentation = "zPLR";
  options.augmentation_data = {0x9b, 1, 2, 3, 4, 0x1b, 0x1b};
  CfiBytes bytes;
  const std::size_t cie = bytes.AddCie(options);
  // An FDE with a pointer to its exception table in the augmentation data.
  Bytes body;
  AppendFixed(&body, bytes.bytes.size() + 4 - cie, 4);
  AppendFixed(&body, kCode - (CfiBytes::kAddress + bytes.bytes.size() + 8), 4);
  AppendFixed(&body, 0x100, 4);
  body.insert(body.end(), {4, 9, 9, 9, 9, 0x0e, 24});
  bytes.AddEntry(body);
  EXPECT_EQ(Compiled(bytes).OffsetAt(kCode), 24u);

  for (const char* strange : {"zQR", "eh", "R", "zRB"}) {
    options = CieOptions();
    options.augmentation = strange;
    EXPECT_EQ(CompileOne({}, options).KindAt(kCode), Kind::kUnknown) << strange;
  }
  options = CieOptions();
  options.version = 2;
  EXPECT_EQ(CompileOne({}, options).KindAt(kCode), Kind::kUnknown);
}

TEST(CfiCompilerTest, LongLengths) {
  CieOptions options;
  options.is_64bit = true;
  for (const bool is_debug_frame : {false, true}) {
    CfiBytes bytes(is_debug_frame);
    if (is_debug_frame) options.augmentation = "";
    const std::size_t cie = bytes.AddCie(options);
    bytes.AddFde(cie, kCode, 0x100, {0x0e, 16}, true);
    EXPECT_EQ(Compiled(bytes).OffsetAt(kCode), 16u) << is_debug_frame;
  }
}

TEST(CfiCompilerTest, DebugFrame) {
  for (const std::uint8_t version : Bytes{1, 3, 4}) {
    CfiBytes bytes(true);
    CieOptions options;
    options.augmentation = "";
    options.version = version;
    bytes.AddFde(0x7777, kCode + 0x200, 0x100, {});  // its CIE is not there
    const std::size_t cie = bytes.AddCie(options);
    bytes.AddFde(cie, kCode, 0x100, {0x0e, 16});
    const Compiled compiled(bytes);
    EXPECT_EQ(compiled.OffsetAt(kCode), 16u) << int{version};
    EXPECT_EQ(compiled.KindAt(kCode + 0x200), Kind::kUnknown);
  }
}

TEST(CfiCompilerTest, ZeroLengths) {
  CfiBytes bytes;
  std::size_t cie = bytes.AddCie();
  bytes.AddFde(cie, kCode, 0x100, {});
  AppendFixed(&bytes.bytes, 0, 4);
  bytes.AddFde(cie, kCode + 0x100, 0x100, {});
  CfiSection section = bytes.Section();
  EXPECT_EQ(ListFunctions(section, kCodeRanges).size(), 2u);
  section.stop_at_zero = true;
  EXPECT_EQ(ListFunctions(section, kCodeRanges).size(), 1u);
}

TEST(CfiCompilerTest, BrokenEntries) {
  CfiBytes good;
  const std::size_t cie = good.AddCie();
  good.AddFde(cie, kCode, 0x100, {0x0e, 16});

  // An FDE that names itself, or something before or behind the section, as its CIE.
  for (const std::uint32_t id :
       {0xfffffff0u, 0x7fffffffu, static_cast<std::uint32_t>(good.bytes.size() + 4), 4u}) {
    CfiBytes bytes = good;
    Bytes body;
    AppendFixed(&body, id, 4);
    AppendFixed(&body, 0, 8);
    AppendFixed(&body, 0, 4);
    bytes.AddEntry(body);
    EXPECT_EQ(Compiled(bytes).OffsetAt(kCode), 16u);
  }
  // A length that leads out of the section.
  CfiBytes bytes = good;
  AppendFixed(&bytes.bytes, 0x1000, 4);
  EXPECT_EQ(Compiled(bytes).OffsetAt(kCode), 16u);
  bytes = good;
  AppendFixed(&bytes.bytes, 0xffffffff, 4);
  AppendFixed(&bytes.bytes, ~std::uint64_t{0}, 8);
  EXPECT_EQ(Compiled(bytes).OffsetAt(kCode), 16u);
  // Cut anywhere: nothing else may be known than in the whole.
  for (std::size_t size = 0; size < good.bytes.size(); ++size) {
    bytes = good;
    bytes.bytes.resize(size);
    bytes.bytes.shrink_to_fit();
    EXPECT_EQ(Compiled(bytes).KindAt(kCode), Kind::kUnknown) << size;
  }
}

// Any byte may be anything. (The fuzzer goes further; this is for the sanitizers in each test run.)
TEST(CfiCompilerTest, RandomDamage) {
  CfiBytes good;
  CieOptions options;
  options.augmentation = "zPLR";
  options.augmentation_data = {0x9b, 1, 2, 3, 4, 0x1b, 0x1b};
  std::size_t cie = good.AddCie();
  good.AddFde(cie, kCode, 0x100, {0x44, 0x0e, 16, 0x83, 2, 0x44, 0x0a, 0x0d, 6, 0x44, 0x0b});
  cie = good.AddCie(options);
  good.AddFde(cie, kCode + 0x100, 0x100,
              {0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22});
  good.AddFde(cie, kCode + 0x200, 0x100, {0x10, 3, 2, 0x76, 8, 0x16, 6, 2, 0x76, 8});
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    CfiBytes bytes = good;
    for (unsigned i = 0; i < 1 + random() % 4; ++i) {
      bytes.bytes[random() % bytes.bytes.size()] = static_cast<std::uint8_t>(random());
    }
    const Compiled compiled(bytes);
    ListFunctions(bytes.Section(), kCodeRanges);
    for (std::uint64_t pc = kCode - 1; pc < kCode + 0x301; pc += 0x13) {
      if (compiled.KindAt(pc) == Kind::kExtended) {
        EXPECT_LT(compiled.ExtendedAt(pc).cfa_register, kRegCount);
      }
    }
  }
}

// A table without rows is one that knows nothing.
TEST(CfiTableTest, EmptyTableKnowsNothing) {
  const CfiTable table;
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(table.View(0x5000).ShapeOf(table.View(0x5000).Find(0x5000)).kind, Kind::kUnknown);
}

// More shapes than a row can name: the rest becomes extended rules, which say the same.
TEST(CfiTableTest, ManyShapes) {
  CfiBytes bytes;
  const std::size_t cie = bytes.AddCie();
  Bytes program;
  constexpr std::uint64_t kShapes = 5000;
  for (std::uint64_t i = 0; i < kShapes; ++i) {
    // rbx at CFA - 8 * (2 + i / 100), rbp at CFA - 8 * (10 + i % 100): all different.
    program.insert(program.end(), {0x41, 0x83, static_cast<std::uint8_t>(2 + i / 100), 0x86,
                                   static_cast<std::uint8_t>(10 + i % 100)});
  }
  bytes.AddFde(cie, kCode, kShapes + 1, program);
  const Compiled compiled(bytes);
  EXPECT_GT(compiled.table.extended_count(), 2000u);
  for (std::uint64_t i = 0; i < kShapes; ++i) {
    const std::uint64_t pc = kCode + 1 + i;
    const auto rbx = -static_cast<int>(2 + i / 100);
    const auto rbp = -static_cast<int>(10 + i % 100);
    ASSERT_NE(compiled.KindAt(pc), Kind::kUnknown) << i;
    if (compiled.KindAt(pc) == Kind::kPlain) {
      ASSERT_EQ(compiled.ShapeAt(pc).saved[1], rbx) << i;
      ASSERT_EQ(compiled.ShapeAt(pc).saved[0], rbp) << i;
    } else if (compiled.KindAt(pc) == Kind::kExtended) {
      ASSERT_EQ(compiled.ExtendedAt(pc).saved[1].offset, 8 * rbx) << i;
      ASSERT_EQ(compiled.ExtendedAt(pc).saved[0].offset, 8 * rbp) << i;
    }
  }
}

}  // namespace
}  // namespace stackpipe
