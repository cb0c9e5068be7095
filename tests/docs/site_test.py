#!/usr/bin/env python3
"""Builds the site with warnings as errors, where MkDocs and its theme are there; MEZZO_SITE_PYTHON names the interpreter that has them.
Usage: site_test.py ROOT"""
import os
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
PYTHON = os.environ.get("MEZZO_SITE_PYTHON", sys.executable)
SKIPPED = 77


def build(out):
    return subprocess.run([PYTHON, ROOT / "tools/site/build.py", out], capture_output=True, text=True)


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def check_names():
    """Attributes hide no class and are no names."""
    sys.path.insert(0, str(ROOT / "tools/site"))
    import headers
    text = """namespace mezzo {
struct [[gnu::visibility("hidden")]] Impl;  // elsewhere
class [[nodiscard]] Guard {
};
template <class T> struct alignas(64) [[nodiscard]] Aligned {
};
[[nodiscard]] Tensor sum(const Tensor& x);
[[deprecated("use sum(x)")]] Tensor total(const Tensor& x);
}
"""
    names = [name for name, _ in headers.declared(text)]
    check(names == ["Guard", "Aligned", "sum", "total"], f"names of a header: {names}")
    table = (ROOT / "include/mezzo/ops.def").read_text(encoding="utf-8")
    line = table.split("\n")[dict(headers.unique(headers.declared(table)))["relu"] - 1]
    check(line.startswith("[[nodiscard]] Tensor relu"), f"relu leads to its declaration: {line}")
    every = {name for header in (ROOT / "include/mezzo").rglob("*.h") for name, _ in headers.declared(header.read_text(encoding="utf-8"))}
    check({"Autocast", "NoGrad", "Profiler", "Tensor"} <= every and "visibility" not in every, "names of the public headers")


def main():
    check_names()
    if subprocess.run([PYTHON, "-c", "import mkdocs, material"], capture_output=True).returncode != 0:
        print("MkDocs and mkdocs-material are not there")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as name:
        out = pathlib.Path(name) / "site"
        result = build(out)
        check(result.returncode == 0 and "WARNING" not in result.stderr, result.stdout + result.stderr)
        for page in ("index.html", "start/quickstart.html", "api/index.html", "api/tensor.h.html",
                     "project/contributing.html", "internals/performance_amx.svg", "search/search_index.json"):
            check((out / page).is_file(), f"{page} is missing")
        check('href="tensor.h.html#__codelineno-0-' in (out / "api/index.html").read_text(), "names lead to lines of headers")
        pages = json.loads((out / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
        boosts = {page["location"].split("#")[0]: page.get("boost", 1) for page in pages}
        check(boosts["guide/mixed_precision.html"] == max(boosts.values()), "the search shows the guide's Autocast first")
        check(build(out).returncode == 0, "a site is built anew in its folder")
        kept = pathlib.Path(name) / "other"
        kept.mkdir()
        (kept / "file").write_text("mine")
        result = build(kept)
        check(result.returncode != 0 and (kept / "file").exists(), "a folder of somebody else's is not emptied")
    print("the site builds without a warning")


main()
