// SPDX-License-Identifier: MIT
//
// AotSource: what an image of precompiled code (AOT: ahead of time) tells about its methods. Implementations:
// ElfSource (elf_source.h) and MonoSource (mono_source.h), or a runtime's own.
//
// Offsets are bytes from the start of the image's code, the address that it is registered at.
#ifndef STACKPIPE_AOT_AOT_SOURCE_H_
#define STACKPIPE_AOT_AOT_SOURCE_H_

#include <cstdint>
#include <string>

#include "stackpipe/code_map.h"

namespace stackpipe {

// The sorted method table: method i begins at starts[i], and starts ascend strictly. It is used as it lies
// there, never copied, so it must stay as it is for as long as its source lives.
struct AotMethodTable {
  const std::uint32_t* starts = nullptr;
  std::uint32_t count = 0;
};

// One decoded method.
struct AotCode {
  std::uint32_t size = 0;  // bytes; at most up to the next method's start
  CodeKind kind = CodeKind::kAot;
};

// Empty = not known.
struct AotName {
  CodeKind kind = CodeKind::kUnknown;  // if the name tells better than Decode what this is; else kUnknown
  std::string name_space;
  std::string name;
  std::string signature;
};

class AotSource {
 public:
  virtual ~AotSource() = default;

  // Asked once, when the image is registered.
  virtual AotMethodTable table() const noexcept = 0;

  // Decodes method `method` (< count). False: there is no code. AS-safe, and called on any thread: it takes
  // no lock (row A7: no debug tables, no tables that images share), allocates nothing, and reads only memory
  // that stays for as long as the source lives.
  virtual bool Decode(std::uint32_t method, AotCode* out) const noexcept = 0;

  // Names a method. Not for handlers; one thread at a time, the collector's. It may read files. What it
  // cannot find out with certainty stays empty.
  virtual void Describe(std::uint32_t method, AotName* out) = 0;
};

}  // namespace stackpipe

#endif  // STACKPIPE_AOT_AOT_SOURCE_H_
