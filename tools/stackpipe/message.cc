// SPDX-License-Identifier: MIT
#include "stackpipe/message.h"

#include <fmt/format.h>

#include <cstdio>

namespace stackpipe {

void PrintError(std::string_view text) { fmt::print(stderr, "stackpipe: {}\n", text); }
void PrintWarning(std::string_view text) { fmt::print(stderr, "stackpipe: warning: {}\n", text); }

}  // namespace stackpipe
