// SPDX-License-Identifier: MIT
//
// NativeUnwinder::Step: the part that runs in signal handlers. It reads immutable tables and the stack, and
// calls nothing outside this file and the headers' inline functions.
#include <bit>

#include "unwind/native_unwinder.h"
#include "unwind/unwind_snapshot.h"

// The stack is read across frames: the redzones that AddressSanitizer puts there are no errors here.
#define STACKPIPE_READS_STACK __attribute__((no_sanitize("address", "thread")))

namespace stackpipe {
namespace {

static_assert(sizeof(Registers) == kRegCount * sizeof(std::uint64_t));
static_assert(offsetof(Registers, pc) == 8 * kRegPc && offsetof(Registers, sp) == 8 * kRegSp &&
              offsetof(Registers, bp) == 8 * kRegBp && offsetof(Registers, bx) == 8 * kRegBx &&
              offsetof(Registers, r12) == 8 * kRegR12 && offsetof(Registers, r15) == 8 * kRegR15);

// Addresses wrap: whoever uses the sum checks it against the bounds.
constexpr std::uint64_t Plus(std::uint64_t base, std::int64_t offset) {
  return base + static_cast<std::uint64_t>(offset);
}

// The registers by number.
struct RegisterFile {
  std::uint64_t values[kRegCount];
};

STACKPIPE_READS_STACK bool ReadStack(std::uint64_t address, const StackBounds& bounds, std::uint64_t* value) {
  if (address % 8 != 0 || address < bounds.low || address >= bounds.high || bounds.high - address < 8)
    return false;
  *value = *reinterpret_cast<const std::uint64_t*>(address);
  return true;
}

bool ReadLocation(const CfiLocation& location, const RegisterFile& from, std::uint64_t cfa,
                  std::uint64_t same, const StackBounds& bounds, std::uint64_t* value) {
  using Kind = CfiLocation::Kind;
  switch (location.kind) {
    case Kind::kSame:
      *value = same;
      return true;
    case Kind::kUndefined:
      *value = 0;
      return true;
    case Kind::kAtCfa:
      return ReadStack(Plus(cfa, location.offset), bounds, value);
    case Kind::kAtRegister:
      return ReadStack(Plus(from.values[location.base], location.offset), bounds, value);
    case Kind::kCfaPlus:
      *value = Plus(cfa, location.offset);
      return true;
    case Kind::kRegisterPlus:
      *value = Plus(from.values[location.base], location.offset);
      return true;
  }
  return false;
}

// Steps by a rule that is not plain: signal frames, PLT entries, realigned frames.
__attribute__((noinline)) bool StepExtended(const CfiExtendedRule& rule, const RegisterFile& from,
                                            const StackBounds& bounds, RegisterFile* to, StopReason* reason) {
  using CfaKind = CfiExtendedRule::CfaKind;
  *reason = StopReason::kBadMemory;
  std::uint64_t cfa = Plus(from.values[rule.cfa_register], rule.cfa_offset);
  switch (rule.cfa_kind) {
    case CfaKind::kRegister:
      break;
    case CfaKind::kDeref:
      if (!ReadStack(cfa, bounds, &cfa)) return false;
      cfa = Plus(cfa, rule.cfa_addend);
      break;
    case CfaKind::kPlt:
      if (static_cast<std::int64_t>(from.values[kRegPc] & 15) >= rule.cfa_addend) cfa += 8;
      break;
  }
  if (!ReadLocation(rule.return_address, from, cfa, 0, bounds, &to->values[kRegPc])) return false;
  to->values[kRegSp] = cfa;
  for (std::size_t i = 0; i < kSavedCount; ++i) {
    const std::size_t reg = kFirstSaved + i;
    if (!ReadLocation(rule.saved[i], from, cfa, from.values[reg], bounds, &to->values[reg])) return false;
  }
  return true;
}

}  // namespace

STACKPIPE_READS_STACK bool NativeUnwinder::Step(Registers* regs, bool* is_caller, const StackBounds& bounds,
                                                StopReason* reason) const noexcept {
  // A return address may be the first byte of the next function: what holds is the call before it.
  const std::uint64_t pc = *is_caller ? regs->pc - 1 : regs->pc;
  const UnwindSnapshot* snapshot = snapshot_.load(std::memory_order_acquire);
  const UnwindSnapshot::Segment* segment = snapshot->Find(pc);
  if (segment == nullptr) {
    *reason = StopReason::kUnknownCode;
    return false;
  }
  const CfiRule& rule = segment->table->Find(pc - segment->bias);

  auto from = std::bit_cast<RegisterFile>(*regs);
  RegisterFile to = {};
  const std::uint64_t sp = from.values[kRegSp];
  bool next_is_caller = true;
  switch (rule.kind) {
    case CfiRule::Kind::kUnknown:
      *reason = StopReason::kUnknownCode;
      return false;
    case CfiRule::Kind::kEnd:
      *reason = StopReason::kComplete;
      return false;
    case CfiRule::Kind::kPlain: {
      if (sp < bounds.low || sp >= bounds.high) {
        *reason = StopReason::kForeignStack;
        return false;
      }
      const std::uint64_t cfa = Plus(from.values[rule.cfa_register], rule.offset);
      // All slots lie between the lowest one and the CFA.
      if (cfa % 8 != 0 || cfa > bounds.high || cfa < bounds.low ||
          cfa - bounds.low < static_cast<std::uint64_t>(-8 * rule.lowest_slot)) {
        *reason = StopReason::kBadMemory;
        return false;
      }
      const auto* frame = reinterpret_cast<const std::uint64_t*>(cfa);
      to.values[kRegPc] = frame[-1];
      to.values[kRegSp] = cfa;
      for (std::size_t i = 0; i < kSavedCount; ++i) {
        // One load from either place, without a branch: which registers a frame saves is not predictable.
        const std::uint64_t* slot =
            rule.saved[i] != 0 ? frame + rule.saved[i] : &from.values[kFirstSaved + i];
        to.values[kFirstSaved + i] = *slot;
      }
      break;
    }
    case CfiRule::Kind::kExtended: {
      if (sp < bounds.low || sp >= bounds.high) {
        *reason = StopReason::kForeignStack;
        return false;
      }
      const CfiExtendedRule& extended = segment->table->extended(rule);
      from.values[kRegPc] = pc;
      if (!StepExtended(extended, from, bounds, &to, reason)) return false;
      next_is_caller = !extended.signal_frame;
      break;
    }
  }
  if (to.values[kRegPc] == 0) {
    *reason = StopReason::kComplete;
    return false;
  }
  // The stack grows down, so each caller's sp is higher: walks end.
  if (to.values[kRegSp] <= sp) {
    *reason = StopReason::kNoProgress;
    return false;
  }
  *regs = std::bit_cast<Registers>(to);
  *is_caller = next_is_caller;
  return true;
}

}  // namespace stackpipe
