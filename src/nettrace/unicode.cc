// SPDX-License-Identifier: MIT
#include "nettrace/unicode.h"

#include <cstdint>
#include <cstring>

namespace stackpipe::nettrace {

namespace {

constexpr char32_t kReplacement = 0xfffd;

bool IsSurrogate(char32_t c) { return c >= 0xd800 && c <= 0xdfff; }

// Takes one character off the front of `text`, which is not empty. An ill-formed sequence is replaced as a
// whole: the bytes that could begin a character, up to the first that cannot go on with it.
char32_t NextCharacter(std::string_view* text) {
  const auto byte_at = [text](std::size_t i) { return static_cast<std::uint8_t>((*text)[i]); };
  const std::uint8_t lead = byte_at(0);
  std::size_t length = 0;
  char32_t value = 0;
  // The second byte is in a narrower range where the sequence would be too long, a surrogate, or past
  // U+10FFFF.
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xbf;
  if (lead < 0x80) {
    text->remove_prefix(1);
    return lead;
  }
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
    value = lead & 0x1fu;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    value = lead & 0x0fu;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    value = lead & 0x07u;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  }
  std::size_t used = 1;
  for (; used < length && used < text->size(); ++used) {
    const std::uint8_t next = byte_at(used);
    if (next < low || next > high) break;
    value = (value << 6) | (next & 0x3fu);
    low = 0x80;
    high = 0xbf;
  }
  text->remove_prefix(used);
  return length != 0 && used == length ? value : kReplacement;
}

char32_t NextForUtf16(std::string_view* text) {
  const char32_t c = NextCharacter(text);
  return c == 0 ? kReplacement : c;
}

std::byte* PutUnit(std::byte* to, char32_t unit) {
  const auto value = static_cast<std::uint16_t>(unit);
  std::memcpy(to, &value, sizeof value);
  return to + sizeof value;
}

void AppendUtf8(char32_t c, std::string* out) {
  const auto put = [out](char32_t bits) { out->push_back(static_cast<char>(bits)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6);
    put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  }
}

}  // namespace

std::size_t Utf16Units(std::string_view text) {
  std::size_t units = 0;
  while (!text.empty()) units += NextForUtf16(&text) >= 0x10000 ? 2 : 1;
  return units;
}

std::byte* PutUtf16(std::byte* to, std::string_view text, std::size_t units_max) {
  while (!text.empty()) {
    const char32_t c = NextForUtf16(&text);
    const std::size_t units = c >= 0x10000 ? 2 : 1;
    if (units > units_max) break;
    units_max -= units;
    if (units == 1) {
      to = PutUnit(to, c);
    } else {
      to = PutUnit(to, 0xd800 + ((c - 0x10000) >> 10));
      to = PutUnit(to, 0xdc00 + ((c - 0x10000) & 0x3ff));
    }
  }
  return PutUnit(to, 0);
}

std::string Utf8FromUtf16(std::span<const std::byte> units) {
  std::string out;
  const auto unit_at = [units](std::size_t i) {
    std::uint16_t unit = 0;
    std::memcpy(&unit, units.data() + i * sizeof unit, sizeof unit);
    return static_cast<char32_t>(unit);
  };
  const std::size_t count = units.size() / 2;
  out.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const char32_t c = unit_at(i);
    if (!IsSurrogate(c)) {
      AppendUtf8(c, &out);
      continue;
    }
    const char32_t low = c < 0xdc00 && i + 1 < count ? unit_at(i + 1) : 0;
    if (low >= 0xdc00 && low <= 0xdfff) {
      AppendUtf8(0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00), &out);
      ++i;
    } else {
      AppendUtf8(kReplacement, &out);
    }
  }
  return out;
}

std::string WellFormedUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) AppendUtf8(NextCharacter(&text), &out);
  return out;
}

}  // namespace stackpipe::nettrace
