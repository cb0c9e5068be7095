#!/usr/bin/env python3
"""PyTorch's module and optimizer databases beside mezzo, in float64: results, and gradients of inputs and parameters, of each layer with
PyTorch's weights, by their names in state_dict(); parameters after some steps of each optimizer. Needs what op_database.py needs.

    tools/module_database.py build/tools/op_database --only 'Conv|Transformer'
Exits with 1 if a layer differs or crashes."""
import argparse
import pathlib
import re
import subprocess
import sys
import warnings

import torch
from op_database import Case, Counts, Unsupported, difference, flat, run, waves
from op_database_scope import MODULES_OUT, within_reason
from ranges import COUNT
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db


class ModuleCase(Case):
    """A layer, and a call of it."""

    def __init__(self, info, number, given, training):
        self.id, self.tensors, self.brackets = str(number), {}, False
        kwargs = {name: x for name, x in given.constructor_input.kwargs.items() if name not in ("device", "dtype")}
        self.module = info.module_cls(*given.constructor_input.args, **kwargs).double().train(training)
        self.given = given.forward_input
        state = {name: x.detach().clone() for name, x in self.module.state_dict().items()}
        self.line = {"id": self.id, "op": info.name, "layout": "p", "training": training,
                     "args": [self.encoded(x) for x in given.constructor_input.args], "kwargs": {name: self.encoded(x) for name, x in kwargs.items()},
                     "forward": {"args": [self.encoded(x) for x in self.given.args], "kwargs": {name: self.encoded(x) for name, x in self.given.kwargs.items()}}}
        self.line["tensors"] = {name: x.requires_grad for name, x in self.tensors.items()}
        self.leaves = {name: x for name, x in self.tensors.items() if x.requires_grad}
        self.line["state"] = {name: self.encoded(x)["t"] for name, x in state.items()}
        self.leaves.update({self.line["state"][name]: x for name, x in self.module.named_parameters()})

    def encoded(self, x):
        if isinstance(x, (torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer)):
            return {"norm_first": x.norm_first, "d_model": x.self_attn.embed_dim, "nhead": x.self_attn.num_heads, "dim_feedforward": x.linear1.out_features,
                    "batch_first": x.self_attn.batch_first, "activation": getattr(x.activation, "__name__", "relu"), "bias": x.linear1.bias is not None}
        if callable(x) and not isinstance(x, (torch.Tensor, torch.dtype)):
            return {"function": getattr(x, "__name__", "")}
        return super().encoded(x)

    def expected(self):
        results = flat(self.module(*self.given.args, **self.given.kwargs))
        parts = [(y * waves(y)).double().sum() for y in results if y.requires_grad]
        gradients = {}
        if parts and self.leaves:
            found = torch.autograd.grad(sum(parts), list(self.leaves.values()), allow_unused=True)
            gradients = {name: g for name, g in zip(self.leaves, found) if g is not None}
        return results, gradients


class OptimizerCase(Case):
    """Some steps of an optimizer from given parameters along given gradients; of L-BFGS, on p^4 / 4 + p g."""

    def __init__(self, kind, number, options):
        self.id, self.tensors, self.brackets, self.kind, self.options = str(number), {}, False, kind, options
        shapes = [(4, 6), (6, 3)] + [(5,), (2, 3, 4)] * (kind is not torch.optim.Muon)
        self.parameters = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
        self.gradients = [[torch.randn(shape, dtype=torch.float64) for shape in shapes] for _ in range(7)]
        self.line = {"id": self.id, "op": "optim." + kind.__name__, "layout": "p", "args": [self.encoded(self.parameters), self.encoded(self.gradients)],
                     "kwargs": {name: self.encoded(x.item() if isinstance(x, torch.Tensor) else x) for name, x in options.items()}, "forward": {}, "training": True}
        self.line["tensors"] = {name: False for name in self.tensors}

    def expected(self, wide=None):
        parameters = [torch.nn.Parameter(p.clone()) for p in self.parameters]
        optimizer = self.kind(parameters, **self.options)
        sign = -1 if self.options.get("maximize") else 1

        def closure():
            optimizer.zero_grad()
            loss = sign * sum((p ** 4 / 4 + p * g).sum() for p, g in zip(parameters, self.gradients[0]))
            loss.backward()
            return loss

        for gradients in self.gradients if self.kind is not torch.optim.LBFGS else range(2):
            if self.kind is torch.optim.LBFGS:
                optimizer.step(closure)
                continue
            for p, g in zip(parameters, gradients):
                p.grad = g.clone()
            optimizer.step()
        return [p.detach() for p in parameters], {}


