"""The build of tools/gpu_check: reads the lists of meson.build, and compiles and links with the compilers alone."""
import os
import pathlib
import re
import shutil

from gpu.run import ROOT, output, run

# Lists of tests/meson.build, and how their sources are compiled. A list of sources that are all in these needs no line here.
TESTS = {"test_sources": ["-O1", "-Wno-psabi"], "device_test_sources": ["-O1"], "test_helpers": ["-O1"], "test_kernels": []}
# The programs that are measured, and the lists of meson.build that each is made of.
PROGRAMS = {"mlp": [], "bench": ["bench_sources", "trace_sources"], "gemm_search": ["search_sources"], "mezzo_info": ["info_sources"]}
TOOLS = {name: ["-O2", "-Isamples"] for program in PROGRAMS.values() for name in program}
# Lists without which there is no library, whatever the build file has made of their names.
NEEDED = {"core_sources", "kernel_sources", "autograd_sources", "ops_sources", "cpu_sources", "registry_sources", "user_sources", "image_sources", "pattern_sources", "cuda_sources",
          "cuda_vendor_sources", "isa_sources", "cuda_kernels"}
# Lists that are for the emulated device only, of other programs, and of the module of several processes, which needs Gloo.
NOT_HERE = {"device_times_sources", "emulation_test_sources", "emulator_sources", "gloo_sources", "heap_sources", "host_sources", "training_sources"}
HEADERS = ["fmt/format.h", "catch2/catch.hpp", "CLI/CLI.hpp", "nlohmann/json.hpp", "utf8proc.h", "zlib.h"]
LIBRARIES = {"zlib": "z", "utf8proc": "utf8proc"}


def lists(build_file):
    """The files(...) lists of a build file, by name; paths from the root."""
    text = (ROOT / build_file).read_text(encoding="utf-8")
    folder = pathlib.PurePosixPath(build_file).parent
    return {name: [str(folder / path) for path in re.findall(r"'([^']+)'", body)]
            for name, body in re.findall(r"^(\w+) = files\((.*?)\)", text, re.M | re.S)}


def executed_as_ptx(device_test_sources):
    """The files of cases that the suite `ptx` has run over interpreted PTX, in its order. NCCL's needs a driver."""
    text = (ROOT / "tests/ptx/meson.build").read_text(encoding="utf-8")
    further = re.search(r"further_sources = files\((.*?)\)", text, re.S).group(1)
    files = device_test_sources + [f"tests/{name}" for name in re.findall(r"'\.\./([^']+)'", further)]
    return [f for f in files if not f.endswith("nccl_gpu_test.cpp")]


def values(text):
    """The lists of strings that a build file gives names to. The last value of a name counts, of a conditional expression the
    first one: that of a plain build."""
    found = {}
    for name, more, value in re.findall(r"^ *(\w+) (\+?)= (.*)$", statements(text), re.M):
        try:
            found[name] = (found[name] if more else []) + evaluate(value, found)
        except (ValueError, KeyError):
            found.pop(name, None)  # something else: whoever needs it as a list cannot be told
    return found


def statements(text):
    """A build file with one statement a line and no comments."""
    text = re.sub(r"'[^'\n]*'|#.*", lambda m: m.group() if m.group().startswith("'") else "", text)
    depth, result = 0, []
    for piece in re.split(r"([\[\](){}\n])", text):
        depth += (piece in tuple("[({")) - (piece in tuple("])}"))
        result.append(" " if piece == "\n" and depth > 0 else piece)
    return "".join(result)


def evaluate(expression, names):
    """A sum of lists of strings and of names. ValueError where it is something else."""
    result = []
    for term in re.findall(r"\[.*?\]|[^+\[]+", expression):
        term = term.strip()
        if term in names:
            result += names[term]
        elif term.startswith("["):
            body = re.sub(r"[^,\[]*\? *('[^']*') *: *'[^']*'", r"\1", term)
            if not re.fullmatch(r"\[\s*('[^']*'\s*(,\s*'[^']*'\s*)*,?\s*)?\]", body):
                raise ValueError(f"no list of strings: {term}")
            result += re.findall(r"'([^']*)'", body)
        elif term:
            raise ValueError(f"unknown: {term}")
    return result


