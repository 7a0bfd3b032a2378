// SPDX-License-Identifier: MIT
// Spends three quarters of its time in Three and one quarter in One, and prints what it really was.
using System;
using System.Diagnostics;
using System.Runtime.CompilerServices;

static class Split {
  static double sink;

  [MethodImpl(MethodImplOptions.NoInlining)]
  static void Three(int rounds) {
    double x = sink;
    for (int i = 0; i < 3 * rounds; i++) x = x * 0.999999 + i;
    sink = x;
  }

  [MethodImpl(MethodImplOptions.NoInlining)]
  static void One(int rounds) {
    double x = sink;
    for (int i = 0; i < rounds; i++) x = x * 0.999999 + i;
    sink = x;
  }

  static void Main(string[] args) {
    double seconds = double.Parse(args[0], System.Globalization.CultureInfo.InvariantCulture);
    Three(10);
    One(10);
    long three = 0, one = 0;
    Stopwatch all = Stopwatch.StartNew();
    while (all.Elapsed.TotalSeconds < seconds) {
      long begin = Stopwatch.GetTimestamp();
      Three(100000);
      long middle = Stopwatch.GetTimestamp();
      One(100000);
      long end = Stopwatch.GetTimestamp();
      three += middle - begin;
      one += end - middle;
    }
    Console.WriteLine("Three {0}", three / (double)(three + one));
  }
}
