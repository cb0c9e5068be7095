#!/usr/bin/env python3
"""Runs tools/bench_ddp alone and on several ranks, and PyTorch's DistributedDataParallel with gloo beside it, in turn, and prints a Markdown
table of medians over the rounds: CPU time of a step and rank, the efficiency (CPU time alone / CPU time of one of several ranks, each with a batch of the
same size of its own), steps per second, and the peak memory of a rank.

    tools/compare_ddp.py build/tools/bench_ddp build/tools/mezzo-run --torch venv/bin/python --cases mlp:256,mlp:1024,bert:8,bert:16
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from ranges import COUNT, THREADS

HERE = pathlib.Path(__file__).resolve().parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", help="the built bench_ddp")
    parser.add_argument("launcher", help="the built mezzo-run")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has torch; default: no peer")
    parser.add_argument("--cases", default="mlp:1024,bert:16", help="MODEL:ROWS of a rank's batch, separated by commas")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--ranks", type=COUNT, default=2)
    parser.add_argument("--threads", type=THREADS, default=1, help="of a rank")
    parser.add_argument("--steps", type=COUNT, default=20, help="of a run")
    parser.add_argument("--rounds", type=COUNT, default=3)
    return parser.parse_args()


def run(command):
    process = subprocess.run([str(part) for part in command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {process.returncode}\n{process.stderr}")
    lines = [line[line.index("{"):] for line in process.stdout.splitlines() if "{" in line]  # behind the rank's prefix
    return json.loads(lines[-1])


def main():
    args = arguments()
    columns = ["mezzo alone", f"mezzo x {args.ranks}"] + (["torch alone", f"torch x {args.ranks}"] if args.torch else [])
    print("| batch of a rank | peer | CPU ms a step, alone | one of several | efficiency | steps/s, several | peak MB, several |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for case in args.cases.split(","):
        model, rows = case.split(":")
        options = ["--model", model, "--rows", rows, "--precision", args.precision, "--steps", args.steps, "--threads", args.threads]
        torch = [args.torch, HERE / "torch_ddp.py"]
        commands = [[args.bench, *options], [args.launcher, "-n", args.ranks, args.bench, *options], [*torch, "--ranks", 1, *options],
                    [*torch, "--ranks", args.ranks, *options]]
        runs = [[] for _ in columns]
        for _ in range(args.rounds):
            for results, command in zip(runs, commands):
                results.append(run(command))
        value = [{key: statistics.median(r[key] for r in results) for key in ("cpu_ms", "clock_ms", "peak_mb")} for results in runs]
        for peer in range(len(columns) // 2):
            alone, several = value[2 * peer], value[2 * peer + 1]
            print(f"| {model}, {rows} rows | {columns[2 * peer].split()[0]} | {alone['cpu_ms']:.1f} | {several['cpu_ms']:.1f} | "
                  f"{100 * alone['cpu_ms'] / several['cpu_ms']:.0f} % | {1e3 / several['clock_ms']:.2f} | {several['peak_mb']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
