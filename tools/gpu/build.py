"""The build of tools/gpu_check: finds the sources, and compiles and links them with the compilers alone."""
import os
import pathlib
import re
import shutil

from gpu.run import ROOT, output, run

# The units of src/cpu/meson.build, each compiled from a list of its own: the list's name and the flags.
KERNEL = ["-fno-math-errno", "-fno-trapping-math"]
VECTORIZED = [*KERNEL, "-ftree-vectorize", "-fvect-cost-model=dynamic"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]
UNITS = {
    "portable": ("isa_sources", [*KERNEL, "-DMEZZO_ISA_UNIT=portable"]),
    "avx2": ("isa_sources", [*VECTORIZED, "-DMEZZO_ISA_UNIT=avx2", *AVX2]),
    "avx512": ("isa_sources", [*VECTORIZED, "-DMEZZO_ISA_UNIT=avx512", *AVX512]),
    "avx512_bf16": ("pair_sources", [*VECTORIZED, "-DMEZZO_ISA_UNIT=avx512_bf16", *AVX512, "-mavx512bf16"]),
    "amx": ("amx_sources", [*VECTORIZED, *AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"]),
}
GLOO = "src/distributed/gloo.cpp"  # a module of its own, which needs Gloo
PROGRAMS = ["mlp", "bench", "gemm_search", "mezzo-info"]  # of the samples and tools
HEADERS = ["fmt/format.h", "catch2/catch.hpp", "CLI/CLI.hpp", "nlohmann/json.hpp", "utf8proc.h", "zlib.h"]
LIBRARIES = {"zlib": "z", "utf8proc": "utf8proc"}


def lists(build_file):
    """The files(...) lists of a build file and its dictionaries of such lists, by name; paths from the root."""
    text, found = (ROOT / build_file).read_text(encoding="utf-8"), {}
    for name, *bodies in re.findall(r"^ *(\w+) \+?= (?:[^\n]*\? )?(?:files\((.*?)\)|\{\n(.*?)^\})", text, re.M | re.S):
        paths = re.findall(r"'([^'\s]+\.(?:cpp|cu))'", "".join(bodies))
        found.setdefault(name, []).extend(os.path.normpath(pathlib.PurePosixPath(build_file).parent / path) for path in paths)
    return found


def library():
    """The sources of core, the components and the CUDA backend."""
    files = [path for folder in ("src", "cuda") for pattern in ("*.cpp", "*.cu") for path in (ROOT / folder).rglob(pattern)]
    return sorted({str(path.relative_to(ROOT)) for path in files} - {GLOO})


def tests(kind):
    """The files of `cases` or `device_cases` of all folders of tests."""
    files = sorted(path.relative_to(ROOT) for path in (ROOT / "tests").glob("*/meson.build"))
    found = [source for file in files for source in lists(file).get(kind, [])]
    if not found:
        raise ValueError(f"no {kind} in tests/*/meson.build")
    return found


def programs():
    """The sources of each program of samples/meson.build and tools/meson.build, by name."""
    found = {}
    for folder in ("samples", "tools"):
        build_file = f"{folder}/meson.build"
        known = lists(build_file)
        for name, body in re.findall(r"'([\w-]+)': \[([^\[\]]+), \[", (ROOT / build_file).read_text(encoding="utf-8")):
            terms = re.findall(r"'([^']+)'|(\w+_sources)", body)
            found[name] = [source for path, term in terms for source in ([f"{folder}/{path}"] if path else known[term])]
    return found


def executed_as_ptx(device_tests):
    """The files of cases that the suite `ptx` runs over interpreted PTX, in its order. NCCL's needs a driver."""
    files = device_tests + lists("tests/ptx/meson.build")["further_sources"]
    return [f for f in files if not f.endswith("nccl_gpu_test.cpp")]


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
        self.tests, self.device_tests = tests("cases"), tests("device_cases")
        self.plan()

    @staticmethod
    def find(folders, *names):
        return next((d / n for d in folders for n in names if (d / n).exists()), None)

    def compile(self, source, flags, unit=""):
        target = str(self.args.out / f"{unit}_{source.replace('/', '_')}.o".lstrip("_"))
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

    def plan(self):
        units, helpers, sources = lists("src/cpu/meson.build"), lists("tests/meson.build"), programs()
        several = {source for name, _ in UNITS.values() for source in units[name]}
        objects = [self.compile(source, ["-O2"]) for source in library() if source not in several]
        objects += [self.compile(source, ["-O2", *flags], unit) for unit, (name, flags) in UNITS.items() for source in units[name]]
        cases = [*self.tests, *self.device_tests, *helpers["test_helpers"], *helpers["test_kernels"]]
        cases = [self.compile(source, ["-O1", "-Wno-psabi"]) for source in cases]
        catch_main = self.find(self.library_folders, "libCatch2WithMain.a")
        if catch_main:
            cases.append(str(catch_main))
        else:
            main = self.args.out / "catch_main.cpp"
            if not self.args.dry_run:
                main.write_text("#define CATCH_CONFIG_MAIN\n#include <catch2/catch.hpp>\n", encoding="utf-8")
            cases.append(self.compile(str(main), ["-O0"]))
        self.link("mezzo-tests", cases + objects)
        for name in PROGRAMS:
            self.link(name, [self.compile(source, ["-O2"]) for source in sources[name]] + objects)

    def programs(self):
        return [pathlib.Path(link[link.index("-o") + 1]) for link in self.links]

    def missing(self):
        """What the build needs and this machine lacks."""
        lacking = [tool for tool in (self.cxx[0], self.nvcc) if not shutil.which(tool)]
        lacking += [f"header {h}" for h in HEADERS if not self.find(self.include_folders, h)]
        lacking += [f"library {name}" for name, library in LIBRARIES.items()
                    if not self.find(self.library_folders, f"lib{library}.a", f"lib{library}.so")]
        lacking += [f"flags that {self.cxx[0]} takes: {e}" for e in self.refused_flags()]
        files = [c[c.index("-c") + 1] for c in self.compiles]
        return lacking + [f for f in files if not (ROOT / f).exists() and not f.endswith("catch_main.cpp")]

    def refused_flags(self):
        """What the compiler says of flags that it does not know."""
        machine = {tuple(f for f in c if f.startswith(("-m", "-f"))) for c in self.compiles if c[0] == self.cxx[0]}
        ended = [run([*self.cxx, *flags, "-fsyntax-only", "-x", "c++", "/dev/null"], 60)
                 for flags in sorted(machine) if shutil.which(self.cxx[0])]
        return [e["stderr"].strip().split("\n")[0] for e in ended if e["exit_code"] != 0]
