#!/usr/bin/env python3
"""mezzo as a subproject of another Meson project: the library and nothing else is built, in C++20 though the project asks for no
standard, and the program links and runs. Usage: subproject_test.py MESON_BUILD PROGRAM BUILD; the compiled library is that of BUILD,
because compiling it again would take minutes."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from checks import check, finish  # noqa: E402

MESON_BUILD, PROGRAM, BUILD = map(pathlib.Path, sys.argv[1:])
ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*command, folder=None):
    ended = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"FAILED: {' '.join(map(str, command))}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def options():
    """What decides which libraries the program links: as in BUILD."""
    values = {o["name"]: o["value"] for o in json.loads((BUILD / "meson-info/intro-buildoptions.json").read_text())}
    return [f"-Dmezzo:{name}={values[name]}" for name in ("cuda", "toolkit", "png", "jpeg", "gloo")] + [f"-Dbuildtype={values['buildtype']}"]


def project(folder):
    """A project with a wrap file, and what that file would fetch already in its place."""
    (folder / "subprojects").mkdir()
    shutil.copy(ROOT / "tools/packaging/mezzo.wrap", folder / "subprojects")
    (folder / "subprojects/mezzo").symlink_to(ROOT)
    shutil.copy(MESON_BUILD, folder / "meson.build")
    shutil.copy(PROGRAM, folder / "program.cpp")
    run("meson", "setup", folder / "build", folder, "--force-fallback-for=mezzo", *options())
    return folder / "build"


def check_targets(build):
    targets = json.loads(run("meson", "introspect", "--targets", build))
    programs = [t["name"] for t in targets if t["type"] not in ("static library", "shared library", "shared module")]
    check(programs == ["program"], f"built beside the library: {programs}")
    check(any(t["name"] == "mezzo" for t in targets), "no target mezzo")


def check_program(build):
    run("ninja", "-C", build, "program.p/program.cpp.o")
    link = run("ninja", "-C", build, "-t", "commands", "program").strip().split("\n")[-1]
    check("subprojects/mezzo/src/libmezzo.a" in link, f"the program is linked by {link}")
    run("sh", "-c", link.replace("subprojects/mezzo/", f"{BUILD.resolve()}/"), folder=build)
    version = json.loads((BUILD / "meson-info/intro-projectinfo.json").read_text())["version"]
    check(subprocess.run([build / "program", version]).returncode == 0, "the program failed")


with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as installed:
    # A mezzo that is installed does not take the subproject's place.
    (pathlib.Path(installed) / "mezzo.pc").write_text("Name: mezzo\nDescription: installed\nVersion: 0.1.0\nLibs: -lmezzo_that_is_installed\n")
    os.environ["PKG_CONFIG_PATH"] = os.pathsep.join(filter(None, [installed, os.environ.get("PKG_CONFIG_PATH")]))
    build = project(pathlib.Path(folder))
    check_targets(build)
    check_program(build)
finish()
