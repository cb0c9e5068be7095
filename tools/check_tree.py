#!/usr/bin/env python3
"""Checks the rules of the source tree that a compiler does not: which component and which folder may
include which, sizes, light public headers, words of comments, that the build files list every source, and that a
test runs every function of tensors over the range of the 16-bit dtypes. Prints one line per breach and exits with 1 if there
is any.

    check_tree.py            checks the rules
    check_tree.py --figures  also prints sizes of files and functions, and how much test code there is
    check_tree.py --picture  only prints the picture of docs/internals/tree.md: which folder includes which
"""
import argparse
import pathlib
import posixpath
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOP_LEVEL = {
    "meson.build", "meson_options.txt", "src", "include", "cuda", "tests", "samples", "tools", "docs", "subprojects",
    "README.md", "LICENSE", ".ci", ".devcontainer", ".github", ".clang-format", ".clang-tidy", ".editorconfig",
    ".gitignore"}
CODE = {".h", ".cpp", ".cu", ".cuh", ".def"}

FILE_LINES = 500
FUNCTION_LINES = 60
KERNEL_LINES = 100  # in folders of kernels, and for test cases
MEAN_FUNCTION_LINES = 8  # of all functions outside of tests

# The libraries: core, and the components with the libraries that each may use. src/meson.build links the same.
COMPONENTS = {
    "core": [],
    "data": ["core"],
    "text": ["core"],
    "models": ["core"],
    "distributed": ["core"],
    "insight": ["core"],
    "interchange": ["core"],
    "train": ["core", "distributed"],
}
# Headers of core, as prefixes, that a folder may include in quotes; its own folder is always allowed. In core
# the folders are in order: a folder includes only folders above its line.
BASIS = [f"mezzo/{name}" for name in (
    "cpp20.h", "version.h", "dtype.h", "dtypes.def", "error.h", "fast_path.h", "log.h", "shape.h", "device.h", "cuda.h",
    "matmul_precision.h", "indexing.h", "methods.def", "op_options.h", "tensor.h")]
OPS = BASIS + [f"mezzo/{name}" for name in (
    "ops.h", "ops.def", "image_ops.h", "attention_ops.h", "recurrent_ops.h", "reduce_ops.h", "sort_ops.h", "shape_ops.h", "index_ops.h",
    "pointwise_ops.h", "product_ops.h", "loss_ops.h", "quantize.h", "autograd.h", "autocast.h", "record_function.h")]
