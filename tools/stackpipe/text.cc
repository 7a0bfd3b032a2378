// SPDX-License-Identifier: MIT
#include "stackpipe/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace stackpipe {
namespace {

constexpr std::size_t kGap = 2;

bool StartsCodePoint(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

std::string Padded(const std::string& text, std::size_t width, bool right) {
  const std::size_t used = TextWidth(text);
  const std::string padding(width > used ? width - used : 0, ' ');
  return right ? padding + text : text + padding;
}

}  // namespace

std::string CountText(std::uint64_t count) {
  std::string text = fmt::format("{}", count);
  for (std::size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

std::string TimeText(std::uint64_t ns) {
  struct Unit {
    const char* name;
    double size;
  };
  for (const Unit& unit : {Unit{"s", 1e9}, Unit{"ms", 1e6}, Unit{"µs", 1e3}}) {
    const double value = static_cast<double>(ns) / unit.size;
    if (value >= 1) return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, unit.name);
  }
  return fmt::format("{} ns", ns);
}

std::string PercentText(std::uint64_t part, std::uint64_t whole) {
  return fmt::format("{:.1f}%",
                     whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::size_t TextWidth(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), StartsCodePoint));
}

std::string CutText(std::string_view text, std::size_t width) {
  if (width == 0 || TextWidth(text) <= width) return std::string(text);
  std::size_t end = 0;
  for (std::size_t taken = 0; end < text.size(); ++end) {
    if (StartsCodePoint(text[end]) && ++taken == width) break;
  }
  return std::string(text.substr(0, end)) + "…";
}

std::string TextTable::Text(std::size_t width) const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t widest = TextWidth(columns_[i].heading);
    for (const auto& row : rows_) widest = std::max(widest, TextWidth(row[i]));
    // One very long name must not push all the rest out of sight; its own line is then out of step.
    constexpr std::size_t kWidest = 90;
    if (columns_[i].shrinks && width == 0) widest = std::min(widest, kWidest);
    widths.push_back(widest);
  }
  std::size_t total = kGap * (columns_.size() - 1);
  for (const std::size_t one : widths) total += one;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    constexpr std::size_t kNarrowest = 16;
    if (!columns_[i].shrinks || width == 0 || total <= width) continue;
    const std::size_t too_much = total - width;
    widths[i] = widths[i] > too_much + kNarrowest ? widths[i] - too_much : std::min(widths[i], kNarrowest);
  }

  std::string text;
  const auto add = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string cell = columns_[i].shrinks && width != 0 ? CutText(cells[i], widths[i]) : cells[i];
      if (i > 0) line.append(kGap, ' ');
      line += i + 1 == cells.size() && !columns_[i].right ? cell : Padded(cell, widths[i], columns_[i].right);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += width != 0 ? CutText(line, width) : line;
    text += '\n';
  };
  std::vector<std::string> headings;
  for (const Column& column : columns_) headings.emplace_back(column.heading);
  add(headings);
  for (const auto& row : rows_) add(row);
  return text;
}

}  // namespace stackpipe
