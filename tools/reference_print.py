#!/usr/bin/env python3
"""How PyTorch prints tensors, as the table of tests/core/printing_test.cpp: run it, and put its output between "// begin table" and
"// end table" there. With --many FOLDER instead: 600 random tensors as FOLDER/tensors.safetensors and their texts as FOLDER/NAME.txt,
to compare with Tensor::to_string() once. Needs PyTorch; the library does not."""
import argparse
import math
import pathlib

import torch

NAMES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16",
         torch.int32: "int32", torch.int64: "int64", torch.uint8: "uint8", torch.bool: "boolean"}
INF, NAN = math.inf, math.nan

# values, shape, dtype
CASES = [
    ([3.14159], [], torch.float32),
    ([1, 2.5, -3, 4], [2, 2], torch.float32),
    ([1, -20, NAN, INF], [4], torch.float32),
    ([1.5, -INF, NAN], [3], torch.float32),
    ([1.5, 20000], [2], torch.float32),
    ([1e-6, 0], [2], torch.float32),
    ([1e-5, 2e-5, -INF], [3], torch.float32),
    ([0, 0, -0.0], [3], torch.float32),
    ([NAN], [1], torch.float32),
    ([1, 1001], [2], torch.float32),
    ([1, 1000], [2], torch.float32),
    ([2e8, 3e8, -INF, 0], [4], torch.float32),
    ([123456, 5], [2], torch.float32),
    ([0.1, 99.99996], [2], torch.float32),
    ([0.00012, 0.1], [2], torch.float32),
    ([-0.5], [], torch.float64),
    ([1 / 3, 2 / 3], [1, 2], torch.float16),
    ([65504, 1], [2], torch.float16),
    ([1 / 3, 300], [2, 1], torch.bfloat16),
    ([1, -1000, 9007199254740992], [3], torch.int64),
    ([7], [], torch.int64),
    ([1, -2, 3], [3], torch.int32),
    ([0, 255], [2], torch.uint8),
    ([1, 0], [2], torch.bool),
    ([0], [], torch.bool),
    ([], [0], torch.float32),
    ([], [0], torch.int64),
    ([], [2, 0], torch.float16),
    ([], [0, 3], torch.bool),
    ([1, 2, 3, 4], [2, 1, 2], torch.float32),
    (list(range(16)), [2, 2, 2, 2], torch.int64),
    ([i / 8 for i in range(24)], [24], torch.float32),
    ([i / 8 for i in range(24)], [24], torch.float64),
    ([i % 2 for i in range(30)], [30], torch.bool),
    (list(range(1001)), [1001], torch.int64),
    (list(range(1200)), [300, 4], torch.int64),
    (list(range(1100)), [10, 110], torch.float32),
    (list(range(2000)), [20, 10, 10], torch.float32),
]


def text_of(tensor):
    text = str(tensor)
    for dtype, name in NAMES.items():
        text = text.replace(f"dtype={dtype}", f"dtype={name}")
    return text


def number(value):
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def print_table():
    for values, shape, dtype in CASES:
        tensor = torch.tensor(values, dtype=torch.float64).to(dtype).reshape(shape)
        counting = len(values) > 40
        listed = f"counting({len(values)})" if counting else "{" + ", ".join(number(v) for v in values) + "}"
        text = text_of(tensor).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        print(f'    {{{listed}, {{{", ".join(map(str, shape))}}}, {NAMES[dtype]},\n     "{text}"}},')


def write_many(folder):
    from safetensors.torch import save_file
    torch.manual_seed(5)
    tensors = {}
    for i in range(600):
        dims = torch.randint(0, 4, ()).item()
        shape = [torch.randint(0 if i % 50 == 0 else 1, 15, ()).item() for _ in range(dims)]
        x = torch.randn(shape, dtype=torch.float64) * 10 ** (torch.rand(shape, dtype=torch.float64) * (i % 13) - i % 7)
        if i % 3 == 0:
            x = x.round()
        if i % 5 == 0:
            x = torch.where(torch.rand(shape) < 0.1, torch.tensor([NAN, INF, -INF, 0.0, -0.0])[torch.randint(0, 5, shape)].double(), x)
        dtype = list(NAMES)[i % 8]
        if not dtype.is_floating_point:
            x = x.nan_to_num(0, 0, 0).clamp(0, 255)
        tensors[f"t{i}"] = x.to(dtype)
        (folder / f"t{i}.txt").write_text(text_of(tensors[f"t{i}"]))
    save_file(tensors, str(folder / "tensors.safetensors"))


options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--many", type=pathlib.Path, metavar="FOLDER")
folder = options.parse_args().many
if folder:
    write_many(folder)
else:
    print_table()
