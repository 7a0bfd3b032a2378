// SPDX-License-Identifier: MIT
#include "unwind/cfi_compiler.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace stackpipe {
namespace {

// DWARF's register numbers for x86-64.
constexpr std::uint64_t kDwarfRsp = 7;
constexpr std::uint64_t kDwarfRip = 16;
constexpr std::size_t kDwarfCount = 17;
// Of the saved registers, in the order of CfiRule::saved.
constexpr std::size_t kDwarfSaved[kSavedCount] = {6, 3, 12, 13, 14, 15};

// Compilers nest remember_state once or twice.
constexpr std::size_t kRememberedMax = 32;

// False: the walk has no such register.
bool ToCfiRegister(std::uint64_t dwarf, std::uint8_t* reg) {
  if (dwarf == kDwarfRsp) {
    *reg = kRegSp;
    return true;
  }
  for (std::size_t i = 0; i < kSavedCount; ++i) {
    if (kDwarfSaved[i] == dwarf) {
      *reg = static_cast<std::uint8_t>(kFirstSaved + i);
      return true;
    }
  }
  return false;
}

bool ToInt32(std::int64_t value, std::int32_t* out) {
  if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max()) {
    return false;
  }
  *out = static_cast<std::int32_t>(value);
  return true;
}

// How the CFI program says to find a register of the caller's.
struct RegisterState {
  enum class Kind : std::uint8_t {
    kUnset,
    kUndefined,
    kSame,
    kAtCfa,
    kCfaPlus,
    kInRegister,
    kAtExpression,
    kExpressionValue
  };
  Kind kind = Kind::kUnset;
  std::int64_t number = 0;  // the offset, or the other register
  ByteReader expression;
};

struct CfaState {
  enum class Kind : std::uint8_t { kUnset, kRegister, kExpression };
  Kind kind = Kind::kUnset;
  std::uint64_t dwarf_register = 0;
  std::int64_t offset = 0;
  ByteReader expression;
};

struct RowState {
  CfaState cfa;
  std::array<RegisterState, kDwarfCount> registers;
};

// The expressions that compilers and C libraries emit: register + offset, *(register + offset) + addend, and
// the position inside a lazily bound PLT entry.
struct Expression {
  std::uint8_t base = kRegSp;
  std::int64_t offset = 0;
  bool deref = false;
  bool plt = false;
  std::int64_t addend = 0;
};

constexpr std::uint8_t kOpDeref = 0x06;
constexpr std::uint8_t kOpAnd = 0x1a;
constexpr std::uint8_t kOpPlus = 0x22;
constexpr std::uint8_t kOpPlusUconst = 0x23;
constexpr std::uint8_t kOpShl = 0x24;
constexpr std::uint8_t kOpGe = 0x2a;
constexpr std::uint8_t kOpLit0 = 0x30;
constexpr std::uint8_t kOpBreg0 = 0x70;
constexpr std::uint8_t kOpBregX = 0x92;

// What follows "register + offset" in a PLT's CFA: + ((rip & 15) >= N) << 3, with N between 0 and 15.
bool ParsePltTail(ByteReader reader, std::int64_t* threshold) {
  if (reader.Read<std::uint8_t>() != kOpBreg0 + kDwarfRip || reader.ReadSleb() != 0) return false;
  if (reader.Read<std::uint8_t>() != kOpLit0 + 15 || reader.Read<std::uint8_t>() != kOpAnd) return false;
  *threshold = reader.Read<std::uint8_t>() - kOpLit0;
  if (*threshold < 0 || *threshold > 15 || reader.Read<std::uint8_t>() != kOpGe) return false;
  if (reader.Read<std::uint8_t>() != kOpLit0 + 3 || reader.Read<std::uint8_t>() != kOpShl) return false;
  return reader.Read<std::uint8_t>() == kOpPlus && !reader.failed() && reader.left() == 0;
}

