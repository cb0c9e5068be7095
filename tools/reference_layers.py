#!/usr/bin/env python3
"""Writes tests/reference/layers.h: layers, losses and Transformers of PyTorch (any CPU build), in float64.

Usage: tools/reference_layers.py > tests/reference/layers.h

Inputs and states are waves(), which tests/nn/layer_helpers.h makes by the same formula. Each array has the results, and of the
loss sum(result * waves(of its shape)) over all results the gradients of the inputs; of each parameter's gradient its sum with
waves(of its shape) as weights. Weights of images have the channels last there, as in mezzo's memory.
"""
import torch
from torch import nn
from torch.nn.utils import parametrizations

from reference_rnn import waves


def array(name, values):
    print(f"inline constexpr double {name}[] = {{")
    for i in range(0, len(values), 7):
        print("    " + " ".join(f"{v:.10g}," for v in values[i:i + 7]))
    print("};")


def filled(net):
    net = net.double()
    with torch.no_grad():
        for j, value in enumerate(net.state_dict().values()):
            value.copy_(waves(value.shape, float(j), 0.7))
    return net


def channels_last(g):
    return g.permute(0, 2, 3, 1) if g.dim() == 4 else g


def summary(name, net, inputs, results):
    loss = sum((y * waves(y.shape, 0.25)).sum() for y in results)
    parameters = list(net.parameters())
    gradients = torch.autograd.grad(loss, inputs + parameters)
    values = [v for y in list(results) + list(gradients[:len(inputs)]) for v in y.detach().flatten().tolist()]
    for g in map(channels_last, gradients[len(inputs):]):
        values.append((g * waves(g.shape, 0.4)).sum().item())
    array(name, values)


def leaves(*shapes):
    return [waves(shape, 0.5 + i).requires_grad_() for i, shape in enumerate(shapes)]


def activations():
    for make in (nn.ReLU6(), nn.Tanhshrink(), nn.LogSigmoid(), nn.Hardsigmoid(), nn.Hardswish(), nn.Mish(), nn.SELU(),
                 nn.LeakyReLU(0.2), nn.ELU(0.5), nn.CELU(2), nn.Hardshrink(1), nn.Softshrink(1), nn.GLU(), nn.Softmin(-1),
                 nn.Hardtanh(-2, 1), nn.Threshold(0.5, 7), nn.Softplus(2, 3), nn.PReLU(4)):
        x = waves((4, 4), 0.5, 4).requires_grad_()
        net = filled(make)
        summary("act_" + type(make).__name__, net, [x], [net(x)])


def losses():
    x, y, z = leaves((3, 4), (3, 4), (3, 4))
    classes = torch.tensor([1, 3, 0])
    sign = torch.tensor([1., -1, 1], dtype=torch.float64)
    for make, *given in ((nn.HuberLoss(delta=0.5), x, y), (nn.KLDivLoss(reduction="batchmean"), x, y.abs().detach()),
                         (nn.HingeEmbeddingLoss(), x, y.sign().detach()), (nn.CosineEmbeddingLoss(margin=0.1), x, y, sign),
                         (nn.TripletMarginLoss(margin=2), x, y, z), (nn.MarginRankingLoss(), x, y, z.sign().detach()),
                         (nn.SoftMarginLoss(), x, y.sign().detach()), (nn.MultiMarginLoss(p=2), x, classes),
                         (nn.MultiLabelMarginLoss(), x, torch.tensor([[1, 3, -1, 0], [2, -1, 0, 1], [0, 1, 2, 3]])),
                         (nn.MultiLabelSoftMarginLoss(), x, y.sigmoid().round().detach()),
                         (nn.PoissonNLLLoss(full=True), x, (4 * y.abs()).detach()),
                         (nn.GaussianNLLLoss(full=True), x, y, z.abs().detach())):
        inputs = [v for v in given if v.requires_grad]
        summary("loss_" + type(make).__name__, make, inputs, [make(*given)])


