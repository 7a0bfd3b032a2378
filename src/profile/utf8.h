// SPDX-License-Identifier: MIT
//
// Text from a trace that is claimed to be UTF-8.
#ifndef STACKPIPE_PROFILE_UTF8_H_
#define STACKPIPE_PROFILE_UTF8_H_

#include <string>
#include <string_view>

namespace stackpipe {

// `text` with every byte that is not part of well-formed UTF-8 replaced by U+FFFD.
std::string ValidUtf8(std::string_view text);

}  // namespace stackpipe

#endif  // STACKPIPE_PROFILE_UTF8_H_
