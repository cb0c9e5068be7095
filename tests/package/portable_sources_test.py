#!/usr/bin/env python3
"""The sources of the library that use the system compile where it is a Unix, but not Linux (tests/support/other_unix.h): what is Linux' alone has
a condition around it and something in its place. They are compiled, not run. Usage: portable_sources_test.py SOURCE_ROOT -- COMPILER..."""
import concurrent.futures
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(sys.argv[1])
COMPILER = sys.argv[3:]
SYSTEM = re.compile(r"^#include <(sys/|linux/|net/|netinet/|arpa/|unistd|fcntl|poll|dlfcn|sched|elf|link|pthread|signal\.h|termios)", re.M)
OTHER = ["-U__linux__", "-U__linux", "-Ulinux", "-U__gnu_linux__", "-U__ELF__", "-include", str(ROOT / "tests/support/other_unix.h")]
MODULES = {"src/distributed/gloo.cpp"}  # a module of its own, made where there is Gloo


def compiles(source, text=None):
    """A file, or "-" for the text."""
    command = [*COMPILER, "-std=c++20", "-fsyntax-only", "-w", *OTHER]
    command += ["-I" + str(ROOT / folder) for folder in ("include", "src", ".")]
    return subprocess.run([*command, "-x", "c++", source], input=text or "", capture_output=True, text=True)


def sources():
    """Those that include a header of the system, themselves or by a header of the library."""
    headers = {str(h.relative_to(ROOT / "src")) for h in (ROOT / "src").rglob("*.h") if SYSTEM.search(h.read_text(encoding="utf-8"))}
    for source in sorted((ROOT / "src").rglob("*.cpp")):
        text = source.read_text(encoding="utf-8")
        uses = SYSTEM.search(text) or any('#include "' + header + '"' in text for header in headers)
        if uses and str(source.relative_to(ROOT)) not in MODULES:
            yield str(source)


def main():
    wrong = []
    if compiles("-", "#include <unistd.h>\nint number() { return gettid(); }\n").returncode == 0:
        wrong.append("a call of gettid() compiles: other_unix.h hides nothing")
    found = list(sources())
    if len(found) < 20:
        wrong.append(f"only {len(found)} sources use the system")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for source, result in zip(found, pool.map(compiles, found)):
            if result.returncode != 0:
                wrong.append(source + ":\n" + "\n".join(result.stderr.splitlines()[:6]))
    print("\n".join(wrong) or f"{len(found)} sources compile")
    return bool(wrong)


sys.exit(main())
