#!/usr/bin/env python3
"""The cases of tools/bench_host.cpp in PyTorch: the host's time per op of an eager step on tiny tensors. Prints one JSON object per line."""
import argparse
import json
import os
import statistics
import time
from ranges import COUNT

os.environ["OMP_NUM_THREADS"] = "1"
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

ROWS, WIDTH, HEADS = 16, 32, 2


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="bfloat16", choices=["float32", "bfloat16", "float16"], help="of autocast; float32: none")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--calls", type=COUNT, default=100, help="per round")
    parser.add_argument("--rounds", type=COUNT, default=21, help="of which the median counts")
    return parser.parse_args()


ARGS = arguments()
DTYPE = getattr(torch, ARGS.precision)
MIXED = ARGS.precision != "float32"


def autocast():
    return torch.autocast(ARGS.device, dtype=DTYPE if MIXED else torch.bfloat16, enabled=MIXED)


def ns_of(call, calls=None):
    calls = calls or ARGS.calls
    times = []
    for _ in range(ARGS.rounds):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        times.append((time.perf_counter_ns() - begin) / calls)
        if ARGS.device == "cuda":
            torch.cuda.synchronize()
    return statistics.median(times)


def show(name, ns):
    print(json.dumps({"case": name, "ns": round(ns)}), flush=True)


def op_cases():
    """Name, shapes of the leaves, the op, and whether the first input is the result of another op in autocast's dtype."""
    x, w, b, images = (ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH,), (2, HEADS, 8, WIDTH)
    return [
        ("add", [x, x], lambda a, c: a + c, False),
        ("mul_scalar", [x], lambda a: a * 2.0, False),
        ("relu", [x], torch.relu, False),
        ("gelu", [x], F.gelu, False),
        ("linear", [x, w, b], F.linear, True),
        ("linear_relu", [x, w, b], lambda a, c, d: torch.relu(F.linear(a, c, d)), True),
        ("linear_gelu", [x, w, b], lambda a, c, d: F.gelu(F.linear(a, c, d)), True),
        ("matmul", [x, w], torch.matmul, True),
        ("reshape", [x], lambda a: a.reshape(ROWS * WIDTH), False),
        ("transpose", [x], lambda a: a.t(), False),
        ("cast", [x], lambda a: a.to(torch.bfloat16), False),
        ("sum", [x], torch.sum, False),
        ("softmax", [x], lambda a: torch.softmax(a, -1), False),
        ("dropout", [x], lambda a: F.dropout(a, 0.1), False),
        ("layer_norm", [x, b, b], lambda a, c, d: F.layer_norm(a, (WIDTH,), c, d), False),
        ("dropout_add_layer_norm", [x, b, x, b, b],
         lambda a, c, r, d, e: F.layer_norm(F.dropout(a + c, 0.1) + r, (WIDTH,), d, e), True),
        ("attention", [images, images, images], F.scaled_dot_product_attention, True),
        ("mse_loss", [x, x], F.mse_loss, False),
    ]


def run_op(name, shapes, op, low):
    inputs = [torch.randn(shape, device=ARGS.device) for shape in shapes]
    if low and MIXED:
        inputs[0] = inputs[0].to(DTYPE)
    for leaf in inputs:
        leaf.requires_grad_()
    with autocast():
        gradient = torch.ones_like(op(*inputs))

        def both():
            op(*inputs).backward(gradient)
            for leaf in inputs:
                leaf.grad = None

        for _ in range(10):
            both()
        forward = ns_of(lambda: op(*inputs))
        show(name, forward)
        show(name + " backward", ns_of(both) - forward)


def training_step(net, optimizer, loss_of):
    def step():
        with autocast():
            loss = loss_of(net)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return step


def recipe_step():
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).to(ARGS.device)
    x, y = torch.randn(2, ROWS, WIDTH, device=ARGS.device)
    return training_step(net, torch.optim.SGD(net.parameters(), lr=1e-3, fused=True), lambda f: F.mse_loss(f(x), y))


class Bert(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.words, self.positions = nn.Embedding(64, WIDTH), nn.Embedding(16, WIDTH)
        self.types, self.norm = nn.Embedding(2, WIDTH), nn.LayerNorm(WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.pooler, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.register_buffer("places", torch.arange(8))

    def forward(self, ids):
        x = self.words(ids) + self.positions(self.places) + self.types(torch.zeros_like(ids))
        x = self.encoder(F.dropout(self.norm(x), 0.1))
        return self.classifier(F.dropout(torch.tanh(self.pooler(x[:, 0])), 0.1))


def bert_step(layers):
    net = Bert(layers).to(ARGS.device)
    ids, labels = torch.randint(1, 64, (2, 8), device=ARGS.device), torch.randint(0, 2, (2,), device=ARGS.device)
    return training_step(net, torch.optim.AdamW(net.parameters(), fused=True), lambda f: F.cross_entropy(f(ids), labels))


def adamw_step():
    params = [torch.randn(WIDTH, device=ARGS.device, requires_grad=True) for _ in range(200)]
    for p in params:
        p.grad = torch.randn(WIDTH, device=ARGS.device)
    return torch.optim.AdamW(params, fused=True).step


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, shapes, op, low in op_cases():
        if ARGS.only in name:
            run_op(name, shapes, op, low)
    for name, make in [("recipe step", recipe_step), ("BERT step, 1 layer", lambda: bert_step(1)),
                       ("BERT step, 12 layers", lambda: bert_step(12)), ("AdamW of 200 parameters", adamw_step)]:
        if ARGS.only in name:
            step = make()
            for _ in range(5):
                step()
            show(name, ns_of(step, 1 + ARGS.calls // 20))


main()
