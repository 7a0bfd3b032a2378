// SPDX-License-Identifier: MIT
//
// CodeMap: the process-wide map from program counter to the code that owns it, live and historical.
//
// A runtime registers each piece of code before it first runs, and unregisters it after its last frame has
// left and before the memory is reused. Anyone may ask at any moment, in a signal handler too, which code
// owns a pc, and anyone may ask later which code owned it at the epoch that a sample carries.
//
//     CodeMap map;
//     Result<CodeId> id = map.Register({.start = begin, .size = size, .kind = CodeKind::kJit, .name = "f"});
//     CodeHit hit;
//     if (map.Lookup(pc, &hit)) ...  // hit.id, hit.start, hit.kind
//
// Why a lookup may be asked at any moment and its answer used: a pc that is looked up is on some stack, so
// its code was registered before and cannot go away meanwhile. Who keeps the answer for later keeps the epoch
// with it (LookupAt).
//
// Conventions: "AS-safe" means async-signal-safe and lock-free: no lock, no allocation, errno kept, bounded
// steps. All other functions are MT-safe, may allocate (with mmap, never malloc) and take the writers' lock,
// which readers never take; call them in ordinary code only. After fork the child may call all of them, even
// if a thread of the parent was in the middle of one: the child's map is as if that call had not begun.
#ifndef STACKPIPE_CODE_MAP_H_
#define STACKPIPE_CODE_MAP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "stackpipe/result.h"

namespace stackpipe {

// Names one registration for the life of the map; never reused. 0 is "no code".
using CodeId = std::uint32_t;

// Counts changes of the map. A sample stores the epoch at which its stack was true.
using CodeEpoch = std::uint64_t;

// What a frame is. The values are written to traces (docs/formats/stackpipe-provider.md): never renumber.
enum class CodeKind : std::uint8_t {
  kUnknown = 0,
  kNative = 1,
  kJit = 2,
  kAot = 3,
  kInterpreter = 4,
  kWrapper = 5,
  kTrampoline = 6,
  kKernel = 7,
};

// From `offset` on, up to the next entry, code comes from `line`: of the innermost function that is inlined
// there, or of the method itself.
struct CodeLine {
  std::uint32_t offset = 0;  // from the start of the code
  std::uint32_t line = 0;
};

// A call that was inlined.
struct CodeInline {
  std::uint32_t start = 0;  // offset of what came from it
  std::uint32_t size = 0;
  std::uint32_t depth = 0;      // 0: called by the method itself; 1: by an inlined function; at most 63
  std::uint32_t call_line = 0;  // where it is called, in the caller's file; 0 = unknown
  std::string_view name_space = {}, name = {}, source_file = {};  // of what was inlined
};

// One function that an address is in.
struct CodeFrame {
  std::string_view name_space, name, source_file;
  std::uint32_t line = 0;  // 0 = unknown
};

// What is told about a piece of code when it is registered. All of it is copied.
struct CodeRegistration {
  std::uintptr_t start = 0;
  std::size_t size = 0;
  CodeKind kind = CodeKind::kUnknown;
  std::uint64_t module_id = 0;  // the embedder's id of the module, 0 = none
  std::uint64_t owner = 0;      // groups code that goes away together (a domain, a chunk owner), 0 = none
  std::string_view name_space = {};          // "System.Collections.Generic.List`1"
  std::string_view name = {};                // "Add"
  std::string_view signature = {};           // "void (int)"
  std::string_view source_file = {};         // empty = unknown
  std::uint32_t source_line = 0;             // 0 = unknown
  std::uint8_t tier = 0;                     // the runtime's number of it
  std::span<const CodeLine> lines = {};      // in the order of their offsets
  std::span<const CodeInline> inlines = {};  // in preorder: each is followed by those inside it
};

// The answer of a lookup, copied out: it stays valid whatever happens to the code afterwards.
struct CodeHit {
  CodeId id = 0;
  CodeKind kind = CodeKind::kUnknown;
  std::uintptr_t start = 0;
  std::size_t size = 0;
};

// What is stored of a CodeRegistration, but for lines and inlined calls (see Frames). The texts live as long
// as the map keeps the id (see TrimHistory).
struct CodeDescriptor {
  std::uintptr_t start = 0;
  std::size_t size = 0;
  CodeKind kind = CodeKind::kUnknown;
  std::uint64_t module_id = 0;
  std::uint64_t owner = 0;
  std::string_view name_space, name, signature, source_file;
  std::uint32_t source_line = 0;
  std::uint8_t tier = 0;
  CodeEpoch birth = 0;  // first epoch at which the code was there
  CodeEpoch death = 0;  // first epoch at which it was gone; 0 = still there
};

// What a lookup found out.
enum class LookupResult : std::uint8_t {
  kNone,      // no code owns the pc
  kFound,     //
  kDeferred,  // the map changed under each of a bounded number of attempts: ask LookupAt later
};

// Is told of each registration that a change ended. Called under the writers' lock: it must not call the map.
struct CodeRetiredVisitor {
  void (*visit)(void* context, CodeId id, const CodeDescriptor& code) = nullptr;
  void* context = nullptr;
};

// Bytes of the map's memory, used or kept for later.
struct CodeMapMemory {
  std::size_t lookup = 0;       // what lookups go through
  std::size_t descriptors = 0;  // bounds, epochs and indexes of live code and of history
  std::size_t texts = 0;        // names
};

namespace internal {
struct RadixRoot;
}

class CodeMap {
 public:
  // At most so many registrations that are gone are remembered: then the oldest is forgotten. The answer for
  // it is "none" (unknown), never another code.
  static constexpr std::size_t kHistoryMax = std::size_t{1} << 20;
  // No single range may be larger.
  static constexpr std::size_t kRangeBytesMax = std::size_t{1} << 36;

