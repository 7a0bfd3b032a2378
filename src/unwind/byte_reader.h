// SPDX-License-Identifier: MIT
//
// Reads little-endian numbers from a span of bytes that nobody vouches for. A read past the end yields 0,
// sets `failed()` and stays there, so that a parser checks once for each record.
#ifndef STACKPIPE_UNWIND_BYTE_READER_H_
#define STACKPIPE_UNWIND_BYTE_READER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stackpipe {

class ByteReader {
 public:
  ByteReader() = default;
  ByteReader(const std::uint8_t* begin, std::size_t size) : at_(begin), end_(begin + size) {}

  const std::uint8_t* at() const { return at_; }
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  bool failed() const { return failed_; }
  void Fail() {
    failed_ = true;
    at_ = end_;
  }

  template <typename T>
  T Read() {
    T value{};
    if (left() < sizeof value) {
      Fail();
      return value;
    }
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  // LEB128 numbers longer than 64 bits fail.
  std::uint64_t ReadUleb() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint8_t byte = Read<std::uint8_t>();
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    Fail();
    return 0;
  }

  std::int64_t ReadSleb() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint8_t byte = Read<std::uint8_t>();
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) {
        if (shift + 7 < 64 && (byte & 0x40) != 0) value |= ~std::uint64_t{0} << (shift + 7);
        return static_cast<std::int64_t>(value);
      }
    }
    Fail();
    return 0;
  }

  void Skip(std::uint64_t count) {
    if (count > left()) {
      Fail();
    } else {
      at_ += count;
    }
  }

  // Splits off the next `count` bytes.
  ByteReader Take(std::uint64_t count) {
    const std::uint8_t* begin = at_;
    Skip(count);
    return failed_ ? ByteReader() : ByteReader(begin, static_cast<std::size_t>(count));
  }

  // The NUL-terminated text here, or nullptr if it does not end.
  const char* ReadCString() {
    const void* nul = left() == 0 ? nullptr : std::memchr(at_, 0, left());
    if (nul == nullptr) {
      Fail();
      return nullptr;
    }
    const char* text = reinterpret_cast<const char*>(at_);
    at_ = static_cast<const std::uint8_t*>(nul) + 1;
    return text;
  }

 private:
  const std::uint8_t* at_ = nullptr;
  const std::uint8_t* end_ = nullptr;
  bool failed_ = false;
};

}  // namespace stackpipe

#endif  // STACKPIPE_UNWIND_BYTE_READER_H_
