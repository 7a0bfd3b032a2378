// SPDX-License-Identifier: MIT
#include "aot/aot_file.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aot/mono_source.h"
#include "unwind/loaded_objects.h"

namespace stackpipe {

namespace {

Result<std::unique_ptr<ElfSource>> OpenSource(const ElfImage& elf, const char* path) {
  if (MonoSource::Recognises(elf)) {
    Result<std::unique_ptr<ElfSource>> source = MonoSource::Open(elf, path);
    if (source.status().code() != StatusCode::kUnsupported) return source;
  }
  return ElfSource::Open(elf, path);
}

Status NotElf() { return {StatusCode::kFormat, "the file is not an ELF file of this machine"}; }

std::string PathOfProgram() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
  return size > 0 ? std::string(path, static_cast<std::size_t>(size)) : std::string();
}

bool Holds(const LoadedObject& object, std::uintptr_t address) {
  return std::any_of(object.segments.begin(), object.segments.end(), [&](const Elf64_Phdr& segment) {
    return segment.p_type == PT_LOAD && address - object.bias - segment.p_vaddr < segment.p_memsz;
  });
}

}  // namespace

Result<std::unique_ptr<ElfSource>> OpenAotFile(const char* path) {
  ElfImage elf;
  if (!elf.OpenFile(path)) return NotElf();
  return OpenSource(elf, path);
}

Result<AotImageRegistration> OpenLoadedAotFile(std::uintptr_t address) {
  std::vector<LoadedObject> objects;
  LoaderCounters counters;
  ListLoadedObjects(&objects, &counters);
  const auto object = std::find_if(objects.begin(), objects.end(),
                                   [&](const LoadedObject& one) { return Holds(one, address); });
  if (object == objects.end()) return Status(StatusCode::kNotFound, "no object is loaded there");
  const std::string path = object->name.empty() ? PathOfProgram() : object->name;
  ElfImage elf;
  if (!elf.OpenFile(object->name.empty() ? "/proc/self/exe" : path.c_str())) return NotElf();
  if (!SameSegments(elf.segments(), object->segments) || !NotesAreInMemory(ReadNotes(elf), object->bias))
    return Status(StatusCode::kNotFound, "the file is not what is loaded");
  Result<std::unique_ptr<ElfSource>> source = OpenSource(elf, path.c_str());
  if (!source.ok()) return source.status();
  AotImageRegistration image;
  image.start = object->bias + source.value()->code_start();
  image.size = source.value()->code_size();
  const std::string_view file = source.value()->path();  // lives as long as the source
  image.name = file.substr(file.rfind('/') + 1);
  image.origin = {path, source.value()->build_id(), object->bias};
  image.source = std::move(source.value());
  return image;
}

}  // namespace stackpipe
