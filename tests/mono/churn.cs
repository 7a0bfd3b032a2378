// SPDX-License-Identifier: MIT
// Loads and unloads a child domain again and again. Each cycle runs a method that only this cycle runs, so a frame that
// is seen outside its cycle has a wrong name. Prints "cycle BEGIN END" in ns of the monotonic clock.
using System;
using System.Diagnostics;

static class Churn {
  static long NowNs() { return (long)(Stopwatch.GetTimestamp() * (1e9 / Stopwatch.Frequency)); }

  static void Main(string[] args) {
    int cycles = int.Parse(args[0]);
    int milliseconds = int.Parse(args[1]);
    string plug = args[2];
    for (int cycle = 0; cycle < cycles; cycle++) {
      long begin = NowNs();
      AppDomain domain = AppDomain.CreateDomain("child" + cycle);
      // Nothing of the plug comes into this domain, or its image would stay.
      domain.ExecuteAssembly(plug, new[] {cycle.ToString(), milliseconds.ToString()});
      AppDomain.Unload(domain);
      Console.WriteLine("{0} {1} {2}", cycle, begin, NowNs());
    }
  }
}
