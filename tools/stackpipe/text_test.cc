// SPDX-License-Identifier: MIT
#include "stackpipe/text.h"

#include <gtest/gtest.h>

namespace stackpipe {
namespace {

TEST(TextTest, Numbers) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(1000), "1,000");
  EXPECT_EQ(CountText(1234567), "1,234,567");
  EXPECT_EQ(TimeText(0), "0 ns");
  EXPECT_EQ(TimeText(999), "999 ns");
  EXPECT_EQ(TimeText(1234), "1.23 µs");
  EXPECT_EQ(TimeText(45'600'000), "45.6 ms");
  EXPECT_EQ(TimeText(123'000'000'000), "123 s");
  EXPECT_EQ(PercentText(1, 8), "12.5%");
  EXPECT_EQ(PercentText(0, 0), "0.0%");
}

TEST(TextTest, CutsByCharacterNotByByte) {
  EXPECT_EQ(CutText("abcdef", 0), "abcdef");
  EXPECT_EQ(CutText("abcdef", 6), "abcdef");
  EXPECT_EQ(CutText("abcdef", 4), "abc…");
  EXPECT_EQ(CutText("aéée", 3), "aé…");
  EXPECT_EQ(TextWidth("aéée"), 4u);
}

TextTable Table() {
  TextTable table({{"N", true}, {"NAME", false, true}, {"MODULE"}});
  table.AddRow({"1", "short", "a.dll"});
  table.AddRow({"1,000", "a name that is rather long", "b.dll"});
  return table;
}

TEST(TextTableTest, LinesUp) {
  EXPECT_EQ(Table().Text(0),
            "    N  NAME                        MODULE\n"
            "    1  short                       a.dll\n"
            "1,000  a name that is rather long  b.dll\n");
}

TEST(TextTableTest, OneLongNameDoesNotMoveTheOthers) {
  TextTable table({{"NAME", false, true}, {"MODULE"}});
  table.AddRow({std::string(200, 'x'), "a"});
  table.AddRow({"short", "b"});
  EXPECT_EQ(table.Text(0), "NAME" + std::string(88, ' ') + "MODULE\n" + std::string(200, 'x') + "  a\n" +
                               "short" + std::string(87, ' ') + "b\n");
}

TEST(TextTableTest, ShrinksTheColumnThatMay) {
  EXPECT_EQ(Table().Text(32),
            "    N  NAME               MODULE\n"
            "    1  short              a.dll\n"
            "1,000  a name that is r…  b.dll\n");
}

TEST(TextTableTest, NoLineIsWiderThanTheTerminal) {
  const std::string text = Table().Text(12);
  std::size_t start = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', start)) {
    EXPECT_LE(TextWidth(std::string_view(text).substr(start, end - start)), 12u);
    start = end + 1;
  }
}

}  // namespace
}  // namespace stackpipe
