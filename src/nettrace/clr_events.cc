// SPDX-License-Identifier: MIT
#include "nettrace/clr_events.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>

#include "nettrace/byte_reader.h"
#include "nettrace/byte_writer.h"
#include "nettrace/format.h"

namespace stackpipe::nettrace {

namespace {

constexpr std::uint64_t kLoaderKeyword = 0x8;
constexpr std::uint64_t kModuleKeywords = 0x8 | 0x2000'0000;  // Loader, PerfTrack
constexpr std::uint64_t kMethodKeywords = 0x10 | 0x20;        // Jit, NGen
constexpr std::uint64_t kDcEndKeywords = 0x20038;             // Loader, Jit, NGen, JittedMethodILToNativeMap
constexpr std::int32_t kLogAlways = 0;
constexpr std::int32_t kInformational = 4;

constexpr TypeField kProcessInfoFields[] = {
    {format::kTypeString, "CommandLine"},
    {format::kTypeString, "OSInformation"},
    {format::kTypeString, "ArchInformation"},
};
constexpr TypeField kSessionStartFields[] = {
    {format::kTypeInt32, "FormatVersion"}, {format::kTypeString, "Mode"},
    {format::kTypeInt64, "PeriodNs"},      {format::kTypeInt64, "MonotonicNs"},
    {format::kTypeInt64, "RealtimeNs"},    {format::kTypeString, "ToolVersion"},
    {format::kTypeString, "Runtime"},
};
constexpr TypeField kThreadNameFields[] = {
    {format::kTypeInt32, "ThreadId"},
    {format::kTypeString, "Name"},
};
constexpr TypeField kCodeInfoFields[] = {
    {format::kTypeUint64, "MethodId"},
    {format::kTypeInt32, "Kind"},
    {format::kTypeString, "SourceFile"},
    {format::kTypeInt32, "SourceLine"},
};
constexpr TypeField kThreadTotalsFields[] = {
    {format::kTypeInt32, "ThreadId"}, {format::kTypeUint64, "Expected"},   {format::kTypeUint64, "Recorded"},
    {format::kTypeUint64, "Dropped"}, {format::kTypeUint64, "Suppressed"},
};
constexpr TypeField kSessionEndFields[] = {
    {format::kTypeUint64, "Expected"},       {format::kTypeUint64, "Recorded"},
    {format::kTypeUint64, "Dropped"},        {format::kTypeUint64, "Suppressed"},
    {format::kTypeUint64, "HandlerNs"},      {format::kTypeUint64, "HandlerMaxNs"},
    {format::kTypeUint64, "CollectorCpuNs"}, {format::kTypeUint64, "ProcessCpuNs"},
    {format::kTypeUint64, "DurationNs"},     {format::kTypeUint64, "HandlerP50Ns"},
    {format::kTypeUint64, "HandlerP99Ns"},
};
constexpr TypeField kModulePhaseFields[] = {
    {format::kTypeUint64, "ModuleId"}, {format::kTypeInt32, "Phase"}, {format::kTypeString, "Path"},
    {format::kTypeString, "Guid"},     {format::kTypeInt32, "Flags"},
};
constexpr TypeField kDomainPhaseFields[] = {
    {format::kTypeUint64, "DomainId"},
    {format::kTypeInt32, "Phase"},
    {format::kTypeString, "Name"},
};

// The length to which texts of `units` have to be cut so that they fit into `room` together.
std::size_t LongestThatFit(std::span<const std::size_t> units, std::size_t room) {
  std::size_t low = 0;
  std::size_t high = room;
  while (low < high) {
    const std::size_t middle = (low + high + 1) / 2;
    std::size_t total = 0;
    for (const std::size_t text : units) total += std::min(text, middle);
    if (total <= room) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// The size of a payload is known before it is filled: that of the fields of fixed size and of all texts,
// which have to share what is left of 65,535 bytes.
class PayloadWriter {
 public:
  PayloadWriter(Payload* out, std::size_t fixed_size, std::initializer_list<std::string_view> texts)
      : writer_(Allocate(out, fixed_size, texts)) {}

  template <typename T>
  void Put(T value) {
    writer_.Put(value);
  }
  void PutText(std::string_view text) { writer_ = ByteWriter(PutUtf16(writer_.at(), text, units_max_)); }
  void PutBytes(std::span<const std::byte> bytes) { writer_.PutBytes(bytes); }
  // All fields are there. A text that was cut may have left a byte or two.
  void Finish(Payload* out) { out->resize(static_cast<std::size_t>(writer_.at() - out->data())); }

 private:
  std::byte* Allocate(Payload* out, std::size_t fixed_size, std::initializer_list<std::string_view> texts) {
    std::array<std::size_t, 4> units{};
    std::size_t total = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      units[i] = Utf16Units(texts.begin()[i]) + 1;
      total += units[i];
    }
    const std::size_t room = (format::kPayloadSizeMax - fixed_size) / 2;
    if (total > room) {
      units_max_ = LongestThatFit({units.data(), texts.size()}, room) - 1;
      total = room;
    }
    out->resize(fixed_size + 2 * total);
    return out->data();
  }

  std::size_t units_max_ = SIZE_MAX;
  ByteWriter writer_;
};

void PutTotals(PayloadWriter* out, const Totals& totals) {
  out->Put(totals.expected);
  out->Put(totals.recorded);
  out->Put(totals.dropped);
  out->Put(totals.suppressed);
}

void TakeTotals(ByteReader* in, Totals* totals) {
  totals->expected = in->Take<std::uint64_t>();
  totals->recorded = in->Take<std::uint64_t>();
  totals->dropped = in->Take<std::uint64_t>();
  totals->suppressed = in->Take<std::uint64_t>();
}

void TakeGuid(ByteReader* in, std::uint8_t (&guid)[16]) {
  const std::span<const std::byte> bytes = in->TakeBytes(sizeof guid);
  if (!bytes.empty()) std::memcpy(guid, bytes.data(), bytes.size());
}

}  // namespace

constinit const TypeInfo kSampleType{kSampleProvider, 0, "", 0, 0, kInformational, {}};
constinit const TypeInfo kProcessInfoType{kEventPipeProvider, 1, "ProcessInfo", 0, 1, kLogAlways,
                                          kProcessInfoFields};
constinit const TypeInfo kMethodLoadVerboseType{kRuntimeProvider, 143, "", kMethodKeywords, 2,
                                                kInformational,   {}};
constinit const TypeInfo kMethodUnloadVerboseType{kRuntimeProvider, 144, "", kMethodKeywords, 2,
                                                  kInformational,   {}};
constinit const TypeInfo kModuleLoadType{kRuntimeProvider, 152, "", kModuleKeywords, 2, kInformational, {}};
constinit const TypeInfo kModuleUnloadType{kRuntimeProvider, 153, "", kModuleKeywords, 2, kInformational, {}};
constinit const TypeInfo kAppDomainLoadType{kRuntimeProvider, 156, "", kLoaderKeyword, 1, kInformational, {}};
constinit const TypeInfo kAppDomainUnloadType{kRuntimeProvider, 157, "", kLoaderKeyword, 1,
                                              kInformational,   {}};
constinit const TypeInfo kDcEndInitType{kRundownProvider, 148, "", kDcEndKeywords, 1, kInformational, {}};
constinit const TypeInfo kDcEndCompleteType{kRundownProvider, 146, "", kDcEndKeywords, 1, kInformational, {}};
constinit const TypeInfo kMethodDcEndVerboseType{kRundownProvider, 144, "", kMethodKeywords, 2,
                                                 kInformational,   {}};
constinit const TypeInfo kModuleDcEndType{kRundownProvider, 154, "", kModuleKeywords, 2, kInformational, {}};
constinit const TypeInfo kSessionStartType{kStackpipeProvider, 1, "SessionStart", 0, 0, kInformational,
                                           kSessionStartFields};
constinit const TypeInfo kThreadNameType{kStackpipeProvider, 2, "ThreadName", 0, 0, kInformational,
                                         kThreadNameFields};
constinit const TypeInfo kCodeInfoType{kStackpipeProvider, 3, "CodeInfo", 0, 0, kInformational,
                                       kCodeInfoFields};
constinit const TypeInfo kThreadTotalsType{kStackpipeProvider, 4, "ThreadTotals", 0, 0, kInformational,
                                           kThreadTotalsFields};
constinit const TypeInfo kSessionEndType{kStackpipeProvider, 5, "SessionEnd", 0, 0, kInformational,
                                         kSessionEndFields};
constinit const TypeInfo kModulePhaseType{kStackpipeProvider, 6, "ModulePhase", 0, 0, kInformational,
                                          kModulePhaseFields};
constinit const TypeInfo kDomainPhaseType{kStackpipeProvider, 7, "DomainPhase", 0, 0, kInformational,
                                          kDomainPhaseFields};

void Encode(const Sample& sample, Payload* out) {
  out->resize(4 + 1 + 2 * kVarUint64SizeMax);
  ByteWriter writer(out->data());
  writer.Put(static_cast<std::int32_t>(sample.type));
  writer.Put(sample.flags);
  writer.PutVarUint(sample.weight_ns);
  if ((sample.flags & kSampleStopMask) == kSampleStopDepth) writer.PutVarUint(sample.elided);
  out->resize(static_cast<std::size_t>(writer.at() - out->data()));
}

bool Decode(std::span<const std::byte> payload, Sample* out) {
  *out = {};
  ByteReader in(payload);
  out->type = static_cast<SampleType>(in.Take<std::int32_t>());
  if (in.left() == 0) return !in.failed();
  out->extended = true;
  out->flags = in.Take<std::uint8_t>();
  out->weight_ns = in.TakeVarUint<std::uint64_t>();
  if ((out->flags & kSampleStopMask) == kSampleStopDepth) out->elided = in.TakeVarUint<std::uint64_t>();
  return !in.failed();
}

void Encode(const Method& method, Payload* out) {
  PayloadWriter writer(out, 3 * 8 + 3 * 4 + 2 + 8, {method.name_space, method.name, method.signature});
  writer.Put(method.method_id);
  writer.Put(method.module_id);
  writer.Put(method.start);
  writer.Put(method.size);
  writer.Put(method.token);
  writer.Put(method.flags);
  writer.PutText(method.name_space);
  writer.PutText(method.name);
  writer.PutText(method.signature);
  writer.Put(kClrInstanceId);
  writer.Put(method.rejit_id);
  writer.Finish(out);
}

bool Decode(std::span<const std::byte> payload, std::int32_t version, Method* out) {
  ByteReader in(payload);
  out->method_id = in.Take<std::uint64_t>();
  out->module_id = in.Take<std::uint64_t>();
  out->start = in.Take<std::uint64_t>();
  out->size = in.Take<std::uint32_t>();
  out->token = in.Take<std::uint32_t>();
  out->flags = in.Take<std::uint32_t>();
  out->name_space = in.TakeUtf16Text();
  out->name = in.TakeUtf16Text();
  out->signature = in.TakeUtf16Text();
  if (version >= 1) in.Take<std::uint16_t>();
  out->rejit_id = version >= 2 ? in.Take<std::uint64_t>() : 0;
  return !in.failed();
}

void Encode(const Module& module, Payload* out) {
  PayloadWriter writer(out, 2 * 8 + 2 * 4 + 2 + 2 * (16 + 4),
                       {module.il_path, module.native_path, module.pdb_path, module.native_pdb_path});
  writer.Put(module.module_id);
  writer.Put(module.assembly_id);
  writer.Put(module.flags);
  writer.Put(std::uint32_t{0});
  writer.PutText(module.il_path);
  writer.PutText(module.native_path);
  writer.Put(kClrInstanceId);
  writer.PutBytes(std::as_bytes(std::span(module.pdb_signature)));
  writer.Put(module.pdb_age);
  writer.PutText(module.pdb_path);
  writer.PutBytes(std::as_bytes(std::span(module.native_pdb_signature)));
  writer.Put(module.native_pdb_age);
  writer.PutText(module.native_pdb_path);
  writer.Finish(out);
}

bool Decode(std::span<const std::byte> payload, std::int32_t version, Module* out) {
  *out = {};
  ByteReader in(payload);
  out->module_id = in.Take<std::uint64_t>();
  out->assembly_id = in.Take<std::uint64_t>();
  out->flags = in.Take<std::uint32_t>();
  in.Take<std::uint32_t>();
  out->il_path = in.TakeUtf16Text();
  out->native_path = in.TakeUtf16Text();
  if (version >= 1) in.Take<std::uint16_t>();
  if (version >= 2) {
    TakeGuid(&in, out->pdb_signature);
    out->pdb_age = in.Take<std::uint32_t>();
    out->pdb_path = in.TakeUtf16Text();
    TakeGuid(&in, out->native_pdb_signature);
    out->native_pdb_age = in.Take<std::uint32_t>();
    out->native_pdb_path = in.TakeUtf16Text();
  }
  return !in.failed();
}

void Encode(const AppDomain& domain, Payload* out) {
  PayloadWriter writer(out, 8 + 4 + 4 + 2, {domain.name});
  writer.Put(domain.id);
  writer.Put(domain.flags);
  writer.PutText(domain.name);
  writer.Put(domain.index);
  writer.Put(kClrInstanceId);
  writer.Finish(out);
}

bool Decode(std::span<const std::byte> payload, AppDomain* out) {
  ByteReader in(payload);
  out->id = in.Take<std::uint64_t>();
  out->flags = in.Take<std::uint32_t>();
  out->name = in.TakeUtf16Text();
  out->index = in.Take<std::uint32_t>();
  return !in.failed();
}

void Encode(const SessionStart& start, Payload* out) {
  PayloadWriter writer(out, 4 + 3 * 8, {start.mode, start.tool_version, start.runtime});
  writer.Put(start.format_version);
  writer.PutText(start.mode);
  writer.Put(start.period_ns);
  writer.Put(start.monotonic_ns);
  writer.Put(start.realtime_ns);
  writer.PutText(start.tool_version);
  writer.PutText(start.runtime);
  writer.Finish(out);
}

bool Decode(std::span<const std::byte> payload, SessionStart* out) {
  ByteReader in(payload);
  out->format_version = in.Take<std::int32_t>();
  out->mode = in.TakeUtf16Text();
  out->period_ns = in.Take<std::int64_t>();
  out->monotonic_ns = in.Take<std::int64_t>();
  out->realtime_ns = in.Take<std::int64_t>();
  out->tool_version = in.TakeUtf16Text();
  out->runtime = in.TakeUtf16Text();
  return !in.failed();
}

void Encode(const ThreadName& name, Payload* out) {
  PayloadWriter writer(out, 4, {name.name});
  writer.Put(name.thread_id);
  writer.PutText(name.name);
  writer.Finish(out);
}

bool Decode(std::span<const std::byte> payload, ThreadName* out) {
  ByteReader in(payload);
  out->thread_id = in.Take<std::int32_t>();
  out->name = in.TakeUtf16Text();
  return !in.failed();
}

void Encode(const CodeInfo& info, Payload* out) {
  PayloadWriter writer(out, 8 + 4 + 4, {info.source_file});
  writer.Put(info.method_id);
  writer.Put(info.kind);
  writer.PutText(info.source_file);
  writer.Put(info.source_line);
  writer.Finish(out);
}

bool Decode(std::span<const std::byte> payload, CodeInfo* out) {
  ByteReader in(payload);
  out->method_id = in.Take<std::uint64_t>();
  out->kind = in.Take<std::int32_t>();
  out->source_file = in.TakeUtf16Text();
  out->source_line = in.Take<std::int32_t>();
  return !in.failed();
}

void Encode(const ThreadTotals& totals, Payload* out) {
  PayloadWriter writer(out, 4 + 4 * 8, {});
  writer.Put(totals.thread_id);
  PutTotals(&writer, totals.totals);
  writer.Finish(out);
}

bool Decode(std::span<const std::byte> payload, ThreadTotals* out) {
  ByteReader in(payload);
  out->thread_id = in.Take<std::int32_t>();
  TakeTotals(&in, &out->totals);
  return !in.failed();
}

void Encode(const SessionEnd& end, Payload* out) {
  PayloadWriter writer(out, 11 * 8, {});
  PutTotals(&writer, end.totals);
  writer.Put(end.handler_ns);
  writer.Put(end.handler_max_ns);
  writer.Put(end.collector_cpu_ns);
  writer.Put(end.process_cpu_ns);
  writer.Put(end.duration_ns);
  writer.Put(end.handler_p50_ns);
  writer.Put(end.handler_p99_ns);
  writer.Finish(out);
}

bool Decode(std::span<const std::byte> payload, SessionEnd* out) {
  ByteReader in(payload);
  TakeTotals(&in, &out->totals);
  out->handler_ns = in.Take<std::uint64_t>();
  out->handler_max_ns = in.Take<std::uint64_t>();
  out->collector_cpu_ns = in.Take<std::uint64_t>();
  out->process_cpu_ns = in.Take<std::uint64_t>();
  out->duration_ns = in.Take<std::uint64_t>();
  out->handler_p50_ns = in.Take<std::uint64_t>();
  out->handler_p99_ns = in.Take<std::uint64_t>();
  return !in.failed();
}

void Encode(const ModulePhase& phase, Payload* out) {
  PayloadWriter writer(out, 8 + 4 + 4, {phase.path, phase.guid});
  writer.Put(phase.module_id);
  writer.Put(phase.phase);
  writer.PutText(phase.path);
  writer.PutText(phase.guid);
  writer.Put(phase.flags);
  writer.Finish(out);
}

bool Decode(std::span<const std::byte> payload, ModulePhase* out) {
  ByteReader in(payload);
  out->module_id = in.Take<std::uint64_t>();
  out->phase = in.Take<std::int32_t>();
  out->path = in.TakeUtf16Text();
  out->guid = in.TakeUtf16Text();
  out->flags = in.Take<std::int32_t>();
  return !in.failed();
}

void Encode(const DomainPhase& phase, Payload* out) {
  PayloadWriter writer(out, 8 + 4, {phase.name});
  writer.Put(phase.domain_id);
  writer.Put(phase.phase);
  writer.PutText(phase.name);
  writer.Finish(out);
}

bool Decode(std::span<const std::byte> payload, DomainPhase* out) {
  ByteReader in(payload);
  out->domain_id = in.Take<std::uint64_t>();
  out->phase = in.Take<std::int32_t>();
  out->name = in.TakeUtf16Text();
  return !in.failed();
}

void EncodeProcessInfo(std::string_view command_line, std::string_view os, std::string_view arch,
                       Payload* out) {
  PayloadWriter writer(out, 0, {command_line, os, arch});
  writer.PutText(command_line);
  writer.PutText(os);
  writer.PutText(arch);
  writer.Finish(out);
}

bool DecodeProcessInfo(std::span<const std::byte> payload, std::string* command_line, std::string* os,
                       std::string* arch) {
  ByteReader in(payload);
  *command_line = in.TakeUtf16Text();
  *os = in.TakeUtf16Text();
  *arch = in.TakeUtf16Text();
  return !in.failed();
}

void EncodeClrInstance(Payload* out) {
  PayloadWriter writer(out, sizeof kClrInstanceId, {});
  writer.Put(kClrInstanceId);
  writer.Finish(out);
}

}  // namespace stackpipe::nettrace
