#!/usr/bin/env python3
"""Runs the cases of tools/bench in mezzo and in one or more installations of PyTorch, in turn, and prints the ratios as a Markdown
table. A run beside which other processes used the CPU is repeated: threads that wait for each other suffer most from a busy
neighbour, and not all frameworks alike.

    tools/compare.py build/tools/bench --torch /usr/bin/python3 --torch other-venv/bin/python
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from ranges import COUNT, SECONDS, number

HERE = pathlib.Path(__file__).resolve().parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", help="the built bench program")
    parser.add_argument("--torch", action="append", default=[], metavar="PYTHON", help="an interpreter that has torch; repeatable")
    parser.add_argument("--layouts", default="channels_last", help="of PyTorch's images, each a peer of its own: channels_last,nchw")
    parser.add_argument("--cases", default="mlp1024,mlp64")
    parser.add_argument("--precisions", default="float32,bfloat16,float16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=COUNT, default=3, help="runs per side; the median counts")
    parser.add_argument("--seconds", type=SECONDS, default=2, help="of measuring per run")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--foreign", type=number(float, 0, 1e3), default=0.1, help="cores others may use during a run")
    parser.add_argument("--retries", type=number(int, 0, 1000), default=5, help="of a disturbed run, before it counts anyway, marked *")
    parser.add_argument("--json", help="write all runs into this file")
    return parser.parse_args()


def busy_seconds():
    """CPU seconds all processes of the machine used so far."""
    fields = [int(n) for n in open("/proc/stat").readline().split()[1:9]]
    user, nice, system, _, _, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_once(command):
    """(result or None where the case does not exist, cores used by others)"""
    start, busy, own = time.perf_counter(), busy_seconds(), children_seconds()
    process = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wall = time.perf_counter() - start
    foreign = (busy_seconds() - busy - (children_seconds() - own)) / wall
    if process.returncode != 0:
        print(process.stderr.strip().splitlines()[-1], file=sys.stderr)
        return None, 0
    return json.loads(process.stdout), foreign


def run(command, args):
    for attempt in range(args.retries + 1):
        result, foreign = run_once(command)
        if result is None or foreign <= args.foreign:
            break
        if attempt < args.retries:
            print(f"others used {foreign:.2f} cores: again", file=sys.stderr)
            time.sleep(2)
    if result is not None:
        result["foreign_cores"] = round(foreign, 3)
        result["disturbed"] = foreign > args.foreign
        if (result.get("sgemm_gflops") or 100) < 10:
            print(f"{result['framework']}: float32 GEMM at {result['sgemm_gflops']:.1f} GFLOP/s: no fast BLAS, "
                  "not a fair peer (Debian: libopenblas0-pthread)", file=sys.stderr)
    return result


def sides(args, case, precision, threads):
    options = ["--case", case, "--precision", precision, "--threads", threads, "--seconds", str(args.seconds),
               "--device", args.device]
    yield [args.bench] + options
    for python in args.torch:
        for layout in args.layouts.split(","):
            yield [python, str(HERE / "torch_bench.py"), "--layout", layout] + options


def summary(runs):
    """Median of the medians, least of the minima, largest memory; None without runs."""
    runs = [r for r in runs if r]
    if not runs:
        return None
    return {"framework": runs[0]["framework"], "median_ms": statistics.median(r["median_ms"] for r in runs),
            "min_ms": min(r["min_ms"] for r in runs), "peak_rss_mb": max(r["peak_rss_mb"] for r in runs),
            "mark": "*" if any(r["disturbed"] for r in runs) else ""}


def cell(result):
    return f"{result['median_ms']:.3g} ({result['min_ms']:.3g}){result['mark']}" if result else "-"


def ratio(peer, own):
    return f"{peer['median_ms'] / own['median_ms']:.2f}x" if peer and own else "-"


def main():
    args = arguments()
    everything, rows, names = [], [], None
    for case in args.cases.split(","):
        for precision in args.precisions.split(","):
            for threads in args.threads.split(","):
                commands = list(sides(args, case, precision, threads))
                runs = [[] for _ in commands]
                for _ in range(args.rounds):  # in turn, so that a slow minute hits all sides
                    for side, command in enumerate(commands):
                        runs[side].append(run(command, args))
                everything += [r for side in runs for r in side if r]
                results = [summary(side) for side in runs]
                names = names or [None] * len(results)
                names = [n or (r and r["framework"]) for n, r in zip(names, results)]
                memory = " / ".join(f"{r['peak_rss_mb']:.0f}" if r else "-" for r in results)
                rows.append([case, precision, threads] + [cell(r) for r in results] +
                            [ratio(r, results[0]) for r in results[1:]] + [memory])
                print(" ".join(rows[-1]), file=sys.stderr)
    names = [n or "torch" for n in names]
    header = ["case", "precision", "threads"] + [f"{n}, ms: median (least)" for n in names] + \
        [f"faster than {n}" for n in names[1:]] + ["peak RSS, MB"]
    for row in [header, ["---"] * len(header)] + rows:
        print("| " + " | ".join(row) + " |")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


main()
