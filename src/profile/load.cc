// SPDX-License-Identifier: MIT
#include "profile/load.h"

#include <fmt/format.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "nettrace/reader.h"
#include "profile/builder.h"

namespace stackpipe {
namespace {

std::string SystemText(int error) { return std::generic_category().message(error); }

std::string WhyNotOpened(const std::string& path, const Status& status) {
  switch (status.os_error()) {
    case ENOENT:
      return fmt::format("{}: there is no such file", path);
    case EACCES:
      return fmt::format("{}: no permission to read it", path);
    case EISDIR:
      return fmt::format("{}: is a directory; a trace file is wanted", path);
    default:
      break;
  }
  return status.os_error() != 0 ? fmt::format("{}: cannot be read: {}", path, SystemText(status.os_error()))
                                : fmt::format("{}: cannot be read: {}", path, status.context());
}

// Called when the stream was not good to the end.
std::string WhatIsWrong(const std::string& path, const nettrace::ReadSummary& summary, bool saw_trace) {
  const std::string detail = summary.detail.empty() ? "" : fmt::format(" ({})", summary.detail);
  switch (summary.status.code()) {
    case StatusCode::kIo:
      return WhyNotOpened(path, summary.status);
    case StatusCode::kTruncated:
      if (!saw_trace)
        return fmt::format("{}: stops before its header ends; nothing was recorded in it{}", path, detail);
      return fmt::format("{}: stops before its end mark; what came before is shown{}", path, detail);
    case StatusCode::kUnsupported:
      return fmt::format("{}: cannot be read by this version{}", path, detail);
    default:
      break;
  }
  if (!saw_trace) {
    return fmt::format(
        "{}: is not a nettrace file; such files are written by 'stackpipe record' and dotnet-trace{}", path,
        detail);
  }
  return fmt::format("{}: is damaged; what came before the damage is shown{}", path, detail);
}

// Remembers whether there were any bytes at all.
class CountingSource : public nettrace::ByteSource {
 public:
  explicit CountingSource(nettrace::ByteSource* source) : source_(source) {}
  Result<std::size_t> Read(std::byte* to, std::size_t size) override {
    Result<std::size_t> got = source_->Read(to, size);
    if (got.ok()) bytes_ += got.value();
    return got;
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  nettrace::ByteSource* source_;
  std::uint64_t bytes_ = 0;
};

}  // namespace

LoadedProfile LoadProfile(const std::string& path) {
  LoadedProfile loaded;
  Result<std::unique_ptr<nettrace::ByteSource>> file = nettrace::OpenFile(path.c_str());
  if (!file.ok()) {
    loaded.problem = WhyNotOpened(path, file.status());
    return loaded;
  }
  CountingSource source(file.value().get());
  ProfileBuilder builder;
  const nettrace::ReadSummary summary = nettrace::Read(source, builder);
  if (!summary.status.ok()) {
    loaded.problem = source.bytes() == 0 && summary.status.code() != StatusCode::kIo
                         ? fmt::format("{}: is empty; nothing was recorded in it", path)
                         : WhatIsWrong(path, summary, builder.saw_trace());
  }
  loaded.ok = builder.saw_trace() && summary.status.code() != StatusCode::kIo;
  if (loaded.ok) loaded.profile = builder.Finish(summary);
  return loaded;
}

}  // namespace stackpipe
