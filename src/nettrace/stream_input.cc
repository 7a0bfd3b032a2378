// SPDX-License-Identifier: MIT
#include "nettrace/stream_input.h"

#include <algorithm>
#include <cstring>

namespace stackpipe::nettrace {

std::size_t StreamInput::Fetch(std::byte* to, std::size_t size) {
  if (ended_) return 0;
  const Result<std::size_t> got = source_.Read(to, size);
  if (!got.ok()) status_ = got.status();
  ended_ = !got.ok() || got.value() == 0;
  return ended_ ? 0 : std::min(got.value(), size);
}

std::size_t StreamInput::Read(std::byte* to, std::size_t size) {
  std::size_t done = 0;
  while (done < size) {
    if (begin_ == end_) {
      const std::size_t left = size - done;
      if (left >= kBufferSize) {
        const std::size_t got = Fetch(to + done, left);
        if (got == 0) break;
        done += got;
        continue;
      }
      begin_ = 0;
      end_ = Fetch(buffer_.get(), kBufferSize);
      if (end_ == 0) break;
    }
    const std::size_t piece = std::min(size - done, end_ - begin_);
    std::memcpy(to + done, buffer_.get() + begin_, piece);
    begin_ += piece;
    done += piece;
  }
  offset_ += done;
  return done;
}

std::size_t StreamInput::ReadGrowing(std::size_t size, std::vector<std::byte>* to) {
  std::size_t done = 0;
  while (done < size) {
    if (to->size() == done) to->resize(std::min(size, std::max(2 * done, kBufferSize)));
    const std::size_t wanted = std::min(size, to->size()) - done;
    const std::size_t got = Read(to->data() + done, wanted);
    done += got;
    if (got < wanted) break;
  }
  return done;
}

}  // namespace stackpipe::nettrace
