// SPDX-License-Identifier: MIT
//
// For tests: writes .eh_frame and .debug_frame by hand.
#ifndef STACKPIPE_UNWIND_CFI_TEST_BYTES_H_
#define STACKPIPE_UNWIND_CFI_TEST_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "unwind/cfi_compiler.h"

namespace stackpipe::testing {

using Bytes = std::vector<std::uint8_t>;

inline void AppendFixed(Bytes* to, std::uint64_t value, int size) {
  for (int i = 0; i < size; ++i) to->push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}

// CFA = rsp + 8; rip at CFA - 8.
inline Bytes FunctionEntry() { return {0x0c, 7, 8, 0x90, 1}; }

// What may differ from what linkers write.
struct CieOptions {
  std::string augmentation = "zR";
  std::uint8_t version = 1;
  std::uint8_t pointer_encoding = 0x1b;  // pc-relative, sdata4
  std::uint8_t return_register = 16;
  Bytes augmentation_data;  // empty: the pointer encoding alone
  Bytes program = FunctionEntry();
  bool is_64bit = false;
};

class CfiBytes {
 public:
  static constexpr std::uint64_t kAddress = 0x100000;

  explicit CfiBytes(bool is_debug_frame = false) : is_debug_frame_(is_debug_frame) {}

  // Returns the CIE's offset.
  std::size_t AddCie(const CieOptions& options = {}) {
    encoding_ = is_debug_frame_ ? 0 : options.pointer_encoding;
    has_data_ = !options.augmentation.empty();
    Bytes body;
    AppendFixed(&body, is_debug_frame_ ? ~std::uint64_t{0} : 0, IdSize(options.is_64bit));
    body.push_back(options.version);
    body.insert(body.end(), options.augmentation.begin(), options.augmentation.end());
    body.push_back(0);
    if (options.version == 4) {
      body.push_back(8);
      body.push_back(0);
    }
    body.push_back(1);     // code alignment
    body.push_back(0x78);  // data alignment: -8
    body.push_back(options.return_register);
    if (has_data_) {
      const Bytes data =
          options.augmentation_data.empty() ? Bytes{options.pointer_encoding} : options.augmentation_data;
      body.push_back(static_cast<std::uint8_t>(data.size()));
      body.insert(body.end(), data.begin(), data.end());
    }
    body.insert(body.end(), options.program.begin(), options.program.end());
    return AddEntry(body, options.is_64bit);
  }

  // An FDE of the CIE at `cie`, for [start, start + size).
  void AddFde(std::size_t cie, std::uint64_t start, std::uint64_t size, const Bytes& program,
              bool is_64bit = false) {
    const std::size_t id_offset = bytes.size() + (is_64bit ? 12 : 4);
    const int id_size = IdSize(is_64bit);
    Bytes body;
    AppendFixed(&body, is_debug_frame_ ? cie : id_offset - cie, id_size);
    const std::uint64_t at = kAddress + id_offset + body.size();
    const int size_of_pointer = (encoding_ & 0x07) == 3 ? 4 : (encoding_ & 0x07) == 2 ? 2 : 8;
    AppendFixed(&body, (encoding_ & 0x70) == 0x10 ? start - at : start, size_of_pointer);
    AppendFixed(&body, size, size_of_pointer);
    if (has_data_) body.push_back(0);
    body.insert(body.end(), program.begin(), program.end());
    AddEntry(body, is_64bit);
  }

  std::size_t AddEntry(const Bytes& body, bool is_64bit = false) {
    const std::size_t offset = bytes.size();
    if (is_64bit) AppendFixed(&bytes, 0xffffffff, 4);
    AppendFixed(&bytes, body.size(), is_64bit ? 8 : 4);
    bytes.insert(bytes.end(), body.begin(), body.end());
    return offset;
  }

  CfiSection Section() const {
    return {
        .data = bytes.data(), .size = bytes.size(), .address = kAddress, .is_debug_frame = is_debug_frame_};
  }

  Bytes bytes;

 private:
  int IdSize(bool is_64bit) const { return is_64bit && is_debug_frame_ ? 8 : 4; }

  bool is_debug_frame_;
  std::uint8_t encoding_ = 0x1b;
  bool has_data_ = true;
};

}  // namespace stackpipe::testing

#endif  // STACKPIPE_UNWIND_CFI_TEST_BYTES_H_
