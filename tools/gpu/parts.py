"""What tools/gpu_check runs once the programs are built: parts in the order of their importance, within a time budget."""
import dataclasses
import pathlib
import re
import shutil

from gpu.build import executed_as_ptx
from gpu.run import ROOT

SANITIZERS = {
    "memcheck": [],
    "racecheck": ["--kernel-name", "kernel_substring=mezzo"],
    "synccheck": ["--kernel-name", "kernel_substring=mezzo"],
    # Without a filter: it must see what library kernels write.
    "initcheck": [],
}
SANITIZER_EXIT = 99
SMOKE = "tests/cuda/smoke_test.cpp"


@dataclasses.dataclass
class Option:
    switches: list   # of bench
    cases: str = ""  # in the names of the cases that it makes a difference to


# What can be chosen. A new option is a line here: it then is part of "options on", and has a row of its own in the tables. Without
# options the fast paths are used that passed the self-checks of the device (docs/internals/cuda.md).
OPTIONS = {
    "autotune": Option(["--autotune"]),
    "fused bias gradients": Option(["--fuse-bias-gradients"]),
    "fused layers": Option(["--fuse-layers"]),
    "ReLU masks": Option(["--fuse-layers", "--relu-masks"], cases="recipe"),
    "flash attention": Option(["--flash"], cases="bert"),
    "implicit convolutions": Option(["--implicit-convolution"], cases="resnet"),
}


def switches():
    """Of all options together."""
    return list(dict.fromkeys(s for option in OPTIONS.values() for s in option.switches))


MEZZO = {"mezzo": [], "mezzo, options on": switches(), "mezzo, captured": ["--capture"],
         "mezzo, captured, options on": ["--capture", *switches()]}
EAGER = {"PyTorch": []}
COMPILED = {"PyTorch, compiled": ["--compile", "default"], "PyTorch, reduce-overhead": ["--compile", "reduce-overhead"]}
PLAIN = {name: MEZZO[name] for name in ("mezzo", "mezzo, options on")}
BARE = {"mezzo": [], "PyTorch": []}
PROFILED = {name: MEZZO[name] for name in ("mezzo, captured, options on", "mezzo, captured")}
PRODUCTS = {"recipe512": 4, "recipe513": 4, "bert_base128": 12}  # of tools/gemm_search
KINDS = ["smoke", "tests", "sample", "benchmark", "profile", "search", "sanitizer"]


def single(case):
    """A captured step with each of the options alone that make a difference to it, and no other fast path."""
    return {f"mezzo, captured, {name}": ["--capture", "--fast-paths", "off", *option.switches] for name, option in OPTIONS.items()
            if option.cases in case}


@dataclasses.dataclass
class Command:
    words: list
    limit: float  # seconds
    about: dict   # what it is, for the report
    environment: dict = dataclasses.field(default_factory=dict)  # beside gpu_check's own


@dataclasses.dataclass
class Part:
    name: str
    kind: str       # of KINDS
    seconds: float  # that it takes: left out where less is left of the budget
    commands: list
    jobs: int = 1   # commands at a time
    within: float = float("inf")  # seconds after which its other commands are left out


def find_sanitizer(toolkit):
    places = [toolkit / "bin/compute-sanitizer", toolkit / "compute-sanitizer/compute-sanitizer",
              toolkit / "extras/compute-sanitizer/compute-sanitizer"]
    return next((str(p) for p in places if p.is_file()), shutil.which("compute-sanitizer") or "")


def cases_of(program, source):
    """The command that runs the test cases of one file."""
    return [str(program), "-#", f"[#{pathlib.PurePosixPath(source).stem}]~[.]", "-w", "NoTests"]


def smoke(args):
    """What everything else needs, one case each."""
    return Part("smoke", "smoke", 10, [Command(cases_of(args.out / "mezzo-tests", SMOKE), 60, {"file": SMOKE})])


