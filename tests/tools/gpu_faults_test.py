#!/usr/bin/env python3
"""tools/gpu_check where things go wrong: programs that hang, print without end or leave processes behind, compilers that run for ever,
errors that a device does not forget, machines that are taken away. Stand-ins do each of these.

    gpu_faults_test.py path/to/source/tree
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/support"), str(ROOT / "tests/package")]
from checks import check, finish, write  # noqa: E402
from gpu import build, carry_out, make, parts, report, run  # noqa: E402

FILES = {"tests": 1, "sanitizer": 1}

# Stands for mezzo-tests on a device that forgets no error: after the case "bad" of one process nothing works in it.
STICKY = """#!/bin/sh
case "$*" in
  *a_test*--list*) printf 'first\\nbad\\nlast\\n'; exit 3 ;;
  *--list*) printf 'only\\n'; exit 1 ;;
  *a_test*) echo "HEAD of the log: bad failed, then last failed"; echo "test cases: 3 | 1 passed | 2 failed"
     i=0; while [ $i -lt 3000 ]; do echo "line $i"; i=$((i + 1)); done; echo "TAIL of the log"; exit 2 ;;
  bad) [ "$CUDA_LAUNCH_BLOCKING" = 1 ] && echo "an illegal memory access"; echo "test cases: 1 | 1 failed"; exit 1 ;;