bool ParseExpression(ByteReader reader, Expression* out) {
  const auto first = reader.Read<std::uint8_t>();
  std::uint64_t base = 0;
  if (first >= kOpBreg0 && first < kOpBreg0 + 32) {
    base = first - kOpBreg0;
  } else if (first == kOpBregX) {
    base = reader.ReadUleb();
  } else {
    return false;
  }
  out->offset = reader.ReadSleb();
  if (reader.failed() || !ToCfiRegister(base, &out->base)) return false;
  if (ParsePltTail(reader, &out->addend)) {
    out->plt = true;
    return true;
  }
  out->addend = 0;
  while (reader.left() > 0) {
    switch (reader.Read<std::uint8_t>()) {
      case kOpDeref:
        if (out->deref) return false;
        out->deref = true;
        break;
      case kOpPlusUconst: {
        const std::uint64_t count = reader.ReadUleb();
        if (count > std::numeric_limits<std::int32_t>::max()) return false;
        if (__builtin_add_overflow(out->deref ? out->addend : out->offset, static_cast<std::int64_t>(count),
                                   out->deref ? &out->addend : &out->offset)) {
          return false;
        }
        break;
      }
      default:
        return false;
    }
  }
  return !reader.failed();
}

// FNV-1a. T has no padding.
template <typename T>
struct HashOf {
  static_assert(std::is_trivially_copyable_v<T>);
  std::size_t operator()(const T& value) const {
    unsigned char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
    return hash;
  }
};

// Collects stretches of code and the shapes and extended rules that they name.
class TableBuilder {
 public:
  TableBuilder() { shapes_.emplace_back(); }

  // From `address` on, `row` holds. Addresses ascend.
  void Append(std::uint64_t address, CfiRow row) {
    if (!code_.empty() && code_.back().address == address) code_.pop_back();
    if (!code_.empty() && code_.back().row.bits == row.bits) return;
    code_.push_back({address, row});
  }

  // False: there are too many shapes. The last few are kept for extended rules, which can say all that plain
  // rows say.
  bool MakeRow(const CfiShape& shape, std::uint32_t number, CfiRow* row) {
    constexpr std::size_t kForExtended = 16;
    auto at = shape_ids_.find(shape);
    if (at == shape_ids_.end()) {
      const std::size_t kept = shape.kind == CfiShape::Kind::kPlain ? kForExtended : 0;
      if (shapes_.size() > CfiRow::kShapeMax - kept) return false;
      at = shape_ids_.emplace(shape, static_cast<std::uint32_t>(shapes_.size())).first;
      shapes_.push_back(shape);
    }
    row->bits = (at->second << CfiRow::kNumberBits) | number;
    return true;
  }

  bool MakeRow(const CfiExtendedRule& extended, CfiRow* row) {
    auto at = extended_ids_.find(extended);
    if (at == extended_ids_.end()) {
      at = extended_ids_.emplace(extended, static_cast<std::uint32_t>(extended_.size())).first;
      extended_.push_back(extended);
    }
    CfiShape shape;
    shape.kind = CfiShape::Kind::kExtended;
    shape.first_extended = at->second & ~CfiRow::kNumberMax;
    return MakeRow(shape, at->second & CfiRow::kNumberMax, row);
  }

  CfiTable Finish() { return CfiTable(code_, std::move(shapes_), std::move(extended_)); }

 private:
  std::vector<CfiTable::Stretch> code_;
  std::vector<CfiShape> shapes_;
  std::vector<CfiExtendedRule> extended_;
  std::unordered_map<CfiShape, std::uint32_t, HashOf<CfiShape>> shape_ids_;
  std::unordered_map<CfiExtendedRule, std::uint32_t, HashOf<CfiExtendedRule>> extended_ids_;
};

// ---- From a row's state to a row
// ---------------------------------------------------------------------------------

