#!/usr/bin/env python3
"""tools/gpu_check without a GPU: its plan covers the build files; over stand-ins for the programs it judges, limits and reports.

    gpu_check_test.py path/to/source/tree
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]
from gpu import build, parts  # noqa: E402

failures = []

# Stands for mezzo-tests, under a sanitizer too: what it does is chosen by the file of cases it is asked for.
TESTS = """#!/bin/sh
case "$2" in
  "[#dtype_test]") kill -9 $$ ;;
  "[#shape_test]") printf 'test cases: 5 | 3 passed | 2 failed\\n'; exit 2 ;;
  "[#views_test]") echo "warning: no CUDA device: skipped"; echo "All tests passed (1 assertion in 1 test case)" ;;
  *) echo "All tests passed (9 assertions in 4 test cases)" ;;
esac
"""
SANITIZER = """#!/bin/sh
case "$*" in
  *memcheck*mma_test*) echo "========= ERROR SUMMARY: 7 errors"; exit 99 ;;
  *) echo "========= ERROR SUMMARY: 0 errors" ;;
esac
"""
ROW = '{"framework": "F", "median_ms": %s, "min_ms": 1, "queued_ms": 1, "launches": 2, "host_syncs": 0, "steps": 9, ' \
      '"peak_device_mb": 3}'
BENCH = f"""#!/bin/sh
case "$*" in
  *recipe513*) echo "bench: out of memory" >&2; exit 1 ;;
  *--capture*) echo '{ROW % 2}' ;;
  *) echo '{ROW % 4}' ;;
esac
"""
PYTHON = f"""#!/bin/sh
case "$1" in
  -c) echo 1 ;;
  *) echo '{ROW % 10}' ;;
