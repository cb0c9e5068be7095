#!/usr/bin/env python3
"""Whichever public header comes first, a compiler that is set to C++17 says in one line what is wrong, and stops.

    cpp17_test.py path/to/source/tree COMPILER...
"""
import concurrent.futures
import pathlib
import re
import subprocess
import sys

ROOT, COMPILER = pathlib.Path(sys.argv[1]), sys.argv[2:]


def errors(header):
    """The compiler's errors for a program that includes the header, one text each."""
    run = subprocess.run([*COMPILER, "-std=c++17", f"-I{ROOT / 'include'}", "-fsyntax-only", "-x", "c++", "-"], text=True,
                         input=f"#include <mezzo/{header}>\nint main() {{}}\n", capture_output=True, timeout=60)
    return [] if run.returncode == 0 else re.findall(r"error: (.*)", run.stderr)


headers = sorted(str(path.relative_to(ROOT / "include/mezzo")) for path in (ROOT / "include/mezzo").rglob("*.h"))
failures = 0 if len(headers) > 20 else 1
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for header, found in zip(headers, pool.map(errors, headers)):
        # The second is what ends the compilation: an include of nothing.
        if not found or len(found) > 2 or "mezzo needs C++20: compile with -std=c++20" not in found[0]:
            failures += 1
            print(f"FAILED: {header} in C++17: {len(found)} errors, the first: {found[:1]}")
print(f"{len(headers)} headers, {failures} failures")
sys.exit(1 if failures else 0)
