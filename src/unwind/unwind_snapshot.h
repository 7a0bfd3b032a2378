// SPDX-License-Identifier: MIT
//
// What one step reads: the executable segments of all objects at one time, sorted, each with its table.
// Immutable.
#ifndef STACKPIPE_UNWIND_UNWIND_SNAPSHOT_H_
#define STACKPIPE_UNWIND_UNWIND_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "unwind/cfi_table.h"

namespace stackpipe {

// One executable segment in memory.
struct UnwindSegment {
  std::uintptr_t start = 0;
  std::size_t size = 0;
  CfiView cfi;

  bool Holds(std::uintptr_t pc) const noexcept { return pc - start < size; }
};

struct UnwindSnapshot {
  std::vector<std::uintptr_t>
      starts;  // of `segments`, ascending; apart, so that a search touches little memory
  std::vector<UnwindSegment> segments;
  std::vector<std::shared_ptr<const CfiTable>> tables;  // keeps alive what `segments` point to

  // The segment that holds `pc`, or null. AS-safe; log2 of the number of segments.
  const UnwindSegment* Find(std::uintptr_t pc) const noexcept {
    std::size_t count = starts.size();
    if (count == 0) return nullptr;
    const std::uintptr_t* at = starts.data();
    while (count > 1) {
      const std::size_t half = count / 2;
      at += at[half] <= pc ? half : 0;
      count -= half;
    }
    const UnwindSegment& segment = segments.data()[at - starts.data()];
    return segment.Holds(pc) ? &segment : nullptr;
  }
};

}  // namespace stackpipe

#endif  // STACKPIPE_UNWIND_UNWIND_SNAPSHOT_H_
