// SPDX-License-Identifier: MIT
//
// One step by one object's table.
#ifndef STACKPIPE_UNWIND_STEP_H_
#define STACKPIPE_UNWIND_STEP_H_

#include <cstdint>

#include "unwind/cfi_table.h"
#include "unwind/native_unwinder.h"

namespace stackpipe {

// As NativeUnwinder::Step, for code that `cfi` describes. `pc` is regs->pc, or one less for a caller.
// AS-safe.
bool StepByTable(const CfiView& cfi, std::uint64_t pc, const StackBounds& bounds, Registers* regs,
                 bool* is_caller, StopReason* reason) noexcept;

}  // namespace stackpipe

#endif  // STACKPIPE_UNWIND_STEP_H_