// False: not that simple.
bool ToPlainRow(const RowState& state, TableBuilder* builder, CfiRow* row) {
  using Kind = RegisterState::Kind;
  CfiShape shape;
  shape.kind = CfiShape::Kind::kPlain;
  if (state.cfa.kind != CfaState::Kind::kRegister) return false;
  if (!ToCfiRegister(state.cfa.dwarf_register, &shape.cfa_register)) return false;
  if (state.cfa.offset < 0 || state.cfa.offset % 8 != 0 || state.cfa.offset / 8 > CfiRow::kNumberMax)
    return false;
  const RegisterState& rip = state.registers[kDwarfRip];
  if (rip.kind != Kind::kAtCfa || rip.number != -8) return false;
  if (state.registers[kDwarfRsp].kind != Kind::kUnset) return false;
  for (std::size_t i = 0; i < kSavedCount; ++i) {
    const RegisterState& saved = state.registers[kDwarfSaved[i]];
    if (saved.kind == Kind::kUnset || saved.kind == Kind::kSame) continue;
    if (saved.kind != Kind::kAtCfa || saved.number % 8 != 0) return false;
    const std::int64_t slot = saved.number / 8;
    // A slot at or above the CFA is the caller's own.
    if (slot >= 0 || slot < std::numeric_limits<std::int8_t>::min()) return false;
    shape.saved[i] = static_cast<std::int8_t>(slot);
    shape.depth = std::max(shape.depth, static_cast<std::uint16_t>(-8 * slot));
  }
  return builder->MakeRow(shape, static_cast<std::uint32_t>(state.cfa.offset / 8), row);
}

// False: it cannot be expressed.
bool ToLocation(const RegisterState& state, CfiLocation* location) {
  using Kind = RegisterState::Kind;
  using LocationKind = CfiLocation::Kind;
  switch (state.kind) {
    case Kind::kUnset:
    case Kind::kSame:
      location->kind = LocationKind::kSame;
      return true;
    case Kind::kUndefined:
      location->kind = LocationKind::kUndefined;
      return true;
    case Kind::kAtCfa:
      location->kind = LocationKind::kAtCfa;
      return ToInt32(state.number, &location->offset);
    case Kind::kCfaPlus:
      location->kind = LocationKind::kCfaPlus;
      return ToInt32(state.number, &location->offset);
    case Kind::kInRegister:
      location->kind = LocationKind::kRegisterPlus;
      return ToCfiRegister(static_cast<std::uint64_t>(state.number), &location->base);
    case Kind::kAtExpression:
    case Kind::kExpressionValue: {
      Expression expression;
      if (!ParseExpression(state.expression, &expression) || expression.deref || expression.plt) return false;
      location->kind =
          state.kind == Kind::kAtExpression ? LocationKind::kAtRegister : LocationKind::kRegisterPlus;
      location->base = expression.base;
      return ToInt32(expression.offset, &location->offset);
    }
  }
  return false;
}

bool ToExtendedRule(const RowState& state, bool signal_frame, CfiExtendedRule* rule) {
  using Kind = RegisterState::Kind;
  using CfaKind = CfiExtendedRule::CfaKind;
  rule->signal_frame = signal_frame;
  if (state.cfa.kind == CfaState::Kind::kRegister) {
    if (!ToCfiRegister(state.cfa.dwarf_register, &rule->cfa_register)) return false;
    if (!ToInt32(state.cfa.offset, &rule->cfa_offset)) return false;
  } else if (state.cfa.kind == CfaState::Kind::kExpression) {
    Expression expression;
    if (!ParseExpression(state.cfa.expression, &expression)) return false;
    rule->cfa_kind = expression.plt ? CfaKind::kPlt : expression.deref ? CfaKind::kDeref : CfaKind::kRegister;
    rule->cfa_register = expression.base;
    if (!ToInt32(expression.offset, &rule->cfa_offset)) return false;
    if (!ToInt32(expression.addend, &rule->cfa_addend)) return false;
  } else {
    return false;
  }
  // The caller's sp is the CFA. Signal trampolines give it a rule of its own, which must say the same: the
  // CFA's expression is the address of the saved sp, dereferenced.
  const RegisterState& rsp = state.registers[kDwarfRsp];
  if (rsp.kind == Kind::kAtExpression) {
    Expression expression;
    if (!ParseExpression(rsp.expression, &expression) || expression.deref || expression.plt) return false;
    if (rule->cfa_kind != CfaKind::kDeref || rule->cfa_addend != 0 || expression.base != rule->cfa_register ||
        expression.offset != rule->cfa_offset) {
      return false;
    }
  } else if (rsp.kind != Kind::kUnset && !(rsp.kind == Kind::kCfaPlus && rsp.number == 0)) {
    return false;
  }
  if (!ToLocation(state.registers[kDwarfRip], &rule->return_address)) return false;
  if (rule->return_address.kind == CfiLocation::Kind::kSame) return false;
  // At the `ret` of a function that realigned its stack, GCC says that the CFA is rsp + 8 again, but not that
  // the registers that it kept at rbp + n are back in place, rbp included. No frame is left there, so none
  // can be in it.
  const bool frame_is_gone =
      rule->cfa_kind == CfaKind::kRegister && rule->cfa_register == kRegSp && rule->cfa_offset == 8;
  for (std::size_t i = 0; i < kSavedCount; ++i) {
    CfiLocation* location = &rule->saved[i];
    if (!ToLocation(state.registers[kDwarfSaved[i]], location)) return false;
    if (frame_is_gone && location->kind == CfiLocation::Kind::kAtRegister && location->base == kRegBp) {
      *location = CfiLocation();
    }
  }
  return true;
}

