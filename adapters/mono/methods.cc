// SPDX-License-Identifier: MIT
#include "methods.h"

#include <dlfcn.h>
#include <mono/metadata/debug-helpers.h>
#include <mono/metadata/mono-debug.h>

#include <memory>
#include <string>

#include "method_name.h"

extern "C" {
// Exported by Mono, in no public header.
MonoDebugMethodInfo* mono_debug_lookup_method(MonoMethod* method);
MonoDebugSourceLocation* mono_debug_method_lookup_location(MonoDebugMethodInfo* info, int il_offset);
}

namespace stackpipe::mono {

namespace {

struct MonoFree {
  void operator()(char* text) const { mono_free(text); }
};

// Where the method's source begins, if Mono runs with --debug and has symbols for it.
void ReadSource(MonoMethod* method, std::string* file, std::uint32_t* line) {
  if (!mono_debug_enabled()) return;
  MonoDebugMethodInfo* info = mono_debug_lookup_method(method);
  if (info == nullptr) return;
  MonoDebugSourceLocation* location = mono_debug_method_lookup_location(info, 0);
  if (location == nullptr) return;
  if (location->source_file != nullptr) *file = location->source_file;
  *line = location->row;
  mono_debug_free_source_location(location);
}

}  // namespace

void Methods::Compiled(MonoMethod* method, MonoJitInfo* info) {
  if (!session_.active()) return;
  const auto start = reinterpret_cast<std::uintptr_t>(mono_jit_info_get_code_start(info));
  const auto size = static_cast<std::size_t>(mono_jit_info_get_code_size(info));
  // The code may be of another method than the one that was asked for: shared generics, wrappers.
  MonoMethod* actual = mono_jit_info_get_method(info);
  if (actual == nullptr) actual = method;

  const std::unique_ptr<char, MonoFree> full_name(mono_method_full_name(actual, 1));
  const MethodName parts = SplitMethodName(full_name ? full_name.get() : "?");
  std::string source_file;
  CodeRegistration code;
  if (parts.wrapper.empty()) ReadSource(actual, &source_file, &code.source_line);

  MonoImage* image = mono_class_get_image(mono_method_get_class(actual));
  Dl_info object;
  const bool aot = !InChunk(start) && dladdr(reinterpret_cast<void*>(start), &object) != 0;
  if (aot) images_.NoteAot(image);

  std::string name_space(parts.type);
  std::string signature = "void ";  // readers drop what stands before the parameters
  signature += parts.parameters.empty() ? "()" : parts.parameters;
  if (!parts.wrapper.empty()) name_space = "(wrapper " + std::string(parts.wrapper) + ") " + name_space;

  code.start = start;
  code.size = size;
  code.kind = !parts.wrapper.empty() ? CodeKind::kWrapper : aot ? CodeKind::kAot : CodeKind::kJit;
  code.module_id = images_.Id(image);
  code.name_space = name_space;
  code.name = parts.method;
  code.signature = signature;
  code.source_file = source_file;

  const std::lock_guard lock(mutex_);
  if (Register(code, actual)) start_of_[actual] = start;
}

void Methods::StubMade(const void* start, std::uint64_t size, const char* name) {
  if (!session_.active()) return;
  CodeRegistration code;
  code.start = reinterpret_cast<std::uintptr_t>(start);
  code.size = size;
  code.kind = CodeKind::kTrampoline;
  code.name = name;
  const std::lock_guard lock(mutex_);
  Register(code, nullptr);
}

bool Methods::Register(const CodeRegistration& code, MonoMethod* method) {
  // Mono tells of precompiled methods once for each domain that uses them: the first registration stands.
  const auto same = live_.find(code.start);
  if (same != live_.end() && same->second.end == code.start + code.size && same->second.method == method) {
    return false;
  }
  RetireRange(code.start, code.start + code.size);
  const Result<CodeId> id = session_.code().Register(code);
  if (!id.ok()) return false;
  live_[code.start] = {code.start + code.size, id.value(), method};
  return true;
}

Methods::CodeByStart::iterator Methods::Retire(CodeByStart::iterator it) {
  session_.RetireCode(it->second.id);
  const auto newest = start_of_.find(it->second.method);
  if (newest != start_of_.end() && newest->second == it->first) start_of_.erase(newest);
  return live_.erase(it);
}

void Methods::RetireRange(std::uintptr_t start, std::uintptr_t end) {
  auto it = live_.upper_bound(start);
  if (it != live_.begin() && std::prev(it)->second.end > start) --it;
  while (it != live_.end() && it->first < end) it = Retire(it);
}

bool Methods::InChunk(std::uintptr_t pc) {
  const std::lock_guard lock(mutex_);
  const auto next = chunks_.upper_bound(pc);
  return next != chunks_.begin() && pc < std::prev(next)->second;
}

void Methods::ChunkCreated(const void* start, std::uint64_t size) {
  const auto at = reinterpret_cast<std::uintptr_t>(start);
  const std::lock_guard lock(mutex_);
  RetireRange(at, at + size);
  chunks_[at] = at + size;
}

void Methods::ChunkDestroyed(const void* start) {
  const std::lock_guard lock(mutex_);
  const auto chunk = chunks_.find(reinterpret_cast<std::uintptr_t>(start));
  if (chunk == chunks_.end()) return;
  RetireRange(chunk->first, chunk->second);
  chunks_.erase(chunk);
}

void Methods::Freed(MonoMethod* method) {
  const std::lock_guard lock(mutex_);
  const auto newest = start_of_.find(method);
  if (newest == start_of_.end()) return;
  const auto it = live_.find(newest->second);
  if (it != live_.end()) {
    Retire(it);
  }
}

}  // namespace stackpipe::mono