TABLES = ["mezzo/ops.def", "mezzo/ops.h", "mezzo/optim_options.h", "mezzo/optimizers.def"]  # ops.h for Reduction
USER = ["mezzo/", "core/"]
ALLOWED = {
    "include": ["mezzo/"],
    "src/core": BASIS,
    "src/kernels": BASIS + TABLES + ["mezzo/recurrent_ops.h", "core/"],
    "src/cpu": BASIS + TABLES + ["core/", "kernels/"],
    "cuda": BASIS + TABLES + ["core/", "kernels/"],
    "src/autograd": OPS + ["core/", "kernels/"],
    "src/ops": OPS + ["core/", "kernels/", "autograd/"],
    "src/io": USER + ["kernels/gemm_plan.h"],  # plans of the matrix products in a file
    "src/capture": USER + ["autograd/"],
    "src/optim": USER + ["autograd/ready_backward.h", "kernels/step.h", "kernels/functor_step.h", "kernels/narrow_state.h", "kernels/step_copies.h"],
    "src/nn": USER + ["autograd/", "optim/update.h"],
    "src/amp": USER + ["optim/", "nn/", "ops/gemm/fp8_weight.h"],
    "src/data": USER + ["io/", "cpu/parallel.h", "kernels/self_check.h"],
    "src/text": USER + ["io/", "cpu/parallel.h"],
    "src/models": USER + ["io/", "nn/"],
    "src/distributed": USER + ["autograd/", "optim/", "capture/capture_consensus.h", "ops/norm/running_statistics.h", "cpu/parallel.h"],
    "src/insight": USER + ["autograd/", "kernels/", "io/", "nn/module_paths.h"],
    "src/interchange": USER + ["autograd/", "kernels/", "io/", "nn/module_paths.h", "ops/view_attributes.h"],
    "src/train": USER + ["io/", "autograd/op_observer.h"],
    "samples": ["mezzo/", "bert/", "gpt/", "resnet/"],
}
# Single files with a wider view, each for a reason.
ALLOWED_FILES = {
    "cuda/kernel.cuh": ["tests/emulation/"],  # kernels as C++ for the emulator
    "cuda/mma.cuh": ["tests/emulation/"],
    "src/io/load_weights.cpp": ["nn/weight_state.h"],  # 8-bit weights with their scales
    "src/distributed/shared_memory.cpp": ["cpu/elementwise/loops.h"],  # sums host memory
}
PICTURE_PAGE = "docs/internals/tree.md"
# Public headers by layer: a header may include headers of its own or a lower layer.
LAYERS = [
    ["cpp20.h"],
    ["dtype.h", "dtypes.def", "version.h"],
    ["error.h", "indexing.h", "methods.def", "op_options.h", "ops.def", "shape.h", "shared.h", "callback.h", "log.h",
     "fast_path.h", "device.h", "matmul_precision.h"],
    ["tensor.h"],
    ["ops.h", "image_ops.h", "attention_ops.h", "autograd.h", "autocast.h"],
]
HEAVY = {"iostream", "sstream", "functional", "map", "unordered_map", "regex", "thread", "memory"}
VENDOR = re.compile(r"<(cuda|cublas|cudnn|nccl|nvtx|gloo/|fmt/|cub/|thrust/)")
VENDOR_FILES = ("src/distributed/gloo.cpp", "src/insight/nvtx_calls.cpp", "tests/cuda/fake_cudart.h",
                "tests/distributed/nccl_abi.cpp", "tests/insight/nvtx_injection.cpp", "tests/ptx/runtime.h")
