#!/usr/bin/env python3
"""Writes tests/reference/conv.h: results and gradients of PyTorch's convolutions, in PyTorch's layouts, in float64.

Usage: tools/reference_conv.py > tests/reference/conv.h
"""
import torch
import torch.nn.functional as F


def waves(shape, phase):
    """Values that tests/ops/conv_test.cpp makes by the same formula."""
    count = torch.Size(shape).numel()
    return torch.sin(1.3 * torch.arange(count, dtype=torch.float64) + phase).reshape(shape)


# (input [N, C, H, W], weight, has a bias, stride, padding, dilation, groups, output_padding or None: not transposed)
CASES = [
    ((2, 3, 5, 4), (4, 3, 3, 3), True, (1, 1), (1, 1), (1, 1), 1, None),
    ((2, 5, 3, 4), (7, 5, 1, 1), False, (1, 1), (0, 0), (1, 1), 1, None),
    ((1, 4, 5, 5), (3, 4, 1, 1), True, (2, 2), (0, 0), (1, 1), 1, None),
    ((2, 1, 6, 5), (1, 1, 5, 3), False, (1, 1), (2, 1), (1, 1), 1, None),
    ((2, 3, 7, 6), (2, 3, 3, 3), True, (2, 2), (1, 1), (1, 1), 1, None),
    ((1, 3, 8, 8), (2, 3, 7, 7), False, (2, 2), (3, 3), (1, 1), 1, None),
    ((1, 2, 6, 7), (3, 2, 3, 3), True, (1, 2), (2, 3), (2, 3), 1, None),
    ((2, 4, 4, 3), (6, 2, 3, 3), True, (1, 1), (1, 1), (1, 1), 2, None),
    ((1, 3, 5, 6), (6, 1, 3, 3), False, (2, 1), (1, 0), (1, 1), 3, None),
    ((2, 8, 4, 3), (3, 8, 4, 3), True, (1, 1), (0, 0), (1, 1), 1, None),
    ((2, 3, 3, 4), (3, 2, 3, 3), True, (2, 2), (1, 1), (1, 1), 1, (1, 0)),
    ((1, 4, 3, 2), (4, 2, 3, 2), True, (1, 3), (0, 1), (2, 1), 2, (1, 2)),
]


def run(index, case):
    x_shape, weight_shape, has_bias, stride, padding, dilation, groups, output_padding = case
    outs = weight_shape[0] if output_padding is None else weight_shape[1] * groups
    x, weight, bias = waves(x_shape, 0.5), waves(weight_shape, 1.5), waves((outs,), 2.5)
    leaves = [x, weight] + ([bias] if has_bias else [])
    for leaf in leaves:
        leaf.requires_grad_()
    bias = bias if has_bias else None
    if output_padding is None:
        y = F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    else:
        y = F.conv_transpose2d(x, weight, bias, stride, padding, output_padding, groups, dilation)
    y.backward(waves(y.shape, 0.25))
    print(f"inline constexpr double values_{index}[] = {{")
    for tensor in [y] + [leaf.grad for leaf in leaves]:
        print("    " + ", ".join(f"{v:.13g}" for v in tensor.flatten().tolist()) + ",")
    print("};")


def braces(numbers):
    return "{" + ", ".join(str(n) for n in numbers) + "}"


print(f"""// Written by tools/reference_conv.py with PyTorch {torch.__version__.split('+')[0]}; do not edit.
// clang-format off
#pragma once

#include <cstdint>
#include <span>

namespace reference {{

// x [N, C, H, W] and weight as PyTorch has them. values: the result, then the gradients of x, weight and bias.
struct Convolution {{
    std::int64_t x[4], weight[4];
    bool bias;
    std::int64_t stride[2], padding[2], dilation[2], groups;
    bool transposed;
    std::int64_t output_padding[2];
    std::span<const double> values;
}};
""")
for number, given in enumerate(CASES):
    run(number, given)
print("\ninline constexpr Convolution convolutions[] = {")
for number, (x_shape, w_shape, has_bias, s, p, d, g, more) in enumerate(CASES):
    print(f"    {{{braces(x_shape)}, {braces(w_shape)}, {str(has_bias).lower()}, {braces(s)}, {braces(p)}, {braces(d)}, {g}, "
          f"{str(more is not None).lower()}, {braces(more or (0, 0))}, values_{number}}},")
print("};\n\n}  // namespace reference")
