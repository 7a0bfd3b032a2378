// SPDX-License-Identifier: MIT
//
// Reads a trace file into a Profile, and says in words what was wrong with it.
#ifndef STACKPIPE_PROFILE_LOAD_H_
#define STACKPIPE_PROFILE_LOAD_H_

#include <string>

#include "profile/profile.h"

namespace stackpipe {

struct LoadedProfile {
  bool ok = false;      // false: there is nothing to show, and `problem` says why
  std::string problem;  // with ok: a warning (the file is cut or damaged); empty: all is well
  Profile profile;
};

// Reads the nettrace file at `path`, plain or zstd. Texts are for a person: what, where, what to do.
LoadedProfile LoadProfile(const std::string& path);

}  // namespace stackpipe

#endif  // STACKPIPE_PROFILE_LOAD_H_