  CodeMap();
  ~CodeMap();
  CodeMap(const CodeMap&) = delete;
  CodeMap& operator=(const CodeMap&) = delete;

  // Registers [start, start + size).
  // Errors: kInvalidArgument (size 0, the end wraps, lines or inlined calls not in their order), kOverlap
  // (some of it is registered), kOutOfMemory, kLimit (kRangeBytesMax, 2^32 registrations ever, 2^26 at a
  // time, code in 65,534 different spans of 4 GiB). After an error the map is unchanged.
  Result<CodeId> Register(const CodeRegistration& code);

  // The same for runtimes that never say that code is gone: whatever overlaps `code` is retired in the same
  // step, and `retired` (may be null) told.
  Result<CodeId> RegisterOver(const CodeRegistration& code, const CodeRetiredVisitor* retired = nullptr);

  // Registers all of `codes` in one step (one epoch), or none. `ids`, if not null, receives as many ids.
  // Errors as of Register; kOverlap also if they overlap each other.
  Status RegisterBatch(const CodeRegistration* codes, std::size_t count, CodeId* ids);

  // The code of `id` now lies at `new_start`, with the same size and description. Returns the new id; the old
  // id is retired as if unregistered. Errors: kNotFound, kOverlap (with other code), kInvalidArgument,
  // kOutOfMemory.
  Result<CodeId> Move(CodeId id, std::uintptr_t new_start);

  // The code of `id` is gone. It stays known to LookupAt for earlier epochs, until TrimHistory.
  // Errors: kNotFound (never registered, or unregistered before).
  Status Unregister(CodeId id);

  // Retires all of `ids` in one step, or none. Errors: kNotFound (one of them is not live, or is there
  // twice).
  Status UnregisterBatch(const CodeId* ids, std::size_t count);

  // Retires all code of `owner` (not 0) in one step; returns how many registrations that were. `retired` may
  // be null. Never fails.
  std::size_t UnregisterOwner(std::uint64_t owner, const CodeRetiredVisitor* retired = nullptr);

  // The same for all code that shares an address with [start, start + size).
  std::size_t UnregisterRange(std::uintptr_t start, std::size_t size,
                              const CodeRetiredVisitor* retired = nullptr);

  // Finds the code that owns `pc` now; `*out` is set only with kFound. AS-safe; any thread, registered
  // anywhere or not, at any time of its life. Wait-free: fewer than 30 loads for an attempt, at most 8
  // attempts, and a second one only if a writer replaced the very 32 KiB of the map that hold `pc` meanwhile.
  // Writes nothing but `*out`.
  LookupResult Find(std::uintptr_t pc, CodeHit* out) const noexcept {
    const internal::RadixRoot* root = root_.load(std::memory_order_seq_cst);  // pairs with Change::Make
    return root == nullptr ? LookupResult::kNone : FindIn(*root, pc, out);
  }
  // True: found. False: none, or deferred.
  bool Lookup(std::uintptr_t pc, CodeHit* out) const noexcept {
    return Find(pc, out) == LookupResult::kFound;
  }

  // Finds the code that owned `pc` at `epoch`: birth <= epoch < death. Takes the writers' lock.
  bool LookupAt(std::uintptr_t pc, CodeEpoch epoch, CodeHit* out) const;

  // The present epoch. AS-safe. Read it before the stack is walked.
  CodeEpoch epoch() const noexcept { return epoch_.load(std::memory_order_seq_cst); }

  // Copies out the description of `id`; false if it is unknown or trimmed. The texts stay valid until the id
  // is trimmed: by TrimHistory, or because kHistoryMax registrations ended after it. Takes no lock, and waits
  // for no writer, unless the very code is changed again and again meanwhile: then, after 8 attempts, it
  // does.
  bool Describe(CodeId id, CodeDescriptor* out) const;

  // The functions that `offset` of the code of `id` is in: inlined ones from the innermost on, then the
  // code's own; at most `max`, the innermost first. Returns how many; 0: unknown or trimmed. Else as
  // Describe.
  std::size_t Frames(CodeId id, std::uint32_t offset, CodeFrame* frames, std::size_t max) const;

  // Forgets code that was gone at `oldest_needed` already: no undrained sample carries an earlier epoch.
  void TrimHistory(CodeEpoch oldest_needed);

  // Calls `visit(context, id)` for each live registration, in no particular order; no lock is held during the
  // calls, and code registered or unregistered meanwhile may or may not be seen.
  void ForEachLive(void (*visit)(void* context, CodeId id), void* context) const;

  // Number of live registrations.
  std::size_t live_count() const noexcept;

  CodeMapMemory memory() const;

 private:
  struct Impl;
  class Change;

  static LookupResult FindIn(const internal::RadixRoot& root, std::uintptr_t pc, CodeHit* out) noexcept;

  // Read by lookups, and written so rarely that the line stays in every cache.
  // Invariant: while a range can be found, root_ is the root that it is found from; else it may be null. What
  // it ever pointed to stays as long as the map.
  mutable std::atomic<internal::RadixRoot*> root_{nullptr};
  std::unique_ptr<Impl> impl_;

  // Written with each change, so it has a line of its own. Invariant: a change with births and deaths of
  // epoch_ + 1 is under way, or none; the store of epoch_ commits it.
  alignas(64) std::atomic<CodeEpoch> epoch_{1};
  static_assert(std::atomic<CodeEpoch>::is_always_lock_free &&
                std::atomic<internal::RadixRoot*>::is_always_lock_free);
};

}  // namespace stackpipe

#endif  // STACKPIPE_CODE_MAP_H_
