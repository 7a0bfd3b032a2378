// SPDX-License-Identifier: MIT
//
// Compares every row of the CFI of real libraries with a twin: a second, slow reader of .eh_frame that
// interprets an FDE's program anew for each pc and evaluates any DWARF expression, and shares no code with
// the compiler of tables. Both make one step on a made-up stack, with made-up registers, and must end with
// the same values.
#include <elf.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "unwind/cfi_compiler.h"
#include "unwind/elf_image.h"
#include "unwind/step.h"

namespace stackpipe {
namespace {

using Bytes = std::vector<std::uint8_t>;

// ---- The twin's reading
// -----------------------------------------------------------------------------------------

struct Reader {
  const std::uint8_t* at;
  const std::uint8_t* end;

  bool more() const { return at < end; }
  std::uint64_t Fixed(int size) {
    std::uint64_t value = 0;
    for (int i = 0; i < size; ++i) value |= std::uint64_t{*at++} << (8 * i);
    return value;
  }
  std::int64_t FixedSigned(int size) {
    const int shift = 64 - 8 * size;
    return static_cast<std::int64_t>(Fixed(size) << shift) >> shift;
  }
  std::uint64_t Uleb() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const std::uint8_t byte = *at++;
      value += std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  }
  std::int64_t Sleb() {
    std::int64_t value = 0;
    int shift = 0;
    std::uint8_t byte = 0;
    do {
      byte = *at++;
      value |= static_cast<std::int64_t>(std::uint64_t{byte & 0x7fu} << shift);
      shift += 7;
    } while (byte >= 0x80);
    if (shift < 64 && (byte & 0x40) != 0) value -= static_cast<std::int64_t>(std::uint64_t{1} << shift);
    return value;
  }
  Reader Block() {
    const std::uint64_t size = Uleb();
    Reader block = {at, at + size};
    at += size;
    return block;
  }
};

struct TwinRule {
  char kind = ' ';  // ' ' same, 'u' undefined, 'o' at CFA + n, 'v' CFA + n, 'r' register n, 'e' at
                    // expression, 'x' value
  std::int64_t n = 0;
  Reader expression = {nullptr, nullptr};
};

struct TwinState {
  char cfa_kind = '?';  // 'r' register + offset, 'e' expression
  std::uint64_t cfa_register = 0;
  std::int64_t cfa_offset = 0;
  Reader cfa_expression = {nullptr, nullptr};
  std::map<std::uint64_t, TwinRule> rules;
};

struct TwinFunction {
  std::uint64_t start = 0, end = 0;
  std::uint64_t code_align = 0;
  std::int64_t data_align = 0;
  bool signal_frame = false;
  Reader common = {nullptr, nullptr};
  Reader program = {nullptr, nullptr};
};

// All of this expects well-made files with 32-bit lengths and addresses relative to the pc in 4 bytes, as
// linkers write on this system; the test fails (or crashes) on others.
std::vector<TwinFunction> TwinFunctions(const Bytes& file) {
  Elf64_Ehdr header;
  std::memcpy(&header, file.data(), sizeof header);
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  std::memcpy(sections.data(), file.data() + header.e_shoff, sections.size() * sizeof(Elf64_Shdr));
  const char* names = reinterpret_cast<const char*>(file.data()) + sections[header.e_shstrndx].sh_offset;
  std::vector<TwinFunction> functions;
  for (const Elf64_Shdr& section : sections) {
    if (std::strcmp(names + section.sh_name, ".eh_frame") != 0) continue;
    const std::uint8_t* begin = file.data() + section.sh_offset;
    const std::uint8_t* end = begin + section.sh_size;
    std::map<const std::uint8_t*, TwinFunction> commons;
    for (const std::uint8_t* at = begin; at + 4 < end;) {
      Reader entry = {at, at + 4};
      const std::uint64_t length = entry.Fixed(4);
      entry.end = entry.at + length;
      const std::uint8_t* id_at = entry.at;
      if (length == 0) break;
      const std::uint64_t id = entry.Fixed(4);
      if (id == 0) {
        TwinFunction common;
        entry.Fixed(1);
        const std::string augmentation = reinterpret_cast<const char*>(entry.at);
        entry.at += augmentation.size() + 1;
        common.code_align = entry.Uleb();
        common.data_align = entry.Sleb();
        EXPECT_EQ(entry.Fixed(1), 16u);
        common.signal_frame = augmentation.find('S') != std::string::npos;
        entry.Block();
        common.common = entry;
        commons[at] = common;
      } else {
        TwinFunction function = commons.at(id_at - id);
        const std::uint64_t address = section.sh_addr + static_cast<std::uint64_t>(entry.at - begin);
        function.start = address + static_cast<std::uint64_t>(entry.FixedSigned(4));
        function.end = function.start + entry.Fixed(4);
        entry.Block();
        function.program = entry;
        functions.push_back(function);
      }
      at = id_at + length;
    }
  }
  return functions;
}

// The state at `pc`. `places` collects where rows begin.
TwinState TwinInterpret(const TwinFunction& function, std::uint64_t pc, std::set<std::uint64_t>* places) {
  TwinState state;
  TwinState initial;
  std::vector<TwinState> remembered;
  std::uint64_t location = function.start;
  for (int part = 0; part < 2; ++part) {
    Reader program = part == 0 ? function.common : function.program;
    if (part == 1) initial = state;
    while (program.more()) {
      const auto byte = static_cast<std::uint8_t>(program.Fixed(1));
      const std::uint64_t low = byte & 63;
      std::uint64_t advance = 0;
      std::uint64_t reg = 0;
      switch (byte >> 6 != 0 ? byte & 0xc0 : byte) {
        case 0x40:
          advance = low;
          break;
        case 0x80:
          state.rules[low] = {'o', static_cast<std::int64_t>(program.Uleb()) * function.data_align};
          break;
        case 0xc0:
          state.rules.erase(low);
          if (initial.rules.count(low) != 0) state.rules[low] = initial.rules[low];
          break;
        case 0:
          break;
        case 2:
          advance = program.Fixed(1);
          break;
        case 3:
          advance = program.Fixed(2);
          break;
        case 4:
          advance = program.Fixed(4);
          break;
        case 7:
          state.rules[program.Uleb()] = {'u'};
          break;
        case 8:
          state.rules.erase(program.Uleb());
          break;
        case 9:
          reg = program.Uleb();
          state.rules[reg] = {'r', static_cast<std::int64_t>(program.Uleb())};
          break;
        case 10:
          remembered.push_back(state);
          break;
        case 11:
          state = remembered.back();
          remembered.pop_back();
          break;
        case 12:
          state.cfa_kind = 'r';
          state.cfa_register = program.Uleb();
          state.cfa_offset = static_cast<std::int64_t>(program.Uleb());
          break;
        case 13:
          state.cfa_register = program.Uleb();
          break;
        case 14:
          state.cfa_offset = static_cast<std::int64_t>(program.Uleb());
          break;
        case 15:
          state.cfa_kind = 'e';
          state.cfa_expression = program.Block();
          break;
        case 16:
          reg = program.Uleb();
          state.rules[reg] = {'e', 0, program.Block()};
          break;
        case 0x11:
          reg = program.Uleb();
          state.rules[reg] = {'o', program.Sleb() * function.data_align};
          break;
        case 0x14:
          reg = program.Uleb();
          state.rules[reg] = {'v', static_cast<std::int64_t>(program.Uleb()) * function.data_align};
          break;
        case 0x16:
          reg = program.Uleb();
          state.rules[reg] = {'x', 0, program.Block()};
          break;
        case 0x2e:
          program.Uleb();
          break;
        default:
          ADD_FAILURE() << "opcode " << int{byte};
          return state;
      }
      location += advance * function.code_align;
      if (places != nullptr && location < function.end) places->insert(location);
      if (location > pc) return state;
    }
  }
  return state;
}

// ---- The twin's step
// --------------------------------------------------------------------------------------------

// A stack whose words point into it, further up.
class MadeUpStack {
 public:
  static constexpr std::size_t kWords = 1 << 18;

