#!/usr/bin/env python3
"""tests/package/count.py over logs of every kind: what it counts, and which tests must be there. Usage: count_test.py COUNT"""
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from checks import check, finish  # noqa: E402

TESTS = [("mezzo:cases / a_test", "OK", "All tests passed (7 assertions in 3 test cases)"),
         ("mezzo:cases / b_test", "FAIL", "test cases: 5 | 3 passed | 2 failed"),
         ("mezzo:programs / site", "OK", ""),
         ("mezzo:programs / interop_numpy", "SKIP", "no numpy")]

with tempfile.TemporaryDirectory() as folder:
    log = pathlib.Path(folder) / "testlog.json"

    def count(tests, *options):
        """The last line, and whether the exit code is 0."""
        log.write_text("".join(json.dumps(dict(zip(("name", "result", "stdout"), test))) + "\n" for test in tests))
        run = subprocess.run([sys.executable, sys.argv[1], *options, log], capture_output=True, text=True, check=False)
        return run.stdout.strip().split("\n")[-1], run.returncode == 0

    check(count(TESTS) == ("7 passed, 2 failed, 1 skipped", False), count(TESTS))
    good = [test for test in TESTS if test[1] != "FAIL"]
    check(count(good, "--passed", "2") == ("6 passed, 0 failed, 1 skipped", True), "a skipped test is no failure")
    check(count(good, "--required", "(^| )site$") == ("4 passed, 0 failed, 1 skipped", True), "a required test that ran is no failure")
    check(count(good, "--required", r"interop_\w+$") == ("4 passed, 1 failed, 0 skipped", False), "a required test was skipped")
    check(count(good, "--required", "site$", "--required", "python_module$") == ("4 passed, 1 failed, 1 skipped", False),
          "a required test that was never declared is missing")
    check(count([], "--required", "site$") == ("0 passed, 1 failed, 0 skipped", False), "no test at all")
    log.unlink()
    run = subprocess.run([sys.executable, sys.argv[1], log], capture_output=True, text=True, check=False)
    check(run.returncode == 1 and "0 passed, 1 failed" in run.stdout, "a log that is not there is a failure")
finish()
