#!/usr/bin/env python3
"""Checks the rules of the source tree that a compiler does not: who may include whom, sizes, light public headers, that the
build files list every source, and that a test takes every function of tensors over the range of the 16-bit dtypes. Prints one line per breach and exits with 1 if there is any.

    check_tree.py            the rules
    check_tree.py --figures  also how large files and functions are, and how much test code there is
"""
import argparse
import pathlib
import posixpath
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOP_LEVEL = {"meson.build", "meson_options.txt", "src", "include", "cuda", "tests", "samples", "tools", "docs", "subprojects",
             "README.md", "LICENSE", ".ci", ".devcontainer", ".github", ".clang-format", ".clang-tidy", ".editorconfig", ".gitignore"}
CODE = {".h", ".cpp", ".cu", ".cuh", ".def"}

FILE_LINES = 500
FUNCTION_LINES = 60
KERNEL_LINES = 100  # in folders of kernels, and for test cases
MEAN_FUNCTION_LINES = 8  # of all functions outside of tests

# What a folder may include in quotes, as prefixes; its own folder is always allowed. Arrows point down only.
BASIS = ["mezzo/cpp20.h", "mezzo/version.h", "mezzo/dtype.h", "mezzo/dtypes.def", "mezzo/error.h", "mezzo/fast_path.h", "mezzo/log.h", "mezzo/shape.h", "mezzo/device.h", "mezzo/cuda.h",
         "mezzo/matmul_precision.h", "mezzo/indexing.h", "mezzo/methods.def", "mezzo/op_options.h", "mezzo/tensor.h"]
OPS = BASIS + ["mezzo/ops.h", "mezzo/ops.def", "mezzo/image_ops.h", "mezzo/attention_ops.h", "mezzo/recurrent_ops.h", "mezzo/reduce_ops.h", "mezzo/sort_ops.h", "mezzo/shape_ops.h", "mezzo/pointwise_ops.h",
             "mezzo/product_ops.h", "mezzo/loss_ops.h", "mezzo/autograd.h", "mezzo/autocast.h"]
