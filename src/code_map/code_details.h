// SPDX-License-Identifier: MIT
//
// Code details: the line table and the inline tree of a registration, packed into bytes that are stored like
// a text. All numbers are unsigned LEB128; differences of lines are zigzag-coded.
//
//     number of lines | (offset - previous offset, line - previous line)...
//     number of inlined calls | (start, size, depth, call line, name space, name, source file)...
//
// The last three are handles of texts, which the bytes hold.
#ifndef STACKPIPE_CODE_MAP_CODE_DETAILS_H_
#define STACKPIPE_CODE_MAP_CODE_DETAILS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "code_map/page_memory.h"
#include "stackpipe/code_map.h"

namespace stackpipe::internal {

inline constexpr std::uint32_t kInlineDepthMax = 64;

// True: lines in the order of their offsets; inlined calls in preorder, each inside the one around it, and
// all inside the code.
bool AreDetailsInOrder(const CodeRegistration& code) noexcept;

struct InlineEntry {
  std::uint32_t start, size, depth, call_line;
  std::uint32_t texts[3];  // name space, name, source file
};

// Reads one after the other: lines() times NextLine, then inlines() times NextInline. Bytes that are not what
// was written, because they belong to something else by now, give other numbers, no more.
class DetailsReader {
 public:
  explicit DetailsReader(std::string_view bytes) noexcept
      : at_(bytes.data()), end_(at_ + bytes.size()), left_(Take()) {}
  bool NextLine(CodeLine* line) noexcept;
  // The lines must be read.
  bool NextInline(InlineEntry* entry) noexcept;

 private:
  std::uint32_t Take() noexcept;

  const char* at_;
  const char* end_;
  std::uint32_t left_;
  CodeLine line_ = {};
  bool in_inlines_ = false;
};

// Bytes that are being put together. Small ones need no memory.
class DetailsWriter {
 public:
  DetailsWriter() = default;
  ~DetailsWriter() {
    if (bytes_ != small_) FreePages(bytes_, capacity_);
  }
  DetailsWriter(const DetailsWriter&) = delete;
  DetailsWriter& operator=(const DetailsWriter&) = delete;

  // Room for so many of both, which has to be made first. False: out of memory.
  bool Reserve(std::size_t lines, std::size_t inlines) noexcept;
  void PutCount(std::size_t count) noexcept;  // in front of the lines, and in front of the inlined calls
  void Put(const CodeLine& line) noexcept;
  void Put(const InlineEntry& entry) noexcept;
  std::string_view bytes() const noexcept { return {bytes_, size_}; }

 private:
  void Put(std::uint32_t number) noexcept;

  char small_[1024];
  char* bytes_ = small_;
  std::size_t capacity_ = sizeof small_;
  std::size_t size_ = 0;
  CodeLine line_ = {};
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_CODE_DETAILS_H_
