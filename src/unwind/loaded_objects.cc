// SPDX-License-Identifier: MIT
#include "unwind/loaded_objects.h"

#include <errno.h>
#include <limits.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

namespace stackpipe {
namespace {

std::uintptr_t VdsoStart() { return getauxval(AT_SYSINFO_EHDR); }

// Filled inside the loader's lock, from buffers that were allocated before.
struct Listing {
  struct Entry {
    std::uintptr_t bias;
    std::size_t name_begin, name_size;
    std::size_t segment_begin, segment_count;
  };
  std::vector<Entry> entries;
  std::vector<char> names;
  std::vector<Elf64_Phdr> segments;
  // Needed so far; above the buffers' sizes if they are too small.
  std::size_t entry_count = 0, name_bytes = 0, segment_count = 0;
  std::uintptr_t vdso = 0;
  LoaderCounters counters;

  bool Fits() const {
    return entry_count <= entries.size() && name_bytes <= names.size() && segment_count <= segments.size();
  }
};

// strlen for the loader's names. ThreadSanitizer does not see the loader's lock: it is told about the
// characters of these names by its own dl_iterate_phdr, but not about the NUL, which strlen reads.
__attribute__((no_sanitize("thread"))) std::size_t LengthOf(const volatile char* name) {
  std::size_t size = 0;
  while (name[size] != '\0') ++size;
  return size;
}

int CopyObject(dl_phdr_info* info, std::size_t, void* context) {
  auto* listing = static_cast<Listing*>(context);
  listing->counters = {info->dlpi_adds, info->dlpi_subs};
  for (std::size_t i = 0; listing->vdso != 0 && i < info->dlpi_phnum; ++i) {
    const Elf64_Phdr& segment = info->dlpi_phdr[i];
    if (segment.p_type == PT_LOAD && listing->vdso - (info->dlpi_addr + segment.p_vaddr) < segment.p_memsz)
      return 0;
  }
  const char* name = info->dlpi_name != nullptr ? info->dlpi_name : "";
  const Listing::Entry entry = {info->dlpi_addr, listing->name_bytes, LengthOf(name), listing->segment_count,
                                info->dlpi_phnum};
  listing->entry_count += 1;
  listing->name_bytes += entry.name_size;
  listing->segment_count += entry.segment_count;
  if (!listing->Fits()) return 0;  // counts on
  listing->entries[listing->entry_count - 1] = entry;
  std::copy_n(name, entry.name_size, listing->names.begin() + static_cast<std::ptrdiff_t>(entry.name_begin));
  std::copy_n(info->dlpi_phdr, entry.segment_count,
              listing->segments.begin() + static_cast<std::ptrdiff_t>(entry.segment_begin));
  return 0;
}

int CopyCounters(dl_phdr_info* info, std::size_t, void* context) {
  *static_cast<LoaderCounters*>(context) = {info->dlpi_adds, info->dlpi_subs};
  return 1;
}

}  // namespace

LoaderCounters ReadLoaderCounters() {
  LoaderCounters counters;
  dl_iterate_phdr(CopyCounters, &counters);
  return counters;
}

void ListLoadedObjects(std::vector<LoadedObject>* objects, LoaderCounters* counters) {
  Listing listing;
  std::size_t entries = 64;
  std::size_t names = 8192;
  std::size_t segments = 1024;
  do {
    listing = Listing();
    listing.vdso = VdsoStart();
    listing.entries.resize(entries);
    listing.names.resize(names);
    listing.segments.resize(segments);
    dl_iterate_phdr(CopyObject, &listing);
    // Twice what was needed: others may be loading meanwhile.
    entries = std::max(entries, listing.entry_count * 2);
    names = std::max(names, listing.name_bytes * 2);
    segments = std::max(segments, listing.segment_count * 2);
  } while (!listing.Fits());

  *counters = listing.counters;
  objects->clear();
  objects->reserve(listing.entry_count);
  for (std::size_t i = 0; i < listing.entry_count; ++i) {
    const Listing::Entry& entry = listing.entries[i];
    const auto first = listing.segments.begin() + static_cast<std::ptrdiff_t>(entry.segment_begin);
    objects->push_back(
        {std::string(listing.names.data() + entry.name_begin, entry.name_size), entry.bias,
         std::vector<Elf64_Phdr>(first, first + static_cast<std::ptrdiff_t>(entry.segment_count))});
  }
}

bool CopyVdso(std::uintptr_t* start, std::vector<std::uint8_t>* image) {
  constexpr std::uint64_t kVdsoMax = 1 << 20;
  *start = VdsoStart();
  if (*start == 0) return false;
  // The kernel's own image, never unmapped: it may be read like any memory.
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(*start);
  Elf64_Ehdr header;
  std::memcpy(&header, bytes, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_phentsize != sizeof(Elf64_Phdr))
    return false;
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, bytes + header.e_phoff + i * sizeof segment, sizeof segment);
    if (segment.p_type == PT_LOAD) size = std::max(size, segment.p_offset + segment.p_filesz);
  }
  // The section headers, with the symbol table's place, follow the last segment; whole pages are mapped.
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  size = (size + page - 1) / page * page;
  if (size == 0 || size > kVdsoMax) return false;
  image->assign(bytes, bytes + size);
  return true;
}

ImageNotes ReadNotes(const ElfImage& file) {
  constexpr std::uint64_t kNotesMax = 4096;
  ImageNotes notes;
  for (const Elf64_Phdr& segment : file.segments()) {
    if (segment.p_type != PT_NOTE || segment.p_filesz == 0) continue;
    // Some are in the file only.
    const auto loads = [&](const Elf64_Phdr& other) {
      return other.p_type == PT_LOAD && segment.p_vaddr >= other.p_vaddr &&
             segment.p_vaddr - other.p_vaddr < other.p_filesz &&
             segment.p_vaddr - other.p_vaddr == segment.p_offset - other.p_offset;
    };
    if (std::none_of(file.segments().begin(), file.segments().end(), loads)) continue;
    ImageNotes::Piece piece;
    piece.address = segment.p_vaddr;
    if (file.Read(segment.p_offset, std::min(segment.p_filesz, kNotesMax), &piece.bytes)) {
      notes.pieces.push_back(std::move(piece));
    }
  }
  return notes;
}

bool NotesAreInMemory(const ImageNotes& notes, std::uintptr_t bias) {
  for (const ImageNotes::Piece& piece : notes.pieces) {
    std::vector<std::uint8_t> in_memory(piece.bytes.size());
    const iovec to = {in_memory.data(), in_memory.size()};
    const iovec from = {reinterpret_cast<void*>(bias + piece.address), in_memory.size()};
    const ssize_t got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
    if (got < 0 && errno != EFAULT) return true;  // not allowed here
    if (got != static_cast<ssize_t>(in_memory.size()) || in_memory != piece.bytes) return false;
  }
  return true;
}

bool SameSegments(const std::vector<Elf64_Phdr>& a, const std::vector<Elf64_Phdr>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
}

std::string PathOfMapping(std::uintptr_t address) {
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return "";
  std::string path;
  char line[PATH_MAX + 128];
  while (path.empty() && std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long start = 0;
    unsigned long end = 0;
    int path_at = 0;
    if (std::sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &start, &end, &path_at) != 2 || path_at == 0)
      continue;
    if (address < start || address >= end) continue;
    path = line + path_at;
    if (!path.empty() && path.back() == '\n') path.pop_back();
    break;
  }
  std::fclose(maps);
  return path;
}

}  // namespace stackpipe
