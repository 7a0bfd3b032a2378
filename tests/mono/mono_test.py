# SPDX-License-Identifier: MIT
"""The whole path on stock Mono: `stackpipe record` on real programs, checked against what the programs know themselves.

Usage: mono_test.py BUILD_DIRECTORY [unittest arguments]
"""
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
from trace import Method, Trace  # noqa: E402

BUILD = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else ""
TOOL = os.path.join(BUILD, "bin", "stackpipe")
SOAK = os.environ.get("STACKPIPE_SOAK") == "1"
MSCORLIB = "/usr/lib/mono/4.5/mscorlib.dll"


def compile_programs(to):
    def mcs(*arguments):
        subprocess.run(["mcs", *arguments], check=True, cwd=to, stdout=subprocess.DEVNULL)

    for name in ("split", "halfbusy", "deep", "exitcode"):
        mcs("-optimize+", "-debug", "-out:%s.exe" % name, os.path.join(HERE, name + ".cs"))
    mcs("-out:churn.exe", os.path.join(HERE, "churn.cs"))
    # One method for each cycle.
    with open(os.path.join(to, "plug.cs"), "w") as plug:
        plug.write("static class Plug {\n  static void Main(string[] a) { switch (a[0]) {\n")
        for i in range(20):
            plug.write('    case "%d": Cycle%02d.Spin(int.Parse(a[1])); break;\n' % (i, i))
        plug.write("  } }\n}\n")
        for i in range(20):
            plug.write("""
static class Cycle%02d {
  static volatile int sink;
  [System.Runtime.CompilerServices.MethodImpl(System.Runtime.CompilerServices.MethodImplOptions.NoInlining)]
  public static void Spin(int ms) {
    var all = System.Diagnostics.Stopwatch.StartNew();
    while (all.ElapsedMilliseconds < ms) for (int i = 0; i < 1000; i++) sink += i;
  }
}
""" % i)
    mcs("-out:plug.exe", "plug.cs")


