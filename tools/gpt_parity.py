#!/usr/bin/env python3
"""Compares nn::Gpt and nn::Llama with PyTorch and transformers, from the same random checkpoint: errors of the logits of both
against float64, and times of training steps and of generation with a cache. Prints Markdown tables. Runs in a Python that has torch,
transformers and safetensors.

    tools/gpt_parity.py build/tools/gpt_parity                          logits of a model of GPT-2's size, and of a Llama
    tools/gpt_parity.py build/tools/gpt_parity --times --threads 1,2    the times of a smaller one as well
Exits with 1 when float32 logits of mezzo are further from float64 than four times those of PyTorch.
"""
import argparse
import pathlib
import statistics
import sys
import tempfile
import time
import torch
import transformers
from safetensors.torch import load_file, save_file

from parity import output, table
from ranges import COUNT

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def config_of(kind, small):
    layers, width, heads = (6, 384, 6) if small else (12, 768, 12)
    if kind == "gpt2":
        return transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=heads)
    return transformers.LlamaConfig(vocab_size=50257, hidden_size=width, intermediate_size=width * 8 // 3, num_hidden_layers=layers,
                                    num_attention_heads=heads, num_key_value_heads=heads // 3, max_position_embeddings=1024)


def save_model(kind, small, folder):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config_of(kind, small)).eval()
    with torch.no_grad():  # fresh weights give nearly equal logits, and biases and norms that do nothing
        for name, p in model.named_parameters():
            p.mul_(2).add_(0.1 * torch.randn_like(p) if p.dim() == 1 else 0)
    model.save_pretrained(folder)
    return model


def own(program, folder, what, precision, threads, **sizes):
    command = [program, folder, "--what", what, "--precision", precision, "--threads", threads]
    for name, value in sizes.items():
        command += ["--" + name, value]
    return output(command)


def autocast(precision):
    return torch.autocast("cpu", LOW.get(precision, torch.bfloat16), enabled=precision in LOW)


def logits_row(program, kind, precision, folder):
    model = save_model(kind, False, folder)
    ids = torch.randint(0, 50257, (2, 64))
    save_file({"ids": ids}, f"{folder}/ids.safetensors")
    own(program, folder, "logits", precision, 2)
    mine = load_file(f"{folder}/logits.safetensors")["logits"].double()
    with torch.no_grad():
        with autocast(precision):
            theirs = model(ids).logits.double()
        exact = model.double()(ids).logits
    errors = [(x - exact).abs().max().item() for x in (mine, theirs)]
    difference = (mine - theirs).abs().max().item()
    if precision == "fp32" and errors[0] > 4 * errors[1]:
        print(f"{kind}: error {errors[0]:.1e}, PyTorch's {errors[1]:.1e}", file=sys.stderr)
        failures.append(kind)
    return [kind, precision, f"{exact.abs().max().item():.1f}"] + [f"{x:.1e}" for x in errors + [difference]]


def torch_training(model, precision, batch, length, steps):
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 50257, (batch, length + 1))
    times = []
    for i in range(steps + 2):
        start = time.perf_counter()
        with autocast(precision):
            logits = model(ids[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def torch_generation(model, precision, prompt, tokens):
    model.eval()
    ids = (torch.arange(prompt) * 31 % 50257).reshape(1, -1)
    best = float("inf")
    with torch.no_grad(), autocast(precision):
        for i in range(4):
            start = time.perf_counter()
            model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
                           pad_token_id=0)
            best = min(best, time.perf_counter() - start) if i else best
    return best


def time_rows(args, kind, folder):
    model = save_model(kind, True, folder)
    for precision in args.precisions.split(","):
        for threads in (int(n) for n in args.threads.split(",")):
            torch.set_num_threads(threads)
            mine = float(own(args.program, folder, "training", precision, threads, batch=args.batch, length=args.length, steps=args.steps))
            theirs = torch_training(model, precision, args.batch, args.length, args.steps)
            yield [kind, f"training, {args.batch} x {args.length}", precision, str(threads)] + rates(args.batch * args.length, mine, theirs)
            mine = float(own(args.program, folder, "generation", precision, threads, prompt=args.prompt, tokens=args.tokens))
            theirs = torch_generation(model, precision, args.prompt, args.tokens)
            yield [kind, f"generation, {args.prompt} + {args.tokens}", precision, str(threads)] + rates(args.tokens, mine, theirs)


def rates(tokens, mine, theirs):
    return [f"{tokens / mine:.0f}", f"{tokens / theirs:.0f}", f"{theirs / mine:.2f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the built gpt_parity")
    parser.add_argument("--times", action="store_true", help="the times as well")
    parser.add_argument("--no-logits", action="store_true")
    parser.add_argument("--models", default="gpt2,llama")
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--threads", default="1,2")
    for name, value in (("batch", 8), ("length", 256), ("steps", 5), ("prompt", 128), ("tokens", 128)):
        parser.add_argument("--" + name, type=COUNT, default=value)
    args = parser.parse_args()
    pathlib.Path(args.program).resolve(strict=True)
    with tempfile.TemporaryDirectory() as folder:
        if not args.no_logits:
            table(["model", "precision", "largest logit", "error, mezzo", "error, PyTorch", "mezzo - PyTorch"],
                  (logits_row(args.program, kind, precision, folder)
                   for kind in args.models.split(",") for precision in args.precisions.split(",")))
        if args.times:
            table(["model", "work", "precision", "threads", "tokens/s, mezzo", "tokens/s, PyTorch", "ratio"],
                  (row for kind in args.models.split(",") for row in time_rows(args, kind, folder)))
    sys.exit(1 if failures else 0)


failures = []
main()
