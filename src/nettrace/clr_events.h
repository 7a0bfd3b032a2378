// SPDX-License-Identifier: MIT
//
// Events that a Stackpipe trace carries: .NET's own (names and payloads as the CLR writes them) and the
// provider "Stackpipe" (docs/formats/stackpipe-provider.md). Encoding and decoding stand side by side, so
// that they agree.
//
// Source: dotnet/runtime, ClrEtwAll.man (payload layouts).
#ifndef STACKPIPE_NETTRACE_CLR_EVENTS_H_
#define STACKPIPE_NETTRACE_CLR_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nettrace/writer.h"

namespace stackpipe::nettrace {

inline constexpr char kSampleProvider[] = "Microsoft-DotNETCore-SampleProfiler";
inline constexpr char kRuntimeProvider[] = "Microsoft-Windows-DotNETRuntime";
inline constexpr char kRundownProvider[] = "Microsoft-Windows-DotNETRuntimeRundown";
inline constexpr char kEventPipeProvider[] = "Microsoft-DotNETCore-EventPipe";
inline constexpr char kStackpipeProvider[] = "Stackpipe";

// Event types for Writer::Event.
extern const TypeInfo kSampleType;               // SampleProfiler/0
extern const TypeInfo kProcessInfoType;          // EventPipe/1
extern const TypeInfo kMethodLoadVerboseType;    // Runtime/143 v2
extern const TypeInfo kMethodUnloadVerboseType;  // Runtime/144 v2
extern const TypeInfo kModuleLoadType;           // Runtime/152 v2
extern const TypeInfo kModuleUnloadType;         // Runtime/153 v2
extern const TypeInfo kAppDomainLoadType;        // Runtime/156 v1
extern const TypeInfo kAppDomainUnloadType;      // Runtime/157 v1
extern const TypeInfo kDcEndInitType;            // Rundown/148 v1
extern const TypeInfo kDcEndCompleteType;        // Rundown/146 v1
extern const TypeInfo kMethodDcEndVerboseType;   // Rundown/144 v2
extern const TypeInfo kModuleDcEndType;          // Rundown/154 v2
extern const TypeInfo kSessionStartType;         // Stackpipe/1
extern const TypeInfo kThreadNameType;           // Stackpipe/2
extern const TypeInfo kCodeInfoType;             // Stackpipe/3
extern const TypeInfo kThreadTotalsType;         // Stackpipe/4
extern const TypeInfo kSessionEndType;           // Stackpipe/5
extern const TypeInfo kModulePhaseType;          // Stackpipe/6
extern const TypeInfo kDomainPhaseType;          // Stackpipe/7

using Payload = std::vector<std::byte>;

enum class SampleType : std::int32_t { kError = 0, kExternal = 1, kManaged = 2 };
inline constexpr std::uint8_t kSampleStopMask = 0x0f;  // why the walk stopped; 0 = it did not
inline constexpr std::uint8_t kSampleStopDepth = 1;
inline constexpr std::uint8_t kSampleInKernel = 0x10;
inline constexpr std::uint8_t kSampleOffCpu = 0x20;

struct Sample {
  SampleType type = SampleType::kError;
  bool extended = false;  // decode: the fields below were there
  std::uint8_t flags = 0;
  std::uint64_t weight_ns = 0;
  std::uint64_t elided = 0;
};

inline constexpr std::uint32_t kMethodFlagDynamic = 0x1;
inline constexpr std::uint32_t kMethodFlagGeneric = 0x2;
inline constexpr std::uint32_t kMethodFlagJitted = 0x8;
inline constexpr std::uint16_t kClrInstanceId = 9;  // what Mono writes

struct Method {
  std::uint64_t method_id = 0, module_id = 0, start = 0;
  std::uint32_t size = 0, token = 0, flags = 0;
  std::string name_space, name, signature;  // UTF-8
  std::uint64_t rejit_id = 0;
};

struct Module {
  std::uint64_t module_id = 0, assembly_id = 0;
  std::uint32_t flags = 0;
  std::string il_path, native_path;
  std::uint8_t pdb_signature[16] = {};
  std::uint32_t pdb_age = 0;
  std::string pdb_path;
  std::uint8_t native_pdb_signature[16] = {};
  std::uint32_t native_pdb_age = 0;
  std::string native_pdb_path;
};

struct AppDomain {
  std::uint64_t id = 0;
  std::uint32_t flags = 0;
  std::string name;
  std::uint32_t index = 0;
};

struct SessionStart {
  std::int32_t format_version = 1;
  std::string mode;
  std::int64_t period_ns = 0, monotonic_ns = 0, realtime_ns = 0;
  std::string tool_version, runtime;
};
struct ThreadName {
  std::int32_t thread_id = 0;
  std::string name;
};
struct CodeInfo {
  std::uint64_t method_id = 0;
  std::int32_t kind = 0;
  std::string source_file;
  std::int32_t source_line = 0;
};
struct Totals {
  std::uint64_t expected = 0, recorded = 0, dropped = 0, suppressed = 0;
};
struct ThreadTotals {
  std::int32_t thread_id = 0;
  Totals totals;
};
struct SessionEnd {
  Totals totals;
  std::uint64_t handler_ns = 0, handler_max_ns = 0, collector_cpu_ns = 0, process_cpu_ns = 0, duration_ns = 0;
  std::uint64_t handler_p50_ns = 0, handler_p99_ns = 0;  // duration of one handler
};

struct ModulePhase {
  std::uint64_t module_id = 0;
  std::int32_t phase = 0;  // 0 loading, 1 loaded, 2 unloading, 3 unloaded
  std::string path, guid;
  std::int32_t flags = 0;  // 1 dynamic, 2 has precompiled code
};
struct DomainPhase {
  std::uint64_t domain_id = 0;
  std::int32_t phase = 0;  // as ModulePhase::phase
  std::string name;
};

// Each Encode clears `out` and fills it. Ill-formed UTF-8, and a NUL in a text, become U+FFFD. A payload
// never exceeds 65,535 bytes: over-long texts are cut, the longest first. Any thread; they hold nothing but
// `out`.
void Encode(const Sample&, Payload* out);
void Encode(const Method&, Payload* out);
void Encode(const Module&, Payload* out);
void Encode(const AppDomain&, Payload* out);
void Encode(const SessionStart&, Payload* out);
void Encode(const ThreadName&, Payload* out);
void Encode(const CodeInfo&, Payload* out);
void Encode(const ThreadTotals&, Payload* out);
void Encode(const SessionEnd&, Payload* out);
void Encode(const ModulePhase&, Payload* out);
void Encode(const DomainPhase&, Payload* out);
void EncodeProcessInfo(std::string_view command_line, std::string_view os, std::string_view arch,
                       Payload* out);
void EncodeClrInstance(Payload* out);  // DCEndInit, DCEndComplete

// Each Decode returns false if the payload is too short or broken; `out` is then unspecified. What follows
// the known fields is ignored: later versions append. `version` is the event type's: methods and modules
// grew.
bool Decode(std::span<const std::byte> payload, Sample* out);
bool Decode(std::span<const std::byte> payload, std::int32_t version, Method* out);
bool Decode(std::span<const std::byte> payload, std::int32_t version, Module* out);
bool Decode(std::span<const std::byte> payload, AppDomain* out);
bool Decode(std::span<const std::byte> payload, SessionStart* out);
bool Decode(std::span<const std::byte> payload, ThreadName* out);
bool Decode(std::span<const std::byte> payload, CodeInfo* out);
bool Decode(std::span<const std::byte> payload, ThreadTotals* out);
bool Decode(std::span<const std::byte> payload, SessionEnd* out);
bool Decode(std::span<const std::byte> payload, ModulePhase* out);
bool Decode(std::span<const std::byte> payload, DomainPhase* out);
bool DecodeProcessInfo(std::span<const std::byte> payload, std::string* command_line, std::string* os,
                       std::string* arch);

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_CLR_EVENTS_H_
