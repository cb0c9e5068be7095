#!/usr/bin/env python3
"""Runs tools/resnet_presets.py with a made-up program in the place of samples/resnet. Usage: resnet_presets_test.py path/to/tool"""
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from checks import check, finish  # noqa: E402

TOOL = sys.argv[1]
# Notes its runs in the file runs beside its log, and writes as many rows as the file rows there says.
PROGRAM = """#!/bin/sh
while [ "$1" != --log ]; do shift; done
folder=$(dirname "$2")
echo "$2" >> "$folder/runs"
[ -e "$folder/fail" ] && exit 3
echo step,time,loss,lr,test_accuracy,train_accuracy,train_loss,images_per_s,seconds,epoch,peak_bytes > "$2"
for epoch in 1 2; do
    echo "$epoch,1,1.7,0.1,,,,,,," >> "$2"
    [ -e "$folder/short" ] || echo "$epoch,1,,,0.25,0.5,1.5,100,1,$epoch,2000000" >> "$2"
done
"""


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        program, out = folder / "program", folder / "out"
        program.write_text(PROGRAM)
        program.chmod(0o755)

        def run(*arguments, code=0, start=program):
            command = [sys.executable, TOOL, start, "--data", folder, "--out", out, "--runs", "fp32,O3 + BN", "--epochs", 2, *arguments]
            result = subprocess.run([str(part) for part in command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
            check(result.returncode == code and "Traceback" not in result.stderr, f"{arguments}: exit code {result.returncode}: {result.stderr}")
            return result

        def count():
            return len((out / "runs").read_text().splitlines())
        table = run().stdout
        check("| fp32 | 25.0 % | 50.0 % | 1.500 | 100 | 2 | - |" in table and "| O3 + BN |" in table and (out / "runs.svg").exists(), table)
        run()
        check(count() == 2, f"complete runs are not repeated: {count()} runs")
        for other in (["--lr", 0.2], ["--", "--no-augment"]):
            message = run(*other, code=1).stderr
            check("fp32.csv is of other settings" in message and str(other[-1]) in message and count() == 2, message)
        (out / "fp32.command").unlink()
        check("then: not stored" in run(code=1).stderr, "a log without a command")
        (out / "fp32.csv").unlink()
        (out / "short").touch()
        check("fp32.csv: has no row of an epoch" in run(code=1).stderr and count() == 3, "a log without epochs")
        (out / "fail").touch()
        check("the run fp32 has failed with exit code 3" in run(code=1).stderr, "a program that fails")
        check("nowhere: cannot be started: No such file" in run(code=1, start=folder / "nowhere").stderr, "no program")
    finish()


main()
