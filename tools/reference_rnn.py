#!/usr/bin/env python3
"""Writes tests/reference/rnn.h: recurrent layers and cells of PyTorch (any CPU build), in float64.

Usage: tools/reference_rnn.py > tests/reference/rnn.h

Inputs, states and parameters are waves(), which tests/nn/rnn_test.cpp makes by the same formula. Each array has the output, the last states, and
of the loss sum(result * waves(of its shape)) over all results the gradients of the input and the states; of each parameter's
gradient its sum with waves(of its shape) as weights.
"""
import torch
from torch import nn

T, B, I, H = 4, 3, 2, 3
LENGTHS = [2, 4, 1]


def waves(shape, phase, scale=1.0):
    count = torch.Size(shape).numel()
    return (scale * torch.sin(1.3 * torch.arange(count, dtype=torch.float64) + phase)).reshape(shape)


def write(name, net, inputs, results):
    loss = sum((y * waves(y.shape, 0.25)).sum() for y in results)
    parameters = list(net.parameters())
    gradients = torch.autograd.grad(loss, inputs + parameters)
    values = [v for y in list(results) + list(gradients[:len(inputs)]) for v in y.detach().flatten().tolist()]
    values += [(g * waves(g.shape, 0.4)).sum().item() for g in gradients[len(inputs):]]
    print(f"inline constexpr double {name}[] = {{")
    for i in range(0, len(values), 5):
        print("    " + " ".join(f"{v:.15g}," for v in values[i:i + 5]))
    print("};")


def filled(net):
    net = net.double()
    with torch.no_grad():
        for j, p in enumerate(net.parameters()):
            p.copy_(waves(p.shape, float(j), 0.7))
    return net


def layers(name, make, lengths=False, states=True, **options):
    net = filled(make(I, H, **options))
    count = net.num_layers * (2 if net.bidirectional else 1)
    x = waves((B, T, I) if net.batch_first else (T, B, I), 0.5).requires_grad_()
    lstm = isinstance(net, nn.LSTM)
    start = [waves((count, B, net.proj_size or H), 1.5)] + ([waves((count, B, H), 2.5)] if lstm else []) if states else []
    start = [s.requires_grad_() for s in start]
    given = nn.utils.rnn.pack_padded_sequence(x, LENGTHS, net.batch_first, enforce_sorted=False) if lengths else x
    y, last = net(given, (tuple(start) if lstm else start[0]) if states else None)
    if lengths:
        y, _ = nn.utils.rnn.pad_packed_sequence(y, net.batch_first, total_length=T)
    write(name, net, [x] + start, [y] + (list(last) if lstm else [last]))


def cell(name, make, **options):
    net = filled(make(I, H, **options))
    x, h, c = (waves(s, p).requires_grad_() for s, p in (((B, I), 0.5), ((B, H), 1.5), ((B, H), 2.5)))
    lstm = isinstance(net, nn.LSTMCell)
    result = net(x, (h, c) if lstm else h)
    write(name, net, [x, h, c] if lstm else [x, h], list(result) if lstm else [result])


def main():
    print("// Written by tools/reference_rnn.py with PyTorch " + torch.__version__ + "; do not edit.\n// clang-format off")
    print("#pragma once\n\nnamespace reference {\n")
    layers("rnn_tanh", nn.RNN)
    layers("rnn_relu", nn.RNN, nonlinearity="relu", num_layers=2, bidirectional=True, states=False)
    layers("rnn_lengths", nn.RNN, num_layers=2, bidirectional=True, lengths=True)
    layers("lstm", nn.LSTM, states=False)
    layers("lstm_deep", nn.LSTM, num_layers=2, bidirectional=True, batch_first=True)
    layers("lstm_lengths", nn.LSTM, num_layers=2, bidirectional=True, lengths=True)
    layers("lstm_lengths_from_zero", nn.LSTM, bidirectional=True, lengths=True, states=False, batch_first=True)
    layers("lstm_projected", nn.LSTM, num_layers=2, bidirectional=True, proj_size=2)
    layers("lstm_projected_lengths", nn.LSTM, bidirectional=True, proj_size=2, lengths=True)
    layers("gru", nn.GRU, states=False)
    layers("gru_deep", nn.GRU, num_layers=2, bidirectional=True, batch_first=True, bias=False)
    layers("gru_lengths", nn.GRU, num_layers=2, bidirectional=True, lengths=True)
    cell("rnn_cell", nn.RNNCell)
    cell("rnn_cell_relu", nn.RNNCell, nonlinearity="relu", bias=False)
    cell("lstm_cell", nn.LSTMCell)
    cell("gru_cell", nn.GRUCell)
    print("\n}  // namespace reference")


if __name__ == "__main__":
    main()
