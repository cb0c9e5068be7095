#!/usr/bin/env python3
"""The CUDA backend with CUDA 12.0, of which NVIDIA's Python packages have the headers and ptxas, but no nvcc: its C++ sources compile with those
headers, and that ptxas takes the PTX that this machine's nvcc makes of the kernels, with the version of PTX that it knows.

    cuda12_test.py PACKAGES

PACKAGES is the folder `nvidia` of an environment with nvidia-{cuda-runtime,cuda-nvcc,cuda-cupti,cublas}-cu12 12.0.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLKIT = pathlib.Path("/usr/local/cuda")
INCLUDES = ["-I.", "-Isrc", "-Iinclude"]
DEFINITIONS = ["-DMEZZO_HAVE_CUDA", "-DNDEBUG", "-DMEZZO_SMALL_PARAMETERS", "-DMEZZO_OLDEST_GPU=75", "-DMEZZO_NEWEST_PTX=80"]
# By the compute capability of the PTX: the GPUs that it is compiled for. Without optimization: what is asked is whether it is accepted.
GPUS = {75: [75], 80: [80, 86, 89, 90]}
PTX_OF_12_0 = "8.0"


def run(*command):
    """What went wrong, or nothing."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"


def compile_source(source, packages):
    folders = [word for name in ("cuda_runtime", "cuda_cupti", "cublas") for word in ("-isystem", packages / name / "include")]
    return run("g++", "-std=c++20", "-fsyntax-only", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", *DEFINITIONS, *INCLUDES, *folders, source)


def compile_kernels(source, capability, packages):
    with tempfile.TemporaryDirectory() as folder:
        ptx = pathlib.Path(folder) / "kernels.ptx"
        if error := run(TOOLKIT / "bin/nvcc", "-std=c++20", "-O3", "-ptx", f"-arch=compute_{capability}", *DEFINITIONS, *INCLUDES, source, "-o", ptx):
            return error
        ptx.write_text(re.sub(r"^\.version .*", f".version {PTX_OF_12_0}", ptx.read_text(), flags=re.M))
        return "".join(run(packages / "cuda_nvcc/bin/ptxas", "-O0", f"-arch=sm_{gpu}", ptx, "-o", os.devnull) for gpu in GPUS[capability])


def main():
    packages = pathlib.Path(sys.argv[1]).resolve()
    (packages / "cuda_nvcc/bin/ptxas").chmod(0o755)
    sources = sorted(path.relative_to(ROOT) for path in (ROOT / "cuda").rglob("*.cpp"))
    kernels = sorted(path.relative_to(ROOT) for path in (ROOT / "cuda").rglob("*.cu"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(compile_source, source, packages) for source in sources]
        jobs += [pool.submit(compile_kernels, source, capability, packages) for source in kernels for capability in GPUS]
        errors = [error for job in jobs if (error := job.result())]
    print("\n".join(errors) or f"CUDA 12.0 takes {len(sources)} sources, and the PTX of {len(kernels)} for {sum(map(len, GPUS.values()))} GPUs")
    sys.exit(bool(errors))


main()
