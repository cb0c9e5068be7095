#!/usr/bin/env python3
"""Repeats a fine-tuning of build/samples/bert_classifier in PyTorch: the same initial weights, texts, AdamW, warm-up, decay and clipping. Prints
macro-F1 on the validation texts after every epoch, and one JSON object at the end.

    build/samples/bert_classifier --data tweets --weights MINILM --epochs 0 --save start
    build/samples/bert_classifier --data tweets --weights start --epochs 1 --lr 5e-5 --max-length 64 --save trained
    tools/torch_finetune.py start build/tools/tokenize --data tweets --epochs 1 --lr 5e-5 --max-length 64 --compare trained
The order of the texts and the masks of dropout differ. With --dropout 0 and a --batch of all texts nothing does, and --compare prints
how far the trained weights are from those of mezzo."""
import argparse
import json
import os
import pathlib
import subprocess
import time
from ranges import COUNT, RATE, THREADS

PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("start", type=pathlib.Path, help="folder that bert_classifier --save wrote")
PARSER.add_argument("tokenize", help="path to build/tools/tokenize")
PARSER.add_argument("--data", type=pathlib.Path, required=True, help="folder of texts and labels, as of bert_classifier")
PARSER.add_argument("--compare", type=pathlib.Path, help="folder that bert_classifier --save wrote after the same training")
PARSER.add_argument("--epochs", type=COUNT, default=3)
PARSER.add_argument("--batch", type=COUNT, default=16)
PARSER.add_argument("--max-length", type=COUNT, default=128)
PARSER.add_argument("--lr", type=RATE, default=2e-5)
PARSER.add_argument("--dropout", type=RATE, default=0.1)
PARSER.add_argument("--weight-decay", type=RATE, default=0.01)
PARSER.add_argument("--warmup", type=RATE, default=0.1)
PARSER.add_argument("--clip", type=RATE, default=1.0)
PARSER.add_argument("--threads", type=THREADS, default=2)
PARSER.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
ARGS = PARSER.parse_args()
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(ARGS.threads)

import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import torch_bert_model as model  # noqa: E402


def read_samples(split):
    """Token ids and label of each text."""
    command = [ARGS.tokenize, "--vocab", ARGS.start / "vocab.txt", "--max-length", str(ARGS.max_length), ARGS.data / f"{split}_text.txt"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    labels = (ARGS.data / f"{split}_labels.txt").read_text().split()
    return [([int(i) for i in line.split()], int(label)) for line, label in zip(lines, labels, strict=True)]


def batches_of(samples, order, size):
    for first in range(0, len(order), size):
        rows = [samples[i] for i in order[first:first + size]]
        length = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [0] * (length - len(ids)) for ids, _ in rows])
        mask = torch.tensor([[True] * len(ids) + [False] * (length - len(ids)) for ids, _ in rows])
        yield ids, mask, torch.tensor([label for _, label in rows])


def load():
    config = json.loads((ARGS.start / "config.json").read_text())
    config.update(num_labels=len(config["id2label"]), hidden_dropout_prob=ARGS.dropout, attention_probs_dropout_prob=ARGS.dropout,
                  classifier_dropout=ARGS.dropout)
    net = model.Classifier(model.config(**config))
    net.load_state_dict(model.read_safetensors(ARGS.start / "model.safetensors"))
    return net


def groups(net):
    plain = [p for n, p in net.named_parameters() if n.endswith(("bias", "LayerNorm.weight"))]
    decayed = [p for n, p in net.named_parameters() if not n.endswith(("bias", "LayerNorm.weight"))]
    return [{"params": decayed, "weight_decay": ARGS.weight_decay}, {"params": plain, "weight_decay": 0.0}]


def logits_of(net, ids, mask):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=ARGS.precision == "bf16"):
        return net(ids, mask)[1].float()


def loss_of(net, ids, mask, labels):
    logits = logits_of(net, ids, mask)
    if logits.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(logits.squeeze(-1), labels.float())
    return F.cross_entropy(logits, labels)


@torch.no_grad()
def macro_f1(net, samples):
    net.eval()
    truth, predicted = [], []
    for ids, mask, labels in batches_of(samples, range(len(samples)), 64):
        logits = logits_of(net, ids, mask)
        predicted += ((logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)).tolist()
        truth += labels.tolist()
    net.train()
    scores = []
    for c in sorted(set(truth)):
        right = sum(t == c and p == c for t, p in zip(truth, predicted))
        scores.append(2 * right / max(1, sum(t == c for t in truth) + sum(p == c for p in predicted)))
    return sum(scores) / len(scores)


def difference(net):
    """The largest difference of a weight, relative to the largest element of its parameter, without the biases of keys: softmax cancels
    them, so their gradients are rounding errors, which AdamW scales up."""
    other = model.read_safetensors(ARGS.compare / "model.safetensors")
    return max(((p - other[name]).abs().max() / other[name].abs().max()).item() for name, p in net.state_dict().items()
               if not name.endswith("key.bias"))


def main():
    torch.set_num_threads(ARGS.threads)
    torch.manual_seed(1)
    net, samples, validation = load(), read_samples("train"), read_samples("val")
    optimizer = torch.optim.AdamW(groups(net), lr=ARGS.lr)
    total = ARGS.epochs * -(-len(samples) // ARGS.batch)
    warmup = min(int(ARGS.warmup * total), total - 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: s / warmup if s < warmup else max(0.0, (total - s) / (total - warmup)))
    scores, losses, start = [], [], time.perf_counter()
    net.train()
    for _ in range(ARGS.epochs):
        for batch in batches_of(samples, torch.randperm(len(samples)).tolist(), ARGS.batch):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(net, *batch)
            loss.backward()
            if ARGS.clip > 0:
                torch.nn.utils.clip_grad_norm_(net.parameters(), ARGS.clip)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        scores.append(100 * macro_f1(net, validation))
        print(f"epoch {len(scores)}: loss {losses[-1]:.6f}, validation macro-F1 {scores[-1]:.2f} %, {time.perf_counter() - start:.0f} s", flush=True)
    result = {"framework": f"torch {torch.__version__}", "precision": ARGS.precision, "steps": total, "macro_f1": scores,
              "seconds": time.perf_counter() - start, "mean_of_last_20_losses": sum(losses[-20:]) / len(losses[-20:])}
    if ARGS.compare:
        result["largest_relative_difference_of_weights"] = difference(net)
    print(json.dumps(result))


main()