CfiRow ToRow(const RowState& state, bool signal_frame, TableBuilder* builder) {
  CfiRow row;
  if (state.registers[kDwarfRip].kind == RegisterState::Kind::kUndefined) {
    CfiShape end;
    end.kind = CfiShape::Kind::kEnd;
    return builder->MakeRow(end, 0, &row) ? row : CfiRow();
  }
  if (!signal_frame && ToPlainRow(state, builder, &row)) return row;
  CfiExtendedRule extended;
  if (ToExtendedRule(state, signal_frame, &extended) && builder->MakeRow(extended, &row)) return row;
  return CfiRow();
}

// ---- Running CFI programs
// ---------------------------------------------------------------------------------------

// Runs one function's program and appends the rows that lie in [start, end).
class ProgramRunner {
 public:
  ProgramRunner(const FrameDescription& fde, std::uint64_t start, std::uint64_t end, TableBuilder* builder)
      : fde_(fde), start_(start), end_(end), builder_(builder) {}

  void Run() {
    location_ = fde_.start;
    bool good = RunProgram(fde_.common.program);
    initial_ = state_;
    in_common_ = false;
    good = good && RunProgram(fde_.program);
    if (good) {
      Emit(fde_.end, ToRow(state_, fde_.common.signal_frame, builder_));
    } else {
      Emit(fde_.end, CfiRow());
    }
    builder_->Append(end_, CfiRow());
  }

 private:
  // From location_ up to `next`, `row` holds.
  void Emit(std::uint64_t next, CfiRow row) {
    if (next > start_ && location_ < end_ && location_ < next) {
      builder_->Append(std::max(location_, start_), row);
    }
    location_ = next;
  }

  // False if the address is not ahead.
  bool AdvanceTo(std::uint64_t next) {
    if (in_common_ || next < location_) return false;
    if (next > location_) Emit(next, ToRow(state_, fde_.common.signal_frame, builder_));
    return true;
  }

  bool Advance(std::uint64_t delta) {
    std::uint64_t bytes = 0;
    std::uint64_t next = 0;
    if (__builtin_mul_overflow(delta, fde_.common.code_align, &bytes)) return false;
    if (__builtin_add_overflow(location_, bytes, &next)) return false;
    return AdvanceTo(next);
  }

  // Registers beyond rip (vector registers and the like) do not matter to a walk.
  void Set(std::uint64_t dwarf, RegisterState::Kind kind, std::int64_t number = 0,
           ByteReader expression = {}) {
    if (dwarf < kDwarfCount) state_.registers[dwarf] = {kind, number, expression};
  }

