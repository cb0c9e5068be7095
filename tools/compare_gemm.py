#!/usr/bin/env python3
"""Matrix products in mezzo and in PyTorch: both processes live side by side and compute in turn, a few milliseconds each. Prints
GFLOP/s (median over the rounds of a round's median, and the best call) as a Markdown table, and geometric means. The ratio is the median
of the rounds' ratios: what slows the machine down for longer than a round slows both sides down.

    tools/compare_gemm.py build/tools/time_gemm --torch venv/bin/python --threads 1
"""
import argparse
import math
import pathlib
import statistics
import subprocess
import time

from ranges import COUNT, THREADS, number

HERE = pathlib.Path(__file__).resolve().parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("time_gemm", help="the built time_gemm program")
    parser.add_argument("--torch", required=True, metavar="PYTHON", help="an interpreter that has torch")
    parser.add_argument("--threads", type=THREADS, default=1)
    parser.add_argument("--rounds", type=COUNT, default=7)
    parser.add_argument("--ms", type=number(float, 0.01, 1e5), default=25, help="per side and round")
    parser.add_argument("--shapes", default="256x1024x1024,512x4096x4096,1024x384x1536,1024x1536x384,2048x768x3072", help="m x n x k")
    parser.add_argument("--ops", default="NT,NN,TN")
    parser.add_argument("--types", default="bfloat16,float16,float32:high", help="type, or float32:precision")
    return parser.parse_args()


class Side:
    """A process that answers each line with a line."""
    def __init__(self, command, environment=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment)

    def answer(self, line):
        self.process.stdin.write(line + "\n")
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.process.args[0]} gave no answer to: {line}")
        return answer

    def ask(self, line):
        return [float(x) for x in self.answer(line).split()]


def compare(sides, lines, rounds):
    """(median, best) seconds per side, and the median ratio of the last side's time to the first's."""
    for side, line in zip(sides, lines):
        side.ask(line)
    medians, best = [[] for _ in sides], [math.inf for _ in sides]
    for _ in range(rounds):
        for i, (side, line) in enumerate(zip(sides, lines)):
            time.sleep(0.004)  # the other side's threads go to sleep
            median, fastest = side.ask(line)
            medians[i].append(median)
            best[i] = min(best[i], fastest)
    ratios = [last / first for first, last in zip(medians[0], medians[-1])]
    return [(statistics.median(m), b) for m, b in zip(medians, best)], statistics.median(ratios)


def main():
    args = arguments()
    sides = [Side([args.time_gemm, str(args.threads)]), Side([args.torch, str(HERE / "torch_gemm.py"), str(args.threads)])]
    print(f"{args.threads} thread(s), {args.rounds} rounds of {args.ms:g} ms\n")
    print("| m x n x k | op | operands | mezzo | PyTorch | ratio |\n| --- | --- | --- | --- | --- | --- |")
    ratios = {}
    for shape in args.shapes.split(","):
        m, n, k = map(int, shape.split("x"))
        for kind in args.types.split(","):
            name, _, precision = kind.partition(":")
            for op in args.ops.split(","):
                request = f"{m} {n} {k} {op} {name}"
                # PyTorch's float32 is the peer of every precision here
                (mezzo, torch), ratio = compare(sides, [f"{request} {precision or 'highest'} {args.ms}", f"{request} highest {args.ms}"], args.rounds)
                work = 2e-9 * m * n * k
                ratios.setdefault(kind, []).append(ratio)
                cells = [f"{work / median:.0f} ({work / best:.0f})" for median, best in (mezzo, torch)]
                print(f"| {m} x {n} x {k} | {op} | {kind} | {cells[0]} | {cells[1]} | {ratio:.2f} |", flush=True)
    print()
    for kind, values in ratios.items():
        mean = math.exp(statistics.fmean(map(math.log, values)))
        print(f"{kind}: geometric mean {mean:.2f}, {min(values):.2f} to {max(values):.2f}")


if __name__ == "__main__":
    main()
