// SPDX-License-Identifier: MIT
#include "images.h"

namespace stackpipe::mono {

namespace {

std::string Text(const char* text) { return text != nullptr ? text : ""; }

void Read(MonoImage* image, ModuleSnapshot* snapshot) {
  snapshot->path = Text(mono_image_get_filename(image));
  if (snapshot->path.empty()) snapshot->path = Text(mono_image_get_name(image));
  snapshot->guid = Text(mono_image_get_guid(image));
  snapshot->dynamic = mono_image_is_dynamic(image) != 0;
}

}  // namespace

ModuleSnapshot Images::Snapshot(LifecyclePhase phase, MonoImage* image) {
  const std::lock_guard lock(mutex_);
  if (phase == LifecyclePhase::kLoading) images_.erase(image);  // an address that was used before
  ModuleSnapshot& snapshot = images_[image];
  if (snapshot.id == 0) snapshot.id = next_id_++;
  // While it is loading its name and GUID are not there yet; once it is unloaded they are not there any more.
  if (phase == LifecyclePhase::kLoaded || phase == LifecyclePhase::kUnloading) Read(image, &snapshot);
  ModuleSnapshot out = snapshot;
  if (phase == LifecyclePhase::kUnloaded) images_.erase(image);
  return out;
}

void Images::Forget(MonoImage* image) {
  const std::lock_guard lock(mutex_);
  images_.erase(image);
}

std::uint64_t Images::Id(MonoImage* image) {
  const std::lock_guard lock(mutex_);
  ModuleSnapshot& snapshot = images_[image];
  if (snapshot.id == 0) snapshot.id = next_id_++;
  return snapshot.id;
}

void Images::NoteAot(MonoImage* image) {
  const std::lock_guard lock(mutex_);
  const auto it = images_.find(image);
  if (it != images_.end()) it->second.aot = true;
}

DomainSnapshot Domains::Snapshot(LifecyclePhase phase, MonoDomain* domain) {
  const std::lock_guard lock(mutex_);
  if (phase == LifecyclePhase::kLoading) domains_.erase(domain);
  DomainSnapshot& snapshot = domains_[domain];
  if (snapshot.id == 0) snapshot.id = next_id_++;
  DomainSnapshot out = snapshot;
  if (phase == LifecyclePhase::kUnloaded) domains_.erase(domain);
  return out;
}

void Domains::SetName(MonoDomain* domain, const char* name) {
  const std::lock_guard lock(mutex_);
  domains_[domain].name = Text(name);
  if (domains_[domain].id == 0) domains_[domain].id = next_id_++;
}

std::uint64_t Domains::Id(MonoDomain* domain) {
  if (domain == nullptr) return 0;
  const std::lock_guard lock(mutex_);
  DomainSnapshot& snapshot = domains_[domain];
  if (snapshot.id == 0) snapshot.id = next_id_++;
  return snapshot.id;
}

}  // namespace stackpipe::mono
