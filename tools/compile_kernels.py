#!/usr/bin/env python3
"""Runs nvcc, and keeps what ptxas says of the kernels' registers, stack and spills beside the object, for
tests/cuda/kernel_resources_test.py. Usage: compile_kernels.py [CCACHE] NVCC ARGUMENTS..., among them -o OBJECT; writes OBJECT.resources."""
import re
import subprocess
import sys

OF_RESOURCES = re.compile(r"ptxas info\s*:|\s+\d+ bytes stack frame,")


def main():
    command = sys.argv[1:]
    run = subprocess.run(command + ["-Xptxas=-v"], stderr=subprocess.PIPE, text=True, check=False)
    lines = run.stderr.splitlines(keepends=True)
    sys.stderr.write("".join(line for line in lines if not OF_RESOURCES.match(line)))
    if run.returncode == 0:
        with open(command[command.index("-o") + 1] + ".resources", "w", encoding="utf-8") as file:
            file.write("".join(line for line in lines if OF_RESOURCES.match(line)))
    sys.exit(run.returncode)


main()
