#!/usr/bin/env python3
"""Every kernel that is compiled per instruction set belongs to a group of tools/profile_by_op.py, on each of them; products are products.
Usage: profile_groups_test.py LIBRARY..."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tools")]
from checks import check, finish  # noqa: E402
from profile_by_op import GROUPS, PRODUCTS, group_of  # noqa: E402

# In the library of each instruction set that has loops.
IN_EACH = ("convolutions", "attention", PRODUCTS, "optimizer", "random words of all dropouts", "GELU and its gradient",
           "norms, dropout, residual", "softmax and losses", "sums and extremes", "recurrent layers and pools", "conversion", "element-wise ops")


def kernels(library):
    text = subprocess.run(["nm", "-C", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^[0-9a-f]+ [tT] (?:\w+ )*?(mezzo::cpu::.*)$", text, re.M)
    # As perf shows them: without parameters.
    return {re.sub(r"\((?!anonymous namespace\)|mezzo).*", "", name) for name in names if "{lambda" not in name}


def main():
    for library in sys.argv[1:]:
        name, found = pathlib.Path(library).name, {}
        for kernel in kernels(library):
            group = group_of(kernel)
            check(group is not None, f"{name}: {kernel} is in no group")
            found.setdefault(group, []).append(kernel)
        for kernel in found.get("attention", []):
            check("micro_kernel" not in kernel, f"{name}: {kernel} counts as attention")
        check(("products on tiles" if "amx" in name else PRODUCTS) in found, f"{name}: no products")
        if re.search("portable|avx2|avx512[.]", name):
            check(set(IN_EACH) <= set(found), f"{name}: no kernels of {set(IN_EACH) - set(found)}")
    check({group for group, _ in GROUPS} > set(IN_EACH), "unknown groups")
    finish()


main()
