#!/usr/bin/env python3
"""Groups the symbols of a `perf record` of build/tools/bench by op: share of the samples, and milliseconds of a step. Fails if a group that
every BERT step has is empty, which says that its kernels have other names now.

perf record -D 2500 -e cpu-clock -F 2000 build/tools/bench --case bert6 --precision bfloat16 --threads 1 --seconds 10
tools/profile_by_op.py [--data perf.data] [--step-ms 180] [--any-case]

The first seconds, in which parameters are made and memory comes from the system, are not recorded. Symbols that are not listed here
are the last lines, so that a new kernel does not hide. Making the parameters is not part of a step and left out.
"""
import argparse
import re
import subprocess
import sys

from ranges import SECONDS

PRODUCTS = "matrix products, attention's included"
# The first that matches; a group without a name is left out. tests/tools/profile_groups_test.py finds every kernel of every
# instruction set in one of these.
GROUPS = (
    ("", r"box_muller|::normal<|from_words|functors.*::log,"),
    ("products on tiles", r"OfTwo|OneByTwo|Plane|OfThree|finish_rows|pack_tile|pack<(true|false)|add_pairs|pair_lines"),
    ("convolutions", r"window|depthwise|\bfind<|add_gradient|image_pairs|\badd_rows<|copy_pieces|copy_taps|TapSums|merged"),
    ("attention", r"softmax(_grad)?<0>|row_dots|Forward::|OneQuery|AttentionGradient|ColumnBlocks|write_rows|write_transposed|Mask::|WeightDropout|\bdivide<"),
    (PRODUCTS, r"micro_kernel|\bpack|\btile|tile_of_lines|panel|epilogue|skinny|\bsmall(_floats)?<|\bkeep<|\bdots<|multiply|\bpair|\bblock\b|\bcodes<|\bone_row<|all_values|fill_up"),
    ("optimizer", r"\bupdate<|all_finite|(read|write)_(blocks|signed_or_not)|round_stochastically|(join|split)_halves"),
    ("random words of all dropouts", r"philox|\bkept\b"),
    ("GELU and its gradient", r"Gelu|gelu"),
    ("norms, dropout, residual", r"norm_|normalise|moments|grad_sums|dropped_sum|dropout|Dropout"),
    ("softmax and losses", r"softmax|exp_sum|loss|bce_"),
    ("sums and extremes", r"add_to_double|sum<|sums<|sum_squares|product<|\bdot<|extreme|RowSums|reduce|sum_i64"),
    ("recurrent layers and pools", r"(rnn|lstm|gru)_|max_|store_places"),
    ("conversion", r"convert|to_float|floats_to_codes"),
    ("element-wise ops", r"binary|unary|gate|select|periodic|power|clamp_grad|add_into|(load|store)_part"),
    ("set and copied memory", r"memset|memmove|memcpy|copy_strided|copy_block"),
    ("pages from the system", r"\[k\]"),
)
EVERY_STEP = ("attention", "optimizer", "random words of all dropouts", "norms, dropout, residual", "sums and extremes",
              "set and copied memory")


def group_of(symbol):
    """None for a symbol that is in no group."""
    return next((name for name, pattern in GROUPS if re.search(pattern, symbol)), None)


def samples(data):
    text = subprocess.run(["perf", "report", "-i", data, "--stdio", "--no-children", "--percent-limit", "0", "-F", "sample,sym"],
                          check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        parts = line.split(maxsplit=1)
        if len(parts) == 2 and parts[0].isdigit():
            yield int(parts[0]), parts[1].strip()


def grouped(all_samples):
    """Samples per group, and (samples, symbol) of the others. Where linear layers multiply on AMX tiles, the other products are attention's."""
    counts, others = {}, []
    for count, symbol in all_samples:
        group = group_of(symbol)
        if group is None:
            others.append((count, symbol))
            group = "the rest"
        if group:
            counts[group] = counts.get(group, 0) + count
    if "products on tiles" in counts and PRODUCTS in counts:
        counts["attention"] = counts.get("attention", 0) + counts.pop(PRODUCTS)
    return counts, others


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="perf.data")
    parser.add_argument("--step-ms", type=SECONDS, help="the step's milliseconds, as bench printed them")
    parser.add_argument("--any-case", action="store_true", help="the step is not BERT's: groups may be empty")
    args = parser.parse_args()
    counts, others = grouped(samples(args.data))
    total = sum(counts.values())
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        ms = f"{args.step_ms * count / total:8.1f} ms" if args.step_ms else ""
        print(f"{100 * count / total:5.1f} % {ms}  {name}")
    print("in the rest:")
    for count, symbol in sorted(others, reverse=True)[:8]:
        print(f"{100 * count / total:5.2f} %  {symbol[:110]}")
    empty = [name for name in EVERY_STEP if not counts.get(name)]
    empty += [] if counts.get(PRODUCTS) or counts.get("products on tiles") else [PRODUCTS]
    if empty and not args.any_case:
        sys.exit(f"profile_by_op: no samples of {'; '.join(empty)}")


if __name__ == "__main__":
    main()
