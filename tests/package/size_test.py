#!/usr/bin/env python3
"""What the library costs its user: compile time and shared objects of a small program, size on disk, time to start, weight of the
public headers. Usage: size_test.py SOURCE_ROOT SHARED_LIBRARY STATIC_LIBRARY COMPUTE_CAPABILITIES -- COMPILER..., with the number of
capabilities that kernels are compiled for; 0: no CUDA."""
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT, SHARED, STATIC = sys.argv[1:4]
CAPABILITIES = int(sys.argv[4])
COMPILER = sys.argv[6:]
TRAINING = """#include <mezzo/mezzo.h>
int main() {
    mezzo::nn::Linear layer(4, 2);
    mezzo::optim::SGD optimizer(layer.parameters(), {.lr = 0.1});
    mezzo::mse_loss(layer(mezzo::ones({3, 4})), mezzo::zeros({3, 2})).backward();
    optimizer.step();
    return layer.weight.grad().defined() ? 0 : 1;
}
"""
# What the time to compile is measured by: a program of the same size over the standard library alone.
STANDARD = """#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>
int main() {
    std::map<std::string, int> counts;
    counts["a"] = 1;
    std::ostringstream out;
    out << counts.size();
    return out.str() == "1" ? 0 : 1;
}
"""
START = """#include <mezzo/mezzo.h>
int main() { return mezzo::zeros({2, 3}).numel() == 6 ? 0 : 1; }
"""
failures = 0


def limit(what, value, bound, unit):
    global failures
    good = value < bound
    failures += not good
    print(f"{'ok    ' if good else 'FAILED'} {what}: {value:.3g} {unit}, limit {bound} {unit}")


def cpu_seconds(command):
    """User and system time of a command that must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env=dict(os.environ, CCACHE_DISABLE="1"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compile_seconds(path, source):
    with open(path + ".cpp", "w", encoding="utf-8") as file:
        file.write(source)
    return cpu_seconds(COMPILER + ["-std=c++20", "-O2", "-I" + os.path.join(ROOT, "include"), "-c", path + ".cpp", "-o", path + ".o"])


def compile_ratio(folder):
    """How much longer the program takes than one without mezzo. A loaded machine, or a slow one, takes longer for both."""
    path = os.path.join(folder, "timed")
    pairs = [(compile_seconds(path, TRAINING), compile_seconds(path, STANDARD)) for _ in range(4)]
    mine, other = map(min, zip(*pairs))
    print(f"compiled in {mine:.2f} s, without mezzo {other:.2f} s")
    return mine / other


def build(folder, name, source):
    path = os.path.join(folder, name)
    compile_seconds(path, source)
    subprocess.run(COMPILER + [path + ".o", "-o", path, SHARED, "-Wl,-rpath," + os.path.dirname(os.path.abspath(SHARED))],
                   check=True)
    return path


def stripped_megabytes(folder):
    copy = shutil.copy(SHARED, os.path.join(folder, "stripped.so"))
    subprocess.run(["strip", copy], check=True)
    return os.path.getsize(copy) / 1e6


def start_milliseconds(program):
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        subprocess.run([program], check=True)
        times.append(1e3 * (time.perf_counter() - begin))
    return min(times)


def header_lines(header):
    text = subprocess.run(COMPILER + ["-std=c++20", "-E", "-P", "-I" + os.path.join(ROOT, "include"), "-x", "c++", "-"],
                          input=f'#include "mezzo/{header}"\n', text=True, capture_output=True, check=True).stdout
    return text.count("\n")


def main():
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder, "training", TRAINING)
        subprocess.run([program], check=True)
        objects = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.strip().count("\n") + 1
        limit("compiling a program with one Linear and a training step", compile_ratio(folder), 2, "times one without mezzo")
        limit("shared objects of that program", objects, 15, "files")
        most = 14.5 + 3.5 * CAPABILITIES if CAPABILITIES else 5.1
        limit(f"library, {CAPABILITIES} compute capabilities, stripped", stripped_megabytes(folder), most, "MB")
        start = build(folder, "start", START)
        limit("start, make a tensor, exit", start_milliseconds(start), 20, "ms")
        for header in ("tensor.h", "ops.h"):
            limit(f"{header}, preprocessed", header_lines(header), 30000, "lines")
    sys.exit(1 if failures else 0)


main()
