// SPDX-License-Identifier: MIT
#include "sampler/walk.h"

#include <ucontext.h>

#include <algorithm>
#include <cstring>

#include "platform/port.h"

namespace stackpipe {

std::size_t FrameBuffer::Finish() noexcept {
  if (seen_ <= capacity_) return seen_;
  // The root half is a ring whose oldest entry stands where the next frame would go.
  const std::size_t root_half = capacity_ - leaf_half_;
  const std::size_t oldest = (seen_ - leaf_half_) % root_half;
  std::rotate(pcs_ + leaf_half_, pcs_ + leaf_half_ + oldest, pcs_ + capacity_);
  return capacity_;
}

namespace {

bool IsManaged(CodeKind kind) {
  return kind == CodeKind::kJit || kind == CodeKind::kAot || kind == CodeKind::kWrapper ||
         kind == CodeKind::kInterpreter;
}

// What a walk needs to know of the code at a pc.
struct CodeAt {
  CodeKind kind = CodeKind::kNative;
  bool is_runtimes = false;  // its runtime's walker must walk it
};

// Registered code is a runtime's, but for native code and for AOT images: those have CFI, as native code has,
// or are met as code without any.
CodeAt Identify(const CodeMap& code, const AotImages& images, std::uintptr_t pc) noexcept {
  CodeHit hit;
  if (!code.Lookup(pc, &hit)) return {};
  if (hit.kind != CodeKind::kAot) return {hit.kind, hit.kind != CodeKind::kNative};
  AotHit method;
  switch (images.Decode(pc, &method)) {
    case AotResult::kNoImage:  // a precompiled method that a runtime registered by itself
      return {hit.kind, true};
    case AotResult::kNoMethod:
      return {};
    case AotResult::kFound:
      return {method.kind, false};
  }
  return {};
}

// Hands the stack over to the runtime's walker, which starts at the frame that `regs` stand in. Where it
// finds nothing, the walk ends there, with this frame. A stub is no frame (row A4): the walker begins with
// its caller.
WalkResult HandOver(const RuntimeWalker& walker, const void* ucontext, Registers regs, bool is_caller,
                    CodeKind kind, FrameBuffer* frames, WalkResult result) noexcept {
  ucontext_t context;
  std::memcpy(&context, ucontext, sizeof context);
  if (is_caller) regs.pc -= 1;
  port::SetRegisters(&context, regs);
  result.native_frames = frames->seen();
  walker.walk(&context, frames, walker.data);
  result.stop = StopReason::kComplete;
  if (frames->seen() == result.native_frames) {
    frames->Add(regs.pc);
    result.stop = kind == CodeKind::kTrampoline ? StopReason::kUnknownCode : StopReason::kRuntimeWalker;
  }
  return result;
}

}  // namespace

WalkResult Walk(const void* ucontext, const StackBounds& stack, const CodeMap& code, const AotImages& images,
                const NativeUnwinder& native, const RuntimeWalker* walker, FrameBuffer* frames) noexcept {
  WalkResult result;
  const bool runtime_ready = walker != nullptr && walker->ready(walker->data);
  Registers regs = port::RegistersOf(ucontext);
  bool is_caller = false;
  StepHint hint;
  for (std::size_t i = 0; i < FrameBuffer::kMaxWalked; ++i) {
    const std::uint64_t pc = is_caller ? regs.pc - 1 : regs.pc;
    const CodeAt at = Identify(code, images, pc);
    if (i == 0) result.state = IsManaged(at.kind) ? SampleState::kManaged : SampleState::kExternal;
    if (at.is_runtimes && runtime_ready) {
      return HandOver(*walker, ucontext, regs, is_caller, at.kind, frames, result);
    }
    StopReason reason = StopReason::kComplete;
    Registers caller = regs;
    bool caller_is_caller = is_caller;
    const bool stepped = native.Step(&caller, &caller_is_caller, stack, &reason, &hint);
    // Code that call frame information does not describe, on a thread of the runtime's: a stub, or a method
    // of an AOT image that is the runtime's. The runtime knows both, or goes on from where managed code was
    // last left.
    if (!stepped && reason == StopReason::kUnknownCode && runtime_ready) {
      return HandOver(*walker, ucontext, regs, is_caller, CodeKind::kTrampoline, frames, result);
    }
    if (at.kind != CodeKind::kTrampoline) frames->Add(pc);
    if (!stepped) {
      result.native_frames = frames->seen();
      result.stop = reason;
      return result;
    }
    regs = caller;
    is_caller = caller_is_caller;
  }
  result.native_frames = frames->seen();
  result.stop = StopReason::kDepth;
  return result;
}

}  // namespace stackpipe