def library(build_file):
    """(the lists that each static library of a build file is made of, with their flags; what cannot be told). One list may be in
    several libraries, each with flags of its own."""
    text = (ROOT / build_file).read_text(encoding="utf-8")
    found, known, parts, unclear = lists(build_file), values(text), [], []
    for name, body in re.findall(r"static_library\('(\w+)', ((?:[^()]|\([^()]*\))*)\)", statements(text)):
        own = re.search(r"cpp_args: ([^,:]+?) *(?:,|$)", body)
        try:
            extra = evaluate(own.group(1), known | {"cuda_args": [], "image_args": [], "pattern_args": [], "nvtx_args": []}) if own else []  # every source here sees
            # MEZZO_HAVE_CUDA, and a bare machine has no libraries for images and regular expressions, and ranges of NVTX are not looked at
        except ValueError as error:
            unclear.append(f"cpp_args of the library {name} in {build_file} ({error})")
            continue
        parts += [(name, source, ["-O2", *extra]) for source in re.findall(r"\w+", body) if source in found]
    return parts, unclear


class Plan:
    """The compile and link commands."""

    def __init__(self, args):
        self.args = args
        self.cxx = os.environ.get("CXX", "g++").split()
        self.nvcc = str(args.toolkit / "bin/nvcc")
        capability = output("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").split("\n")[0]
        self.arch = args.arch or capability.replace(".", "") or "90"
        prefixes = ([args.deps / "usr", args.deps] if args.deps else []) + [pathlib.Path("/usr")]
        self.include_folders = [p / "include" for p in prefixes if (p / "include").is_dir()]
        folders = ["lib/x86_64-linux-gnu", "lib64", "lib"]
        self.library_folders = [p / name for p in prefixes for name in folders if (p / name).is_dir()]
        self.include = ["-Iinclude", "-Isrc", "-I."] + \
            [f"-isystem{d}" for d in self.include_folders if d != pathlib.Path("/usr/include")]
        self.common = ["-std=c++20", "-DNDEBUG", "-DMEZZO_HAVE_CUDA", f"-DMEZZO_OLDEST_GPU={self.arch}", f"-DMEZZO_NEWEST_PTX={self.arch}"]
        self.compiles, self.links = [], []
        self.library_lists, self.test_lists = lists("meson.build"), lists("tests/meson.build")
        self.parts, self.unclear = library("meson.build")
        self.plan()

    @staticmethod
    def find(folders, *names):
        return next((d / n for d in folders for n in names if (d / n).exists()), None)

    def compile(self, source, flags, library=""):
        target = str(self.args.out / f"{library}_{source.replace('/', '_')}.o".lstrip("_"))
        if source.endswith(".cu"):  # -lineinfo: compute-sanitizer then names lines; the code is the same
            gencode = f"-gencode=arch=compute_{self.arch},code=sm_{self.arch}"
            # Without its own folder nvcc writes a name with its process's number into the object: no two builds would be equal.
            command = [self.nvcc, *self.common, "-O3", "-lineinfo", "-Xcompiler=-fvisibility=hidden", "--objdir-as-tempdir", gencode,
                       "-Iinclude", "-Isrc", "-I."]
        else:
            command = [*self.cxx, *self.common, "-fvisibility=hidden", *flags, "-DFMT_HEADER_ONLY", *self.include,
                       *[f"-isystem{self.args.toolkit}/{name}" for name in ("include", "extras/CUPTI/include")], "-pthread"]
        self.compiles.append(command + ["-c", source, "-o", target])
        return target

    def link(self, name, objects):
        static = [self.find(self.library_folders, f"lib{library}.a") or f"-l{library}" for library in LIBRARIES.values()]
        cudart = self.find([self.args.toolkit / "lib64", self.args.toolkit / "lib"], "libcudart_static.a") or "-lcudart_static"
        libraries = [*map(str, static), str(cudart), "-ldl", "-lrt", "-pthread"]
        self.links.append([*self.cxx, *objects, *libraries, "-o", str(self.args.out / name)])

    def objects(self, found, flags):
        return [self.compile(source, flags[name]) for name in flags for source in found.get(name, [])]

    def plan(self):
        library = [self.compile(source, flags, part) for part, name, flags in self.parts for source in self.library_lists[name]]
        tests = self.objects(self.test_lists, TESTS)
        catch_main = self.find(self.library_folders, "libCatch2WithMain.a")
        if catch_main:
            tests.append(str(catch_main))
        else:
            main = self.args.out / "catch_main.cpp"
            if not self.args.dry_run:
                main.write_text("#define CATCH_CONFIG_MAIN\n#include <catch2/catch.hpp>\n", encoding="utf-8")
            tests.append(self.compile(str(main), ["-O0"]))
        self.link("mezzo-tests", tests + library)
        own = {"mlp": [self.compile("samples/mlp.cpp", ["-O2"])]}
        for name, sources in PROGRAMS.items():
            self.link(name, own.get(name, []) + self.objects(self.library_lists, {key: TOOLS[key] for key in sources}) + library)

    def programs(self):
        return [pathlib.Path(link[link.index("-o") + 1]) for link in self.links]

    def unlinked(self):
        """Sources of the samples' headers that a program's sources include, and that the program is not made of."""
        objects = {c[-1]: c[c.index("-c") + 1] for c in self.compiles}
        lacking = set()
        for link in self.links:
            sources = {objects[o] for o in link if objects.get(o, "").startswith("samples/")}
            for source in filter(lambda name: (ROOT / name).exists(), sources):
                included = re.findall(r'#include "([^"]+)\.h"', (ROOT / source).read_text(encoding="utf-8"))
                wanted = {f"samples/{header}.cpp" for header in included if (ROOT / f"samples/{header}.cpp").exists()}
                lacking |= {f"{needed} in the program {pathlib.Path(link[-1]).name}, which includes its header" for needed in wanted - sources}
        return sorted(lacking)

    def missing(self):
        """What the build needs and this machine lacks, or this plan."""
        lacking = [tool for tool in (self.cxx[0], self.nvcc) if not shutil.which(tool)]
        lacking += [f"header {h}" for h in HEADERS if not self.find(self.include_folders, h)]
        lacking += [f"library {name}" for name, library in LIBRARIES.items()
                    if not self.find(self.library_folders, f"lib{library}.a", f"lib{library}.so")]
        lacking += [f"flags: {what}" for what in self.unclear] + [f"flags that {self.cxx[0]} takes: {e}" for e in self.refused_flags()]
        found = self.library_lists | self.test_lists
        wanted = {name for _, name, _ in self.parts} | set(TESTS) | set(TOOLS)
        covered = {source for name in wanted for source in found.get(name, [])}
        lacking += [f"list {name} of the build files" for name in sorted(wanted | NEEDED) if not found.get(name)]
        lacking += [f"a use for the list {name} of the build files in tools/gpu/build.py" for name in sorted(set(found) - wanted - NOT_HERE)
                    if not covered.issuperset(found[name])]
        lacking += self.unlinked()
        files = [c[c.index("-c") + 1] for c in self.compiles]
        return lacking + [f for f in files if not (ROOT / f).exists() and not f.endswith("catch_main.cpp")]

    def refused_flags(self):
        """What the compiler says of flags that it does not know."""
        machine = {tuple(f for f in c if f.startswith(("-m", "-f"))) for c in self.compiles if c[0] == self.cxx[0]}
        ended = [run([*self.cxx, *flags, "-fsyntax-only", "-x", "c++", "/dev/null"], 60)
                 for flags in sorted(machine) if shutil.which(self.cxx[0])]
        return [e["stderr"].strip().split("\n")[0] for e in ended if e["exit_code"] != 0]