class Optimizers:
    """The part of an optimizer's entry in the database that one_module() reads."""

    def __init__(self, info):
        self.info, self.name, self.formatted_name = info, "optim." + info.optim_cls.__name__, info.optim_cls.__name__

    def cases(self, counts, limit):
        torch.manual_seed(1)
        inputs = self.info.optim_inputs_func(device="cpu")[:limit]
        return [OptimizerCase(self.info.optim_cls, i, given.kwargs) for i, given in enumerate(inputs)]


def cases_of(info, counts, limit):
    cases = []
    for training in (True, False):
        torch.manual_seed(1)
        for given in info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=True, training=training)[:limit]:
            try:
                if given.forward_input:
                    cases.append(ModuleCase(info, len(cases), given, training))
            except Unsupported as e:
                counts.note(info, "unlike", f"argument {e}", torch.float64)
    return cases


def one_module(info, program, counts, limit):
    cases = info.cases(counts, limit) if isinstance(info, Optimizers) else cases_of(info, counts, limit)
    if not cases:
        return
    actual, errors, crash = run(program, cases)
    if crash:
        counts.note(info, "CRASH", crash, torch.float64)
        return
    for case in cases:
        wanted, gradients = case.expected()
        error = errors.get(case.id)
        problem = None if error else difference(case, wanted, gradients, actual)
        reason = within_reason(info.name, case.line, torch.float64, error and error["message"], problem) if error or problem else None
        if error and not error["here"]:
            counts.note(info, "unlike", error["message"], torch.float64)
        elif reason:
            counts.note(info, "reason", reason, torch.float64)
        elif error or problem:
            what = error["message"] if error else problem
            shown = {name: case.line[name] for name in ("args", "kwargs", "forward", "training")}
            counts.note(info, "REFUSED" if error else "DIFFERS", what + f" {shown}"[:400] * counts.verbose, torch.float64)
        else:
            counts["equal"] += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path, help="build/tools/op_database")
    parser.add_argument("--only", default="", help="names with this regular expression")
    parser.add_argument("--limit", type=COUNT, default=200, help="inputs of a layer")
    parser.add_argument("--verbose", action="store_true", help="with the arguments, and what is not compared")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    known = set(subprocess.run([args.program, "--list"], capture_output=True, text=True, check=True).stdout.split())
    infos = [info for info in [*module_db, *map(Optimizers, optim_db)] if not re.fullmatch(MODULES_OUT, info.name) and re.search(args.only, info.name)]
    counts = Counts(args.verbose)
    for info in infos:
        if info.name in known:
            one_module(info, args.program.resolve(), counts, args.limit)
    missing = [info.name for info in infos if info.name not in known]
    bad = ["CRASH", "DIFFERS", "REFUSED"]
    counts.print(bad + ["unlike", "reason"] * args.verbose)
    print(f"layers and optimizers of {len(infos)} in scope: {len(infos) - len(missing)}; missing: {' '.join(missing)}")
    print(", ".join(f"{counts[kind]} {kind}" for kind in ["equal", "reason", "unlike"] + bad))
    sys.exit(any(counts[kind] for kind in bad))


if __name__ == "__main__":
    main()
