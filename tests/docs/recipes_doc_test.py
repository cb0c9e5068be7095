#!/usr/bin/env python3
"""Compares a page, such as docs/start/recipes.md, with tests/docs/recipes_test.cpp and further files: the code between
"// begin" and "// end" of the cases, in order, is the code of the document. --write puts it there, in place of the
blocks or of <!-- name --> lines."""
import re
import sys
import textwrap

document, *sources = [argument for argument in sys.argv[1:] if argument != "--write"]
text = open(document, encoding="utf-8").read()
blocks = re.findall(r"^ *// begin\n(.*?)^ *// end$", "".join(open(source, encoding="utf-8").read() for source in sources), re.M | re.S)
expected = [f"```cpp\n{textwrap.dedent(block)}```" for block in blocks]

if "--write" in sys.argv:
    # A case may hold two blocks, a definition and its use: neighbours fill one place each.
    places = iter(expected)
    text = re.sub(r"```cpp\n.*?```|<!-- .*? -->", lambda _: next(places), text, flags=re.S)
    open(document, "w", encoding="utf-8").write(text)
found = re.findall(r"```cpp\n.*?```", text, re.S)
for number, (here, there) in enumerate(zip(found, expected), 1):
    if here != there:
        sys.exit(f"{document}: block {number} differs from its test:\n{here}\n--- the test has\n{there}")
if len(found) != len(expected):
    sys.exit(f"{document}: {len(found)} blocks, the tests have {len(expected)}")
print(f"{len(found)} recipes agree")
