// SPDX-License-Identifier: MIT
#include "session/trace_writer.h"

#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "platform/port.h"

namespace stackpipe {

namespace {

using nettrace::Encode;

std::string CommandLine() {
  std::string line;
  std::FILE* file = std::fopen("/proc/self/cmdline", "re");
  if (file == nullptr) return line;
  char buffer[4096];
  std::string raw;
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) raw.append(buffer, n);
  std::fclose(file);
  // Readers take the program's name up to the first blank, unless it is quoted.
  for (std::size_t at = 0; at < raw.size(); at += std::strlen(raw.c_str() + at) + 1) {
    const std::string word = raw.c_str() + at;
    const bool quote = word.find(' ') != std::string::npos;
    if (!line.empty()) line += ' ';
    line += quote ? '"' + word + '"' : word;
  }
  return line;
}

nettrace::StreamHeader HeaderNow() {
  nettrace::StreamHeader header;
  header.sync_ticks = port::NowNs();
  const std::uint64_t realtime = port::RealtimeNs();
  const time_t seconds = static_cast<time_t>(realtime / 1'000'000'000u);
  tm utc{};
  gmtime_r(&seconds, &utc);
  const int parts[8] = {
      utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_wday, utc.tm_mday,
      utc.tm_hour,        utc.tm_min,     utc.tm_sec,  static_cast<int>(realtime / 1'000'000 % 1000)};
  for (std::size_t i = 0; i < 8; ++i) header.utc[i] = static_cast<std::int16_t>(parts[i]);
  header.process_id = getpid();
  header.processor_count = get_nprocs();
  return header;
}

nettrace::Module ModuleOf(const ModuleSnapshot& module) {
  nettrace::Module out;
  out.module_id = module.id;
  out.assembly_id = module.assembly_id;
  out.flags = module.dynamic ? 4u : 0u;
  out.il_path = module.path;
  out.native_path = module.native_path;
  std::copy(std::begin(module.pdb_guid), std::end(module.pdb_guid), std::begin(out.pdb_signature));
  out.pdb_age = module.pdb_age;
  out.pdb_path = module.pdb_path;
  return out;
}

// Of a function without a name: "libc.so.6+0x1234".
std::string OffsetName(const std::string& path, std::uint64_t offset) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "+0x%lx", static_cast<unsigned long>(offset));
  return path.substr(path.rfind('/') + 1) + digits;
}

}  // namespace

TraceWriter::TraceWriter(nettrace::Sink& sink, std::int32_t capture_tid, const CodeMap& code,
                         const AotImages& images, const NativeUnwinder& native)
    : code_(code),
      images_(images),
      native_(native),
      writer_(sink, static_cast<std::uint64_t>(capture_tid)),
      capture_tid_(capture_tid) {}

