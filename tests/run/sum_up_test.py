#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests of sum_up.py, on results as ctest 3.25 and GoogleTest 1.12, Python 3.11 and node 18 write them."""

import os
import subprocess
import sys
import tempfile
import unittest
from xml.sax.saxutils import escape

SUM_UP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sum_up.py")


def entry(output, status="run", skipped=None, name="some_test"):
    """One ctest entry, as XML."""
    mark = f'<skipped message="{skipped}"/>' if skipped else ""
    return f'<testcase name="{name}" status="{status}">{mark}<system-out>{escape(output)}</system-out></testcase>'


def sum_up(*entries, options=()):
    """Returns the exit code and the lines that sum_up.py prints for these entries."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ctest.xml")
        with open(path, "w", encoding="utf-8") as file:
            file.write("<testsuite>" + "".join(entries) + "</testsuite>")
        done = subprocess.run([sys.executable, SUM_UP, *options, f"release={path}"], capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


GTEST_PASSED = """[ RUN      ] A.One
[       OK ] A.One (0 ms)
[ RUN      ] A.Two
text without an end[       OK ] A.Two (3 ms)
[  PASSED  ] 2 tests.
"""
GTEST_SKIPPED = """[ RUN      ] A.One
[       OK ] A.One (0 ms)
[ RUN      ] A.Two
/a.cc:4: Skipped
needs <dotnet>
[  SKIPPED ] A.Two (0 ms)
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] A.Two
"""
GTEST_FAILED = """[ RUN      ] A.One
[       OK ] A.One (0 ms)
[ RUN      ] X/P.Two/0
/b.cc:5: Failure
[  FAILED  ] X/P.Two/0, where GetParam() = 1 (0 ms)
[  FAILED  ] 1 test, listed below:
[  FAILED  ] X/P.Two/0, where GetParam() = 1
"""
GTEST_CRASHED = """[ RUN      ] A.One
[       OK ] A.One (0 ms)
[ RUN      ] A.Two
last words
"""
UNITTEST = """test_crash (__main__.A.test_crash) ... ERROR
test_fail (__main__.A.test_fail)
What it is about. ... FAIL
test_ok (__main__.A.test_ok) ... ok
test_skip (__main__.A.test_skip) ... skipped "node isn't here"
setUpClass (__main__.B) ... skipped 'needs mono'

======================================================================
ERROR: test_crash (__main__.A.test_crash)
----------------------------------------------------------------------
RuntimeError: no

======================================================================
FAIL: test_fail (__main__.A.test_fail)
What it is about.
----------------------------------------------------------------------
AssertionError: 1 != 2

----------------------------------------------------------------------
Ran 4 tests in 0.001s

FAILED (failures=1, errors=1, skipped=2)
"""
NODE = """TAP version 13
# Subtest: good
ok 1 - good
  ---
  duration_ms: 1.0
  ...
# Subtest: left out
ok 2 - left out # SKIP no browser
  ---
  duration_ms: 0.1
  ...
# Subtest: outer
    # Subtest: inner
    not ok 1 - inner
      ---
      error: 'nope'
      ...
    1..1
not ok 3 - outer
  ---
  error: '1 subtest failed'
  ...
1..3
# tests 4
# suites 0
# pass 1
# fail 2
# cancelled 0
# skipped 1
# todo 0
"""


class SumUpTest(unittest.TestCase):
    def check(self, result, code, sums):
        self.assertEqual((code, sums), (result[0], result[1][-1]))

    def test_counts_cases_of_all_entries(self):
        self.check(sum_up(entry(GTEST_PASSED), entry("fine")), 0, "3 passed, 0 failed, 0 skipped")

    def test_says_why_a_case_was_skipped(self):
        result = sum_up(entry(GTEST_SKIPPED))
        self.check(result, 0, "1 passed, 0 failed, 1 skipped")
        self.assertIn("skipped release: some_test A.Two: needs <dotnet>", result[1])

    def test_shows_what_a_failed_case_said(self):
        result = sum_up(entry(GTEST_FAILED, status="fail"))
        self.check(result, 1, "1 passed, 1 failed, 0 skipped")
        self.assertIn("FAILED release: some_test X/P.Two/0", result[1])
        self.assertIn("  | /b.cc:5: Failure", result[1])

    def test_a_crash_is_a_failure(self):
        result = sum_up(entry(GTEST_CRASHED, status="fail"))
        self.check(result, 1, "1 passed, 1 failed, 0 skipped")
        self.assertIn("FAILED release: some_test A.Two (did not end)", result[1])
        self.assertIn("  | last words", result[1])

    def test_a_failure_after_the_last_case_counts(self):
        self.check(sum_up(entry(GTEST_PASSED + "a leak", status="fail")), 1, "2 passed, 1 failed, 0 skipped")

    def test_a_program_that_is_not_there_is_a_failure(self):
        result = sum_up(entry("", status="notrun", skipped="Unable to find executable"), entry("fine"))
        self.check(result, 1, "1 passed, 1 failed, 0 skipped")

    def test_a_script_may_skip_itself(self):
        result = sum_up(entry("more\nneeds node", status="notrun", skipped="SKIP_RETURN_CODE=77"), entry("fine"))
        self.check(result, 0, "1 passed, 0 failed, 1 skipped")
        self.assertIn("skipped release: some_test: needs node", result[1])

    def test_a_script_may_count_its_cases(self):
        output = "skipped Third: needs node\nFAILED Second\n1 passed, 1 failed, 1 skipped"
        result = sum_up(entry(output, status="fail"))
        self.check(result, 1, "1 passed, 1 failed, 1 skipped")
        self.assertIn("FAILED release: some_test Second", result[1])
        self.assertIn("skipped release: some_test: Third: needs node", result[1])

    def test_counts_cases_of_unittest(self):
        result = sum_up(entry(UNITTEST, status="fail"))
        self.check(result, 1, "1 passed, 2 failed, 2 skipped")
        self.assertIn("FAILED release: some_test test_fail (__main__.A.test_fail)", result[1])
        self.assertIn("  | AssertionError: 1 != 2", result[1])
        self.assertIn("skipped release: some_test test_skip: node isn't here", result[1])

    def test_counts_cases_of_node(self):
        result = sum_up(entry(NODE, status="fail"))
        self.check(result, 1, "1 passed, 2 failed, 1 skipped")
        self.assertIn("FAILED release: some_test inner", result[1])
        self.assertIn("  |       error: 'nope'", result[1])
        self.assertIn("skipped release: some_test left out: no browser", result[1])

    def test_a_skip_can_be_a_failure(self):
        result = sum_up(entry(GTEST_SKIPPED), options=["--no-skips"])
        self.check(result, 1, "1 passed, 1 failed, 0 skipped")

    def test_no_results_are_a_failure(self):
        self.check(sum_up(), 1, "0 passed, 1 failed, 0 skipped")


if __name__ == "__main__":
    unittest.main()
