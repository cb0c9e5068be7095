"""What tools/gpu_check runs once the programs are built: parts in the order of their importance, within a time budget."""
import concurrent.futures
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import time

from gpu.build import ROOT

SANITIZERS = {
    "memcheck": [],
    "racecheck": ["--kernel-name", "kernel_substring=mezzo"],
    "synccheck": ["--kernel-name", "kernel_substring=mezzo"],
    # Without a filter: it must see what library kernels write.
    "initcheck": [],
}
SANITIZER_EXIT = 99
OPTIONS = ["--autotune", "--fuse-bias-gradients", "--flash"]  # off by default
MEZZO = {"mezzo": [], "mezzo, options on": OPTIONS, "mezzo, captured": ["--capture"],
         "mezzo, captured, options on": ["--capture", "--branches", *OPTIONS]}
EAGER = {"PyTorch": []}
COMPILED = {"PyTorch, compiled": ["--compile", "default"], "PyTorch, reduce-overhead": ["--compile", "reduce-overhead"]}
PLAIN = {name: MEZZO[name] for name in ("mezzo", "mezzo, options on")}


@dataclasses.dataclass
class Command:
    words: list
    limit: float  # seconds
    about: dict   # what it is, for the report


@dataclasses.dataclass
class Part:
    name: str
    kind: str       # tests, sample, benchmark or sanitizer
    seconds: float  # left out where less is left of the budget
    commands: list
    jobs: int = 1   # commands at a time


def find_sanitizer(toolkit):
    places = [toolkit / "bin/compute-sanitizer", toolkit / "compute-sanitizer/compute-sanitizer",
              toolkit / "extras/compute-sanitizer/compute-sanitizer"]
    return next((str(p) for p in places if p.is_file()), shutil.which("compute-sanitizer") or "")


def cases_of(program, source):
    """The command that runs the test cases of one file."""
    return [str(program), "-#", f"[#{pathlib.PurePosixPath(source).stem}]", "-w", "NoTests"]


def tests(args, plan):
    program, sources = args.out / "mezzo-tests", plan.test_lists["device_test_sources"] + plan.test_lists["test_sources"]
    commands = [Command(cases_of(program, s), 150, {"file": s}) for s in sources]
    return Part("tests", "tests", 20, commands, max(1, args.jobs // 4))  # each with its own pool of threads


def sanitizer(args, plan, tool, program):
    # Tests make allocations fail on purpose, so refused calls are no errors.
    options = ["--tool", tool, "--error-exitcode", str(SANITIZER_EXIT), "--report-api-errors", "no", *SANITIZERS[tool]]
    commands = [Command([program, *options, *cases_of(args.out / "mezzo-tests", s)], 60, {"tool": tool, "file": s})
                for s in plan.test_lists["device_test_sources"]]
    return Part(tool, "sanitizer", 20, commands, max(1, args.jobs // 2))


def benchmark(args, case, precision, sides, seconds):
    """One case on several sides, each its own process. Those of PyTorch only where args.torch has it."""
    commands = []
    for side, options in sides.items():
        own = side.startswith("mezzo")
        if not own and not args.torch:
            continue
        program = [str(args.out / "bench")] if own else [args.torch, str(ROOT / "tools/torch_bench.py")]
        words = [*program, "--case", case, "--precision", precision.replace("tf32", "float32"), "--threads", "1", "--device",
                 "cuda", "--seconds", "0.8", *(["--tf32"] if precision == "tf32" else []), *options]
        commands.append(Command(words, 90 if "--compile" in options else 40,
                                {"case": case, "precision": precision, "side": side}))
    compiled = ", torch.compile" if sides is COMPILED else ""
    return Part(f"{case}, {precision}{compiled}", "benchmark", seconds, commands)


def parts(args, plan):
    """All parts, the most important first."""
    found = find_sanitizer(args.toolkit)

    def bench(*rest):
        part = benchmark(args, *rest)
        return [part] if part.commands else []

    def check(tool):
        return [sanitizer(args, plan, tool, found)] if found else []

    return [
        tests(args, plan),
        Part("mlp --preset recipe", "sample", 10,
             [Command([str(args.out / "mlp"), "--preset", "recipe", "--device", "cuda"], 60, {})]),
        *bench("recipe512", "float16", MEZZO | EAGER, 20),
        *bench("bert_base128", "float16", MEZZO | EAGER, 20),
        *check("memcheck"),
        *bench("recipe512", "float32", PLAIN | EAGER, 15),
        *bench("recipe512", "tf32", PLAIN | EAGER, 15),
        *bench("recipe513", "float16", PLAIN | EAGER, 15),
        *bench("mlp64", "float16", MEZZO | EAGER, 20),
        *check("racecheck"),
        *bench("recipe512", "float16", COMPILED, 30),
        *bench("bert_base128", "float16", COMPILED, 60),
        *bench("bert_base512", "float16", MEZZO | EAGER, 25),
        *check("synccheck"),
        *bench("bert_base128", "bfloat16", PLAIN | EAGER, 15),
        *bench("bert_base128", "tf32", PLAIN | EAGER, 15),
        *check("initcheck"),
        *bench("mlp64", "float16", COMPILED, 30),
        *bench("bert_base512", "float16", COMPILED, 60),
    ]


def run_command(command, left):
    """How it ended (exit code None: at its time limit, or with the budget if less was left), seconds and output. Ends the whole
    process group then: some programs start others."""
    if left <= 0:
        return {**command.about, "exit_code": None, "budget_spent": True, "seconds": 0, "stdout": "", "stderr": ""}
    start = time.monotonic()
    process = subprocess.Popen(command.words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, errors="replace", start_new_session=True)
    code = None
    try:
        out, err = process.communicate(timeout=min(command.limit, left))
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    return {**command.about, "exit_code": code, "budget_spent": code is None and left < command.limit,
            "seconds": time.monotonic() - start, "stdout": out, "stderr": err}


def run_part(part, end):
    """Results of the part's commands, none of which runs beyond `end`."""
    with concurrent.futures.ThreadPoolExecutor(part.jobs) as pool:
        return list(pool.map(lambda command: run_command(command, end - time.monotonic()), part.commands))


def run_all(planned, end, say):
    """Runs the parts until time.monotonic() reaches `end`; (results by kind, lines of what was left out)."""
    results = {"tests": [], "sample": [], "benchmark": [], "sanitizer": []}
    left_out = []
    for part in planned:
        left = end - time.monotonic()
        if left < part.seconds:
            left_out.append(f"{part.name}: takes {part.seconds:.0f} s, {max(left, 0):.0f} s were left")
            say(f"left out: {left_out[-1]}")
            continue
        start = time.monotonic()
        results[part.kind] += run_part(part, end)
        say(f"{part.name}: {time.monotonic() - start:.0f} s")
    return results, left_out
