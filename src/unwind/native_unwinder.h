// SPDX-License-Identifier: MIT
//
// Steps through native frames by call frame information (CFI) that was compiled ahead of time into compact
// sorted tables, one for each loaded object, so that a signal handler can walk without dl_iterate_phdr, locks
// or malloc.
//
//   outside handlers:  unwinder.Refresh();                      // objects came or went
//   in a handler:      unwinder.Step(&regs, bounds, is_caller)  // one frame up
//
// Source: DWARF 5 section 6.4 (CFI), LSB 5.0 (.eh_frame, .eh_frame_hdr), System V ABI AMD64.
#ifndef STACKPIPE_UNWIND_NATIVE_UNWINDER_H_
#define STACKPIPE_UNWIND_NATIVE_UNWINDER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "stackpipe/result.h"

namespace stackpipe {

// The registers of x86-64 that a walk needs: pc, sp and the callee-saved ones.
struct Registers {
  std::uint64_t pc = 0, sp = 0, bp = 0, bx = 0, r12 = 0, r13 = 0, r14 = 0, r15 = 0;
};

// The part of the stack that may be read: [low, high). Every read is checked against it.
struct StackBounds {
  std::uintptr_t low = 0, high = 0;
};

// Why a walk, or a step, ended. The values are written to traces (docs/formats/stackpipe-provider.md).
enum class StopReason : std::uint8_t {
  kComplete = 0,  // the outermost frame: CFI says that there is no return address, or it is 0
  kDepth = 1,
  kUnknownCode = 2,   // no CFI for this pc
  kBadMemory = 3,     // the CFI points outside the stack
  kNoProgress = 4,    // the new sp is not above the old one
  kForeignStack = 5,  // sp is not inside the thread's stack
  kRuntimeWalker = 6,
  kNotWalked = 7,
};

// What is known of a native pc, for naming it. Not for handlers.
struct NativeSymbol {
  std::string object_path;          // "/usr/lib/libmonosgen-2.0.so.1", "[vdso]"
  std::uint64_t object_id = 0;      // unique per load of an object in this process, never reused
  std::uintptr_t object_start = 0;  // lowest mapped address
  std::uintptr_t object_end = 0;
  // The object was certainly loaded at each time in [certain_from_ns, certain_until_ns), by CLOCK_MONOTONIC.
  std::uint64_t certain_from_ns = 0;
  std::uint64_t certain_until_ns = ~std::uint64_t{0};
  std::uintptr_t function_start = 0;  // from the symbol where there is one, else from CFI, else 0
  std::uintptr_t function_end = 0;
  std::string function;  // demangled; empty = no symbol covers the pc: then say module+offset
  std::uint8_t build_id[20] = {};
  std::uint8_t build_id_size = 0;
};

struct NativeUnwinderOptions {
  // Use .debug_frame where an object has no .eh_frame. Off: such objects are mostly AOT images, whose frames
  // their runtime walks, and their tables are large.
  bool use_debug_frame = false;
};

struct UnwindSnapshot;

// Makes the steps of one walk faster: the next frame's code is mostly in the object of the last one. Lives on
// the stack of one run of a handler and dies with it, as what it points to may be freed afterwards.
struct StepHint {
  const void* segment = nullptr;
};

class NativeUnwinder {
 public:
  explicit NativeUnwinder(const NativeUnwinderOptions& options = {});
  // No handler may be in Step any more.
  ~NativeUnwinder();
  NativeUnwinder(const NativeUnwinder&) = delete;
  NativeUnwinder& operator=(const NativeUnwinder&) = delete;

  // Brings the tables up to date with the objects that are loaded now. Cheap if nothing changed (it compares
  // the loader's counters). Any thread but not in a handler; calls exclude one another. Objects' files are
  // read, not their memory (a dlclose may run at the same time); an object whose file is not what is mapped
  // is left without tables. `quiescent` tells that no handler that began before the previous Refresh is still
  // running: tables retired then are freed.
  Status Refresh(bool quiescent);

  // True if the loader's counters say that Refresh would find a change. Not for handlers.
  bool Stale() const;

  // Replaces `*regs` by those of the caller. `is_caller` is true if regs->pc is a return address (the CFI of
  // pc - 1 holds) and false for a leaf or a signal-interrupted frame; on return it says how to treat the new
  // pc. AS-safe: no lock, no allocation, bounded steps, errno kept. Returns true for a step; else false, with
  // `*reason`, and `*regs` untouched.
  // `hint` (may be null) is passed to each step of the walk.
  bool Step(Registers* regs, bool* is_caller, const StackBounds& bounds, StopReason* reason,
            StepHint* hint = nullptr) const noexcept;

  // Names a native pc from the object's file (symtab, dynsym, CFI). Not for handlers. False: no loaded object
  // has it. Never guesses: a symbol counts only if pc lies inside [st_value, st_value + st_size). Also finds
  // objects that were unloaded since, if `pc` was theirs and nothing else has taken the address.
  bool Symbolize(std::uintptr_t pc, NativeSymbol* out) const;
  // The same at an earlier time: the object that was certainly loaded there then. Objects that came and went
  // between two calls of Refresh were never seen, and whether one was there at a time between them may not be
  // certain: then false. Objects are known for a second after they went at least.
  bool SymbolizeAt(std::uintptr_t pc, std::uint64_t time_ns, NativeSymbol* out) const;

 private:
  struct Impl;

  // The tables in force. Invariant: what this points to, and all that hangs on it, is constant until it is
  // freed, and is freed only by a Refresh(true) that comes after the Refresh which replaced it, or by the
  // destructor. Pairs: Refresh stores, Step loads, once for each step. Sequentially
  // consistent: a handler counts itself before it loads this, and a grace period stores this before it looks
  // at the count.
  std::atomic<const UnwindSnapshot*> snapshot_;
  static_assert(std::atomic<const UnwindSnapshot*>::is_always_lock_free);
  std::unique_ptr<Impl> impl_;
};

}  // namespace stackpipe

#endif  // STACKPIPE_UNWIND_NATIVE_UNWINDER_H_
