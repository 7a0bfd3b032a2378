// SPDX-License-Identifier: MIT
//
// The two forms of `stackpipe report`: for people and for scripts.
#ifndef STACKPIPE_TOOLS_STACKPIPE_REPORT_H_
#define STACKPIPE_TOOLS_STACKPIPE_REPORT_H_

#include <cstddef>
#include <string>

#include "profile/rows.h"

namespace stackpipe {

struct ReportOptions {
  std::string file = {};
  GroupBy by = GroupBy::kFunction;
  std::size_t limit = 20;  // rows; 0 = all
  std::size_t width = 0;   // of the terminal, columns; 0 = no limit
};

std::string ReportTable(const Profile& profile, const ReportOptions& options);
// One line of JSON. Its fields are a promise: more may come, none may change.
std::string ReportJson(const Profile& profile, const ReportOptions& options);

}  // namespace stackpipe

#endif  // STACKPIPE_TOOLS_STACKPIPE_REPORT_H_
