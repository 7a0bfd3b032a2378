// SPDX-License-Identifier: MIT
//
// A program for Mono's AOT compiler: a method of each form, and something that needs a wrapper.
using System;
using System.Runtime.InteropServices;

namespace Aot.Test {
  class Shape<T> {
    public int Area(T width) { return width.GetHashCode(); }
  }

  static class Program {
    delegate int Function(int x);

    [DllImport("libc")]
    static extern int getpid();

    static int Twice(int x) { return x * 2; }
    static int Twice(string x) { return x.Length * 2; }

    static void Main() {
      Function function = x => x + getpid();
      Console.WriteLine(function(Twice(1) + Twice("a")) + new Shape<string>().Area("b"));
    }
  }
}
