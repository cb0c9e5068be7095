#!/usr/bin/env python3
"""Groups the symbols of a `perf record` of build/tools/bench by op: share of the samples, and milliseconds of a step.

perf record -D 2500 -e cpu-clock -F 2000 build/tools/bench --case bert6 --precision bfloat16 --threads 1 --seconds 10
tools/profile_by_op.py [--data perf.data] [--step-ms 180]

The first seconds, in which parameters are made and memory comes from the system, are not recorded. Symbols that are not listed here
are the last lines, so that a new kernel does not hide. Making the parameters is not part of a step and left out.
"""
import argparse
import re
import subprocess

from ranges import SECONDS

GROUPS = (  # the first that matches; functions that several ops share stand alone
    ("", r"box_muller|::normal<|from_words|functors.*::log,"),
    ("products on tiles", r"Plane|OfTwo|OfThree|finish_rows|finish_whole|pack_tile|pack<(true|false)"),
    ("attention", r"Forward::|Backward::|softmax|row_dots|Mask::|WeightDropout|(anonymous namespace\)::(put|get|active)$)"),
    ("matrix products, attention's included", r"micro_kernel<|\bpack<|\bpack\b|epilogue|skinny|tile<|keep<|kept"),
    ("AdamW", r"adam<|update_piece|all_finite"),
    ("random words of all dropouts", r"philox"),
    ("GELU's gradient", r"GeluGrad|gelu"),
    ("LayerNorm, dropout, residual", r"norm_row|norm_grad|dropped_sum|dropout|Dropout"),
    ("sums over rows and columns", r"add_to_double|\bsum<|RowSums|reduce_block|reduce"),
    ("16-bit conversion", r"convert"),
    ("sums of gradients, other element-wise ops", r"binary|unary|add_into"),
    ("set and copied memory", r"memset|memmove|memcpy"),
    ("pages from the system", r"\[k\]"),
)


def samples(data):
    text = subprocess.run(["perf", "report", "-i", data, "--stdio", "--no-children", "--percent-limit", "0", "-F", "sample,sym"],
                          check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        parts = line.split(maxsplit=1)
        if len(parts) == 2 and parts[0].isdigit():
            yield int(parts[0]), parts[1].strip()


def grouped(all_samples):
    """Samples per group, and (samples, symbol) of the others. Where linear layers multiply on AMX tiles, the other kernels of products are attention's."""
    counts, others = {}, []
    for count, symbol in all_samples:
        group = next((name for name, pattern in GROUPS if re.search(pattern, symbol)), None)
        if group is None:
            others.append((count, symbol))
        counts[group or "the rest"] = counts.get(group or "the rest", 0) + count
    counts.pop("", None)
    products = "matrix products, attention's included"
    if "products on tiles" in counts and products in counts:
        counts["attention"] = counts.get("attention", 0) + counts.pop(products)
    return counts, others


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="perf.data")
    parser.add_argument("--step-ms", type=SECONDS, help="the step's milliseconds, as bench printed them")
    args = parser.parse_args()
    counts, others = grouped(samples(args.data))
    total = sum(counts.values())
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        ms = f"{args.step_ms * count / total:8.1f} ms" if args.step_ms else ""
        print(f"{100 * count / total:5.1f} % {ms}  {name}")
    print("in the rest:")
    for count, symbol in sorted(others, reverse=True)[:8]:
        print(f"{100 * count / total:5.2f} %  {symbol[:110]}")


if __name__ == "__main__":
    main()
