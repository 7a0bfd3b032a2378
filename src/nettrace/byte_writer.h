// SPDX-License-Identifier: MIT
//
// Puts numbers one behind the other into memory. It does not check for room: its user has counted the bytes.
#ifndef STACKPIPE_NETTRACE_BYTE_WRITER_H_
#define STACKPIPE_NETTRACE_BYTE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "nettrace/unicode.h"

namespace stackpipe::nettrace {

inline constexpr std::size_t kVarUint32SizeMax = 5;
inline constexpr std::size_t kVarUint64SizeMax = 10;

class ByteWriter {
 public:
  explicit ByteWriter(std::byte* at) : at_(at) {}

  std::byte* at() const { return at_; }

  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }

  // 7 bits a byte, low ones first; the high bit says that more follow.
  void PutVarUint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) *at_++ = static_cast<std::byte>(value | 0x80);
    *at_++ = static_cast<std::byte>(value);
  }

  void PutBytes(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    std::memcpy(at_, bytes.data(), bytes.size());
    at_ += bytes.size();
  }

  void PutText(std::string_view text) { PutBytes(std::as_bytes(std::span(text))); }

  // All of `text` as UTF-16 with a NUL.
  void PutUtf16Text(std::string_view text) { at_ = PutUtf16(at_, text, SIZE_MAX); }

 private:
  std::byte* at_;
};

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_BYTE_WRITER_H_
