#!/usr/bin/env python3
"""Adds up test results: Catch2 cases where a Meson test ran Catch2, else the Meson test itself. Prints what failed and what was skipped, then
"N passed, N failed, N skipped"; exits with 1 if anything failed. Of each --required, a regular expression,
there must be a test whose name it matches, and none that is skipped: each that is missing or skipped counts as failed."""
import argparse
import json
import re
import sys


def catch_counts(output):
    """(passed, failed, skipped) of a Catch2 summary, or None."""
    if match := re.search(r"All tests passed \(.* in (\d+) test cases?\)", output):
        return int(match.group(1)), 0, 0
    if match := re.search(r"^test cases:(.*)$", output, re.M):
        number = lambda word: sum(int(n) for n in re.findall(r"(\d+) " + word, match.group(1)))
        return number("passed"), number("failed"), number("skipped")
    return None


def last_line(output):
    """Where a test says why it was skipped."""
    return next(reversed(output.strip().split("\n")))


def count_log(path, required, found):
    """Sums of one build folder's log; a log that is not there counts as a failure. Adds the patterns that match a test to `found`."""
    total = [0, 0, 0]
    try:
        lines = open(path, encoding="utf-8").read().splitlines()
    except OSError as error:
        print(f"no test log: {error}")
        return [0, 1, 0]
    for line in lines:
        test = json.loads(line)
        good, skipped = test["result"] in ("OK", "EXPECTEDFAIL"), test["result"] == "SKIP"
        if skipped:
            print(f"{path}: {test['name']}: SKIP: {last_line(test.get('stdout', ''))}")
        matching = [pattern for pattern in required if re.search(pattern, test["name"])]
        found.update(matching)
        if skipped and matching:
            print(f"{path}: {test['name']}: FAILED: it may not be skipped here")
            total[1] += 1
            continue
        counts = catch_counts(test.get("stdout", "")) or (int(good), 0, int(skipped))
        if not good and not skipped:
            print(f"{path}: {test['name']}: {test['result']}")
            if counts[1] == 0:  # crashed, timed out, or a sanitizer's exit code
                counts = (counts[0], 1, counts[2])
        total = [a + b for a, b in zip(total, counts)]
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passed", type=int, default=0, help="add to the passed")
    parser.add_argument("--failed", type=int, default=0, help="add to the failed")
    parser.add_argument("--required", action="append", default=[], metavar="PATTERN", help="tests that must be there and may not be skipped")
    parser.add_argument("logs", nargs="*", help="meson-logs/testlog.json of build folders")
    args = parser.parse_args()
    total = [args.passed, args.failed, 0]
    found = set()
    for log in args.logs:
        total = [a + b for a, b in zip(total, count_log(log, args.required, found))]
    for pattern in args.required:
        if pattern not in found:
            print(f"{pattern}: FAILED: no test has such a name")
            total[1] += 1
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    sys.exit(1 if total[1] else 0)


if __name__ == "__main__":
    main()
