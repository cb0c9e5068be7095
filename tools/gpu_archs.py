#!/usr/bin/env python3
"""Prints the compute capabilities, such as "80 86", that a build compiles its kernels for where -Dgpu_archs does not say.

    gpu_archs.py NVCC

They come from the environment variable CUDAARCHS (as for CMake: "80;86"), or else from the GPUs of this machine. A machine without a GPU
builds for others: it takes every generation from 7.5 on that nvcc knows.
"""
import os
import re
import subprocess
import sys

GENERATIONS = [75, 80, 86, 89, 90, 100, 120]  # a kernel for 8.6 runs on 8.7, too: the others have kernels of a relative


def output(*command):
    try:
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout if run.returncode == 0 else ""


def known_to(nvcc):
    """What nvcc compiles for; CUDA 12.0's list where it does not say."""
    return sorted({int(n) for n in re.findall(r"\bsm_(\d+)\b", output(nvcc, "--list-gpu-code"))}) or [75, 80, 86, 89, 90]


def main():
    asked = [int(n) for n in re.findall(r"\d+", os.environ.get("CUDAARCHS", ""))]
    if asked:
        chosen = set(asked)
    else:
        known = known_to(sys.argv[1])
        # a GPU that is newer than nvcc runs the PTX of the newest one that nvcc knows
        here = [int(major + minor) for major, minor in re.findall(r"^(\d+)\.(\d)\s*$", output("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"), re.M)]
        chosen = {max(n for n in known if n <= gpu) for gpu in here if gpu >= known[0]} or set(known) & set(GENERATIONS)
    print(*sorted(chosen))


main()
