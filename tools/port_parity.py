#!/usr/bin/env python3
"""Three PyTorch programs and their ports, tools/port_parity.cpp, trained from the same weights on the same batches in float64: a U-Net
that segments discs, a ViT with Muon, AdamW and an average of its weights, and a speech model with CTC on synthetic audio.

    tools/port_parity.py build/tools/port_parity --torch python3
The lines of both files stand in the same order. Exits with 1 if a loss of 12 steps differs by more than the tolerance."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from parity import output, table
from ranges import COUNT

# Muon orthogonalises in bfloat16, where another order of sums rounds otherwise.
TOLERANCE = {"unet": 1e-9, "vit": 1e-3, "ctc": 1e-7}  # optimizers with kernels, such as NAdam, hold their rates in float32
MODELS = list(TOLERANCE)


def torch_side(folder, model, steps):
    import math

    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from tensor_files import save

    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)

    class Block(nn.Sequential):
        def __init__(self, before, after):
            super().__init__(nn.Conv2d(before, after, 3, padding="same", bias=False, padding_mode="reflect"), nn.BatchNorm2d(after), nn.LeakyReLU(0.1),
                             nn.Conv2d(after, after, 3, padding=1, bias=False), nn.InstanceNorm2d(after, affine=True), nn.ReLU6())

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down1, self.down2, self.bottom = Block(1, 8), Block(8, 16), Block(16, 32)
            self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(16, 8, 1))
            self.join2, self.join1, self.head = Block(32, 16), Block(16, 8), nn.Conv2d(8, 1, 1)

        def forward(self, x):
            a = self.down1(x)
            b = self.down2(F.max_pool2d(a, 2))
            c = self.bottom(F.max_pool2d(b, 2))
            y = self.join2(torch.cat([self.up2(c), b], 1))
            y = self.join1(torch.cat([self.up1(y), a], 1))
            return self.head(y)

    class ViT(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 48, 4, stride=4)
            self.token, self.positions = nn.Parameter(torch.randn(1, 1, 48) * 0.02), nn.Parameter(torch.randn(1, 17, 48) * 0.02)
            layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0, activation="gelu", batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
            self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, 10)

        def forward(self, x):
            y = self.patches(x).flatten(2).transpose(1, 2)
            y = torch.cat([self.token.expand(x.size(0), -1, -1), y], 1) + self.positions
            return self.head(self.norm(self.encoder(y))[:, 0])

    class Speech(nn.Module):
        def __init__(self):
            super().__init__()
            self.front = nn.Sequential(nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.GELU(), nn.GroupNorm(4, 32))
            self.rnn, self.head = nn.LSTM(32, 24, num_layers=2, bidirectional=True), nn.Linear(48, 12)

        def forward(self, x):  # [N, 16, T] -> [T / 2, N, 12]
            y = self.front(x).permute(2, 0, 1)
            return F.log_softmax(self.head(self.rnn(y)[0]), -1)

    net = {"unet": UNet, "vit": ViT, "ctc": Speech}[model]()
    save(folder / "weights.safetensors", {name: x.detach().clone() for name, x in net.state_dict().items()})

    def unet_batch():
        y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
        centre, radius = torch.rand(4, 2) * 20 + 6, torch.rand(4) * 4 + 3
        discs = ((y - centre[:, :1, None]) ** 2 + (x - centre[:, 1:, None]) ** 2 < radius[:, None, None] ** 2).double()[:, None]
        return {"x": discs + 0.5 * torch.randn(4, 1, 32, 32), "y": discs}

    def vit_batch():
        return {"x": torch.randn(8, 3, 16, 16), "y": torch.randint(0, 10, (8,))}

    def ctc_batch():  # tones: each symbol is a frequency that lasts some frames
        x, targets, lengths = 0.1 * torch.randn(4, 16, 64), torch.zeros(4, 8, dtype=torch.int64), torch.tensor([8, 6, 5, 0])
        for n in range(4):
            for i in range(int(lengths[n])):
                targets[n, i] = symbol = int(torch.randint(1, 12, ()))
                x[n, :, 8 * i:8 * i + 6] += torch.sin(symbol * torch.arange(16.0) / 3)[:, None]
        return {"x": x, "y": targets, "input_lengths": torch.tensor([32, 30, 28, 25]), "target_lengths": lengths}

    batches = [{"unet": unet_batch, "vit": vit_batch, "ctc": ctc_batch}[model]() for _ in range(steps)]
    save(folder / "batches.safetensors", {f"{i}.{name}": x for i, batch in enumerate(batches) for name, x in batch.items()})
    losses = []

    def dice(logits, y):
        p = torch.sigmoid(logits)
        return 1 - (2 * (p * y).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + 1)

    def train_unet():
        optimizer = torch.optim.RAdam(net.parameters(), lr=3e-3, weight_decay=1e-4, decoupled_weight_decay=True)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.2, total_iters=4)
        for batch in batches:
            logits = net(batch["x"])
            loss = F.binary_cross_entropy_with_logits(logits, batch["y"], pos_weight=torch.tensor([3.0])) + dice(logits, batch["y"]).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())

    def train_vit():
        matrices = [p for name, p in net.named_parameters() if p.dim() == 2 and name.startswith("encoder")]
        others = [p for name, p in net.named_parameters() if p.dim() != 2 or not name.startswith("encoder")]
        muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01, momentum=0.95)
        adamw = torch.optim.AdamW(others, lr=1e-3, weight_decay=0.05)
        average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        for batch in batches:
            loss = F.cross_entropy(net(batch["x"]), batch["y"], label_smoothing=0.1)
            loss.backward()
            muon.step()
            adamw.step()
            muon.zero_grad()
            adamw.zero_grad()
            average.update_parameters(net)
            with torch.no_grad():
                losses.extend([loss.item(), F.cross_entropy(average(batch["x"]), batch["y"]).item()])

    def train_ctc():
        optimizer = torch.optim.NAdam(net.parameters(), lr=2**-8)
        for batch in batches:
            loss = F.ctc_loss(net(batch["x"]), batch["y"], batch["input_lengths"], batch["target_lengths"], zero_infinity=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    {"unet": train_unet, "vit": train_vit, "ctc": train_ctc}[model]()
    assert all(math.isfinite(loss) for loss in losses)
    print(json.dumps(losses))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the built port_parity")
    parser.add_argument("--torch", metavar="PYTHON", default=sys.executable, help="an interpreter that has torch")
    parser.add_argument("--steps", type=COUNT, default=12)
    parser.add_argument("--side", help=argparse.SUPPRESS)  # folder,model of PyTorch's process
    args = parser.parse_args()
    if args.side:
        folder, model = args.side.split(",")
        torch_side(pathlib.Path(folder), model, args.steps)
        return
    failed, rows = False, []
    for model in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            wanted = json.loads(output([args.torch, __file__, "-", "--steps", args.steps, "--side", f"{folder},{model}"]))
            losses = json.loads(output([args.program, folder, "--model", model]))
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, wanted)) if len(losses) == len(wanted) else float("inf")
        failed = failed or not worst <= TOLERANCE[model]
        rows.append([model, str(len(wanted)), f"{wanted[0]:.6f}", f"{wanted[-1]:.6f}", f"{losses[-1]:.6f}", f"{worst:.1e}"])
    table(["model", "losses", "first", "last of PyTorch", "last of mezzo", "largest relative difference"], rows)
    sys.exit(failed)


if __name__ == "__main__":
    main()
