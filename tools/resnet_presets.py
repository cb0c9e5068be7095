#!/usr/bin/env python3
"""Trains a ResNet with samples/resnet in several precisions and presets, and in PyTorch if asked, one run after the other with the
same settings. Prints a Markdown table and draws the logs with tools/chart.py.

    tools/resnet_presets.py build/samples/resnet --data cifar10 --out runs --epochs 30
    tools/resnet_presets.py build/samples/resnet --data cifar10 --out runs --runs fp32,fp16 --torch venv/bin/python

What follows -- goes to samples/resnet alone; PyTorch's runs know only the options that are listed here. A run whose log is complete is
not repeated, and one that was interrupted goes on; one of PyTorch begins anew. Beside each log lies its command: other settings need
another --out."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import chart
from ranges import COUNT, RATE, THREADS, number

HERE = pathlib.Path(__file__).resolve().parent
RUNS = {"fp32": ["--precision", "fp32"], "bf16": ["--precision", "bf16"], "fp16": ["--precision", "fp16"],
        "O0": ["--opt-level", "O0"], "O1": ["--opt-level", "O1"], "O2": ["--opt-level", "O2"], "O3": ["--opt-level", "O3"],
        "O3 + BN": ["--opt-level", "O3", "--keep-batchnorm", "yes"]}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the built samples/resnet")
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder of CIFAR-10 files")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for logs, checkpoints and the picture")
    parser.add_argument("--runs", default=",".join(RUNS), help="default: %(default)s")
    parser.add_argument("--torch", metavar="PYTHON", help="also train in PyTorch, in fp32, bf16 and what --torch-runs names")
    parser.add_argument("--torch-runs", default="fp32,bf16")
    parser.add_argument("--model", type=number(int, 8), default=20, choices=[8, 18, 20, 34, 50, 56, 101])
    parser.add_argument("--epochs", type=COUNT, default=30)
    parser.add_argument("--batch", type=COUNT, default=128)
    parser.add_argument("--lr", type=RATE, default=0.15)
    parser.add_argument("--momentum", type=number(float, 0, 1), default=0.9)
    parser.add_argument("--weight-decay", type=RATE, default=5e-4)
    parser.add_argument("--warmup", type=number(float, 0, 1), default=0.1)
    parser.add_argument("--seed", type=number(int, 0), default=1)
    parser.add_argument("--threads", type=THREADS, default=2)
    parser.add_argument("--title", default="")
    own, rest = (sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:]) if "--" in sys.argv else (sys.argv[1:], [])
    args = parser.parse_args(own)
    args.rest = rest
    unknown = [name for name in args.runs.split(",") if name not in RUNS]
    if unknown:
        parser.error(f"--runs: there is no {unknown[0]!r}; there are {', '.join(RUNS)}")
    return args


def read_log(log):
    """The rows of steps and of epochs; none where there is no log yet."""
    try:
        return chart.read_log(log.stem, log) if log.exists() else chart.Run(log.stem, [], [])
    except chart.BadLog:
        return chart.Run(log.stem, [], [])


def common(args):
    return [part for name in ("epochs", "batch", "lr", "momentum", "weight_decay", "warmup", "seed", "threads")
            for part in ("--" + name.replace("_", "-"), str(getattr(args, name)))] + ["--data", str(args.data)]


def file_of(args, name, end):
    return args.out / (name.replace(" ", "") + end)


def check_settings(args, name, settings):
    """A log and a checkpoint of other settings are no part of this comparison."""
    stored = file_of(args, name, ".command")
    before = stored.read_text(encoding="utf-8") if stored.exists() else None
    now = json.dumps(settings, ensure_ascii=False) + "\n"
    if before != now and file_of(args, name, ".csv").exists():
        sys.exit(f"resnet_presets: {file_of(args, name, '.csv')} is of other settings; choose another --out, or delete it and its checkpoints\n"
                 f"  then: {(before or 'not stored').strip()}\n  now:  {now.strip()}")
    stored.write_text(now, encoding="utf-8")


def train(args, name, program, settings, files=()):
    """The log of a run, made if it is not complete."""
    log = file_of(args, name, ".csv")
    check_settings(args, name, settings)
    if len(read_log(log).epochs) < args.epochs:
        print(f"{name} ...", file=sys.stderr, flush=True)
        command = [*program, *settings, *files, "--log", str(log)]
        try:
            code = subprocess.run(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL).returncode
        except OSError as error:
            sys.exit(f"resnet_presets: {command[0]}: cannot be started: {error.strerror}")
        if code != 0:
            sys.exit(f"resnet_presets: the run {name} has failed with exit code {code}: {' '.join(command)}")
    return name, log


def row(name, log):
    run = read_log(log)
    if not run.epochs:
        sys.exit(f"resnet_presets: {log}: has no row of an epoch, so the run {name} has no result")
    rate = statistics.median(epoch["images_per_s"] for epoch in run.epochs)
    last = run.epochs[-1]
    loss = last.get("train_loss") or last["loss"]
    skipped = max((step["skipped"] for step in run.steps if step.get("skipped") is not None), default=None)
    return [name, f"{100 * last['test_accuracy']:.1f} %", f"{100 * last['train_accuracy']:.1f} %", f"{loss:.3f}", f"{rate:.0f}",
            f"{last['peak_bytes'] / 1e6:.0f}", "-" if skipped is None else f"{skipped:.0f}"]


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    logs = []
    for name in args.runs.split(","):
        logs.append(train(args, name, [args.program], ["--model", f"resnet{args.model}", *RUNS[name], *common(args), *args.rest],
                          ["--checkpoints", str(file_of(args, name, ".checkpoints")), "--resume"]))
    for name in args.torch_runs.split(",") if args.torch else []:
        logs.append(train(args, f"PyTorch {name}", [args.torch, str(HERE / "torch_resnet.py"), "fit"],
                          ["--model", str(args.model), "--precision", name, *common(args)]))
    header = ["run", "test accuracy", "training accuracy", "loss", "images/s", "peak MB", "skipped steps"]
    for cells in [header, ["---"] * len(header)] + [row(name, log) for name, log in logs]:
        print("| " + " | ".join(cells) + " |")
    subprocess.run([sys.executable, HERE / "chart.py", "-o", args.out / "runs.svg", "--title", args.title] + [f"{n}={log}" for n, log in logs], check=True)


main()
