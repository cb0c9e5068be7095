#!/usr/bin/env python3
"""Compiles a program of the gallery as a careful user does, with warnings as errors, and runs it. Also its length.

    gallery_test.py PROGRAM SOURCE INCLUDE -- COMPILER...
"""
import pathlib
import subprocess
import sys

program, source, include = sys.argv[1:4]
compiler = sys.argv[5:]
lines = pathlib.Path(source).read_text(encoding="utf-8").count("\n")
if lines > 100:
    sys.exit(f"{source}: {lines} lines; the limit is 100")
subprocess.run([*compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-I", include, source], check=True)
result = subprocess.run([program], capture_output=True, text=True, stdin=subprocess.DEVNULL)
print(result.stdout + result.stderr)
if result.returncode != 0 or result.stderr or not result.stdout:
    sys.exit(f"{program}: exit code {result.returncode}")
