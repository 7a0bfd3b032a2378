// SPDX-License-Identifier: MIT
//
// ProfileBuilder: turns the events of a trace, as they are read, into a Profile.
//
//     ProfileBuilder builder;
//     nettrace::ReadSummary summary = nettrace::Read(*source, builder);
//     Profile profile = builder.Finish(summary);
//
// Not thread-safe. Memory grows with distinct stacks, functions and threads only.
#ifndef STACKPIPE_PROFILE_BUILDER_H_
#define STACKPIPE_PROFILE_BUILDER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nettrace/clr_events.h"
#include "nettrace/reader.h"
#include "profile/call_tree.h"
#include "profile/flat_map.h"
#include "profile/profile.h"
#include "profile/symbolizer.h"

namespace stackpipe {

class ProfileBuilder : public nettrace::Visitor {
 public:
  ProfileBuilder();

  void OnTrace(const nettrace::TraceInfo& info) override;
  void OnEvent(const nettrace::Event& event) override;
  void OnThreadName(std::uint64_t thread_id, std::string_view name) override;

  // True once the header of a trace was read: what comes out of Finish is then worth showing.
  bool saw_trace() const { return saw_trace_; }

  // The builder is spent afterwards.
  Profile Finish(const nettrace::ReadSummary& summary);

 private:
  enum class EventKind : std::uint8_t {
    kOther,
    kSample,
    kMethodLoad,
    kMethodUnload,
    kMethodRundown,
    kModule,
    kProcessInfo,
    kSessionStart,
    kThreadName,
    kCodeInfo,
    kThreadTotals,
    kSessionEnd,
  };

  struct ThreadState {
    std::uint64_t tid = 0;
    std::string name;
    LossTotals loss;
    CallTree::NodeId root = 0;
    bool sampled = false;
    CallTree::Path path;
    // A sample without a weight of its own stands for the time until its thread's next one. Valid if `open`.
    bool open = false;
    CallTree::NodeId open_node = 0;
    bool open_external = false;
    std::uint64_t open_since = 0;
  };

  static EventKind KindOf(const nettrace::EventType& type);
  ThreadState& ThreadOf(std::uint64_t tid);
  bool Handle(EventKind kind, const nettrace::Event& event);
  void OnSample(const nettrace::Event& event);
  CallTree::NodeId NodeOf(ThreadState* thread, std::span<const std::uint64_t> stack, SymbolId mark);
  void CloseSample(ThreadState* thread, std::uint64_t weight_ns);
  std::uint64_t ToNs(std::uint64_t ticks) const;

  void FinishLoss(const nettrace::ReadSummary& summary);
  void FinishTrees();
  void SumUp();

  Profile profile_;
  Symbolizer symbolizer_;
  CallTree tree_;
  std::unordered_map<std::uint64_t, ThreadState> threads_;
  std::unordered_map<const nettrace::EventType*, EventKind> kinds_;
  std::vector<SymbolId> stack_;  // of the sample at hand, root first

  // Where the stacks seen so far lead, by a hash of thread, mark and addresses; each is valid while no code
  // came or went since. Most stacks come again and again, and this spares them all work for each frame. A
  // second hash tells stacks apart whose first one is equal: that both are is less likely than a fault of the
  // memory.
  struct KnownStack {
    std::uint64_t check = 0;
    std::uint64_t generation = 0;
    CallTree::NodeId node = 0;
  };
  FlatMap<KnownStack> known_stacks_;
  SymbolId kernel_mark_, off_cpu_mark_, no_stack_mark_;

  bool saw_trace_ = false;
  bool saw_session_end_ = false;
  std::uint64_t ticks_per_second_ = 1'000'000'000;
  std::uint64_t start_ticks_ = 0;
  std::uint64_t last_ticks_ = 0;  // of the last sample, or of the last event while there is none
};

}  // namespace stackpipe

#endif  // STACKPIPE_PROFILE_BUILDER_H_
