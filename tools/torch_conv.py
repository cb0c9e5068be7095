#!/usr/bin/env python3
"""The convolutions of ResNet50 with CIFAR's stem, or of CIFAR's ResNet-20, in PyTorch: what tools/bench_conv.cpp prints for mezzo."""
import argparse
import time

import torch
from ranges import COUNT, SECONDS, THREADS

RESNET50 = [(1, 3, 64, 3, 1, 32), (1, 64, 64, 1, 1, 32), (3, 64, 64, 3, 1, 32), (4, 64, 256, 1, 1, 32), (2, 256, 64, 1, 1, 32),
            (1, 256, 128, 1, 1, 32), (1, 128, 128, 3, 2, 32), (4, 128, 512, 1, 1, 16), (1, 256, 512, 1, 2, 32), (3, 512, 128, 1, 1, 16),
          (3, 128, 128, 3, 1, 16), (1, 512, 256, 1, 1, 16), (1, 256, 256, 3, 2, 16), (6, 256, 1024, 1, 1, 8), (1, 512, 1024, 1, 2, 16),
          (5, 1024, 256, 1, 1, 8), (5, 256, 256, 3, 1, 8), (1, 1024, 512, 1, 1, 8), (1, 512, 512, 3, 2, 8), (3, 512, 2048, 1, 1, 4),
          (1, 1024, 2048, 1, 2, 8), (2, 2048, 512, 1, 1, 4), (2, 512, 512, 3, 1, 4)]
RESNET20 = [(1, 3, 16, 3, 1, 32), (6, 16, 16, 3, 1, 32), (1, 16, 32, 3, 2, 32), (1, 16, 32, 1, 2, 32), (5, 32, 32, 3, 1, 16),
            (1, 32, 64, 3, 2, 16), (1, 32, 64, 1, 2, 16), (5, 64, 64, 3, 1, 8)]
NAMES = ["forward", "input_grad", "weight_grad"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--threads", type=THREADS, default=1, help="CPU threads")
    parser.add_argument("--batch", type=COUNT, default=16, help="images")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32", help="of images and weights")
    parser.add_argument("--seconds", type=SECONDS, default=0.05, help="of measuring each pass of a layer")
    parser.add_argument("--network", choices=["resnet50", "resnet20"], default="resnet50", help="with CIFAR's stem")
    parser.add_argument("--layout", choices=["channels_last", "nchw"], default="channels_last", help="of images in memory")
    return parser.parse_args()


def best_time(budget, clock, call):
    call()
    best, end = float("inf"), time.perf_counter() + budget
    while time.perf_counter() < end or best == float("inf"):
        start = clock()
        call()
        best = min(best, clock() - start)
    return best


def main():
    options = arguments()
    batch, dtype = options.batch, getattr(torch, options.dtype)
    torch.set_num_threads(options.threads)
    memory = torch.channels_last if options.layout == "channels_last" else torch.contiguous_format
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    sums, flops = [0.0] * 3, [0.0] * 3
    for count, channels, outputs, kernel, stride, size in RESNET20 if options.network == "resnet20" else RESNET50:
        padding, out = kernel // 2, (size - 1) // stride + 1

        def make(*shape):
            return torch.randn(shape).to(dtype).to(memory_format=memory)

        x, w, g = make(batch, channels, size, size), make(outputs, channels, kernel, kernel), make(batch, outputs, out, out)

        def backward(input_grad, weight_grad):
            return torch.ops.aten.convolution_backward(g, x, w, None, [stride, stride], [padding, padding], [1, 1], False, [0, 0], 1,
                                                       [input_grad, weight_grad, False])

        calls = [lambda: torch.nn.functional.conv2d(x, w, None, stride, padding), lambda: backward(True, False), lambda: backward(False, True)]
        with torch.no_grad():
            times = [0.0 if channels == 3 and i == 1 else best_time(options.seconds, clock, call) for i, call in enumerate(calls)]
        work = 2e-9 * batch * out * out * outputs * channels * kernel * kernel
        line = f"{count} x {channels:4} -> {outputs:4} {kernel}x{kernel}/{stride} at {size:2}"
        for i, seconds in enumerate(times):
            sums[i] += count * seconds
            flops[i] += count * work if seconds else 0
            line += f"  {1e3 * seconds:8.3f} ms {work / seconds if seconds else 0:6.1f}"
        print(line, flush=True)
    for name, seconds, work in zip(NAMES, sums, flops):
        print(f"{name} {1e3 * seconds:.1f} ms, {work / seconds:.1f} GFLOP/s")
    print(f"all {1e3 * sum(sums):.1f} ms, {sum(flops) / sum(sums):.1f} GFLOP/s")


main()
