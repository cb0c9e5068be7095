#!/usr/bin/env python3
"""The PyTorch side of comparisons with mezzo's BERT; any version of PyTorch, no other package. Prints one JSON object.

    torch_bert.py values FOLDER --precision bf16   errors of mezzo's results (and of PyTorch's own) against float64
    torch_bert.py train FOLDER                     trains on mezzo's batches, from its weights; compares the losses
    torch_bert.py time --threads 2                 times training steps

FOLDER is what tools/bert_parity.cpp wrote: config.json, weights.safetensors, batches.safetensors (input_ids, attention_mask,
token_type_ids of [steps, batch, length], labels of [steps, batch]) and mezzo_PRECISION.safetensors."""
import argparse
import json
import os
import pathlib
import resource
import time
from ranges import COUNT, RATE, THREADS


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["values", "train", "time"])
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--threads", type=THREADS, default=2)
    parser.add_argument("--lr", type=RATE, default=1e-4)
    parser.add_argument("--dropout", action="store_true", help="train: leave the configuration's dropout on")
    parser.add_argument("--layers", type=COUNT, default=6, help="time: size of the model")
    parser.add_argument("--hidden", type=COUNT, default=384)
    parser.add_argument("--heads", type=COUNT, default=12)
    parser.add_argument("--batch", type=COUNT, default=16)
    parser.add_argument("--length", type=COUNT, default=64)
    parser.add_argument("--steps", type=COUNT, default=10, help="time: steps after 2 for warming up")
    args = parser.parse_args()
    if args.mode != "time" and args.folder is None:
        parser.error(f"{args.mode} needs FOLDER")
    return args


ARGS = arguments()
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(ARGS.threads)

import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import torch_bert_model as model  # noqa: E402

DTYPE = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[ARGS.precision]


def load(dropout):
    changes = json.loads((ARGS.folder / "config.json").read_text())
    if not dropout:
        changes.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0)
    net = model.Classifier(model.config(**changes))
    net.load_state_dict(model.read_safetensors(ARGS.folder / "weights.safetensors"))
    return net


def gradients(net, dtype, ids, mask, types, labels):
    """Hidden states, logits and loss, then the gradients by name."""
    net.zero_grad()
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        hidden, logits = net(ids, mask, types)
    loss = F.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), labels)
    scale = 1024  # float16 needs it, others do not notice
    (loss * scale).backward()
    result = {"last_hidden_state": hidden, "logits": logits, "loss": loss}
    result.update({"grad." + name: p.grad / scale for name, p in net.named_parameters()})
    return {name: value.detach().double().clone() for name, value in result.items()}


def errors(actual, expected):
    """Largest absolute errors of the values; of gradients, the largest relative to the parameter's largest, and the relative
    Euclidean distance of all together."""
    result = {name: (actual[name].double().reshape(expected[name].shape) - expected[name]).abs().max().item()
              for name in ("last_hidden_state", "logits", "loss")}
    names = [n for n in expected if n.startswith("grad.") and n in actual]
    # Gradients of the keys' biases are 0 but for rounding: softmax ignores what all scores have in common.
    scaled = {n: (actual[n].double() - expected[n]).abs().max().item() / max(expected[n].abs().max().item(), 1e-30)
              for n in names if not n.endswith("key.bias")}
    if scaled:
        worst = max(scaled, key=scaled.get)
        square = sum(((actual[n].double() - expected[n])**2).sum().item() for n in names)
        total = sum((expected[n]**2).sum().item() for n in names)
        result.update(worst_gradient=scaled[worst], worst_name=worst[5:], gradient_distance=(square / total)**0.5)
    return result


def values():
    net = load(False)
    batch = {name: value[0] for name, value in model.read_safetensors(ARGS.folder / "batches.safetensors").items()}
    inputs = [batch[name] for name in ("input_ids", "attention_mask", "token_type_ids", "labels")]
    try:
        peer = gradients(net, DTYPE, *inputs)
    except RuntimeError as error:  # a dtype or op this version lacks on the CPU
        peer, reason = None, str(error).splitlines()[0]
    exact = gradients(net.double(), None, *inputs)
    own = model.read_safetensors(ARGS.folder / f"mezzo_{ARGS.precision}.safetensors")
    result = {"mezzo": errors(own, exact)}
    if peer:
        result["torch"] = errors(peer, exact)
        result["difference"] = errors(own, peer)
    else:
        result["reason"] = reason
    return result


def train():
    net = load(ARGS.dropout)
    batches = model.read_safetensors(ARGS.folder / "batches.safetensors")
    optimizer = model.adamw(net, ARGS.lr)
    losses = [model.training_step(net, optimizer, batches["input_ids"][i], batches["labels"][i], "cpu", DTYPE,
                                  batches["attention_mask"][i], batches["token_type_ids"][i]).item()
              for i in range(len(batches["labels"]))]
    own = model.read_safetensors(ARGS.folder / f"mezzo_{ARGS.precision}.safetensors").get("losses")
    result = {"losses": losses}
    if own is not None:
        result["mezzo_losses"] = own.tolist()
        result["largest_difference"] = max(abs(a - b) for a, b in zip(losses, own.tolist()))
    return result


def timing():
    torch.manual_seed(0)
    net = model.Classifier(model.config(hidden_size=ARGS.hidden, num_hidden_layers=ARGS.layers, num_attention_heads=ARGS.heads,
                                        intermediate_size=4 * ARGS.hidden))
    optimizer = model.adamw(net, ARGS.lr)
    ids, labels = torch.randint(1, 30522, (ARGS.batch, ARGS.length)), torch.randint(0, 2, (ARGS.batch,))
    times = []
    for _ in range(2 + ARGS.steps):
        begin = time.perf_counter()
        model.training_step(net, optimizer, ids, labels, "cpu", DTYPE)
        times.append(time.perf_counter() - begin)
    times = sorted(times[2:])
    return {"threads": ARGS.threads, "median_ms": 1e3 * times[len(times) // 2], "min_ms": 1e3 * times[0], "steps": len(times),
            "tokens_per_second": ARGS.batch * ARGS.length / times[len(times) // 2],
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6}


def main():
    torch.set_num_threads(ARGS.threads)
    result = {"framework": f"torch {torch.__version__}", "precision": ARGS.precision}
    result.update({"values": values, "train": train, "time": timing}[ARGS.mode]())
    print(json.dumps(result))


main()