  bool SetFactored(std::uint64_t dwarf, RegisterState::Kind kind, std::int64_t factored) {
    std::int64_t offset = 0;
    if (__builtin_mul_overflow(factored, fde_.common.data_align, &offset)) return false;
    Set(dwarf, kind, offset);
    return true;
  }

  bool Restore(std::uint64_t dwarf) {
    if (dwarf < kDwarfCount) state_.registers[dwarf] = initial_.registers[dwarf];
    return !in_common_;
  }

  bool SetCfa(std::uint64_t dwarf, std::int64_t offset) {
    state_.cfa = {CfaState::Kind::kRegister, dwarf, offset, {}};
    return true;
  }

  bool RunProgram(ByteReader program);
  bool RunExtended(std::uint8_t opcode, ByteReader* program);

  const FrameDescription& fde_;
  const std::uint64_t start_, end_;
  TableBuilder* builder_;
  std::uint64_t location_ = 0;
  bool in_common_ = true;  // in the CIE's own program, where no address can be named and nothing restored
  RowState state_;
  RowState initial_;  // as the CIE leaves it
  std::vector<RowState> remembered_;
};

bool ProgramRunner::RunProgram(ByteReader program) {
  while (program.left() > 0) {
    const auto byte = program.Read<std::uint8_t>();
    const std::uint8_t low = byte & 0x3f;
    bool good = true;
    switch (byte & 0xc0) {
      case 0x40:
        good = Advance(low);
        break;      // advance_loc
      case 0x80: {  // offset
        const std::uint64_t factored = program.ReadUleb();
        good = factored <= std::numeric_limits<std::int64_t>::max() &&
               SetFactored(low, RegisterState::Kind::kAtCfa, static_cast<std::int64_t>(factored));
        break;
      }
      case 0xc0:  // restore
        good = Restore(low);
        break;
      default:
        good = RunExtended(low, &program);
        break;
    }
    if (!good || program.failed()) return false;
  }
  return true;
}

