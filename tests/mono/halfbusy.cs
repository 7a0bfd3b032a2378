// SPDX-License-Identifier: MIT
// Threads that work 50 ms and sleep 50 ms in turn. Prints the share of time that each really worked.
using System;
using System.Diagnostics;
using System.Runtime.CompilerServices;
using System.Threading;

static class HalfBusy {
  static volatile int sink;

  [MethodImpl(MethodImplOptions.NoInlining)]
  static void Work(long ticks) {
    long end = Stopwatch.GetTimestamp() + ticks;
    int x = sink;
    while (Stopwatch.GetTimestamp() < end) {
      for (int i = 0; i < 10000; i++) x = x * 31 + i;
    }
    sink = x;
  }

  static void Main(string[] args) {
    double seconds = double.Parse(args[0], System.Globalization.CultureInfo.InvariantCulture);
    Thread[] threads = new Thread[2];
    for (int t = 0; t < threads.Length; t++) {
      int number = t;
      threads[t] = new Thread(() => {
        long work = 0;
        Stopwatch all = Stopwatch.StartNew();
        while (all.Elapsed.TotalSeconds < seconds) {
          long begin = Stopwatch.GetTimestamp();
          Work(Stopwatch.Frequency / 20);
          work += Stopwatch.GetTimestamp() - begin;
          Thread.Sleep(50);
        }
        Console.WriteLine("half-{0} {1}", number, work / (double)all.ElapsedTicks);
      });
      threads[t].Name = "half-" + number;
      threads[t].Start();
      Thread.Sleep(13);
    }
    foreach (Thread thread in threads) thread.Join();
  }
}