KERNELS = ["core/", "kernels/"]
USER = OPS + ["mezzo/", "core/"]
ALLOWED = {
    "include": ["mezzo/"],
    "src/core": BASIS,
    "src/autograd": OPS + KERNELS,
    "src/kernels": BASIS + ["mezzo/ops.def", "mezzo/ops.h", "mezzo/optim_options.h", "mezzo/recurrent_ops.h", "core/"],
    "src/ops": OPS + KERNELS + ["autograd/", "mezzo/image_ops.h"],
    "src/cpu": BASIS + ["mezzo/ops.def", "mezzo/ops.h", "mezzo/optim_options.h"] + KERNELS,  # ops.h for Reduction
    "cuda": BASIS + ["mezzo/ops.def", "mezzo/ops.h"] + KERNELS,
    "src/nn": USER,
    "src/data": USER,
    "src/capture": USER + ["autograd/"],
    "src/io": OPS + ["mezzo/"],
    "src/optim": USER + ["kernels/step.h", "kernels/functor_step.h", "kernels/step_copies.h"],
    "src/distributed": USER + ["autograd/", "kernels/step.h", "ops/common.h", "ops/running_statistics.h", "optim/", "cpu/parallel.h"],
    "src/training": USER,
    "src/insight": USER + ["autograd/", "kernels/", "nn/", "io/"],
    "src/onnx": USER + ["autograd/", "kernels/", "ops/view_attributes.h", "insight/", "io/"],
    "src/amp": USER + ["kernels/step.h", "optim/", "nn/"],
    "samples": ["mezzo/mezzo.h", "bert/", "gpt/", "resnet/", "training/"],
}
# Single files with a wider view, each for a reason.
ALLOWED_FILES = {
    "src/core/device.cpp": ["cpu/parallel.h"],       # the registry of devices also sets the CPU's threads
    "cuda/kernel.cuh": ["tests/emulation/"],         # kernels as C++ for the emulator
    "cuda/mma.cuh": ["tests/emulation/"],
    "src/training/checkpoint_folder.cpp": ["distributed/group_impl.h"],  # marks an error as another rank's
    "src/training/trainer.cpp": ["autograd/op_observer.h"],  # looks at the first backward for forgotten parameters
    "src/distributed/shared_memory.cpp": ["cpu/loops.h"],  # adds up host memory as the CPU's kernels do
    "src/data/wordpiece.cpp": ["cpu/parallel.h"],    # batches of texts on the library's threads
    "src/data/tokenizer/fields.h": ["io/json.h"],    # the values of JSON files, without the JSON library
    "src/data/tokenizer/learn_bpe.cpp": ["io/json.h"],
    "src/data/tokenizer/files.cpp": ["io/file.h"],
    "src/data/tokenizer/tokenizer.cpp": ["cpu/parallel.h"],  # as wordpiece.cpp
    "src/data/prefetch.cpp": ["kernels/proof.h"],    # copies ahead are a fast path
    "src/data/batch_queue.cpp": ["cpu/parallel.h"],  # workers compute without the library's threads
    "src/data/loader.cpp": ["cpu/parallel.h"],       # so are batches of images
    "src/data/normalize.cpp": ["cpu/parallel.h"],
    "src/data/cifar10.cpp": ["cpu/parallel.h"],
    "src/data/png.cpp": ["io/file.h"],               # replaces a picture as io replaces its files
    "src/io/file.cpp": ["core/file_kind.h", "core/log.h", "core/regular_file.h"],  # what data opens, too
    "src/io/json.cpp": ["core/file_kind.h"],
    "src/io/npz.cpp": ["core/file_kind.h"],
    "src/io/safetensors.cpp": ["core/file_kind.h", "core/visit_dtype.h"],
    "src/io/dlpack.cpp": ["core/backend.h", "core/borrowed_storage.h", "core/tensor_impl.h"],    # memory that others own
    "src/io/gemm_plans.cpp": ["core/backend.h", "kernels/gemm_plan.h"],  # the GEMM service's memory in a file
    "src/nn/module_scope.cpp": ["autograd/op_observer.h"],  # tells observers which module begins
    "src/nn/clip.cpp": ["kernels/step.h", "optim/param_refs.h"],  # clipping is a step kernel
}
# Public headers by layer: a header may include headers of its own or a lower layer.
LAYERS = [["cpp20.h"], ["dtype.h", "dtypes.def", "version.h"], ["error.h", "indexing.h", "methods.def", "op_options.h", "ops.def", "shape.h", "shared.h", "callback.h", "log.h", "fast_path.h", "device.h", "matmul_precision.h"], ["tensor.h"], ["ops.h", "image_ops.h", "attention_ops.h", "autograd.h", "autocast.h"]]
HEAVY = {"iostream", "sstream", "functional", "map", "unordered_map", "regex", "thread", "memory"}
VENDOR = re.compile(r"<(cuda|cublas|cudnn|nccl|nvtx|gloo/|fmt/|cub/|thrust/)")
VENDOR_FILES = ("src/distributed/gloo.cpp", "src/insight/nvtx.cpp", "tests/fake_cudart.h", "tests/nccl_abi.cpp", "tests/nvtx_injection.cpp",
                "tests/ptx/runtime.h")
