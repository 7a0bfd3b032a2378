// SPDX-License-Identifier: MIT
#include "profile/profile.h"

namespace stackpipe {

const char* KindName(CodeKind kind) {
  switch (kind) {
    case CodeKind::kNative:
      return "native";
    case CodeKind::kJit:
      return "jit";
    case CodeKind::kAot:
      return "aot";
    case CodeKind::kInterpreter:
      return "interpreter";
    case CodeKind::kWrapper:
    case CodeKind::kTrampoline:
      return "wrapper";
    case CodeKind::kKernel:
      return "kernel";
    case CodeKind::kUnknown:
      break;
  }
  return "unknown";
}

const char* UnitName(WeightUnit unit) { return unit == WeightUnit::kSamples ? "samples" : "ns"; }

const char* StopReasonName(std::size_t reason) {
  // docs/formats/stackpipe-provider.md, "The sample".
  static constexpr const char* kNames[] = {
      "complete",    "depth limit",   "unknown code",          "bad memory",
      "no progress", "foreign stack", "runtime walker failed", "not walked"};
  return reason < std::size(kNames) ? kNames[reason] : "not known";
}

}  // namespace stackpipe