esac
"""


def check(condition, text):
    if not condition:
        failures.append(text)
        print("FAILED:", text)


def write(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)


def gpu_check(folder, *options):
    environment = os.environ | {"PATH": f"{folder / 'tools'}:{os.environ['PATH']}", "MEZZO_CUBLASLT": "none"}
    environment.pop("CXX", None)
    command = [sys.executable, str(ROOT / "tools/gpu_check"), "--out", str(folder / "out"), "--toolkit", str(folder / "toolkit"),
               "--torch", str(folder / "tools/python"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)


def test_plan(folder):
    """The dry run names every source of the build files, and every tool on every device test."""
    write(folder / "toolkit/bin/nvcc", "#!/bin/sh\n")
    write(folder / "toolkit/compute-sanitizer/compute-sanitizer", SANITIZER)
    run = gpu_check(folder, "--dry-run")
    check(run.returncode == int("missing:" in run.stdout), f"dry run: exit code {run.returncode}\n{run.stderr}")
    check(not (folder / "out").exists(), "the dry run writes files")
    sources = build.lists("meson.build") | build.lists("tests/meson.build")
    check(sum(map(len, sources.values())) > 100, "the build files' lists were not read")
    for name in sorted(set(sources) - build.NOT_HERE):
        for source in sources[name]:
            check(f" -c {source} " in run.stdout, f"{name}: {source} is not compiled")
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        for source in sources["device_test_sources"]:
            pattern = rf"--tool {tool} .*\[#{pathlib.Path(source).stem}\]"
            check(re.search(pattern, run.stdout), f"{tool} does not check {source}")
    (folder / "toolkit/bin/nvcc").unlink()
    run = gpu_check(folder, "--dry-run")
    check(run.returncode == 1 and "missing: " in run.stdout and "nvcc" in run.stdout, "nvcc is not missed")


def test_flags():
    """The instruction sets are those of meson.build."""
    text = (ROOT / "meson.build").read_text(encoding="utf-8")
    check(set(re.findall(r"'(-m\w[^']*)'", text)) == {f for flags in build.LIBRARY.values() for f in flags if f.startswith("-m")},
          "tools/gpu/build.py and meson.build differ in -m flags")


def stand_ins(folder):
    write(folder / "tools/nvidia-smi", "#!/bin/sh\necho 'Stand-in, 9.0'\n")
    write(folder / "tools/python", PYTHON)
    for name, script in {"mezzo-tests": TESTS, "bench": BENCH, "mlp": "#!/bin/sh\necho trained\n"}.items():
        write(folder / "out" / name, script)


def test_run(folder):
    """Everything once, with planted faults: each is reported, and nothing else is."""
    stand_ins(folder)
    run = gpu_check(folder, "--reuse", "--only", "tests,sample,benchmark")
    check(run.returncode == 1, f"exit code {run.returncode} with failed tests\n{run.stdout[-2000:]}{run.stderr}")
    report = json.loads((folder / "out/report.json").read_text(encoding="utf-8"))
    markdown = (folder / "out/report.md").read_text(encoding="utf-8")
    outcomes = {pathlib.Path(r["file"]).stem: r["outcome"] for r in report["tests"] if r["outcome"] != "ok"}
    check(outcomes == {"dtype_test": "killed by signal 9", "shape_test": "exit code 2", "views_test": "found no CUDA device"},
          f"tests: {outcomes}")
    files = len(report["tests"])
    check(f"{4 * (files - 3) + 4} passed, 4 failed, 0 skipped" in markdown, "tests are not added up")
    rows = {(r["case"], r["precision"], r["side"]): r for r in report["benchmark"]}
    check(rows["recipe512", "float16", "mezzo"].get("times_eager") == 2.5, "ratio of mezzo")
    check(rows["bert_base512", "float16", "mezzo, captured"].get("times_eager") == 5, "ratio of the captured step")
    check(rows["mlp64", "float16", "PyTorch, reduce-overhead"].get("times_eager") == 1, "ratio of PyTorch")
    check(rows["recipe513", "float16", "mezzo"].get("outcome") == "exit code 1", "a failed benchmark has an outcome")
    check(markdown.count("FAILED: benchmark") == 2 and "out of memory" in markdown, "failed benchmarks are not in the report")
    check("trained" in markdown and not report["left_out"], "the sample's output, or something was left out")


def test_sanitizers(folder):
    """What a tool finds is a failure."""
    run = gpu_check(folder, "--reuse", "--only", "sanitizer")
    report = json.loads((folder / "out/report.json").read_text(encoding="utf-8"))
    found = [(r["tool"], r["file"], r["outcome"], r["summary"]) for r in report["sanitizer"] if r["outcome"] != "ok"]
    check(found == [("memcheck", "tests/mma_test.cpp", "errors", "7 errors")], f"memcheck: {found}")
    check(run.returncode == 1 and run.stdout.count("- FAILED") == 1, "an error under a sanitizer is no failure")
    check(len({r["tool"] for r in report["sanitizer"]}) == 4, "not all tools ran")


def test_limits():
    """A command ends at its limit or with the budget, with all that it has started; a part that does not fit is left out."""
    hang = ["sh", "-c", "echo begun; sleep 30 & wait"]
    said = []
    start = time.monotonic()
    results, left_out = parts.run_all(
        [parts.Part("a", "tests", 0, [parts.Command(hang, 0.5, {"file": "a"})]),
         parts.Part("b", "sanitizer", 100, [parts.Command(hang, 0.5, {"file": "b"})]),
         parts.Part("c", "tests", 0.1, [parts.Command(hang, 100, {"file": "c"}), parts.Command(hang, 100, {"file": "d"})])],
        start + 1.5, said.append)
    check(time.monotonic() - start < 20, "processes beneath a command outlive it")
    found = [(r["file"], r["exit_code"], r["budget_spent"], r["stdout"]) for r in results["tests"]]
    check(found == [("a", None, False, "begun\n"), ("c", None, True, "begun\n"), ("d", None, True, "")], f"limits: {found}")
    check(not results["sanitizer"] and len(left_out) == 1 and left_out[0].startswith("b: takes 100 s"), f"left out: {left_out}")
    check(any("left out: b" in line for line in said), "nothing is said of what is left out")


def main():
    with tempfile.TemporaryDirectory() as folder:
        test_plan(pathlib.Path(folder))
        test_flags()
        test_run(pathlib.Path(folder))
        test_sanitizers(pathlib.Path(folder))
    test_limits()
    print(f"{len(failures)} failures")
    sys.exit(1 if failures else 0)


main()
