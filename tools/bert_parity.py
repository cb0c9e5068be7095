#!/usr/bin/env python3
"""Compares BERT in mezzo and in PyTorch from the same random weights: errors of hidden states and gradients of both against
float64, and losses of training on the same batches. Prints Markdown tables.

    tools/bert_parity.py build/tools/bert_parity --torch python3                                  bert-base, one batch
    tools/bert_parity.py build/tools/bert_parity --torch python3 --layers 4 --steps 50            and 50 steps of training
Exits with 1 when hidden states, gradients or losses differ by more than the tolerances."""
import argparse
import json
import pathlib
import sys
import tempfile

from parity import error, output, table
from ranges import COUNT, RATE, THREADS

HERE = pathlib.Path(__file__).resolve().parent
# Largest absolute error of hidden states, largest error of a gradient relative to its largest element, of the loss in training.
TOLERANCES = {"fp32": (2e-5, 1e-4, 1e-3), "bf16": (0.25, 0.25, 0.1), "fp16": (0.05, 0.05, 0.05)}
SIZES = ["layers", "hidden", "heads", "intermediate", "vocabulary", "batch", "length", "steps"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the built bert_parity")
    parser.add_argument("--torch", action="append", default=[], metavar="PYTHON", help="an interpreter that has torch; repeatable")
    parser.add_argument("--precisions", default="fp32,bf16,fp16")
    parser.add_argument("--threads", type=THREADS, default=2)
    parser.add_argument("--lr", type=RATE, default=1e-4)
    for size in SIZES:
        parser.add_argument("--" + size, type=COUNT)
    return parser.parse_args()


def main():
    args = arguments()
    options = [part for size in SIZES if getattr(args, size) for part in ("--" + size, getattr(args, size))]
    peers, rows, curves, failures = args.torch or ["python3"], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for precision in args.precisions.split(","):
            common = ["--precision", precision, "--threads", args.threads, "--lr", args.lr]
            output([args.program, folder] + common + options)
            hidden_limit, gradient_limit, loss_limit = TOLERANCES[precision]
            for python in peers:
                peer = [python, HERE / "torch_bert.py"]
                result = json.loads(output(peer + ["values", folder] + common))
                own, other = result["mezzo"], result.get("torch")
                rows.append([precision, result["framework"]] +
                            [error(errors, name) for name in ("last_hidden_state", "loss", "worst_gradient", "gradient_distance")
                             for errors in (own, other)] + [error(result.get("difference"), "last_hidden_state")])
                if own["last_hidden_state"] > hidden_limit or own["worst_gradient"] > gradient_limit:
                    failures.append(f"{precision}: hidden {own['last_hidden_state']:.2e}, gradient of {own['worst_name']} "
                                    f"{own['worst_gradient']:.2e}; tolerances {hidden_limit:g}, {gradient_limit:g}")
                if (args.steps or 1) > 1 and other:
                    run = json.loads(output(peer + ["train", folder] + common))
                    curves.append([precision, run["framework"], str(len(run["losses"]))] +
                                  [f"{x:.4f}" for x in (run["mezzo_losses"][0], run["mezzo_losses"][-1], run["losses"][-1])] +
                                  [f"{run['largest_difference']:.2e}"])
                    if run["largest_difference"] > loss_limit:
                        failures.append(f"{precision}: losses differ by {run['largest_difference']:.2e}; tolerance {loss_limit:g}")
    table(["precision", "peer"] + [f"{what}, {who}" for what in ("hidden states", "loss", "worst gradient", "all gradients")
                                   for who in ("mezzo", "peer")] + ["hidden states, mezzo - peer"], rows)
    if curves:
        table(["precision", "peer", "steps", "first loss", "last, mezzo", "last, peer", "largest difference"], curves)
    print("\n".join(failures), file=sys.stderr)
    sys.exit(1 if failures else 0)


main()
