// SPDX-License-Identifier: MIT
#include "nettrace/reader.h"

#include <new>

#include "nettrace/stream_reader.h"

namespace stackpipe::nettrace {

ReadSummary Read(ByteSource& source, Visitor& visitor) {
  ReadSummary summary;
  Status thrown;
  try {
    StreamReader reader(source, visitor);
    try {
      reader.Run();
    } catch (const std::bad_alloc&) {
      thrown = Status(StatusCode::kOutOfMemory, "memory to read a trace");
    } catch (...) {
      thrown = Status(StatusCode::kInvalidArgument, "the visitor of a trace has thrown");
    }
    summary = reader.Summary();
  } catch (...) {
    thrown = Status(StatusCode::kOutOfMemory, "memory to read a trace");
  }
  if (!thrown.ok()) summary.status = thrown;
  return summary;
}

}  // namespace stackpipe::nettrace