FMT_HEADER = "include/mezzo/fmt.h"  # what a user includes who has fmt
BACKEND_SWITCH = re.compile(r"\bMEZZO_HAVE_CUDA\b")
# core knows that there are CUDA devices, as a type of device, and nothing of what runs on them.
VENDOR_NAME = re.compile(r"cublas|\bcuda::|mezzo/cuda\.h", re.I)
# Kernels that draw take their stream from stream_of(), so that a captured step draws anew in each replay.
OWN_STREAM = re.compile(r"\bstream\.(seed|offset)\b")
UNWANTED = [re.compile(p) for p in (r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b", r"(?<![\w.])/(wo" r"rk|ro" r"ot|ho" r"me)/")]

breaches = []


def report(path, line, text):
    breaches.append(f"{path}:{line}: {text}" if line else f"{path}: {text}")


def tree():
    """All files of the project, relative to its root."""
    for path in sorted(ROOT.rglob("*")):
        name = path.relative_to(ROOT)
        first = name.parts[0]
        hidden = first.startswith(".") and first not in TOP_LEVEL  # git's own, and editors' folders
        if hidden or first.startswith("build") or "__pycache__" in name.parts or not path.is_file():
            continue
        yield name


def folder_of(name):
    parts = name.parts
    return "/".join(parts[:2]) if parts[0] == "src" else parts[0]


def without_comments(text):
    """The text with comments and literals blanked out, line for line."""
    pattern = r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def layer(header):
    return next((i for i, names in enumerate(LAYERS) if header in names), len(LAYERS))


def check_includes(name, text):
    folder = folder_of(name)
    public = folder == "include"
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
        if not match:
            continue
        kind, target = match.groups()
        if kind == "<" or target.startswith("fmt/"):
            if public and (target in HEAVY or VENDOR.match(f"<{target}>")) and str(name) != FMT_HEADER:
                report(name, number, f"public headers do not include <{target}>")
            elif VENDOR.match(f"<{target}>") and "fmt/" not in target and folder != "cuda" and str(name) not in VENDOR_FILES:
                report(name, number, f"only cuda/ and {', '.join(VENDOR_FILES)} include <{target}>")
            continue
        if public and layer(target.removeprefix("mezzo/")) > layer(name.name):
            report(name, number, f"{target} belongs to a higher layer")
        own = folder.removeprefix("src/") + "/"
        allowed = ALLOWED.get(folder)
        if allowed is None or "/" not in target or target.startswith(own):
            continue
        if not target.startswith(tuple(allowed + ALLOWED_FILES.get(str(name), []))):
            report(name, number, f"{folder} does not include {target}")


def check_sizes(name, text):
    lines = text.count("\n")
    if lines > FILE_LINES:
        report(name, 0, f"{lines} lines; the limit is {FILE_LINES}")
    folder = folder_of(name)
    limit = KERNEL_LINES if folder in ("cuda", "src/cpu", "tests") else FUNCTION_LINES
    for start, length, head in functions(without_comments(text)):
        if length > limit:
            report(name, start, f"{length} lines in one function ({head}); the limit is {limit}")


def functions(text):
    """(first line, lines, head) of every outermost function body."""
    text = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.M)
    depth, opened, head_start = 0, None, 0
    for match in re.finditer(r"[{};]", text):
        token, at = match.group(), match.start()
        if token == "{":
            head = text[head_start:at].strip()
            if opened is None and is_function(head):
                opened = (depth, text.count("\n", 0, at) + 1, " ".join(head.split())[-60:])
            depth += 1
        elif token == "}":
            depth -= 1
            if opened and depth == opened[0]:
                yield opened[1], text.count("\n", 0, at) + 2 - opened[1], opened[2]
                opened = None
        head_start = at + 1


def is_function(head):
    return "(" in head and not re.match(r"(namespace|class|struct|enum|union|extern|using)\b", head) and \
        not re.search(r"=\s*$", head)


def check_words(name, text):
    for number, line in enumerate(text.split("\n"), 1):
        for pattern in UNWANTED:
            if match := pattern.search(line):
                report(name, number, f"'{match.group()}' does not belong here")


def check_random_stream(name, text):
    if folder_of(name) == "cuda" and name.name != "random_stream.cuh":
        if match := OWN_STREAM.search(without_comments(text)):
            report(name, text.count("\n", 0, match.start()) + 1, f"{match.group()}: use stream_of() of cuda/random_stream.cuh")


def check_vendor_names(name, text):
    if folder_of(name) == "src/core":
        for number, line in enumerate(text.split("\n"), 1):
            if match := VENDOR_NAME.search(line):
                report(name, number, f"{match.group()}: core names nothing of one backend; src/kernels is the place")


def check_backend_switch(name, text):
    if folder_of(name).startswith(("src", "include", "cuda")) and str(name) != "src/kernels/registry.cpp":
        if match := BACKEND_SWITCH.search(without_comments(text)):
            report(name, text.count("\n", 0, text.find(match.group())) + 1,
                   f"{match.group()} belongs to the registry of backends, src/kernels/registry.cpp")


def check_visibility(name, text):
    """What a public header declares is visible outside of the library, and what it includes is as it would be without it."""
    first, last = text.find("\nnamespace "), text.rfind("\n}")
    if str(name.parent) != "include/mezzo" or name.suffix != ".h" or first < 0:
        return
    push, pop = "#pragma GCC visibility push(default)\n", "#pragma GCC visibility pop\n"
    if text.count(push) != 1 or text.count(pop) != 1 or not text.rfind("#include <") < text.find(push) < first or text.find(pop) < last:
        report(name, 0, "no `#pragma GCC visibility push(default)` between the includes and the first namespace, and `pop` at the end")


def check_build_lists(names):
    listed = set()
    for build_file in (n for n in names if n.name == "meson.build" and "installed" not in n.parts):
        folder = build_file.parent
        for source in re.findall(r"(?<!output: )(?<!\+ )'([\w./-]+\.(?:cpp|cu))'", (ROOT / build_file).read_text()):
            from_root = source.split("/")[0] in TOP_LEVEL
            listed.add(source if from_root else posixpath.normpath(folder / source))
    sources = {str(n) for n in names if n.suffix in (".cpp", ".cu")}
    for name in sorted(sources - listed):
        report(name, 0, "listed in no build file")
    for name in sorted(n for n in listed - sources if n.split("/")[0] in TOP_LEVEL and "/" in n):
        if not name.startswith("tests/") or "/" in name.removeprefix("tests/") or name.endswith("_test.cpp"):
            report(name, 0, "listed in a build file but not in the tree")
    headers = {n.stem for n in names if n.parts[0] == "include" and n.suffix == ".h"}
    tested = re.search(r"foreach header : \[(.*?)\]", (ROOT / "tests/meson.build").read_text(), re.S)
    for header in sorted(headers ^ set(re.findall(r"'(\w+)'", tested.group(1)))):
        report(f"include/mezzo/{header}.h", 0, "the header test's list in tests/meson.build and the tree differ")


RANGES = "tests/gradient_range_lines.h"


def tensor_functions(text):
    """The functions of a header, outside of classes, that take tensors and return tensors or a struct of tensors."""
    text = re.sub(r"//[^\n]*", "", text)
    structs = {name for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.M | re.S) if re.search(r"^ *Tensors? ", body, re.M)}
    declared = r"^(?:template <[^>]*> )?(?:\[\[nodiscard\]\] )?(\w+) (\w+)\(((?:[^;{]|\{[^;{}]*\})*)[;{]"
    return {name for result, name, rest in re.findall(declared, text, re.M)
            if result in {"Tensor", "Tensors"} | structs and re.search(r"\bTensors?\b", rest)}