bool ProgramRunner::RunExtended(std::uint8_t opcode, ByteReader* program) {
  using Kind = RegisterState::Kind;
  const auto read_unsigned = [&](std::int64_t* value) {
    const std::uint64_t number = program->ReadUleb();
    *value = static_cast<std::int64_t>(number);
    return number <= std::numeric_limits<std::int64_t>::max();
  };
  std::uint64_t dwarf = 0;
  std::int64_t number = 0;
  switch (opcode) {
    case 0x00:
      return true;  // nop
    case 0x01: {    // set_loc
      std::uint64_t next = 0;
      const std::uint64_t at =
          fde_.program_address + static_cast<std::uint64_t>(program->at() - fde_.program.at());
      return ReadEncodedPointer(fde_.common.pointer_encoding, at, program, &next) && AdvanceTo(next);
    }
    case 0x02:
      return Advance(program->Read<std::uint8_t>());
    case 0x03:
      return Advance(program->Read<std::uint16_t>());
    case 0x04:
      return Advance(program->Read<std::uint32_t>());
    case 0x05:  // offset_extended
      dwarf = program->ReadUleb();
      return read_unsigned(&number) && SetFactored(dwarf, Kind::kAtCfa, number);
    case 0x06:  // restore_extended
      return Restore(program->ReadUleb());
    case 0x07:
      Set(program->ReadUleb(), Kind::kUndefined);
      return true;
    case 0x08:
      Set(program->ReadUleb(), Kind::kSame);
      return true;
    case 0x09:  // register
      dwarf = program->ReadUleb();
      if (!read_unsigned(&number)) return false;
      Set(dwarf, Kind::kInRegister, number);
      return true;
    case 0x0a:  // remember_state
      if (remembered_.size() == kRememberedMax) return false;
      remembered_.push_back(state_);
      return true;
    case 0x0b:  // restore_state
      if (remembered_.empty()) return false;
      state_ = remembered_.back();
      remembered_.pop_back();
      return true;
    case 0x0c:  // def_cfa
      dwarf = program->ReadUleb();
      return read_unsigned(&number) && SetCfa(dwarf, number);
    case 0x0d:  // def_cfa_register
      dwarf = program->ReadUleb();
      return state_.cfa.kind == CfaState::Kind::kRegister && SetCfa(dwarf, state_.cfa.offset);
    case 0x0e:  // def_cfa_offset
      return state_.cfa.kind == CfaState::Kind::kRegister && read_unsigned(&number) &&
             SetCfa(state_.cfa.dwarf_register, number);
    case 0x0f:  // def_cfa_expression
      state_.cfa = {CfaState::Kind::kExpression, 0, 0, program->Take(program->ReadUleb())};
      return true;
    case 0x10:  // expression
    case 0x16:  // val_expression
      dwarf = program->ReadUleb();
      Set(dwarf, opcode == 0x10 ? Kind::kAtExpression : Kind::kExpressionValue, 0,
          program->Take(program->ReadUleb()));
      return true;
    case 0x11:  // offset_extended_sf
      dwarf = program->ReadUleb();
      return SetFactored(dwarf, Kind::kAtCfa, program->ReadSleb());
    case 0x12:  // def_cfa_sf
      dwarf = program->ReadUleb();
      if (__builtin_mul_overflow(program->ReadSleb(), fde_.common.data_align, &number)) return false;
      return SetCfa(dwarf, number);
    case 0x13:  // def_cfa_offset_sf
      if (__builtin_mul_overflow(program->ReadSleb(), fde_.common.data_align, &number)) return false;
      return state_.cfa.kind == CfaState::Kind::kRegister && SetCfa(state_.cfa.dwarf_register, number);
    case 0x14:  // val_offset
      dwarf = program->ReadUleb();
      return read_unsigned(&number) && SetFactored(dwarf, Kind::kCfaPlus, number);
    case 0x15:  // val_offset_sf
      dwarf = program->ReadUleb();
      return SetFactored(dwarf, Kind::kCfaPlus, program->ReadSleb());
    case 0x2e:  // GNU_args_size: of use to exceptions only
      program->ReadUleb();
      return true;
    case 0x2f:  // GNU_negative_offset_extended
      dwarf = program->ReadUleb();
      return read_unsigned(&number) && SetFactored(dwarf, Kind::kAtCfa, -number);
    default:
      return false;
  }
}

bool Inside(const FrameDescription& fde, const std::vector<AddressRange>& code) {
  return std::any_of(code.begin(), code.end(), [&](const AddressRange& range) {
    return fde.start >= range.start && fde.end <= range.end;
  });
}

}  // namespace

CfiTable CompileCfi(const CfiSection& section, const std::vector<AddressRange>& code) {
  std::vector<FrameDescription> functions;
  FrameParser parser(section);
  for (FrameDescription fde; parser.Next(&fde);) {
    if (Inside(fde, code)) functions.push_back(fde);
  }
  std::stable_sort(functions.begin(), functions.end(),
                   [](const FrameDescription& a, const FrameDescription& b) { return a.start < b.start; });
  TableBuilder builder;
  std::uint64_t claimed_until = 0;  // the end of the functions so far
  for (std::size_t i = 0; i < functions.size(); ++i) {
    const FrameDescription& fde = functions[i];
    const std::uint64_t start = std::max(fde.start, claimed_until);
    const std::uint64_t end = i + 1 < functions.size() ? std::min(fde.end, functions[i + 1].start) : fde.end;
    if (start < end) ProgramRunner(fde, start, end, &builder).Run();
    claimed_until = std::max(claimed_until, fde.end);
  }
  return builder.Finish();
}

std::vector<AddressRange> ListFunctions(const CfiSection& section, const std::vector<AddressRange>& code) {
  std::vector<AddressRange> functions;
  FrameParser parser(section);
  for (FrameDescription fde; parser.Next(&fde);) {
    if (Inside(fde, code)) functions.push_back({fde.start, fde.end});
  }
  std::sort(functions.begin(), functions.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.start < b.start; });
  return functions;
}

}  // namespace stackpipe
