#!/usr/bin/env python3
"""Compares README.md's program in float32 with the same loop in LibTorch: seconds and memory of the compiler, size of
the libraries, memory of the run.

    tools/compare_libtorch.py build FOLDER    # FOLDER: include and lib of LibTorch, as in PyPI's torch"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIBTORCH = """#include <torch/torch.h>
#include <iostream>

int main() {
    const torch::Tensor x = torch::randn({64, 32}), y = x.sin();
    torch::nn::Sequential net(torch::nn::Linear(32, 128), torch::nn::ReLU(), torch::nn::Linear(128, 32));
    torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
    torch::Tensor loss;
    for (int step = 0; step < 200; ++step) {
        loss = torch::mse_loss(net->forward(x), y);
        optimizer.zero_grad();
        loss.backward();
        optimizer.step();
    }
    std::cout << "loss " << loss.item<double>() << '\\n';
}
"""


def run(*command):
    """CPU seconds, and peak memory in MB, of a command."""
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(map(str, command))}: {errors}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def measure(name, source, includes, folder, libraries, scratch):
    program, compiled, file = scratch / name, scratch / f"{name}.o", scratch / f"{name}.cpp"
    file.write_text(source, encoding="utf-8")
    seconds, memory = run("c++", "-std=c++20", "-c", file, *(f"-I{path}" for path in includes), "-o", compiled)
    run("c++", compiled, "-o", program, f"-L{folder}", f"-Wl,-rpath,{folder}", "-Wl,--unresolved-symbols=ignore-in-shared-libs",
        *(f"-l{library}" for library in libraries))
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    size = sum(os.path.getsize(path) for path in set(re.findall(rf"=> ({re.escape(str(folder))}\S+)", linked)))
    _, peak = run(program)
    print(f"| {name} | {seconds:.1f} | {memory:.0f} | {size / 1e6:.1f} | {peak:.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("torch", type=pathlib.Path)
    given = parser.parse_args()
    program = re.search(r"```cpp\n(#include <mezzo.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)[1]
    program = program.replace("{mz::float32, mz::bfloat16, mz::float16}", "{mz::float32}")
    print("| | compiler, CPU s | compiler, MB | libraries, MB | run, MB |\n| --- | --- | --- | --- | --- |")
    torch = given.torch.resolve()
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        measure("mezzo", program, [ROOT / "include"], given.build.resolve() / "src", ["mezzo"], scratch)
        measure("LibTorch", LIBTORCH, [torch / "include", torch / "include/torch/csrc/api/include"], torch / "lib",
                ["torch_cpu", "c10"], scratch)


main()
