// SPDX-License-Identifier: MIT
//
// What is told about modules (images) and domains when they come and go: owned snapshots, so that nothing
// here can point into a structure that its runtime has freed (rows C1 to C4).
#ifndef STACKPIPE_LIFECYCLE_H_
#define STACKPIPE_LIFECYCLE_H_

#include <cstdint>
#include <string>

namespace stackpipe {

// The values are written to traces (docs/formats/stackpipe-provider.md): never renumber.
enum class LifecyclePhase : std::uint8_t { kLoading = 0, kLoaded = 1, kUnloading = 2, kUnloaded = 3 };

struct ModuleSnapshot {
  std::uint64_t id = 0;           // unique for each load, never reused
  std::uint64_t assembly_id = 0;  // 0 = none
  std::string path = {};          // file name; empty = not known (yet)
  std::string native_path = {};   // the AOT image, if any
  std::string guid = {};          // as the runtime prints it; empty = not known
  std::string pdb_path = {};      // debug symbols; empty = not known
  std::uint8_t pdb_guid[16] = {};
  std::uint32_t pdb_age = 0;
  bool dynamic = false;  // made in memory, no file
  bool aot = false;      // has precompiled code
};

struct DomainSnapshot {
  std::uint64_t id = 0;  // unique for each domain, never reused
  std::string name;
};

}  // namespace stackpipe

#endif  // STACKPIPE_LIFECYCLE_H_
