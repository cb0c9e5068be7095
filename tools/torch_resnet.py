#!/usr/bin/env python3
"""The PyTorch side of comparisons with mezzo's ResNet; any version of PyTorch, no other package.

    torch_resnet.py values FOLDER --precision bf16   errors of mezzo's results (and of PyTorch's own) against float64
    torch_resnet.py train FOLDER                     trains on mezzo's batches, from its weights; compares losses, running
                                                     statistics and skipped steps
    torch_resnet.py fit --data DIR --log run.csv     a training run on CIFAR-10 files with the settings of samples/resnet

FOLDER is what tools/resnet_parity.cpp wrote: settings.json, weights.safetensors (OIHW), batches.safetensors (images, uint8
[steps, batch, height, width, 3], and labels [steps, batch]) and mezzo_PRECISION.safetensors. values and train print one JSON object;
fit prints a line per epoch and writes a log for tools/chart.py. ResNets of 8, 20 and 56 layers have the shortcuts of the paper's
option A, unless --shortcut B is given or settings.json says so."""
import argparse
import json
import math
import os
import pathlib
import resource
import sys
import time
from ranges import COUNT, RATE, THREADS, number


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["values", "train", "fit"])
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--precision", default="fp32", choices=["fp64", "fp32", "bf16", "fp16"])
    parser.add_argument("--threads", type=THREADS, default=2)
    parser.add_argument("--layout", default="channels_last", choices=["channels_last", "nchw"])
    fit = parser.add_argument_group("fit")
    fit.add_argument("--data", type=pathlib.Path, help="folder of CIFAR-10 binary files: training files are train*.bin or data_batch*.bin")
    fit.add_argument("--model", type=number(int, 8), default=20, choices=[8, 18, 20, 34, 50, 56, 101])
    fit.add_argument("--shortcut", choices=["A", "B"])
    fit.add_argument("--epochs", type=COUNT, default=30)
    fit.add_argument("--batch", type=COUNT, default=128)
    fit.add_argument("--lr", type=RATE, default=0.15)
    fit.add_argument("--momentum", type=number(float, 0, 1), default=0.9)
    fit.add_argument("--weight-decay", type=RATE, default=5e-4)
    fit.add_argument("--warmup", type=number(float, 0, 1), default=0.1, help="share of the steps in which the rate rises")
    fit.add_argument("--seed", type=number(int, 0), default=1)
    fit.add_argument("--log", help="CSV for tools/chart.py")
    args = parser.parse_args()
    if args.mode == "fit" and args.data is None:
        parser.error("fit needs --data DIR")
    if args.mode == "fit" and args.precision == "fp64":
        parser.error("fit has no fp64")
    if args.mode != "fit" and args.folder is None:
        parser.error(f"{args.mode} needs FOLDER")
    return args


ARGS = arguments()
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(ARGS.threads)

import torch  # noqa: E402
from torch import nn  # noqa: E402

import torch_resnet_model as model  # noqa: E402
from torch_bert_model import read_safetensors  # noqa: E402

REAL = torch.float64 if ARGS.precision == "fp64" else torch.float32
DTYPE = {"fp64": None, "fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[ARGS.precision]
FORMAT = torch.channels_last if ARGS.layout == "channels_last" else torch.contiguous_format
# Of CIFAR-10's training images, of values in [0, 1]. The deviations are the means of each image's own, as in many published recipes;
# those of all pixels together are 0.2470, 0.2435, 0.2616.
MEAN, STDDEV = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def prepared(images, mean, stddev):
    """uint8 [n, height, width, 3] -> float32 [n, 3, height, width]."""
    values = (images.float() / 255 - torch.tensor(mean)) / torch.tensor(stddev)
    return values.permute(0, 3, 1, 2).contiguous(memory_format=FORMAT)


def load():
    settings = json.loads((ARGS.folder / "settings.json").read_text())
    net = model.ResNet(settings["depth"], settings["stem"], settings["classes"], shortcut=settings["shortcut"])
    net.load_state_dict(read_safetensors(ARGS.folder / "weights.safetensors"))
    batches = read_safetensors(ARGS.folder / "batches.safetensors")

    def batch(step):
        return prepared(batches["images"][step], settings["mean"], settings["stddev"]).to(REAL), batches["labels"][step]

    return settings, net.to(REAL).to(memory_format=FORMAT), batch, len(batches["labels"])


def results_of(net, dtype, images, labels):
    """The results of the stages, the logits and the loss in training mode, then the gradients by name; all in float64."""
    net.train()
    net.zero_grad()
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        stages = net.features(images)
        logits = net.head(stages[-1])
    loss = nn.functional.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), labels)
    scale = 1024  # float16 needs it, others do not notice
    (loss * scale).backward()
    result = {f"stage{i + 1}": stage.permute(0, 2, 3, 1) for i, stage in enumerate(stages)}
    result.update(logits=logits, loss=loss)
    result.update({"grad." + name: p.grad / scale for name, p in net.named_parameters()})
    return {name: value.detach().double().clone() for name, value in result.items()}


