// SPDX-License-Identifier: MIT
#include "session/file_sink.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "platform/port.h"

namespace stackpipe {

FileSink::~FileSink() {
  if (fd_ >= 0 && IsOpen()) close(fd_);
}

Status FileSink::Create(const std::string& path) {
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  struct stat file {};
  if (fd_ < 0 || fstat(fd_, &file) != 0) return {StatusCode::kIo, "creating the trace file", errno};
  fd_ = port::MoveDescriptorUp(fd_);
  device_ = file.st_dev;
  inode_ = file.st_ino;
  path_ = path;
  char directory[PATH_MAX];
  if (path[0] != '/' && getcwd(directory, sizeof directory) != nullptr)
    path_ = std::string(directory) + "/" + path;
  return {};
}

bool FileSink::IsOpen() const {
  struct stat file {};
  return fstat(fd_, &file) == 0 && file.st_dev == device_ && file.st_ino == inode_;
}

bool FileSink::Reopen() {
  fd_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd_ < 0) return false;
  if (!IsOpen()) {
    close(fd_);
    fd_ = -1;
    errno = EBADF;
    return false;
  }
  fd_ = port::MoveDescriptorUp(fd_);
  return true;
}

Status FileSink::Write(std::span<const std::byte> bytes) {
  std::size_t done = 0;
  if (write_error_ == 0 && !IsOpen() && !Reopen()) write_error_ = errno;
  while (write_error_ == 0 && done < bytes.size()) {
    const ssize_t n =
        pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(bytes_ + done));
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
  const int closed = IsOpen() ? close(fd_) : 0;
  fd_ = -1;
  if (closed != 0 && write_error_ == 0) write_error_ = errno;
  if (write_error_ != 0) return {StatusCode::kIo, "closing the trace file", write_error_};
  return {};
}

}  // namespace stackpipe
