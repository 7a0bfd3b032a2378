// SPDX-License-Identifier: MIT
//
// A shared object with a few functions, to be opened as an AOT image.
extern "C" {

__attribute__((visibility("default"), noinline)) int aot_plugin_twice(int x) { return x * 2; }

__attribute__((visibility("hidden"), noinline)) int aot_plugin_hidden(int x) {
  return aot_plugin_twice(x) + 1;
}

__attribute__((visibility("default"), noinline)) int aot_plugin_entry(int x) {
  return aot_plugin_hidden(x) * aot_plugin_twice(x);
}

// Where the hidden function lies, which a stripped file does not say.
__attribute__((visibility("default"))) int (*aot_plugin_where_hidden_is)(int) = aot_plugin_hidden;
}

namespace aot_plugin {

template <typename T>
struct Shape {
  __attribute__((visibility("default"), noinline)) T Area(T width) const { return width * width; }
};
template struct Shape<long>;

}  // namespace aot_plugin