def tests(args, plan):
    """Two parts: the files that name a device, those that have passed over interpreted PTX first, and all others."""
    program = args.out / "mezzo-tests"
    sources = list(dict.fromkeys(executed_as_ptx(plan.device_tests) + plan.device_tests + plan.tests))
    own = [s for s in sources if re.search(r"cuda|devices\(\)", (ROOT / s).read_text(encoding="utf-8"))]

    def part(name, files):
        commands = [Command(cases_of(program, s), 150, {"file": s}) for s in files]
        return Part(name, "tests", 20, commands, max(1, args.jobs // 4))  # each with its own pool of threads

    return part("tests", own), part("tests without a device", [s for s in sources if s not in own])


def sanitizer(args, plan, tool, program):
    # Tests make allocations fail on purpose, so refused calls are no errors.
    options = ["--tool", tool, "--error-exitcode", str(SANITIZER_EXIT), "--report-api-errors", "no", *SANITIZERS[tool]]
    commands = [Command([program, *options, *cases_of(args.out / "mezzo-tests", s)], 60, {"tool": tool, "file": s})
                for s in plan.device_tests]
    return Part(tool, "sanitizer", 20, commands, max(1, args.jobs // 2))


def options_of(precision):
    return ["--precision", precision.replace("tf32", "float32"), *(["--float32-matmul-precision", "high"] if precision == "tf32" else [])]


def benchmark(args, case, precision, sides, seconds, which=""):
    """One case on several sides, each its own process. Those of PyTorch only where args.torch has it."""
    commands = []
    for side, options in sides.items():
        own = side.startswith("mezzo")
        if not own and not args.torch:
            continue
        program = [str(args.out / "bench")] if own else [args.torch, str(ROOT / "tools/torch_bench.py")]
        words = [*program, "--case", case, *options_of(precision), "--threads", "1", "--device", "cuda",
                 "--seconds", "0.8", *options]
        commands.append(Command(words, 90 if "--compile" in options else 40,
                                {"case": case, "precision": precision, "side": side}))
    return Part(f"{case}, {precision}{which}", "benchmark", seconds, commands)


def rates(args):
    """What the roofline needs: products and copies too large for anything but the machine's rates to matter."""
    cases = [("matmul8192", "float16"), ("copy", "float16"), ("matmul8192", "tf32"), ("matmul8192", "float32")]
    commands = [c for case, precision in cases for c in benchmark(args, case, precision, BARE, 0).commands]
    return Part("rates of the machine", "benchmark", 20, commands)


def float8(args):
    """Forward and backward of layers in float8 and MXFP8 beside bfloat16: the size from which on float8 pays (amp::Fp8::least_size)."""
    cases = [f"linear{size}{dtype}" for size in (256, 512, 1024, 4096, 8192) for dtype in ("", "_fp8")]
    cases += [f"linear{size}_mxfp8" for size in (1024, 4096, 8192)]
    commands = [c for case in cases for c in benchmark(args, case, "bfloat16", {"mezzo": []}, 0).commands]
    return Part("layers in float8", "benchmark", 20, commands)


def profile(args, case, precision):
    commands = [Command([str(args.out / "bench"), "--case", case, *options_of(precision), "--threads", "1", "--device", "cuda",
                         "--profile", "20", *options], 40, {"case": case, "precision": precision, "side": side})
                for side, options in PROFILED.items()]
    return Part(f"profile of {case}, {precision}", "profile", 10, commands)


def search(args, step, seconds):
    """Each product in a process of its own: an algorithm that breaks the device costs that product."""
    count = PRODUCTS[step]
    words = [str(args.out / "gemm_search"), "--step", step, "--seconds", f"{seconds / count:.2g}", "--product"]
    commands = [Command([*words, str(i + 1)], 30, {"step": step, "product": i + 1}) for i in range(count)]
    return Part(f"GEMM search of {step}", "search", seconds + 2 * count, commands)


def parts(args, plan):
    """All parts, the most important first: the seconds of those that judge a target are to fit into the budget with the build."""
    found = find_sanitizer(args.toolkit) or ("compute-sanitizer" if args.dry_run else "")

    def bench(*rest):
        part = benchmark(args, *rest)
        return [part] if part.commands else []

    def check(tool):
        return [sanitizer(args, plan, tool, found)] if found else []

    on_device, without_device = tests(args, plan)
    return [
        smoke(args),
        on_device,
        Part("mlp", "sample", 5, [Command([str(args.out / "mlp"), "200", "cuda"], 60, {})]),
        *bench("recipe512", "float16", MEZZO | EAGER, 15),
        profile(args, "recipe512", "float16"),
        *bench("recipe512", "float16", COMPILED, 30, ", torch.compile"),
        rates(args),
        *check("memcheck"),
        *bench("recipe513", "float16", MEZZO | EAGER, 15),
        *bench("mlp64", "float16", MEZZO | EAGER, 15),
        search(args, "recipe512", 10),
        *bench("recipe512", "float32", PLAIN | EAGER, 10),
        *bench("recipe512", "tf32", PLAIN | EAGER, 10),
        *bench("bert_base128", "float16", MEZZO | EAGER, 15),
        search(args, "recipe513", 10),
        *check("racecheck"),
        *check("synccheck"),
        *check("initcheck"),
        float8(args),
        *bench("recipe512", "float16", single("recipe512"), 10, ", one option at a time"),
        profile(args, "bert_base128", "float16"),
        search(args, "bert_base128", 20),
        *bench("bert_base512", "float16", MEZZO | EAGER, 20),
        *bench("bert_base128", "float16", single("bert_base128"), 10, ", one option at a time"),
        *bench("bert_base128", "float16", COMPILED, 60, ", torch.compile"),
        *bench("mlp64", "float16", COMPILED, 30, ", torch.compile"),
        *bench("resnet50_128", "float16", MEZZO | EAGER, 20),
        profile(args, "resnet50_128", "float16"),
        *bench("resnet50_128", "float16", single("resnet50_128"), 10, ", one option at a time"),
        *bench("resnet20", "float16", MEZZO | EAGER, 15),
        *bench("bert_base128", "bfloat16", PLAIN | EAGER, 15),
        *bench("bert_base128", "tf32", PLAIN | EAGER, 15),
        *bench("bert_base512", "float16", COMPILED, 60, ", torch.compile"),
        without_device,
    ]
