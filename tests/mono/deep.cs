// SPDX-License-Identifier: MIT
// Recursion 900 deep, with work at the bottom.
using System;
using System.Diagnostics;
using System.Runtime.CompilerServices;

static class Deep {
  static volatile int sink;

  [MethodImpl(MethodImplOptions.NoInlining)]
  static int Down(int depth, double seconds) {
    if (depth == 0) {
      Stopwatch all = Stopwatch.StartNew();
      while (all.Elapsed.TotalSeconds < seconds) {
        for (int i = 0; i < 10000; i++) sink += i;
      }
      return 1;
    }
    return Down(depth - 1, seconds) + 1;
  }

  static void Main(string[] args) {
    Console.WriteLine(Down(900, double.Parse(args[0], System.Globalization.CultureInfo.InvariantCulture)));
  }
}
