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
// A fork may stop a change at any instruction, so what a slot says makes sense at each one; see Slot.
//
// For the writer only; not thread-safe.
#ifndef STACKPIPE_CODE_MAP_ID_TABLE_H_
#define STACKPIPE_CODE_MAP_ID_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "code_map/block_pool.h"
#include "code_map/hash_index.h"
#include "stackpipe/code_map.h"
#include "stackpipe/result.h"

namespace stackpipe::internal {

class IdTable {
  struct Page;

 public:
  static constexpr std::uint64_t kEnd = std::uint64_t{1} << 32;

  // One id's part of a page. Its fields, of which a change stores each at once, with release:
  //
  //     high         0: unknown id. kGone: `low` is the number of its record in the history. Else the number
  //                  of the 4 GiB that hold the start, of which `low` has the rest.
  //     birth        0: the change that adds the code has not come to its end. Else, from 1, the epoch since
  //                  the page's base; bit 31: the change at hand retires it.
  //     description  see DescriptionStore
  //
  // Invariant: code counts as live at the map's epoch e exactly if its slot has a birth, not above e, and is
  // not gone, and the history has no record of its id with a death not above e. A change stores all else of a
  // slot before the birth, and the record in the history, complete, before it makes a slot gone; the store of
  // the map's epoch then commits both. Release is enough: it orders the stores of the one thread that makes
  // changes as the child of a fork sees them.
  class Slot {
   public:
    explicit operator bool() const noexcept { return page_ != nullptr; }  // false: unknown id
    bool gone() const noexcept;
    std::uint32_t gone_index() const noexcept;
    // All that follow: not gone.
    std::uintptr_t start() const noexcept;
    CodeEpoch birth() const noexcept;  // 0: none yet
    bool retiring() const noexcept;
    std::uint32_t description() const noexcept;

    void SetBirth(CodeEpoch epoch) noexcept;
    void SetRetiring(bool retiring) noexcept;
    void SetGone(std::uint32_t gone_index) noexcept;

   private:
    friend class IdTable;
    Slot() = default;
    Slot(const IdTable* table, Page* page, std::uint32_t at) : table_(table), page_(page), at_(at) {}
    const IdTable* table_ = nullptr;
    Page* page_ = nullptr;
    std::uint32_t at_ = 0;
  };

  IdTable() = default;
  ~IdTable();
  IdTable(const IdTable&) = delete;
  IdTable& operator=(const IdTable&) = delete;

  // Makes what Add needs for code of `id` at `start`, born at `base` or later. Errors: kOutOfMemory; kLimit
  // (code in too many different spans of 4 GiB). What was made stays, and does not show.
  Status Reserve(CodeId id, std::uintptr_t start, bool described, CodeEpoch base) noexcept;
  // Requires Reserve. The slot has no birth.
  void Add(CodeId id, std::uintptr_t start, std::uint32_t description) noexcept;
  void Erase(CodeId id) noexcept;
  // All ids below `end` were given out: no more of them are added.
  void SetEnd(std::uint64_t end) noexcept;

  Slot Find(CodeId id) const noexcept;
  // The first known id from `id` on, or kEnd.
  std::uint64_t NextFrom(std::uint64_t id) const noexcept;
  // Of the page of a known id: not above the birth of any id in it.
  CodeEpoch BaseOf(CodeId id) const noexcept;

  std::size_t bytes() const noexcept { return blocks_.bytes() + spans_.bytes() + span_bytes_; }

 private:
  static constexpr std::uint32_t kPageIds = 1024;
  static constexpr std::uint32_t kPageIdsMin = 16;
  static constexpr std::uint16_t kGone = 0xffff;
  static constexpr std::uint32_t kRetiring = 0x8000'0000;

  struct Page {
    CodeEpoch base;
    std::uint32_t capacity;  // kPageIds: each id has a slot. Else `count` of them, sorted, in offsets().
    std::uint32_t count;
    std::uint32_t known;  // slots that are not 0
    std::uint32_t reserved;
    std::uint32_t* descriptions;  // null: all are 0

    std::uint32_t* low() noexcept { return reinterpret_cast<std::uint32_t*>(this + 1); }
    std::uint32_t* birth() noexcept { return low() + capacity; }
    std::uint16_t* high() noexcept { return reinterpret_cast<std::uint16_t*>(birth() + capacity); }
    std::uint16_t* offsets() noexcept { return high() + capacity; }  // ids, modulo kPageIds
  };
  static std::size_t BytesOf(std::uint32_t capacity) {
    const std::size_t slot = 2 * sizeof(std::uint32_t) + sizeof(std::uint16_t);
    return sizeof(Page) + capacity * (slot + (capacity == kPageIds ? 0 : sizeof(std::uint16_t)));
  }

  template <typename T>
  static void Store(T* field, T value) noexcept {
    std::atomic_ref<T>(*field).store(value, std::memory_order_release);
  }

  Page* PageOf(std::uint64_t id) const noexcept {
    return pages_ == nullptr ? nullptr : pages_[id / kPageIds];
  }
  // Where `offset` is, or would be.
  static std::uint32_t PositionOf(Page* page, std::uint32_t offset) noexcept;
  std::uint32_t SpanOf(std::uintptr_t start) const noexcept;
  bool AddSpan(std::uintptr_t start) noexcept;
  Page* NewPage(std::uint32_t capacity, bool described) noexcept;
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
