// SPDX-License-Identifier: MIT
//
// Takes the descriptions of event types apart. What follows the fixed part and cannot be understood is left
// out, and the type still stands: its events can be read.
#ifndef STACKPIPE_NETTRACE_METADATA_H_
#define STACKPIPE_NETTRACE_METADATA_H_

#include <cstddef>
#include <span>

#include "nettrace/reader.h"

namespace stackpipe::nettrace {

// The payload of a version 4 metadata event. Returns false if the part before the fields is broken.
bool ParseMetadata4(std::span<const std::byte> payload, EventType* type);

// A row of a version 6 metadata block, without its size. Returns false if the part before the fields is
// broken.
bool ParseMetadata6(std::span<const std::byte> row, EventType* type);

}  // namespace stackpipe::nettrace

#endif  // STACKPIPE_NETTRACE_METADATA_H_
