#!/usr/bin/env python3
"""The cases of tools/op_cases.txt have an op that bench_ops and tools/torch_ops.py know, and bench_ops answers each line with one.

    op_cases_test.py ROOT BENCH_OPS"""
import pathlib
import re
import subprocess
import sys

ROOT, PROGRAM = pathlib.Path(sys.argv[1]), sys.argv[2]
CASES = [line.split() for line in (ROOT / "tools/op_cases.txt").read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")]


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def test_cases():
    known = set(subprocess.run([PROGRAM, "--list"], capture_output=True, text=True, check=True).stdout.split())
    of_peer = set(re.findall(r'^    "([\w.]+)": |, "([\w.]+)": ', (ROOT / "tools/torch_ops.py").read_text(encoding="utf-8"), re.M))
    of_peer = {one or other for one, other in of_peer}
    check(len(CASES) >= 398 and len(known) > 100, f"{len(CASES)} cases, {len(known)} ops")
    for case in CASES:
        check(len(case) == 4 and re.fullmatch(r"\d+(,\d+)*", case[1]) and case[2] in ("f32", "bf16", "f16") and case[3] in ("f", "fb"), case)
    used = {case[0] for case in CASES}
    check(used == known, f"ops without a case, or cases without an op: {used ^ known}")
    check(used <= of_peer, f"not in torch_ops.py: {used - of_peer}")


def test_answers():
    lines = ["relu 8,8 f32 fb 1", "softmax 8,4 bf16 fb 1", "conv2d 1,2,4,4,3,3,1,1,1 f32 fb 1", "adamw 3,5 f32 f 1", "lstm 3,4,2,2 f32 fb 1",
             "topk 2,9,3 f32 f 1", "no_such_op 1 f32 f 1", "conv2d 1,2 f32 f 1", "relu", "relu 8 f64 f 1", "relu 8 f32 b 1",
             "relu 8,x f32 f 1", "relu -8 f32 f 1", "relu 8 f32 f 1"]
    result = subprocess.run([PROGRAM], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=100)
    answers = result.stdout.splitlines()
    check(result.returncode == 0 and len(answers) == len(lines), f"{result}")
    for line, answer in zip(lines, answers):
        if line in lines[6:-1]:
            check(answer.startswith("error: "), f"{line}: {answer}")
        else:
            median, fastest = map(float, answer.split())
            check(0 < fastest <= median, f"{line}: {answer}")


test_cases()
test_answers()
