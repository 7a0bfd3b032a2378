// SPDX-License-Identifier: MIT
// A small shared object, loaded many times over by bench_code_map.
__attribute__((visibility("default"))) int stackpipe_bench_object(int x) { return x * 3 + 1; }
