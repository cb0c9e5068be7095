#!/usr/bin/env python3
"""Trains the Fashion-MNIST classifier in PyTorch from the initial weights and on the batches that samples/fashion_mnist.cpp wrote,
and compares the losses step by step. Exits with 1 if they differ by more than the tolerance.

    mkdir trace && build/samples/fashion_mnist --precision fp32 --epochs 1 --trace trace
    tools/torch_fashion.py trace
"""
import argparse
import pathlib
import sys

import numpy
import torch
from torch import nn
from ranges import COUNT, RATE, number


def read_weights(path, sizes):
    """The parameters of Linear layers between the sizes: weight, bias, weight, bias, ..."""
    values, start = numpy.fromfile(path, "<f4"), 0
    for inputs, outputs in zip(sizes, sizes[1:]):
        for shape in ((outputs, inputs), (outputs,)):
            count = int(numpy.prod(shape))
            yield torch.from_numpy(values[start:start + count].reshape(shape).copy())
            start += count
    if start != len(values):
        sys.exit(f"{path}: {len(values)} values, the model has {start}; other --hidden?")


def read_batches(path):
    with open(path, "rb") as file:
        while head := file.read(8):
            n = int(numpy.frombuffer(head, "<i8")[0])
            x = numpy.frombuffer(file.read(n * 784 * 4), "<f4").reshape(n, 784)
            y = numpy.frombuffer(file.read(n * 8), "<i8")
            yield torch.from_numpy(x.copy()), torch.from_numpy(y.copy())


def train(folder, hidden, lr):
    """The loss of every step."""
    sizes = [784, hidden, hidden // 2, 10]
    net = nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.ReLU(), nn.Linear(sizes[1], sizes[2]), nn.ReLU(),
                        nn.Linear(sizes[2], sizes[3]))
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), read_weights(folder / "weights.bin", sizes)):
            parameter.copy_(value)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    for x, y in read_batches(folder / "batches.bin"):
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        yield loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path, help="the folder given to --trace")
    parser.add_argument("--hidden", type=COUNT, default=256)
    parser.add_argument("--lr", type=RATE, default=1e-3)
    parser.add_argument("--tolerance", type=number(float, 0, 1), default=1e-4, help="relative")
    args = parser.parse_args()
    own = numpy.fromfile(args.trace / "losses.bin", "<f8")
    peer = numpy.array(list(train(args.trace, args.hidden, args.lr)))
    if len(own) == 0 or len(own) != len(peer):
        sys.exit(f"{len(own)} losses but {len(peer)} batches: did the run end before --trace-steps?")
    difference = numpy.abs(own - peer) / numpy.abs(peer)
    worst = int(difference.argmax())
    print(f"{len(own)} steps, loss {own[0]:.6f} -> {own[-1]:.6f} (PyTorch {torch.__version__}: {peer[-1]:.6f}); "
          f"largest relative difference {difference[worst]:.2e} at step {worst + 1}, tolerance {args.tolerance:g}")
    sys.exit(1 if difference[worst] > args.tolerance else 0)


main()
