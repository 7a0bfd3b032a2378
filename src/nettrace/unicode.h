// SPDX-License-Identifier: MIT
//
// UTF-8 to UTF-16 and back. What is ill-formed becomes U+FFFD, never an error: names come from other
// programs.
#ifndef STACKPIPE_NETTRACE_UNICODE_H_
#define STACKPIPE_NETTRACE_UNICODE_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace stackpipe::nettrace {

// How many UTF-16 units `text` has. A NUL inside the text counts as U+FFFD: it would end the string too
// early.
std::size_t Utf16Units(std::string_view text);

// Writes `text` as UTF-16 with a NUL and returns the end of what it wrote. What does not fit into `units_max`
// units (the NUL not counted) is cut off, never in the middle of a character. `to` has room for units_max + 1
// units.
std::byte* PutUtf16(std::byte* to, std::string_view text, std::size_t units_max);

// UTF-16 units, as bytes in pairs and without a NUL, as UTF-8. A single byte at the end is ignored.
std::string Utf8FromUtf16(std::span<const std::byte> units);

// `text` with each ill-formed sequence replaced.
std::string WellFormedUtf8(std::string_view text);

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_UNICODE_H_
