// SPDX-License-Identifier: MIT
//
// What a runtime supplies so that its own frames appear in stacks: a walker that is safe in a signal handler.
#ifndef STACKPIPE_RUNTIME_ADAPTER_H_
#define STACKPIPE_RUNTIME_ADAPTER_H_

#include <cstddef>
#include <cstdint>

namespace stackpipe {

// Takes the frames of one walk, leaf first. Lives on the handler's stack. AS-safe.
//
// At most `capacity` frames are kept: the first half of them from the leaf on, the rest from the root. What
// lies between is counted, not kept.
class FrameBuffer {
 public:
  // `pcs` has room for `capacity` (>= 2) entries.
  FrameBuffer(std::uint64_t* pcs, std::size_t capacity) noexcept
      : pcs_(pcs), capacity_(capacity), leaf_half_(capacity / 2) {}

  // No stack is followed further than this.
  static constexpr std::size_t kMaxWalked = 8192;

  // Adds a frame: the pc of a leaf or interrupted frame, else the return address minus one (so that it lies
  // inside the call). False: stop walking, kMaxWalked frames were seen.
  bool Add(std::uint64_t pc) noexcept {
    if (seen_ == kMaxWalked) return false;
    const std::size_t slot =
        seen_ < capacity_ ? seen_ : leaf_half_ + (seen_ - leaf_half_) % (capacity_ - leaf_half_);
    pcs_[slot] = pc;
    ++seen_;
    return true;
  }

  std::size_t seen() const noexcept { return seen_; }
  // Number of frames left out in the middle.
  std::size_t elided() const noexcept { return seen_ > capacity_ ? seen_ - capacity_ : 0; }
  // Puts the kept frames into order and returns their number. Last call.
  std::size_t Finish() noexcept;

 private:
  std::uint64_t* pcs_;
  std::size_t capacity_;
  std::size_t leaf_half_;
  std::size_t seen_ = 0;
};

// A runtime's walker of its own frames.
struct RuntimeWalker {
  // Adds the runtime's frames from the context on (a ucontext_t with the registers of a frame of the
  // runtime's, its pc inside the call for a caller) up to the root. Called in signal handlers on the thread
  // that is walked: it must be AS-safe, and so must all that it calls.
  void (*walk)(void* ucontext, FrameBuffer* frames, void* data) = nullptr;
  // True if the calling thread may be walked now. AS-safe.
  bool (*ready)(void* data) = nullptr;
  void* data = nullptr;
};

}  // namespace stackpipe

#endif  // STACKPIPE_RUNTIME_ADAPTER_H_
