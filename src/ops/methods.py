#!/usr/bin/env python3
"""Writes methods.cpp: each method that mezzo/methods.def and mezzo/ops.def declare calls the function of its name.

    methods.py build/methods.cpp include/mezzo/methods.def include/mezzo/ops.def
"""
import pathlib
import re
import sys

HEADERS = ("index_ops", "ops", "pointwise_ops", "product_ops", "reduce_ops", "shape_ops", "sort_ops")
METHOD = re.compile(r"^\[\[nodiscard\]\] ([\w:<>]+) (\w+) ?\(((?:[^;{]|\{\})*)\) const;$", re.M)


def definition(result, name, parameters):
    declared = re.sub(r" = (?:\{\}|[^,]+)", "", " ".join(parameters.split()))  # without default arguments
    arguments = ["*this"] + re.findall(r"(\w+)(?:,|$)", declared)
    return f"{result} Tensor::{name}({declared}) const {{ return mezzo::{name}({', '.join(arguments)}); }}\n"


def main():
    target, methods, ops = map(pathlib.Path, sys.argv[1:])
    text = methods.read_text()
    table = ops.read_text()
    for macro, meaning in re.findall(r"^#define (\w+) (.*)$", text, re.M):
        table = table.replace(f" {macro};", f"{meaning};")
    declarations = METHOD.findall(table + text)
    if len(declarations) != (table + text).count(") const;"):
        sys.exit("methods.py: methods.def has a declaration that METHOD does not match")
    target.write_text("".join(f'#include "mezzo/{header}.h"\n' for header in HEADERS) + "\nnamespace mezzo {\n" +
                      "".join(definition(*match) for match in declarations) + "}  // namespace mezzo\n")


main()
