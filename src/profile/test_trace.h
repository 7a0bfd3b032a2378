// SPDX-License-Identifier: MIT
//
// Test support: hand-made events for a Visitor, without a stream around them.
#ifndef STACKPIPE_PROFILE_TEST_TRACE_H_
#define STACKPIPE_PROFILE_TEST_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "nettrace/clr_events.h"
#include "nettrace/reader.h"

namespace stackpipe {

class TestTrace {
 public:
  explicit TestTrace(nettrace::Visitor* visitor) : visitor_(visitor) {
    info_.version = 4;
    info_.ticks_per_second = 1'000'000'000;
    info_.process_id = 100;
    visitor_->OnTrace(info_);
  }

  // The time of the events that follow, ns.
  void At(std::uint64_t ns) { now_ = ns; }

  void SessionStart(const char* mode = "cpu", std::int64_t period_ns = 1000) {
    nettrace::SessionStart start;
    start.mode = mode;
    start.period_ns = period_ns;
    Encode(start, &payload_);
    Send(kSessionStart, {});
  }
  void SessionEnd(const nettrace::SessionEnd& end) {
    Encode(end, &payload_);
    Send(kSessionEnd, {});
  }
  void ThreadName(std::int32_t tid, const char* name) {
    Encode(nettrace::ThreadName{.thread_id = tid, .name = name}, &payload_);
    Send(kThreadName, {});
  }
  void ThreadTotals(std::int32_t tid, const nettrace::Totals& totals) {
    Encode(nettrace::ThreadTotals{.thread_id = tid, .totals = totals}, &payload_);
    Send(kThreadTotals, {});
  }
  void CodeInfo(std::uint64_t method_id, CodeKind kind, const char* file = "", std::int32_t line = 0) {
    nettrace::CodeInfo info;
    info.method_id = method_id;
    info.kind = static_cast<std::int32_t>(kind);
    info.source_file = file;
    info.source_line = line;
    Encode(info, &payload_);
    Send(kCodeInfo, {});
  }
  void Load(const nettrace::Method& method) { SendMethod(kLoad, method); }
  void Unload(const nettrace::Method& method) { SendMethod(kUnload, method); }
  void Rundown(const nettrace::Method& method) { SendMethod(kRundown, method); }
  void ModuleLoad(std::uint64_t id, const char* path) {
    nettrace::Module module;
    module.module_id = id;
    module.il_path = path;
    Encode(module, &payload_);
    Send(kModuleLoad, {});
  }

  // `stack` is leaf first.
  void Sample(std::uint64_t tid, std::vector<std::uint64_t> stack,
              const nettrace::Sample& sample = Managed()) {
    Encode(sample, &payload_);
    if (!sample.extended) payload_.resize(4);  // as .NET writes it
    thread_ = tid;
    Send(kSample, stack);
  }
  static nettrace::Sample Managed() {
    nettrace::Sample sample;
    sample.type = nettrace::SampleType::kManaged;
    return sample;
  }
  static nettrace::Sample External() {
    nettrace::Sample sample;
    sample.type = nettrace::SampleType::kExternal;
    return sample;
  }
  static nettrace::Sample Weighted(std::uint64_t weight_ns, std::uint8_t flags = 0) {
    nettrace::Sample sample = Managed();
    sample.extended = true;
    sample.weight_ns = weight_ns;
    sample.flags = flags;
    return sample;
  }

  // A jitted method of module 7.
  static nettrace::Method Method(std::uint64_t id, std::uint64_t start, std::uint32_t size,
                                 const char* name) {
    nettrace::Method method;
    method.method_id = id;
    method.module_id = 7;
    method.start = start;
    method.size = size;
    method.flags = nettrace::kMethodFlagJitted;
    method.name_space = "Demo";
    method.name = name;
    method.signature = "void (int32)";
    return method;
  }

 private:
  static nettrace::EventType Type(const char* provider, std::int32_t id, std::int32_t version) {
    nettrace::EventType type;
    type.provider = provider;
    type.event_id = id;
    type.version = version;
    return type;
  }

  void SendMethod(const nettrace::EventType& type, const nettrace::Method& method) {
    Encode(method, &payload_);
    Send(type, {});
  }
  void Send(const nettrace::EventType& type, const std::vector<std::uint64_t>& stack) {
    nettrace::Event event;
    event.type = &type;
    event.timestamp = now_;
    event.thread_id = thread_;
    event.stack = stack;
    event.payload = payload_;
    visitor_->OnEvent(event);
  }

  const nettrace::EventType kSample = Type(nettrace::kSampleProvider, 0, 0);
  const nettrace::EventType kLoad = Type(nettrace::kRuntimeProvider, 143, 2);
  const nettrace::EventType kUnload = Type(nettrace::kRuntimeProvider, 144, 2);
  const nettrace::EventType kRundown = Type(nettrace::kRundownProvider, 144, 2);
  const nettrace::EventType kModuleLoad = Type(nettrace::kRuntimeProvider, 152, 2);
  const nettrace::EventType kSessionStart = Type(nettrace::kStackpipeProvider, 1, 0);
  const nettrace::EventType kThreadName = Type(nettrace::kStackpipeProvider, 2, 0);
  const nettrace::EventType kCodeInfo = Type(nettrace::kStackpipeProvider, 3, 0);
  const nettrace::EventType kThreadTotals = Type(nettrace::kStackpipeProvider, 4, 0);
  const nettrace::EventType kSessionEnd = Type(nettrace::kStackpipeProvider, 5, 0);

  nettrace::Visitor* visitor_;
  nettrace::TraceInfo info_;
  nettrace::Payload payload_;
  std::uint64_t now_ = 0;
  std::uint64_t thread_ = 0;
};

// The end of a stream that was good.
inline nettrace::ReadSummary GoodEnd() {
  nettrace::ReadSummary summary;
  summary.complete = true;
  return summary;
}

}  // namespace stackpipe

#endif  // STACKPIPE_PROFILE_TEST_TRACE_H_
