// SPDX-License-Identifier: MIT
//
// Output: where exporters write. It remembers the first failure, so that exporters need not ask after each
// write.
#ifndef STACKPIPE_EXPORT_OUTPUT_H_
#define STACKPIPE_EXPORT_OUTPUT_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "stackpipe/result.h"

namespace stackpipe {

class Output {
 public:
  virtual ~Output() = default;

  // Appends `text`. After a failure nothing is written any more.
  void Write(std::string_view text);
  void Put(char c) {
    buffer_.push_back(c);
    if (buffer_.size() >= kBufferSize) FlushBuffer();
  }

  // Writes what is buffered and puts the result in its place. Errors: kIo with errno, of this or of any
  // earlier call. Without it (or after an error) nothing is left behind.
  Status Finish();

 protected:
  virtual Status WriteAll(std::string_view text) = 0;
  virtual Status Commit() = 0;

 private:
  static constexpr std::size_t kBufferSize = 64 * 1024;
  void FlushBuffer();

  std::string buffer_;
  Status status_;
};

// A file. It is written under another name in the same directory and renamed by Finish, so readers see the
// old file or the whole new one, never half. What is not a regular file (a pipe, /dev/stdout) is written to
// directly.
class FileOutput : public Output {
 public:
  explicit FileOutput(std::string path);
  ~FileOutput() override;
  FileOutput(const FileOutput&) = delete;
  FileOutput& operator=(const FileOutput&) = delete;

  // Call first. Errors: kIo.
  Status Open();

 protected:
  Status WriteAll(std::string_view text) override;
  Status Commit() override;

 private:
  std::string path_;
  std::string temporary_;  // empty: written to directly, or nothing to remove
  int fd_ = -1;
};

// A string in memory.
class StringOutput : public Output {
 public:
  const std::string& text() const { return text_; }

 protected:
  Status WriteAll(std::string_view text) override {
    text_ += text;
    return {};
  }
  Status Commit() override { return {}; }

 private:
  std::string text_;
};

}  // namespace stackpipe

#endif  // STACKPIPE_EXPORT_OUTPUT_H_
