// SPDX-License-Identifier: MIT
//
// Another shared object: more code than plugin.cc, so other program headers.

extern "C" __attribute__((visibility("default"))) int other_call(int (*callback)(int), int depth) {
  return depth == 0 ? callback(0) : other_call(callback, depth - 1) + callback(depth);
}
