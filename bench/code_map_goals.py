#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures what the code map and the AOT images are to reach, beside other maps, and prints Markdown tables:

  goals      median [least..greatest] of the rounds, and whether the median meets the goal
  rivals     where another map is faster or smaller
  figures    all medians
  changes    percentiles of a lookup while another thread changes the map

Each process of bench_code_map loads one map at one size. A round runs all of them once; of those that are compared, another one
comes first in each round. Ratios are taken within a round, where the maps ran within seconds of each other. Lookups and changes are CPU
time, so that other programs count less; what is marked "wall" is not.

malloc is told to ask for huge pages, since the map does so itself and its rivals use malloc: at a million ranges that makes up to a factor of
two for flat_array. GLIBC_TUNABLES=glibc.malloc.hugetlb=0 in the environment measures them without.

  bench/code_map_goals.py BUILD_DIR [--rounds 15] [--quick] [--json FILE]

--quick: 3 rounds and a fifth of the time for each figure, to see that all runs. Exit code 1: something failed or answered wrongly;
a goal that is missed is no failure.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("build", metavar="BUILD_DIR")
parser.add_argument("--rounds", type=int)
parser.add_argument("--quick", action="store_true")
parser.add_argument("--json")
args = parser.parse_args()
rounds = args.rounds or (3 if args.quick else 15)
min_time = 0.01 if args.quick else 0.05
code_map_program, aot_program = (os.path.join(args.build, "bin", name) for name in ("bench_code_map", "bench_aot"))

MAPS = ["stackpipe", "flat_array", "seed_two_vectors", "rb_tree_rwlock", "absl_btree_rwlock", "urcu_array"]
SIZES = [1000, 30000, 1000000]
MILLION = 1000000
# Under a read-write lock a lookup waits so long for a writer in a hurry that one benchmark takes many seconds.
RATES = {"flat_array": "0", "rb_tree_rwlock": "(0|1000)", "absl_btree_rwlock": "(0|1000)"}

