// SPDX-License-Identifier: MIT
//
// Images and domains of a Mono process: gives each an id that is never reused (Mono reuses their addresses),
// and keeps the snapshot that an image's last event needs, since Mono's own structure is half freed by then.
#ifndef STACKPIPE_ADAPTERS_MONO_IMAGES_H_
#define STACKPIPE_ADAPTERS_MONO_IMAGES_H_

#include <mono/metadata/appdomain.h>
#include <mono/metadata/image.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "stackpipe/lifecycle.h"

namespace stackpipe::mono {

class Images {
 public:
  // The snapshot for an event of `image`. kLoading gives it an id; kLoaded and kUnloading read the image;
  // kUnloaded does not touch it: the snapshot is the one taken at kUnloading.
  ModuleSnapshot Snapshot(LifecyclePhase phase, MonoImage* image);
  // The load of `image` failed.
  void Forget(MonoImage* image);
  // The id of a loaded image; gives one to an image that was there before anybody listened.
  std::uint64_t Id(MonoImage* image);
  // The image has precompiled code.
  void NoteAot(MonoImage* image);

 private:
  std::mutex mutex_;  // guards images_
  std::unordered_map<MonoImage*, ModuleSnapshot> images_;
  std::uint64_t next_id_ = 1;
};

class Domains {
 public:
  // The snapshot for an event of `domain`; kLoading gives it a new id, kUnloaded forgets it.
  DomainSnapshot Snapshot(LifecyclePhase phase, MonoDomain* domain);
  void SetName(MonoDomain* domain, const char* name);
  // The id of a domain; 0 for none.
  std::uint64_t Id(MonoDomain* domain);

 private:
  std::mutex mutex_;  // guards domains_
  std::unordered_map<MonoDomain*, DomainSnapshot> domains_;
  std::uint64_t next_id_ = 1;
};

}  // namespace stackpipe::mono

#endif  // STACKPIPE_ADAPTERS_MONO_IMAGES_H_
