// SPDX-License-Identifier: MIT
//
// What the dynamic loader has loaded, and whether a file is what is loaded.
#ifndef STACKPIPE_UNWIND_LOADED_OBJECTS_H_
#define STACKPIPE_UNWIND_LOADED_OBJECTS_H_

#include <elf.h>

#include <cstdint>
#include <string>
#include <vector>

#include "unwind/elf_image.h"

namespace stackpipe {

// The loader's counts of loads and unloads so far.
struct LoaderCounters {
  std::uint64_t adds = 0, subs = 0;
  bool operator==(const LoaderCounters&) const = default;
};

struct LoadedObject {
  std::string name;         // the loader's; empty for the program itself
  std::uintptr_t bias = 0;  // what was added to the file's addresses
  std::vector<Elf64_Phdr> segments;
};

// Not for handlers: takes the loader's lock.
LoaderCounters ReadLoaderCounters();

// Lists all objects, the vdso aside, at one instant. Inside the loader's lock only bytes are copied: an
// allocator that takes a lock of its own, or a file system that hangs, cannot make a deadlock out of it.
void ListLoadedObjects(std::vector<LoadedObject>* objects, LoaderCounters* counters);

// Copies the vdso's image, whole. False: there is none.
bool CopyVdso(std::uintptr_t* start, std::vector<std::uint8_t>* image);

// The notes that an object is loaded with; one of them is the build id.
struct ImageNotes {
  struct Piece {
    std::uint64_t address = 0;  // as the file says
    std::vector<std::uint8_t> bytes;
  };
  std::vector<Piece> pieces;
};

ImageNotes ReadNotes(const ElfImage& file);

// True if memory at `bias` has the same notes, or may not be read. It is read with process_vm_readv: the
// object may be unmapped at any moment.
bool NotesAreInMemory(const ImageNotes& notes, std::uintptr_t bias);

// True if both are the same in number and content.
bool SameSegments(const std::vector<Elf64_Phdr>& a, const std::vector<Elf64_Phdr>& b);

// The file that is mapped at `address`, as the kernel names it; empty: none.
std::string PathOfMapping(std::uintptr_t address);

}  // namespace stackpipe

#endif  // STACKPIPE_UNWIND_LOADED_OBJECTS_H_
