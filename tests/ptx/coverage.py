#!/usr/bin/env python3
"""Which kernels the suite `ptx` has launched. Fails if one has not been launched that not_launched.txt does not name, and
if that names one that has been, or that is gone.

usage: coverage.py PROGRAM NOT_LAUNCHED COVERAGE...

PROGRAM is mezzo-tests-ptx, each COVERAGE a file that it has written (MEZZO_PTX_COVERAGE). Exit status 77, which Meson counts
as skipped, if one of them is missing or older than the program: then only a part of the suite has run.
"""
import collections
import os
import re
import subprocess
import sys


def short(name):
    """"void mezzo::cuda::(anonymous namespace)::f<T>(P) [clone ...]" -> "f<T>"."""
    name = re.sub(r'\(anonymous namespace\)::|mezzo::cuda::|mezzo::|^void ', '', name)
    depth = 0
    for at, character in enumerate(name):
        depth += (character == '<') - (character == '>')
        if character == '(' and depth == 0:
            return name[:at]
    return name


def demangled(names):
    filtered = subprocess.run(['c++filt'], input='\n'.join(names), capture_output=True, text=True, check=True).stdout
    return [short(line) for line in filtered.splitlines()]


def main():
    program, expected_file, files = sys.argv[1], sys.argv[2], sys.argv[3:]
    stale = [f for f in files if not os.path.exists(f) or os.path.getmtime(f) < os.path.getmtime(program)]
    if stale:
        print(f'run the whole suite first: {len(stale)} of {len(files)} files have no coverage, e.g. {stale[0]}')
        sys.exit(77)
    launches, executed, instructions = collections.Counter(), collections.Counter(), {}
    for file in files:
        with open(file) as lines:
            for name, count, run, size in (line.split() for line in lines):
                launches[name] += int(count)
                executed[name] = max(executed[name], int(run))
                instructions[name] = max(instructions.get(name, 0), int(size))
    names = sorted(launches)
    readable = dict(zip(names, demangled(names)))
    # A template that several files instantiate with internal linkage is one kernel per file, under one readable name.
    missing = {readable[n] for n in names if launches[n] == 0}
    with open(expected_file) as lines:
        expected = {line.strip() for line in lines if line.strip() and not line.startswith('#')}
    launched = sum(1 for n in names if launches[n] != 0)
    print(f'{launched} of {len(names)} kernels launched, {sum(launches.values())} launches, at least {sum(executed.values())} of '
          f'{sum(instructions.values())} instructions executed in one file of cases')
    for name in sorted(missing - expected):
        print(f'launched by no case: {name}')
    for name in sorted(expected - missing):
        print(f'{os.path.basename(expected_file)} names what has been launched or is gone: {name}')
    sys.exit(missing != expected)


if __name__ == '__main__':
    main()
