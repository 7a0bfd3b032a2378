// SPDX-License-Identifier: MIT
//
// DescriptionStore: what registrations say about their code besides where it is: texts, module and owner,
// tier, lines, inlined calls. Each distinct text is stored once. A registration that says none of these has
// no description: number 0.
//
// For the writer only, but for Read and Frames.
#ifndef STACKPIPE_CODE_MAP_DESCRIPTION_STORE_H_
#define STACKPIPE_CODE_MAP_DESCRIPTION_STORE_H_

#include <cstddef>
#include <cstdint>

#include "code_map/record_pool.h"
#include "code_map/text_store.h"
#include "stackpipe/code_map.h"

namespace stackpipe::internal {

struct Description {
  std::uint64_t module_id;
  std::uint64_t owner;
  std::uint32_t name_space, name, signature, source_file;  // texts
  std::uint32_t details;                                   // a text; see code_details.h
  std::uint32_t source_line;
  std::uint32_t tier;
  // Invariant: all fields above belong to the code of `id`, and hold their texts, as long as it is `id`; 0:
  // free. A writer stores it after them, and 0 before it gives anything up, both with release. Ids are not
  // used twice, so a reader that meets its id before and after it has read the rest has read what belongs to
  // it.
  CodeId id;
  // Neighbours in the list of the owner.
  std::uint32_t previous;
  std::uint32_t next;
};

class DescriptionStore {
 public:
  // False: out of memory, nothing has changed.
  bool Create(const CodeRegistration& code, CodeId id, std::uint32_t* index) noexcept;
  // The same for another id, and for what another store has. 0 stays 0.
  bool Copy(std::uint32_t from, CodeId id, std::uint32_t* index) noexcept;
  bool CopyFrom(const DescriptionStore& other, std::uint32_t from, CodeId id, std::uint32_t* index) noexcept;
  // Forgets it, and its texts if nobody else has them.
  void Destroy(std::uint32_t index) noexcept;

  // Set the fields of `*out` that are stored here, if `index` describes `id`. Any thread, no lock.
  bool Read(std::uint32_t index, CodeId id, CodeDescriptor* out) const noexcept;
  // See CodeMap::Frames. Likewise.
  std::size_t Frames(std::uint32_t index, CodeId id, std::uint32_t offset, CodeFrame* frames,
                     std::size_t max) const noexcept;

  Description& operator[](std::uint32_t index) noexcept { return pool_[index]; }
  std::uint64_t OwnerOf(std::uint32_t index) const noexcept { return index == 0 ? 0 : pool_[index].owner; }

  std::size_t bytes() const noexcept { return pool_.bytes(); }
  std::size_t text_bytes() const noexcept { return texts_.bytes(); }

 private:
  bool Add(const Description& fresh, std::uint32_t* index) noexcept;
  bool InternTexts(const CodeRegistration& code, Description* out) noexcept;
  bool InternDetails(const CodeRegistration& code, std::uint32_t* details) noexcept;
  bool InternDetailsOf(const DescriptionStore& other, std::uint32_t from, std::uint32_t* details) noexcept;
  bool InternBytes(std::string_view bytes, std::uint32_t* details) noexcept;
  void ReleaseTextsIn(std::string_view details) noexcept;
  void Release(const Description& description) noexcept;

  TextStore texts_;
  RecordPool<Description> pool_;
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_DESCRIPTION_STORE_H_
