# SPDX-License-Identifier: MIT
"""`stackpipe record` on programs that know nothing of it, checked against what the programs know themselves.

Usage: native_test.py BUILD_DIRECTORY [unittest arguments]
"""
import collections
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
from trace import Method, Trace  # noqa: E402

BUILD = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else ""
TOOL = os.path.join(BUILD, "bin", "stackpipe")
PROGRAM = os.path.join(BUILD, "bin", "native_program")
STOPS = ["complete", "depth", "unknown code", "bad memory", "no progress", "foreign stack", "runtime walker", "not walked"]


def weights(trace):
    """The weight of all stacks with a function of that name in them."""
    sums = collections.Counter()
    for sample in trace.samples:
        for name in {f.name for f in sample.frames if isinstance(f, Method)}:
            sums[re.sub(r"\(anonymous namespace\)::|^native\.", "", name).split("(")[0]] += sample.weight
    return sums


def stops(trace):
    return collections.Counter(STOPS[s.flags & 0xf] for s in trace.samples)


def modules(sample):
    return [f.module for f in sample.frames if isinstance(f, Method)]


class NativeTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="stackpipe-test-")
        self.out = os.path.join(self.directory, "t.nettrace")

    def tearDown(self):
        shutil.rmtree(self.directory)

    def record(self, options, command, code=0):
        done = subprocess.run([TOOL, "record", "-o", self.out, *options, "--", *command], cwd=self.directory,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=240)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def check_totals(self, trace):
        expected, recorded, dropped, suppressed = trace.end[:4]
        self.assertEqual(expected, recorded + dropped + suppressed)
        self.assertEqual(recorded, len(trace.samples))

    # 99 %, but for samples right after a library was loaded: how many these are depends on how soon the collector gets a
    # processor, mostly one or two.
    def check_complete(self, trace):
        found = stops(trace)
        incomplete = len(trace.samples) - found["complete"] - found["unknown code"]
        self.assertLessEqual(incomplete, 1 + 0.01 * len(trace.samples), found)
        self.assertLessEqual(found["unknown code"], 3 + 0.05 * len(trace.samples), found)

    # Proves: A3, and go#35057: no process-wide timer that loses samples where many threads run.
    def test_split_over_sixteen_threads(self):
        self.check_split([PROGRAM, "split"])

    # Ten of the threads may have a perf clock, the others get timers of CPU time.
    def test_split_with_few_descriptors(self):
        self.check_split(["sh", "-c", 'ulimit -n 40; exec "$0" split', PROGRAM])

    def check_split(self, command):
        self.record([], command)
        trace = Trace(self.out)
        self.check_totals(trace)
        total = sum(s.weight for s in trace.samples)
        self.assertAlmostEqual(total / 1e9, 16 * 5 * 0.04, delta=0.02 * 16 * 5 * 0.04 + 0.02)
        shares = weights(trace)
        # Four times the standard deviation. Some 3,000 samples with a perf clock, which tell it within 3 points; with
        # timers of CPU time 800, or fewer where the machine is busy.
        delta = 4 * (0.75 * 0.25 / len(trace.samples)) ** 0.5
        self.assertAlmostEqual(shares["SpinThree"] / total, 0.75, delta=delta)
        self.assertAlmostEqual(shares["SpinOne"] / total, 0.25, delta=delta)
        self.assertGreaterEqual(len({s.tid for s in trace.samples}), 16)
        self.assertGreaterEqual(stops(trace)["complete"], 0.99 * len(trace.samples), stops(trace))

    def test_threads_that_end_in_each_way(self):
        self.record([], [PROGRAM, "thread-ends"])
        trace = Trace(self.out)
        by_name = collections.Counter()
        for sample in trace.samples:
            by_name[trace.threads[sample.tid]] += sample.weight
        for name in ("returns", "exits", "cancelled", "c11"):
            self.assertAlmostEqual(by_name[name] / 1e6, 60, delta=10, msg=by_name)

    # dotnet/runtime#111368, java-profiler#509
    def test_short_threads(self):
        self.record([], [PROGRAM, "many-threads", "2000"])
        trace = Trace(self.out)
        self.check_totals(trace)
        self.assertGreaterEqual(trace.events["Stackpipe/2"], 2000)

    # gperftools#412: a handler that needs a lock which the interrupted thread has.
    def test_threads_that_allocate(self):
        self.record(["--rate", "5000"], [PROGRAM, "allocate"])
        trace = Trace(self.out)
        self.check_totals(trace)
        self.assertAlmostEqual(sum(s.weight for s in trace.samples) / 1e9, 1.6, delta=0.1)
        self.assertGreater(sum(modules(s)[:1] == ["libc.so.6"] for s in trace.samples), 0.2 * len(trace.samples))
        self.check_complete(trace)

    # gperftools#43, #775, #1188, pprof-rs#36: an unwinder that is not re-entrant.
    def test_threads_that_throw_and_unwind(self):
        self.record(["--rate", "5000"], [PROGRAM, "throw"])
        trace = Trace(self.out)
        self.check_totals(trace)
        self.assertGreater(sum("libgcc_s.so.1" in modules(s) for s in trace.samples), 0.2 * len(trace.samples))
        self.check_complete(trace)

    # dd-trace-dotnet#5660, julia#57017: the loader's lock against malloc's. async-profiler#843, #1125: libraries that go.
    def test_libraries_that_come_and_go(self):
        for i in range(20):
            shutil.copy(os.path.join(BUILD, "bin", "libPluginOne.so"), os.path.join(self.directory, "plugin-%d.so" % i))
        self.record(["--rate", "5000"], [PROGRAM, "open-and-close", self.directory])
        trace = Trace(self.out)
        self.check_totals(trace)
        self.assertGreater(len(trace.samples), 100)
        for sample in trace.samples:  # no name that it never had
            for frame in sample.frames:
                if isinstance(frame, Method) and frame.module.startswith("plugin-"):
                    self.assertRegex(frame.name, r"PluginOne|OnLoad|_init|_fini|_start|frame_dummy|tm_clones|_aux|plugin-")

    # The kind of dolphin PR#1432 and magic-trace#116, with libraries: one address, two functions.
    def test_two_libraries_at_one_address(self):
        done = self.record(["--rate", "2000"], [PROGRAM, "same-address", os.path.join(BUILD, "bin")])
        trace = Trace(self.out)
        self.check_totals(trace)
        calls = collections.Counter()
        unnamed = total = 0
        for sample in trace.samples:
            names = [f.name if isinstance(f, Method) else "?" for f in sample.frames]
            text = " ".join(names)
            for caller, callee, other in (("CallOne", "PluginOne", "PluginTwo"), ("CallTwo", "PluginTwo", "PluginOne")):
                if caller in text:
                    self.assertNotIn(other, text)
                    calls[callee] += sample.weight
            total += sample.weight
            unnamed += sample.weight if "?" in names or len(names) < 3 else 0
            self.assertFalse("PluginOne" in text and "PluginTwo" in text)
        for name in ("PluginOne", "PluginTwo"):
            self.assertGreater(weights(trace)[name], 0)
        self.assertLess(unnamed / total, 0.3)  # before the library's tables were made
        share = weights(trace)
        self.assertAlmostEqual(share["PluginOne"] / (share["PluginOne"] + share["PluginTwo"]), float(done.stdout),
                               delta=4 * (0.75 * 0.25 / len(trace.samples)) ** 0.5)

    def test_sleeps_are_not_interrupted(self):
        self.record(["--rate", "5000"], [PROGRAM, "sleeps"])

    # gperftools#546, dd-trace-py#1693
    def test_children(self):
        done = self.record([], [PROGRAM, "children"])
        traces = {path: Trace(path) for path in glob.glob(os.path.join(self.directory, "*"))}
        self.assertEqual(len(traces), 4, list(traces))  # its own, and three that executed a program
        of_parent = weights(traces[self.out])
        self.assertGreater(of_parent["SpinBefore"], 50e6)
        self.assertGreater(of_parent["SpinAfter"], 50e6)
        self.assertEqual(of_parent["SpinInChild"], 0)
        for path, trace in traces.items():
            self.check_totals(trace)
            if path != self.out:
                self.assertAlmostEqual(weights(trace)["SpinInChild"] / 1e6, 100, delta=20)
                self.assertIn(os.path.basename(path), done.stderr)

    def test_program_that_replaces_itself(self):
        self.record([], ["sh", "-c", 'exec "$0" spin-in-child', PROGRAM], code=6)
        self.assertEqual(os.listdir(self.directory), ["t.nettrace"])
        self.assertGreater(weights(Trace(self.out))["SpinInChild"], 50e6)

    def test_exec_that_fails(self):
        self.record([], [PROGRAM, "failed-exec"])
        found = collections.Counter()
        for path in glob.glob(os.path.join(self.directory, "*")):
            trace = Trace(path)
            self.check_totals(trace)
            found.update(weights(trace))
        self.assertGreater(found["SpinBefore"], 50e6)
        self.assertGreater(found["SpinAfter"], 50e6)

    def test_program_that_closes_all_descriptors(self):
        own = os.path.join(self.directory, "own")
        os.mkdir(own)
        self.record([], [PROGRAM, "close-all", own])
        trace = Trace(self.out)
        self.check_totals(trace)
        self.assertGreater(weights(trace)["SpinBefore"], 250e6)
        self.assertGreater(weights(trace)["SpinAfter"], 2200e6)
        self.assertGreater(sum(s.weight < 20e6 for s in trace.samples), 300)  # it went on to be sampled

    # pytorch#195837
    def test_ends_of_the_process(self):
        for how in ("exit", "_exit", "quick_exit", "thread", "handler"):
            with self.subTest(how):
                self.record([], [PROGRAM, "end", how], code=11)
                trace = Trace(self.out, cut=how == "handler")
                self.assertGreater(weights(trace)["SpinBefore"], 100e6)
                if how != "handler":  # whether it ends depends on what it interrupted
                    self.check_totals(trace)
        self.record([], [PROGRAM, "end", "abort"], code=134)
        Trace(self.out, cut=True)

    # Worker threads of liblzma block all signals. Python loads its extensions while it runs.
    def test_real_programs(self):
        query = "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i+1 FROM n WHERE i<4000000) SELECT sum(i*i%7) FROM n"
        sql = "import sqlite3; print(sqlite3.connect(':memory:').execute('%s').fetchall())" % query
        code = "import json, re, zlib; d = [json.dumps({'k': i, 'v': 'x' * (i % 50)}) for i in range(300000)];" \
               "print(sum(len(re.sub('x+', 'y', s)) for s in d), len(zlib.compress(''.join(d).encode(), 9)))"
        python = next(p for p in ("/usr/bin/python3", sys.executable) if os.path.exists(p))
        xz = "head -c 6000000 %s | xz -T2 -6 >/dev/null" % TOOL
        for command in ([python, "-c", sql], [python, "-c", code], ["sh", "-c", xz]):
            with self.subTest(command=command):
                self.record([], command)
                trace = Trace(self.out)
                self.check_totals(trace)
                self.assertGreater(len(trace.samples), 60)
                self.check_complete(trace)


if __name__ == "__main__":
    unittest.main()
