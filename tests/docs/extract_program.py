#!/usr/bin/env python3
"""Prints the first C++ program of a Markdown file: the first ```cpp block that has a main()."""
import re
import sys


def main():
    text = open(sys.argv[1], encoding="utf-8").read()
    for block in re.findall(r"^```cpp\n(.*?)^```$", text, flags=re.M | re.S):
        if "int main(" in block:
            sys.stdout.write(block)
            return
    sys.exit(f"{sys.argv[1]}: no ```cpp block with a main()")


main()
