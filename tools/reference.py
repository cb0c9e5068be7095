#!/usr/bin/env python3
"""Writes tests/reference/pytorch.h: trajectories of optimizers, schedules, losses and Transformer layers from PyTorch (any CPU build).

Usage: tools/reference.py > tests/reference/pytorch.h
"""
import torch

STEPS, SIZE = 8, 5


def gradients():
    generator = torch.Generator().manual_seed(7)
    return torch.randn(STEPS, SIZE, generator=generator, dtype=torch.float64).float()


def array(name, rows):
    def words(row):
        return ", ".join(f"{float(v):.9g}f" if "." in f"{float(v):.9g}" or "e" in f"{float(v):.9g}"
                         else f"{float(v):.9g}.f" for v in row)
    rows = [list(r) for r in rows]
    print(f"inline constexpr float {name}[{len(rows)}][{len(rows[0])}] = {{")
    for row in rows:
        print(f"    {{{words(row)}}},")
    print("};")


START = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0])


def trajectory(name, make):
    parameter = torch.nn.Parameter(START.clone())
    optimizer = make([parameter])
    rows = []
    for gradient in gradients():
        parameter.grad = gradient.clone()
        optimizer.step()
        rows.append(parameter.detach().clone())
    array(name, rows)


def schedule(name, make):
    parameter = torch.nn.Parameter(START.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    scheduler = make(optimizer)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(9):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    array(name, [rates])


LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.1, 0.2, -3.0], [-40.0, 50.0, 3.0], [1.5, 1.5, 1.5]])
TARGETS = torch.tensor([0, 2, -100, 1])


def loss(name, function, value):
    x = value.clone().requires_grad_()
    y = function(x)
    y.backward()
    array(name, [[y.item()] + x.grad.flatten().tolist()])  # the loss, then its gradient


def waves(shape, phase, scale):
    """Values that tests/nn/transformer_test.cpp makes by the same formula."""
    count = torch.tensor(shape).prod().item()
    return (scale * torch.sin(1.3 * torch.arange(count, dtype=torch.float64) + phase)).float().reshape(shape)


def module(name, net, call):
    """The output, the gradient of the first input, then those of all parameters in their order."""
    with torch.no_grad():
        for j, parameter in enumerate(net.parameters()):
            parameter.copy_(waves(parameter.shape, j, 0.7))
    x = waves((2, 3, 4), 0.5, 1).requires_grad_()
    y = call(net, x)
    y.backward(waves(y.shape, 0.25, 1))
    array(name + "_output", y.detach().reshape(-1, 4))
    array(name + "_input_gradient", x.grad.reshape(-1, 4))
    array(name + "_gradients", [torch.cat([p.grad.flatten() for p in net.parameters()])])


def transformer():
    nn = torch.nn
    padding = torch.tensor([[False, False, False], [False, False, True]])
    causal = torch.ones(3, 3, dtype=torch.bool).triu(1)
    module("encoder_layer", nn.TransformerEncoderLayer(4, 2, 6, dropout=0, activation="gelu", batch_first=True),
           lambda net, x: net(x, src_key_padding_mask=padding))
    module("encoder_layer_norm_first", nn.TransformerEncoderLayer(4, 2, 6, dropout=0, batch_first=True, norm_first=True),
           lambda net, x: net(x, src_mask=causal))
    memory, added = waves((2, 2, 4), 1.5, 1), waves((3, 2), 2.5, 1)
    module("cross_attention", nn.MultiheadAttention(4, 2, batch_first=True),
           lambda net, x: net(x, memory, memory.flip(1), attn_mask=added, need_weights=False)[0])


def main():
    print("// Written by tools/reference.py with PyTorch " + torch.__version__ + "; do not edit.")
    print("#pragma once\n\nnamespace reference {\n")
    array("gradients", gradients())
    array("start", [START])
    optim, lr = torch.optim, torch.optim.lr_scheduler
    trajectory("sgd", lambda p: optim.SGD(p, lr=0.1))
    trajectory("sgd_momentum", lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.05))
    trajectory("sgd_nesterov", lambda p: optim.SGD(p, lr=0.1, momentum=0.8, weight_decay=0.01, nesterov=True))
    trajectory("sgd_maximize", lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, maximize=True))
    trajectory("adam", lambda p: optim.Adam(p, lr=0.05))
    trajectory("adam_decay", lambda p: optim.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1))
    trajectory("adam_maximize", lambda p: optim.Adam(p, lr=0.05, weight_decay=0.1, maximize=True))
    trajectory("adamw", lambda p: optim.AdamW(p, lr=0.05))
    trajectory("adamw_decay", lambda p: optim.AdamW(p, lr=0.05, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.3))
    schedule("step_lr", lambda o: lr.StepLR(o, step_size=3, gamma=0.5))
    schedule("exponential_lr", lambda o: lr.ExponentialLR(o, gamma=0.9))
    schedule("cosine_lr", lambda o: lr.CosineAnnealingLR(o, T_max=6, eta_min=0.05))
    schedule("lambda_lr", lambda o: lr.LambdaLR(o, lambda t: 1 / (1 + t)))
    f = torch.nn.functional
    array("logits", LOGITS)
    other = LOGITS.flip(0) * 0.3
    unit = torch.tensor([[0.1, 0.9, 0.5], [0.0, 1.0, 0.25], [0.7, 0.3, 0.2], [0.6, 0.4, 0.8]])
    array("unit", unit)
    array("other", other)
    loss("cross_entropy", lambda x: f.cross_entropy(x, TARGETS), LOGITS)
    loss("cross_entropy_smoothed", lambda x: f.cross_entropy(x, TARGETS, label_smoothing=0.1), LOGITS)
    loss("nll", lambda x: f.nll_loss(x, TARGETS), torch.log_softmax(LOGITS, 1))
    loss("mse", lambda x: f.mse_loss(x, other), LOGITS)
    loss("l1", lambda x: f.l1_loss(x, other, reduction="sum"), LOGITS)
    loss("smooth_l1", lambda x: f.smooth_l1_loss(x, other, beta=0.5), LOGITS)
    loss("bce_logits", lambda x: f.binary_cross_entropy_with_logits(x, unit), LOGITS)
    loss("bce", lambda x: f.binary_cross_entropy(x, torch.sigmoid(other)), unit)
    transformer()
    print("\n}  // namespace reference")


if __name__ == "__main__":
    main()
