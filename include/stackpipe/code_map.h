// SPDX-License-Identifier: MIT
//
// CodeMap: the process-wide map from program counter to the code that owns it, live and historical.
//
// A runtime registers each piece of code before it first runs, and unregisters it after its last frame has left and
// before the memory is reused. Anyone may ask at any moment, in a signal handler too, which code owns a pc, and anyone
// may ask later which code owned it at the epoch that a sample carries.
//
//     CodeMap map;
//     Result<CodeId> id = map.Register({.start = begin, .size = size, .kind = CodeKind::kJit, .name = "f"});
//     CodeHit hit;
//     if (map.Lookup(pc, &hit)) ...  // hit.id, hit.start, hit.kind
//
// Conventions: "AS-safe" means async-signal-safe and lock-free: no lock, no allocation, errno kept, bounded steps.
// All other functions may allocate and take the writers' lock; call them in ordinary code only.
#ifndef STACKPIPE_CODE_MAP_H_
#define STACKPIPE_CODE_MAP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
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

// What is told about a piece of code when it is registered. The texts are copied.
struct CodeRegistration {
  std::uintptr_t start = 0;
  std::size_t size = 0;
  CodeKind kind = CodeKind::kUnknown;
  std::uint64_t module_id = 0;       // the embedder's id of the module, 0 = none
  std::uint64_t owner = 0;           // groups code that goes away together (a domain, a chunk owner), 0 = none
  std::string_view name_space;       // "System.Collections.Generic.List`1"
  std::string_view name;             // "Add"
  std::string_view signature;        // "void (int)"
  std::string_view source_file;      // empty = unknown
  std::uint32_t source_line = 0;     // 0 = unknown
};

// The answer of a lookup, copied out: it stays valid whatever happens to the code afterwards.
struct CodeHit {
  CodeId id = 0;
  CodeKind kind = CodeKind::kUnknown;
  std::uintptr_t start = 0;
  std::size_t size = 0;
};

// What is stored of a CodeRegistration. The texts live as long as the map keeps the id (see TrimHistory).
struct CodeDescriptor {
  std::uintptr_t start = 0;
  std::size_t size = 0;
  CodeKind kind = CodeKind::kUnknown;
  std::uint64_t module_id = 0;
  std::uint64_t owner = 0;
  std::string_view name_space, name, signature, source_file;
  std::uint32_t source_line = 0;
  CodeEpoch birth = 0;  // first epoch at which the code was there
  CodeEpoch death = 0;  // first epoch at which it was gone; 0 = still there
};

class CodeMap {
 public:
  CodeMap();
  ~CodeMap();
  CodeMap(const CodeMap&) = delete;
  CodeMap& operator=(const CodeMap&) = delete;

  // Registers [start, start + size).
  // Errors: kInvalidArgument (size 0, or the end wraps), kOverlap (some of it is registered), kOutOfMemory, kLimit.
  // After an error the map is unchanged.
  Result<CodeId> Register(const CodeRegistration& code);

  // The code of `id` now lies at `new_start`, with the same size and description. Returns the new id; the old id is
  // retired as if unregistered. Errors: kNotFound, kOverlap (with other code), kInvalidArgument, kOutOfMemory.
  Result<CodeId> Move(CodeId id, std::uintptr_t new_start);

  // The code of `id` is gone. It stays known to LookupAt for earlier epochs, until TrimHistory.
  // Errors: kNotFound (never registered, or unregistered before).
  Status Unregister(CodeId id);

  // Finds the code that owns `pc` now. AS-safe; any thread, registered anywhere or not.
  bool Lookup(std::uintptr_t pc, CodeHit* out) const noexcept {
    // Pairs with the stores in Register (set before the first range is published) and Unregister.
    if (!any_code_.load(std::memory_order_seq_cst)) return false;
    return LookupSlow(pc, out);
  }

  // Finds the code that owned `pc` at `epoch`: birth <= epoch < death. Takes the writers' lock.
  bool LookupAt(std::uintptr_t pc, CodeEpoch epoch, CodeHit* out) const;

  // The present epoch. AS-safe. Read it before the stack is walked.
  CodeEpoch epoch() const noexcept { return epoch_.load(std::memory_order_seq_cst); }

  // Copies out the description of `id`; false if it is unknown or trimmed. The texts stay valid until the id is
  // trimmed, which only TrimHistory does.
  bool Describe(CodeId id, CodeDescriptor* out) const;

  // Forgets code that was gone at `oldest_needed` already: no undrained sample carries an earlier epoch.
  void TrimHistory(CodeEpoch oldest_needed);

  // Calls `visit(context, id)` for each live registration, in no particular order; no lock is held during the calls,
  // and code registered or unregistered meanwhile may or may not be seen.
  void ForEachLive(void (*visit)(void* context, CodeId id), void* context) const;

  // Number of live registrations.
  std::size_t live_count() const noexcept;

 private:
  bool LookupSlow(std::uintptr_t pc, CodeHit* out) const noexcept;

  struct Impl;
  std::atomic<bool> any_code_{false};
  std::atomic<CodeEpoch> epoch_{1};
  std::unique_ptr<Impl> impl_;
};

}  // namespace stackpipe

#endif  // STACKPIPE_CODE_MAP_H_
