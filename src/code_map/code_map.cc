// SPDX-License-Identifier: MIT
#include "stackpipe/code_map.h"

#include <new>

#include "code_map/fork_safe_lock.h"
#include "code_map/map_state.h"
#include "code_map/radix.h"

namespace stackpipe {

using internal::MapState;
using internal::OnOverlap;

struct CodeMap::Impl {
  ~Impl() { MapState::Destroy(state.load()); }

  internal::ForkSafeLock writers_lock;
  // Guarded by writers_lock.
  // But for Describe and Frames, which load it without the lock. What it ever pointed to stays.
  std::atomic<MapState*> state{MapState::Create()};
  // True while a change is under way. A child of fork finds the lock free; if it finds this true, `state` was
  // left in the middle of a change by a thread that the child does not have.
  std::atomic<bool> changing{false};
  // Written under the lock, read without.
  std::atomic<std::size_t> live_count{0};
};

// Holds the writers' lock. If a fork left the state half changed, the state is made anew from its records,
// which are right at every instruction (see IdTable::Slot). The old state stays as it is: other threads'
// lookups may be in it, its texts may be in use, and nothing in it can be trusted to be freed.
class CodeMap::Change {
 public:
  explicit Change(const CodeMap& map) noexcept : map_(map), impl_(map.impl_.get()) {
    if (impl_ == nullptr) return;
    impl_->writers_lock.Lock();
    if (impl_->changing.load()) [[unlikely]]
      Rebuild();
  }
  ~Change() {
    if (impl_ != nullptr) impl_->writers_lock.Unlock();
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

  // False: there is no memory to work with.
  bool ok() const noexcept { return ok_ && impl_ != nullptr; }
  MapState& state() noexcept { return *impl_->state.load(std::memory_order_relaxed); }

  // Makes a change of `map`, which is the one of the constructor: what `change(state, next epoch)` returns is
  // committed if it is not a failure.
  template <typename F>
  auto Make(CodeMap& map, const F& change) noexcept {
    const CodeEpoch next = map.epoch_.load(std::memory_order_relaxed) + 1;
    impl_->changing.store(true);
    if (map.root_.load(std::memory_order_relaxed) == nullptr) {
      map.root_.store(&state().root());  // pairs with the load in Find
    }
    auto result = change(state(), next);
    const std::size_t live = state().live_count();
    impl_->live_count.store(live, std::memory_order_relaxed);
    if (live == 0) map.root_.store(nullptr);        // likewise
    if (Succeeded(result)) map.epoch_.store(next);  // commits; pairs with the load in epoch()
    state().Settle();
    impl_->changing.store(false);
    return result;
  }

 private:
  static bool Succeeded(const Status& status) { return status.ok(); }
  static bool Succeeded(const Result<CodeId>& result) { return result.ok(); }
  static bool Succeeded(std::size_t count) { return count != 0; }

  void Rebuild() noexcept {
    MapState* fresh = MapState::Rebuild(state(), map_.epoch_.load());
    ok_ = fresh != nullptr;
    if (!ok_) return;           // the next caller tries again; lookups go on in the old state
    impl_->state.store(fresh);  // pairs with the loads in Describe and Frames
    impl_->live_count.store(fresh->live_count(), std::memory_order_relaxed);
    map_.root_.store(&fresh->root());  // pairs with the load in Find
    impl_->changing.store(false);
  }

  const CodeMap& map_;
  Impl* const impl_;
  bool ok_ = true;
};

namespace {

Status OutOfMemory() { return {StatusCode::kOutOfMemory, "there is no memory for a code map"}; }

}  // namespace

CodeMap::CodeMap() : impl_(new (std::nothrow) Impl) {
  if (impl_ != nullptr && (!impl_->writers_lock.ok() || impl_->state.load() == nullptr)) impl_.reset();
}

CodeMap::~CodeMap() = default;

Result<CodeId> CodeMap::Register(const CodeRegistration& code) {
  CodeId id = 0;
  if (const Status status = RegisterBatch(&code, 1, &id); !status.ok()) return status;
  return id;
}

Result<CodeId> CodeMap::RegisterOver(const CodeRegistration& code, const CodeRetiredVisitor* retired) {
  Change change(*this);
  if (!change.ok()) return OutOfMemory();
  CodeId id = 0;
  const Status status = change.Make(*this, [&](MapState& state, CodeEpoch epoch) {
    return state.Register({&code, 1}, OnOverlap::kRetire, epoch, &id, retired);
  });
  if (!status.ok()) return status;
  return id;
}

Status CodeMap::RegisterBatch(const CodeRegistration* codes, std::size_t count, CodeId* ids) {
  Change change(*this);
  if (!change.ok()) return OutOfMemory();
  return change.Make(*this, [&](MapState& state, CodeEpoch epoch) {
    return state.Register({codes, count}, OnOverlap::kRefuse, epoch, ids, nullptr);
  });
}

Result<CodeId> CodeMap::Move(CodeId id, std::uintptr_t new_start) {
  Change change(*this);
  if (!change.ok()) return OutOfMemory();
  return change.Make(*this,
                     [&](MapState& state, CodeEpoch epoch) { return state.Move(id, new_start, epoch); });
}

Status CodeMap::Unregister(CodeId id) { return UnregisterBatch(&id, 1); }

Status CodeMap::UnregisterBatch(const CodeId* ids, std::size_t count) {
  Change change(*this);
  if (!change.ok()) return OutOfMemory();
  return change.Make(*this, [&](MapState& state, CodeEpoch epoch) {
    return state.Unregister({ids, count}, epoch);
  });
}

std::size_t CodeMap::UnregisterOwner(std::uint64_t owner, const CodeRetiredVisitor* retired) {
  Change change(*this);
  if (!change.ok()) return 0;
  return change.Make(
      *this, [&](MapState& state, CodeEpoch epoch) { return state.UnregisterOwner(owner, epoch, retired); });
}

std::size_t CodeMap::UnregisterRange(std::uintptr_t start, std::size_t size,
                                     const CodeRetiredVisitor* retired) {
  Change change(*this);
  if (!change.ok()) return 0;
  return change.Make(*this, [&](MapState& state, CodeEpoch epoch) {
    return state.UnregisterRange(start, size, epoch, retired);
  });
}

LookupResult CodeMap::FindIn(const internal::RadixRoot& root, std::uintptr_t pc, CodeHit* out) noexcept {
  return internal::FindCode(root, pc, out, internal::NoProbe{});
}

bool CodeMap::LookupAt(std::uintptr_t pc, CodeEpoch epoch, CodeHit* out) const {
  Change change(*this);
  return change.ok() && change.state().LookupAt(pc, epoch, out);
}

bool CodeMap::Describe(CodeId id, CodeDescriptor* out) const {
  const MapState* const state = impl_ == nullptr ? nullptr : impl_->state.load();
  if (state == nullptr) return false;
  CodeEpoch before = epoch();
  LookupResult result = state->Describe(id, out);
  if (result == LookupResult::kDeferred ||
      (result == LookupResult::kFound && out->birth == 0 && epoch() != before)) {
    Change change(*this);
    before = epoch();
    result = change.ok() ? change.state().Describe(id, out) : LookupResult::kNone;
  }
  if (result != LookupResult::kFound) return false;
  // The change that is under way will have the next epoch.
  if (out->birth == 0) out->birth = before + 1;
  if (out->death > epoch()) out->death = 0;
  return true;
}

std::size_t CodeMap::Frames(CodeId id, std::uint32_t offset, CodeFrame* frames, std::size_t max) const {
  const MapState* const state = impl_ == nullptr ? nullptr : impl_->state.load();
  if (state == nullptr) return 0;
  std::size_t count = 0;
  LookupResult result = state->Frames(id, offset, frames, max, &count);
  if (result == LookupResult::kDeferred) {
    Change change(*this);
    result = change.ok() ? change.state().Frames(id, offset, frames, max, &count) : LookupResult::kNone;
  }
  return result == LookupResult::kFound ? count : 0;
}

void CodeMap::TrimHistory(CodeEpoch oldest_needed) {
  Change change(*this);
  if (!change.ok()) return;
  impl_->changing.store(true);
  change.state().TrimHistory(oldest_needed);
  impl_->changing.store(false);
}

void CodeMap::ForEachLive(void (*visit)(void* context, CodeId id), void* context) const {
  constexpr std::size_t kBatch = 256;
  CodeId ids[kBatch];
  std::uint32_t from = 0;
  do {
    std::size_t count = 0;
    {
      Change change(*this);
      if (!change.ok()) return;
      count = change.state().LiveIds(&from, ids, kBatch);
    }
    for (std::size_t i = 0; i < count; ++i) visit(context, ids[i]);
  } while (from != 0);
}

std::size_t CodeMap::live_count() const noexcept {
  return impl_ == nullptr ? 0 : impl_->live_count.load(std::memory_order_relaxed);
}

CodeMapMemory CodeMap::memory() const {
  Change change(*this);
  return change.ok() ? change.state().memory() : CodeMapMemory{};
}

}  // namespace stackpipe
