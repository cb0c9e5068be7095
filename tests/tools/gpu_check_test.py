#!/usr/bin/env python3
"""tools/gpu_check without a GPU: its plan covers the build files; over stand-ins for the programs it judges, limits and reports.

    gpu_check_test.py path/to/source/tree path/to/build/folder
"""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

ROOT, BUILD = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/support"), str(ROOT / "tests/package")]
from checks import check, finish, write  # noqa: E402
from gpu import build, carry_out, make, parts, rehearsal  # noqa: E402

# Stands for mezzo-tests, under a sanitizer too: what it does is chosen by the file of cases it is asked for.
TESTS = """#!/bin/sh
case "$*" in
  *shape_test*--list*) printf 'odd, even\\nnone\\n'; exit 2 ;;
  *dtype_test*--list*) printf 'one [1]\\n'; exit 1 ;;
  *views_test*--list*) exit 0 ;;
esac
case "$1" in
  "odd\\, even") printf 'test cases: 1 | 1 failed, launches %s\\n' "$CUDA_LAUNCH_BLOCKING"; exit 1 ;;
  "one \\[1\\]") echo "All tests passed (1 assertion in 1 test case)"; exit 0 ;;
  none) echo "All tests passed (1 assertion in 1 test case)"; exit 0 ;;
esac
case "$2" in
  "[#dtype_test]~[.]") kill -9 $$ ;;
  "[#shape_test]~[.]") printf 'test cases: 5 | 3 passed | 2 failed\\n'; exit 2 ;;
  "[#views_test]~[.]") echo "warning: no CUDA device: skipped"; echo "All tests passed (1 assertion in 1 test case)" ;;
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
  *--profile*--autotune*) echo "bench: gpu trace: CUPTI cannot be opened" >&2; exit 1 ;;
  *--profile*) cat <<'END'
{rehearsal.profile()}
END
  ;;
  *recipe513*) echo "bench: out of memory" >&2; exit 1 ;;
  *--capture*) echo '{ROW % 2}' ;;
  *) echo '{ROW % 4}' ;;
esac
"""
# Its limit ends the last of them in the middle of a line.
SEARCH = f"""#!/bin/sh
case "$*" in
  *recipe513*--product?2) echo '{rehearsal.product("recipe513")}'; printf '{{"step": "reci'; kill -9 $$ ;;
  *recipe513*) echo '{rehearsal.product("recipe513")}' ;;
  *bert*) echo "gemm_search: out of memory" >&2; exit 1 ;;
  *) echo '{rehearsal.product("recipe512")}' ;;
esac
"""
PYTHON = f"""#!/bin/sh
case "$1" in
  -c) echo 1 ;;
  *) echo '{ROW % 10}' ;;
esac
"""


