// SPDX-License-Identifier: MIT
//
// Walks one mixed stack from an interrupted context: native frames and those of AOT images by compiled CFI,
// and from the first frame of the runtime's on by the runtime's own walker.
#ifndef STACKPIPE_SAMPLER_WALK_H_
#define STACKPIPE_SAMPLER_WALK_H_

#include "aot/aot_images.h"
#include "stackpipe/code_map.h"
#include "stackpipe/runtime_adapter.h"
#include "unwind/native_unwinder.h"

namespace stackpipe {

// What was sampled, as in .NET's sample events (row A3). It begins as kError; only a walk that worked changes
// it.
enum class SampleState : std::uint8_t { kError = 0, kExternal = 1, kManaged = 2 };

struct WalkResult {
  SampleState state = SampleState::kError;
  StopReason stop = StopReason::kNotWalked;
  std::size_t native_frames = 0;  // frames before the runtime's walker took over
};

// Walks from `ucontext` (not changed). `walker` is null for threads that run no managed code. Methods of AOT
// images that the CFI leads through are decoded, and so noted as seen.
// AS-safe; at most FrameBuffer::kMaxWalked frames.
WalkResult Walk(const void* ucontext, const StackBounds& stack, const CodeMap& code, const AotImages& images,
                const NativeUnwinder& native, const RuntimeWalker* walker, FrameBuffer* frames) noexcept;

}  // namespace stackpipe

#endif  // STACKPIPE_SAMPLER_WALK_H_
