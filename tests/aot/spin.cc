// SPDX-License-Identifier: MIT
//
// A shared object with one busy function, and one that calls it. Built twice, under different names, so that
// two files have the same layout; both want to lie at the same address.
#ifndef SPIN_NAME
#error "SPIN_NAME says what the busy function is called"
#endif

extern "C" {

__attribute__((visibility("hidden"), noinline)) unsigned SPIN_NAME(unsigned count) {
  volatile unsigned sum = 0;
  for (unsigned i = 0; i < count; ++i) sum = sum * 31 + i;
  return sum;
}

__attribute__((visibility("default"))) unsigned aot_spin_run(unsigned count) { return SPIN_NAME(count) + 1; }

// A chain that is deeper than a short stack: only the deepest of it is on the processor for long.
#define LINK(from, to)                                                                       \
  __attribute__((visibility("hidden"), noinline)) unsigned aot_spin_##from(unsigned count) { \
    return aot_spin_##to(count) + 1;                                                         \
  }
__attribute__((visibility("hidden"), noinline)) unsigned aot_spin_link6(unsigned count) {
  return SPIN_NAME(count) + 1;
}
LINK(link5, link6)
LINK(link4, link5)
LINK(link3, link4)
LINK(link2, link3)
LINK(link1, link2)
__attribute__((visibility("default"))) unsigned aot_spin_run_deep(unsigned count) {
  return aot_spin_link1(count) + 1;
}
}

// Code that is no function by any symbol, but can be walked.
asm(R"(
  .text
  .globl aot_spin_gap
aot_spin_gap:
  .cfi_startproc
  movl %edi, %eax
1:
  decl %eax
  jnz 1b
  ret
  .cfi_endproc
)");
