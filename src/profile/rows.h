// SPDX-License-Identifier: MIT
//
// A profile as a table: what each function, thread or module cost.
#ifndef STACKPIPE_PROFILE_ROWS_H_
#define STACKPIPE_PROFILE_ROWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "profile/profile.h"

namespace stackpipe {

enum class GroupBy : std::uint8_t { kFunction, kThread, kModule };

struct ProfileRow {
  std::string name;         // of the function, thread (may be empty) or module
  std::string module = {};  // empty for threads
  // Of a module: the kind of most of its samples. Meaningless for threads.
  CodeKind kind = CodeKind::kUnknown;
  std::uint64_t tid = 0;  // of a thread
  Cost self = {};         // at the leaf
  Cost total = {};  // anywhere on the stack; a sample counts once however often the function is on its stack
};

// All rows, most self weight first. Functions of equal name, module and kind are one row.
std::vector<ProfileRow> MakeRows(const Profile& profile, GroupBy by);

// "main (4242)", "Thread 4242".
std::string ThreadLabel(const std::string& name, std::uint64_t tid);

}  // namespace stackpipe

#endif  // STACKPIPE_PROFILE_ROWS_H_
