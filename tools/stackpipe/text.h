// SPDX-License-Identifier: MIT
//
// Numbers and tables for people.
#ifndef STACKPIPE_TOOLS_STACKPIPE_TEXT_H_
#define STACKPIPE_TOOLS_STACKPIPE_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stackpipe {

std::string CountText(std::uint64_t count);                        // "1,234,567"
std::string TimeText(std::uint64_t ns);                            // "1.23 s", "45.6 ms", "7 ns"
std::string PercentText(std::uint64_t part, std::uint64_t whole);  // "12.3%"; "0.0%" of nothing

// Columns on a terminal: how many characters `text` takes, one for each code point.
std::size_t TextWidth(std::string_view text);
// `text`, or its beginning and an ellipsis if it is wider than `width`. 0 = no limit.
std::string CutText(std::string_view text, std::size_t width);

// A table whose columns line up. The last column is never padded.
class TextTable {
 public:
  struct Column {
    const char* heading;
    bool right = false;    // numbers
    bool shrinks = false;  // is cut when the table is wider than the terminal; one column at most
  };
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // `width` 0 = no terminal: nothing is cut.
  std::string Text(std::size_t width) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace stackpipe

#endif  // STACKPIPE_TOOLS_STACKPIPE_TEXT_H_
