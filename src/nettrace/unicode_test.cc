// SPDX-License-Identifier: MIT
#include "nettrace/unicode.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace stackpipe::nettrace {
namespace {

std::u16string ToUtf16(std::string_view text, std::size_t units_max = SIZE_MAX) {
  std::vector<std::byte> bytes(2 * (Utf16Units(text) + 1));
  const std::byte* end = PutUtf16(bytes.data(), text, units_max);
  std::u16string units(static_cast<std::size_t>(end - bytes.data()) / 2, u'?');
  std::memcpy(units.data(), bytes.data(), 2 * units.size());
  EXPECT_EQ(units.back(), u'\0');
  units.pop_back();
  return units;
}

std::string ToUtf8(std::u16string_view units) {
  return Utf8FromUtf16(std::as_bytes(std::span(units.data(), units.size())));
}

TEST(UnicodeTest, EveryCharacterGoesThereAndBack) {
  for (char32_t c = 1; c <= 0x10ffff; c += c < 0x3000 ? 1 : 97) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    std::u16string units;
    if (c < 0x10000) {
      units = {static_cast<char16_t>(c)};
    } else {
      units = {static_cast<char16_t>(0xd800 + ((c - 0x10000) >> 10)),
               static_cast<char16_t>(0xdc00 + ((c - 0x10000) & 0x3ff))};
    }
    const std::string text = ToUtf8(units);
    EXPECT_EQ(text.size(), c < 0x80      ? 1u
                           : c < 0x800   ? 2u
                           : c < 0x10000 ? 3u
                                         : 4u)
        << static_cast<std::uint32_t>(c);
    EXPECT_EQ(ToUtf16(text), units) << static_cast<std::uint32_t>(c);
    EXPECT_EQ(WellFormedUtf8(text), text) << static_cast<std::uint32_t>(c);
  }
}

TEST(UnicodeTest, KnownTexts) {
  EXPECT_EQ(ToUtf16("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"), u"a\u00e9\u20ac\U0001f600");
  EXPECT_EQ(ToUtf8(u"a\u00e9\u20ac\U0001f600"), "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(ToUtf16(""), u"");
}

TEST(UnicodeTest, IllFormedUtf8IsReplaced) {
  EXPECT_EQ(ToUtf16("\x80z"), u"\ufffdz");                                // continuation without a lead
  EXPECT_EQ(ToUtf16("\xc0\xafz"), u"\ufffd\ufffdz");                      // too long for its value
  EXPECT_EQ(ToUtf16("\xe0\x80\x80z"), u"\ufffd\ufffd\ufffdz");            // the same, three bytes
  EXPECT_EQ(ToUtf16("\xed\xa0\x80z"), u"\ufffd\ufffd\ufffdz");            // a surrogate
  EXPECT_EQ(ToUtf16("\xf4\x90\x80\x80z"), u"\ufffd\ufffd\ufffd\ufffdz");  // past U+10FFFF
  EXPECT_EQ(ToUtf16("\xff"), u"\ufffd");
  EXPECT_EQ(ToUtf16("a\xe2\x82"), u"a\ufffd");  // cut off: one mark for what was there
  EXPECT_EQ(ToUtf16("\xe2\x82z"), u"\ufffdz");
  EXPECT_EQ(WellFormedUtf8("\xe2\x82z\xff"), "\xef\xbf\xbdz\xef\xbf\xbd");
}

TEST(UnicodeTest, NulInTheTextDoesNotEndIt) {
  using std::string_view_literals::operator""sv;
  EXPECT_EQ(ToUtf16("a\0b"sv), u"a\ufffdb");
}

TEST(UnicodeTest, CutsBetweenCharacters) {
  EXPECT_EQ(ToUtf16("abc", 2), u"ab");
  EXPECT_EQ(ToUtf16("a\xf0\x9f\x98\x80", 2), u"a");
  EXPECT_EQ(ToUtf16("a\xf0\x9f\x98\x80", 3), u"a\U0001f600");
}

TEST(UnicodeTest, LoneSurrogatesAreReplaced) {
  EXPECT_EQ(ToUtf8(std::u16string{0xd800, u'a'}),
            "\xef\xbf\xbd"
            "a");
  EXPECT_EQ(ToUtf8(std::u16string{0xdc00, u'a'}),
            "\xef\xbf\xbd"
            "a");
  EXPECT_EQ(ToUtf8(std::u16string{u'a', 0xd800}), "a\xef\xbf\xbd");
}

}  // namespace
}  // namespace stackpipe::nettrace
