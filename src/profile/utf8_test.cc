// SPDX-License-Identifier: MIT
#include "profile/utf8.h"

#include <gtest/gtest.h>

namespace stackpipe {
namespace {

TEST(ValidUtf8Test, KeepsWellFormedText) {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x94\xa5z";
  EXPECT_EQ(ValidUtf8(text), text);
  EXPECT_EQ(ValidUtf8(""), "");
}

TEST(ValidUtf8Test, ReplacesWhatIsNot) {
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(ValidUtf8("a\xff"), "a" + bad);
  EXPECT_EQ(ValidUtf8("\xc3"), bad);                      // cut off
  EXPECT_EQ(ValidUtf8("\xc0\xaf"), bad + bad);            // over-long '/'
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80"), bad + bad + bad);  // a surrogate
  EXPECT_EQ(ValidUtf8("\xf4\x90\x80\x80"), bad + bad + bad + bad);
  EXPECT_EQ(ValidUtf8("\xe2\x82z"), bad + bad + "z");
}

}  // namespace
}  // namespace stackpipe
