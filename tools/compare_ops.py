#!/usr/bin/env python3
"""Single ops in mezzo and in PyTorch: both processes live next to each other and compute in turn. Prints microseconds (median over the rounds
of a round's median) and how many times as long PyTorch takes, the slowest ratio first, as a Markdown table. PyTorch's malloc keeps freed memory
unless --fresh-memory: else most of what is measured is the system's handing out pages.

    tools/compare_ops.py build/tools/bench_ops --torch venv/bin/python --threads 1
    tools/compare_ops.py build/tools/bench_ops --torch venv/bin/python --only 'softmax|topk'
"""
import argparse
import math
import os
import pathlib
import re
import signal
import statistics
import time

from compare_gemm import HERE, Side
from ranges import COUNT, THREADS, number

KEPT = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "16000000000", "MALLOC_TOP_PAD_": "268435456"}


def pattern(text):
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench_ops", help="the built bench_ops program")
    parser.add_argument("--torch", required=True, metavar="PYTHON", help="an interpreter that has torch")
    parser.add_argument("--threads", type=THREADS, default=1)
    parser.add_argument("--rounds", type=COUNT, default=3)
    parser.add_argument("--ms", type=number(float, 0.01, 1e5), default=40, help="per side and round; up to ten times as much for three calls that take long")
    parser.add_argument("--cases", type=pathlib.Path, default=HERE / "op_cases.txt")
    parser.add_argument("--only", type=pattern, default=re.compile(""), metavar="PATTERN", help="cases in which this regular expression is found")
    parser.add_argument("--fresh-memory", action="store_true", help="PyTorch with the malloc that it has by default")
    return parser.parse_args()


def measured(sides, line, rounds):
    """Microseconds per side and the median ratio, or the first error."""
    times = [[] for _ in sides]
    for _ in range(rounds):
        for side, own in zip(sides, times):
            time.sleep(0.004)  # the other side's threads go to sleep
            answer = side.answer(line)
            if answer.startswith("error"):
                return f"{pathlib.Path(side.process.args[-2]).name}: {answer[:100]}"
            own.append(float(answer.split()[0]))
    return [statistics.median(own) for own in times], statistics.median(b / a for a, b in zip(*times))


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    cases = [line for line in args.cases.read_text(encoding="utf-8").splitlines() if line and line[0] != "#" and args.only.search(line)]
    environment = {**os.environ, **({} if args.fresh_memory else KEPT)}
    sides = [Side([args.bench_ops, "--threads", str(args.threads)]),
             Side([args.torch, str(HERE / "torch_ops.py"), str(args.threads)], environment)]
    print(f"{args.threads} thread(s), {args.rounds} rounds of {args.ms:g} ms\n", flush=True)
    rows, errors = [], []
    for case in cases:
        try:
            result = measured(sides, f"{case} {args.ms}", args.rounds)
        except KeyboardInterrupt:  # the table has what was measured
            break
        errors += [f"{case}: {result}"] if isinstance(result, str) else []
        rows += [] if isinstance(result, str) else [(result[1], case, *result[0])]
    print("| op, sizes, dtype, direction | mezzo | PyTorch | ratio |\n| --- | --- | --- | --- |")
    for ratio, case, mezzo, torch in sorted(rows):
        print(f"| {case} | {mezzo:.1f} | {torch:.1f} | {ratio:.2f} |")
    print("\n" + "".join(f"not measured: {error}\n" for error in errors))
    if not cases:
        raise SystemExit(f"compare_ops: no case in {args.cases} fits --only")
    if rows:
        ratios = [row[0] for row in rows]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"{len(rows)} cases: geometric mean {mean:.2f}; {sum(r < 0.9 for r in ratios)} below 0.9, {sum(r < 0.5 for r in ratios)} below 0.5")


if __name__ == "__main__":
    main()
