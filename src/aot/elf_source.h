// SPDX-License-Identifier: MIT
//
// ElfSource: the functions of an ELF shared object, as an AOT image: what compilers to C or to object files
// make (wasm2c, LLVM), and all else that the dynamic loader loads.
//
// The functions are those of .symtab; of a stripped file those of .dynsym, and without names those of its
// call frame information. They are listed when the file is opened; names are read when they are asked for,
// from the very file that was opened, even if it was replaced or unlinked since.
//
// Source: System V ABI (ELF-64).
#ifndef STACKPIPE_AOT_ELF_SOURCE_H_
#define STACKPIPE_AOT_ELF_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aot/aot_images.h"
#include "aot/aot_source.h"
#include "aot/function_table.h"
#include "aot/mapped_file.h"
#include "stackpipe/result.h"
#include "unwind/elf_image.h"

namespace stackpipe {

class ElfSource : public AotSource {
 public:
  // Lists the functions of `elf`, which was opened from `path`. Errors: kFormat (no code, code of several
  // GB), kNotFound (no functions).
  static Result<std::unique_ptr<ElfSource>> Open(const ElfImage& elf, const char* path);

  const std::string& path() const { return path_; }
  // The code: an image of this source begins at code_start() + the object's load bias. All executable
  // segments, and what lies between them.
  std::uint64_t code_start() const { return code_start_; }
  std::size_t code_size() const { return code_size_; }
  // Up to 20 bytes; empty: none.
  const std::vector<std::uint8_t>& build_id() const { return build_id_; }

  AotMethodTable table() const noexcept override { return functions_.table(); }
  bool Decode(std::uint32_t method, AotCode* out) const noexcept override;
  // C++ names come readable.
  void Describe(std::uint32_t method, AotName* out) override;

 protected:
  // A symbol of the code that has no size: it marks a place.
  struct Label {
    std::uint32_t offset = 0;
    std::uint32_t name = 0;
  };

  ElfSource() = default;
  // `labels` may be null.
  Status Load(const ElfImage& elf, const char* path, std::vector<Label>* labels);

  const MappedFile& file() const { return file_; }
  // The text of the symbols' string table at `name`; empty: none.
  std::string SymbolName(std::uint32_t name) const;
  // As the file has it, without a version.
  std::string SymbolNameOf(std::uint32_t method) const;

 private:
  // Reads a symbol table and notes its string table.
  std::vector<FunctionRange> ReadSymbols(const ElfImage& elf, const Elf64_Shdr& section,
                                         std::vector<Label>* labels);
  std::vector<FunctionRange> ReadFrames(const ElfImage& elf) const;

  std::string path_;
  std::uint64_t code_start_ = 0;
  std::uint32_t code_size_ = 0;
  std::vector<std::uint8_t> build_id_;
  FunctionTable functions_;
  MappedFile file_;
  std::uint64_t strings_begin_ = 0, strings_end_ = 0;  // in the file
};

}  // namespace stackpipe

#endif  // STACKPIPE_AOT_ELF_SOURCE_H_
