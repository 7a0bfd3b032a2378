// SPDX-License-Identifier: MIT
#include "code_map/record_store.h"

#include <cstring>

#include "code_map/page_memory.h"

namespace stackpipe::internal {

RecordStore::~RecordStore() {
  for (std::uint32_t i = 0; i < pages_count_; ++i) FreePages(pages_[i], sizeof(Page));
  FreePages(pages_, kPagesMax * sizeof(Page*));
}

Status RecordStore::InternTexts(const CodeRegistration& code, Record* record) noexcept {
  CodeOrigin origin{code.module_id, code.owner, 0, static_cast<std::uint32_t>(code.kind)};
  if (texts_.Intern(code.name_space, &record->name_space) && texts_.Intern(code.name, &record->name) &&
      texts_.Intern(code.signature, &record->signature) &&
      texts_.Intern(code.source_file, &origin.source_file)) {
    if (origins_.Intern({reinterpret_cast<const char*>(&origin), sizeof origin}, &record->origin)) {
      // An origin holds its file once, however many records hold the origin.
      if (!origins_.HeldOnce(record->origin)) texts_.Release(origin.source_file);
      return {};
    }
    texts_.Release(origin.source_file);
  }
  ReleaseTexts(*record);
  return {StatusCode::kOutOfMemory, "storing the names of code"};
}

void RecordStore::ReleaseTexts(const Record& record) noexcept {
  texts_.Release(record.name_space);
  texts_.Release(record.name);
  texts_.Release(record.signature);
  ReleaseOrigin(record.origin);
}

void RecordStore::ReleaseOrigin(std::uint32_t handle) noexcept {
  if (origins_.HeldOnce(handle)) {
    CodeOrigin origin;
    std::memcpy(&origin, origins_.View(handle).data(), sizeof origin);
    texts_.Release(origin.source_file);
  }
  origins_.Release(handle);
}

Result<RecordIndex> RecordStore::Create(const CodeRegistration& code, CodeId id) noexcept {
  const Status out_of_memory{StatusCode::kOutOfMemory, "registering code"};
  if (AllocationFailsForTest() || !ids_.Reserve(1)) return out_of_memory;
  RecordIndex index = free_;
  if (index == 0) {
    index = used_;
    if (index / kPageRecords == pages_count_) {
      if (pages_count_ == kPagesMax) return Status{StatusCode::kLimit, "registering code"};
      if (pages_ == nullptr) pages_ = static_cast<Page**>(AllocatePages(kPagesMax * sizeof(Page*)));
      if (pages_ == nullptr) return out_of_memory;
      // A small map has the first page alone, which is committed as it is used.
      auto* page = static_cast<Page*>(pages_count_ == 0 ? AllocatePages(sizeof(Page))
                                                        : AllocateDensePages(sizeof(Page)));
      if (page == nullptr) return out_of_memory;
      pages_[pages_count_] = page;
      ++pages_count_;
    }
  }
  Record fresh = {};
  fresh.start = code.start;
  fresh.size = code.size;
  fresh.id = id;
  fresh.source_line = code.source_line;
  if (const Status status = InternTexts(code, &fresh); !status.ok()) return status;
  if (free_ == 0) {
    ++used_;
  } else {
    free_ = (*this)[index].links[0];
  }
  (*this)[index] = fresh;
  next(index) = 0;
  ids_.Insert(id, index);
  return index;
}

void RecordStore::Destroy(RecordIndex index) noexcept {
  Record& record = (*this)[index];
  record.birth.Store(0, std::memory_order_release);  // first: from here on the record does not count
  ids_.Erase(record.id, index);
  ReleaseTexts(record);
  record.death.Store(0, std::memory_order_release);
  record.links[0] = free_;
  free_ = index;
}

CodeOrigin RecordStore::OriginOf(RecordIndex index) const noexcept {
  CodeOrigin origin;
  std::memcpy(&origin, origins_.View((*this)[index].origin).data(), sizeof origin);
  return origin;
}

CodeDescriptor RecordStore::Describe(RecordIndex index) const noexcept {
  const Record& record = (*this)[index];
  const CodeOrigin origin = OriginOf(index);
  CodeDescriptor out;
  out.start = record.start;
  out.size = record.size;
  out.kind = static_cast<CodeKind>(origin.kind);
  out.module_id = origin.module_id;
  out.owner = origin.owner;
  out.name_space = texts_.View(record.name_space);
  out.name = texts_.View(record.name);
  out.signature = texts_.View(record.signature);
  out.source_file = texts_.View(origin.source_file);
  out.source_line = record.source_line;
  out.birth = record.birth.Load();
  out.death = record.death.Load();
  return out;
}

}  // namespace stackpipe::internal
