#!/usr/bin/env python3
"""Compares the sources that docs/internals/training_step.md lists with those that a step runs: valgrind records the
functions of training_step() in the program, and the object files tell which sources they are from. Functions that are
in several object files, such as those of headers and equal names in unnamed namespaces, tell nothing.

    training_step_test.py ROOT BUILD PROGRAM"""
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT, BUILD, PROGRAM = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]


def listed_sources():
    """The .cpp files of the page's table of files, without those of CUDA."""
    page = (ROOT / "docs/internals/training_step.md").read_text(encoding="utf-8")
    table = page.split("## The files, in reading order")[1].split("\n## ")[0]
    return set(re.findall(r"`(src/[\w/]+\.cpp)`", table))


def sources_by_function():
    """The source of each function that only one object file of the libraries defines."""
    objects = {}  # by path in the build folder
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        source = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        if re.fullmatch(r"src/.*\.o", entry["output"]) and source.is_relative_to(ROOT.resolve() / "src"):
            objects[entry["output"]] = str(source.relative_to(ROOT.resolve()))
    found = collections.defaultdict(set)
    present = [path for path in objects if (BUILD / path).exists()]
    output = subprocess.run(["nm", "-A", "--defined-only", *present], cwd=BUILD, capture_output=True, text=True, check=True).stdout
    for line in output.splitlines():
        name, kind, symbol = line.rsplit(" ", 2)
        if kind in "tT":
            found[symbol].add(objects[name.split(":")[0]])
    return {symbol: next(iter(sources)) for symbol, sources in found.items() if len(sources) == 1}


def functions_of_step(folder):
    out = pathlib.Path(folder) / "functions"
    subprocess.run(["valgrind", "-q", "--tool=callgrind", "--toggle-collect=training_step", "--demangle=no", "--compress-strings=no",
                    f"--callgrind-out-file={out}", PROGRAM], check=True, timeout=280, env={**os.environ, "MEZZO_ISA": ""})  # valgrind knows no AVX-512
    return set(re.findall(r"^c?fn=(.*?)(?:'\d+)?$", out.read_text(), re.M))


def main():
    if shutil.which("valgrind") is None:
        print("valgrind is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        functions = functions_of_step(folder)
    by_function = sources_by_function()
    run = {by_function[name] for name in functions if name in by_function}
    listed = listed_sources()
    for source in sorted(run - listed):
        print(f"the step runs {source}, which the page does not list: {sorted(n for n in functions if by_function.get(n) == source)[:3]}")
    for source in sorted(listed - run):
        print(f"the page lists {source}, which the step does not run")
    print(f"{len(functions)} functions, {len(run)} sources run, {len(listed)} listed")
    sys.exit(run != listed or not run)


main()
