#!/usr/bin/env python3
"""Random cases of mezzo's ops beside PyTorch: shapes with sizes of 0 and 1, every dtype, layouts, values with ties, NaN-free; compares
values, dtypes, shapes and gradients, and that both refuse or neither does. Needs torch, and numpy.

    tools/random_ops.py build/tools/random_ops --cases 1000 --seed 1
Prints one line per difference and the counts. Exits with 1 if there is any."""
import argparse
import collections
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import warnings

import torch
from random_cases import MAKERS, NAMES, r
from ranges import COUNT, number

FILE_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
              torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}
# Relative tolerance of a value; gradients of several ops round several times.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def save(path, tensors):
    header, offset, blobs = {}, 0, []
    for name, x in tensors.items():
        blob = bytes(x.contiguous().view(-1).view(torch.uint8).numpy()) if x.numel() else b""
        header[name] = {"dtype": FILE_NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load(path):
    data = path.read_bytes()
    length, = struct.unpack("<Q", data[:8])
    dtypes, tensors = {v: k for k, v in FILE_NAMES.items()}, {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        dtype = dtypes[entry["dtype"]]
        raw = bytearray(data[8 + length + begin:8 + length + end])
        x = torch.frombuffer(raw, dtype=dtype) if raw else torch.zeros(0, dtype=dtype)
        tensors[name] = x.reshape(entry["shape"])
    return tensors


def waves(y):
    return torch.sin(1.3 * torch.arange(y.numel(), dtype=torch.float64) + 0.25).reshape(y.shape).to(y.dtype)


def expected(case):
    """Results and gradients of PyTorch: {"y0": ..., "g0": ...}, or the error."""
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in case.inputs]
    try:
        y = case.function(*leaves)
        y = list(y) if isinstance(y, (tuple, list)) else [y]
        total = sum(((part * waves(part)).double().sum() for part in y if part.requires_grad), torch.zeros((), dtype=torch.float64))
        if total.requires_grad:
            total.backward()
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        return error
    wanted = {f"y{i}": part.detach() for i, part in enumerate(y)}
    wanted.update({f"g{i}": x.grad for i, x in enumerate(leaves) if x.grad is not None})
    return wanted


def difference(actual, wanted, tolerance):
    """What differs, or None."""
    if actual is None:
        return None if wanted.numel() == 0 or not wanted.any() else "missing"
    if actual.dtype != wanted.dtype:
        return f"dtype {NAMES[actual.dtype]}, wanted {NAMES[wanted.dtype]}"
    if actual.shape != wanted.shape:
        return f"shape {list(actual.shape)}, wanted {list(wanted.shape)}"
    a, w = actual.double(), wanted.double()
    scale = w[w.isfinite()].abs().max().item() if w.isfinite().any() else 0
    same = torch.isclose(a, w, rtol=tolerance, atol=tolerance * max(scale, 1e-3), equal_nan=True)
    return None if same.all() else f"values {a[~same][:3].tolist()}, wanted {w[~same][:3].tolist()}"


def compare(case, wanted, actual):
    coarsest = max((TOLERANCE[x.dtype] for x in case.inputs if x.is_floating_point()), default=1e-9)
    for name, value in wanted.items():
        if value.is_floating_point() and value.dtype != torch.float64:
            coarsest = max(coarsest, TOLERANCE[value.dtype])
    for name, value in wanted.items():
        what = difference(actual.get(name), value, coarsest * (4 if name[0] == "g" else 1))
        if what:
            return f"{name}: {what}"
    extra = set(actual) - set(wanted)
    zero = all(not actual[name].any() for name in extra)
    return None if zero else f"has {sorted(extra)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--cases", type=COUNT, default=1000)
    parser.add_argument("--seed", type=number(int, 0, (1 << 32) - 1), default=1)
    parser.add_argument("--ops", default=",".join(MAKERS), help="names, separated by commas")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the files")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    r.seed(arguments.seed)
    names, cases, lines, inputs = arguments.ops.split(","), [], [], {}
    for i in range(arguments.cases):
        name = names[i % len(names)]
        case = MAKERS[name]()
        layout = r.choice("pts")
        cases.append((name, case, layout))
        lines.append(" ".join([str(i), layout, name, *case.arguments]))
        inputs.update({f"{i}.{k}": x for k, x in enumerate(case.inputs)})
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or pathlib.Path(temporary)
        folder.mkdir(exist_ok=True)
        (folder / "cases.txt").write_text("\n".join(lines) + "\n")
        save(folder / "inputs.safetensors", inputs)
        subprocess.run([arguments.program, folder], check=True)
        actual, results = collections.defaultdict(dict), load(folder / "results.safetensors")
        errors = dict(line.split(" ", 1) for line in (folder / "errors.txt").read_text().splitlines() if " " in line)
    for name, x in results.items():
        actual[name.split(".")[0]][name.split(".")[1]] = x
    return report(cases, lines, actual, errors)


def report(cases, lines, actual, errors):
    counts = collections.Counter()
    for i, (name, case, _) in enumerate(cases):
        wanted, error = expected(case), errors.get(str(i))
        if isinstance(wanted, Exception):
            if "not implemented for" in str(wanted):  # PyTorch's own words for a dtype that its CPU kernel lacks
                counts["PyTorch has no kernel"] += 1
                continue
            what = None if error else f"no error, wanted {str(wanted).splitlines()[0]}"
            counts["both refuse"] += what is None
        elif error:
            what = f"error {error}"
        else:
            what = compare(case, wanted, actual[str(i)])
            counts["agree"] += what is None
            counts["gradients compared"] += sum(key[0] == "g" for key in wanted)
        if what:
            counts["differ"] += 1
            print(f"{lines[i]}  {[(NAMES[x.dtype], list(x.shape)) for x in case.inputs]}: {what}")
    print(f"{len(cases)} cases of {len(MAKERS)} ops, PyTorch {torch.__version__}: " +
          ", ".join(f"{v} {k}" for k, v in sorted(counts.items())))
    return 1 if counts["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
