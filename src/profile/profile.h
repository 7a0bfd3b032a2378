// SPDX-License-Identifier: MIT
//
// Profile: what a trace says, aggregated. Reports and exporters share it; ProfileBuilder makes it.
//
// It holds one call tree for each thread, whose nodes carry what was measured, and tables of frames, modules
// and threads that the nodes refer to by index. Its size depends on how many distinct stacks, functions and
// threads there were, never on how long the recording was.
//
// Plain data: threads may read it at the same time, nothing in it is lazily computed.
#ifndef STACKPIPE_PROFILE_PROFILE_H_
#define STACKPIPE_PROFILE_PROFILE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stackpipe/code_map.h"

namespace stackpipe {

// The name that reports print for a kind. Trampolines count as wrappers.
const char* KindName(CodeKind kind);

// What samples cost. Weights are in Profile::weight_unit.
struct Cost {
  std::uint64_t samples = 0;
  std::uint64_t weight = 0;
  // The part of `weight` whose samples the runtime calls external: in native code, or waiting.
  std::uint64_t external = 0;

  Cost& operator+=(const Cost& other) {
    samples += other.samples;
    weight += other.weight;
    external += other.external;
    return *this;
  }
  bool operator==(const Cost&) const = default;
};

struct ProfileModule {
  std::string name;  // file name with extension: "demo.dll"; empty = not known
  std::string path;
};

// One function, or an address that nobody could name. Two bodies of code that share name, module, kind and
// source are one frame; two functions that had the same address at different times are two.
struct ProfileFrame {
  std::string name;  // "Namespace.Method(args)"; "0x7f0012345678" if not named
  std::uint32_t module = 0;
  CodeKind kind = CodeKind::kUnknown;
  bool named = false;
  // True for the marks that Stackpipe adds at the leaf ([kernel], [off-cpu], [no stack]): no code, not
  // counted.
  bool pseudo = false;
  std::string source_file;
  std::int32_t source_line = 0;  // 0 = unknown
};

inline constexpr std::uint32_t kNoFrame = ~std::uint32_t{0};

struct ProfileNode {
  std::uint32_t frame = kNoFrame;  // kNoFrame: the root of a thread
  std::uint32_t parent = 0;        // index into Profile::nodes; a root is its own parent
  Cost self = {}, total = {};
};

// Ticks of the sampling timer; expected = recorded + dropped + suppressed.
struct LossTotals {
  std::uint64_t expected = 0, recorded = 0, dropped = 0, suppressed = 0;
};

struct ProfileThread {
  std::uint64_t tid = 0;
  std::string name;  // empty = not known
  Cost cost = {};
  LossTotals loss = {};
  // The thread's tree is nodes[first_node .. first_node + node_count): its root, then its nodes in preorder,
  // the heaviest child first.
  std::uint32_t first_node = 0, node_count = 0;
};

enum class WeightUnit : std::uint8_t { kNanoseconds, kSamples };
const char* UnitName(WeightUnit unit);  // "ns", "samples"

// What the session says about itself. Empty and 0 mean: the trace does not say.
struct ProfileSession {
  bool stackpipe = false;  // recorded by Stackpipe, with loss totals and costs
  std::string mode;        // "cpu", "wall"
  std::string runtime, tool_version;
  std::uint64_t period_ns = 0;
  std::uint64_t handler_ns = 0, handler_max_ns = 0, handler_p50_ns = 0, handler_p99_ns = 0;
  std::uint64_t collector_cpu_ns = 0, process_cpu_ns = 0;
};

struct ProfileProcess {
  std::uint64_t pid = 0;
  std::string command_line, os, arch;
};

inline constexpr std::size_t kStopReasonCount = 16;
const char* StopReasonName(std::size_t reason);

struct Profile {
  bool complete = false;          // the trace ends with its end mark
  std::uint64_t lost_events = 0;  // of the stream, by its sequence numbers; not only samples
  std::uint64_t duration_ns = 0;
  WeightUnit weight_unit = WeightUnit::kNanoseconds;
  ProfileSession session;
  ProfileProcess process;
  LossTotals loss = {};
  Cost cost;  // of all threads

  // Frames of all samples, a function counted each time it is on a stack; marks are not counted.
  std::uint64_t frames = 0, named_frames = 0;
  // The same without native code (a frame nobody could name counts as managed).
  std::uint64_t managed_frames = 0, managed_named = 0;
  std::uint64_t max_depth = 0;
  std::array<std::uint64_t, kStopReasonCount> stop_reasons{};  // samples by the reason that ended their walk
  std::uint64_t undecodable_events = 0;                        // known events whose payload was broken

  std::vector<ProfileModule> modules;  // [0] is "not known"
  std::vector<ProfileFrame> frame_table;
  std::vector<ProfileThread> threads;  // heaviest first
  std::vector<ProfileNode> nodes;

  std::span<const ProfileNode> NodesOf(const ProfileThread& thread) const {
    return std::span(nodes).subspan(thread.first_node, thread.node_count);
  }
};

}  // namespace stackpipe

#endif  // STACKPIPE_PROFILE_PROFILE_H_
