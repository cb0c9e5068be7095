#!/usr/bin/env python3
"""The pictures of docs/internals/benchmarks.md are those that tools/performance_chart.py draws of its tables; their
bars are as long as the numbers. And the groups of tools/profile_by_op.py.
Usage: performance_chart_test.py ROOT"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
TABLE = """## Results: two cores with AMX

| step | precision | threads | mezzo | PyTorch 2.15 |
| --- | --- | --- | --- | --- |
| `mlp1024` | bfloat16 | 1 | 10 (9) | 40.0 (30) |
| `mlp1024` | float32 | 2 | 20 | refused |

## Other

| step | precision | threads | mezzo | PyTorch 2.15 |
| --- | --- | --- | --- | --- |
| `mlp1024` | float16 | 1 | 1000 (9) | 40.0 (30) |
"""


def draw(tables, folder):
    (folder / "benchmarks.md").write_text(tables, encoding="utf-8")
    return subprocess.run([sys.executable, ROOT / "tools/performance_chart.py", folder / "benchmarks.md", "--out", folder],
                          capture_output=True, text=True)


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def check_groups():
    """tools/profile_by_op.py: matrix products on a processor with and without AMX."""
    sys.path.insert(0, str(ROOT / "tools"))
    import profile_by_op
    samples = [(8, "void mezzo::cpu::avx2::micro_kernel<float>(x)"), (2, "mezzo::cpu::softmax<0>")]
    counts, _ = profile_by_op.grouped(samples)
    check(counts == {"matrix products, attention's included": 8, "attention": 2}, f"without AMX: {counts}")
    counts, others = profile_by_op.grouped([(80, "Plane::multiply"), *samples, (1, "new_kernel")])
    check(counts == {"products on tiles": 80, "attention": 10, "the rest": 1} and others == [(1, "new_kernel")], f"with AMX: {counts}")


def main():
    check_groups()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        result = draw((ROOT / "docs/internals/benchmarks.md").read_text(encoding="utf-8"), folder)
        check(result.returncode == 0, result.stderr)
        drawn = sorted(folder.glob("*.svg"))
        check(len(drawn) == 3, f"{drawn}")
        for picture in drawn:
            check(picture.read_bytes() == (ROOT / "docs/internals" / picture.name).read_bytes(),
                  f"docs/internals/{picture.name} is not that of the tables; run tools/performance_chart.py")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        result = draw(TABLE, folder)
        check(result.returncode == 1 and "no table" in result.stderr, f"sections that are not there: {result}")
        text = (folder / "performance_amx.svg").read_text(encoding="utf-8")
        widths = [float(width) for width in re.findall(r'<rect x="[^"]*" y="[^"]*" width="([^"]*)"', text)]
        check(len(widths) == 3, f"a bar for each number: {widths}")
        check(abs(widths[1] / widths[0] - 4) < 0.02 and widths[2] == widths[1], f"bars as long as numbers, in each row's own scale: {widths}")
    print("3 pictures agree with the tables")


main()
