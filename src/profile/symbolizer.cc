// SPDX-License-Identifier: MIT
#include "profile/symbolizer.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace stackpipe {
namespace {

CodeKind KindFromTrace(std::int32_t kind) {
  if (kind < 0 || kind > static_cast<std::int32_t>(CodeKind::kKernel)) return CodeKind::kUnknown;
  const auto known = static_cast<CodeKind>(kind);
  return known == CodeKind::kTrampoline ? CodeKind::kWrapper : known;
}

std::string DisplayName(const nettrace::Method& method, CodeKind kind) {
  if (kind == CodeKind::kNative) return method.name;
  std::string name;
  if (!method.name_space.empty()) name = method.name_space + '.';
  name += method.name;
  // "void (int)": what stands before the parenthesis is the return type.
  const std::size_t arguments = method.signature.find('(');
  if (arguments != std::string::npos) name += std::string_view(method.signature).substr(arguments);
  return name;
}

std::string FileName(const std::string& path) {
  const std::size_t slash = path.find_last_of("/\\");
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

bool IsRange(const nettrace::Method& method) {
  return method.size != 0 && method.start + method.size > method.start;
}

// What makes two functions the same one. NUL cannot be in a name: names come as NUL-terminated text.
std::string Key(std::string_view name, std::string_view module, CodeKind kind, bool pseudo,
                std::string_view file, std::int32_t line) {
  return fmt::format("{}{}{}{}{}{}{}{}{}", name, '\0', module, '\0',
                     static_cast<char>('A' + static_cast<int>(kind)), pseudo ? 'p' : 'f', file, '\0', line);
}

}  // namespace

Symbolizer::Symbolizer() { module_paths_.emplace_back(); }

std::uint32_t Symbolizer::Intern(Function function) {
  const auto next = static_cast<std::uint32_t>(functions_.size());
  const auto [at, is_new] =
      function_index_.try_emplace(Key(function.name, std::to_string(function.module), function.kind,
                                      function.pseudo, function.source_file, function.source_line),
                                  next);
  if (is_new) {
    function.symbol = static_cast<SymbolId>(symbols_.size());
    symbols_.push_back({.function = next});
    functions_.push_back(std::move(function));
  }
  return at->second;
}

std::uint32_t Symbolizer::FunctionOf(const nettrace::Method& method) {
  Function function;
  const auto info = code_info_.find(method.method_id);
  if (info != code_info_.end()) {
    function.kind = KindFromTrace(info->second.kind);
    function.source_file = info->second.source_file;
    function.source_line = info->second.source_line;
  } else {
    function.kind = (method.flags & nettrace::kMethodFlagJitted) != 0 ? CodeKind::kJit : CodeKind::kAot;
  }
  function.name = DisplayName(method, function.kind);
  function.module = ModuleOf(method.module_id);
  return Intern(std::move(function));
}

std::uint32_t Symbolizer::ModuleOf(std::uint64_t module_id) {
  if (module_id == 0) return 0;
  const auto [at, is_new] =
      current_modules_.try_emplace(module_id, static_cast<std::uint32_t>(module_paths_.size()));
  if (is_new) module_paths_.emplace_back();
  return at->second;
}

void Symbolizer::OnModule(const nettrace::Module& module) {
  const std::string& path = module.il_path.empty() ? module.native_path : module.il_path;
  if (module.module_id == 0 || path.empty()) return;
  const auto current = current_modules_.find(module.module_id);
  if (current != current_modules_.end()) {
    std::string& known = module_paths_[current->second];
    if (known == path) return;
    if (known.empty()) {
      known = path;
      module_index_.try_emplace(path, current->second);
      return;
    }
  }
  // New, or the id now belongs to another module.
  const auto [at, is_new] = module_index_.try_emplace(path, static_cast<std::uint32_t>(module_paths_.size()));
  if (is_new) module_paths_.push_back(path);
  current_modules_[module.module_id] = at->second;
}

void Symbolizer::OnCodeInfo(const nettrace::CodeInfo& info) { code_info_[info.method_id] = info; }

void Symbolizer::EraseLive(std::uint64_t start, std::uint64_t end) {
  auto at = live_.upper_bound(start);
  if (at != live_.begin() && std::prev(at)->second.end > start) --at;
  while (at != live_.end() && at->first < end) at = live_.erase(at);
}

void Symbolizer::OnMethodLoad(const nettrace::Method& method) {
  if (!IsRange(method)) return;
  const std::uint32_t function = FunctionOf(method);
  code_info_.erase(method.method_id);
  const std::uint64_t end = method.start + method.size;
  EraseLive(method.start, end);  // whatever was there is gone, even if nobody said so
  live_[method.start] = {end, functions_[function].symbol};
  ++generation_;
  if (announced_ || (method.flags & nettrace::kMethodFlagJitted) == 0) return;
  for (auto at = pending_.lower_bound(method.start); at != pending_.end() && at->first < end; ++at) {
    std::uint32_t& candidate = symbols_[at->second].candidate;
    if (candidate == kNone) candidate = function;
  }
}

void Symbolizer::OnMethodUnload(const nettrace::Method& method) {
  if (!IsRange(method)) return;
  NamePending(method);
  EraseLive(method.start, method.start + method.size);
  ++generation_;
}

void Symbolizer::OnMethodRundown(const nettrace::Method& method) {
  if (!IsRange(method)) return;
  NamePending(method);
  ++generation_;
}

void Symbolizer::NamePending(const nettrace::Method& method) {
  if (announced_) return;
  auto at = pending_.lower_bound(method.start);
  if (at == pending_.end() || at->first >= method.start + method.size) return;
  const std::uint32_t function = FunctionOf(method);
  while (at != pending_.end() && at->first < method.start + method.size) {
    symbols_[at->second].function = function;
    at = pending_.erase(at);
  }
}

SymbolId Symbolizer::Resolve(std::uint64_t pc) {
  if (pc == FlatMap<CachedPc>::kNoKey) return ResolveUncached(pc);
  CachedPc& cached = *cache_.TryEmplace(pc, {}).first;
  if (cached.generation != generation_) cached = {generation_, ResolveUncached(pc)};
  return cached.symbol;
}

SymbolId Symbolizer::ResolveUncached(std::uint64_t pc) {
  auto at = live_.upper_bound(pc);
  if (at != live_.begin() && pc < (--at)->second.end) return at->second.symbol;
  const auto [pending, is_new] = pending_.try_emplace(pc, static_cast<SymbolId>(symbols_.size()));
  if (is_new) symbols_.push_back({.pc = pc});
  return pending->second;
}

SymbolId Symbolizer::Mark(const char* name, CodeKind kind) {
  Function mark;
  mark.name = name;
  mark.kind = kind;
  mark.pseudo = true;
  return functions_[Intern(std::move(mark))].symbol;
}

std::vector<std::uint32_t> Symbolizer::Finish(const std::vector<bool>& used, Profile* profile) {
  // Modules by path: an id that was named late may have got a path that another one has too.
  std::vector<std::uint32_t> module_of(module_paths_.size(), 0);
  std::unordered_map<std::string, std::uint32_t> modules;
  profile->modules.assign(1, {});
  for (std::size_t i = 1; i < module_paths_.size(); ++i) {
    const std::string& path = module_paths_[i];
    if (path.empty()) continue;
    const auto [at, is_new] = modules.try_emplace(path, static_cast<std::uint32_t>(profile->modules.size()));
    if (is_new) profile->modules.push_back({.name = FileName(path), .path = path});
    module_of[i] = at->second;
  }

  std::vector<std::uint32_t> frame_of(symbols_.size(), kNoFrame);
  std::unordered_map<std::string, std::uint32_t> frames;
  for (std::size_t i = 0; i < symbols_.size(); ++i) {
    if (!used[i]) continue;
    const Symbol& symbol = symbols_[i];
    const std::uint32_t function = symbol.function != kNone ? symbol.function : symbol.candidate;
    ProfileFrame frame;
    if (function == kNone) {
      frame.name = fmt::format("0x{:x}", symbol.pc);
    } else {
      const Function& known = functions_[function];
      frame = {.name = known.name,
               .module = module_of[known.module],
               .kind = known.kind,
               .named = !known.pseudo,
               .pseudo = known.pseudo,
               .source_file = known.source_file,
               .source_line = known.source_line};
    }
    const auto next = static_cast<std::uint32_t>(profile->frame_table.size());
    const auto [at, is_new] = frames.try_emplace(Key(frame.name, std::to_string(frame.module), frame.kind,
                                                     !frame.named, frame.source_file, frame.source_line),
                                                 next);
    if (is_new) profile->frame_table.push_back(std::move(frame));
    frame_of[i] = at->second;
  }
  return frame_of;
}

}  // namespace stackpipe
