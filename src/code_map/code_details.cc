// SPDX-License-Identifier: MIT
#include "code_map/code_details.h"

#include "code_map/atomic_word.h"

namespace stackpipe::internal {

namespace {

constexpr std::size_t kNumberBytesMax = 5;

std::uint32_t Zigzag(std::uint32_t difference) { return difference << 1 ^ (0 - (difference >> 31)); }
std::uint32_t Unzigzag(std::uint32_t coded) { return coded >> 1 ^ (0 - (coded & 1)); }

}  // namespace

bool AreDetailsInOrder(const CodeRegistration& code) noexcept {
  for (std::size_t i = 1; i < code.lines.size(); ++i) {
    if (code.lines[i].offset <= code.lines[i - 1].offset) return false;
  }
  std::uint64_t ends[kInlineDepthMax + 1] = {code.size};  // of the code, and of the calls around
  std::uint32_t depth = 0;
  std::uint64_t start = 0;
  for (const CodeInline& call : code.inlines) {
    if (call.depth > depth || call.depth >= kInlineDepthMax || call.start < start) return false;
    const std::uint64_t end = std::uint64_t{call.start} + call.size;
    if (call.start >= ends[call.depth] || end > ends[call.depth]) return false;
    start = call.start;
    depth = call.depth + 1;
    ends[depth] = end;
  }
  return true;
}

std::uint32_t DetailsReader::Take() noexcept {
  std::uint32_t number = 0;
  for (unsigned shift = 0; shift < 7 * kNumberBytesMax && at_ != end_; shift += 7) {
    const auto byte = static_cast<unsigned char>(Acquire(*at_++));
    number |= (byte & 0x7fu) << shift;
    if (byte < 0x80) break;
  }
  return number;
}

bool DetailsReader::NextLine(CodeLine* line) noexcept {
  if (in_inlines_ || left_ == 0 || at_ == end_) return false;
  --left_;
  line_.offset += Take();
  line_.line += Unzigzag(Take());
  *line = line_;
  return true;
}

bool DetailsReader::NextInline(InlineEntry* entry) noexcept {
  if (!in_inlines_) left_ = Take();
  in_inlines_ = true;
  if (left_ == 0 || at_ == end_) return false;
  --left_;
  entry->start = Take();
  entry->size = Take();
  entry->depth = Take();
  entry->call_line = Take();
  for (std::uint32_t& text : entry->texts) text = Take();
  return true;
}

bool DetailsWriter::Reserve(std::size_t lines, std::size_t inlines) noexcept {
  const std::size_t need = (2 + 2 * lines + 7 * inlines) * kNumberBytesMax;
  if (need <= capacity_) return true;
  auto* const pages = static_cast<char*>(AllocatePages(need));
  if (pages == nullptr) return false;
  bytes_ = pages;
  capacity_ = need;
  return true;
}

void DetailsWriter::Put(std::uint32_t number) noexcept {
  for (; number >= 0x80; number >>= 7) bytes_[size_++] = static_cast<char>(number | 0x80);
  bytes_[size_++] = static_cast<char>(number);
}

void DetailsWriter::PutCount(std::size_t count) noexcept { Put(static_cast<std::uint32_t>(count)); }

void DetailsWriter::Put(const CodeLine& line) noexcept {
  Put(line.offset - line_.offset);
  Put(Zigzag(line.line - line_.line));
  line_ = line;
}

void DetailsWriter::Put(const InlineEntry& entry) noexcept {
  Put(entry.start);
  Put(entry.size);
  Put(entry.depth);
  Put(entry.call_line);
  for (const std::uint32_t text : entry.texts) Put(text);
}

}  // namespace stackpipe::internal
