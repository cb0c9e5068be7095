#!/usr/bin/env python3
"""Compares a ResNet in mezzo and in PyTorch from the same random weights: errors of hidden states and gradients of both against
float64, and losses, running statistics and skipped steps of training on the same batches. Prints Markdown tables.

    tools/resnet_parity.py build/tools/resnet_parity --torch python3 --depth 50 --stem cifar --batch 16         values of one batch
    tools/resnet_parity.py build/tools/resnet_parity --torch python3 --depth 20 --steps 100 --values no --data data_batch_1.bin
Training amplifies rounding: a ReLU whose input is nearly 0 turns the other way, and the next batch norms carry that on. So losses in
float32, and running statistics, may differ as much as those of PyTorch in its two memory layouts, where that is more than the tolerance.
Exits with 1 when hidden states or gradients are further from float64 than PyTorch's by a factor, or losses, statistics or skipped
steps differ by more than the tolerances."""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

from parity import error, output, table
from ranges import COUNT, RATE, THREADS, number

HERE = pathlib.Path(__file__).resolve().parent
# How many times further from float64 than PyTorch.
FACTOR = 1.5
# Largest relative difference of a loss among the first 100 in float32, and of the mean of losses 80 to 100; of running statistics.
LOSS, MEAN, RUNNING = 1e-5, 0.005, {"fp64": 1e-9, "fp32": 1e-5, "bf16": 5e-2, "fp16": 1e-2}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the built resnet_parity")
    parser.add_argument("--torch", action="append", default=[], metavar="PYTHON", help="an interpreter that has torch; repeatable")
    parser.add_argument("--precisions", default="fp32,bf16,fp16", help="also fp64: training without the rounding that it amplifies")
    parser.add_argument("--threads", type=THREADS, default=2)
    parser.add_argument("--seeds", default="1", help="a run for each; also prints the mean of their signed differences")
    parser.add_argument("--lr", type=RATE)
    parser.add_argument("--scale", type=number(float, 1, 1e30))
    parser.add_argument("--stem", choices=["cifar", "imagenet"])
    parser.add_argument("--data", type=pathlib.Path, help="a binary file of CIFAR-10; default: noise")
    parser.add_argument("--values", choices=["yes", "no"], default="yes")
    parser.add_argument("--layout", choices=["channels_last", "nchw"], default="channels_last", help="of PyTorch's images")
    parser.add_argument("--control", choices=["yes", "no"], default="yes",
                        help="also train PyTorch in its other layout, except in fp16, where a CPU takes minutes: how far it is from itself")
    for size in ("depth", "batch", "steps", "size"):
        parser.add_argument("--" + size, type=COUNT)
    return parser.parse_args()


def compare_values(precision, result, failures):
    """A row of errors, mezzo's and the peer's in turn."""
    own, other = result["mezzo"], result.get("torch")
    last = max(name for name in own if name.startswith("stage"))
    names = ("stage1", last, "logits", "loss", "worst_gradient", "gradients")
    for name in (last, "logits", "gradients"):
        if other and own[name] > FACTOR * other[name]:
            failures.append(f"{precision}: {name} {own[name]:.2e} from float64, {result['framework']} {other[name]:.2e}")
    return [precision, result["framework"]] + [f"{error(own, name)} / {error(other, name)}" for name in names]


def largest_difference(losses, others):
    return max(abs(a - b) / abs(b) for a, b in zip(losses[:100], others[:100]))


def late_mean(losses):
    return statistics.fmean(losses[79:100])


def percent(share):
    return "-" if share is None else f"{share:.3%}"


