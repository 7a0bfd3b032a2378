// SPDX-License-Identifier: MIT
//
// Options of the adapters: from the environment, as `stackpipe record` gives them, or from a text that the
// runtime passes on, such as Mono's --profile=stackpipe:...
//
//   environment         text        meaning
//   STACKPIPE_OUTPUT    output=     the trace file (default: stackpipe-PID.nettrace). If it is there, another
//                                   process of the same recording has it: PID is put into the name
//   STACKPIPE_RATE      rate=       samples per second for each thread, 1 to 100000 (default 1000)
//   STACKPIPE_MODE      mode=       cpu or wall (default cpu)
//   STACKPIPE_DURATION  duration=   seconds; 0 = until the end (default)
//   STACKPIPE_PROGRESS  -           a directory that takes one progress file for each process
#ifndef STACKPIPE_ADAPTERS_COMMON_OPTIONS_H_
#define STACKPIPE_ADAPTERS_COMMON_OPTIONS_H_

#include "stackpipe/session.h"

namespace stackpipe::adapter {

// False if an option is not understood: the program then runs without a profile. `text` (may be null) is
// "name:key=value,key=value": what stands before the colon does not count.
bool ReadOptions(const char* text, SessionOptions* options);

// Starts a session; if its file name is taken, under another one, which it puts into `options`.
Result<std::unique_ptr<Session>> StartSession(SessionOptions* options);

}  // namespace stackpipe::adapter

#endif  // STACKPIPE_ADAPTERS_COMMON_OPTIONS_H_