FMT_HEADER = "include/mezzo/fmt.h"  # for users of fmt
EVERYTHING = "include/mezzo/everything.h"
BACKEND_SWITCH = re.compile(r"\bMEZZO_HAVE_CUDA\b")
# src/core has CUDA as a type of device and names nothing that runs on one.
VENDOR_NAME = re.compile(r"cublas|\bcuda::|mezzo/cuda\.h", re.I)
# Kernels take random streams from stream_of(), so that each replay of a captured step draws other numbers.
OWN_STREAM = re.compile(r"\bstream\.(seed|offset)\b")
UNWANTED = [re.compile(p) for p in (r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b", r"(?<![\w.])/(wo" r"rk|ro" r"ot|ho" r"me)/")]

# Sentences of comments begin with their subject, and lines end at the formatter's limit.
OPENING = re.compile(r"(What|Which|Who|Whom|Whose|Where|From (what|which)|That which|One that|Those (that|who)|Of (the|what|which|all))\b")
LINE = 110
# One word per thing, the field's. Left of the colon: words that are not used in comments.
WORDS = {
    "last[_ ]words": "exit reason", "step[_ ]part(y|ies)|meeting": "consensus, barrier, rendezvous",
    "side[_ ]by[_ ]side": "flat, contiguous", "joint[_ ]linear": "merged linear", "scale[_ ]parts": "scale state",
    "lazy[_ ]scal(e|ing)": "deferred unscaling", "waiting[_ ]gradients?": "accumulated gradient",
    "inner[_ ]gradients?": "fused gradient", "verdicts?": "result", "proofs?|prov(e|es|en|ing)": "self-check",
    "told|tells?": "notify, report", "kept": "saved, stored", "places?": "index, path, offset, call site",
    "passages?": "stream hand-off", "arrivals": "readiness", "twins?": "copy, mock", "beside": "next to, as well as",
    "gives? up": "times out, releases"}
WORD = re.compile(r"(?<![A-Za-z_])(?:" + "|".join(WORDS) + r")(?![A-Za-z_])", re.I)
# The exceptions, with their reasons.
STANDARD = re.compile(r"[Ii]n[ -]place(?! of)")  # the field's word for a write to a tensor's own memory

INCLUDE = re.compile(r'\s*#\s*include\s+([<"])([^>"]+)[>"]')

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


def component_of(name):
    """The library that a source or header belongs to, "" for samples, tests and tools."""
    if name.parts[0] not in ("include", "src", "cuda"):
        return ""
    below = name.parts[2 if name.parts[0] == "include" else 1]
    return below if below in COMPONENTS else "core"


def target_component(target):
    """The library of a header as an #include directive names it."""
    first = target.removeprefix("mezzo/").split("/")[0]
    return first if first in COMPONENTS else "core"


def without_comments(text):
    """The text with comments and literals blanked out, line for line."""
    pattern = r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def layer(header):
    return next((i for i, names in enumerate(LAYERS) if header in names), len(LAYERS))


def check_includes(name, text):
    folder = folder_of(name)
    for number, line in enumerate(text.split("\n"), 1):
        if match := INCLUDE.match(line):
            check = check_system_include if match[1] == "<" or match[2].startswith("fmt/") else check_own_include
            check(name, folder, number, match[2])


def check_system_include(name, folder, number, target):
    if folder == "include" and (target in HEAVY or VENDOR.match(f"<{target}>")) and str(name) != FMT_HEADER:
        report(name, number, f"public headers do not include <{target}>")
    elif VENDOR.match(f"<{target}>") and "fmt/" not in target and folder != "cuda" and str(name) not in VENDOR_FILES:
        report(name, number, f"only cuda/ and {', '.join(VENDOR_FILES)} include <{target}>")


def check_own_include(name, folder, number, target):
    if folder == "include" and layer(target.removeprefix("mezzo/")) > layer("/".join(name.parts[2:])):
        report(name, number, f"{target} belongs to a higher layer")
    own, other = component_of(name), target_component(target)
    if own and other not in [own, *COMPONENTS[own]]:
        if str(name) != EVERYTHING:
            report(name, number, f"{own} does not use {other}: {target}")
    elif folder in ALLOWED and "/" in target and not target.startswith(folder.removeprefix("src/") + "/"):
        allowed = ALLOWED[folder] + ALLOWED_FILES.get(str(name), [])
        if own and own == other != "core" or target.startswith("mezzo/") and other != "core":
            return
        if not target.startswith(tuple(allowed)):
            report(name, number, f"{folder} does not include {target}")


def used_folders(name, text):
    """The folders whose headers a file includes: of core those in src and cuda, of components the public ones."""
    targets = [match[2] for line in text.split("\n") if (match := INCLUDE.match(line)) and match[1] == '"']
    for target in targets:
        first = target.split("/")[0]
        if first == "mezzo" and target_component(target) != "core":
            yield target_component(target)
        elif first == "cuda" or f"src/{first}" in ALLOWED:
            yield first


def picture(uses):
    """What each library may use, then a matrix of the includes between folders."""
    order = [folder.removeprefix("src/") for folder in ALLOWED if folder.startswith(("src/", "cuda"))]
    width = max(map(len, order)) + 1
    lines = ["The libraries, each with those that it may use:", ""]
    lines += [f"  {name:{width}} {', '.join(needs) or '-'}" for name, needs in COMPONENTS.items()]
    lines += ["", "The folders: x if the folder of the row includes a header of the folder of the column.", ""]
    letters = {folder: f"{number:2}" for number, folder in enumerate(order, 1)}
    lines.append(" " * (width + 6) + " ".join(letters.values()))
    for row in order:
        cells = [" x" if column in uses.get(row, ()) else " ." for column in order[:order.index(row)]]
        if row == "data":
            lines.append("")
        lines.append(f"  {letters[row]} {row:{width}} " + " ".join(cells + [" -"]))
    return "\n".join(lines) + "\n"


def check_picture(drawn):
    page = ROOT / PICTURE_PAGE
    if not page.is_file() or drawn not in page.read_text():
        report(PICTURE_PAGE, 0, "not the picture that tools/check_tree.py --picture prints")


def check_links():
    """src/meson.build builds the components and links each with what COMPONENTS says."""
    text = (ROOT / "src/meson.build").read_text()
    folders = re.search(r"foreach name : \[(.*?)\]\n  package", text, re.S).group(1)
    needs = re.search(r"^needs = \{(.*)\}$", text, re.M).group(1)
    linked = {name: ["core"] for name in re.findall(r"'(\w+)'", folders)}
    for name, others in re.findall(r"'(\w+)': \[(.*?)\]", needs):
        linked[name] += re.findall(r"'(\w+)'", others)
    if linked != {name: needs for name, needs in COMPONENTS.items() if needs}:
        report("src/meson.build", 0, f"the components are linked as {linked}; COMPONENTS says otherwise")


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


def comment_sentences(text):
    """(line, sentence) of the // comments; comments of whole lines, one below the other, are one text."""
    words = []
    for number, line in enumerate(text.split("\n") + [""], 1):
        match = re.match(r'(\s*)//+ ?(.*)', line) or re.match(r'([^"]*?\S\s+)// (.*)', line)
        if words and (match is None or match[1].strip()):
            yield words[0][0], " ".join(word for _, word in words)
            words = []
        for word in match[2].split() if match else []:
            words.append((number, word))
            if word.endswith((".", "?", ":")):
                yield words[0][0], " ".join(word for _, word in words)
                words = []


def check_prose(name, text):
    for number, sentence in comment_sentences(text):
        if (match := OPENING.match(sentence)) and not sentence.endswith("?"):
            report(name, number, f"a sentence begins with '{match.group()}'; begin with its subject")
        if match := WORD.search(STANDARD.sub("", sentence)):
            term = next(term for word, term in WORDS.items() if re.fullmatch(word, match.group(), re.I))
            report(name, number, f"'{match.group()}' in a comment; the field's terms: {term}")
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LINE and '"' not in line:
            report(name, number, f"{len(line)} columns; the limit is {LINE}")


def check_random_stream(name, text):
    if folder_of(name) == "cuda" and name.name != "random_stream.cuh":
        if match := OWN_STREAM.search(without_comments(text)):
            report(name, text.count("\n", 0, match.start()) + 1, f"{match.group()}: use stream_of() of cuda/elementwise/random_stream.cuh")


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
    """A public header exports its own declarations and leaves the visibility of its includes alone."""
    first, last = text.find("\nnamespace "), text.rfind("\n}")
    if name.parts[0] != "include" or name.suffix != ".h" or first < 0:
        return
    push, pop = "#pragma GCC visibility push(default)\n", "#pragma GCC visibility pop\n"
    if text.count(push) != 1 or text.count(pop) != 1 or not text.rfind("#include <") < text.find(push) < first or text.find(pop) < last:
        report(name, 0, "no `#pragma GCC visibility push(default)` between the includes and the first namespace, and `pop` at the end")


def listed_sources(folder, text):
    """The sources that a build file lists, relative to the root, but for names that it makes from parts."""
    text = re.sub(r"#.*", "", text)
    for key, source in re.findall(r"(?<!output: )(?<!\+ )('source': )?'([\w./-]+\.(?:cpp|cu))'", text):
        yield source if key else posixpath.normpath(folder / source)  # what kernel.cpp.in includes: from the root


def check_build_lists(names):
    listed = set()
    for build_file in (n for n in names if n.name == "meson.build" and "installed" not in n.parts):
        listed.update(listed_sources(build_file.parent, (ROOT / build_file).read_text()))
    sources = {str(n) for n in names if n.suffix in (".cpp", ".cu") and "installed" not in n.parts}
    for name in sorted(sources - listed):
        report(name, 0, "listed in no build file")
    for name in sorted(n for n in listed - sources if "installed" not in n):
        report(name, 0, "listed in a build file but not in the tree")
    headers = {"/".join(n.parts[2:])[:-2] for n in names if n.parts[0] == "include" and n.suffix == ".h"}
    tested = re.search(r"foreach header : \[(.*?)\]", (ROOT / "tests/meson.build").read_text(), re.S)
    for header in sorted(headers ^ set(re.findall(r"'([\w/]+)'", tested.group(1)))):
        report(f"include/mezzo/{header}.h", 0, "the header test's list in tests/meson.build and the tree differ")


RANGES = "tests/ops/gradient_range_lines.h"


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
    ops = (ROOT / "include/mezzo/ops.def").read_text()
    table = re.findall(r"^MEZZO_UNARY\((\w+),", ops, re.M)
    lines, omitted = text.split("left_out()", 1)
    run = {*table, *re.findall(r'(?:OF_(?:ONE|TWO)\(|\{)\s*"(\w+)|(?:BINARY|UNARY)\((\w+)\)', lines)}
    run = {name for entry in run for name in ([entry] if isinstance(entry, str) else entry) if name}
    excused = set(re.findall(r'^ +\{"(\w+)", \w+\},$', omitted.split("return", 1)[0], re.M))
    public = dict.fromkeys(re.findall(r"Tensor (\w+) MEZZO_OF_", ops), "include/mezzo/ops.def")
    for header in sorted((ROOT / "include/mezzo").rglob("*.h")):
        for name in tensor_functions(header.read_text()):
            public.setdefault(name, str(header.relative_to(ROOT)))
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


def check_file(name, text, figures):
    check_includes(name, text)
    check_sizes(name, text)
    check_backend_switch(name, text)
    check_vendor_names(name, text)
    check_random_stream(name, text)
    check_visibility(name, text)
    figures.add(name, text)


def check_device_cases(name, text):
    """A case of the device ends at once where there is none: in a build with CUDA on a machine without a GPU."""
    if name.parts[:2] in (("tests", "cuda"), ("tests", "capture")):
        for case in re.finditer(r'^\w*TEST_CASE\("([^"]*)"(.*?)^}', text, re.M | re.S):
            if "[cuda]" in case[2].partition("{")[0] and not re.search(r"no_device\(\)|cuda_device_count\(\)", case[2]):
                report(name, text.count("\n", 0, case.start()) + 1, f"the case {case[1]!r} must begin with: if (no_device()) return;")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--figures", action="store_true", help="print the sizes of files and functions, too")
    options.add_argument("--picture", action="store_true", help="print which component and folder includes which, and stop")
    wanted = options.parse_args()
    names = list(tree())
    figures = Figures()
    uses = {}
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
            check_file(name, text, figures)
            check_device_cases(name, text)
            row = component_of(name) if name.parts[0] == "include" else folder_of(name).removeprefix("src/")
            uses.setdefault(row, set()).update(used_folders(name, text))
        if (name.suffix in CODE or name.name == "meson.build") and name.parts[:2] != ("tests", "reference"):
            check_prose(name, text)
    drawn = picture(uses)
    if wanted.picture:
        print(drawn, end="")
        return
    figures.check()
    check_links()
    check_picture(drawn)
    check_build_lists(names)
    check_ranges()
    check_version()
    if wanted.figures:
        print(figures.text())
    print("\n".join(breaches) if breaches else f"check_tree: {len(names)} files, nothing to report")
    sys.exit(1 if breaches else 0)


main()
