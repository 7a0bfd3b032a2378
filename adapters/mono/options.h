// SPDX-License-Identifier: MIT
//
// Options of the Mono adapter: from the environment, as `stackpipe record` gives them, or from
// --profile=stackpipe:...
//
//   environment         --profile   meaning
//   STACKPIPE_OUTPUT    output=     the trace file (default: stackpipe-PID.nettrace). If it is there already,
//   another
//                                   process of the same recording has it: PID is put into the name
//   STACKPIPE_RATE      rate=       samples per second for each thread, 1 to 100000 (default 1000)
//   STACKPIPE_MODE      mode=       cpu or wall (default cpu)
//   STACKPIPE_DURATION  duration=   seconds; 0 = until the end (default)
//   STACKPIPE_PROGRESS  -           a directory that takes one progress file for each process
#ifndef STACKPIPE_ADAPTERS_MONO_OPTIONS_H_
#define STACKPIPE_ADAPTERS_MONO_OPTIONS_H_

#include "stackpipe/session.h"

namespace stackpipe::mono {

// False if an option is not understood: the program then runs without a profile. `description` is Mono's: the
// text after "--profile=", or null.
bool ReadOptions(const char* description, SessionOptions* options);

// Starts a session, under another file name if the first one is taken.
Result<std::unique_ptr<Session>> StartSession(const SessionOptions& options);

}  // namespace stackpipe::mono

#endif  // STACKPIPE_ADAPTERS_MONO_OPTIONS_H_
