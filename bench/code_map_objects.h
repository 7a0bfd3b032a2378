// SPDX-License-Identifier: MIT
//
// What the C library and libgcc offer to find the owner of a pc, over as many copies of a small shared
// object, or registered unwind tables, as the map beside them has ranges.
#ifndef STACKPIPE_BENCH_CODE_MAP_OBJECTS_H_
#define STACKPIPE_BENCH_CODE_MAP_OBJECTS_H_

#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "stackpipe/code_map.h"

// libgcc's; for unwind tables that are not in loaded objects. Its header is not installed.
extern "C" {
void __register_frame(void* table);
void __deregister_frame(void* table);
struct dwarf_eh_bases {
  void* text_base;
  void* data_base;
  void* function;
};
const void* _Unwind_Find_FDE(void* pc, dwarf_eh_bases* bases);
}

namespace stackpipe::bench {

// Copies of the object, loaded. They stay: unloading them takes longer than the benchmark.
class LoadedObjects {
 public:
  static const std::vector<std::uintptr_t>& Functions(std::size_t count) {
    static std::vector<std::uintptr_t> functions;
    const std::filesystem::path directory =
        std::filesystem::temp_directory_path() / ("stackpipe-bench-" + std::to_string(getpid()));
    std::error_code error;
    std::filesystem::create_directory(directory, error);
    while (functions.size() < count) {
      const std::filesystem::path copy = directory / ("object" + std::to_string(functions.size()) + ".so");
      std::filesystem::copy_file(STACKPIPE_BENCH_OBJECT, copy, error);
      void* object = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (object == nullptr) break;
      functions.push_back(reinterpret_cast<std::uintptr_t>(dlsym(object, "stackpipe_bench_object")));
    }
    std::filesystem::remove_all(directory, error);
    return functions;
  }
};

class DlFindObject {
 public:
  explicit DlFindObject(std::size_t count) : functions_(LoadedObjects::Functions(count)) {}
  std::uintptr_t Pc(std::size_t i) const { return functions_[i]; }
  bool Lookup(std::size_t i) const {
    dl_find_object found;
    if (_dl_find_object(reinterpret_cast<void*>(functions_[i]), &found) != 0) return false;
    benchmark::DoNotOptimize(found);
    // Objects do not overlap: no other holds this pc.
    const auto pc = reinterpret_cast<std::byte*>(functions_[i]);
    return found.dlfo_map_start <= pc && pc < found.dlfo_map_end;
  }

 private:
  const std::vector<std::uintptr_t>& functions_;
};

class ObjectsInStackpipe {
 public:
  explicit ObjectsInStackpipe(std::size_t count) : functions_(LoadedObjects::Functions(count)) {
    for (std::size_t i = 0; i < count; ++i) {
      CodeRegistration code;
      code.start = functions_[i] & ~std::uintptr_t{4095};
      code.size = 4096;
      (void)map_.Register(code);
    }
  }
  bool Lookup(std::size_t i) const {
    CodeHit hit;
    const bool found = map_.Lookup(functions_[i], &hit);
    benchmark::DoNotOptimize(hit);
    return found && hit.id == i + 1;
  }

 private:
  const std::vector<std::uintptr_t>& functions_;
  CodeMap map_;
};

// As many unwind tables of one function each, made by hand and registered. libgcc 12 keeps them in a list
// under a mutex (13 and later: a b-tree).
class LibgccFde {
 public:
  explicit LibgccFde(std::size_t count) : tables_(count) {
    code_ = static_cast<std::byte*>(
        mmap(nullptr, count * kCodeBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (std::size_t i = 0; i < count; ++i) {
      tables_[i] = std::make_unique<Table>();
      Fill(tables_[i].get(), code_ + i * kCodeBytes);
      __register_frame(tables_[i].get());
    }
  }
  ~LibgccFde() {
    for (const auto& table : tables_) __deregister_frame(table.get());
    munmap(code_, tables_.size() * kCodeBytes);
  }
  bool Lookup(std::size_t i) const {
    dwarf_eh_bases bases;
    const void* found = _Unwind_Find_FDE(code_ + i * kCodeBytes + 8, &bases);
    return found == &tables_[i]->fde;
  }

 private:
  static constexpr std::size_t kCodeBytes = 256;
  // One CIE with absolute pointers, one FDE, and the mark of the end.
  struct Table {
    struct {
      std::uint32_t length = 12;
      std::uint32_t id = 0;
      std::uint8_t version = 1;
      char augmentation = 0;
      std::uint8_t code_align = 1, data_align = 0x78, return_register = 16;
      std::uint8_t padding[3] = {};
    } cie;
    struct __attribute__((packed)) {
      std::uint32_t length = 20;
      std::uint32_t cie_offset = 0;
      std::uint64_t start = 0;
      std::uint64_t size = 0;
    } fde;
    std::uint32_t end = 0;
  };
  static void Fill(Table* table, const std::byte* code) {
    table->fde.cie_offset = sizeof table->cie + 4;
    table->fde.start = reinterpret_cast<std::uint64_t>(code);
    table->fde.size = kCodeBytes;
  }

  std::vector<std::unique_ptr<Table>> tables_;
  std::byte* code_;
};

template <typename Map>
void BM_LookupObject(benchmark::State& state, std::size_t count) {
  const Map map(count);
  std::vector<std::uint32_t> queries;
  std::mt19937 random(3);
  for (int i = 0; i < 65536; ++i) queries.push_back(static_cast<std::uint32_t>(random() % count));
  std::size_t i = 0;
  std::size_t wrong = 0;
  for (auto _ : state) {
    wrong += map.Lookup(queries[i]) ? 0 : 1;
    i = (i + 1) & 65535;
  }
  if (wrong != 0) state.SkipWithError("wrong answers");
}

}  // namespace stackpipe::bench

#endif  // STACKPIPE_BENCH_CODE_MAP_OBJECTS_H_
