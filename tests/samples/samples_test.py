#!/usr/bin/env python3
"""Runs the samples as a user does: short training, and every kind of bad input. Usage: samples_test.py MLP FASHION_MNIST"""
import gzip
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

MLP, FASHION = sys.argv[1:3]
DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
failures = []


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)


def expect(condition, what, result=None):
    print(("ok    " if condition else "FAILED") + " " + what)
    if not condition:
        failures.append(what)
        if result:
            print(result.stdout + result.stderr)


def rows(text):
    """Rows of mlp's table: precision and numbers (final loss, milliseconds per step, peak MB, skipped steps)."""
    return [(m.group(1), [float(n) for n in m.group(2).split()]) for m in re.finditer(r"^(b?float\d+)((?: +[\d.naif+-]+){4})$", text, re.M)]


def test_mlp():
    same = [run(MLP, "30", "cpu") for _ in range(2)]
    tables = [rows(result.stdout) for result in same]
    names = ["float32", "bfloat16", "float16"]
    expect(all(r.returncode == 0 and not r.stderr for r in same) and [name for name, _ in tables[0]] == names, "mlp: a row for each precision", same[0])
    losses = [[numbers[0] for _, numbers in table] for table in tables]
    expect(all(abs(loss / losses[0][0] - 1) < 0.02 for loss in losses[0]), f"mlp: losses agree {losses[0]}", same[0])
    expect(len(set(losses[0])) == 3, f"mlp: each precision is another one {losses[0]}", same[0])
    expect(all(loss < 0.2 for loss in losses[0]), f"mlp: it learns {losses[0]}", same[0])
    expect(losses[0] == losses[1], f"mlp: two runs give the same losses {losses}")
    expect(all(n[1] > 0 and n[2] > 0 and n[3] == 0 for _, n in tables[0]), "mlp: figures", same[0])


def test_fashion_mnist():
    final = {}
    for precision in ("fp32", "bf16", "fp16", "fp8"):
        result = run(FASHION, "--precision", precision, "--device", "cpu")
        match = re.search(r"^\s+8\s+\S+\s+(\S+)%\s+(\S+)%", result.stdout, re.M)
        expect(result.returncode == 0 and match and not result.stderr, f"fashion_mnist {precision} runs, stderr empty", result)
        final[precision] = float(match.group(2)) if match else 0
    expect(min(final.values()) >= 88.5, f"fashion_mnist: eight epochs give at least 88.5 %: {final}")
    # Of 10,000 images: two runs of one precision with other rounding differ by 0.3 points.
    expect(max(final.values()) - min(final.values()) <= 1, f"fashion_mnist: precisions within 1 point: {final}")
    result = run(FASHION, "--epochs", "1", "--batch", "1000", "--progress", "--device", "cpu")
    expect("batch 60 of 60" in result.stderr, "fashion_mnist: progress line on request", result)


def refuse(program, arguments, code, *words):
    """The program must stop with this code, one line on standard error that has the words, and no result on standard output."""
    result = run(program, *arguments)
    name = os.path.basename(program) + " " + " ".join(arguments)
    lines = [line for line in result.stderr.splitlines() if line and not line.startswith("Run with --help")]
    expect(result.returncode == code, f"{name}: exit code {result.returncode}, expected {code}", result)
    expect(len(lines) == 1 and all(word in lines[0] for word in words), f"{name}: message {lines}", result)
    expect("loss" not in result.stdout, f"{name}: no result", result)


def test_bad_arguments():
    for arguments in ("0",), ("5e2",), ("many",), ("1", "cpu", "more"), ("--help",):
        refuse(MLP, arguments, 2, "usage: mlp")
    refuse(MLP, ["1", "tpu"], 1, "tpu")
    refuse(MLP, ["1", "cuda:77"], 1, "cuda:77")
    refuse(FASHION, ["--no-such-option"], 2, "--no-such-option")
    refuse(FASHION, ["--precision", "fp64"], 2, "fp64")
    refuse(FASHION, ["--lr", "-1"], 2, "--lr")
    refuse(FASHION, ["--trace", "/no/such/folder"], 2, "/no/such/folder")
    expect(run(FASHION, "--help").returncode == 0, "fashion_mnist --help")


def test_bad_data():
    files = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
    quick = ["--epochs", "1", "--device", "cpu", "--data"]
    refuse(FASHION, quick + ["/no/such/folder"], 1, "/no/such/folder", files[0], "dataset-fashion-mnist")
    with tempfile.TemporaryDirectory() as folder:
        copies = pathlib.Path(folder)
        for name in files:
            shutil.copy(DATA / (name + ".gz"), copies)
        images = copies / (files[0] + ".gz")
        packed = images.read_bytes()
        damages = {
            "truncated": packed[: len(packed) // 2],
            "empty": b"",
            "short": gzip.compress(gzip.decompress(packed)[:5000], 1),
            "magic": gzip.compress(struct.pack(">IIII", 0x12345678, 1, 28, 28) + bytes(784), 1),
            "none": gzip.compress(struct.pack(">IIII", 0x803, 0, 28, 28)),
            "count": gzip.compress(struct.pack(">IIII", 0x803, 7, 28, 28) + bytes(7 * 784), 1),
        }
        labels = copies / (files[1] + ".gz")
        of_all = labels.read_bytes()
        for damage, content in damages.items():
            images.write_bytes(content)
            labels.write_bytes(gzip.compress(struct.pack(">II", 0x801, 0)) if damage == "none" else of_all)
            print(damage)
            refuse(FASHION, quick + [folder], 1, files[0] if damage != "count" else "7")


def main():
    with tempfile.TemporaryDirectory() as cache:
        # Which kernels multiply is timed anew in every process that finds no cache; other kernels, other last bits.
        os.environ["MEZZO_CACHE"] = cache
        run_all()


def run_all():
    test_mlp()
    test_bad_arguments()
    if not DATA.is_dir():
        print(f"{DATA} is not there: Fashion-MNIST cases skipped")
        sys.exit(1 if failures else 77)
    test_fashion_mnist()
    test_bad_data()
    sys.exit(1 if failures else 0)


main()
