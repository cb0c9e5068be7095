"""The build of tools/gpu_check: reads the lists of meson.build, and compiles and links with the compilers alone."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KERNEL_FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = AVX2 + ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]
# Lists of meson.build, and how their sources are compiled.
LIBRARY = {"core_sources": ["-O2"], "autograd_sources": ["-O2"], "cpu_sources": ["-O2"], "registry_sources": ["-O2"],
           "user_sources": ["-O2"], "cuda_sources": ["-O2"], "cuda_vendor_sources": ["-O2"], "portable_sources": KERNEL_FLAGS,
           "avx2_sources": KERNEL_FLAGS + AVX2, "avx512_sources": KERNEL_FLAGS + AVX512,
           "avx512_bf16_sources": KERNEL_FLAGS + AVX512 + ["-mavx512bf16"], "cuda_kernels": []}
# Lists of tests/meson.build.
TESTS = {"test_sources": ["-O1", "-Wno-psabi"], "device_test_sources": ["-O1"], "test_helpers": ["-O1"], "test_kernels": []}
# The programs that are measured, and the lists of meson.build that each is made of.
PROGRAMS = {"mlp": [], "bench": ["bench_sources", "trace_sources"], "gemm_search": ["search_sources"]}
TOOLS = {name: ["-O2"] for program in PROGRAMS.values() for name in program}
# Lists that are for the emulated device only.
NOT_HERE = {"emulation_test_sources", "emulator_sources"}
# What a toolkit may be too old or too new for, and the flag that leaves it out.
OPTIONAL = {"tools/gpu_trace.cpp": "-DMEZZO_NO_CUPTI"}
HEADERS = ["fmt/format.h", "catch2/catch.hpp", "CLI/CLI.hpp", "nlohmann/json.hpp", "utf8proc.h", "zlib.h"]
LIBRARIES = {"zlib": "z", "utf8proc": "utf8proc"}


def lists(build_file):
    """The files(...) lists of a build file, by name; paths from the root."""
    text = (ROOT / build_file).read_text(encoding="utf-8")
    folder = pathlib.PurePosixPath(build_file).parent
    return {name: [str(folder / path) for path in re.findall(r"'([^']+)'", body)]
            for name, body in re.findall(r"^(\w+) = files\((.*?)\)", text, re.M | re.S)}


def output(*command):
    """Standard output of a command, or nothing where it fails or is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


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
        self.common = ["-std=c++20", "-DNDEBUG", "-DMEZZO_HAVE_CUDA"]
        self.compiles, self.links = [], []
        self.library_lists, self.test_lists = lists("meson.build"), lists("tests/meson.build")
        self.plan()

    @staticmethod
    def find(folders, *names):
        return next((d / n for d in folders for n in names if (d / n).exists()), None)

    def compile(self, source, flags):
        target = str(self.args.out / (source.replace("/", "_") + ".o"))
        if source.endswith(".cu"):  # -lineinfo: compute-sanitizer then names lines; the code is the same
            gencode = f"-gencode=arch=compute_{self.arch},code=sm_{self.arch}"
            command = [self.nvcc, *self.common, "-O3", "-lineinfo", gencode, "-Iinclude", "-Isrc", "-I."]
        else:
            command = [*self.cxx, *self.common, *flags, "-DFMT_HEADER_ONLY", *self.include,
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
        library = self.objects(self.library_lists, LIBRARY)
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

    def missing(self):
        """What the build needs and this machine lacks, or this plan."""
        lacking = [tool for tool in (self.cxx[0], self.nvcc) if not shutil.which(tool)]
        lacking += [f"header {h}" for h in HEADERS if not self.find(self.include_folders, h)]
        lacking += [f"library {name}" for name, library in LIBRARIES.items()
                    if not self.find(self.library_folders, f"lib{library}.a", f"lib{library}.so")]
        found = self.library_lists | self.test_lists
        wanted = set(LIBRARY) | set(TESTS) | set(TOOLS)
        lacking += [f"list {name} of the build files" for name in sorted(wanted) if not found.get(name)]
        lacking += [f"flags of the new list {name} in tools/gpu/build.py" for name in sorted(set(found) - wanted - NOT_HERE)]
        files = [c[c.index("-c") + 1] for c in self.compiles]
        return lacking + [f for f in files if not (ROOT / f).exists() and not f.endswith("catch_main.cpp")]

    @staticmethod
    def slow_first(command):
        """Kernels, those of attention ahead of all, then by the size of the source."""
        source = ROOT / command[command.index("-c") + 1]
        return not source.name.endswith(".cu"), "attention" not in source.name, -source.stat().st_size

    def execute(self, command):
        """(seconds, what went wrong or nothing). A source that the toolkit may not fit is tried again without that part."""
        start = time.monotonic()
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
        source = command[command.index("-c") + 1] if "-c" in command else ""
        if process.returncode and source in OPTIONAL:
            process = subprocess.run([*command, OPTIONAL[source]], cwd=ROOT, capture_output=True, text=True, errors="replace")
        error = f"{' '.join(command)}\n{process.stderr[-4000:]}" if process.returncode else ""
        return time.monotonic() - start, error

    def run(self):
        """Compiles everything in parallel, the slow kernels first, then links what has all its objects. Gives the seconds it took,
        those of each source, and what went wrong with which program."""
        start, broken, seconds = time.monotonic(), {}, {}
        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            compiles = sorted(self.compiles, key=self.slow_first)
            for command, (took, error) in zip(compiles, pool.map(self.execute, compiles)):
                seconds[command[command.index("-c") + 1]] = took
                if error:
                    broken[command[-1]] = error
            for program in self.programs():
                program.unlink(missing_ok=True)  # one of an earlier run would stand for this one
            failed = {link[-1]: "\n".join(broken[o] for o in link if o in broken) for link in self.links}
            whole = [link for link in self.links if not failed[link[-1]]]
            for link, (_, error) in zip(whole, pool.map(self.execute, whole)):
                failed[link[-1]] = error
        return time.monotonic() - start, seconds, {pathlib.Path(p).name: error for p, error in failed.items() if error}
