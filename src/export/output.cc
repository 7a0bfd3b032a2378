// SPDX-License-Identifier: MIT
#include "export/output.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>

namespace stackpipe {

void Output::Write(std::string_view text) {
  buffer_ += text;
  if (buffer_.size() >= kBufferSize) FlushBuffer();
}

void Output::FlushBuffer() {
  if (status_.ok()) status_ = WriteAll(buffer_);
  buffer_.clear();
}

Status Output::Finish() {
  FlushBuffer();
  if (status_.ok()) status_ = Commit();
  return status_;
}

FileOutput::FileOutput(std::string path) : path_(std::move(path)) {}

FileOutput::~FileOutput() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Status FileOutput::Open() {
  struct stat info;
  if (stat(path_.c_str(), &info) == 0) {
    if (!S_ISREG(info.st_mode)) {
      fd_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
      return fd_ >= 0 ? Status() : Status(StatusCode::kIo, "open", errno);
    }
    // A rename would replace a symbolic link; what it points to is meant. It would also pass over write
    // protection.
    const std::unique_ptr<char, void (*)(void*)> target(realpath(path_.c_str(), nullptr), free);
    if (target) path_ = target.get();
    if (access(path_.c_str(), W_OK) != 0) return {StatusCode::kIo, "open", errno};
  }
  std::string name = path_ + "." + std::to_string(getpid()) + ".tmp";
  fd_ = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) return {StatusCode::kIo, "open", errno};
  temporary_ = std::move(name);
  return {};
}

Status FileOutput::WriteAll(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd_, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return {StatusCode::kIo, "write", errno};
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Status FileOutput::Commit() {
  const int closed = close(std::exchange(fd_, -1));  // some file systems report a full disk only here
  if (closed != 0) return {StatusCode::kIo, "close", errno};
  if (temporary_.empty()) return {};
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return {StatusCode::kIo, "rename", errno};
  temporary_.clear();
  return {};
}

}  // namespace stackpipe
