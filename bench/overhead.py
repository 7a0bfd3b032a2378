#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What recording costs a whole program: ikdasm on mscorlib under stock Mono, run in turn

  none       without a profiler
  floor      with an empty handler for a signal at the same rate (libmono-profiler-floor.so)
  stackpipe  under `stackpipe record`
  log        under Mono's own profiler (--profile=log:sample-real=RATE)

and prints for each the median, least and greatest wall and CPU time, and the ratio to `none` and `floor`, round by round;
then what the traces say of the handler, and their size.

  bench/overhead.py [--build build/release] [--rounds 7] [--rate 1000] [--json FILE]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("--build", default="build/release")
parser.add_argument("--rounds", type=int, default=7)
parser.add_argument("--rate", type=int, default=1000)
parser.add_argument("--json")
args = parser.parse_args()
build = os.path.abspath(args.build)

PROGRAM = ["ikdasm", "/usr/lib/mono/4.5/mscorlib.dll"]


def run(variant, directory):
    environment = dict(os.environ)
    command = PROGRAM
    if variant == "floor":
        environment["MONO_ENV_OPTIONS"] = "--profile=floor:%d" % args.rate
        environment["LD_LIBRARY_PATH"] = os.path.join(build, "lib", "bench")
    elif variant == "stackpipe":
        command = [os.path.join(build, "bin", "stackpipe"), "record", "--rate", str(args.rate), "-o",
                   os.path.join(directory, "t.nettrace"), "--", *PROGRAM]
    elif variant == "log":
        environment["MONO_ENV_OPTIONS"] = "--profile=log:sample-real=%d,output=%s" % (
            args.rate, os.path.join(directory, "t.mlpd"))
    begin = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - begin
    if variant == "stackpipe":
        trace = os.path.join(directory, "t.nettrace")
        report = json.loads(subprocess.run([command[0], "report", trace, "--json"], stdout=subprocess.PIPE, check=True).stdout)
        traces.append((report["handler_p50_ns"] / 1e3, report["handler_p99_ns"] / 1e3,
                       os.path.getsize(trace) / report["samples"], report["frames"] / report["samples"]))
    if status != 0:
        sys.exit("%s failed with status %d" % (variant, status))
    return wall, usage.ru_utime + usage.ru_stime


variants = ["none", "floor", "stackpipe", "log"]
times = {variant: [] for variant in variants}
traces = []
with tempfile.TemporaryDirectory() as directory:
    for variant in variants:
        run(variant, directory)  # warm-up
    for round_ in range(args.rounds):
        for variant in variants[round_ % 4:] + variants[:round_ % 4]:
            times[variant].append(run(variant, directory))
        if sys.stderr.isatty():
            print("\rround %d of %d" % (round_ + 1, args.rounds), end="", file=sys.stderr)


def spread(values, form):
    return "%s (%s to %s)" % tuple(form % v for v in (statistics.median(values), min(values), max(values)))


print("%-10s %-30s %-30s %-28s %s" % ("", "wall s: median (least to most)", "cpu s", "wall / none", "cpu / floor"))
result = {}
for variant in variants:
    wall = [t[0] for t in times[variant]]
    cpu = [t[1] for t in times[variant]]
    to_none = [a[0] / b[0] for a, b in zip(times[variant], times["none"])]
    to_floor = [a[1] / b[1] for a, b in zip(times[variant], times["floor"])]
    print("%-10s %-30s %-30s %-28s %s" % (variant, spread(wall, "%.2f"), spread(cpu, "%.2f"), spread(to_none, "%.3f"),
                                          spread(to_floor, "%.3f")))
    result[variant] = dict(wall=wall, cpu=cpu)
result["traces"] = traces
for name, form, values in zip(("handler p50 us", "handler p99 us", "file bytes a sample", "frames a sample"),
                              ("%.1f", "%.1f", "%.0f", "%.1f"), zip(*traces)):
    print("%-20s %s" % (name, spread(values, form)))
if args.json:
    with open(args.json, "w") as file:
        json.dump(result, file)
