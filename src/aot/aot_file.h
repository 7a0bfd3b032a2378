// SPDX-License-Identifier: MIT
//
// Finds out what kind of AOT image a file is, and which file is loaded at an address.
#ifndef STACKPIPE_AOT_AOT_FILE_H_
#define STACKPIPE_AOT_AOT_FILE_H_

#include <cstdint>
#include <memory>

#include "aot/aot_images.h"
#include "aot/elf_source.h"
#include "stackpipe/result.h"

namespace stackpipe {

// Opens a file: a MonoSource where Mono's compiler made it, else an ElfSource. Not for handlers.
// Errors: kFormat (not an ELF file of this machine), and those of the sources.
Result<std::unique_ptr<ElfSource>> OpenAotFile(const char* path);

// The same for the shared object that is loaded at `address`, ready to be registered; its module and owner
// are to be filled in. Not for handlers: takes the loader's lock. Errors: also kNotFound (nothing is loaded
// there, or its file is not any more what is loaded).
Result<AotImageRegistration> OpenLoadedAotFile(std::uintptr_t address);

}  // namespace stackpipe

#endif  // STACKPIPE_AOT_AOT_FILE_H_
