// SPDX-License-Identifier: MIT
//
// For tests: the obvious map, slow and simple, that CodeMap must agree with.
#ifndef STACKPIPE_CODE_MAP_REFERENCE_MAP_H_
#define STACKPIPE_CODE_MAP_REFERENCE_MAP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "stackpipe/code_map.h"

namespace stackpipe {

class ReferenceMap {
 public:
  struct Range {
    std::uintptr_t start;
    std::size_t size;
    CodeId id;
    std::uint64_t owner;
    CodeEpoch birth;
    CodeEpoch death = 0;
  };

  CodeEpoch epoch() const { return epoch_; }
  // For several changes in one epoch.
  void SetEpoch(CodeEpoch epoch) { epoch_ = epoch; }
  const std::map<std::uintptr_t, Range>& live() const { return live_; }

  bool Overlaps(std::uintptr_t start, std::size_t size, CodeId except = 0) const {
    for (auto it = FirstBehind(start); it != live_.end() && it->first < start + size; ++it) {
      if (it->second.id != except) return true;
    }
    return false;
  }
  void Register(std::uintptr_t start, std::size_t size, CodeId id, std::uint64_t owner) {
    live_[start] = {start, size, id, owner, ++epoch_};
  }
  // All in one epoch: those that overlap [start, start + size) go; the new one comes if it has an id.
  void Replace(std::uintptr_t start, std::size_t size, CodeId id, std::uint64_t owner) {
    ++epoch_;
    for (auto it = FirstBehind(start); it != live_.end() && it->first < start + size;) it = Retire(it);
    if (id != 0) live_[start] = {start, size, id, owner, epoch_};
  }
  void Move(std::uintptr_t start, std::uintptr_t new_start, CodeId new_id) {
    ++epoch_;
    Range range = live_.at(start);
    Retire(live_.find(start));
    range.start = new_start;
    range.id = new_id;
    range.birth = epoch_;
    live_[new_start] = range;
  }
  void Unregister(const std::vector<std::uintptr_t>& starts) {
    ++epoch_;
    for (const std::uintptr_t start : starts) Retire(live_.find(start));
  }
  std::size_t UnregisterOwner(std::uint64_t owner) {
    std::vector<std::uintptr_t> starts;
    for (const auto& [start, range] : live_) {
      if (range.owner == owner) starts.push_back(start);
    }
    if (!starts.empty()) Unregister(starts);
    return starts.size();
  }
  void TrimHistory(CodeEpoch oldest_needed) {
    std::erase_if(gone_, [&](const Range& range) { return range.death <= oldest_needed; });
  }

  std::optional<Range> Lookup(std::uintptr_t pc) const {
    const auto it = FirstBehind(pc);
    if (it == live_.end() || pc < it->first) return std::nullopt;
    return it->second;
  }
  std::optional<Range> LookupAt(std::uintptr_t pc, CodeEpoch epoch) const {
    if (const auto range = Lookup(pc); range && range->birth <= epoch) return range;
    for (const Range& range : gone_) {
      if (pc - range.start < range.size && range.birth <= epoch && epoch < range.death) return range;
    }
    return std::nullopt;
  }

 private:
  using Live = std::map<std::uintptr_t, Range>;

  // The first range that ends behind `at`.
  Live::const_iterator FirstBehind(std::uintptr_t at) const {
    auto it = live_.upper_bound(at);
    if (it != live_.begin()) {
      const auto before = std::prev(it);
      if (at - before->first < before->second.size) return before;
    }
    return it;
  }
  Live::iterator Retire(Live::const_iterator it) {
    gone_.push_back(it->second);
    gone_.back().death = epoch_;
    return live_.erase(it);
  }

  Live live_;
  std::vector<Range> gone_;
  CodeEpoch epoch_ = 1;
};

}  // namespace stackpipe

#endif  // STACKPIPE_CODE_MAP_REFERENCE_MAP_H_
