#!/usr/bin/env python3
"""Compares what a rank keeps between two steps, with and without a sharded optimizer, with the table of
docs/guide/distributed.md.
Usage: memory_test.py MEZZO_RUN RANK_PROGRAM GLOO_MODULE [TEST...]
The environment's BENCH_DDP is the program of tools/bench_ddp.cpp; without it all is skipped.
"""
import json
import os
import subprocess
import sys

from runs import RUN, SAME_KERNELS, environment, expect, main

BENCH = os.environ.get("BENCH_DDP")
WITHIN = 0.1
# Bytes of a parameter: on every rank, and divided by the number of ranks.
SHARDED = {"fp32": (8, 8), "bf16": (10, 8), "O2": (4, 12)}


def measured(ranks, precision, *options):
    """Bytes of a parameter."""
    command = [RUN, "-n", str(ranks), "--no-prefix", BENCH, "--model", "bert", "--rows", "1", "--length", "16", "--steps", "1", "--warmup", "1",
               "--precision", precision, *options]
    result = subprocess.run(command, env=environment(**SAME_KERNELS), capture_output=True, text=True, timeout=120, check=False)
    expect(result.returncode == 0, result)
    found = json.loads(result.stdout)
    expect(found["ranks"] == ranks and found["parameters"] > 5e6, result)
    return found["allocated_mb"] * 1e6 / found["parameters"]


def expect_near(found, predicted, what):
    expect(abs(found - predicted) <= WITHIN * predicted, f"{found:.2f} bytes of a parameter, not {predicted:.2f}", what)


def a_sharded_step_keeps_what_the_page_says():
    for precision, (whole, divided) in SHARDED.items():
        for ranks in (2, 4):
            expect_near(measured(ranks, precision, "--shard"), whole + divided / ranks, f"{precision} on {ranks} ranks, sharded")


def a_step_that_is_not_sharded_keeps_all():
    for precision, parts in SHARDED.items():
        expect_near(measured(2, precision), sum(parts), f"{precision}, not sharded")


if not BENCH:
    print("no bench_ddp: skipped")
    sys.exit(77)
main([a_sharded_step_keeps_what_the_page_says, a_step_that_is_not_sharded_keeps_all])
