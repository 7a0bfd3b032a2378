// SPDX-License-Identifier: MIT
//
// What the tool says to the person in front of it, on stderr.
#ifndef STACKPIPE_TOOLS_STACKPIPE_MESSAGE_H_
#define STACKPIPE_TOOLS_STACKPIPE_MESSAGE_H_

#include <string_view>

namespace stackpipe {

// "stackpipe: TEXT".
void PrintError(std::string_view text);
// "stackpipe: warning: TEXT".
void PrintWarning(std::string_view text);

}  // namespace stackpipe

#endif  // STACKPIPE_TOOLS_STACKPIPE_MESSAGE_H_
