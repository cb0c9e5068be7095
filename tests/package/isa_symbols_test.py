#!/usr/bin/env python3
"""The units that are compiled for one instruction set define nothing but their tables: a weak symbol (an inline function, a
template) could be taken by the linker for callers that run on processors without those instructions. Usage: isa_symbols_test.py
LIBRARY..."""
import re
import subprocess
import sys

TABLE = re.compile(r"mezzo::cpu::(attention|channels|convert|gemm|loops|pool|recurrent|tiles|windows)_(portable|avx2|avx512|avx512_bf16|amx)")


def defined(library):
    """(kind, name) of every symbol with external linkage that a library defines."""
    text = subprocess.run(["nm", "-C", "--defined-only", "--extern-only", library], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^[0-9a-f]+ (\w) (.*)$", text, re.M)
    return [(kind, name) for kind, name in found if not name.startswith("DW.ref.")]  # a pointer for exceptions, no code


def main():
    faults, tables = [], []
    for library in sys.argv[1:]:
        found = defined(library)
        faults += [f"{library}: {kind} {name}" for kind, name in found if kind not in "RDB" or not TABLE.fullmatch(name)]
        tables += [name for _, name in found if TABLE.fullmatch(name)]
    if len(set(tables)) != len(tables) or len(tables) < 5 * 3 + 2:
        faults.append(f"tables: {sorted(tables)}")
    print("\n".join(faults) if faults else f"isa_symbols: {len(tables)} tables and nothing else")
    sys.exit(1 if faults else 0)


main()