void TraceWriter::Begin(const SessionOptions& options) {
  nettrace::StreamHeader header = HeaderNow();
  header.expected_sampling_rate =
      static_cast<std::int32_t>(std::min<std::uint64_t>(options.period_ns, 1'000'000'000));
  failed_ |= !writer_.Begin(header).ok();
  // Times at or before the sync time mean "no time" to some readers.
  last_time_ns_ = header.sync_ticks + 1;
  nettrace::EncodeProcessInfo(CommandLine(), "Linux", "x64", &payload_);
  Event(nettrace::kProcessInfoType, 0);
  nettrace::SessionStart start;
  start.mode = options.mode == SampleMode::kCpu ? "cpu" : "wall";
  start.period_ns = static_cast<std::int64_t>(options.period_ns);
  start.monotonic_ns = static_cast<std::int64_t>(port::NowNs());
  start.realtime_ns = static_cast<std::int64_t>(port::RealtimeNs());
  start.tool_version = STACKPIPE_VERSION;
  start.runtime = options.runtime;
  Encode(start, &payload_);
  Event(nettrace::kSessionStartType, 0);
  Flush();
}

void TraceWriter::Event(const nettrace::TypeInfo& type, std::uint64_t time_ns, std::int32_t tid) {
  last_time_ns_ = std::max(last_time_ns_, time_ns);
  failed_ |= !writer_
                  .Event(type, last_time_ns_, static_cast<std::uint64_t>(tid != 0 ? tid : capture_tid_), true,
                         {}, payload_)
                  .ok();
}

bool TraceWriter::MethodOf(CodeId id, nettrace::Method* method, nettrace::CodeInfo* info) const {
  CodeDescriptor code;
  if (!code_.Describe(id, &code)) return false;
  method->method_id = id;
  method->module_id = code.module_id;
  method->start = code.start;
  method->size = static_cast<std::uint32_t>(code.size);
  method->flags = nettrace::kMethodFlagJitted;
  method->name_space = code.name_space;
  method->name = code.name;
  method->signature = code.signature;
  info->method_id = id;
  info->kind = static_cast<std::int32_t>(code.kind);
  info->source_file = code.source_file;
  info->source_line = static_cast<std::int32_t>(code.source_line);
  return true;
}

TraceWriter::Told& TraceWriter::ToldOf(CodeId id) {
  if (id >= code_told_.size()) code_told_.resize(id + std::size_t{1024}, Told::kNothing);
  return code_told_[id];
}

void TraceWriter::Load(const nettrace::CodeInfo& info, const nettrace::Method& method,
                       std::uint64_t time_ns) {
  Encode(info, &payload_);
  Event(nettrace::kCodeInfoType, time_ns);
  Encode(method, &payload_);
  Event(nettrace::kMethodLoadVerboseType, time_ns);
}

bool TraceWriter::AnnounceCode(CodeId id, std::uint64_t pc, std::uint64_t time_ns) {
  if (ToldOf(id) == Told::kNothing && !OpenAotImage(id, time_ns)) {
    nettrace::Method method;
    nettrace::CodeInfo info;
    if (!MethodOf(id, &method, &info)) return false;
    ToldOf(id) = Told::kLoad;
    Load(info, method, time_ns);
  }
  AotHit hit;
  if (ToldOf(id) != Told::kImage) return ToldOf(id) == Told::kLoad;
  return images_.Find(id, pc, &hit) == AotResult::kFound && AnnounceSeen(hit, time_ns);
}

bool TraceWriter::AnnounceSeen(const AotHit& hit, std::uint64_t time_ns) {
  const auto open = open_images_.find(hit.image);
  if (open == open_images_.end()) return ToldOf(hit.image) == Told::kUnload;
  OpenImage& image = open->second;
  AotName name;
  if (image.methods.count(hit.method) != 0) return true;
  if (!images_.Describe(hit.image, hit.method, &name)) return false;
  if (name.name.empty()) name.name = OffsetName(image.origin.path, hit.start - image.origin.base);
  nettrace::Method& method = image.methods[hit.method];
  method.method_id = next_native_id_++;
  method.module_id = image.module.module_id;
  method.start = hit.start;
  method.size = static_cast<std::uint32_t>(hit.size);
  method.flags = nettrace::kMethodFlagJitted;
  method.name_space = name.name_space;
  method.name = name.name;
  method.signature = name.signature;
  nettrace::CodeInfo info;
  info.method_id = method.method_id;
  info.kind = static_cast<std::int32_t>(name.kind != CodeKind::kUnknown ? name.kind : hit.kind);
  Load(info, method, time_ns);
  return true;
}

bool TraceWriter::OpenAotImage(CodeId id, std::uint64_t time_ns) {
  if (ToldOf(id) != Told::kNothing) return ToldOf(id) == Told::kImage;
  OpenImage image;
  if (!images_.DescribeImage(id, &image.range, &image.origin)) return false;
  ToldOf(id) = Told::kImage;
  // Code that ran before it was registered has its native names so far.
  UnloadNatives(image.range.start, image.range.start + image.range.size, time_ns);
  image.module.module_id = kAotModuleIds + id;
  image.module.flags = 2;  // native
  image.module.il_path = image.origin.path;
  std::copy_n(image.origin.build_id.begin(), std::min<std::size_t>(image.origin.build_id.size(), 16),
              image.module.native_pdb_signature);
  Encode(image.module, &payload_);
  Event(nettrace::kModuleLoadType, time_ns);
  open_images_.emplace(id, std::move(image));
  return true;
}

void TraceWriter::CloseAotImage(CodeId id, std::uint64_t time_ns, std::int32_t tid) {
  const auto open = open_images_.find(id);
  if (open == open_images_.end()) return;
  for (const auto& [index, method] : open->second.methods) {
    Encode(method, &payload_);
    Event(nettrace::kMethodUnloadVerboseType, time_ns, tid);
  }
  Encode(open->second.module, &payload_);
  Event(nettrace::kModuleUnloadType, time_ns, tid);
  open_images_.erase(open);
}

bool TraceWriter::AnnounceNative(std::uint64_t pc, std::uint64_t time_ns) {
  auto next = natives_.upper_bound(pc);
  if (next != natives_.begin() && pc < std::prev(next)->second.end) {
    const NativeMethod& named = std::prev(next)->second;
    if (time_ns >= named.certain_from_ns && time_ns < named.certain_until_ns) return true;
    // Another object's by now, or then.
    UnloadNatives(std::prev(next)->first, std::prev(next)->first + 1, time_ns);
  }
  for (const auto& [id, image] : open_images_) {
    if (pc - image.range.start < image.range.size) return false;  // its methods name it, or nothing does
  }
  NativeSymbol symbol;
  if (!native_.SymbolizeAt(pc, time_ns, &symbol)) return false;
  // What else is named in its object's place was another object's.
  for (auto it = natives_.lower_bound(symbol.object_start);
       it != natives_.end() && it->first < symbol.object_end;) {
    const bool other = it->second.object_id != symbol.object_id;
    const std::uint64_t start = it->first;
    ++it;
    if (other) UnloadNatives(start, start + 1, time_ns);
  }
  if (symbol.function_start == 0) return false;
  // Never two names for one address: what overlaps is left as it was told first.
  next = natives_.upper_bound(pc);
  std::uint64_t start = symbol.function_start;
  std::uint64_t end = symbol.function_end;
  if (next != natives_.end()) end = std::min<std::uint64_t>(end, next->first);
  if (next != natives_.begin()) start = std::max(start, std::prev(next)->second.end);

  if (native_modules_.find(symbol.object_id) == native_modules_.end()) {
    nettrace::Module module;
    module.module_id = kNativeIds + symbol.object_id;
    module.flags = 2;  // native
    // Not the native path: TraceEvent throws for one of fewer than seven characters ("[vdso]").
    module.il_path = symbol.object_path;
    std::copy_n(symbol.build_id, std::min<std::size_t>(symbol.build_id_size, 16),
                module.native_pdb_signature);
    Encode(module, &payload_);
    Event(nettrace::kModuleLoadType, time_ns);
    native_modules_.emplace(symbol.object_id, std::move(module));
  }
  NativeMethod native;
  native.end = end;
  native.method_id = next_native_id_++;
  native.object_id = symbol.object_id;
  native.certain_from_ns = symbol.certain_from_ns;
  native.certain_until_ns = symbol.certain_until_ns;
  native.method.method_id = native.method_id;
  native.method.module_id = kNativeIds + symbol.object_id;
  native.method.start = start;
  native.method.size = static_cast<std::uint32_t>(end - start);
  native.method.flags = nettrace::kMethodFlagJitted;
  native.method.name_space = "native";
  if (symbol.function.empty()) {
    native.method.name = OffsetName(symbol.object_path, start - symbol.object_start);
  } else {
    native.method.name = symbol.function;
  }
  nettrace::CodeInfo info;
  info.method_id = native.method_id;
  info.kind = static_cast<std::int32_t>(CodeKind::kNative);
  Load(info, native.method, time_ns);
  natives_.emplace(start, std::move(native));
  return true;
}

void TraceWriter::NativeObjectsChanged(std::uint64_t time_ns) {
  for (auto it = natives_.begin(); it != natives_.end();) {
    NativeSymbol now;
    if (native_.Symbolize(it->first, &now) && now.object_id == it->second.object_id) {
      ++it;
      continue;
    }
    Encode(it->second.method, &payload_);
    Event(nettrace::kMethodUnloadVerboseType, time_ns);
    it = natives_.erase(it);
  }
}

void TraceWriter::UnloadNatives(std::uint64_t start, std::uint64_t end, std::uint64_t time_ns) {
  auto it = natives_.lower_bound(start);
  while (it != natives_.end() && it->first < end) {
    Encode(it->second.method, &payload_);
    Event(nettrace::kMethodUnloadVerboseType, time_ns);
    it = natives_.erase(it);
  }
}

bool TraceWriter::Write(const SampleOut& out) {
  if (failed_) return false;
  last_time_ns_ = std::max(last_time_ns_, out.time_ns);
  Encode(out.sample, &payload_);
  failed_ = !writer_
                 .Event(nettrace::kSampleType, last_time_ns_, static_cast<std::uint64_t>(out.tid), true,
                        *out.stack, payload_)
                 .ok();
  return !failed_;
}

void TraceWriter::WriteModule(const ModuleSnapshot& module, const nettrace::TypeInfo& type,
                              std::uint64_t time_ns, std::int32_t tid) {
  Encode(ModuleOf(module), &payload_);
  Event(type, time_ns, tid);
}

void TraceWriter::Write(const LifecycleEvent& event) {
  const std::uint64_t time = event.time_ns;
  const std::int32_t tid = event.tid;
  if (const auto* m = std::get_if<ModuleEvent>(&event.what)) {
    nettrace::ModulePhase phase;
    phase.module_id = m->module.id;
    phase.phase = static_cast<std::int32_t>(m->phase);
    phase.path = m->module.path;
    phase.guid = m->module.guid;
    phase.flags = (m->module.dynamic ? 1 : 0) | (m->module.aot ? 2 : 0);
    Encode(phase, &payload_);
    Event(nettrace::kModulePhaseType, time, tid);
    if (m->phase == LifecyclePhase::kLoaded) {
      modules_[m->module.id] = m->module;
      WriteModule(m->module, nettrace::kModuleLoadType, time, tid);
    } else if (m->phase == LifecyclePhase::kUnloaded) {
      WriteModule(m->module, nettrace::kModuleUnloadType, time, tid);
      modules_.erase(m->module.id);
    }
  } else if (const auto* d = std::get_if<DomainEvent>(&event.what)) {
    nettrace::DomainPhase phase;
    phase.domain_id = d->domain.id;
    phase.phase = static_cast<std::int32_t>(d->phase);
    phase.name = d->domain.name;
    Encode(phase, &payload_);
    Event(nettrace::kDomainPhaseType, time, tid);
    if (d->phase == LifecyclePhase::kLoaded || d->phase == LifecyclePhase::kUnloaded) {
      nettrace::AppDomain domain;
      domain.id = d->domain.id;
      domain.name = d->domain.name;
      domain.index = static_cast<std::uint32_t>(d->domain.id);
      Encode(domain, &payload_);
      Event(
          d->phase == LifecyclePhase::kLoaded ? nettrace::kAppDomainLoadType : nettrace::kAppDomainUnloadType,
          time, tid);
    }
  } else if (const auto* opened = std::get_if<AotImageOpened>(&event.what)) {
    OpenAotImage(opened->id, time);
  } else if (const auto* retired = std::get_if<CodeRetired>(&event.what)) {
    CloseAotImage(retired->id, time, tid);
    nettrace::Method method;
    nettrace::CodeInfo info;
    Told& told = ToldOf(retired->id);
    if (told == Told::kLoad && MethodOf(retired->id, &method, &info)) {
      Encode(method, &payload_);
      Event(nettrace::kMethodUnloadVerboseType, time, tid);
    }
    told = Told::kUnload;
  } else if (const auto* named = std::get_if<ThreadNamed>(&event.what)) {
    nettrace::ThreadName name;
    name.thread_id = named->tid;
    name.name = named->name;
    Encode(name, &payload_);
    Event(nettrace::kThreadNameType, time, tid);
  }
}

void TraceWriter::Write(const nettrace::ThreadTotals& totals, std::uint64_t time_ns) {
  Encode(totals, &payload_);
  Event(nettrace::kThreadTotalsType, time_ns);
}

void TraceWriter::Flush() { failed_ |= !writer_.Flush().ok(); }

void TraceWriter::SequencePoint(std::uint64_t time_ns) {
  last_time_ns_ = std::max(last_time_ns_, time_ns);
  failed_ |= !writer_.SequencePoint(last_time_ns_).ok();
}

void TraceWriter::End(const nettrace::SessionEnd& end, std::uint64_t time_ns) {
  nettrace::EncodeClrInstance(&payload_);
  Event(nettrace::kDcEndInitType, time_ns);
  std::vector<CodeId> live;
  code_.ForEachLive([](void* to, CodeId id) { static_cast<std::vector<CodeId>*>(to)->push_back(id); }, &live);
  std::sort(live.begin(), live.end());
  for (const CodeId id : live) {
    nettrace::Method method;
    nettrace::CodeInfo info;
    if (ToldOf(id) == Told::kImage || !MethodOf(id, &method, &info)) continue;
    Encode(method, &payload_);
    Event(nettrace::kMethodDcEndVerboseType, time_ns);
  }
  for (const auto& [id, image] : open_images_) {
    for (const auto& [index, method] : image.methods) {
      Encode(method, &payload_);
      Event(nettrace::kMethodDcEndVerboseType, time_ns);
    }
  }
  for (const auto& [start, native] : natives_) {
    Encode(native.method, &payload_);
    Event(nettrace::kMethodDcEndVerboseType, time_ns);
  }
  for (const auto& [id, module] : modules_) WriteModule(module, nettrace::kModuleDcEndType, time_ns, 0);
  for (const auto& [id, image] : open_images_) {
    Encode(image.module, &payload_);
    Event(nettrace::kModuleDcEndType, time_ns);
  }
  for (const auto& [id, module] : native_modules_) {
    Encode(module, &payload_);
    Event(nettrace::kModuleDcEndType, time_ns);
  }
  nettrace::EncodeClrInstance(&payload_);
  Event(nettrace::kDcEndCompleteType, time_ns);
  Encode(end, &payload_);
  Event(nettrace::kSessionEndType, time_ns);
  failed_ |= !writer_.End(last_time_ns_).ok();
}

}  // namespace stackpipe
