// SPDX-License-Identifier: MIT
//
// DescriptionStore: the texts of registrations, their modules and owners. A registration that says none of
// these has no description: number 0. For the writer only; not thread-safe.
#ifndef STACKPIPE_CODE_MAP_DESCRIPTION_STORE_H_
#define STACKPIPE_CODE_MAP_DESCRIPTION_STORE_H_

#include <cstddef>
#include <cstdint>

#include "code_map/record_pool.h"
#include "code_map/text_store.h"
#include "stackpipe/code_map.h"

namespace stackpipe::internal {

struct Description {
  std::uint32_t origin;  // in the store of origins
  std::uint32_t name_space, name, signature;
  std::uint32_t source_line;
  CodeId id;
  // Neighbours in the list of the owner.
  std::uint32_t previous;
  std::uint32_t next;
};

class DescriptionStore {
 public:
  // False: out of memory, nothing has changed.
  bool Create(const CodeRegistration& code, CodeId id, std::uint32_t* index) noexcept;
  // Forgets it, and its texts if nobody else has them.
  void Destroy(std::uint32_t index) noexcept;

  Description& operator[](std::uint32_t index) noexcept { return pool_[index]; }
  std::uint64_t OwnerOf(std::uint32_t index) const noexcept { return OriginOf(index).owner; }
  // Sets the fields of `*out` that are stored here.
  void Describe(std::uint32_t index, CodeDescriptor* out) const noexcept;

  std::size_t bytes() const noexcept { return pool_.bytes(); }
  std::size_t text_bytes() const noexcept { return texts_.bytes() + origins_.bytes(); }

 private:
  // What many registrations have in common.
  struct Origin {
    std::uint64_t module_id = 0;
    std::uint64_t owner = 0;
    std::uint64_t source_file = 0;  // in the store of texts
  };
  static_assert(sizeof(Origin) == 24, "compared bytewise: no padding");

  Origin OriginOf(std::uint32_t index) const noexcept;
  Origin View(std::uint32_t origin) const noexcept;
  bool Intern(const CodeRegistration& code, Description* out) noexcept;
  void Release(const Description& description) noexcept;
  void ReleaseOrigin(std::uint32_t origin) noexcept;

  TextStore texts_;
  TextStore origins_;  // Origins, as bytes
  RecordPool<Description> pool_;
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_DESCRIPTION_STORE_H_
