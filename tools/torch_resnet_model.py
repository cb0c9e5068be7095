"""ResNets in plain PyTorch (any version) with torchvision's layout and names, and what a training step is. Shared by
tools/torch_resnet.py and tools/torch_bench.py.

The sizes 18, 34, 50 and 101 are those of He et al. (arXiv 1512.03385), with the stride of a bottleneck at its 3x3 convolution; their
stem is ImageNet's (7x7 with stride 2 and a max-pool) or CIFAR's (3x3). The sizes 8, 20 and 56 are those of its section 4.2: three stages
of 16, 32 and 64 channels behind CIFAR's stem. There the paper's shortcuts have no parameters (option A: every second pixel, and zeros for
the channels that are new); option B has 1x1 convolutions as everywhere else."""
import torch
from torch import nn
from torch.nn import functional as F

from torch_bert_model import update

SIZES = {18: ("basic", (2, 2, 2, 2)), 34: ("basic", (3, 4, 6, 3)), 50: ("bottleneck", (3, 4, 6, 3)), 101: ("bottleneck", (3, 4, 23, 3)),
         8: ("basic", (1, 1, 1)), 20: ("basic", (3, 3, 3)), 56: ("basic", (9, 9, 9))}


def convolution(inputs, outputs, size, stride=1):
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """Two 3x3 convolutions, or 1x1, 3x3, 1x1 with four times the channels at the end."""

    def __init__(self, inputs, channels, stride, kind, shortcut):
        super().__init__()
        outputs = channels * (4 if kind == "bottleneck" else 1)
        if kind == "bottleneck":
            self.conv1, self.conv2 = convolution(inputs, channels, 1), convolution(channels, channels, 3, stride)
            self.conv3, self.bn3 = convolution(channels, outputs, 1), nn.BatchNorm2d(outputs)
        else:
            self.conv1, self.conv2 = convolution(inputs, channels, 3, stride), convolution(channels, channels, 3)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.stride, self.kind, self.added, self.downsample = stride, kind, outputs - inputs, None
        if shortcut == "B" and (stride != 1 or inputs != outputs):
            self.downsample = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def identity(self, x):
        if self.downsample is not None:
            return self.downsample(x)
        x = x[:, :, ::self.stride, ::self.stride] if self.stride != 1 else x
        return F.pad(x, (0, 0, 0, 0, 0, self.added)) if self.added else x

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.kind == "bottleneck":
            y = self.bn3(self.conv3(F.relu(y)))
        return F.relu(y + self.identity(x))


class ResNet(nn.Module):
    def __init__(self, depth, stem="imagenet", classes=1000, channels=3, shortcut=None):
        super().__init__()
        kind, blocks = SIZES[depth]
        small = len(blocks) == 3
        width, shortcut = 16 if small else 64, shortcut or ("A" if small else "B")
        self.stem = "cifar" if small else stem
        self.conv1 = convolution(channels, width, 3) if self.stem == "cifar" else convolution(channels, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.stages, inputs = len(blocks), width
        for i, count in enumerate(blocks):
            stage = []
            for j in range(count):
                stage.append(Block(inputs, width << i, 2 if i > 0 and j == 0 else 1, kind, shortcut))
                inputs = (width << i) * (4 if kind == "bottleneck" else 1)
            setattr(self, f"layer{i + 1}", nn.Sequential(*stage))
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x):
        """The results of the stages."""
        x = F.relu(self.bn1(self.conv1(x)))
        if self.stem == "imagenet":
            x = F.max_pool2d(x, 3, 2, 1)
        results = []
        for i in range(self.stages):
            x = getattr(self, f"layer{i + 1}")(x)
            results.append(x)
        return results

    def head(self, x):
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

    def forward(self, x):
        return self.head(self.features(x)[-1])


def scaler_of(device, **options):
    """A gradient scaler for the device, of the newest interface that this version has."""
    try:
        return torch.amp.GradScaler(device, **options)
    except (AttributeError, TypeError):
        return torch.cuda.amp.GradScaler(**options)


def sgd(net, **options):
    """The fastest SGD this version has."""
    for choice in ({"fused": True}, {"foreach": True}, {}):
        try:
            return torch.optim.SGD(net.parameters(), **options, **choice)
        except (TypeError, RuntimeError, ValueError):  # not in this version, or not on this device
            continue
    raise RuntimeError("torch.optim.SGD takes none of fused, foreach and neither")


def loss_of(net, images, labels, device="cpu", dtype=None):
    """dtype: of autocast."""
    with torch.autocast(device, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        logits = net(images)
    return F.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), labels), logits


def training_step(net, optimizer, images, labels, device="cpu", dtype=None, scaler=None):
    """Returns loss and logits."""
    optimizer.zero_grad(set_to_none=True)
    loss, logits = loss_of(net, images, labels, device, dtype)
    update(loss, optimizer, scaler)
    return loss.detach(), logits.detach()
