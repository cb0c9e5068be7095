#!/usr/bin/env python3
"""Repeats a run of samples/bert_classifier in PyTorch: the same initial weights, batches, AdamW, warm-up, decay and clipping. Prints the
macro-F1 on the validation texts after every epoch and the largest difference of the losses; one JSON object at the end.

    build/bert_classifier --trace FOLDER ...
    tools/torch_finetune.py FOLDER --threads 1
With --dropout 0 in the sample the losses agree; with dropout the two draw different masks."""
import argparse
import json
import os
import pathlib
import time
from ranges import THREADS

PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("folder", type=pathlib.Path)
PARSER.add_argument("--threads", type=THREADS, default=2)
PARSER.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
ARGS = PARSER.parse_args()
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(ARGS.threads)

import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import torch_bert_model as model  # noqa: E402


def read_batches(name):
    tensors = model.read_safetensors(ARGS.folder / name)
    return [[tensors[f"{i}.{part}"] for part in ("input_ids", "attention_mask", "labels")] for i in range(len(tensors) // 3)]


def load():
    config = json.loads((ARGS.folder / "config.json").read_text())
    config["num_labels"] = len(config["id2label"])
    net = model.Classifier(model.config(**config))
    net.load_state_dict(model.read_safetensors(ARGS.folder / "weights.safetensors"))
    return net


def groups(net, weight_decay):
    plain = [p for n, p in net.named_parameters() if n.endswith(("bias", "LayerNorm.weight"))]
    decayed = [p for n, p in net.named_parameters() if not n.endswith(("bias", "LayerNorm.weight"))]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=ARGS.precision == "bf16")


def loss_of(net, ids, mask, labels):
    with autocast():
        logits = net(ids, mask)[1].float()
    if logits.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(logits.squeeze(-1), labels.float())
    return F.cross_entropy(logits, labels)


@torch.no_grad()
def macro_f1(net, batches):
    net.eval()
    truth, predicted = [], []
    for ids, mask, labels in batches:
        with autocast():
            logits = net(ids, mask)[1].float()
        predicted += ((logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)).tolist()
        truth += labels.tolist()
    net.train()
    scores = []
    for c in sorted(set(truth)):
        right = sum(t == c and p == c for t, p in zip(truth, predicted))
        scores.append(2 * right / max(1, sum(t == c for t in truth) + sum(p == c for p in predicted)))
    return sum(scores) / len(scores)


def main():
    torch.set_num_threads(ARGS.threads)
    torch.manual_seed(1)
    settings = json.loads((ARGS.folder / "settings.json").read_text())
    net, batches, validation = load(), read_batches("batches.safetensors"), read_batches("validation.safetensors")
    optimizer = torch.optim.AdamW(groups(net, settings["weight_decay"]), lr=settings["lr"])
    total, warmup = len(batches), int(settings["warmup"] * len(batches))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: s / warmup if s < warmup else max(0.0, (total - s) / max(1, total - warmup)))
    per_epoch = max(1, total // settings["epochs"])
    losses, scores, start = [], [], time.perf_counter()
    net.train()
    for step, batch in enumerate(batches):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(net, *batch)
        loss.backward()
        if settings["clip"] > 0:
            torch.nn.utils.clip_grad_norm_(net.parameters(), settings["clip"])
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if (step + 1) % per_epoch == 0:
            scores.append(100 * macro_f1(net, validation))
            print(f"epoch {len(scores)}: validation macro-F1 {scores[-1]:.2f} %, {time.perf_counter() - start:.0f} s", flush=True)
    own = model.read_safetensors(ARGS.folder / "losses.safetensors")["losses"].tolist()
    difference = max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(own, losses))
    print(json.dumps({"framework": f"torch {torch.__version__}", "precision": ARGS.precision, "steps": total, "macro_f1": scores,
                      "seconds": time.perf_counter() - start, "largest_relative_difference_of_losses": difference,
                      "mean_of_last_20": {"mezzo": sum(own[-20:]) / len(own[-20:]), "torch": sum(losses[-20:]) / len(losses[-20:])}}))


main()