  MadeUpStack() : words_(kWords) {
    for (std::size_t i = 0; i < kWords; ++i) words_[i] = low() + 8 * (kWords / 2 + random_() % (kWords / 2));
  }
  std::uint64_t low() const { return reinterpret_cast<std::uint64_t>(words_.data()); }
  StackBounds bounds() const { return {low(), low() + 8 * kWords}; }
  std::optional<std::uint64_t> Read(std::uint64_t address) const {
    if (address % 8 != 0 || address - low() >= 8 * kWords) return std::nullopt;
    return words_[(address - low()) / 8];
  }
  // Registers whose frames lie inside; sp is the lowest.
  Registers MakeRegisters(std::uint64_t pc) {
    const std::uint64_t sp = low() + 8 * (kWords / 4 + random_() % 1024);
    const auto above = [&] { return sp + 8 * (1 + random_() % 4096); };
    return {pc, sp, above(), above(), above(), above(), above(), above()};
  }

 private:
  std::mt19937_64 random_{7};
  std::vector<std::uint64_t> words_;
};

using TwinRegisters = std::map<std::uint64_t, std::uint64_t>;  // by DWARF number; those that a walk has

std::optional<std::uint64_t> TwinEvaluate(Reader expression, const TwinRegisters& regs,
                                          const MadeUpStack& memory, std::optional<std::uint64_t> initial) {
  std::vector<std::uint64_t> stack;
  if (initial) stack.push_back(*initial);
  const auto pop = [&] {
    const std::uint64_t top = stack.back();
    stack.pop_back();
    return top;
  };
  while (expression.more()) {
    const auto op = static_cast<std::uint8_t>(expression.Fixed(1));
    if (op >= 0x30 && op < 0x50) {
      stack.push_back(op - 0x30u);
    } else if (op >= 0x70 && op < 0x90) {
      const std::int64_t offset = expression.Sleb();
      if (regs.count(op - 0x70u) == 0) return std::nullopt;
      stack.push_back(regs.at(op - 0x70u) + static_cast<std::uint64_t>(offset));
    } else if (op == 0x06) {
      const auto value = memory.Read(pop());
      if (!value) return std::nullopt;
      stack.push_back(*value);
    } else if (op == 0x23) {
      stack.back() += expression.Uleb();
    } else if (op == 0x08) {
      stack.push_back(expression.Fixed(1));
    } else {
      const std::uint64_t b = pop();
      const std::uint64_t a = pop();
      switch (op) {
        case 0x1a:
          stack.push_back(a & b);
          break;
        case 0x22:
          stack.push_back(a + b);
          break;
        case 0x24:
          stack.push_back(a << b);
          break;
        case 0x2a:
          stack.push_back(static_cast<std::int64_t>(a) >= static_cast<std::int64_t>(b));
          break;
        default:
          ADD_FAILURE() << "expression opcode " << int{op};
          return std::nullopt;
      }
    }
  }
  return stack.back();
}

struct TwinStep {
  enum { kStepped, kEnd, kUnknown } outcome = kUnknown;
  Registers regs;
};

// kUnknown: it takes a register that a walk does not have.
TwinStep StepTwin(const TwinState& state, const Registers& from, const MadeUpStack& memory) {
  const TwinRegisters regs = {{3, from.bx},   {6, from.bp},   {7, from.sp},   {12, from.r12},
                              {13, from.r13}, {14, from.r14}, {15, from.r15}, {16, from.pc}};
  TwinStep step;
  const auto rip = state.rules.find(16);
  if (rip != state.rules.end() && rip->second.kind == 'u') {
    step.outcome = TwinStep::kEnd;
    return step;
  }
  std::optional<std::uint64_t> cfa;
  if (state.cfa_kind == 'e') {
    cfa = TwinEvaluate(state.cfa_expression, regs, memory, std::nullopt);
  } else if (regs.count(state.cfa_register) != 0) {
    cfa = regs.at(state.cfa_register) + static_cast<std::uint64_t>(state.cfa_offset);
  }
  if (!cfa) return step;
  TwinRegisters to = regs;
  to[7] = *cfa;
  for (const auto& [reg, rule] : state.rules) {
    if (regs.count(reg) == 0) continue;
    std::optional<std::uint64_t> value;
    switch (rule.kind) {
      case 'o':
        value = memory.Read(*cfa + static_cast<std::uint64_t>(rule.n));
        break;
      case 'v':
        value = *cfa + static_cast<std::uint64_t>(rule.n);
        break;
      case 'r':
        if (regs.count(static_cast<std::uint64_t>(rule.n)) != 0)
          value = regs.at(static_cast<std::uint64_t>(rule.n));
        break;
      case 'e':
        // The one place where tables depart from the CFI, which is wrong there: see ToExtendedRule.
        if (state.cfa_kind == 'r' && state.cfa_register == 7 && state.cfa_offset == 8 &&
            *rule.expression.at == 0x76) {
          value = regs.at(reg);
          break;
        }
        value = TwinEvaluate(rule.expression, regs, memory, cfa);
        if (value) value = memory.Read(*value);
        break;
      case 'x':
        value = TwinEvaluate(rule.expression, regs, memory, cfa);
        break;
      default:
        break;
    }
    if (!value) return step;
    to[reg] = *value;
  }
  step.outcome = TwinStep::kStepped;
  step.regs = {to[16], to[7], to[6], to[3], to[12], to[13], to[14], to[15]};
  return step;
}

bool SameRegisters(const Registers& a, const Registers& b) {
  return a.pc == b.pc && a.sp == b.sp && a.bp == b.bp && a.bx == b.bx && a.r12 == b.r12 && a.r13 == b.r13 &&
         a.r14 == b.r14 && a.r15 == b.r15;
}

// ---- The comparison
// ---------------------------------------------------------------------------------------------

struct Comparison {
  std::size_t functions = 0, places = 0, stepped = 0, ends = 0, unknown = 0, differences = 0;
  std::size_t bytes = 0;
};

Comparison Compare(const std::string& path) {
  Comparison result;
  ElfImage elf;
  FrameSection frames;
  if (!elf.OpenFile(path.c_str()) || !elf.LoadEhFrame(&frames)) {
    ADD_FAILURE() << "no CFI in " << path;
    return result;
  }
  const CfiTable table = CompileCfi(frames.section, elf.CodeRanges());
  const CfiView view = table.View(0);
  result.bytes = table.byte_count();

  std::ifstream stream(path, std::ios::binary);
  const Bytes file((std::istreambuf_iterator<char>(stream)), {});
  MadeUpStack memory;
  const std::vector<TwinFunction> functions = TwinFunctions(file);
  std::set<std::uint64_t> starts;
  for (const TwinFunction& function : functions) starts.insert(function.start);
  for (const TwinFunction& function : functions) {
    if (starts.count(function.end) == 0) {
      EXPECT_EQ(view.ShapeOf(view.Find(function.end)).kind, CfiShape::Kind::kUnknown);
    }
    ++result.functions;
    std::set<std::uint64_t> places = {function.start, function.end - 1};
    TwinInterpret(function, function.end, &places);
    for (const std::uint64_t place : std::set<std::uint64_t>(places)) {
      if (place > function.start) places.insert(place - 1);
    }
    for (const std::uint64_t pc : places) {
      ++result.places;
      const TwinState state = TwinInterpret(function, pc, nullptr);
      const Registers from = memory.MakeRegisters(pc);
      const TwinStep expected = StepTwin(state, from, memory);
      Registers regs = from;
      bool is_caller = false;
      StopReason reason = StopReason::kNotWalked;
      const bool stepped = StepByTable(view, pc, memory.bounds(), &regs, &is_caller, &reason);
      bool same = false;
      switch (expected.outcome) {
        case TwinStep::kStepped:
          ++result.stepped;
          same = stepped && SameRegisters(regs, expected.regs) && is_caller == !function.signal_frame;
          break;
        case TwinStep::kEnd:
          ++result.ends;
          same = !stepped && reason == StopReason::kComplete && SameRegisters(regs, from);
          break;
        case TwinStep::kUnknown:
          ++result.unknown;
          same = !stepped && reason == StopReason::kUnknownCode && SameRegisters(regs, from);
          break;
      }
      if (!same && ++result.differences <= 10) {
        ADD_FAILURE() << path << " at 0x" << std::hex << pc << ": stepped " << stepped << ", reason "
                      << static_cast<int>(reason) << ", expected outcome " << expected.outcome;
      }
    }
  }
  std::printf(
      "%s: %zu functions, %zu places compared, %zu steps, %zu ends, %zu unknown; %zu rows, %zu shapes, "
      "%zu extended rules, %zu bytes\n",
      path.c_str(), result.functions, result.places, result.stepped, result.ends, result.unknown,
      table.row_count(), table.shape_count(), table.extended_count(), result.bytes);
  return result;
}

// Library by library: with what it must have found.
TEST(CfiTwinTest, EveryRowOfLibc) {
  const Comparison result = Compare("/lib/x86_64-linux-gnu/libc.so.6");
  EXPECT_GT(result.functions, 1000u);
  EXPECT_EQ(result.differences, 0u);
  EXPECT_GT(result.ends, 0u);  // clone and clone3
  // Code that takes rdi or rdx as base, to switch contexts: next to nothing.
  EXPECT_LT(result.unknown, result.places / 100);
}

TEST(CfiTwinTest, EveryRowOfLibstdcxx) {
  const Comparison result = Compare("/lib/x86_64-linux-gnu/libstdc++.so.6");
  EXPECT_GT(result.functions, 1000u);
  EXPECT_EQ(result.differences, 0u);
  EXPECT_LT(result.unknown, result.places / 1000);
}

TEST(CfiTwinTest, EveryRowOfTheLoader) {
  const Comparison result = Compare("/lib64/ld-linux-x86-64.so.2");
  EXPECT_GT(result.functions, 100u);
  EXPECT_EQ(result.differences, 0u);
  EXPECT_LT(result.unknown, result.places / 100);
}

TEST(CfiTwinTest, EveryRowOfThisProgram) {
  const Comparison result = Compare("/proc/self/exe");
  EXPECT_GT(result.functions, 10u);
  EXPECT_EQ(result.differences, 0u);
}

TEST(CfiTwinTest, EveryRowOfMono) {
  const std::string path = "/usr/lib/libmonosgen-2.0.so.1.0.0";
  if (!std::ifstream(path)) GTEST_SKIP() << "Mono is not installed";
  const Comparison result = Compare(path);
  EXPECT_GT(result.functions, 1000u);
  EXPECT_EQ(result.differences, 0u);
  EXPECT_LT(result.unknown, result.places / 1000);
  EXPECT_LT(result.bytes, 1'000'000u);
}

}  // namespace
}  // namespace stackpipe