def gpu_check(folder, *options):
    environment = os.environ | {"PATH": f"{folder / 'tools'}:{os.environ['PATH']}", "MEZZO_CUBLASLT": "none"}
    environment.pop("CXX", None)
    command = [sys.executable, str(ROOT / "tools/gpu_check"), "--out", str(folder / "out"), "--toolkit", str(folder / "toolkit"),
               "--torch", str(folder / "tools/python"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)


def test_plan(folder):
    """The dry run names every source of the library and the tests, and every tool on every device test. Returns that
    run, which takes the longest."""
    write(folder / "toolkit/bin/nvcc", "#!/bin/sh\n")
    write(folder / "toolkit/compute-sanitizer/compute-sanitizer", SANITIZER)
    run = gpu_check(folder, "--dry-run")
    check(missing(run) == absent(), f"missing: {missing(run)}, this machine lacks {absent()}")
    check(run.returncode == bool(absent()), f"dry run: exit code {run.returncode}\n{run.stderr}")
    check(not (folder / "out").exists(), "the dry run writes files")
    device = build.tests("device_cases")
    for source in [*build.library(), *build.tests("cases"), *device, *build.lists("tests/meson.build")["test_kernels"]]:
        check(f" -c {source} " in run.stdout, f"{source} is not compiled")
    for source in [*build.tests("cases"), *device]:  # what a case includes of the tests is linked with it
        for header in re.findall(r'#include "(tests/[^"]+)\.h"', (ROOT / source).read_text(encoding="utf-8")):
            check(not (ROOT / f"{header}.cpp").exists() or f" -c {header}.cpp " in run.stdout, f"{header}.cpp is not compiled, for {source}")
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        for source in device:
            pattern = rf"--tool {tool} .*\[#{pathlib.Path(source).stem}\]"
            check(re.search(pattern, run.stdout), f"{tool} does not check {source}")
    order = re.findall(r"mezzo-tests '-#' '\[#(\w+)\]~\[\.\]' -w NoTests$", run.stdout, re.M)
    ptx = [pathlib.Path(f).stem for f in build.executed_as_ptx(device)]
    check(order[1:len(ptx) + 1] == ptx, f"what has run as PTX does not run first: {order[:len(ptx) + 1]}")
    planned = re.findall(r"^# (\w+): (.*?); (\d+) s; ", run.stdout, re.M)
    last = max(i for i, (kind, _, _) in enumerate(planned) if kind == "sanitizer")
    check(sum(int(seconds) for _, _, seconds in planned[:last + 1]) <= 300, "what the targets need leaves no time for the build")
    check(len({name for _, name, _ in planned}) == len(planned), "two parts of one name: --more could not tell them apart")
    (folder / "toolkit/bin/nvcc").unlink()
    without = gpu_check(folder, "--dry-run", "--only", "sample")
    check(without.returncode == 1 and "missing: " in without.stdout and "nvcc" in without.stdout, "nvcc is not missed")
    return run


def missing(run):
    return re.findall(r"^missing: (.*)$", run.stdout, re.M)


def absent():
    """The packages that this machine lacks, so that gpu_check may say so. On Debian 12 nothing: the build has needed them."""
    headers = [h for h in build.HEADERS if not (pathlib.Path("/usr/include") / h).exists()]
    names = subprocess.run(["sh", "-c", "ls /usr/lib /usr/lib64 /usr/lib/x86_64-linux-gnu"], capture_output=True, text=True).stdout.split()
    libraries = [n for n, l in build.LIBRARIES.items() if not {f"lib{l}.a", f"lib{l}.so"} & set(names)]
    return [f"header {h}" for h in headers] + [f"library {n}" for n in libraries]


def test_start(folder):
    """Without a stand-in for its own work the check comes as far as it can without a GPU, and lacks nothing but that."""
    write(folder / "toolkit/bin/nvcc", "#!/bin/sh\n")
    write(folder / "tools/nvidia-smi", "#!/bin/sh\nexit 9\n")
    run = gpu_check(folder)
    check(missing(run) == absent() and (absent() or "cannot start: no GPU (nvidia-smi)" in run.stderr), f"start: {run.stdout}{run.stderr}")
    (folder / "tools/nvidia-smi").unlink()
    toolkit = pathlib.Path("/usr/local/cuda")
    if (toolkit / "bin/nvcc").exists():
        run = gpu_check(folder, "--dry-run", "--only", "sample", "--toolkit", str(toolkit))
        check(missing(run) == absent(), f"with the toolkit of this machine: {missing(run)}")


def plan_without_files(folder):
    """The plan as gpu_check makes it, with the system's packages."""
    return build.Plan(type("Args", (), {"out": folder / "plan", "toolkit": folder / "toolkit", "deps": None, "arch": "90", "dry_run": True}))


def test_commands(folder):
    """Meson's build compiles each file of the library and the tests with the same flags for the machine and the same
    definitions. The first source of each folder finds all of its headers."""
    plan = plan_without_files(folder)
    key = lambda source, command: (source, *[f for f in command if f.startswith("-DMEZZO_ISA_UNIT=")])
    planned = {key(c[c.index("-c") + 1], c): c for c in plan.compiles if c[c.index("-c") + 1].endswith(".cpp")}
    check(len({c[-1] for c in plan.compiles}) == len(plan.compiles), "two sources compile to one object")
    path = BUILD / "compile_commands.json"
    built = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    check(any(entry["file"].endswith("/gemm_isa.cpp") for entry in built), f"{path} does not list the library")
    compared = set()
    for entry in built:
        source = os.path.relpath(pathlib.Path(entry["directory"], entry["file"]), ROOT)
        command = shlex.split(entry["command"])
        if key(source, command) not in planned or "emulated" in entry["output"]:
            continue
        compared.add(key(source, command))
        for what, pattern in (("machine", "-m.*"), ("arithmetic", "-f.*(math|vect).*"), ("definitions", "-DMEZZO.*")):
            here, there = ({f for f in c if re.fullmatch(pattern, f)} for c in (planned[key(source, command)], command))
            here, there = ({f for f in flags if not f.startswith(("-DMEZZO_OLDEST_GPU=", "-DMEZZO_NEWEST_PTX="))} for flags in (here, there))  # of the machine
            here -= {"-DMEZZO_HAVE_CUDA"} - there
            there -= {"-DMEZZO_HAVE_PNG", "-DMEZZO_HAVE_JPEG", "-DMEZZO_HAVE_PCRE2", "-DMEZZO_HAVE_NVTX"}  # libraries that a bare machine lacks
            check(there == here, f"{source}: {what}: {sorted(here)}, meson.build has {sorted(there)}")
    units = {k for k in planned if k[0].startswith("src/cpu/") and (len(k) > 1 or "/amx/" in k[0])}
    check(units <= compared, f"not compiled by Meson: {sorted(units - compared)}")
    nvcc = re.search(r"nvcc_args = \[(.*?)\]", (ROOT / "cuda/meson.build").read_text(encoding="utf-8"), re.S).group(1)
    wanted = {flag for flag in re.findall(r"'([^']*)'", nvcc) if flag.startswith(("-std", "-O", "-D"))}
    for command in plan.compiles:
        check(command[0] != plan.nvcc or wanted <= set(command), f"{command[-1]}: nvcc has not all of {sorted(wanted)}")
    first = {os.path.dirname(source): command for (source, *_), command in reversed(planned.items()) if not source.startswith("cuda/")}
    for folder_of_sources, command in first.items():  # those of cuda/ need a toolkit's headers
        run = subprocess.run([*command[:command.index("-o")], "-E", "-o", "/dev/null"], cwd=ROOT, capture_output=True, text=True)
        check(run.returncode == 0 or absent(), f"{folder_of_sources}: {run.stderr}")


def test_sources():
    """The library's sources are the files that the build files name. Those of several instruction sets are in the
    lists for them."""
    files = [file for folder in ("src", "cuda") for file in (ROOT / folder).rglob("meson.build")]
    named = {os.path.relpath(file.parent / path, ROOT) for file in files
             for path in re.findall(r"'([^'\s]+\.(?:cpp|cu))'", file.read_text(encoding="utf-8"))}
    there = {*build.library(), build.GLOO}
    check(named == there, f"named by a build file or in src and cuda, but not both: {named ^ there}")
    units = {path for path in build.library() if path.endswith(("_isa.cpp", "_amx.cpp"))}
    known = build.lists("src/cpu/meson.build")
    check(units == {path for name, _ in build.UNITS.values() for path in known[name]}, f"sources of several instruction sets: {units}")
    programs = build.programs()
    check(programs["bench"] == ["tools/bench.cpp", "tools/step_profile.cpp", "tools/gpu_trace.cpp"] and programs["mlp"] == ["samples/mlp.cpp"],
          f"sources of programs: {programs}")


def test_deps(folder):
    """Unpacked packages come before the system's: their headers, their static libraries."""
    deps = folder / "deps"
    for header in build.HEADERS:
        write(deps / "usr/include" / header, "")
    for library in build.LIBRARIES.values():
        write(deps / f"usr/lib/x86_64-linux-gnu/lib{library}.a", "")
    run = gpu_check(folder, "--dry-run", "--only", "sample", "--deps", str(deps))
    lines = run.stdout.split("\n")
    compiled = [line for line in lines if " -c tools/bench.cpp " in line]
    check(len(compiled) == 1 and f"-isystem{deps}/usr/include" in compiled[0], "headers of the unpacked packages")
    linked = [line for line in lines if line.endswith("/gemm_search")]
    libraries = [f"{deps}/usr/lib/x86_64-linux-gnu/lib{name}.a" for name in build.LIBRARIES.values()]
    check(len(linked) == 1 and all(library in linked[0] for library in libraries), "libraries of the unpacked packages")


def test_rehearsal(run):
    """The dry run goes through every part, and a part whose output does not reach the report is a fault."""
    check("rehearsal with stand-ins: 0 faults" in run.stdout, f"rehearsal: {run.stdout[-1000:]}{run.stderr}")
    part = parts.Part("p", "benchmark", 0, [parts.Command(["unknown"], 5, {"case": "c", "precision": "float16", "side": "mezzo"})])
    found = rehearsal.faults([part], {"tests": 1, "sanitizer": 1}, complete=False)
    check(found == ["benchmark: c, float16, mezzo: printed no numbers"], f"output without numbers: {found}")


def test_options():
    """An option is one line of the table: with all others, alone where it makes a difference."""
    parts.OPTIONS["new"] = parts.Option(["--autotune", "--new"], cases="512")
    check("--new" in parts.switches(), "an option with all others")
    check(parts.switches().count("--autotune") == 1, "a switch that two options need is given twice")
    check(parts.single("recipe512").get("mezzo, captured, new") == ["--capture", "--fast-paths", "off", "--autotune", "--new"], "an option alone")
    check("mezzo, captured, new" not in parts.single("mlp64"), "an option where it makes no difference")
    check("mezzo, captured, flash attention" in parts.single("bert_base128"), "flash attention in BERT")
    check("mezzo, captured, implicit convolutions" in parts.single("resnet50_128"), "implicit convolutions in ResNet50")
    del parts.OPTIONS["new"]


def stand_ins(folder):
    write(folder / "tools/nvidia-smi", "#!/bin/sh\necho 'Stand-in, 9.0'\n")
    write(folder / "tools/python", PYTHON)
    for name, script in {"mezzo-tests": TESTS, "bench": BENCH, "gemm_search": SEARCH, "mlp": "#!/bin/sh\necho trained\n",
                         "mezzo-info": "#!/bin/sh\n"}.items():
        write(folder / "out" / name, script)


def test_run(folder):
    """Everything once, with planted faults: each is reported, and nothing else is."""
    stand_ins(folder)
    run = gpu_check(folder, "--reuse", "--only", "smoke,tests,sample,benchmark,profile,search", "--report", str(folder / "copy"))
    check("Traceback" not in run.stderr, run.stderr)
    check(run.returncode == 1, f"exit code {run.returncode} with failed tests\n{run.stdout[-2000:]}{run.stderr}")
    report = json.loads((folder / "out/report.json").read_text(encoding="utf-8"))
    markdown = (folder / "out/report.md").read_text(encoding="utf-8")
    outcomes = {pathlib.Path(r["file"]).stem: r["outcome"] for r in report["tests"] if r["outcome"] != "ok"}
    check(outcomes == {"dtype_test": "killed by signal 9", "shape_test": "exit code 2", "views_test": "found no CUDA device"},
          f"tests: {outcomes}")
    cases = {(pathlib.Path(r["file"]).stem, r["case"]): r["outcome"] for r in report["cases"]}
    check(cases == {("shape_test", "odd, even"): "exit code 1", ("shape_test", "none"): "ok", ("dtype_test", "one [1]"): "ok"},
          f"failed files case by case: {cases}")
    check("launches 1" in markdown and "2 of 2 cases ran alone, with blocking launches; failed: odd, even (exit code 1)" in markdown and
          "dtype_test.cpp: 1 of 1 cases ran alone, with blocking launches; failed: none, so" in markdown, "cases in the report")
    page = (folder / "out/page.md").read_text(encoding="utf-8")
    device = build.tests("device_cases")
    ptx = build.executed_as_ptx(device)
    check(set(ptx) > set(device) - {"tests/cuda/nccl_gpu_test.cpp"}, "not all device tests have run as PTX")
    check(f"Of {len(ptx)} files of cases that pass over interpreted PTX {len(ptx)} have run here; all pass." in page, page)
    check(page.count("\n") < 80, f"page.md has {page.count(chr(10))} lines")
    names = [name for text in (page, markdown, json.dumps(report)) for name in (str(folder), str(ROOT)) if name in text]
    check(not names, f"the reports name folders: {names}")
    for name in ("report.json", "report.md", "results.jsonl"):
        check((folder / "copy" / name).read_text(encoding="utf-8") == (folder / "out" / name).read_text(encoding="utf-8"), f"copy of {name}")
    check([r["passed"] for r in report["smoke"]] == [4], "the smoke part")
    files = len(report["tests"])
    check(f"{4 * (files - 3) + 4} passed, 4 failed, 0 skipped" in markdown, "tests are not added up")
    rows = {(r["case"], r["precision"], r["side"]): r for r in report["benchmark"]}
    check(rows["recipe512", "float16", "mezzo"].get("times_eager") == 2.5, "ratio of mezzo")
    check(rows["bert_base512", "float16", "mezzo, captured"].get("times_eager") == 5, "ratio of the captured step")
    check(rows["mlp64", "float16", "PyTorch, reduce-overhead"].get("times_eager") == 1, "ratio of PyTorch")
    check(rows["recipe513", "float16", "mezzo"].get("outcome") == "exit code 1", "a failed benchmark has an outcome")
    check(markdown.count("FAILED: benchmark") == 4 and "out of memory" in markdown, "failed benchmarks are not in the report")
    check_targets(report, markdown)
    check("trained" in markdown and not report["left_out"], "the sample's output, or something was left out")


def check_targets(report, markdown):
    """Targets are judged by what was measured; a search or profile that fails loses nothing but itself."""
    states = {t["target"]: (t["measured"], t["state"]) for t in report["targets"]}
    check(states["recipe MLP (3 x 4096, batch 512): at least 1.75x PyTorch"] == ("5.00x", "met"), f"recipe: {states}")
    check(states["64-wide MLP, captured: at least 10x PyTorch"] == ("5.00x", "not met"), "64-wide MLP")
    check(states["recipe MLP: batch 513 at most 1.25x the time of 512"] == ("", "not measured"), "batch 513")
    check(states["test suite passes on the GPU"][1] == "not met", "a suite with failures")
    check(states["memcheck is clean"] == ("", "not measured"), "sanitizers that did not run")
    searched = {"batch 512": ("1.020x", "met"), "batch 513": ("1.020x", "not measured"), "BERT-base": ("", "not measured")}
    for name, expected in searched.items():
        found = states[f"{name}: products within 10 % of the best cuBLASLt algorithm, autotuned"]
        check(found == expected, f"search of {name}: {found}")
    ended = {(r["step"], r["product"], r["outcome"]) for r in report["search"] if "outcome" in r}
    check(ended == {("bert_base128", f"number {i}", "exit code 1") for i in range(1, 13)} |
          {("recipe513", "number 2", "killed by signal 9")}, f"searches: {ended}")
    profiles = {(r["case"], r["side"]): r.get("outcome", "ok") for r in report["profile"]}
    check(profiles == {("recipe512", "mezzo, captured, options on"): "exit code 1", ("recipe512", "mezzo, captured"): "ok",
                       ("bert_base128", "mezzo, captured, options on"): "exit code 1", ("bert_base128", "mezzo, captured"): "ok",
                       ("resnet50_128", "mezzo, captured, options on"): "exit code 1", ("resnet50_128", "mezzo, captured"): "ok"},
          f"profiles: {profiles}")
    check("CUPTI cannot be opened" in markdown and "`update_kernel<SgdStep>` | 1 | 160.0" in markdown, "profiles in the report")
    for text in ("| 64-wide MLP, captured: at least 10x PyTorch | 5.00x | not met |",
                 "FAILED: search: bert_base128, number 3: exit code 1"):
        check(text in markdown, f"not in the report: {text}")


def test_more(folder):
    """A run that goes on from an earlier one: nothing again but what another program is there for, and one report."""
    run = gpu_check(folder, "--reuse", "--only", "sample,search", "--budget", "30")
    report = json.loads((folder / "out/report.json").read_text(encoding="utf-8"))
    check(len(report["left_out"]) == 1 and "bert_base128" in report["left_out"][0], f"left out: {report['left_out']}\n{run.stderr}")
    write(folder / "out/gemm_search", SEARCH + "# another program\n")
    with (folder / "out/results.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"part": "cut off in the mid')
    gpu_check(folder, "--more", "--reuse", "--only", "sample,search")
    again = json.loads((folder / "out/report.json").read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in (folder / "out/results.jsonl").read_text(encoding="utf-8").split("\n") if line]
    check({r["step"] for r in again["search"]} == {"recipe512", "recipe513", "bert_base128"} and not again["left_out"],
          "what was left out is not run")
    check([line["kind"] for line in lines].count("sample") == 1 and len(lines) == 1 + sum(parts.PRODUCTS.values()),
          f"results: {[(line['part'], line['about'] if 'about' in line else '') for line in lines]}")
    check(lines[0]["kind"] == "sample" and [r["output"] for r in again["sample"]] == ["trained\n"], "a part that was done is run again")
    write(folder / "out/mlp", "#!/bin/sh\necho a second time\n")
    gpu_check(folder, "--more", "--reuse", "--only", "sample,search")
    again = json.loads((folder / "out/report.json").read_text(encoding="utf-8"))
    check([r["output"] for r in again["sample"]] == ["a second time\n"], "a result of an earlier program stands")
    write(folder / "out/mlp", "#!/bin/sh\necho trained\n")


class Built(build.Plan):
    """A plan of commands that are shell scripts."""

    def __init__(self, folder, jobs=2):
        folder.mkdir(exist_ok=True)
        self.args = type("Args", (), {"out": folder, "jobs": jobs})
        self.cxx, self.nvcc, self.compiles, self.links = ["true"], "true", [], []

    def add(self, program, *sources):
        """sources: of the tree, each with the script that compiles it to $1."""
        objects = []
        for source, script in sources:
            objects.append(str(self.args.out / (source.replace("/", "_") + ".o")))
            reads = 'if [ "$1" = -M ]; then echo "x.o: $2 meson_options.txt"; exit; fi; shift 3; '
            self.compiles.append(["sh", "-ec", reads + script, "sh", "-c", source, "-o", objects[-1]])
        words = " ".join(objects)
        self.links.append(["sh", "-ec", f'for last; do :; done; cat {words} > "$last"', "sh", *objects, "-o", str(self.args.out / program)])


def test_build(folder):
    """What does not compile costs the programs that need it, not the others, and no old program stands for it."""
    plan = Built(folder / "objects")
    (plan.args.out / "bench").write_text("old", encoding="utf-8")
    compiles = f'echo >> {folder}/compiled; echo made > "$1"'
    plan.add("mlp", ("samples/mlp.cpp", compiles))
    plan.add("bench", ("tools/bench.cpp", compiles), ("tools/step_profile.cpp", "echo no such header >&2; exit 1"))

    def build_all():
        made = make.Make(plan)
        check(made.headers() == [], "headers of sources that are there")
        return made.run()

    _, seconds, failed = build_all()
    check(set(failed) == {"bench"} and "no such header" in failed["bench"], f"not built: {failed}")
    check((plan.args.out / "mlp").exists() and not (plan.args.out / "bench").exists(), "programs of a build with an error")
    check(set(seconds) == {"samples/mlp.cpp", "tools/bench.cpp", "tools/step_profile.cpp"}, "seconds of each source")
    plan.compiles[-1] = [word.replace("echo no such header >&2; exit 1", compiles) for word in plan.compiles[-1]]
    _, seconds, failed = build_all()
    compiled = (folder / "compiled").read_text(encoding="utf-8").count("\n")
    check(not failed and compiled == 3, f"a build that goes on: {failed}, {compiled} sources compiled")
    (plan.args.out / "samples_mlp.cpp.o").write_text("cut off", encoding="utf-8")
    (plan.args.out / "samples_mlp.cpp.o.stamp").write_text("", encoding="utf-8")
    build_all()
    check((plan.args.out / "mlp").read_text(encoding="utf-8") == "made\n", "an object that was not finished is linked")
    ran = carry_out.Run(time.monotonic() + 9, carry_out.Results(), lambda line: None, ["bench"])
    left_out = ran.all([parts.Part("a", "benchmark", 0, [parts.Command([str(plan.args.out / "bench")], 1, {})])])
    check(left_out == ["a: bench was not built"], f"a part without its program: {left_out}")


def test_sanitizers(folder):
    """What a tool finds is a failure."""
    run = gpu_check(folder, "--reuse", "--only", "sanitizer")
    report = json.loads((folder / "out/report.json").read_text(encoding="utf-8"))
    found = [(r["tool"], r["file"], r["outcome"], r["summary"]) for r in report["sanitizer"] if r["outcome"] != "ok"]
    check(found == [("memcheck", "tests/cuda/mma_test.cpp", "errors", "7 errors")], f"memcheck: {found}")
    check(run.returncode == 1 and run.stdout.count("- FAILED") == 1, "an error under a sanitizer is no failure")
    check(len({r["tool"] for r in report["sanitizer"]}) == 4, "not all tools ran")


def test_numbers(folder):
    """What is no number of seconds or jobs is refused; so it is by all Python tools, which share the types."""
    for option, value in (("--budget", "nan"), ("--budget", "inf"), ("--budget", "-1"), ("--jobs", "0"), ("--jobs", "1.5"), ("--jobs", "x")):
        run = gpu_check(folder, f"{option}={value}")
        check(run.returncode == 2 and f"argument {option}: '{value}' is not a" in run.stderr, f"{option} {value}: {run.stderr}")
    for path in [*sorted((ROOT / "tools").glob("*.py")), ROOT / "tools/gpu_check"]:
        check(not re.search(r"type=(int|float)\b", path.read_text(encoding="utf-8")), f"{path.name}: an option takes any number")


def main():
    with tempfile.TemporaryDirectory() as folder:
        dry = test_plan(pathlib.Path(folder))
        test_options()
        test_numbers(pathlib.Path(folder))
        test_start(pathlib.Path(folder))
        test_commands(pathlib.Path(folder))
        test_sources()
        test_deps(pathlib.Path(folder))
        test_rehearsal(dry)
        test_run(pathlib.Path(folder))
        test_more(pathlib.Path(folder))
        test_sanitizers(pathlib.Path(folder))
        test_build(pathlib.Path(folder))
    finish()


main()
