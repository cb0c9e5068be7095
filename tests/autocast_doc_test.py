#!/usr/bin/env python3
"""The table of autocast policies in docs/numerics.md is the one that the test program makes from the rows. --write puts it there.

    autocast_doc_test.py DOCUMENT TEST_PROGRAM
"""
import pathlib
import re
import subprocess
import sys

document, program = pathlib.Path(sys.argv[-2]), sys.argv[-1]
output = subprocess.run([program, "[.autocast_markdown]"], capture_output=True, text=True, check=True).stdout
table = re.search(r"^\| policy \|.*\n(?:\|.*\n)+", output, re.M).group()
text = document.read_text(encoding="utf-8")
found = re.search(r"^\| policy \|.*\n(?:\|.*\n)+", text, re.M)
if not found:
    sys.exit(f"{document}: no table of policies")
if "--write" in sys.argv:
    document.write_text(text.replace(found.group(), table), encoding="utf-8")
elif found.group() != table:
    sys.exit(f"{document}: the table of policies is not that of the rows; write it with --write:\n{table}")
print(f"{table.count('`') // 2} ops agree")
