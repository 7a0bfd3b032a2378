// SPDX-License-Identifier: MIT
//
// IdTable: what a map knows of each id: where its code starts, since when, and what describes it; or, once
// the code is gone, its record in the history. How long the code is, and of which kind, only the cells know
// while it lives.
//
// Ids count up and are never used again, so a slot's place is its id's: pages of 1024 slots of 10 bytes. A
// page all whose ids were given out, and of which few are still known, is replaced by a smaller one that
// lists them.
//
// For the writer only, but for Find.
#ifndef STACKPIPE_CODE_MAP_ID_TABLE_H_
#define STACKPIPE_CODE_MAP_ID_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "code_map/atomic_word.h"
#include "code_map/block_pool.h"
#include "code_map/hash_index.h"
#include "stackpipe/code_map.h"
#include "stackpipe/result.h"

namespace stackpipe::internal {

class IdTable {
 public:
  static constexpr std::uint64_t kEnd = std::uint64_t{1} << 32;

  // What is known of one id, copied out.
  struct Entry {
    std::uint32_t gone_index = 0;  // not 0: its record in the history, which knows the rest
    std::uintptr_t start = 0;
    CodeEpoch birth = 0;  // 0: the change that adds the code has not come to its end
    std::uint32_t description = 0;
  };

  IdTable() = default;
  ~IdTable();
  IdTable(const IdTable&) = delete;
  IdTable& operator=(const IdTable&) = delete;

  // Makes what Add needs for code of `id` at `start`, born at `base` or later. Errors: kOutOfMemory; kLimit
  // (code in too many different spans of 4 GiB). What was made stays, and does not show.
  Status Reserve(CodeId id, std::uintptr_t start, bool described, CodeEpoch base) noexcept;
  // Requires Reserve. The code has no birth.
  void Add(CodeId id, std::uintptr_t start, std::uint32_t description) noexcept;
  void SetBirth(CodeId id, CodeEpoch epoch) noexcept;  // takes back SetGone, too
  void SetGone(CodeId id, std::uint32_t gone_index) noexcept;
  void Erase(CodeId id) noexcept;
  // All ids below `end` were given out: no more of them are added.
  void SetEnd(std::uint64_t end) noexcept;

  // False: unknown id. Any thread, no lock; wait-free, since a page is replaced four times at most.
  bool Find(CodeId id, Entry* out) const noexcept;
  // The first known id from `id` on, or kEnd.
  std::uint64_t NextFrom(std::uint64_t id) const noexcept;
  // Of the page of a known id: not above the birth of any id in it.
  CodeEpoch BaseOf(CodeId id) const noexcept;

  std::size_t bytes() const noexcept { return blocks_.bytes() + spans_.bytes() + span_bytes_; }

 private:
  static constexpr std::uint32_t kPageIds = 1024;
  static constexpr std::uint32_t kPageIdsMin = 16;
  static constexpr std::uint32_t kGone = 0x8000'0000;

  // What was a page once stays one of the same capacity (BlockPool: each size of block is that of pages of
  // one capacity, or of their descriptions), so a reader may look at it at any time; afterwards it checks
  // that the page is still its id's. The arrays behind it, by slot:
  //
  //     low, high    Where the code starts: the number of the 4 GiB span, and the rest. Number 0: unknown id.
  //     state        0: the change that adds the code has not come to its end. kGone and a number: the record
  //     in
  //                  the history. Else, from 1, the epoch of the birth since the page's base.
  //
  // Invariant: code counts as live at the map's epoch e exactly if its state is a birth not above e, or a
  // record in the history with a death above e. A change stores all else of a slot before the state, and the
  // record, complete, before the state that names it, with release; the store of the map's epoch commits
  // them. A fork may stop it at any instruction: release is enough for what the child sees, it orders the
  // stores of the one thread that makes changes.
  struct Page {
    CodeEpoch base;
    std::uint32_t capacity;  // kPageIds: each id has a slot. Else `count` of them, sorted, in offsets().
    std::uint32_t count;
    std::uint32_t known;  // writer: slots that are not 0
    std::uint32_t reserved;
    std::uint32_t* descriptions;  // null: all are 0

    std::uint32_t* low() noexcept { return reinterpret_cast<std::uint32_t*>(this + 1); }
    std::uint32_t* state() noexcept { return low() + capacity; }
    std::uint16_t* high() noexcept { return reinterpret_cast<std::uint16_t*>(state() + capacity); }
    std::uint16_t* offsets() noexcept { return high() + capacity; }  // ids, modulo kPageIds
  };
  static std::size_t BytesOf(std::uint32_t capacity) {
    const std::size_t slot = 2 * sizeof(std::uint32_t) + sizeof(std::uint16_t);
    return sizeof(Page) + capacity * (slot + (capacity == kPageIds ? 0 : sizeof(std::uint16_t)));
  }

  Page* PageOf(std::uint64_t id) const noexcept {
    Page** const pages = Acquire(pages_);
    return pages == nullptr ? nullptr : Acquire(pages[id / kPageIds]);
  }
  // Where the slot of `offset` is, or the next one.
  static std::uint32_t PositionOf(Page* page, std::uint32_t offset) noexcept;
  std::uint32_t* StateOf(CodeId id) noexcept;
  std::uint32_t SpanOf(std::uintptr_t start) const noexcept;
  bool AddSpan(std::uintptr_t start) noexcept;
  static void Clear(void* block, std::size_t bytes) noexcept;
  std::uint32_t* NewDescriptions(std::uint32_t capacity) noexcept;
  Page* NewPage(std::uint32_t capacity, CodeEpoch base, bool described) noexcept;
  void FreePage(Page* page) noexcept;
  void Tidy(std::uint64_t page_number) noexcept;

  // One for each kPageIds ids, committed as they are touched; null: none of them is known. Stored with
  // release, the page complete.
  Page** pages_ = nullptr;
  BlockPool blocks_;
  std::uint64_t end_ = 1;
  std::uint64_t reserved_end_ = 1;  // no id from here on is known

  // The spans of 4 GiB that hold code, numbered from 1: the upper half of their addresses, and the way back.
  std::uint32_t* span_high_ = nullptr;
  std::uint32_t span_count_ = 0;
  std::size_t span_bytes_ = 0;
  HashIndex spans_;
  mutable std::uint32_t last_span_ = 0;  // asked for
};

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_ID_TABLE_H_
