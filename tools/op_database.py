#!/usr/bin/env python3
"""PyTorch's operator database beside mezzo: its samples of every function that training code uses, in each dtype,
with gradients, and its wrong inputs. Needs torch with its testing modules: pip install torch numpy scipy expecttest.

    tools/op_database.py build/tools/op_database            every function; prints what differs, and the counts
    tools/op_database.py build/tools/op_database --only 'pool' --dtypes float64 --verbose
Exits with 1 if a sample differs or crashes, or if a wrong input is taken."""
import argparse
import collections
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import torch
from op_database_scope import out_of_scope, within_reason
from ranges import COUNT
from tensor_files import FILE_NAMES, load, save
from torch.testing._internal.common_methods_invocations import op_db

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "bool"]


def waves(y):
    return torch.sin(1.3 * torch.arange(y.numel(), dtype=torch.float64) + 0.25).reshape(y.shape).to(y.dtype)


class Unsupported(Exception):
    """An argument that mezzo has no counterpart of, such as a complex number."""


class Case:
    """One call: a line of cases.jsonl, its tensors and what PyTorch makes of it."""

    def __init__(self, entry, number, sample, grad):
        self.id, self.tensors, self.entry, self.sample = str(number), {}, entry, sample
        self.grad, self.brackets = grad, entry.name == "__getitem__"
        args = [self.encoded(sample.input)] + [self.encoded(x) for x in sample.args]
        kwargs = {name: self.encoded(x) for name, x in sample.kwargs.items()}
        self.line = {"id": self.id, "op": short_name(entry), "args": args, "kwargs": kwargs, "layout": "pts"[number % 3],
                     "tensors": {name: grad and x.requires_grad for name, x in self.tensors.items()}}

    def encoded(self, x):
        if isinstance(x, torch.Tensor):
            if x.dtype not in FILE_NAMES or x.layout != torch.strided or x.dim() > 8:
                raise Unsupported(f"{x.dtype}, {x.dim()} dimensions")
            for name, known in self.tensors.items():
                if known is x:
                    return {"t": name}
            name = f"{self.id}.{len(self.tensors)}"
            self.tensors[name] = x
            return {"t": name}
        if isinstance(x, float) and not math.isfinite(x):
            return {"f": "nan" if math.isnan(x) else "inf" if x > 0 else "-inf"}
        if x is None or isinstance(x, (bool, int, float, str)):
            return x
        if isinstance(x, torch.dtype):
            return {"dtype": str(x).split(".")[1].replace("bool", "boolean")}
        if isinstance(x, slice):
            return {"slice": [x.start, x.stop, x.step]}
        if x is Ellipsis:
            return {"ellipsis": True}
        if isinstance(x, list) and x and self.brackets and all(isinstance(i, (int, list)) for i in x):  # x[[0, 1]] is x[tensor]
            return self.encoded(torch.tensor(x))
        if isinstance(x, (list, tuple)):
            return [self.encoded(y) for y in x]
        if isinstance(x, (torch.device, torch.layout, torch.memory_format)):
            return None
        raise Unsupported(type(x).__name__)

    def expected(self, wide=None):
        """Results, and gradients by the name of the input, of PyTorch; an exception where it refuses. `wide`: computed in that dtype
        instead of 16 bit, and rounded once."""
        narrow = self.sample.input.dtype if isinstance(self.sample.input, torch.Tensor) else None
        copies = {}

        def change(x):  # copies: some functions write into their inputs
            if isinstance(x, torch.Tensor):
                dtype = wide if wide and x.dtype == narrow else x.dtype
                return copies.setdefault(id(x), x.detach().to(dtype, copy=True).requires_grad_(x.requires_grad))
            return type(x)(change(y) for y in x) if type(x) in (list, tuple) else x

        args, kwargs = change([self.sample.input, *self.sample.args]), {name: change(x) for name, x in self.sample.kwargs.items()}
        results = flat(self.entry.op(*args, **kwargs))
        gradients = {}
        if self.grad:
            parts = [(y * waves(y.to(narrow) if wide and y.dtype == wide else y)).double().sum() for y in results if y.requires_grad]
            leaves = {name: copies[id(x)] for name, x in self.tensors.items() if x.requires_grad}
            if parts and leaves:
                found = torch.autograd.grad(sum(parts), list(leaves.values()), allow_unused=True)
                gradients = {name: g for name, g in zip(leaves, found) if g is not None}
        if wide:
            results = [y.to(narrow) if y.dtype == wide else y for y in results]
            gradients = {name: g.to(narrow) for name, g in gradients.items()}
        return results, gradients


