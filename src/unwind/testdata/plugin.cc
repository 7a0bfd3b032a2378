// SPDX-License-Identifier: MIT
//
// A shared object for the tests to load and unload.

extern "C" __attribute__((visibility("default"))) void plugin_call(void (*callback)(void*), void* context) {
  callback(context);
  asm volatile("");  // no tail call
}
