// SPDX-License-Identifier: MIT
//
// The methods of a Mono process: registers each piece of code when Mono says that it is compiled, with
// everything that can be said of it then (later it cannot be had safely), and retires it when its memory
// goes: with its chunk of code memory, or alone if it is a dynamic method. Mono says nothing when a domain's
// methods go, but it does of each chunk; and not all code that is compiled in a domain belongs to it.
#ifndef STACKPIPE_ADAPTERS_MONO_METHODS_H_
#define STACKPIPE_ADAPTERS_MONO_METHODS_H_

#include <mono/metadata/appdomain.h>
#include <mono/metadata/class.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

#include "images.h"
#include "stackpipe/session.h"

namespace stackpipe::mono {

class Methods {
 public:
  Methods(Session& session, Images& images) : session_(session), images_(images) {}

  // From jit_done.
  void Compiled(MonoMethod* method, MonoJitInfo* info);
  // From jit_code_buffer: stubs and helpers, which never appear as frames.
  void StubMade(const void* start, std::uint64_t size, const char* name);

  void ChunkCreated(const void* start, std::uint64_t size);
  void ChunkDestroyed(const void* start);
  void Freed(MonoMethod* method);

 private:
  struct Code {
    std::uintptr_t end = 0;
    CodeId id = 0;
    MonoMethod* method = nullptr;  // never followed, only compared
  };
  using CodeByStart = std::map<std::uintptr_t, Code>;

  // All under mutex_.
  bool Register(const CodeRegistration& code, MonoMethod* method);
  CodeByStart::iterator Retire(CodeByStart::iterator it);
  void RetireRange(std::uintptr_t start, std::uintptr_t end);

  bool InChunk(std::uintptr_t pc);

  Session& session_;
  Images& images_;

  // No call into Mono while it is held: Mono may load classes and images, and call back.
  std::mutex mutex_;
  CodeByStart live_;
  std::unordered_map<MonoMethod*, std::uintptr_t> start_of_;  // the newest code of a method
  std::map<std::uintptr_t, std::uintptr_t> chunks_;           // start -> end
};

}  // namespace stackpipe::mono

#endif  // STACKPIPE_ADAPTERS_MONO_METHODS_H_
