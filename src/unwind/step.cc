// SPDX-License-Identifier: MIT
//
// NativeUnwinder::Step: the part that runs in signal handlers. It reads immutable tables and the stack, and
// calls nothing outside this file and the headers' inline functions.
#include "unwind/step.h"

#include <cstddef>
#include <cstring>

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

std::uint64_t ValueOf(const Registers& regs, std::size_t number) {
  std::uint64_t value;
  std::memcpy(&value, reinterpret_cast<const char*>(&regs) + 8 * number, sizeof value);
  return value;
}

STACKPIPE_READS_STACK bool ReadStack(std::uint64_t address, const StackBounds& bounds, std::uint64_t* value) {
  if (address % 8 != 0 || address < bounds.low || address >= bounds.high || bounds.high - address < 8)
    return false;
  *value = *reinterpret_cast<const std::uint64_t*>(address);
  return true;
}

bool ReadLocation(const CfiLocation& location, const Registers& from, std::uint64_t cfa, std::uint64_t same,
                  const StackBounds& bounds, std::uint64_t* value) {
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
      return ReadStack(Plus(ValueOf(from, location.base), location.offset), bounds, value);
    case Kind::kCfaPlus:
      *value = Plus(cfa, location.offset);
      return true;
    case Kind::kRegisterPlus:
      *value = Plus(ValueOf(from, location.base), location.offset);
      return true;
  }
  return false;
}

// False if a walk must not go on with these values of the caller's.
inline bool MayContinueAt(std::uint64_t pc, std::uint64_t sp, std::uint64_t callee_sp, StopReason* reason) {
  if (pc == 0) {
    *reason = StopReason::kComplete;
    return false;
  }
  // The stack grows down, so each caller's sp is higher: walks end.
  if (sp <= callee_sp) {
    *reason = StopReason::kNoProgress;
    return false;
  }
  return true;
}

// Steps by a rule that is not plain: signal frames, PLT entries, realigned frames.
__attribute__((noinline)) bool StepExtended(const CfiExtendedRule& rule, std::uint64_t pc,
                                            const StackBounds& bounds, Registers* regs, bool* is_caller,
                                            StopReason* reason) {
  using CfaKind = CfiExtendedRule::CfaKind;
  *reason = StopReason::kBadMemory;
  std::uint64_t cfa = Plus(ValueOf(*regs, rule.cfa_register), rule.cfa_offset);
  switch (rule.cfa_kind) {
    case CfaKind::kRegister:
      break;
    case CfaKind::kDeref:
      if (!ReadStack(cfa, bounds, &cfa)) return false;
      cfa = Plus(cfa, rule.cfa_addend);
      break;
    case CfaKind::kPlt:
      if (static_cast<std::int64_t>(pc & 15) >= rule.cfa_addend) cfa += 8;
      break;
  }
  Registers to;
  to.sp = cfa;
  if (!ReadLocation(rule.return_address, *regs, cfa, 0, bounds, &to.pc)) return false;
  const auto load = [&](std::size_t i, std::uint64_t same, std::uint64_t* value) {
    return ReadLocation(rule.saved[i], *regs, cfa, same, bounds, value);
  };
  if (!load(0, regs->bp, &to.bp) || !load(1, regs->bx, &to.bx) || !load(2, regs->r12, &to.r12) ||
      !load(3, regs->r13, &to.r13) || !load(4, regs->r14, &to.r14) || !load(5, regs->r15, &to.r15)) {
    return false;
  }
  if (!MayContinueAt(to.pc, to.sp, regs->sp, reason)) return false;
  *regs = to;
  *is_caller = !rule.signal_frame;
  return true;
}

}  // namespace

STACKPIPE_READS_STACK bool StepByTable(const CfiView& cfi, std::uint64_t pc, const StackBounds& bounds,
                                       Registers* regs, bool* is_caller, StopReason* reason) noexcept {
  const CfiRow row = cfi.Find(pc);
  const CfiShape& shape = cfi.ShapeOf(row);
  if (shape.kind == CfiShape::Kind::kUnknown || shape.kind == CfiShape::Kind::kEnd) {
    *reason = shape.kind == CfiShape::Kind::kEnd ? StopReason::kComplete : StopReason::kUnknownCode;
    return false;
  }
  const std::uint64_t sp = regs->sp;
  if (sp - bounds.low >= bounds.high - bounds.low) {
    *reason = StopReason::kForeignStack;
    return false;
  }
  if (shape.kind == CfiShape::Kind::kExtended) {
    return StepExtended(cfi.ExtendedOf(shape, row), pc, bounds, regs, is_caller, reason);
  }

  // Predicting that sp is the base takes the load of the base out of the chain from one pc to the next.
  const std::uint64_t base = shape.cfa_register == kRegSp ? sp : ValueOf(*regs, shape.cfa_register);
  const std::uint64_t cfa = base + 8 * std::uint64_t{row.number()};
  // Below `low` the difference wraps: then it is too large.
  if (cfa % 8 != 0 || cfa - bounds.low > bounds.high - bounds.low || cfa - bounds.low < shape.depth) {
    *reason = StopReason::kBadMemory;
    return false;
  }
  const auto* frame = reinterpret_cast<const std::uint64_t*>(cfa);
  if (!MayContinueAt(frame[-1], cfa, sp, reason)) return false;
  // One load from either place, without a branch: which registers a frame saves is not predictable.
  const auto load = [&](std::size_t i, const std::uint64_t& same) STACKPIPE_READS_STACK {
    return *(shape.saved[i] != 0 ? frame + shape.saved[i] : &same);
  };
  regs->pc = frame[-1];
  regs->sp = cfa;
  regs->bp = load(0, regs->bp);
  regs->bx = load(1, regs->bx);
  regs->r12 = load(2, regs->r12);
  regs->r13 = load(3, regs->r13);
  regs->r14 = load(4, regs->r14);
  regs->r15 = load(5, regs->r15);
  *is_caller = true;
  return true;
}

bool NativeUnwinder::Step(Registers* regs, bool* is_caller, const StackBounds& bounds, StopReason* reason,
                          StepHint* hint) const noexcept {
  // A return address may be the first byte of the next function: what holds is the call before it.
  const std::uint64_t pc = *is_caller ? regs->pc - 1 : regs->pc;
  const auto* segment = hint != nullptr ? static_cast<const UnwindSegment*>(hint->segment) : nullptr;
  if (segment == nullptr || !segment->Holds(pc)) {
    segment = snapshot_.load()->Find(pc);
    if (segment == nullptr) {
      *reason = StopReason::kUnknownCode;
      return false;
    }
    if (hint != nullptr) hint->segment = segment;
  }
  return StepByTable(segment->cfi, pc, bounds, regs, is_caller, reason);
}

}  // namespace stackpipe
