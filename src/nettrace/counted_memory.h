// SPDX-License-Identifier: MIT
//
// For tests: how much memory from operator new is in use, and was at most. Linked into the test program by
// counted_memory.cc.
#ifndef STACKPIPE_NETTRACE_COUNTED_MEMORY_H_
#define STACKPIPE_NETTRACE_COUNTED_MEMORY_H_

#include <cstddef>

namespace stackpipe::nettrace {

// Sets the mark back to what is in use now.
void ResetPeakMemory();
// The most that was in use since, beyond what was in use then.
std::size_t PeakMemory();

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_COUNTED_MEMORY_H_
