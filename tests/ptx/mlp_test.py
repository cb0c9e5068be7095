#!/usr/bin/env python3
"""Runs the sample mlp, linked over interpreted PTX: it trains on the device, and on the CPU beside a GPU that is too
old for the build.

usage: mlp_test.py MLP_PTX "device"|"old GPU"
"""
import os
import re
import subprocess
import sys

MLP, CASE = sys.argv[1:]
failures = []


def expect(condition, what):
    print(("ok    " if condition else "FAILED") + " " + what)
    if not condition:
        failures.append(what)


def train(*arguments, **environment):
    """Two steps in each precision: where they ran, the final loss by precision, and the lines on standard error."""
    result = subprocess.run([MLP, "2", *arguments], env={**os.environ, **environment}, capture_output=True, text=True,
                            timeout=500)
    print(result.stdout + result.stderr)
    expect(result.returncode == 0, f"mlp 2 {' '.join(arguments)} {environment}: exit status {result.returncode}")
    hardware = re.match("2 steps on (.*)", result.stdout)
    losses = {name: float(loss) for name, loss in re.findall(r"^(b?float\d+) +([\d.]+) ", result.stdout, re.M)}
    expect(list(losses) == ["float32", "bfloat16", "float16"], f"a row for each precision: {losses}")
    return hardware[1] if hardware else "", losses, result.stderr.splitlines()


def test_device():
    hardware, losses, _ = train("cuda")
    expect(hardware.startswith("PTX on the CPU"), f"it runs on the device: {hardware}")
    _, expected, _ = train("cpu")
    close = [abs(losses[name] / loss - 1) < 0.02 for name, loss in expected.items() if name in losses]
    expect(len(close) == 3 and all(close), f"the losses are those of the CPU: {losses}, {expected}")


def test_old_gpu():
    hardware, _, lines = train(MEZZO_PTX_CAPABILITY="70")
    expect(hardware != "" and "PTX" not in hardware, f"it runs on the CPU: {hardware}")
    reason = r"cuda: GPU 0 \(.+\) has compute capability 7\.0, and this build has kernels for \d+\.\d and newer"
    expect(len(lines) == 1 and re.fullmatch(reason, lines[0]), f"one line says why: {lines}")


test_device() if CASE == "device" else test_old_gpu()
sys.exit(1 if failures else 0)