def distance(actual, expected):
    """Relative, in the Euclidean norm."""
    return ((actual.double().reshape(expected.shape) - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def errors(actual, expected):
    names = [n for n in expected if n.startswith("grad.") and n in actual]
    values = {n: distance(actual[n], expected[n]) for n in expected if not n.startswith("grad.")}
    if names:
        each = {n: distance(actual[n], expected[n]) for n in names}
        worst = max(each, key=each.get)
        square = sum(((actual[n].double() - expected[n])**2).sum().item() for n in names)
        total = sum((expected[n]**2).sum().item() for n in names)
        values.update(worst_gradient=each[worst], worst_name=worst[5:], gradients=(square / total)**0.5)
    return values


def values():
    _, net, batch, _ = load()
    images, labels = batch(0)
    try:
        peer = results_of(net, DTYPE, images, labels)
    except RuntimeError as error:  # a dtype or op this version lacks on the CPU
        peer, reason = None, str(error).splitlines()[0]
    exact = results_of(net.double(), None, images.double(), labels)
    own = read_safetensors(ARGS.folder / f"mezzo_{ARGS.precision}.safetensors")
    result = {"mezzo": errors(own, exact)}
    if peer:
        result["torch"], result["difference"] = errors(peer, exact), errors(own, peer)
    else:
        result["reason"] = reason
    return result


def train():
    settings, net, batch, steps = load()
    own = read_safetensors(ARGS.folder / f"mezzo_{ARGS.precision}.safetensors")
    optimizer = model.sgd(net, lr=settings["lr"], momentum=settings["momentum"], weight_decay=settings["weight_decay"],
                          nesterov=settings["momentum"] > 0)
    scaler = model.scaler_of("cpu", init_scale=settings["scale"], enabled=True) if ARGS.precision == "fp16" else None
    net.train()
    losses, skipped, running = [], [], {}
    for step in range(steps):
        scale = scaler.get_scale() if scaler else 1
        losses.append(model.training_step(net, optimizer, *batch(step), dtype=DTYPE, scaler=scaler)[0].item())
        skipped.append(bool(scaler) and scaler.get_scale() < scale)
        if step == 2:
            running = {name: value.clone() for name, value in net.named_buffers()}
    result = {"losses": losses, "mezzo_losses": own["losses"].tolist(), "skipped": [i for i, s in enumerate(skipped) if s],
              "mezzo_skipped": [i for i, s in enumerate(own["skipped"].tolist()) if s]}
    if running:
        result["running"] = largest({name: own["running." + name] for name in running}, running)
        result["running_itself"] = from_other_layout(running)
    return result


def largest(actual, expected):
    return max(distance(actual[name], value.double()) for name, value in expected.items())


def from_other_layout(running):
    """How far these statistics are from those of the run in the other layout, if there was one in this folder before."""
    other = ARGS.folder / f"running_{'nchw' if ARGS.layout == 'channels_last' else 'channels_last'}.pt"
    torch.save(running, ARGS.folder / f"running_{ARGS.layout}.pt")
    return largest(running, torch.load(other)) if other.exists() else None


def read_cifar(paths):
    """uint8 [n, 32, 32, 3] and int64 [n]."""
    data = torch.cat([torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).reshape(-1, 3073) for path in paths])
    return data[:, 1:].reshape(-1, 3, 32, 32).permute(0, 2, 3, 1).contiguous(), data[:, 0].long()


def data_sets():
    files = sorted(ARGS.data.glob("*.bin"))
    training = [p for p in files if p.name.startswith(("train", "data_batch"))]
    test = [p for p in files if p.name.startswith("test")]
    if not training or not test:
        sys.exit(f"torch_resnet: {ARGS.data}: has no train*.bin or data_batch*.bin, or no test*.bin")
    return read_cifar(training), read_cifar(test)


def cropped_and_flipped(images, random):
    """Each image, padded by 4 black pixels, from a random place, and every second one mirrored."""
    n, height, width, _ = images.shape
    padded = nn.functional.pad(images, (0, 0, 4, 4, 4, 4))
    down, across = (torch.randint(0, 9, (n, 1), generator=random) for _ in range(2))
    columns = torch.arange(width).expand(n, width)
    columns = torch.where(torch.rand(n, 1, generator=random) < 0.5, columns.flip(1), columns) + across
    rows = torch.arange(height).expand(n, height) + down
    return padded[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]


def rate_at(step, steps):
    """Linear warm-up, then a cosine to 0."""
    warmup = int(ARGS.warmup * steps)
    if step < warmup:
        return ARGS.lr * (step + 1) / warmup
    return ARGS.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


class Log:
    """A CSV that tools/chart.py draws."""
    COLUMNS = ["kind", "epoch", "step", "seconds", "loss", "train_accuracy", "test_accuracy", "lr", "scale", "skipped", "images_per_s",
               "peak_bytes"]

    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8") if path else None
        self.write({name: name for name in self.COLUMNS})

    def write(self, row):
        if self.file:
            print(",".join(str(row.get(name, "")) for name in self.COLUMNS), file=self.file, flush=True)


@torch.no_grad()
def accuracy(net, images, labels):
    net.eval()
    right = 0
    for i in range(0, len(labels), 500):
        with torch.autocast("cpu", dtype=DTYPE or torch.bfloat16, enabled=DTYPE is not None):
            right += (net(prepared(images[i:i + 500], MEAN, STDDEV)).argmax(1) == labels[i:i + 500]).sum().item()
    net.train()
    return right / len(labels)


def fit():
    torch.manual_seed(ARGS.seed)
    random = torch.Generator().manual_seed(ARGS.seed)
    (images, labels), test = data_sets()
    net = model.ResNet(ARGS.model, "cifar", 10, shortcut=ARGS.shortcut).to(memory_format=FORMAT)
    optimizer = model.sgd(net, lr=ARGS.lr, momentum=ARGS.momentum, weight_decay=ARGS.weight_decay, nesterov=ARGS.momentum > 0)
    scaler = model.scaler_of("cpu") if ARGS.precision == "fp16" else None
    per_epoch = -(-len(labels) // ARGS.batch)
    log, step, skipped, seconds, reported = Log(ARGS.log), 0, 0, 0.0, (0, 0.0)
    for epoch in range(1, ARGS.epochs + 1):
        order, epoch_start, losses, right = torch.randperm(len(labels), generator=random), seconds, [], 0
        for part in order.split(ARGS.batch):
            begin = time.perf_counter()
            lr = rate_at(step, ARGS.epochs * per_epoch)
            for group in optimizer.param_groups:
                group["lr"] = lr
            scale = scaler.get_scale() if scaler else 0
            batch = prepared(cropped_and_flipped(images[part], random), MEAN, STDDEV)
            loss, logits = model.training_step(net, optimizer, batch, labels[part], dtype=DTYPE, scaler=scaler)
            losses.append(loss.item())
            right += (logits.argmax(1) == labels[part]).sum().item()
            skipped += bool(scaler) and scaler.get_scale() < scale
            step += 1
            seconds += time.perf_counter() - begin
            row = {"epoch": epoch, "step": step, "seconds": f"{seconds:.3f}", "lr": f"{lr:.6g}",
                   "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
            if scaler:
                row.update(scale=f"{scaler.get_scale():g}", skipped=skipped)
            if step % 10 == 0:
                log.write({**row, "kind": "step", "loss": f"{sum(losses[-10:]) / len(losses[-10:]):.6g}",
                           "images_per_s": f"{(step - reported[0]) * ARGS.batch / (seconds - reported[1]):.1f}"})
                reported = (step, seconds)
        result = accuracy(net, *test)
        log.write({**row, "kind": "epoch", "loss": f"{sum(losses) / len(losses):.6g}", "train_accuracy": f"{right / len(labels):.4f}",
                   "test_accuracy": f"{result:.4f}", "images_per_s": f"{len(labels) / (seconds - epoch_start):.1f}"})
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.4f}, training accuracy {100 * right / len(labels):.2f} %, "
              f"test accuracy {100 * result:.2f} %, {seconds - epoch_start:.1f} s", flush=True)


def main():
    torch.set_num_threads(ARGS.threads)
    if ARGS.mode == "fit":
        fit()
        return
    result = {"framework": f"torch {torch.__version__}", "precision": ARGS.precision}
    result.update(values() if ARGS.mode == "values" else train())
    print(json.dumps(result))


main()
