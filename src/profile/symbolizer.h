// SPDX-License-Identifier: MIT
//
// Symbolizer: from addresses to functions, by time. It is told of code coming and going in the order of the
// stream and asked for addresses in between; an address gets the function that is live at that point.
//
// An address that no live function covers gets a symbol of its own, which may find its name later. .NET's
// traces need that, as most of their names come at the end; TraceLog's rules are followed:
//   - an unload or a rundown event names all nameless addresses in its range that were seen so far, at once;
//   - a load event that comes after the address was seen names it when the trace ends, if nothing else has,
//   and only
//     if it says that the method is jitted. The first such event counts.
// An address asked for again after it was named that way is a new one: its memory may be somebody else's.
// Traces of Stackpipe announce code before its first sample, so there none of this applies: code that comes
// later is other code, and naming the address after it would be a lie.
//
// Not thread-safe. Source of the rules: what TraceEvent's TraceLog does, observed.
#ifndef STACKPIPE_PROFILE_SYMBOLIZER_H_
#define STACKPIPE_PROFILE_SYMBOLIZER_H_

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "nettrace/clr_events.h"
#include "profile/call_tree.h"
#include "profile/flat_map.h"

namespace stackpipe {

class Symbolizer {
 public:
  Symbolizer();

  // From now on code is announced before it is sampled: see above.
  void SetAnnounced() { announced_ = true; }

  void OnCodeInfo(const nettrace::CodeInfo& info);
  void OnMethodLoad(const nettrace::Method& method);
  void OnMethodUnload(const nettrace::Method& method);
  void OnMethodRundown(const nettrace::Method& method);
  // Load, unload or rundown of a module: any of them may be the only one, or come after the module's methods.
  void OnModule(const nettrace::Module& module);

  SymbolId Resolve(std::uint64_t pc);
  // Changes whenever code comes or goes. As long as it does not, Resolve gives the same answers.
  std::uint64_t generation() const { return generation_; }
  // The symbol of a mark ([kernel] and the like).
  SymbolId Mark(const char* name, CodeKind kind);

  std::size_t symbol_count() const { return symbols_.size(); }
  // Fills `modules` and `frame_table` and returns the frame of each symbol, kNoFrame for those that are not
  // `used`. Call once, at the end.
  std::vector<std::uint32_t> Finish(const std::vector<bool>& used, Profile* profile);

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Function {
    std::string name;
    std::uint32_t module = 0;  // index into module_paths_
    CodeKind kind = CodeKind::kUnknown;
    bool pseudo = false;
    std::string source_file;
    std::int32_t source_line = 0;
    SymbolId symbol = kNoSymbol;
  };
  struct Symbol {
    std::uint64_t pc = 0;             // of a nameless address
    std::uint32_t function = kNone;   // its name, if it has one by now
    std::uint32_t candidate = kNone;  // its name if nothing better comes until the end
  };
  struct LiveRange {
    std::uint64_t end;
    SymbolId symbol;
  };
  struct CachedPc {
    std::uint64_t generation = 0;
    SymbolId symbol = kNoSymbol;
  };

  SymbolId ResolveUncached(std::uint64_t pc);
  std::uint32_t Intern(Function function);
  std::uint32_t FunctionOf(const nettrace::Method& method);
  std::uint32_t ModuleOf(std::uint64_t module_id);
  void EraseLive(std::uint64_t start, std::uint64_t end);
  void NamePending(const nettrace::Method& method);

  bool announced_ = false;
  std::vector<Function> functions_;
  std::unordered_map<std::string, std::uint32_t> function_index_;
  std::vector<Symbol> symbols_;

  // Invariant: the ranges do not overlap.
  std::map<std::uint64_t, LiveRange> live_;    // by start
  std::map<std::uint64_t, SymbolId> pending_;  // nameless addresses that may still get a name
  std::unordered_map<std::uint64_t, nettrace::CodeInfo> code_info_;  // by method id, until its load comes

  std::vector<std::string> module_paths_;  // [0] is "not known"; an empty one may still be filled in
  std::unordered_map<std::string, std::uint32_t> module_index_;       // by path
  std::unordered_map<std::uint64_t, std::uint32_t> current_modules_;  // by module id

  // Answers of Resolve, each valid while no code came or went since (generation_).
  FlatMap<CachedPc> cache_;
  std::uint64_t generation_ = 1;
};

}  // namespace stackpipe

#endif  // STACKPIPE_PROFILE_SYMBOLIZER_H_
