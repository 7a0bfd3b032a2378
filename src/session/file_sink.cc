// SPDX-License-Identifier: MIT
#include "session/file_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace stackpipe {

FileSink::~FileSink() {
  if (fd_ >= 0) close(fd_);
}

Status FileSink::Create(const std::string& path) {
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) return {StatusCode::kIo, "creating the trace file", errno};
  return {};
}

Status FileSink::Write(std::span<const std::byte> bytes) {
  std::size_t done = 0;
  while (write_error_ == 0 && done < bytes.size()) {
    const ssize_t n = write(fd_, bytes.data() + done, bytes.size() - done);
    if (n >= 0) {
      done += static_cast<std::size_t>(n);
    } else if (errno != EINTR) {
      write_error_ = errno;
      // Best effort: a reader finds the last whole block in any case.
      if (ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) break;
    }
  }
  if (write_error_ != 0) return {StatusCode::kIo, "writing the trace file", write_error_};
  bytes_ += bytes.size();
  return {};
}

Status FileSink::Close() {
  if (fd_ < 0) return {};
  const int closed = close(fd_);
  fd_ = -1;
  if (closed != 0 && write_error_ == 0) write_error_ = errno;
  if (write_error_ != 0) return {StatusCode::kIo, "closing the trace file", write_error_};
  return {};
}

}  // namespace stackpipe
