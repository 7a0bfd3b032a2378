// SPDX-License-Identifier: MIT
//
// FileSink: a trace file. What a failed write left behind is cut off again, so that the file always ends
// between blocks. A program may close all descriptors that it did not open, and use their numbers again: so
// nothing is written to one that is not the trace any more; the file is opened again.
#ifndef STACKPIPE_SESSION_FILE_SINK_H_
#define STACKPIPE_SESSION_FILE_SINK_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "nettrace/writer.h"

namespace stackpipe {

class FileSink : public nettrace::Sink {
 public:
  FileSink() = default;
  ~FileSink() override;
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

  // Creates the file. Errors: kIo; os_error() is EEXIST if it is there already.
  Status Create(const std::string& path);
  Status Write(std::span<const std::byte> bytes) override;
  // Closes the file. Errors: kIo (some file systems report a full disk only here).
  Status Close();

  std::uint64_t bytes() const { return bytes_; }
  int write_error() const { return write_error_; }

 private:
  // True if fd_ is the trace's.
  bool IsOpen() const;
  bool Reopen();

  int fd_ = -1;
  std::string path_;  // absolute
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::uint64_t bytes_ = 0;
  int write_error_ = 0;  // errno of the first failure; nothing is written after it
};

}  // namespace stackpipe

#endif  // STACKPIPE_SESSION_FILE_SINK_H_