def compare_training(precision, seed, run, control, failures):
    """control: the same from the peer in its other layout, or None."""
    own, other = run["mezzo_losses"], run["losses"]
    first, itself = largest_difference(own, other), control and largest_difference(control["losses"], other)
    late = abs(late_mean(own) / late_mean(other) - 1) if len(own) >= 100 else None
    late_itself = abs(late_mean(control["losses"]) / late_mean(other) - 1) if control and late is not None else None
    if precision in ("fp64", "fp32") and first > max(LOSS, FACTOR * (itself or 0)):
        failures.append(f"{precision}: losses differ by {first:.2e}, PyTorch's in its two layouts by {itself or 0:.2e}")
    if late is not None and late > max(MEAN, late_itself or 0):
        failures.append(f"{precision}: the means of losses 80 to 100 differ by {late:.2%}, PyTorch's in its two layouts by {late_itself or 0:.2%}")
    running_itself = (control or {}).get("running_itself") or 0
    if run.get("running", 0) > max(RUNNING[precision], FACTOR * running_itself):
        failures.append(f"{precision}: running statistics differ by {run['running']:.2e}, PyTorch's in its two layouts by {running_itself:.2e}")
    if run["skipped"] != run["mezzo_skipped"]:
        failures.append(f"{precision}: skipped steps {run['mezzo_skipped']}, {run['framework']} {run['skipped']}")
    return [precision, run["framework"], seed, str(len(own)), f"{own[0]:.5f}", f"{own[-1]:.5f} / {other[-1]:.5f}", f"{first:.1e}",
            f"{itself:.1e}" if itself is not None else "-", percent(late), percent(late_itself), error(run, "running"), f"{len(run['mezzo_skipped'])} / {len(run['skipped'])}"]


class Comparison:
    """Runs of mezzo and its peers, and what came of them: rows of two tables, failures, signed differences of late means."""

    def __init__(self, args):
        self.args, self.values, self.curves, self.failures, self.means = args, [], [], [], {}
        self.options = [part for name in ("depth", "batch", "steps", "size", "lr", "scale", "stem", "data") if getattr(args, name)
                        for part in ("--" + name, getattr(args, name))] + ["--values", "true" if args.values == "yes" else "false"]

    def run(self, precision, seed):
        with tempfile.TemporaryDirectory() as folder:
            common = ["--precision", precision, "--threads", self.args.threads]
            output([self.args.program, folder, "--seed", seed] + common + self.options)
            for python in self.args.torch or ["python3"]:
                peer = [python, HERE / "torch_resnet.py"]
                if self.args.values == "yes":
                    result = json.loads(output(peer + ["values", folder, "--layout", self.args.layout] + common))
                    self.values.append(compare_values(precision, result, self.failures))
                if (self.args.steps or 1) > 1:
                    self.train(precision, seed, peer + ["train", folder] + common)

    def train(self, precision, seed, peer):
        other = "nchw" if self.args.layout == "channels_last" else "channels_last"
        run = json.loads(output(peer + ["--layout", self.args.layout]))
        control = json.loads(output(peer + ["--layout", other])) if precision in ("fp32", "bf16") and self.args.control == "yes" else None
        self.curves.append(compare_training(precision, seed, run, control, self.failures))
        if len(run["losses"]) >= 100:
            self.means.setdefault((precision, run["framework"]), []).append(late_mean(run["mezzo_losses"]) / late_mean(run["losses"]) - 1)

    def show(self):
        pairs = ["first stage", "last stage", "logits", "loss", "worst gradient", "all gradients"]
        if self.values:
            table(["precision", "peer"] + [f"{what}, mezzo / peer" for what in pairs], self.values)
        if self.curves:
            table(["precision", "peer", "seed", "steps", "first loss", "last, mezzo / peer", "largest difference of the first 100",
                   "of the peer in its other layout", "of the means of 80 to 100", "of the peer in its other layout",
                   "of running statistics", "skipped, mezzo / peer"], self.curves)
        for (precision, framework), differences in self.means.items():
            if len(differences) > 1:
                error = statistics.stdev(differences) / len(differences) ** 0.5
                print(f"{precision}, {framework}: over {len(differences)} seeds the means of losses 80 to 100 differ by "
                      f"{statistics.fmean(differences):+.2%}, standard error {error:.2%}")
        print("\n".join(self.failures), file=sys.stderr)


def main():
    comparison = Comparison(arguments())
    for precision in comparison.args.precisions.split(","):
        for seed in comparison.args.seeds.split(","):
            comparison.run(precision, seed)
    comparison.show()
    sys.exit(1 if comparison.failures else 0)


main()
