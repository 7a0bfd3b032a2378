// SPDX-License-Identifier: MIT
//
// Where the debug information of a file names its functions: DW_TAG_subprogram with DW_AT_low_pc and a name
// that is written in place, as Mono's AOT compiler makes them. All else is passed over.
//
// Source: DWARF 2 to 4, section 7 (7.5: units, abbreviations and forms).
#ifndef STACKPIPE_AOT_DWARF_NAMES_H_
#define STACKPIPE_AOT_DWARF_NAMES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stackpipe {

struct DwarfName {
  std::uint64_t address = 0;      // of the function's first byte, as the file says
  std::uint64_t text_offset = 0;  // in .debug_info, NUL-terminated
};

// Reads .debug_info and .debug_abbrev, which nobody vouches for. In file order; stops at the first thing that
// it does not understand.
std::vector<DwarfName> ReadDwarfNames(const std::uint8_t* info, std::size_t info_size,
                                      const std::uint8_t* abbrev, std::size_t abbrev_size);

}  // namespace stackpipe

#endif  // STACKPIPE_AOT_DWARF_NAMES_H_
