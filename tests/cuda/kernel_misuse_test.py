#!/usr/bin/env python3
"""Kernels, gradients and calls with the attributes of another op must not compile. Beside each stands its neighbour that must.
Usage: kernel_misuse_test.py SOURCE_ROOT -- COMPILER..."""
import subprocess
import sys

ROOT = sys.argv[1]
COMPILER = sys.argv[3:]
HEAD = """#include "autograd/op.h"
#include "kernels/copy.h"
#include "kernels/norm.h"
using namespace mezzo;
using kernels::LayerNorm;
using kernels::RmsNorm;
void layer_norm(In in, const LayerNorm& at, Out out);
void rms_norm(In in, const RmsNorm& at, Out out);
extern const Op<LayerNorm> op;
"""
# (what compiles, the same with another op's attributes)
PAIRS = [
    ("double f(const LayerNorm& at) { return at.eps; }", "double f(const LayerNorm& at) { return at.dropout_p; }"),
    ("Kernel<LayerNorm>* const k = layer_norm;", "Kernel<LayerNorm>* const k = rms_norm;"),
    ("constexpr KernelEntry e = kernel_entry<layer_norm>();", "constexpr KernelEntry e = kernel_entry<sizeof(LayerNorm)>();"),
    ("const Op<LayerNorm> o({}, [](const Node&, const LayerNorm&, const Tensors& g) -> Tensors { return g; });",
     "const Op<LayerNorm> o({}, [](const Node&, const RmsNorm&, const Tensors& g) -> Tensors { return g; });"),
    ("const Op<LayerNorm> o({}, nullptr, [](In, const LayerNorm&) -> Tensors { return {}; });",
     "const Op<LayerNorm> o({}, nullptr, [](In, const RmsNorm&) -> Tensors { return {}; });"),
    ("Tensor f(const Tensor& x) { return call(op, {x}, {.eps = 1}, x.shape()); }",
     "Tensor f(const Tensor& x) { return call(op, {x}, {.value = 1}, x.shape()); }"),
    ("Tensor f(const Tensor& x) { return call(op, {x}, LayerNorm{}, x.shape()); }",
     "Tensor f(const Tensor& x) { return call(op, {x}, RmsNorm{}, x.shape()); }"),
    ("void f(const KernelOf<kernels::Fill>& fill, const Tensor& x) { fill({}, {.value = 1}, x); }",
     "void f(const KernelOf<kernels::Fill>& fill, const Tensor& x) { fill({}, {.eps = 1}, x); }"),
]


def compiles(body):
    run = subprocess.run(COMPILER + ["-std=c++20", "-fsyntax-only", f"-I{ROOT}/include", f"-I{ROOT}/src", "-x", "c++", "-"],
                         input=HEAD + body + "\n", text=True, capture_output=True, check=False)
    return run.returncode == 0, run.stderr


def main():
    wrong = 0
    everything = "\n".join(f"namespace case{i} {{ {good} }}" for i, (good, _) in enumerate(PAIRS))
    fine, text = compiles(everything)
    if not fine:
        print("FAILED: what is right does not compile\n" + text)
        return 1
    for _, bad in PAIRS:
        if compiles(bad)[0]:
            print(f"FAILED: compiles without a word: {bad}")
            wrong += 1
    print(f"{len(PAIRS) - wrong} of {len(PAIRS)} are refused")
    return 1 if wrong else 0


sys.exit(main())
