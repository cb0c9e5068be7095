#!/usr/bin/env python3
"""The measurement of tools/bench_ddp in PyTorch: torch.distributed with gloo and DistributedDataParallel, the same models, batches and
optimizer. With --ranks 1 there is no group, and the model is not wrapped. Prints one JSON object."""
import argparse
import json
import os
import resource
import socket
import statistics
import sys
import time

import torch
from torch import nn

import torch_bert_model
from ranges import COUNT, THREADS, number


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=COUNT, default=1)
    parser.add_argument("--model", choices=("mlp", "bert"), default="mlp")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--rows", type=number(int, 0, 1 << 32), default=0, help="of a rank's batch; 0: 1024 for the MLP, 16 for BERT")
    parser.add_argument("--length", type=COUNT, default=128)
    parser.add_argument("--steps", type=COUNT, default=20)
    parser.add_argument("--warmup", type=number(int, 0, 1 << 32), default=3)
    parser.add_argument("--threads", type=THREADS, default=1)
    return parser.parse_args()


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make(args):
    """(model, loss of the rank's batch)"""
    if args.model == "mlp":
        rows = args.rows or 1024
        model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
        x, y = torch.randn(rows, 784), torch.randint(0, 10, (rows,))
    else:
        rows = args.rows or 16
        config = torch_bert_model.config(vocab_size=8000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                                         intermediate_size=1024, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        model = torch_bert_model.Classifier(config)
        x, y = torch.randint(0, 8000, (rows, args.length)), torch.randint(0, 2, (rows,))
    return model, lambda net: nn.functional.cross_entropy(net(x)[1] if args.model == "bert" else net(x), y)


def measure(args):
    torch.set_num_threads(args.threads)
    before = peak_megabytes()
    model, loss_of = make(args)
    net = nn.parallel.DistributedDataParallel(model) if args.ranks > 1 else model
    optimizer = torch_bert_model.adamw(model, 1e-4)
    cpu, clock = [], []
    for step in range(args.warmup + args.steps):
        begin = cpu_seconds(), time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            loss = loss_of(net)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= args.warmup:
            cpu.append(cpu_seconds() - begin[0])
            clock.append(time.perf_counter() - begin[1])
    return [1e3 * statistics.median(cpu), 1e3 * statistics.median(clock), peak_megabytes(), before]


def report(args, all_ranks):
    columns = list(zip(*all_ranks))
    print(json.dumps({"peer": "torch", "ranks": args.ranks, "cpu_ms": round(statistics.mean(columns[0]), 3),
                      "clock_ms": round(statistics.mean(columns[1]), 3), "peak_mb": round(max(columns[2]), 1),
                      "before_mb": round(max(columns[3]), 1)}))


def run_rank(rank, args, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=args.ranks)
    torch.manual_seed(rank)
    mine = torch.tensor(measure(args), dtype=torch.float64)
    everything = [torch.empty_like(mine) for _ in range(args.ranks)]
    torch.distributed.all_gather(everything, mine)
    if rank == 0:
        report(args, [row.tolist() for row in everything])
    torch.distributed.destroy_process_group()


def main():
    args = arguments()
    if args.ranks == 1:
        torch.manual_seed(0)
        report(args, [measure(args)])
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run_rank, args=(args, port), nprocs=args.ranks)


if __name__ == "__main__":
    sys.exit(main())
