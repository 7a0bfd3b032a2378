// SPDX-License-Identifier: MIT
#include "aot/function_table.h"

#include <algorithm>
#include <tuple>

namespace stackpipe {

namespace {

// Of two ranges with one start.
bool Better(const FunctionRange& a, const FunctionRange& b) {
  return std::tie(a.rank, a.name) < std::tie(b.rank, b.name);
}

// Sorts by start, and within a start so that who has the addresses comes last.
void Sort(std::vector<FunctionRange>* ranges) {
  const auto starts_before = [](const FunctionRange& a, const FunctionRange& b) { return a.start < b.start; };
  const auto comes_before = [&](const FunctionRange& a, const FunctionRange& b) {
    return a.start != b.start ? a.start < b.start : Better(b, a);
  };
  if (!std::is_sorted(ranges->begin(), ranges->end(), starts_before)) {
    std::sort(ranges->begin(), ranges->end(), comes_before);
    return;
  }
  // Compilers mostly write symbols in the order of their addresses: only those of one address are to be
  // sorted.
  for (auto first = ranges->begin(); first != ranges->end();) {
    auto last = first + 1;
    while (last != ranges->end() && last->start == first->start) ++last;
    if (last - first > 1) std::sort(first, last, comes_before);
    first = last;
  }
}

// Cuts ranges into pieces that do not overlap.
template <typename F>
void Cut(std::vector<FunctionRange> ranges, const F& append) {
  Sort(&ranges);
  // The ranges that hold `at`. The last one has it; it started last.
  std::vector<FunctionRange> open;
  std::uint32_t at = 0;
  // Gives out everything below `until`.
  const auto advance = [&](std::uint32_t until) {
    while (!open.empty() && at < until) {
      const std::uint32_t end = std::min(open.back().end, until);
      if (at < end) {
        append(FunctionRange{at, end, open.back().name, 0});
        at = end;
      }
      if (open.back().end <= at) open.pop_back();
    }
    at = until;
  };
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const FunctionRange& range = ranges[i];
    if (range.start >= range.end) continue;
    advance(range.start);
    // Nearly all overlap with nothing.
    if (open.empty() && (i + 1 == ranges.size() || ranges[i + 1].start >= range.end)) {
      append(range);
    } else {
      open.push_back(range);
    }
  }
  advance(UINT32_MAX);
}

}  // namespace

void FunctionTable::Append(const FunctionRange& piece) {
  starts_.push_back(piece.start);
  sizes_.push_back(piece.end - piece.start);
  names_.push_back(piece.name);
}

void FunctionTable::Build(std::vector<FunctionRange> named, std::vector<FunctionRange> unnamed) {
  std::vector<FunctionRange> rest;
  Cut(std::move(unnamed), [&](const FunctionRange& piece) { rest.push_back(piece); });
  starts_.reserve(named.size());
  sizes_.reserve(named.size());
  names_.reserve(named.size());
  auto next = rest.begin();
  const auto append_rest = [&](std::uint32_t until) {
    for (; next != rest.end() && next->start < until; ++next) {
      Append({next->start, std::min(next->end, until), FunctionRange::kNoName, 0});
      if (next->end > until) break;
    }
  };
  Cut(std::move(named), [&](const FunctionRange& piece) {
    append_rest(piece.start);
    Append(piece);
    // What the piece covers is not left over.
    while (next != rest.end() && next->end <= piece.end) ++next;
    if (next != rest.end() && next->start < piece.end) next->start = piece.end;
  });
  append_rest(UINT32_MAX);
}

}  // namespace stackpipe