def short_name(entry):
    return "Tensor.unfold" if entry.name == "unfold" else entry.name.removeprefix("nn.functional.")


def flat(result):
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [y for part in result for y in flat(part)]
    return [torch.tensor(result)]


def samples(entry, dtype, limit):
    grad = dtype.is_floating_point and entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")
    for i, sample in enumerate(entry.sample_inputs("cpu", dtype, requires_grad=grad)):
        if i == limit:
            return
        yield sample, grad


def run(program, cases):
    """Results by name, and errors by id; the exit status if the program crashed."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tensors = {key: x.detach() for case in cases for key, x in case.tensors.items()}
        save(folder / "inputs.safetensors", tensors)
        (folder / "cases.jsonl").write_text("".join(json.dumps(case.line) + "\n" for case in cases))
        done = subprocess.run([program, folder], capture_output=True, text=True)
        if done.returncode:
            return {}, {}, f"exit status {done.returncode}: {done.stderr[-300:]}"
        errors = [json.loads(line) for line in (folder / "errors.jsonl").read_text().splitlines()]
        return load(folder / "results.safetensors"), {e["id"]: e for e in errors}, None


def difference(case, wanted, gradients, actual):
    """What differs, as one line, or None."""
    own = {name: x for name, x in actual.items() if name.startswith(case.id + ".")}
    count = sum(".y" in name for name in own)
    if count != len(wanted):
        return f"{count} results instead of {len(wanted)}"
    for i, y in enumerate(wanted):
        if problem := unequal(own[f"{case.id}.y{i}"], y):
            return f"result {i}: {problem}"
    for name, g in gradients.items():
        found = own.get(name + ".g", torch.zeros_like(g))  # no gradient is one of zeros
        if problem := unequal(found, g, 4):
            return f"gradient of input {name.split('.')[1]}: {problem}"
    return None


def equal_in_wide(case, dtype, actual):
    """16-bit results are rounded once here, and often more than once in PyTorch; in float32 either may add in the worse order."""
    wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}.get(dtype)
    return wide is not None and not difference(case, *case.expected(wide), actual)


def unequal(actual, wanted, factor=1):
    wanted = wanted.detach()
    if actual.dtype != wanted.dtype:
        return f"dtype {actual.dtype} instead of {wanted.dtype}"
    if actual.shape != wanted.shape:
        return f"shape {list(actual.shape)} instead of {list(wanted.shape)}"
    tolerances = {torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2), torch.float32: (5e-6, 2e-5), torch.float64: (1e-7, 1e-7)}
    rtol, atol = tolerances.get(wanted.dtype, (0, 0))
    if wanted.is_floating_point() and wanted.numel():  # sums of large terms that cancel
        largest = wanted.nan_to_num(0, 0, 0).abs().max().item()
        atol = max(atol, rtol * largest) if wanted.dtype in (torch.float32, torch.float64) else atol * max(1, largest)
    try:
        torch.testing.assert_close(actual, wanted, rtol=factor * rtol, atol=factor * atol, equal_nan=True)
    except AssertionError as e:
        return re.sub(r"\s+", " ", str(e))[:160]
    return None


class Counts(collections.Counter):
    def __init__(self, verbose):
        super().__init__()
        self.verbose, self.lines = verbose, collections.OrderedDict()

    def note(self, entry, kind, text, dtype):
        self[kind] += 1
        key = (entry.formatted_name, kind, re.sub(r"[\d.]+(e-?\d+)?|(Mismatched|Expected).*|Scalars|Tensor-likes", "#", text))
        self.lines.setdefault(key, []).append((dtype, text))

    def print(self, kinds):
        for (name, kind, _), found in self.lines.items():
            if kind in kinds:
                dtypes = ",".join(sorted({str(dtype).split(".")[-1] for dtype, _ in found}))
                print(f"{kind:10} {name:40} {len(found):4}x {dtypes}: {found[0][1]}")


def one_function(entry, program, dtypes, limit, counts):
    cases = []
    for dtype in dtypes:
        if dtype not in entry.supported_dtypes("cpu"):
            continue
        for sample, grad in samples(entry, dtype, limit):
            try:
                cases.append((Case(entry, len(cases), sample, grad), dtype))
            except Unsupported as e:
                counts.note(entry, "unlike", f"argument {e}", dtype)
    if not cases:
        return
    actual, errors, crash = run(program, [case for case, _ in cases])
    if crash:
        counts.note(entry, "CRASH", crash, "all")
        return
    for case, dtype in cases:
        try:
            wanted, gradients = case.expected()
        except Exception as e:  # PyTorch refuses its own sample in this dtype
            counts.note(entry, "unlike", f"PyTorch: {e}", dtype)
            continue
        error = errors.get(case.id)
        if error and not error["here"]:
            counts.note(entry, "unlike", error["message"], dtype)
        elif error:
            reason = within_reason(short_name(entry), case.line, dtype, error["message"], None)
            counts.note(entry, "reason" if reason else "REFUSED", reason or error["message"] + " " + json.dumps(case.line)[:200] * counts.verbose, dtype)
        elif (problem := difference(case, wanted, gradients, actual)) and not equal_in_wide(case, dtype, actual):
            reason = within_reason(short_name(entry), case.line, dtype, None, problem)
            counts.note(entry, "reason" if reason else "DIFFERS", reason or problem + " " + json.dumps(case.line)[:300] * counts.verbose, dtype)
        else:
            counts["equal"] += 1


def wrong_inputs(entry, program, counts):
    """PyTorch refuses each of them, and so must mezzo."""
    if not entry.error_inputs_func:
        return
    cases = []
    for wrong in entry.error_inputs("cpu"):
        if "out" in wrong.sample_input.kwargs:  # mezzo's functions have none
            continue
        try:
            cases.append(Case(entry, len(cases), wrong.sample_input, False))
        except Unsupported:
            continue
    if not cases:
        return
    _, errors, crash = run(program, cases)
    if crash:
        counts.note(entry, "CRASH", "wrong inputs: " + crash, "all")
        return
    for case in cases:
        if case.id in errors:
            counts["refused"] += 1
        elif reason := within_reason(short_name(entry), case.line, None, None, None):
            counts.note(entry, "reason", reason, "wrong input")
        else:
            counts.note(entry, "TAKEN", json.dumps(case.line)[:200], "wrong input")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path, help="build/tools/op_database")
    parser.add_argument("--only", default="", help="names with this regular expression")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--limit", type=COUNT, default=100, help="samples of a function and dtype")
    parser.add_argument("--verbose", action="store_true", help="with the arguments, and the samples that are not compared")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    known = set(subprocess.run([args.program, "--list"], capture_output=True, text=True, check=True).stdout.split())
    entries = [entry for entry in op_db if not out_of_scope(entry.name) and re.search(args.only, entry.formatted_name)]
    names = {entry.name for entry in entries}
    missing = sorted({entry.name for entry in entries if short_name(entry) not in known})
    counts = Counts(args.verbose)
    dtypes = [getattr(torch, name) for name in args.dtypes.split(",")]
    for entry in entries:
        if entry.name not in missing:
            torch.manual_seed(1)
            one_function(entry, args.program.resolve(), dtypes, args.limit, counts)
            wrong_inputs(entry, args.program.resolve(), counts)
    bad = ["CRASH", "DIFFERS", "REFUSED", "TAKEN"]
    counts.print(bad + ["unlike", "reason"] * args.verbose)
    print(f"functions of {len(names)} in scope that have a counterpart: {len(names) - len(missing)}; missing: {' '.join(missing)}")
    print(", ".join(f"{counts[kind]} {kind}" for kind in ["equal", "refused", "reason", "unlike"] + bad))
    sys.exit(any(counts[kind] for kind in bad))


if __name__ == "__main__":
    main()
