#!/usr/bin/env python3
"""The cases of tools/bench.cpp in PyTorch, any version. One case per process; prints one JSON object.

Threads are set in the environment before the import: the GEMM threads of some builds follow OPENBLAS_NUM_THREADS only."""
import argparse
import json
import os
import resource
import sys
import time
from ranges import SECONDS, THREADS

PRECISIONS = ["float32", "bfloat16", "float16"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", default="mlp1024")
    parser.add_argument("--precision", default="float32", choices=PRECISIONS)
    parser.add_argument("--threads", type=THREADS, default=1)
    parser.add_argument("--seconds", type=SECONDS, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--float32-matmul-precision", default="highest", choices=["highest", "high", "medium"])
    parser.add_argument("--layout", default="channels_last", choices=["channels_last", "nchw"], help="of images in memory")
    parser.add_argument("--compile", choices=["default", "reduce-overhead"], help="torch.compile in this mode, for training steps")
    return parser.parse_args()


ARGS = arguments()
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(ARGS.threads)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch_bert_model import update  # noqa: E402


def grad_scaler():
    """A scaler where this version has one for the device."""
    try:
        return torch.amp.GradScaler(ARGS.device)
    except (AttributeError, TypeError):
        return torch.cuda.amp.GradScaler() if ARGS.device == "cuda" else None


def compiled(net):
    return torch.compile(net, mode=ARGS.compile) if ARGS.compile else net


def sgd(net):
    """The fastest SGD this version has for the device."""
    try:
        return torch.optim.SGD(net.parameters(), lr=1e-3, fused=ARGS.device == "cuda")
    except TypeError:
        return torch.optim.SGD(net.parameters(), lr=1e-3)


def mlp_step(layers, width, batch, last_relu=True):
    torch.manual_seed(0)
    modules = [m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())]
    net = nn.Sequential(*modules if last_relu else modules[:-1]).to(ARGS.device)
    optimizer = sgd(net)
    net = compiled(net)
    loss_of = nn.MSELoss()
    x, y = (torch.randn(batch, width, device=ARGS.device) for _ in range(2))
    mixed = ARGS.precision != "float32"
    dtype = getattr(torch, ARGS.precision)
    scaler = grad_scaler() if ARGS.precision == "float16" else None

    def step():
        optimizer.zero_grad(set_to_none=True)
        if mixed:
            with torch.autocast(ARGS.device, dtype=dtype):
                output = net(x)
            loss = loss_of(output.float(), y)
        else:
            loss = loss_of(net(x), y)
        update(loss, optimizer, scaler)

    return step


def bert_step(batch, length, **sizes):
    import torch_bert_model as model
    torch.manual_seed(0)
    net = model.Classifier(model.config(**sizes)).to(ARGS.device)
    optimizer = model.adamw(net, 1e-4)
    net = compiled(net)
    ids = torch.randint(1, 30522, (batch, length), device=ARGS.device)
    labels = torch.randint(0, 2, (batch,), device=ARGS.device)
    dtype = None if ARGS.precision == "float32" else getattr(torch, ARGS.precision)
    scaler = grad_scaler() if ARGS.precision == "float16" else None
    return lambda: model.training_step(net, optimizer, ids, labels, ARGS.device, dtype, scaler=scaler)


def resnet_step(depth, stem, batch, size):
    import torch_resnet_model as model
    torch.manual_seed(0)
    layout = torch.channels_last if ARGS.layout == "channels_last" else torch.contiguous_format
    net = model.ResNet(depth, stem, 10).to(ARGS.device, memory_format=layout)
    optimizer = model.sgd(net, lr=0.1, momentum=0.9, weight_decay=5e-4)
    net = compiled(net)
    images = torch.randn(batch, 3, size, size, device=ARGS.device).contiguous(memory_format=layout)
    labels = torch.randint(0, 10, (batch,), device=ARGS.device)
    dtype = None if ARGS.precision == "float32" else getattr(torch, ARGS.precision)
    scaler = grad_scaler() if ARGS.precision == "float16" else None
    torch.backends.cudnn.benchmark = True
    return lambda: model.training_step(net, optimizer, images, labels, ARGS.device, dtype, scaler)


def resnet_inference(batch):
    import torch_resnet_model as model
    torch.manual_seed(0)
    layout = torch.channels_last if ARGS.layout == "channels_last" else torch.contiguous_format
    net = compiled(model.ResNet(50, "imagenet", 1000).eval().to(ARGS.device, memory_format=layout))
    images = torch.randn(batch, 3, 224, 224, device=ARGS.device).contiguous(memory_format=layout)
    dtype = None if ARGS.precision == "float32" else getattr(torch, ARGS.precision)

    def step():
        with torch.inference_mode(), torch.autocast(ARGS.device, dtype=dtype, enabled=dtype is not None):
            net(images)

    return step


def lstm_step(hidden, batch, length):
    torch.manual_seed(0)
    net = torch.nn.LSTM(hidden, hidden, 2).to(ARGS.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    net = compiled(net)
    x, y = (torch.randn(length, batch, hidden, device=ARGS.device) for _ in range(2))
    dtype = None if ARGS.precision == "float32" else getattr(torch, ARGS.precision)
    scaler = grad_scaler() if ARGS.precision == "float16" else None

    def step():
        with torch.autocast(ARGS.device, dtype=dtype, enabled=dtype is not None):
            loss = torch.nn.functional.mse_loss(net(x)[0], y)
        update(loss, optimizer, scaler)
        optimizer.zero_grad()

    return step


def op_step(shapes, op):
    torch.manual_seed(0)
    inputs = [torch.randn(*shape, device=ARGS.device).to(getattr(torch, ARGS.precision)) for shape in shapes]

    def step():
        with torch.no_grad():
            op(*inputs)

    return step


def layer_step(n):
    """Forward and backward of a layer of n x n weights on n rows, under autocast."""
    torch.manual_seed(0)
    dtype = getattr(torch, ARGS.precision)
    x, w, gradient = (torch.randn(n, n, device=ARGS.device) for _ in range(3))
    x, gradient = x.to(dtype).requires_grad_(), gradient.to(dtype)
    w.requires_grad_()

    def step():
        with torch.autocast(ARGS.device, dtype=None if ARGS.precision == "float32" else dtype, enabled=ARGS.precision != "float32"):
            y = nn.functional.linear(x, w)
        y.backward(gradient)
        x.grad = w.grad = None

    return step


SQUARE = (1024, 1024)
CASES = {
    "mlp1024": lambda: mlp_step(3, 1024, 256),
    "mlp64": lambda: mlp_step(3, 64, 32),
    "recipe512": lambda: mlp_step(3, 4096, 512, last_relu=False),
    "recipe513": lambda: mlp_step(3, 4096, 513, last_relu=False),
    "bert_base128": lambda: bert_step(16, 128),
    "bert_base512": lambda: bert_step(16, 512),
    "bert6": lambda: bert_step(16, 64, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
    "resnet50": lambda: resnet_step(50, "cifar", 16, 32),
    "resnet50_32": lambda: resnet_step(50, "cifar", 32, 32),
    "resnet50_128": lambda: resnet_step(50, "cifar", 128, 32),
    "resnet50_imagenet": lambda: resnet_step(50, "imagenet", 8, 224),
    "resnet50_infer": lambda: resnet_inference(1),
    "resnet50_infer8": lambda: resnet_inference(8),
    "lstm512": lambda: lstm_step(512, 32, 64),
    "resnet20": lambda: resnet_step(20, "cifar", 128, 32),
    "matmul8192": lambda: op_step([(8192, 8192)] * 2, torch.matmul),
    "copy": lambda: op_step([(512, 1 << 20)], torch.clone),
    "matmul": lambda: op_step([SQUARE, SQUARE], torch.matmul),
    "linear": lambda: op_step([(256, 1024), SQUARE, (1024,)], nn.functional.linear),
    **{f"linear{n}": lambda n=n: layer_step(n) for n in (256, 512, 1024, 4096, 8192)},
    "gemv": lambda: op_step([(1, 1024), SQUARE, (1024,)], nn.functional.linear),
    "add": lambda: op_step([SQUARE, SQUARE], torch.add),
    "add_small": lambda: op_step([(32, 64), (32, 64)], torch.add),
    "relu": lambda: op_step([SQUARE], torch.relu),
    "gelu": lambda: op_step([SQUARE], nn.functional.gelu),
    "exp": lambda: op_step([SQUARE], torch.exp),
    "sum": lambda: op_step([SQUARE], torch.sum),
    "softmax": lambda: op_step([SQUARE], lambda x: torch.softmax(x, -1)),
}


def synchronize():
    if ARGS.device != "cpu":
        torch.cuda.synchronize()


def measure(step):
    """Seconds of each step, the device's work included, ascending; and seconds per step where the host waits for the device
    only after many of them."""
    for _ in range(10 if ARGS.compile else 3):
        step()
    synchronize()
    times, end = [], time.perf_counter() + ARGS.seconds
    begin = time.perf_counter()
    while begin < end or len(times) < 10:
        step()
        synchronize()
        after = time.perf_counter()
        times.append(after - begin)
        begin = after
    queued = sorted(times)[len(times) // 2]
    if ARGS.device != "cpu":  # whose work is done when the step returns
        begin = time.perf_counter()
        for _ in times:
            step()
        synchronize()
        queued = (time.perf_counter() - begin) / len(times)
    return sorted(times), queued


def asked(step):
    """Kernels and graphs launched, and waits of the host, in one step, of the CUDA calls that the profiler has seen; and the
    milliseconds that the device's work takes, gaps left out."""
    if ARGS.device == "cpu":
        return 0, 0, 0
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as calls:
        step()
    counts = {event.key: event.count for event in calls.key_averages()}
    launches = sum(n for key, n in counts.items() if key.startswith("cu") and ("LaunchKernel" in key or "GraphLaunch" in key))
    # The profiler itself waits for the device, not for the stream.
    waits = sum(n for key, n in counts.items() if key in ("cudaStreamSynchronize", "cudaEventSynchronize"))
    kernels = [event for event in calls.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA]  # not the ops that launch them
    return launches, waits, sum(event.self_device_time_total for event in kernels) / 1e3


def sgemm_gflops():
    """A build without a fast BLAS computes at 1-2 GFLOP/s; comparing with it would be unfair."""
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    torch.mm(a, b)
    begin = time.perf_counter()
    torch.mm(a, b)
    return 2 * 512**3 / (time.perf_counter() - begin) / 1e9


def main():
    torch.set_num_threads(ARGS.threads)
    torch.set_float32_matmul_precision(ARGS.float32_matmul_precision)
    try:
        step = CASES[ARGS.case]()
        times, queued = measure(step)
    except RuntimeError as error:  # an op this version lacks for the dtype
        sys.exit(f"torch_bench: {ARGS.case} in {ARGS.precision}: {error}")
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    device_peak = torch.cuda.max_memory_allocated() / 1e6 if ARGS.device != "cpu" else 0
    launches, host_syncs, device_ms = asked(step)
    print(json.dumps({
        "framework": f"torch {torch.__version__}" + (", NCHW" if ARGS.layout == "nchw" else ""), "case": ARGS.case, "precision": ARGS.precision,
        "threads": ARGS.threads, "median_ms": 1e3 * times[len(times) // 2], "min_ms": 1e3 * times[0],
        "queued_ms": 1e3 * queued, "device_ms": device_ms, "launches": launches, "host_syncs": host_syncs, "steps": len(times),
        "peak_rss_mb": peak_rss, "peak_device_mb": device_peak,
        "sgemm_gflops": sgemm_gflops() if ARGS.device == "cpu" else None}))


main()
