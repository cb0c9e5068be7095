#!/usr/bin/env python3
"""tools/gpu_check prepares its build from a folder of unpacked packages, as docs/project/checking.md says, up to
the first compiled file: nothing is missing, and no header comes from a package that a bare machine lacks. Where
there is no CUDA Toolkit, a stand-in for nvcc preprocesses the kernels. Downloads packages: .ci/run calls it, on
Debian.

    gpu_prepare_test.py path/to/source/tree path/to/new/folder
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT, FOLDER = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
# What comes with a C++ compiler.
COMPILER = re.compile(r"(libc6|linux-libc|libcrypt|libnsl|libtirpc|libstdc\+\+-\d+|libgcc-\d+)-dev|gcc-\d+.*")

# Takes nvcc's options, and preprocesses as C++: the kernels then include the emulator in place of CUDA's headers.
NVCC = """#!/bin/sh
for word; do
  shift
  case "$word" in -gencode*|-lineinfo) ;; *.cu) set -- "$@" -x c++ "$word" ;; *) set -- "$@" "$word" ;; esac
done
exec g++ "$@"
"""


def unpack():
    """Runs the document's commands."""
    text = (ROOT / "docs/project/checking.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```sh\n(apt-get download .*?)^```$", text, re.M | re.S)
    (FOLDER / "packages").mkdir()
    subprocess.run(["sh", "-euc", re.sub(r"\bDIR\b", "../deps", block)], cwd=FOLDER / "packages", check=True)


def toolkit():
    """The options that name a toolkit: none where this machine has one."""
    if shutil.which("nvcc") or pathlib.Path("/usr/local/cuda/bin/nvcc").exists():
        return []
    sources = [p for p in [*(ROOT / "cuda").rglob("*.*"), *(ROOT / "tools").glob("*.cpp")] if p.suffix in (".cpp", ".h", ".cuh", ".cu")]
    headers = {h for p in sources for h in re.findall(r"#include <(cu[^>]*\.h)>", p.read_text(encoding="utf-8"))}
    for name in ("bin", "include"):
        (FOLDER / "toolkit" / name).mkdir(parents=True)
    for header in headers:
        (FOLDER / "toolkit/include" / header).touch()
    (FOLDER / "toolkit/bin/nvcc").write_text(NVCC, encoding="utf-8")
    (FOLDER / "toolkit/bin/nvcc").chmod(0o755)
    return ["--toolkit", str(FOLDER / "toolkit")]


def foreign(needs):
    """Headers of packages that do not come with the compiler, each with its package."""
    paths = sorted({f for files in needs.values() for f in files if f.startswith(("/usr/include/", "/usr/lib/"))})
    owners = subprocess.run(["dpkg", "-S", *paths], capture_output=True, text=True).stdout
    packages = {path: re.sub(r":\w+", "", names) for names, path in re.findall(r"^(\S.*?): (/.*)$", owners, re.M)}
    return [f"{path} of {name}" for path, name in packages.items() if not any(COMPILER.fullmatch(n) for n in name.split(", "))]


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    unpack()
    words = [ROOT / "tools/gpu_check", "--deps", FOLDER / "deps", "--out", FOLDER / "out", "--prepare", "--build-only", "--torch", "none"]
    run = subprocess.run([sys.executable, *map(str, words), *toolkit()], capture_output=True, text=True)
    print(run.stdout[-3000:] + run.stderr[-3000:])
    if run.returncode or re.search("^missing: ", run.stdout, re.M) or "nothing is missing" not in run.stdout:
        sys.exit("the preparation lacks something")
    needs = json.loads((FOLDER / "out/needs.json").read_text(encoding="utf-8"))
    if unknown := [source for source, files in needs.items() if len(files) < 2]:
        sys.exit(f"nothing is known of what these read: {unknown}")
    if found := foreign(needs):
        sys.exit("headers that are not in the unpacked packages:\n" + "\n".join(found))
    print(f"{len(needs)} sources find all of their headers in the tree, the unpacked packages, the toolkit and the compiler")


main()
