// SPDX-License-Identifier: MIT
//
// A library that native_program opens and closes again and again: it allocates when it is loaded, and can be
// called.
#include <cstdlib>

namespace {
__attribute__((constructor)) void OnLoad() {
  for (std::size_t size = 1; size < 500; ++size) std::free(std::malloc(size * 40));
}
}  // namespace

extern "C" __attribute__((visibility("default"))) unsigned PLUGIN_FUNCTION(unsigned rounds) {
  volatile unsigned sink = 0;
  for (unsigned i = 0; i < rounds; ++i) sink = sink + i;
  return sink;
}
