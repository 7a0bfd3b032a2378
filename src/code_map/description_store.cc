// SPDX-License-Identifier: MIT
#include "code_map/description_store.h"

#include <cstring>

#include "code_map/page_memory.h"

namespace stackpipe::internal {

bool DescriptionStore::Create(const CodeRegistration& code, CodeId id, std::uint32_t* index) noexcept {
  *index = 0;
  const bool any = code.module_id != 0 || code.owner != 0 || code.source_line != 0 ||
                   !code.name_space.empty() || !code.name.empty() || !code.signature.empty() ||
                   !code.source_file.empty();
  if (!any) return true;
  if (AllocationFailsForTest() || !pool_.Reserve(pool_.count() + 1)) return false;
  Description fresh = {};
  fresh.id = id;
  fresh.source_line = code.source_line;
  if (!Intern(code, &fresh)) return false;
  *index = pool_.Allocate();
  pool_[*index] = fresh;
  return true;
}

bool DescriptionStore::Intern(const CodeRegistration& code, Description* out) noexcept {
  std::uint32_t file = 0;
  if (texts_.Intern(code.name_space, &out->name_space) && texts_.Intern(code.name, &out->name) &&
      texts_.Intern(code.signature, &out->signature) && texts_.Intern(code.source_file, &file)) {
    const Origin origin{code.module_id, code.owner, file};
    if (origins_.Intern({reinterpret_cast<const char*>(&origin), sizeof origin}, &out->origin)) {
      // An origin holds its file once, however many descriptions hold the origin.
      if (!origins_.HeldOnce(out->origin)) texts_.Release(file);
      return true;
    }
    texts_.Release(file);
  }
  Release(*out);
  return false;
}

void DescriptionStore::Release(const Description& description) noexcept {
  texts_.Release(description.name_space);
  texts_.Release(description.name);
  texts_.Release(description.signature);
  ReleaseOrigin(description.origin);
}

void DescriptionStore::ReleaseOrigin(std::uint32_t origin) noexcept {
  if (origins_.HeldOnce(origin)) texts_.Release(static_cast<std::uint32_t>(View(origin).source_file));
  origins_.Release(origin);
}

void DescriptionStore::Destroy(std::uint32_t index) noexcept {
  if (index == 0) return;
  Release(pool_[index]);
  pool_.Free(index);
}

DescriptionStore::Origin DescriptionStore::View(std::uint32_t handle) const noexcept {
  Origin origin;
  if (handle != 0) std::memcpy(&origin, origins_.View(handle).data(), sizeof origin);
  return origin;
}

DescriptionStore::Origin DescriptionStore::OriginOf(std::uint32_t index) const noexcept {
  return index == 0 ? Origin{} : View(pool_[index].origin);
}

void DescriptionStore::Describe(std::uint32_t index, CodeDescriptor* out) const noexcept {
  if (index == 0) return;
  const Description& description = pool_[index];
  const Origin origin = View(description.origin);
  out->module_id = origin.module_id;
  out->owner = origin.owner;
  out->name_space = texts_.View(description.name_space);
  out->name = texts_.View(description.name);
  out->signature = texts_.View(description.signature);
  out->source_file = texts_.View(static_cast<std::uint32_t>(origin.source_file));
  out->source_line = description.source_line;
}

}  // namespace stackpipe::internal
