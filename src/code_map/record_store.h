// SPDX-License-Identifier: MIT
//
// RecordStore: what a map knows about each registration that it keeps: bounds, epochs, texts. Records are
// found by the registration's id and addressed by a number that is used again after the record is forgotten.
//
// The records are the truth of the map: all else (cells, indexes, lists) can be made from them, which is what
// a child of fork does when its parent was in the middle of a change. So what says whether a record counts is
// stored in an order that makes sense at every instruction; see Record::birth.
//
// For the writer only; not thread-safe.
#ifndef STACKPIPE_CODE_MAP_RECORD_STORE_H_
#define STACKPIPE_CODE_MAP_RECORD_STORE_H_

#include <cstddef>
#include <cstdint>

#include "code_map/atomic_word.h"
#include "code_map/hash_index.h"
#include "code_map/text_store.h"
#include "stackpipe/code_map.h"
#include "stackpipe/result.h"

namespace stackpipe::internal {

// Number of a record, from 1; 0 is none.
using RecordIndex = std::uint32_t;

// One cache line.
struct Record {
  std::uint64_t start;
  std::uint64_t size;
  // Invariant (a change's stores are release, which is enough for what a fork's child sees: it orders the
  // stores of the one thread that makes changes): the record counts as registered at epoch e exactly if 0 <
  // birth <= e, and as gone if also 0 < death <= e, e being the map's epoch. A change stores births and
  // deaths of e + 1 after all other fields, and the map's epoch after all of them: that store commits the
  // change as a whole. A free record has birth 0.
  AtomicWord birth;
  AtomicWord death;
  CodeId id;
  std::uint32_t origin;  // in the store of origins
  std::uint32_t name_space, name, signature;
  std::uint32_t source_line;
  // Free: the next free record. Live: neighbours in the list of the owner. Gone: newer and older one in the
  // chain of the history.
  RecordIndex links[2];
};
static_assert(sizeof(Record) == 64);

// What many registrations have in common.
struct CodeOrigin {
  std::uint64_t module_id;
  std::uint64_t owner;
  std::uint32_t source_file;
  std::uint32_t kind;
};
static_assert(sizeof(CodeOrigin) == 24, "compared bytewise: no padding");

class RecordStore {
 public:
  RecordStore() = default;
  ~RecordStore();
  RecordStore(const RecordStore&) = delete;
  RecordStore& operator=(const RecordStore&) = delete;

  // Makes a record with the description of `code`, found by `id`; its birth is 0 and it is in no list.
  // Errors: kOutOfMemory, kLimit; nothing has changed then.
  Result<RecordIndex> Create(const CodeRegistration& code, CodeId id) noexcept;
  // Forgets it, and its texts if nobody else has them.
  void Destroy(RecordIndex index) noexcept;

  Record& operator[](RecordIndex index) noexcept { return PageOf(index)->records[index % kPageRecords]; }
  const Record& operator[](RecordIndex index) const noexcept {
    return PageOf(index)->records[index % kPageRecords];
  }
  // One more link: of live records in a list of the change that is under way, of gone ones to the next gone.
  RecordIndex& next(RecordIndex index) noexcept { return PageOf(index)->next[index % kPageRecords]; }

  // Makes Create of `id` wait less for memory; called while there is other work to do.
  void Prefetch(CodeId id) const noexcept { ids_.Prefetch(id); }
  RecordIndex Find(CodeId id) const noexcept {
    return ids_.Find(id, [](std::uint32_t) { return true; });
  }
  CodeOrigin OriginOf(RecordIndex index) const noexcept;
  CodeDescriptor Describe(RecordIndex index) const noexcept;

  // Records have numbers below this.
  RecordIndex end() const noexcept { return used_; }
  // Bytes of records, used or free, and of the index by id; and of texts.
  std::size_t bytes() const noexcept { return used_ * (sizeof(Record) + sizeof(RecordIndex)) + ids_.bytes(); }
  std::size_t text_bytes() const noexcept { return texts_.bytes() + origins_.bytes(); }

 private:
  static constexpr std::uint32_t kPageRecords = 1 << 15;
  static constexpr std::uint32_t kPagesMax = 1 << 11;
  struct Page {
    Record records[kPageRecords];
    RecordIndex next[kPageRecords];
  };

  Page* PageOf(RecordIndex index) const noexcept { return pages_[index / kPageRecords]; }
  Status InternTexts(const CodeRegistration& code, Record* record) noexcept;
  void ReleaseTexts(const Record& record) noexcept;
  void ReleaseOrigin(std::uint32_t origin) noexcept;

  TextStore texts_;
  TextStore origins_;  // CodeOrigins, as bytes
  HashIndex ids_;      // CodeId -> RecordIndex
  Page** pages_ = nullptr;
  std::uint32_t pages_count_ = 0;
  RecordIndex used_ = 1;
  RecordIndex free_ = 0;
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_RECORD_STORE_H_