def trace_event_reads(path):
    """What TraceEvent, the reader of .NET's own tools, makes of a trace (tests/tracecheck)."""
    source = os.path.join(HERE, "..", "tracecheck")
    project = os.path.join(BUILD, "tracecheck")  # a copy: nothing is built in the source tree
    program = os.path.join(project, "out", "tracecheck.dll")
    if not os.path.exists(program):
        shutil.copytree(source, project, dirs_exist_ok=True)
        build = ["dotnet", "build", "-v", "q", "-c", "Release", "-o", os.path.dirname(program), project]
        done = subprocess.run(build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise AssertionError(done.stdout)
    return json.loads(subprocess.run(["dotnet", program, path, "0"], check=True, stdout=subprocess.PIPE, text=True).stdout)


class MonoTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.programs = tempfile.mkdtemp(prefix="stackpipe-mono-")
        compile_programs(cls.programs)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.programs)

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="stackpipe-test-")
        self.out = os.path.join(self.directory, "t.nettrace")

    def tearDown(self):
        self.assertEqual(glob.glob(os.path.join(self.directory, "mono_crash*")), [])
        shutil.rmtree(self.directory)

    def record(self, options, command, code=0, stdout=subprocess.PIPE):
        done = subprocess.run([TOOL, "record", "-o", self.out, *options, "--", *command], cwd=self.directory,
                              stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def program(self, name):
        return os.path.join(self.programs, name)

    def report(self, *options):
        done = subprocess.run([TOOL, "report", self.out, "--json", "--limit", "0", *options], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout)

    def row(self, report, name, kind=None):
        rows = [r for r in report["rows"] if name in r["name"] and (kind is None or r["kind"] == kind)]
        self.assertEqual(len(rows), 1, [r["name"] for r in rows])
        return rows[0]

    def check_managed_names(self, trace, least=0.995):
        frames, named = trace.managed()
        self.assertGreater(frames, 0)
        self.assertGreaterEqual(named / frames, least)

    def check_totals(self, trace):
        expected, recorded, dropped, suppressed = trace.end[:4]
        self.assertEqual(expected, recorded + dropped + suppressed)
        self.assertEqual(recorded, len(trace.samples))
        last = [totals[-1] for totals in trace.totals.values()]
        for tid_totals in last:
            self.assertEqual(tid_totals[0], sum(tid_totals[1:]))

    # Proves: A3 A4 A5 A6 A9 B1 B2 on a real runtime.
    def test_real_program(self):
        self.record(["--rate", "1000"], ["ikdasm", MSCORLIB], stdout=subprocess.DEVNULL)
        trace = Trace(self.out)
        self.assertEqual(trace.dropped, 0)
        self.assertGreater(len(trace.samples), 1000)
        self.check_managed_names(trace)
        self.check_totals(trace)
        kinds = trace.kinds()
        for kind in ("jit", "aot", "wrapper", "native"):
            self.assertGreater(kinds[kind], 0, kind)
        # Stacks are joined: managed samples go on to Main, with no frame of the join twice.
        managed = [s for s in trace.samples if any(isinstance(f, Method) and f.kind in ("jit", "aot") for f in s.frames)]
        to_main = [s for s in managed if any(isinstance(f, Method) and ".Main(" in f.name for f in s.frames)]
        self.assertGreater(len(to_main), 0.99 * len([s for s in managed if s.tid == trace.samples[0].tid]))
        self.assertGreater(trace.events["Microsoft-Windows-DotNETRuntimeRundown/144"], 1000)
        self.assertEqual(trace.events["Microsoft-DotNETCore-EventPipe/1"], 1)
        report = self.report()
        self.assertTrue(report["complete"])
        self.assertEqual(report["samples"], len(trace.samples))
        self.assertEqual((report["managed_frames"], report["managed_named"]), trace.managed())

    @unittest.skipUnless(shutil.which("dotnet"), "the .NET SDK is not here, so TraceEvent cannot be asked")
    def test_trace_event_agrees(self):
        self.record([], ["ikdasm", MSCORLIB], stdout=subprocess.DEVNULL)
        theirs = trace_event_reads(self.out)
        trace, ours = Trace(self.out), self.report()
        self.assertIsNone(theirs["error"])
        self.assertIsNone(theirs["log_error"])
        self.assertTrue(theirs["in_order"])
        self.assertEqual(theirs["lost"], 0)
        self.assertEqual(theirs["events"], dict(trace.events))
        self.assertEqual(theirs["samples"], ours["samples"])
        self.assertEqual(theirs["frames"], ours["frames"])
        self.assertEqual(theirs["frames"], sum(len(s.frames) for s in trace.samples))
        self.assertEqual(theirs["named_frames"], sum(isinstance(f, Method) for s in trace.samples for f in s.frames))

    def check_split(self, mode):
        done = self.record(["--mode", mode], ["mono", self.program("split.exe"), "4"])
        truth = float(done.stdout.split()[1])
        self.assertAlmostEqual(truth, 0.75, delta=0.03)
        report = self.report()
        three, one = self.row(report, "Split.Three")["self"], self.row(report, "Split.One")["self"]
        self.assertAlmostEqual(three / (three + one), truth, delta=0.02)

    def test_split_cpu(self):
        self.check_split("cpu")

    def test_split_wall(self):
        self.check_split("wall")

    # The truth is measured by the program's clock, on a machine that may have other work: while a thread that has
    # just woken waits for a processor, the sampler takes it for asleep. So one recording of three has to agree.
    def check_often(self, check):
        for attempt in range(3):
            try:
                return check()
            except AssertionError as error:
                if attempt == 2:
                    raise
                print("again, for the machine may be busy: %s" % error, file=sys.stderr)

    def half_busy(self, mode):
        done = self.record(["--mode", mode], ["mono", self.program("halfbusy.exe"), "4"])
        truth = dict(line.split() for line in done.stdout.splitlines())
        trace = Trace(self.out)
        for name in ("half-0", "half-1"):
            tid = [t for t, n in trace.threads.items() if n == name]
            self.assertEqual(len(tid), 1, trace.threads)
            samples = [s for s in trace.samples if s.tid == tid[0]]
            in_work = sum(s.weight for s in samples if any(isinstance(f, Method) and "HalfBusy.Work" in f.name for f in s.frames))
            yield float(truth[name]), in_work, sum(s.weight for s in samples)

    def test_half_busy_wall(self):
        def check():
            for truth, work, total in self.half_busy("wall"):
                self.assertAlmostEqual(work / total, truth, delta=0.02)
                self.assertAlmostEqual(total / 1e9, 4, delta=0.4)

        self.check_often(check)

    def test_half_busy_cpu(self):
        def check():
            for truth, work, total in self.half_busy("cpu"):
                # All of the CPU time is work; it is at most the time that the work took.
                self.assertGreater(work / total, 0.98)
                self.assertLess(total / 1e9, 4 * truth * 1.05)

        self.check_often(check)

    def test_deep_recursion_keeps_both_ends(self):
        self.record([], ["mono", self.program("deep.exe"), "0.5"])
        trace = Trace(self.out)
        deep = [s for s in trace.samples if s.flags & 15 == 1]
        self.assertGreater(len(deep), 100)
        for sample in deep:
            self.assertEqual(len(sample.frames), 128)
            names = [f.name for f in sample.frames if isinstance(f, Method)]
            self.assertTrue(any("Deep.Main" in n for n in names), names[-3:])
            self.assertTrue(any("Deep.Down" in n for n in names[:20]), names[:3])

    # Proves: C1 C2 C4: each image's events come in order, at their times, with their fields.
    def check_churn(self, rate, cycles, milliseconds):
        done = self.record(["--rate", str(rate)],
                           ["mono", self.program("churn.exe"), str(cycles), str(milliseconds), self.program("plug.exe")])
        windows = {int(a): (int(b), int(c)) for a, b, c in (line.split() for line in done.stdout.splitlines())}
        self.assertEqual(len(windows), cycles)
        trace = Trace(self.out)
        frames, named = trace.managed()
        unnamed = [hex(f) for s in trace.samples for f in s.frames if not isinstance(f, Method)]
        self.assertEqual(unnamed, [])
        seen = 0
        for sample in trace.samples:
            for frame in sample.frames:
                if isinstance(frame, Method) and frame.name.startswith("Cycle"):
                    begin, end = windows[int(frame.name[5:7])]
                    self.assertTrue(begin <= sample.time <= end, (frame.name, begin, sample.time, end))
                    seen += 1
        self.assertGreater(seen, cycles)
        by_module = {}
        for when, module, phase, path, guid in trace.phases:
            by_module.setdefault(module, []).append((phase, when, path, guid))
        unloaded = [p for p in by_module.values() if len(p) == 4]
        self.assertGreaterEqual(len(unloaded), cycles)
        for phases in unloaded:
            self.assertEqual([p[0] for p in phases], [0, 1, 2, 3])
            times = [p[1] for p in phases]
            self.assertEqual(times, sorted(times))
            for _, _, path, guid in phases[2:]:
                self.assertTrue(os.path.exists(path), path)
                self.assertRegex(guid, "^[0-9A-Fa-f-]{36}$")
        plugs = [path for _, path in trace.unloads if path.endswith("plug.exe")]
        self.assertEqual(len(plugs), cycles)
        self.check_totals(trace)

    def test_domain_churn(self):
        for _ in range(200 if SOAK else 20):
            self.check_churn(4000, 20, 20)

    def test_kill_at_any_moment(self):
        rng = random.Random(7)
        for _ in range(100 if SOAK else 10):
            # The program itself is killed, at a moment of its own; the recorder goes on and says so.
            process = subprocess.Popen([TOOL, "record", "-o", self.out, "--", "mono", self.program("split.exe"), "20"],
                                       cwd=self.directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            time.sleep(rng.uniform(0.7, 2))
            with open("/proc/%d/task/%d/children" % (process.pid, process.pid)) as file:
                children = file.read().split()
            os.kill(int(children[0]), signal.SIGKILL)
            error = process.communicate(timeout=30)[1]
            self.assertEqual(process.returncode, 128 + signal.SIGKILL, error)
            trace = Trace(self.out, cut=True)
            self.assertFalse(trace.complete)
            self.assertGreater(len(trace.samples), 0)
            frames, named = trace.managed()
            self.assertEqual(frames, named)
            self.assertFalse(self.report()["complete"])

    def test_interrupt_ends_properly(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([TOOL, "record", "-o", self.out, "--", "mono", self.program("split.exe"), "20"],
                                       cwd=self.directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            time.sleep(1)
            process.send_signal(number)
            error = process.communicate(timeout=30)[1]
            self.assertEqual(process.returncode, 128 + number, error)
            trace = Trace(self.out)
            self.assertIsNotNone(trace.end)
            self.check_totals(trace)

    def test_exit_code_is_passed_on(self):
        self.record([], ["mono", self.program("exitcode.exe"), "7"], code=7)
        self.assertIsNotNone(Trace(self.out).end)

    def test_duration_ends_the_recording_not_the_program(self):
        done = self.record(["--duration", "0.5"], ["mono", self.program("split.exe"), "1.5"])
        self.assertTrue(done.stdout.startswith("Three"))
        trace = Trace(self.out)
        self.assertLess(trace.samples[-1].time - trace.samples[0].time, 0.8e9)

    def test_found_behind_scripts(self):
        source = os.path.join(HERE, "exitcode.cs")
        self.record([], ["mcs", "-out:" + os.path.join(self.directory, "x.exe"), source])
        trace = Trace(self.out)
        self.assertGreater(trace.kinds()["aot"], 0)


class BadInputTest(unittest.TestCase):
    """Each gives a clear message, a code that is not 0, and loses nothing."""

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="stackpipe-test-")

    def tearDown(self):
        shutil.rmtree(self.directory)

    def fail(self, arguments, code, *words):
        done = subprocess.run([TOOL, *arguments], cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        return done

    def test_no_command(self):
        self.fail(["record"], 2, "command")

    def test_command_that_is_not_there(self):
        self.fail(["record", "--", "no-such-program"], 127, "no-such-program", "No such file")

    def test_rates_out_of_range(self):
        self.fail(["record", "--rate", "0", "--", "true"], 2, "--rate", "1 to 100000")
        self.fail(["record", "--rate", "1e9", "--", "true"], 2, "--rate", "1 to 100000")

    def test_directory_that_cannot_be_written(self):
        self.fail(["record", "-o", "/proc/x.nettrace", "--", "true"], 1, "/proc/x.nettrace")

    def test_other_files_are_not_replaced(self):
        path = os.path.join(self.directory, "mine.txt")
        with open(path, "w") as mine:
            mine.write("mine")
        self.fail(["record", "-o", path, "--", "true"], 1, "not a trace")
        self.assertEqual(open(path).read(), "mine")

    def test_program_that_cannot_be_recorded(self):
        program = os.path.join(self.directory, "static")
        subprocess.run(["g++", "-static", "-x", "c++", "-o", program, "-"], input="int main() {}", text=True, check=True)
        self.fail(["record", "--", program], 1, "nothing was recorded", "linked statically")

    def test_full_disk(self):
        program = os.path.join(self.directory, "p.exe")
        subprocess.run(["mcs", "-out:" + program, os.path.join(HERE, "split.cs")], check=True, stdout=subprocess.DEVNULL)
        small = os.path.join(self.directory, "small")
        os.mkdir(small)
        # A file-size limit fails writes as a full disk does, and needs no privilege; the signal is ignored as a program
        # that wants the error does.
        script = "trap '' XFSZ; ulimit -f 16; exec mono %s 1.5" % program
        done = self.fail(["record", "-o", os.path.join(small, "t.nettrace"), "--", "bash", "-c", script], 1, "failed", "lost")
        self.assertTrue(done.stdout.startswith("Three"), "the program goes on")
        trace = Trace(os.path.join(small, "t.nettrace"), cut=True)
        self.assertFalse(trace.complete)

    def test_unknown_subcommand(self):
        self.assertNotEqual(subprocess.run([TOOL, "frobnicate"], stderr=subprocess.DEVNULL).returncode, 0)


if __name__ == "__main__":
    if not os.path.exists(TOOL):
        sys.exit("usage: mono_test.py BUILD_DIRECTORY (there is no %s)" % TOOL)
    unittest.main(verbosity=2)
