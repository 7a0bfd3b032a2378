// SPDX-License-Identifier: MIT
#include "aot/mapped_file.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace stackpipe {

bool MappedFile::Map(int fd, std::uint64_t size) {
  void* start = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (start == MAP_FAILED) return false;
  start_ = start;
  size_ = size;
  return true;
}

MappedFile::~MappedFile() {
  if (start_ != nullptr) munmap(start_, size_);
}

bool MappedFile::Read(std::uint64_t offset, std::size_t size, void* out) const {
  if (offset > size_ || size > size_ - offset) return false;
  if (size == 0) return true;
  const iovec to = {out, size};
  const iovec from = {static_cast<char*>(start_) + offset, size};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == static_cast<ssize_t>(size);
}

bool MappedFile::ReadText(std::uint64_t offset, std::uint64_t end, std::string* out) const {
  out->clear();
  end = std::min<std::uint64_t>(end, size_);
  char piece[256];
  while (offset < end && out->size() < kTextMax) {
    const std::size_t size = static_cast<std::size_t>(std::min<std::uint64_t>(sizeof piece, end - offset));
    if (!Read(offset, size, piece)) break;
    const void* nul = std::memchr(piece, 0, size);
    if (nul != nullptr) {
      out->append(piece, static_cast<std::size_t>(static_cast<const char*>(nul) - piece));
      return true;
    }
    out->append(piece, size);
    offset += size;
  }
  out->clear();
  return false;
}

}  // namespace stackpipe
