// SPDX-License-Identifier: MIT
//
// Fuzzes the nettrace reader, versions 4 and 6, and the decoders of the payloads that it delivers. Whatever
// comes, what the summary says must agree with what was delivered, and in what pieces the bytes come must
// make no difference.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "nettrace/clr_events.h"
#include "nettrace/reader.h"

namespace {

using namespace stackpipe;
using namespace stackpipe::nettrace;

void Require(bool condition) {
  if (!condition) std::abort();
}

struct Checker : Visitor {
  std::uint64_t events = 0;
  std::uint64_t sum = 0;  // of all that was delivered

  void OnTrace(const TraceInfo& trace) override {
    Require(trace.pointer_size == 4 || trace.pointer_size == 8);
    Require(trace.ticks_per_second > 0 && trace.ticks_per_second <= INT64_MAX);
  }

  void OnEvent(const Event& event) override {
    ++events;
    Mix(event.timestamp);
    Mix(event.type->id);
    Mix(event.thread_id);
    for (const std::uint64_t address : event.stack) Mix(address);
    for (const std::byte byte : event.payload) Mix(static_cast<std::uint64_t>(byte));
    DecodeAsEach(event);
  }

  void Mix(std::uint64_t value) { sum = (sum ^ value) * 0x9e37'79b9'7f4a'7c15; }

  template <typename T>
  static void DecodeAs(std::span<const std::byte> payload) {
    T out;
    (void)Decode(payload, &out);
  }

  static void DecodeAsEach(const Event& event) {
    DecodeAs<Sample>(event.payload);
    DecodeAs<AppDomain>(event.payload);
    DecodeAs<SessionStart>(event.payload);
    DecodeAs<ThreadName>(event.payload);
    DecodeAs<CodeInfo>(event.payload);
    DecodeAs<ThreadTotals>(event.payload);
    DecodeAs<SessionEnd>(event.payload);
    DecodeAs<ModulePhase>(event.payload);
    DecodeAs<DomainPhase>(event.payload);
    Method method;
    (void)Decode(event.payload, event.type->version, &method);
    Module module;
    (void)Decode(event.payload, event.type->version, &module);
    std::string command_line, os, arch;
    (void)DecodeProcessInfo(event.payload, &command_line, &os, &arch);
  }
};

// A few bytes at a time.
class DrippingSource : public ByteSource {
 public:
  explicit DrippingSource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  Result<std::size_t> Read(std::byte* to, std::size_t size) override {
    const std::size_t piece = std::min({size, bytes_.size(), std::size_t{13}});
    if (piece != 0) std::memcpy(to, bytes_.data(), piece);
    bytes_ = bytes_.subspan(piece);
    return piece;
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const std::unique_ptr<ByteSource> source = FromMemory(bytes);
  Checker checker;
  const ReadSummary summary = Read(*source, checker);
  Require(summary.events == checker.events);
  Require(summary.bytes <= size);
  Require(summary.complete == summary.status.ok());
  Require(summary.status.ok() == summary.detail.empty());
  const StatusCode code = summary.status.code();
  Require(code == StatusCode::kOk || code == StatusCode::kTruncated || code == StatusCode::kFormat ||
          code == StatusCode::kUnsupported);

  DrippingSource drops(bytes);
  Checker again;
  const ReadSummary second = Read(drops, again);
  Require(again.sum == checker.sum && second.events == summary.events && second.lost == summary.lost);
  Require(second.bytes == summary.bytes && second.detail == summary.detail);
  return 0;
}
