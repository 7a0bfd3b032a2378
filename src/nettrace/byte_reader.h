// SPDX-License-Identifier: MIT
//
// Takes numbers and texts off a span of bytes that nobody vouches for. A read past the end yields 0 or
// nothing, sets failed() and stays there, so that a parser checks once for each record.
#ifndef STACKPIPE_NETTRACE_BYTE_READER_H_
#define STACKPIPE_NETTRACE_BYTE_READER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "nettrace/unicode.h"

namespace stackpipe::nettrace {

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}

  const std::byte* at() const { return at_; }
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  bool failed() const { return failed_; }
  void Fail() {
    failed_ = true;
    at_ = end_;
  }

  template <typename T>
  T Take() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    if (left() < sizeof value) {
      Fail();
      return value;
    }
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  std::span<const std::byte> TakeBytes(std::size_t size) {
    if (left() < size) {
      Fail();
      return {};
    }
    const std::span<const std::byte> bytes(at_, size);
    at_ += size;
    return bytes;
  }

  // Numbers of more bytes than a T can need fail; bits beyond T's width are dropped, as TraceEvent does.
  template <typename T>
  T TakeVarUint() {
    static_assert(std::is_unsigned_v<T>);
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 8 * sizeof(T); shift += 7) {
      if (at_ == end_) break;
      const auto byte = static_cast<std::uint8_t>(*at_++);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return static_cast<T>(value);
    }
    Fail();
    return 0;
  }

  // UTF-16 up to its NUL, as UTF-8.
  std::string TakeUtf16Text() {
    const std::size_t units = left() / 2;
    for (std::size_t i = 0; i < units; ++i) {
      if (at_[2 * i] != std::byte{0} || at_[2 * i + 1] != std::byte{0}) continue;
      const std::span<const std::byte> text(at_, 2 * i);
      at_ += 2 * i + 2;
      return Utf8FromUtf16(text);
    }
    Fail();
    return {};
  }

  // Version 6: a varuint length and as many bytes of UTF-8.
  std::string TakeUtf8Text() {
    const std::span<const std::byte> bytes = TakeBytes(TakeVarUint<std::uint32_t>());
    return WellFormedUtf8(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

 private:
  const std::byte* at_;
  const std::byte* end_;
  bool failed_ = false;
};

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_BYTE_READER_H_
