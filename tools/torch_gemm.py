#!/usr/bin/env python3
"""tools/time_gemm.cpp in PyTorch: the same lines in, the same lines out.

    torch_gemm.py THREADS"""
import os
import sys
import time

THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else 1
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(THREADS)

import torch  # noqa: E402

SETS = 4


def operands(m, n, k, op, dtype):
    a = torch.rand((k, m) if op[0] == "T" else (m, k)).mul_(2).sub_(1).to(dtype)
    b = torch.rand((n, k) if op[1] == "T" else (k, n)).mul_(2).sub_(1).to(dtype)
    return a.t() if op[0] == "T" else a, b.t() if op[1] == "T" else b, torch.zeros(m, n, dtype=dtype)


def main():
    torch.set_num_threads(THREADS)
    before, data = None, []
    for line in sys.stdin:
        m, n, k, op, name, precision, milliseconds = line.split()
        torch.set_float32_matmul_precision(precision)
        if (m, n, k, op, name) != before:
            before = (m, n, k, op, name)
            data = [operands(int(m), int(n), int(k), op, getattr(torch, name)) for _ in range(SETS)]
            for a, b, c in data:
                torch.mm(a, b, out=c)
        times, end = [], time.perf_counter() + float(milliseconds) / 1e3
        torch.mm(data[0][0], data[0][1], out=data[0][2])
        while time.perf_counter() < end or len(times) < 3:
            a, b, c = data[len(times) % SETS]
            start = time.perf_counter()
            torch.mm(a, b, out=c)
            times.append(time.perf_counter() - start)
        times.sort()
        print(f"{times[len(times) // 2]:.9f} {times[0]:.9f}", flush=True)


main()
