#!/usr/bin/env python3
"""The sample train_csv: it learns in every precision, a training that is stopped goes on to the same end, and what does not fit is refused.

    train_csv_sample_test.py PROGRAM
"""
import math
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM = sys.argv[1]
LIMIT = 200


def run(*arguments, expect=0):
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT)
    assert result.returncode == expect, f"{arguments}: exit code {result.returncode}: {result.stdout}{result.stderr}"
    return result


def spirals(path, count=600):
    """Two classes that no straight line parts, a column of texts, and one that is of no use."""
    numbers = random.Random(4)
    rows = ["x,y,kind,note"]
    for i in range(count):
        t = numbers.uniform(0.5, 4)
        side = i % 2
        x, y = t * math.cos(t + math.pi * side), t * math.sin(t + math.pi * side)
        rows.append(f"{x * 1000 + 5000:.3f},{y:.5f},{'left' if side else 'right'},\"a, b\"")
    path.write_text("\n".join(rows) + "\n")


def learns(data):
    for precision in ("fp32", "bf16", "fp16", "fp8"):
        result = run("--data", data, "--target", "kind", "--precision", precision, "--epochs", 40)
        share = float(re.search(r"test accuracy ([\d.]+) %", result.stdout)[1])
        assert share >= 97, f"{precision}: {share} %"
        assert "2 features, 2 classes, 450 samples, 150 for tests" in result.stdout, result.stdout
        assert "\r" not in result.stderr and "\x1b" not in result.stderr and "600/600" in result.stderr, result.stderr


def rows_of(log):
    return [line.split(",")[0:1] + line.split(",")[2:] for line in log.read_text().split("\n")[1:] if line]  # without the time


def checkpoints(folder):
    return {path.name for path in folder.glob("*.ckpt")}


def goes_on(data, folder):
    common = ["--data", data, "--target", "kind", "--epochs", "30", "--threads", "1"]
    whole = run(*common, "--checkpoints", folder / "whole", "--log", folder / "whole.csv")
    command = [PROGRAM, *map(str, common), "--checkpoints", str(folder / "part"), "--resume"]
    for number in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            process.stdout.readline()  # the training begins
            before = checkpoints(folder / "part")
            deadline = time.monotonic() + LIMIT
            while checkpoints(folder / "part") == before and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.001)
            process.send_signal(number)
            out = process.communicate(timeout=LIMIT)[0]
        finally:
            process.kill()
        # where the machine is slow to deliver the signal, the training may have ended before
        assert process.returncode in (128 + number, 0), f"exit code {process.returncode}: {out}"
        assert process.returncode == 0 or "--resume goes on from" in out, out
    end = run(*common, "--checkpoints", folder / "part", "--resume")
    assert end.stdout.split("\n")[1] == whole.stdout.split("\n")[1], end.stdout + whole.stdout
    last = f"step-{450:010}.ckpt"
    weights = [(folder / name / last).read_bytes() for name in ("whole", "part")]
    assert weights[0] == weights[1], "the checkpoints at the end differ"
    error = run(*common, "--checkpoints", folder / "part", expect=1).stderr
    assert "has checkpoints" in error, error
    error = run(*common, "--checkpoints", folder / "part", "--resume", "--lr", "0.5", expect=1).stderr
    assert "--lr: 0.01, now 0.5" in error, error


def refuses(data, folder):
    assert "no column is named" in run("--data", data, "--target", "none", expect=1).stderr
    assert "real numbers" in run("--data", data, "--target", "x", expect=1).stderr
    (folder / "texts.csv").write_text("a,b\nx,y\nx,y\n")
    assert "no column of numbers" in run("--data", folder / "texts.csv", "--target", "b", expect=1).stderr
    (folder / "short.csv").write_text("a,b\n1,y\n2\n")
    assert "line 3: 1 cell; the header has 2" in run("--data", folder / "short.csv", "--target", "b", expect=1).stderr


def closed_streams(data, folder):
    """What is printed to a closed stream must not be in the log, which would have its number."""
    for stream in (0, 1, 2):
        log = folder / f"closed{stream}.csv"
        command = [PROGRAM, "--data", data, "--target", "kind", "--epochs", "2", "--threads", "1", "--log", log, "--checkpoints", folder / f"closed{stream}"]
        result = subprocess.run(["sh", "-c", f'"$@" {stream}>&-', "sh", *map(str, command)], capture_output=True, text=True, timeout=LIMIT)
        assert result.returncode == (stream == 1), f"{stream}: exit code {result.returncode}: {result.stdout}{result.stderr}"
        lines = log.read_text().split("\n")
        assert lines[0] == "step,time,loss,lr,accuracy" and lines[-1] == "", lines
        assert [line.split(",")[0] for line in lines[1:-1]] == ["10", "15", "15", "20", "30", "30"], lines


with tempfile.TemporaryDirectory() as name:
    place = pathlib.Path(name)
    spirals(place / "spirals.csv")
    learns(place / "spirals.csv")
    goes_on(place / "spirals.csv", place)
    refuses(place / "spirals.csv", place)
    closed_streams(place / "spirals.csv", place)
print("train_csv: all is well")
