// SPDX-License-Identifier: MIT
// Ends with the exit code that it is given, by Environment.Exit.
static class ExitCode {
  static void Main(string[] args) { System.Environment.Exit(int.Parse(args[0])); }
}