listed = subprocess.run([code_map_program, "--benchmark_list_tests"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                        check=True, text=True).stdout
maps = [m for m in MAPS if "/%s/" % m in listed]
cores = sorted(os.sched_getaffinity(0))
pinned = shutil.which("taskset") is not None


# ---- Processes: (program, number of cores, filter) ----

def alone(map_, size):
    empty = "^BM_LookupEmpty/%s$|" % map_ if size == SIZES[0] else ""
    return (code_map_program, 1, empty + "^BM_(InsertRemove|Lookup|LookupMiss|LookupCold|LookupInSignal)/%s/%d(/|$)" % (map_, size))


def together(map_, size):
    return (code_map_program, 2, "^BM_LookupHot/%s/%d/|^BM_LookupUnderChurn/%s/%d/%s/" % (
        map_, size, map_, size, RATES.get(map_, "(0|1000|100000)")))


# What is compared with each other is one group. The tag sets apart a benchmark that runs in two groups.
groups = [("", [alone(map_, size) for map_ in maps]) for size in SIZES]
groups += [("", [together(map_, size) for map_ in maps]) for size in SIZES]
groups += [
    ("", [(code_map_program, 1, "^BM_Load/%s/%d/" % (map_, MILLION)) for map_ in maps]),
    ("", [(code_map_program, 1, "^%s/1000$" % name)
          for name in ("BM_LookupObjects/stackpipe", "BM_Lookup/dl_find_object", "BM_Lookup/libgcc_fde")]),
    ("@sizes", [(code_map_program, 1, "^BM_InsertRemove/stackpipe/%d$" % size) for size in (10000, MILLION)]),
    ("@stopped", [(code_map_program, 2, "^BM_%s/stackpipe/%d(/|$)" % (name, MILLION))
                  for name in ("InsertRemove", "InsertWithStoppedReader")]),
    ("", [(aot_program, 1, "^BM_RegisterFirstImage/30000/"), (aot_program, 1, "^BM_RegisterImage/30000$|^OpenAndRegister/mscorlib$")]),
]
# It ends after half a second of waiting; once is enough.
only_once = [(code_map_program, 2, "^BM_InsertWithStoppedReader/%s/1000/" % map_) for map_ in maps
             if map_ != "stackpipe" and "BM_InsertWithStoppedReader/%s/" % map_ in listed]

results = {}   # name -> one dict for each round
failures = {}  # name -> message
environment = dict(os.environ)
if "GLIBC_TUNABLES" not in environment:
    environment["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"


def run(process, round_, tag):
    program, wanted, filter_ = process
    command = [program, "--benchmark_filter=" + filter_, "--benchmark_min_time=%g" % min_time, "--benchmark_format=json"]
    if pinned:
        command = ["taskset", "-c", ",".join(map(str, cores[:wanted])), *command]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0 or not done.stdout:
        failures[filter_] = "exit code %d: %s" % (done.returncode, done.stderr[-200:].strip()) if done.returncode else "no such benchmark"
        return
    for benchmark in json.loads(done.stdout)["benchmarks"]:
        name = re.sub("/(iterations:[0-9]+|manual_time|real_time|threads:1)(?=/|$)", "", benchmark["name"]) + tag
        if benchmark.get("error_occurred"):
            failures[name] = benchmark["error_message"]
            continue
        scale = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[benchmark["time_unit"]]
        for field in ("cpu_time", "real_time"):
            benchmark[field] *= scale
        results.setdefault(name, {})[round_] = benchmark


def show(text):
    if sys.stderr.isatty():
        print("\r\033[K" + text, end="", flush=True, file=sys.stderr)


begin = time.monotonic()
for round_ in range(rounds):
    for tag, group in groups:
        first = round_ % len(group)
        for process in group[first:] + group[:first]:
            show("round %d of %d, %d s: %s" % (round_ + 1, rounds, time.monotonic() - begin, process[2][:60]))
            run(process, round_, tag)
for process in only_once:
    show("the writers of other maps, with a reader stopped")
    run(process, 0, "")
show("")
took = time.monotonic() - begin
waiting = sorted(name.split("/")[1] for name in failures if "StoppedReader" in name and "/stackpipe/" not in name)
failures = {name: message for name, message in failures.items()
            if "StoppedReader" not in name or "/stackpipe/" in name or "waits" not in message}


# ---- Figures: one number for each round, as {round: number} ----

def figure(name, field="cpu_time"):
    return {r: b[field] for r, b in results.get(name, {}).items() if field in b}


def each(function, *figures):
    return {r: function(*(f[r] for f in figures)) for r in figures[0] if all(r in f for f in figures)}


def ratio(a, b):
    return each(lambda x, y: x / y if y else float("inf"), a, b)


def median(values):
    return statistics.median(values.values())


def number(value):
    if value >= 100:
        return "{:,.0f}".format(value)
    return "%.3g" % value


def spread(values, unit=""):
    if not values:
        return "not measured"
    return "%s%s [%s..%s]" % (number(median(values)), unit, number(min(values.values())), number(max(values.values())))


def table(*rows):
    for i, row in enumerate(rows):
        print("| %s |" % " | ".join(row))
        if i == 0:
            print("|%s" % ("---|" * len(row)))
    print()


def size_name(size):
    return "{:,}".format(size)


# ---- Goals ----

goals = [("what", "goal", "median [least..greatest]", "")]


def goal(what, wanted, values, meets, unit="", note=""):
    verdict = "-" if not values else "met" if meets(median(values)) else "**missed**"
    goals.append((what, wanted, spread(values, unit) + (": " + note if note and values else ""), verdict))


def faster(what, wanted, times, name, other, field="cpu_time"):
    mine, theirs = figure(name, field), figure(other, field)
    goal(what, wanted, ratio(theirs, mine), lambda x: x >= times, "x", "%s against %s" % (spread(mine, " ns"), spread(theirs, " ns")))


faster("lookup, 1,000,000 ranges, random", ">= 10x faster than seed_two_vectors", 10,
       "BM_Lookup/stackpipe/1000000", "BM_Lookup/seed_two_vectors/1000000")
faster("", ">= 2x faster than flat_array", 2, "BM_Lookup/stackpipe/1000000", "BM_Lookup/flat_array/1000000")
faster("lookup, 1,000 ranges, random", "not slower than flat_array (>= 1x)", 1,
       "BM_Lookup/stackpipe/1000", "BM_Lookup/flat_array/1000")
faster("lookup, 1,000 loaded objects", "not slower than dl_find_object (>= 1x)", 1,
       "BM_LookupObjects/stackpipe/1000", "BM_Lookup/dl_find_object/1000")
goal("lookup, no range registered", "< 2 ns", figure("BM_LookupEmpty/stackpipe"), lambda x: x < 2, " ns")
faster("insert and remove, 1,000,000 ranges", ">= 300x faster than seed_two_vectors", 300,
       "BM_InsertRemove/stackpipe/1000000", "BM_InsertRemove/seed_two_vectors/1000000")
ten, million = (figure("BM_InsertRemove/stackpipe/%d@sizes" % size) for size in (10000, MILLION))
goal("", "<= 3x its own cost at 10,000", ratio(million, ten), lambda x: x <= 3, "x",
     "%s against %s" % (spread(million, " ns"), spread(ten, " ns")))
quiet, stopped = (figure("BM_%s/stackpipe/%d@stopped" % (name, MILLION), "real_time")
                  for name in ("InsertRemove", "InsertWithStoppedReader"))
goal("insert and remove with a reader stopped inside a lookup, 1,000,000 ranges, wall", "as without (<= 1.1x)",
     ratio(stopped, quiet), lambda x: x <= 1.1, "x", "%s against %s; the writers of these wait for the reader: %s" % (
         spread(stopped, " ns"), spread(quiet, " ns"), ", ".join(waiting) or "none"))
for size in SIZES:
    calm, busy = ("BM_LookupUnderChurn/stackpipe/%d/%s" % (size, rate) for rate in ("0", "100000"))
    goal("lookup while another thread makes 100,000 changes/s, %s ranges" % size_name(size), "p99.9 < 3x the quiet one",
         ratio(figure(busy, "p99.9_ns"), figure(calm, "p99.9_ns")), lambda x: x < 3, "x", "%s against %s; %s changes/s were made" % (
             spread(figure(busy, "p99.9_ns"), " ns"), spread(figure(calm, "p99.9_ns"), " ns"), spread(figure(busy, "changes_per_s"))))
churned = [name for name in results if re.match("BM_LookupUnderChurn/stackpipe/.*000$", name)]
wrong = [name for name in failures if name.startswith("BM_LookupUnderChurn/stackpipe/")]
asked = sum(sum(figure(name, "iterations").values()) for name in churned if not name.endswith("/0"))
goals.append(("", "never \"not found\", never a wrong answer",
              "WRONG: " + ", ".join(wrong) if wrong else "%s lookups" % size_name(int(asked)), "**missed**" if wrong else "met" if asked else "-"))
for size in SIZES:
    def slower(map_):
        one, two = "BM_LookupHot/%s/%d" % (map_, size), "BM_LookupHot/%s/%d/threads:2" % (map_, size)
        return ratio(each(max, figure(two, "cpu_ns_0"), figure(two, "cpu_ns_1")), figure(one, "cpu_ns_0"))
    goal("two threads on one hot range, %s ranges: the slower one against one alone" % size_name(size), "within 10 % (<= 1.1x)",
         slower("stackpipe"), lambda x: x <= 1.1, "x", "flat_array, which writes nothing, %s; seed_two_vectors %s" % (
             spread(slower("flat_array"), "x"), spread(slower("seed_two_vectors"), "x")))
goal("memory, 1,000,000 ranges, the process's", "<= 24 bytes a range", figure("BM_Load/stackpipe/1000000", "bytes"),
     lambda x: x <= 24, " bytes")
image = "BM_RegisterFirstImage/30000"
goal("AOT image of 30,000 methods registered, the first one of a process, nothing in the caches, wall", "< 1 ms",
     each(lambda ns: ns / 1e6, figure(image, "real_time")), lambda x: x < 1, " ms",
     "again and again %s" % spread(each(lambda ns: ns / 1e6, figure("BM_RegisterImage/30000")), " ms"))
goal("its cache at the first sample", "<= 8,192 bytes", figure(image, "cache_bytes_at_first_sample"), lambda x: x <= 8192, " bytes")
mscorlib = each(lambda ns: ns / 1e6, figure("OpenAndRegister/mscorlib"))
if mscorlib:
    methods = median(figure("OpenAndRegister/mscorlib", "methods"))
    goals.append(("a real image (mscorlib, %s methods and stubs), with opening its file" % number(methods), "none",
                  spread(mscorlib, " ms"), ""))

print("Rounds: %d%s, in %.1f minutes; %s; %s%s.\n" % (
    rounds, " (quick: the figures are rough)" if args.quick else "", took / 60,
    "huge pages for all maps" if "hugetlb=1" in environment["GLIBC_TUNABLES"] else "huge pages for stackpipe only", "pinned" if pinned else "NOT pinned: there is no taskset",
    "" if len(cores) > 1 else "; ONE core: figures with two threads say nothing"))
table(*goals)


# ---- Where others win, and all figures ----

def rows_of(size):
    for what, benchmark in (("lookup, random", "BM_Lookup"), ("lookup, nothing there", "BM_LookupMiss")):
        yield what, lambda m, b=benchmark: figure("%s/%s/%d" % (b, m, size))
    yield "lookup in a signal handler, wall", lambda m: figure("BM_LookupInSignal/%s/%d" % (m, size), "real_time")
    yield "lookup, out of the caches, wall", lambda m: figure("BM_LookupCold/%s/%d" % (m, size), "real_time")
    yield "lookup, one hot range", lambda m: figure("BM_LookupHot/%s/%d" % (m, size), "cpu_ns_0")
    yield "the same, each of two threads", lambda m: each(
        max, *(figure("BM_LookupHot/%s/%d/threads:2" % (m, size), "cpu_ns_%d" % i) for i in (0, 1)))
    for rate in (0, 1000, 100000):
        yield "lookup, p99.9, %s changes/s, wall" % size_name(rate), lambda m, r=rate: figure(
            "BM_LookupUnderChurn/%s/%d/%d" % (m, size, r), "p99.9_ns")
    yield "insert and remove", lambda m: figure("BM_InsertRemove/%s/%d" % (m, size))


rows = [("lookup, none registered", "0", lambda m: figure("BM_LookupEmpty/" + m))]
rows += [(what, size_name(size), lambda m, of=of: of(m) if m in maps else {}) for size in SIZES for what, of in rows_of(size)]
rows.append(("bytes a range", size_name(MILLION), lambda m: figure("BM_Load/%s/%d" % (m, MILLION), "bytes")))
OBJECTS = {"stackpipe": "BM_LookupObjects/stackpipe/1000", "dl_find_object": "BM_Lookup/dl_find_object/1000",
           "libgcc_fde": "BM_Lookup/libgcc_fde/1000"}
rows.append(("lookup, loaded objects or unwind tables", "1,000", lambda m: figure(OBJECTS.get(m, ""))))

wins = [("what", "ranges", "stackpipe", "who is better")]
for what, size, of in rows:
    mine = of("stackpipe")
    better = []
    for rival in maps[1:] + ["dl_find_object", "libgcc_fde"]:
        times = ratio(mine, of(rival))
        if times and median(times) > 1:
            better.append((median(times), "%s: %s, by %sx%s" % (rival, spread(of(rival)), spread(times),
                                                            ", within the spread" if min(times.values()) <= 1 else "")))
    if better:
        wins.append((what, size, spread(mine), "; ".join(text for _, text in sorted(better, reverse=True))))
print("Where a rival is better than stackpipe (ns, or bytes; nothing protects readers of flat_array from a writer):\n")
if len(wins) > 1:
    table(*wins)
else:
    print("nowhere.\n")

print("All medians (ns, or bytes):\n")
columns = maps + ["dl_find_object", "libgcc_fde"]
table(("what", "ranges", *columns), *((what, size, *(number(median(of(m))) if of(m) else "" for m in columns)) for what, size, of in rows))

print("A lookup's wall time while another thread changes the map (medians, ns, the clock's 25 ns in them; above 65,535 counts as that, "
      "but for the greatest):\n")
table(("map", "ranges", "changes/s wanted", "made", "p50", "p99", "p99.9", "greatest"), *(
    (map_, size_name(size), size_name(rate),
     *(number(median(figure(name, field))) for field in ("changes_per_s", "p50_ns", "p99_ns", "p99.9_ns", "max_ns")))
    for size in SIZES for map_ in maps for rate in (0, 1000, 100000)
    for name in ["BM_LookupUnderChurn/%s/%d/%d" % (map_, size, rate)] if name in results))

for name, message in failures.items():
    print("FAILED: %s: %s" % (name, message))
if args.json:
    with open(args.json, "w") as file:
        json.dump(results, file)
sys.exit(1 if failures else 0)
