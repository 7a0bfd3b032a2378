/* SPDX-License-Identifier: MIT
 *
 * Makes a shared object of the module that wasm2c turned into C: one function that a test can call. */
#include "sum.h"

__attribute__((visibility("default"))) unsigned aot_wasm_run(unsigned n) {
  static Z_sum_instance_t instance;
  wasm_rt_init();
  Z_sum_init_module();
  Z_sum_instantiate(&instance);
  unsigned result = Z_sumZ_run(&instance, n);
  Z_sum_free(&instance);
  wasm_rt_free();
  return result;
}
