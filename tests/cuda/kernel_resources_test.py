#!/usr/bin/env python3
"""Every kernel keeps its values in registers: no stack and no spilled registers, but for those of ALLOWED. A stack is memory of
each thread, and an array that lands there by accident costs more than the arithmetic around it.
Usage: kernel_resources_test.py OBJECT_FOLDER KERNEL_SOURCE...; reads what tools/compile_kernels.py left beside the objects."""
import os
import re
import sys

SIN = "the reduction of large arguments in CUDA's sinf, cosf and sincos has a table of words, which arguments below 105615 never reach"
WIDE = "plain attention: tiles of double, or 128 columns per warp, need more registers than the block leaves each thread; the Tensor " \
       "Core kernels are the fast ones"
FULL = "255 registers are the most that a thread can have, and these tiles want a few more; a smaller tile reads its operands twice as often"
# Name of the kernel: most bytes of stack, and why. Instances of a template share an entry.
ALLOWED = {
    "attention_kernel": (256, WIDE),
    "key_gradient_kernel": (64, WIDE),
    "query_gradient_kernel": (24, WIDE),
    "flash_kernel": (32, FULL),
    "flash_key_gradient_kernel": (40, FULL),
    "flash_key_redo_kernel": (8, FULL),
    "flash_query_gradient_kernel": (16, FULL),
    "map_flat_kernel": (32, SIN),
    "map_kernel": (40, SIN),
}

# The same for GPUs before compute capability 8.0, whose copies to shared memory pass through registers.
COPIES = "a copy's 16 bytes wait in registers for shared memory, and a product of two steps needs more of them"
BEFORE_AMPERE = {
    "grad_sums_kernel": (8, "one kernel of eight accumulators, two registers short"),
    "implicit_weight_kernel": (288, COPIES),
    "flash_key_gradient_kernel": (104, COPIES),
}


def base_name(mangled):
    """The function's own name: the last of the nested names in front of the template's and function's parameters."""
    place = re.match(r"_ZN?K?", mangled)
    at, name = place.end() if place else 0, mangled
    while found := re.match(r"\d+", mangled[at:]):
        at += found.end()
        name, at = mangled[at:at + int(found[0])], at + int(found[0])
    return name


def functions(text):
    """(architecture, name, bytes of stack, bytes of spills) of every kernel in what ptxas has said."""
    arch, name = "", ""
    for line in text.splitlines():
        if found := re.search(r"Compiling entry function '(.*)' for '(.*)'", line):
            name, arch = found[1], found[2]
        found = re.match(r"\s+(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if found and name:
            yield arch, base_name(name), int(found[1]), int(found[2]) + int(found[3])
            name = ""  # what follows are functions that the kernel calls


def main():
    folder, sources = sys.argv[1], sys.argv[2:]
    kernels, problems, used = 0, [], set()
    for source in sources:
        path = os.path.join(folder, os.path.basename(source) + ".o.resources")
        if not os.path.exists(path):
            problems.append(f"{source} has left no {path}")
            continue
        with open(path, encoding="utf-8") as file:
            found = list(functions(file.read()))
        kernels += len(found)
        for arch, name, stack, spills in found:
            if stack == 0 and spills == 0:
                continue
            used.add(name)
            limit = max(of.get(name, (0, ""))[0] for of in ([ALLOWED, BEFORE_AMPERE] if arch < "sm_80" else [ALLOWED]))
            if stack > limit:
                problems.append(f"{source}: {name} has {stack} bytes of stack and {spills} of spills on {arch}, {limit} are allowed")
    if sources and kernels == 0:
        problems.append("no kernel was found")
    for problem in sorted(set(problems)):
        print("FAILED", problem)
    for name in ALLOWED:  # it may have one on another architecture
        if name not in used:
            print(f"{name} has no stack in this build")
    print(f"{kernels} kernels, {len(used)} names with a stack, {len(set(problems))} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
