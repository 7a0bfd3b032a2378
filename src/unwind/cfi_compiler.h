// SPDX-License-Identifier: MIT
//
// Parses .eh_frame and .debug_frame, and compiles them to a CfiTable.
//
// What cannot be expressed in a table becomes a row "unknown": a walk ends there with a reason instead of
// going wrong.
//
// Source: DWARF 5 section 6.4, DWARF 3 for version 3 CIEs, LSB 5.0 section 10.6 (.eh_frame), System V ABI
// AMD64.
#ifndef STACKPIPE_UNWIND_CFI_COMPILER_H_
#define STACKPIPE_UNWIND_CFI_COMPILER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "unwind/byte_reader.h"
#include "unwind/cfi_table.h"

namespace stackpipe {

// The bytes of one section, as they are in the file. They must outlive what is parsed from them.
struct CfiSection {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  std::uint64_t address = 0;  // of data[0], as the file says
  bool is_debug_frame = false;
  // A zero length ends the table. Otherwise `size` ends it, and zero lengths are passed over.
  bool stop_at_zero = false;
};

// A stretch [start, end) of file addresses.
struct AddressRange {
  std::uint64_t start = 0, end = 0;
};

// What a CIE says, as far as it matters here.
struct CommonInformation {
  std::uint64_t code_align = 1;
  std::int64_t data_align = 1;
  std::uint8_t pointer_encoding = 0;  // of the FDEs' addresses
  bool has_augmentation_data = false;
  bool signal_frame = false;
  ByteReader program;
};

// One function's FDE.
struct FrameDescription {
  std::uint64_t start = 0, end = 0;
  CommonInformation common;
  ByteReader program;
  std::uint64_t program_address = 0;  // where `program` lies, for pc-relative operands
};

// Calls `visit(fde)` for each FDE that can be understood, in file order; those that cannot be are passed
// over. Stops at the first entry whose length is impossible.
class FrameParser {
 public:
  explicit FrameParser(const CfiSection& section) : section_(section), rest_(section.data, section.size) {}

  // The next FDE; false at the end.
  bool Next(FrameDescription* fde);

 private:
  bool ParseCommon(std::uint64_t offset, CommonInformation* common) const;
  bool ParseDescription(std::uint64_t entry_offset, std::uint64_t id_offset, std::uint64_t id,
                        ByteReader body, FrameDescription* fde);

  CfiSection section_;
  ByteReader rest_;
  // The CIE that was parsed last: most FDEs share one.
  std::uint64_t cached_offset_ = ~std::uint64_t{0};
  bool cached_good_ = false;
  CommonInformation cached_;
};

// Compiles all FDEs of the section that lie inside one of `code` (the executable segments). Code that two
// FDEs claim becomes unknown.
CfiTable CompileCfi(const CfiSection& section, const std::vector<AddressRange>& code);

// The functions' ranges alone, sorted by start.
std::vector<AddressRange> ListFunctions(const CfiSection& section, const std::vector<AddressRange>& code);

// Reads a pointer of .eh_frame. `address` is where it lies. False if the encoding is not one that a file
// alone can answer (indirect, or relative to something unknown).
bool ReadEncodedPointer(std::uint8_t encoding, std::uint64_t address, ByteReader* reader,
                        std::uint64_t* value);

}  // namespace stackpipe

#endif  // STACKPIPE_UNWIND_CFI_COMPILER_H_