def check_ranges():
    """Every public function of tensors is run over the range of the 16-bit dtypes, or is left out there for a reason."""
    text = (ROOT / RANGES).read_text()
    table = re.findall(r"^MEZZO_UNARY\((\w+),", (ROOT / "include/mezzo/ops.def").read_text(), re.M)
    lines, omitted = text.split("left_out()", 1)
    run = {*table, *re.findall(r'(?:OF_(?:ONE|TWO)\(|\{)\s*"(\w+)|BINARY\((\w+)\)', lines)}
    run = {name for entry in run for name in ([entry] if isinstance(entry, str) else entry) if name}
    excused = set(re.findall(r'^ +\{"(\w+)", \w+\},$', omitted.split("return", 1)[0], re.M))
    public = {}
    for header in sorted((ROOT / "include/mezzo").glob("*.h")):
        for name in tensor_functions(header.read_text()):
            public.setdefault(name, f"include/mezzo/{header.name}")
    for name in sorted(public.keys() - run - excused):
        report(public[name], 0, f"{name}() takes and returns tensors; add a line for it to lines() or left_out() in {RANGES}")
    for name in sorted(excused - (public.keys() - run)):
        report(RANGES, 0, f"left_out() has {name}, which is run, or is no public function of tensors")


def check_version():
    stated = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text()).group(1)
    header, log = "include/mezzo/version.h", "docs/project/changelog.md"
    numbers = re.findall(r"^#define MEZZO_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", (ROOT / header).read_text(), re.M)
    if ".".join(numbers) != stated:
        report(header, 0, f"version {'.'.join(numbers)}; meson.build says {stated}")
    packages = (ROOT / "tools/debian/changelog").read_text().split("\n")[0]
    if f"({stated})" not in packages:
        report("tools/debian/changelog", 1, f"{packages}; meson.build says version {stated}")
    newest = re.search(r"^## (\S+)", (ROOT / log).read_text(), re.M)
    if newest is None or newest.group(1) != stated:
        report(log, 0, f"the first heading is {newest and newest.group(1)}; meson.build says version {stated}")


