#!/usr/bin/env python3
"""What the exchange of a data-parallel step costs, in CPU time. Usage: efficiency_test.py MEZZO_RUN RANK_PROGRAM GLOO_MODULE

The environment's BENCH_DDP is the program of tools/bench_ddp.cpp. Two ranks are compared with two processes that are alone, at the same time: so both share
caches, memory and clock alike, whether the two processors are cores of their own or threads of one. Clock times are printed only.
"""
import json
import os
import subprocess
import sys

from runs import RUN, environment, expect, main

BENCH = os.environ["BENCH_DDP"]
# 0.9 and more on an idle machine. Other programs take caches and clock from both, not always alike: 0.84 was the best
# of five attempts beside a build. Ranks that spin while they wait would take up to twice the time.
LEAST = 0.6
ATTEMPTS = 5


def results(*commands):
    """What the benchmarks print that run at the same time: the means of CPU and clock time of a step, in ms."""
    processes = [subprocess.Popen(c, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for c in commands]
    try:
        outputs = [p.communicate(timeout=200)[0] for p in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    expect(all(p.returncode == 0 for p in processes), outputs)
    printed = [json.loads(next(line for line in output.split("\n") if line.startswith("{"))) for output in outputs]
    return [sum(p[key] for p in printed) / len(printed) for key in ("cpu_ms", "clock_ms")]


def is_efficient(*options):
    bench = [BENCH, "--steps", "8", "--warmup", "2", *options]
    alone, one_of_two = [], []
    for _ in range(ATTEMPTS):
        alone.append(results(bench, bench))
        one_of_two.append(results([RUN, "-n", "2", "--no-prefix", *bench]))
        efficiency = min(alone)[0] / min(one_of_two)[0]
        if efficiency >= LEAST:
            break
    texts = [f"{cpu:.1f} ms (clock: {clock:.1f})" for cpu, clock in (min(alone), min(one_of_two))]
    print(f"{' '.join(options)}: a step alone takes {texts[0]}, one of two ranks {texts[1]}: {100 * efficiency:.0f} %", flush=True)
    expect(efficiency >= LEAST, (alone, one_of_two))


def mlp():
    is_efficient("--model", "mlp", "--rows", "1024")


def bert():
    is_efficient("--model", "bert", "--rows", "16", "--length", "128")


if len(os.sched_getaffinity(0)) < 2:
    print("one processor: skipped, since ranks that take turns on it evict each other's data from its caches")
    sys.exit(77)
main([mlp, bert])
