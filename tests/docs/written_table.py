"""A table in a page of docs/ that the test program prints: compares the two, or writes the page's."""
import pathlib
import re
import subprocess
import sys


def main(case, first_column):
    """Arguments of the program: DOCUMENT TEST_PROGRAM [--write]. `case` is the tag of the hidden case that prints the table, whose first
    column is named."""
    document, program = [argument for argument in sys.argv[1:] if argument != "--write"]
    pattern = re.compile(rf"^\| {first_column} \|.*\n(?:\|.*\n)+", re.M)
    output = subprocess.run([program, f"[.{case}]"], capture_output=True, text=True, check=True).stdout
    table = pattern.search(output).group()
    page = pathlib.Path(document)
    text = page.read_text(encoding="utf-8")
    found = pattern.search(text)
    if not found:
        sys.exit(f"{document}: no table with the column {first_column!r}")
    if "--write" in sys.argv:
        page.write_text(text.replace(found.group(), table), encoding="utf-8")
    elif found.group() != table:
        sys.exit(f"{document}: the table is not that of the program; write it with --write:\n{table}")
    print(f"{table.count(chr(10)) - 2} rows agree")