esac
echo "All tests passed (1 assertion in 1 test case)"
"""


def shell(script, limit, about, kind="tests"):
    return parts.Part(about, kind, 0, [parts.Command(["sh", "-c", script], limit, {"file": about})])


def alive(path):
    """Whether the process lives whose id a stand-in has written there."""
    try:
        state = pathlib.Path(f"/proc/{path.read_text(encoding='utf-8').strip()}/stat").read_text(encoding="utf-8")
        return state.rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def carried_out(planned, seconds=60, **options):
    """(results by kind, a function of kind and number; what was left out; seconds)."""
    start = time.monotonic()
    results = carry_out.Results(options.pop("path", None))
    left_out = carry_out.Run(start + seconds, results, lambda line: None, **options).all(planned)
    return results.by_kind(), left_out, time.monotonic() - start


def test_ends(folder):
    """A command ends at its limit or with its program, whatever that has started; its output is kept until then."""
    deaf, away, late = folder / "deaf", folder / "away", folder / "late"
    scripts = {
        "hangs": f"echo begun; trap '' TERM; sleep 60 & echo $! > {deaf}; wait",
        "holds the pipe": f"echo done; sleep 60 & echo $! > {late}; exit 0",
        "leaves the session": f"echo done; setsid sh -c 'echo $$ > {away}; exec sleep 60' & sleep 0.5; exit 0",
    }
    planned = [parts.Part(name, "sample", 0, [parts.Command(["sh", "-c", script], 6, {"file": name})]) for name, script in scripts.items()]
    results, _, took = carried_out(planned)
    found = {r["file"]: (r["exit_code"], r["stopped"], r["stdout"]) for r in results["sample"]}
    check(found == {"hangs": (None, "time limit", "begun\n"), "holds the pipe": (0, "", "done\n"), "leaves the session": (0, "", "done\n")},
          f"how commands end: {found}")
    check(took < 50, f"commands of 6 s take {took:.0f} s")
    for file in (deaf, away, late):
        check(file.exists() and not alive(file), f"a process outlives its command: {file.name}")


def test_output(folder):
    """What prints without end is stopped; of a long log the report has head and tail, and the folder of logs has all."""
    run.OUTPUT_LIMIT, limit = 1 << 20, run.OUTPUT_LIMIT
    ended = run.run(["yes"], 50)
    run.OUTPUT_LIMIT = limit
    check(ended["stopped"] == "printed without end" and ended["exit_code"] is None, f"endless output: {ended['stopped']}")
    program = write(folder / "out/mezzo-tests", STICKY)
    planned = [parts.Part("tests", "tests", 0, [parts.Command(parts.cases_of(program, f"tests/{n}_test.cpp"), 20, {"file": f"tests/{n}_test.cpp"})
                                                for n in "ab"])]
    results, left_out, _ = carried_out(planned, logs=folder / "logs")
    made = report.make({}, {kind: results[kind] for kind in results}, left_out, FILES)
    text = report.markdown(made)
    check("HEAD of the log" in text and "TAIL of the log" in text and "line 1500\n" not in text and "characters left out" in text,
          "head and tail of a log")
    check("line 1500\n" in (folder / "logs/tests_1.out").read_text(encoding="utf-8"), "the whole log")
    cases = {r["case"]: r["outcome"] for r in made["cases"]}
    check(cases == {"first": "ok", "bad": "exit code 1", "last": "ok"}, f"which case breaks the device: {cases}")
    check("an illegal memory access" in text, "the case did not run with blocking launches")
    check(report.failures(made) == ["tests: tests/a_test.cpp: exit code 2"], f"failures: {report.failures(made)}")


def test_patience():
    """After the first hang the others of its kind are waited for a third as long, then a ninth, and so on."""
    run.LEAST, least = 0.3, run.LEAST
    planned = [shell("sleep 60", 1.8, f"{n}") for n in range(4)] + [shell("sleep 60", 0.9, "other", "sample")]
    results, _, _ = carried_out(planned)
    run.LEAST = least
    limits = [round(r["limit"], 2) for kind in ("tests", "sample") for r in results[kind]]
    check(limits == [1.8, 0.6, 0.3, 0.3, 0.9], f"limits after a hang: {limits}")
    patience = run.Patience()
    patience.saw("tests", True)
    check((patience.limit("tests", 150), patience.limit("sample", 60)) == (50, 60), "a hang shortens the limits of its kind")
    patience.saw("tests", False)
    patience.saw("tests", True)
    check(round(patience.limit("tests", 150)) == 17 and patience.limit("tests", 3) == 3, "the second hang")


def test_budget():
    """Nothing runs beyond the budget, and what it has cut is no failure and will be run again; parts that do not fit are left out."""
    said, written = [], []
    hang = "echo begun; sleep 30 & wait"
    planned = [shell(hang, 3, "a"), parts.Part("b", "sanitizer", 100, [parts.Command(["sh", "-c", hang], 1, {"file": "b", "tool": "memcheck"})]),
               parts.Part("c", "tests", 0.1, [parts.Command(["sh", "-c", hang], 100, {"file": name}) for name in "cd"])]
    start = time.monotonic()
    results = carry_out.Results()
    carrying = carry_out.Run(start + 8, results, said.append, after_command=lambda left_out: written.append(len(results.found)))
    left_out = carrying.all(planned)
    check(time.monotonic() - start < 30, "the budget is exceeded")
    found = [(r["file"], r["exit_code"], r["budget_spent"], r["stdout"]) for r in results.by_kind()["tests"]]
    check(found == [("a", None, False, "begun\n"), ("c", None, True, "begun\n"), ("d", None, True, "")], f"limits: {found}")
    check(len(left_out) == 1 and left_out[0].startswith("b: takes 100 s"), f"left out: {left_out}")
    check(written == [1, 2, 3], f"the report is written after each command: {written}")
    check(any("left out: b" in line for line in said), "nothing is said of what is left out")
    made = report.make({}, results.by_kind(), left_out, {"tests": 3, "sanitizer": 1})
    check(report.failures(made) == ["tests: a: time limit"], f"what the budget has cut is a failure: {report.failures(made)}")


def test_smoke(folder):
    """Where no case of the smoke part passes, nothing else is tried; where one does, everything is."""
    broken = 'case "$*" in *--list*) printf "memory\\nkernel\\n"; exit 2;; %s esac; echo "test cases: 1 | 1 failed"; exit 1\n'
    for what, kernel, tried in (("dead", "", 0), ("half dead", "memory) exit 0;;", 1)):
        program = write(folder / what / "mezzo-tests", "#!/bin/sh\n" + broken % kernel)
        smoke = parts.smoke(type("Args", (), {"out": folder / what}))
        check(smoke.commands[0].words[0] == program, "the smoke part runs another program")
        results, left_out, _ = carried_out([smoke, shell("exit 0", 9, "later", "sample")])
        check(len(results["sample"]) == tried and len(left_out) == 1 - tried, f"{what}: {left_out}")
        check(len(results["cases"]) == 2, f"{what}: cases of the smoke part")


class OneFile(build.Plan):
    """A plan of one source with a compiler that is a shell script."""

    def __init__(self, folder, script):
        self.args = type("Args", (), {"out": folder, "jobs": 1})
        self.cxx, self.nvcc = ["true"], "true"
        self.compiles = [["sh", "-ec", script, "sh", "-c", source, "-o", str(folder / f"{n}.o")] for n, source in
                         enumerate(("samples/mlp.cpp", "tools/bench.cpp"))]
        self.links = [["true", *(c[-1] for c in self.compiles), "-o", str(folder / "mlp")]]


def test_compilers(folder):
    """A compiler that runs for ever ends with all that it has started, and the next one is given less time."""
    pid = folder / "cicc"
    make.COMPILE_LIMIT, limit, run.LEAST, least = 3, make.COMPILE_LIMIT, 1, run.LEAST
    start = time.monotonic()
    _, _, failed = make.Make(OneFile(folder, f"echo $$ > {pid}; sleep 60 & wait")).run()
    make.COMPILE_LIMIT, run.LEAST = limit, least
    check(3 < time.monotonic() - start < 30, f"compilers of 60 s end after {time.monotonic() - start:.0f} s")
    check("time limit, 3 s" in failed.get("mlp", "") and "time limit, 1 s" in failed["mlp"], f"not built: {failed}")
    check(not alive(pid), "a compiler outlives the build")
    _, _, failed = make.Make(OneFile(folder, "sleep 60"), time.monotonic() + 1).run()
    check("time limit, " in failed["mlp"] and "the time was up" in failed["mlp"], f"beyond the budget: {failed}")
    lacking = make.Make(OneFile(folder, 'echo "x.cpp:1:10: fatal error: catch2/catch.hpp: No such file or directory" >&2; exit 1')).headers()
    check(lacking == ["header catch2/catch.hpp, for samples/mlp.cpp and 1 more"], f"a header that is not there: {lacking}")


def start_gpu_check(folder, *options):
    environment = os.environ | {"PATH": f"{folder / 'tools'}:{os.environ['PATH']}", "MEZZO_CUBLASLT": "none", "MEZZO_CUPTI": "none"}
    words = [sys.executable, str(ROOT / "tools/gpu_check"), "--out", str(folder / "out"), "--torch", str(folder / "tools/no_python"), *options]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def until(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def rows_of(path):
    return len([r for r in json.loads(path.read_text(encoding="utf-8"))["benchmark"] if "median_ms" in r]) if path.exists() else 0


def test_cut_off(folder):
    """A run that is killed, or asked to stop, leaves what was measured; one that is asked leaves no process; --more goes on."""
    row = '{"framework": "F", "median_ms": 1, "min_ms": 1, "queued_ms": 1, "launches": 2, "host_syncs": 0, "steps": 9, "peak_device_mb": 3}'
    write(folder / "tools/nvidia-smi", "#!/bin/sh\necho 'Stand-in, 9.0'\n")
    bench = f"#!/bin/sh\necho x >> {folder}/ran\ncase \"$*\" in *recipe513*) [ -e {folder}/free ] || " \
            f"{{ echo $$ > {folder}/pid; exec sleep 60; }};; esac\necho '{row}'\n"
    write(folder / "out/bench", bench)
    options = ["--reuse", "--only", "benchmark", "--toolkit", str(folder / "toolkit"), "--report", str(folder / "copy")]
    before = 0
    for number, more in ((signal.SIGTERM, []), (signal.SIGKILL, ["--more"])):
        (folder / "pid").unlink(missing_ok=True)
        process = start_gpu_check(folder, *options, *more)
        check(until((folder / "pid").exists), "the stand-in does not come to its hang")
        check(until(lambda: rows_of(folder / "copy/report.json") == 8), f"a run under way has written {rows_of(folder / 'copy/report.json')} rows")
        process.send_signal(number)
        process.communicate(timeout=30)
        check(number == signal.SIGKILL or not alive(folder / "pid"), "a process outlives a run that was asked to stop")
        ran = len((folder / "ran").read_text(encoding="utf-8").split())
        check(not more or ran == before + 1, f"{ran - before} commands run again after a cut")
        before = ran
    os.kill(int((folder / "pid").read_text(encoding="utf-8")), signal.SIGKILL)
    (folder / "free").write_text("", encoding="utf-8")
    out, _ = start_gpu_check(folder, *options, "--more").communicate(timeout=100)
    made = json.loads((folder / "out/report.json").read_text(encoding="utf-8"))
    check(not made["left_out"] and all("median_ms" in r for r in made["benchmark"]), f"what was left is not run: {out[-2000:]}")
    check(len((folder / "ran").read_text(encoding="utf-8").split()) == len(made["benchmark"]) + 2, "a command was run again")


def test_toolkit(folder):
    """Of a toolkit that was asked for, no other nvcc will do; without, the one on the PATH where there is no usual one."""
    write(folder / "tools/nvcc", "#!/bin/sh\n")
    out, _ = start_gpu_check(folder, "--prepare", "--toolkit", str(folder / "nothing")).communicate(timeout=100)
    check(f"missing: {folder}/nothing/bin/nvcc" in out and "cannot start" in out, f"an nvcc that is not there: {out[-500:]}")
    write(folder / "toolkit/bin/nvcc", "#!/bin/sh\n")
    out, _ = start_gpu_check(folder, "--dry-run", "--only", "sample", "--toolkit", str(folder / "toolkit")).communicate(timeout=100)
    compiles = [line for line in out.split("\n") if " -c cuda/norm/norm.cu " in line]
    check(len(compiles) == 1 and compiles[0].startswith(f"{folder}/toolkit/bin/nvcc "), f"nvcc: {compiles}")


def main():
    tests = {name: test for name, test in globals().items() if name.startswith("test_")}
    for name, test in tests.items():
        with tempfile.TemporaryDirectory() as folder:
            start = time.monotonic()
            test(*[pathlib.Path(folder)] * test.__code__.co_argcount)
            print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    finish()


main()