class Figures:
    """Sizes of files and functions, by side: the product and its tests."""

    def __init__(self):
        self.lines = {"code": 0, "tests": 0}
        self.functions = {"code": [], "tests": []}
        self.longest_file = (0, None)

    def add(self, name, text):
        side = "tests" if folder_of(name) == "tests" else "code"
        self.lines[side] += sum(1 for line in text.split("\n") if line.strip())
        self.functions[side] += [(length, f"{name}:{start}") for start, length, _ in functions(without_comments(text))]
        self.longest_file = max(self.longest_file, (text.count("\n"), str(name)))

    def mean(self, side):
        lengths = [length for length, _ in self.functions[side]]
        return sum(lengths) / max(1, len(lengths))

    def check(self):
        if self.mean("code") >= MEAN_FUNCTION_LINES:
            report("functions", 0, f"{self.mean('code'):.2f} lines on average; the limit is {MEAN_FUNCTION_LINES}")

    def text(self):
        rows = [f"longest file: {self.longest_file[0]} lines, {self.longest_file[1]}"]
        for side in self.lines:
            length, where = max(self.functions[side])
            rows.append(f"{side}: {self.lines[side]} lines that are not blank, {len(self.functions[side])} functions, "
                        f"{self.mean(side):.2f} lines on average, the longest {length} ({where})")
        rows.append(f"tests per line of code: {self.lines['tests'] / max(1, self.lines['code']):.2f}")
        return "\n".join(rows)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--figures", action="store_true", help="print the sizes of files and functions, too")
    want_figures = options.parse_args().figures
    names = list(tree())
    figures = Figures()
    for first in sorted({n.parts[0] for n in names}):
        if first not in TOP_LEVEL:
            report(first, 0, "does not belong to the top level")
    for name in names:
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if name.name != "LICENSE":
            check_words(name, text)
        if name.suffix in CODE:
            check_includes(name, text)
            check_sizes(name, text)
            check_backend_switch(name, text)
            check_vendor_names(name, text)
            check_random_stream(name, text)
            check_visibility(name, text)
            figures.add(name, text)
    figures.check()
    check_build_lists(names)
    check_ranges()
    check_version()
    if want_figures:
        print(figures.text())
    print("\n".join(breaches) if breaches else f"check_tree: {len(names)} files, nothing to report")
    sys.exit(1 if breaches else 0)


main()
