// SPDX-License-Identifier: MIT
//
// For tests: takes a version 4 stream apart into its blocks, without the reader, and collects what a writer
// writes.
#ifndef STACKPIPE_NETTRACE_STREAM_BLOCKS_H_
#define STACKPIPE_NETTRACE_STREAM_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "nettrace/writer.h"

namespace stackpipe::nettrace {

using Bytes = std::vector<std::byte>;

inline Bytes ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> chars{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto bytes = std::as_bytes(std::span(chars));
  return {bytes.begin(), bytes.end()};
}

// Keeps the bytes, and where each Write ended.
struct MemorySink : Sink {
  Bytes bytes;
  std::vector<std::size_t> ends;
  Status fail_with;                  // what Write returns ...
  std::size_t fail_from = SIZE_MAX;  // ... from this one on

  Status Write(std::span<const std::byte> more) override {
    if (ends.size() >= fail_from) return fail_with;
    bytes.insert(bytes.end(), more.begin(), more.end());
    ends.push_back(bytes.size());
    return {};
  }
};

struct StreamBlock {
  std::string name;
  std::size_t content_at = 0;  // offset in the stream
  std::size_t end = 0;         // behind the end tag
  Bytes content;
};

template <typename T>
T At(std::span<const std::byte> bytes, std::size_t at) {
  T value{};
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// The whole blocks of `stream` after its header; Trace has its 48 bytes as content.
inline std::vector<StreamBlock> BlocksOf(std::span<const std::byte> stream) {
  std::vector<StreamBlock> blocks;
  std::size_t at = 32;
  while (at + 16 < stream.size()) {
    const auto name_size = At<std::uint32_t>(stream, at + 11);
    StreamBlock block;
    block.name.assign(reinterpret_cast<const char*>(stream.data()) + at + 15, name_size);
    at += 15 + name_size + 1;
    std::size_t size = 48;
    if (block.name != "Trace") {
      size = At<std::uint32_t>(stream, at);
      at = (at + 4 + 3) / 4 * 4;
    }
    block.content_at = at;
    if (at + size + 1 > stream.size()) break;
    block.content.assign(stream.begin() + static_cast<std::ptrdiff_t>(at),
                         stream.begin() + static_cast<std::ptrdiff_t>(at + size));
    at += size + 1;
    block.end = at;
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_STREAM_BLOCKS_H_
