// SPDX-License-Identifier: MIT
//
// MappedFile: reads parts of a file long after it was opened: after it was unlinked or replaced, and without
// a descriptor kept open in somebody else's process.
//
// The file is mapped, and read with process_vm_readv: a file that was cut short meanwhile yields a failure
// and not a SIGBUS.
#ifndef STACKPIPE_AOT_MAPPED_FILE_H_
#define STACKPIPE_AOT_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace stackpipe {

// Any thread, not for handlers. errno may change.
class MappedFile {
 public:
  // No text is longer.
  static constexpr std::size_t kTextMax = 64 * 1024;

  MappedFile() = default;
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Maps the first `size` bytes; `fd` may be closed afterwards. False: not possible, then every Read fails.
  // Call once.
  bool Map(int fd, std::uint64_t size);

  // Copies `size` bytes at `offset`. False: they are not there, or process_vm_readv is forbidden.
  bool Read(std::uint64_t offset, std::size_t size, void* out) const;

  // Copies the NUL-terminated text at `offset`, which ends before `end`. False, and `*out` empty: there is
  // none.
  bool ReadText(std::uint64_t offset, std::uint64_t end, std::string* out) const;

 private:
  void* start_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace stackpipe

#endif  // STACKPIPE_AOT_MAPPED_FILE_H_
