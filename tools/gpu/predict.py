#!/usr/bin/env python3
"""A model, and no measurement: what an eager bfloat16 step of BERT-base (batch 16, length 128, AdamW) should take on an H100, line by
line, as it was at commit 931f222 and as it is. Launches were counted with the emulated device, and a test compares those of today.

    tools/gpu/predict.py    # prints a table

A kernel is taken to need the longer of its arithmetic and its bytes, at rates that are assumed, and a gap before it.
"""
import dataclasses
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]
from gpu.roofline import PLAN, PRODUCT, bert_parameters, product  # noqa: E402

ATTENTION = 200e12  # FLOP/s of attention's own kernels
GAP = 1.5           # microseconds between two kernels of a stream
DRIVER = 2.2        # microseconds of the host in the driver per launch
HOST = 0.8          # in mezzo: measured with kernels off, 0.6 to 1
ISSUE = 132 * 4 * 32 * 1.7e9  # instructions per second of all lanes

LAYERS, TOKENS, LENGTH, HIDDEN, VOCABULARY = 12, 16 * 128, 128, 768, 30522
CELLS, WIDE = TOKENS * HIDDEN, TOKENS * 4 * HIDDEN


@dataclasses.dataclass
class Kernels:
    """Alike kernels of a step. Work is that of one."""
    count: int
    flops: float = 0
    bytes: float = 0
    rate: float = PLAN["library"]
    instructions: float = 0

    def us(self):
        work = max(self.flops / self.rate, self.bytes / PLAN["memory"], self.instructions / ISSUE)
        return self.count * (1e6 * work + GAP)


@dataclasses.dataclass
class Row:
    what: str
    pattern: str  # of the names of today's kernels
    before: list
    after: list


def products(count, m, n, k, result_item=2):
    line = product("", m, n, k, 2, result_item)
    return Kernels(LAYERS * count, line.flops, line.bytes)


def moved(count, size, **more):
    """Kernels that read and write so many bytes."""
    return Kernels(LAYERS * count, bytes=size, **more)


def attention(products_of_pairs, cells):
    return Kernels(LAYERS, flops=2 * products_of_pairs * TOKENS * LENGTH * HIDDEN, bytes=2 * cells * CELLS, rate=ATTENTION)


def rows():
    t, h, wide = TOKENS, HIDDEN, 4 * HIDDEN
    parts = 3 * h * 4 * t / 8  # of the sums for weight, bias and the bias before a norm
    feed = [products(2, t, wide, h), products(2, t, h, wide)]
    feed_weights = [products(1, wide, h, t, 4), products(1, h, wide, t, 4)]
    around, around_weight = [products(2, t, h, h)], [products(1, h, h, t, 4)]
    # embeddings, pooler, classifier, loss: some 100 bytes per cell, and the table's gradient is written twice
    rest = 104 * CELLS + 8 * VOCABULARY * h
    update = [Kernels(1, bytes=bert_parameters(LAYERS, h, VOCABULARY) * 30)]
    return [
        Row("query, key, value: forward", PRODUCT, [products(3, t, h, h)], [products(1, t, 3 * h, h)]),
        Row("query, key, value: input gradients", PRODUCT, [products(3, t, h, h)], [products(1, t, h, 3 * h)]),
        Row("query, key, value: weight gradients", PRODUCT, [products(3, h, h, t, 4)], [products(1, 3 * h, h, t, 4)]),
        Row("behind attention: forward, input gradient", PRODUCT, around, around),
        Row("behind attention: weight gradient", PRODUCT, around_weight, around_weight),
        Row("feed-forward: forward, input gradients", PRODUCT, feed, feed),
        Row("feed-forward: weight gradients", PRODUCT, feed_weights, feed_weights),
        Row("attention", r"::(flash_)?attention_kernel", [attention(2, 4)], [attention(2, 4)]),
        Row("attention's statistics", r"::statistics_kernel<(float|double)>", [moved(1, 4 * CELLS)], []),
        Row("gradient of queries", r"query_gradient_kernel", [attention(3, 5)], [attention(3, 6)]),
        Row("gradients of keys and values", r"key_gradient_kernel", [attention(4, 6)], [attention(4, 6)]),
        Row("norms with dropout and residual", r"::norm_kernel<.*DroppedSum", [moved(2, 14 * CELLS)], [moved(2, 16 * CELLS)]),
        Row("their results to 16 bit", r"::convert_kernel<.*float16_t, float>", [moved(2, 6 * CELLS)], []),
        Row("gradients of norms", r"::norm_grad_kernel<.*StoredTwice", [moved(2, 14 * CELLS + parts)], [moved(2, 14 * CELLS + 2 * parts)]),
        Row("sums of their parts", r"::add_parts_kernel", [moved(2, parts)], []),
        Row("gradients to float32", r"::convert_kernel<float, ", [moved(1, 6 * CELLS)], []),
        Row("additions of residual gradients", r"::map_flat_kernel<float, 3, .*add", [moved(2, 12 * CELLS)], []),
        Row("additions of q's, k's and v's gradients", r"::map_flat_kernel<.*float16_t, 3, .*add", [moved(2, 6 * CELLS)], []),
        Row("bias and erf GELU", r"::epilogue_kernel", [moved(1, 6 * WIDE, instructions=150 * WIDE)],
            [moved(1, 6 * WIDE, instructions=20.3 * WIDE)]),
        Row("gradient of GELU, now with its bias's", r"::(activation_grad_kernel|map_flat_kernel<.*gelu_grad)", [moved(1, 6 * WIDE)],
            [moved(1, 6 * WIDE)]),
        Row("bias gradients", r"::(column_sum_kernel|reduce_columns_kernel<.*float16_t)", [moved(3, 2 * CELLS), moved(1, 2 * WIDE)],
            [moved(1, 6 * CELLS)]),
        Row("embeddings, pooler, classifier, loss", "", [Kernels(35, bytes=rest / 35)], [Kernels(34, bytes=rest / 34)]),
        Row("AdamW", r"::update_kernel", update, update),
    ]


def total(found, side):
    return (sum(k.count for row in found for k in getattr(row, side)), sum(k.us() for row in found for k in getattr(row, side)))


def table(found):
    lines = ["| kernels | launches before | now | µs before | now |", "| --- | --- | --- | --- | --- |"]
    for row in found:
        before, after = total([row], "before"), total([row], "after")
        lines.append(f"| {row.what} | {before[0]} | {after[0]} | {before[1]:.0f} | {after[1]:.0f} |")
    before, after = total(found, "before"), total(found, "after")
    lines.append(f"| **device, all** | {before[0]} | {after[0]} | {before[1]:.0f} | {after[1]:.0f} |")
    host = [count * (HOST + DRIVER) for count, _ in (before, after)]
    lines.append(f"| host, beside it | | | {host[0]:.0f} | {host[1]:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(rows()))
