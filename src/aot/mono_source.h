// SPDX-License-Identifier: MIT
//
// MonoSource: the methods in a shared object that Mono's AOT compiler made (mono --aot).
//
// Mono lays all methods between two labels, and its own stubs behind them: those are trampolines here. The
// compiler names each method in the debug information as Mono itself prints it, without parameters; that is
// read when the first name is asked for. Where it was stripped, the symbols' names stand in.
//
// Source: what Mono 6.8 writes.
#ifndef STACKPIPE_AOT_MONO_SOURCE_H_
#define STACKPIPE_AOT_MONO_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aot/elf_source.h"

namespace stackpipe {

class MonoSource : public ElfSource {
 public:
  // True for files that Mono's AOT compiler made.
  static bool Recognises(const ElfImage& elf);
  // Errors: as of ElfSource::Open; kUnsupported (the file was stripped of what tells methods from stubs).
  static Result<std::unique_ptr<ElfSource>> Open(const ElfImage& elf, const char* path);

  bool Decode(std::uint32_t method, AotCode* out) const noexcept override;
  void Describe(std::uint32_t method, AotName* out) override;

  // Splits a name of the debug information: "System.String:Concat", "(wrapper_alloc)_object:Alloc".
  static AotName Split(std::string_view text);

 private:
  struct Name {
    std::uint32_t start = 0;  // of the method
    std::uint64_t text = 0;   // in the file
  };

  MonoSource() = default;
  void LoadNames();

  std::uint32_t methods_begin_ = 0, methods_end_ = 0;  // offsets in the code
  std::uint64_t info_begin_ = 0, info_end_ = 0;        // .debug_info, in the file
  std::uint64_t abbrev_begin_ = 0, abbrev_end_ = 0;    // .debug_abbrev
  bool names_loaded_ = false;
  std::vector<Name> names_;  // by start
};

}  // namespace stackpipe

#endif  // STACKPIPE_AOT_MONO_SOURCE_H_
