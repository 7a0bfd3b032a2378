#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sums up what ctest wrote with --output-junit, case by case.

usage: sum_up.py [--no-skips] PRESET=FILE...

A ctest entry may be a program with many cases: of GoogleTest, of Python's unittest (with verbosity=2), of node's
test runner, or a script whose last line is "N passed, N failed, N skipped" (it says "FAILED case" and
"skipped case: reason" on lines before). Anything else is one case. Prints the output of what failed, a line with the
reason for each skipped case, and as the last line the sums. Exits with 1 if a case failed. A FILE that is not
there (the build failed) is one failure. With --no-skips each skipped case is a failure.
"""

import os
import re
import sys
import xml.etree.ElementTree as ElementTree

OUTPUT_LINES_MAX = 60

CASE_END = re.compile(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:, where .*)? \(\d+ ms\)$")
CASE_BEGIN = re.compile(r"\[ RUN +\] (\S+)$")
UNITTEST_SUMS = re.compile(r"Ran (\d+) tests? in ")
UNITTEST_FAILED = re.compile(r"(?:FAIL|ERROR): (.*)$")
UNITTEST_SKIPPED = re.compile(r"(?:(\S+) .*)?\.\.\. skipped (['\"])(.*)\2$")
NODE_PASSED = re.compile(r"# pass (\d+)$")
NODE_FAILED = re.compile(r" *not ok \d+ - (.*)$")
NODE_SKIPPED = re.compile(r" *ok \d+ - (.*?) # SKIP ?(.*)$")
SUMS = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped$")
SKIPPED_LINE = re.compile(r"skipped (.*)$")


class Result:
    """What one ctest entry comes to."""

    def __init__(self):
        self.passed = 0
        self.failed = []  # (name of case, its output)
        self.skipped = []  # (name of case, reason)


def read_gtest(lines):
    """Reads a GoogleTest program's output."""
    result = Result()
    begun, begun_at = None, 0
    for at, line in enumerate(lines):
        if begin := CASE_BEGIN.search(line):
            begun, begun_at = begin[1], at
        elif end := CASE_END.search(line):
            if end[1] == "OK":
                result.passed += 1
            elif end[1] == "FAILED":
                result.failed.append((end[2], lines[begun_at + 1 : at]))
            else:
                said = [text for text in lines[begun_at + 1 : at] if text and not text.endswith(": Skipped")]
                result.skipped.append((end[2], " ".join(said) or "no reason given"))
            begun = None
    if begun:
        result.failed.append((begun + " (did not end)", lines[begun_at + 1 :]))
    return result


def read_unittest(lines):
    """Reads the output of Python's unittest; None if it is not."""
    ran = [int(found[1]) for found in map(UNITTEST_SUMS.match, lines) if found]
    if not ran:
        return None
    result = Result()
    for at, line in enumerate(lines):
        if failed := UNITTEST_FAILED.match(line):
            end = next((i for i in range(at, len(lines)) if lines[i].startswith(("=====", "Ran "))), None)
            result.failed.append((failed[1], lines[at + 1 : end]))
        elif skipped := UNITTEST_SKIPPED.match(line):
            result.skipped.append((skipped[1] or "", skipped[3]))
    # A class that fails or skips as a whole (setUpClass) is not among the tests that ran.
    others = [name for name, _ in result.failed + result.skipped if not name.startswith(("setUp", "tearDown"))]
    result.passed = ran[-1] - len(others)
    return result


def read_node(lines):
    """Reads the output of node's test runner (TAP); None if it is not."""
    passed = [int(found[1]) for found in map(NODE_PASSED.match, lines) if found]
    if not passed or lines[0] != "TAP version 13":
        return None
    result = Result()
    result.passed = passed[-1]
    for at, line in enumerate(lines):
        if failed := NODE_FAILED.match(line):
            end = next((i for i in range(at, len(lines)) if lines[i].strip() == "..."), None)
            result.failed.append((failed[1], lines[at + 1 : end]))
        elif skipped := NODE_SKIPPED.match(line):
            result.skipped.append((skipped[1], skipped[2] or "no reason given"))
    return result


def read_sums(lines):
    """Reads the output of a script that counts its own cases; None if it does not."""
    sums = SUMS.match(lines[-1]) if lines else None
    if not sums:
        return None
    result = Result()
    result.passed = int(sums[1])
    failed = [line for line in lines if line.startswith("FAILED ")] + ["FAILED case"] * int(sums[2])
    result.failed = [(line[len("FAILED ") :], lines) for line in failed[: int(sums[2])]]
    reasons = [found[1] for found in map(SKIPPED_LINE.match, lines) if found]
    reasons += ["no reason given"] * (int(sums[3]) - len(reasons))
    result.skipped = [("", reason) for reason in reasons[: int(sums[3])]]
    return result


def read_entry(entry):
    """Reads one ctest entry, a <testcase>."""
    lines = (entry.findtext("system-out") or "").rstrip().split("\n")
    status = entry.get("status")
    message = entry.find("skipped").get("message", "") if entry.find("skipped") is not None else ""
    result = Result()
    if status == "disabled":
        result.skipped.append(("", "disabled"))
    elif status == "notrun" and message.startswith("SKIP_"):
        result.skipped.append(("", lines[-1] or "no reason given"))
    elif any(CASE_BEGIN.search(line) for line in lines):
        result = read_gtest(lines)
    elif counted := read_unittest(lines) or read_node(lines) or read_sums(lines):
        result = counted
    elif status == "run":
        result.passed = 1
    # A program can fail after its last case (a leak, a crash at exit), or without any (not built, out of time).
    if status in ("fail", "notrun") and not result.failed and not message.startswith("SKIP_"):
        result.failed.append((message, lines))
    return result


def read_file(path):
    """Returns the ctest entries in a file; none if it is not there or not whole."""
    try:
        return list(ElementTree.parse(path).getroot().iter("testcase"))
    except (FileNotFoundError, ElementTree.ParseError):
        return []


def main(arguments):
    no_skips = "--no-skips" in arguments
    passed, failed, skipped = 0, 0, []
    for argument in arguments:
        if argument == "--no-skips":
            continue
        preset, path = argument.split("=", 1)
        logs = os.path.dirname(path)
        entries = read_file(path)
        if not entries:
            print(f"FAILED {preset}: there are no test results; see the logs in {logs}")
            failed += 1
        for entry in entries:
            result = read_entry(entry)
            name = f"{preset}: {entry.get('name')}"
            passed += result.passed
            failed += len(result.failed)
            skipped += [(f"{name} {case}".rstrip(), reason) for case, reason in result.skipped]
            for case, lines in result.failed:
                print(f"FAILED {name} {case}".rstrip())
                for line in lines[-OUTPUT_LINES_MAX:]:
                    print("  | " + line)
            if result.failed:
                print(f"  The whole output is in {logs}/ctest.log")
    for name, reason in skipped:
        print(f"{'FAILED (skipped, and nothing may be here)' if no_skips else 'skipped'} {name}: {reason}")
    if no_skips:
        failed, skipped = failed + len(skipped), []
    print(f"{passed} passed, {failed} failed, {len(skipped)} skipped")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
