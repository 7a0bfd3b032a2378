// SPDX-License-Identifier: MIT
#include "profile/builder.h"

#include <algorithm>
#include <utility>

#include "profile/merge.h"
#include "profile/utf8.h"

namespace stackpipe {
namespace {

// Two hashes of the same words, each a chain of multiplications by an odd constant and shifts.
class StackHash {
 public:
  void Add(std::uint64_t word) {
    first_ = (first_ ^ word) * 0x9e3779b97f4a7c15u;
    first_ ^= first_ >> 29;
    second_ = (second_ + word) * 0xc2b2ae3d27d4eb4fu;
    second_ ^= second_ >> 31;
  }
  std::uint64_t key() const { return first_ >> 1; }    // never FlatMap::kNoKey
  std::uint64_t check() const { return second_ | 1; }  // never 0, which is no stack

 private:
  std::uint64_t first_ = 0x243f6a8885a308d3u, second_ = 0x13198a2e03707344u;
};

LossTotals FromTrace(const nettrace::Totals& totals) {
  return {totals.expected, totals.recorded, totals.dropped, totals.suppressed};
}

}  // namespace

ProfileBuilder::ProfileBuilder()
    : kernel_mark_(symbolizer_.Mark("[kernel]", CodeKind::kKernel)),
      off_cpu_mark_(symbolizer_.Mark("[off-cpu]", CodeKind::kKernel)),
      no_stack_mark_(symbolizer_.Mark("[no stack]", CodeKind::kUnknown)) {}

void ProfileBuilder::OnTrace(const nettrace::TraceInfo& info) {
  saw_trace_ = true;
  if (info.ticks_per_second != 0) ticks_per_second_ = info.ticks_per_second;
  start_ticks_ = last_ticks_ = info.sync_ticks;
  profile_.process.pid = info.process_id;
  // .NET writes the sampling interval here. Stackpipe's SessionStart says it again.
  constexpr int kLongestPeriodNs = 1'000'000'000;
  if (info.expected_sampling_rate > 0 && info.expected_sampling_rate <= kLongestPeriodNs) {
    profile_.session.period_ns = static_cast<std::uint64_t>(info.expected_sampling_rate);
  }
}

ProfileBuilder::EventKind ProfileBuilder::KindOf(const nettrace::EventType& type) {
  const bool runtime = type.provider == nettrace::kRuntimeProvider;
  const bool rundown = type.provider == nettrace::kRundownProvider;
  if (runtime || rundown) {
    switch (type.event_id) {
      case 143:
        return EventKind::kMethodLoad;  // the rundown's tells what was there at the start
      case 144:
        return runtime ? EventKind::kMethodUnload : EventKind::kMethodRundown;
      case 152:
        return runtime ? EventKind::kModule : EventKind::kOther;
      case 153:
        return EventKind::kModule;
      case 154:
        return rundown ? EventKind::kModule : EventKind::kOther;
      default:
        return EventKind::kOther;
    }
  }
  if (type.provider == nettrace::kSampleProvider && type.event_id == 0) return EventKind::kSample;
  if (type.provider == nettrace::kEventPipeProvider && type.event_id == 1) return EventKind::kProcessInfo;
  if (type.provider == nettrace::kStackpipeProvider) {
    switch (type.event_id) {
      case 1:
        return EventKind::kSessionStart;
      case 2:
        return EventKind::kThreadName;
      case 3:
        return EventKind::kCodeInfo;
      case 4:
        return EventKind::kThreadTotals;
      case 5:
        return EventKind::kSessionEnd;
      default:
        return EventKind::kOther;
    }
  }
  return EventKind::kOther;
}

void ProfileBuilder::OnEvent(const nettrace::Event& event) {
  auto at = kinds_.find(event.type);
  if (at == kinds_.end()) at = kinds_.emplace(event.type, KindOf(*event.type)).first;
  const EventKind kind = at->second;
  if (kind == EventKind::kSample || profile_.cost.samples == 0)
    last_ticks_ = std::max(last_ticks_, event.timestamp);
  if (!Handle(kind, event)) ++profile_.undecodable_events;
}

bool ProfileBuilder::Handle(EventKind kind, const nettrace::Event& event) {
  switch (kind) {
    case EventKind::kOther:
      return true;
    case EventKind::kSample:
      OnSample(event);
      return true;
    case EventKind::kMethodLoad:
    case EventKind::kMethodUnload:
    case EventKind::kMethodRundown: {
      nettrace::Method method;
      if (!Decode(event.payload, event.type->version, &method)) return false;
      if (kind == EventKind::kMethodLoad) {
        symbolizer_.OnMethodLoad(method);
      } else if (kind == EventKind::kMethodUnload) {
        symbolizer_.OnMethodUnload(method);
      } else {
        symbolizer_.OnMethodRundown(method);
      }
      return true;
    }
    case EventKind::kModule: {
      nettrace::Module module;
      if (!Decode(event.payload, event.type->version, &module)) return false;
      symbolizer_.OnModule(module);
      return true;
    }
    case EventKind::kProcessInfo: {
      ProfileProcess& process = profile_.process;
      return nettrace::DecodeProcessInfo(event.payload, &process.command_line, &process.os, &process.arch);
    }
    case EventKind::kSessionStart: {
      nettrace::SessionStart start;
      if (!Decode(event.payload, &start)) return false;
      symbolizer_.SetAnnounced();
      ProfileSession& session = profile_.session;
      session.stackpipe = true;
      session.mode = start.mode;
      session.runtime = start.runtime;
      session.tool_version = start.tool_version;
      if (start.period_ns > 0) session.period_ns = static_cast<std::uint64_t>(start.period_ns);
      return true;
    }
    case EventKind::kThreadName: {
      nettrace::ThreadName name;
      if (!Decode(event.payload, &name)) return false;
      ThreadOf(static_cast<std::uint32_t>(name.thread_id)).name = std::move(name.name);
      return true;
    }
    case EventKind::kCodeInfo: {
      nettrace::CodeInfo info;
      if (!Decode(event.payload, &info)) return false;
      symbolizer_.OnCodeInfo(info);
      return true;
    }
    case EventKind::kThreadTotals: {
      nettrace::ThreadTotals totals;
      if (!Decode(event.payload, &totals)) return false;
      ThreadOf(static_cast<std::uint32_t>(totals.thread_id)).loss = FromTrace(totals.totals);
      return true;
    }
    case EventKind::kSessionEnd: {
      nettrace::SessionEnd end;
      if (!Decode(event.payload, &end)) return false;
      saw_session_end_ = true;
      profile_.loss = FromTrace(end.totals);
      profile_.duration_ns = end.duration_ns;
      ProfileSession& session = profile_.session;
      session.handler_ns = end.handler_ns;
      session.handler_max_ns = end.handler_max_ns;
      session.handler_p50_ns = end.handler_p50_ns;
      session.handler_p99_ns = end.handler_p99_ns;
      session.collector_cpu_ns = end.collector_cpu_ns;
      session.process_cpu_ns = end.process_cpu_ns;
      return true;
    }
  }
  return true;
}

void ProfileBuilder::OnThreadName(std::uint64_t thread_id, std::string_view name) {
  ThreadOf(thread_id).name = ValidUtf8(name);
}

ProfileBuilder::ThreadState& ProfileBuilder::ThreadOf(std::uint64_t tid) {
  const auto [at, is_new] = threads_.try_emplace(tid);
  if (is_new) {
    at->second.tid = tid;
    at->second.root = tree_.AddRoot();
  }
  return at->second;
}

std::uint64_t ProfileBuilder::ToNs(std::uint64_t ticks) const {
  constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
  // In two parts: a clock in ns that was up for ten years would overflow the product.
  return ticks / ticks_per_second_ * kNsPerSecond +
         static_cast<std::uint64_t>(static_cast<double>(ticks % ticks_per_second_) * 1e9 /
                                    static_cast<double>(ticks_per_second_));
}

void ProfileBuilder::OnSample(const nettrace::Event& event) {
  nettrace::Sample sample;
  if (!Decode(event.payload, &sample)) {
    sample = {};  // its stack is good all the same
    ++profile_.undecodable_events;
  }
  ThreadState& thread = ThreadOf(event.thread_id);
  thread.sampled = true;

  SymbolId mark = kNoSymbol;
  if ((sample.flags & nettrace::kSampleOffCpu) != 0) {
    mark = off_cpu_mark_;
  } else if ((sample.flags & nettrace::kSampleInKernel) != 0) {
    mark = kernel_mark_;
  } else if (event.stack.empty()) {
    mark = no_stack_mark_;
  }
  profile_.max_depth = std::max<std::uint64_t>(profile_.max_depth, event.stack.size());
  const CallTree::NodeId node = NodeOf(&thread, event.stack, mark);

  const bool external = sample.type != nettrace::SampleType::kManaged;
  CloseSample(&thread, ToNs(event.timestamp - thread.open_since));
  Cost cost{.samples = 1};
  if (sample.extended) {
    ++profile_.stop_reasons[sample.flags & nettrace::kSampleStopMask];
    cost.weight = sample.weight_ns;
    cost.external = external ? sample.weight_ns : 0;
  } else {
    thread.open = true;
    thread.open_node = node;
    thread.open_external = external;
    thread.open_since = event.timestamp;
  }
  tree_.Charge(node, cost);
  ++profile_.cost.samples;
}

CallTree::NodeId ProfileBuilder::NodeOf(ThreadState* thread, std::span<const std::uint64_t> stack,
                                        SymbolId mark) {
  StackHash hash;
  hash.Add(thread->root);
  hash.Add(mark);
  for (const std::uint64_t pc : stack) hash.Add(pc);
  KnownStack& known = *known_stacks_.TryEmplace(hash.key(), {}).first;
  if (known.check == hash.check() && known.generation == symbolizer_.generation()) return known.node;

  stack_.clear();
  for (auto pc = stack.rbegin(); pc != stack.rend(); ++pc) stack_.push_back(symbolizer_.Resolve(*pc));
  if (mark != kNoSymbol) stack_.push_back(mark);
  known = {hash.check(), symbolizer_.generation(), tree_.Walk(thread->root, stack_, &thread->path)};
  return known.node;
}

void ProfileBuilder::CloseSample(ThreadState* thread, std::uint64_t weight_ns) {
  if (!thread->open) return;
  thread->open = false;
  tree_.Charge(thread->open_node, {.weight = weight_ns, .external = thread->open_external ? weight_ns : 0});
}

Profile ProfileBuilder::Finish(const nettrace::ReadSummary& summary) {
  // Nothing says how long the last sample of a thread lasted: one period is the best guess.
  for (auto& [tid, thread] : threads_) CloseSample(&thread, profile_.session.period_ns);

  profile_.complete = summary.complete;
  profile_.lost_events = summary.lost;
  if (profile_.duration_ns == 0) profile_.duration_ns = ToNs(last_ticks_ - start_ticks_);
  FinishLoss(summary);
  known_stacks_ = {};
  tree_.Freeze();
  FinishTrees();
  SumUp();
  return std::move(profile_);
}

void ProfileBuilder::FinishLoss(const nettrace::ReadSummary& summary) {
  if (saw_session_end_) return;
  // The session did not come to say its totals. What is in the file is what was recorded; the rest is known
  // as of the threads' last reports.
  LossTotals& loss = profile_.loss;
  loss = {.recorded = profile_.cost.samples};
  for (const auto& [tid, thread] : threads_) {
    loss.dropped += thread.loss.dropped;
    loss.suppressed += thread.loss.suppressed;
  }
  if (!profile_.session.stackpipe) loss.dropped = summary.lost;
  loss.expected = loss.recorded + loss.dropped + loss.suppressed;
}

void ProfileBuilder::FinishTrees() {
  std::vector<bool> used(symbolizer_.symbol_count(), false);
  for (const CallTree::Node& node : tree_.nodes()) {
    if (node.symbol != kNoSymbol) used[node.symbol] = true;
  }
  const std::vector<std::uint32_t> frame_of = symbolizer_.Finish(used, &profile_);

  std::vector<std::uint32_t> roots;
  for (auto& [tid, thread] : threads_) {
    if (!thread.sampled && thread.loss.expected == 0) continue;
    roots.push_back(thread.root);
    ProfileThread out{.tid = tid, .name = std::move(thread.name), .loss = thread.loss};
    if (out.name.empty() && tid == profile_.process.pid) out.name = "main";
    profile_.threads.push_back(std::move(out));
  }
  MergeTrees(std::move(tree_), frame_of, roots, &profile_);
}

void ProfileBuilder::SumUp() {
  if (profile_.cost.samples != 0 && profile_.cost.weight == 0) {
    // Not one weight: a trace so short that the samples themselves are all there is to count.
    profile_.weight_unit = WeightUnit::kSamples;
    for (ProfileNode& node : profile_.nodes) {
      node.self.weight = node.self.samples;
      node.total.weight = node.total.samples;
    }
    for (ProfileThread& thread : profile_.threads) thread.cost.weight = thread.cost.samples;
    profile_.cost.weight = profile_.cost.samples;
  }

  for (const ProfileNode& node : profile_.nodes) {
    if (node.frame == kNoFrame) continue;
    const ProfileFrame& frame = profile_.frame_table[node.frame];
    if (frame.pseudo) continue;
    const std::uint64_t count = node.total.samples;
    profile_.frames += count;
    if (frame.named) profile_.named_frames += count;
    if (frame.kind == CodeKind::kNative || frame.kind == CodeKind::kKernel) continue;
    profile_.managed_frames += count;
    if (frame.named) profile_.managed_named += count;
  }
}

}  // namespace stackpipe