def ctc():
    x = waves((6, 2, 4), 0.5).requires_grad_()
    net = nn.CTCLoss(reduction="sum")
    summary("loss_CTCLoss", net, [x], [net(x.log_softmax(2), torch.tensor([[1, 2, 2], [3, 1, 0]]), torch.tensor([6, 5]),
                                           torch.tensor([3, 2]))])


def others():
    a, b = leaves((2, 3, 4), (2, 3, 5))
    net = filled(nn.Bilinear(4, 5, 3))
    summary("bilinear", net, [a, b], [net(a, b)])
    index = torch.tensor([1, 4, 0, 4, 2, 2, 3])
    offsets = torch.tensor([0, 3, 3, 6])
    for mode in ("sum", "mean", "max"):
        net = filled(nn.EmbeddingBag(5, 3, mode=mode, padding_idx=2))
        summary("bag_" + mode, net, [], [net(index, offsets), net(index[:6].reshape(2, 3))])
    net = filled(nn.EmbeddingBag(5, 3, mode="sum", include_last_offset=True))
    factors = waves((7,), 0.5).requires_grad_()
    summary("bag_weighted", net, [factors], [net(index, torch.tensor([0, 2, 7]), per_sample_weights=factors)])


def norms():
    x, = leaves((3, 4))
    net = filled(parametrizations.weight_norm(nn.Linear(4, 3)))
    summary("weight_norm", net, [x], [net(x)])
    net = filled(parametrizations.weight_norm(nn.Linear(4, 3), dim=None))
    summary("weight_norm_whole", net, [x], [net(x)])
    image, = leaves((2, 5, 4, 3))
    net = filled(parametrizations.weight_norm(nn.Conv2d(3, 2, 3), dim=1))
    summary("weight_norm_conv", net, [image], [net(image.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)])
    net = filled(parametrizations.spectral_norm(nn.Linear(4, 3), n_power_iterations=2))
    net(x)
    y = net(x)
    summary("spectral_norm", net, [x], [y] + list(net.buffers()))
    net = filled(parametrizations.spectral_norm(nn.ConvTranspose2d(3, 2, 3)))
    y = net(image.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    summary("spectral_norm_conv_transpose", net, [image], [y] + list(net.buffers()))


def attention():
    q, k, v = leaves((2, 3, 4), (2, 5, 6), (2, 5, 3))
    net = filled(nn.MultiheadAttention(4, 2, kdim=6, vdim=3, batch_first=True))
    summary("attention_kdim", net, [q, k, v], net(q, k, v))
    k, v = leaves((2, 5, 4), (2, 5, 4))
    hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    mask = torch.ones(3, 5, dtype=torch.bool).triu(3)
    net = filled(nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True))
    summary("attention_more", net, [q, k, v],
            net(q, k, v, key_padding_mask=hidden, attn_mask=mask, average_attn_weights=False))


def decoders():
    x, m = leaves((2, 3, 4), (2, 5, 4))
    causal = torch.ones(3, 3, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    options = {"dropout": 0, "batch_first": True}
    net = filled(nn.TransformerDecoderLayer(4, 2, 6, **options))
    summary("decoder_layer", net, [x, m], [net(x, m, tgt_mask=causal, memory_key_padding_mask=padding)])
    net = filled(nn.TransformerDecoderLayer(4, 2, 6, norm_first=True, activation="gelu", **options))
    summary("decoder_layer_norm_first", net, [x, m], [net(x, m)])
    net = filled(nn.Transformer(4, 2, 1, 2, 6, **options))
    summary("transformer", net, [m, x], [net(m, x, tgt_mask=causal, src_key_padding_mask=padding,
                                              memory_key_padding_mask=padding)])


def main():
    print("// Written by tools/reference_layers.py with PyTorch " + torch.__version__ + "; do not edit.\n// clang-format off")
    print("#pragma once\n\nnamespace reference {\n")
    for part in (activations, losses, ctc, others, norms, attention, decoders):
        part()
    print("\n}  // namespace reference")


if __name__ == "__main__":
    main()
