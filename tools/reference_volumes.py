#!/usr/bin/env python3
"""Writes tests/reference/volumes.h: values and gradients of 3-d convolutions, pooling, unfolding, sampling and normalisation from
PyTorch (any CPU build).

Usage: tools/reference_volumes.py > tests/reference/volumes.h
"""
import torch
import torch.nn.functional as F

SHAPES = {"volume": (1, 3, 4, 3, 2), "image": (1, 4, 5, 2), "line": (1, 7, 2)}  # channels last


def values(shape, step, modulus):
    """The numbers that tests/ops/volume_test.cpp makes, too: with ties, and exact in every dtype."""
    count = torch.Size(shape).numel()
    return (torch.tensor([(i * step + 3) % modulus - modulus // 2 for i in range(count)], dtype=torch.float64) / 8).reshape(shape)


def channels_first(x):
    return x.permute(0, x.dim() - 1, *range(1, x.dim() - 1))


def channels_last(x):
    return x.permute(0, *range(2, x.dim()), 1).contiguous()


def array(name, kind, numbers):
    words = [f"{float(v):.9g}" for v in numbers.reshape(-1)]
    print(f"inline constexpr double {name}_{kind}[{len(words)}] = {{")
    for i in range(0, len(words), 16):
        print("    " + ", ".join(words[i:i + 16]) + ",")
    print("};")


def case(name, function, inputs):
    """inputs: a name of SHAPES or a shape; those of more than two dimensions have their channels last."""
    given = [values(SHAPES.get(shape, shape), 29 + 2 * i, 31).requires_grad_() for i, shape in enumerate(inputs)]
    y = function(*given)
    y.backward(values(y.shape, 13, 17))
    sizes = ", ".join(str(n) for n in y.shape)
    print(f"inline constexpr std::int64_t {name}_shape[{y.dim()}] = {{{sizes}}};")
    array(name, "value", y.detach())
    array(name, "gradient", torch.cat([x.grad.reshape(-1) for x in given]))


def of(function):
    """A function of a tensor with channels first, for one with channels last."""
    return lambda x: channels_last(function(channels_first(x)))


def conv(function, **options):
    return lambda x, w, b: channels_last(function(channels_first(x), channels_first(w), b, **options))


def grid(dims, *sizes):
    """Positions from -1.5 to 1.5."""
    return values((1, *sizes, dims), 7, 23) * 1.05


def sample(dims, sizes, **options):
    return lambda x: channels_last(F.grid_sample(channels_first(x), grid(dims, *sizes), **options))


def instance_norm(x):
    y = F.instance_norm(x)
    y.register_hook(lambda g: g.contiguous())  # PyTorch 2.15 takes the strides of another gradient for those of x
    return y


def unfold(x):
    y = F.unfold(channels_first(x), (2, 3), (2, 1), (1, 0), (1, 2))  # [N, C * 6, L]
    return y.reshape(1, 2, 6, -1).permute(0, 3, 2, 1).reshape(1, -1, 12)


def fold(x):
    y = x.reshape(1, 12, 4, 2).permute(0, 3, 2, 1).reshape(1, 8, 12)
    return channels_last(F.fold(y, (4, 5), 2))


print(f"// Written by tools/reference_volumes.py with PyTorch {torch.__version__.split('+')[0]}; do not edit.")
print("// clang-format off\n#pragma once\n\n#include <cstdint>\n\nnamespace volume_reference {\n")
case("conv3d", conv(F.conv3d, stride=(2, 1, 1), padding=(1, 0, 1), dilation=(1, 2, 1)), ["volume", (2, 2, 2, 3, 2), (2,)])
case("conv3d_same", conv(F.conv3d, padding="same"), ["volume", (2, 2, 3, 2, 2), (2,)])
case("conv_transpose3d", conv(F.conv_transpose3d, stride=2, padding=(1, 0, 1), output_padding=(1, 0, 1)), ["volume", (2, 3, 2, 2, 2), (2,)])
case("conv_transpose1d", conv(F.conv_transpose1d, stride=2, padding=1, output_padding=1), ["line", (2, 3, 2), (2,)])
case("max_3d", of(lambda x: F.max_pool3d(x, (2, 3, 2), (1, 2, 1), (1, 1, 0), ceil_mode=True)), ["volume"])
case("avg_3d", of(lambda x: F.avg_pool3d(x, (2, 3, 2), (1, 2, 2), (1, 1, 0), ceil_mode=True)), ["volume"])
case("avg_3d_divisor", of(lambda x: F.avg_pool3d(x, 2, ceil_mode=True, divisor_override=3)), ["volume"])
case("adaptive_avg_3d", of(lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2))), ["volume"])
case("adaptive_max_3d", of(lambda x: F.adaptive_max_pool3d(x, (2, 3, 2))), ["volume"])
case("unfold", unfold, ["image"])
case("fold", fold, [(1, 12, 8)])
for mode in ("bilinear", "nearest", "bicubic"):
    for padding in ("zeros", "border", "reflection"):
        corners = padding == "border"
        case(f"grid_{mode}_{padding}", sample(2, (3, 2), mode=mode, padding_mode=padding, align_corners=corners), ["image"])
case("grid_volume", sample(3, (2, 2, 2), align_corners=False), ["volume"])
case("grid_gradient", lambda g: channels_last(F.grid_sample(channels_first(values(SHAPES["image"], 11, 29)), g * 0.9 + 0.01,
                                                            mode="bicubic", align_corners=False)), [(1, 2, 3, 2)])
case("affine_grid", lambda theta: F.affine_grid(theta, (1, 2, 3, 4), align_corners=False), [(1, 2, 3)])
case("bicubic", of(lambda x: F.interpolate(x, (7, 3), mode="bicubic", align_corners=False)), ["image"])
case("bilinear_factor", of(lambda x: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bilinear", align_corners=False)), ["image"])
case("linear", of(lambda x: F.interpolate(x, 10, mode="linear", align_corners=True)), ["line"])
case("trilinear", of(lambda x: F.interpolate(x, (2, 5, 4), mode="trilinear", align_corners=False)), ["volume"])
case("nearest_exact", of(lambda x: F.interpolate(x, (3, 8), mode="nearest-exact")), ["image"])
case("response", of(lambda x: F.local_response_norm(x, 3, 0.5, 0.6, 1.5)), [(1, 2, 2, 5)])
case("instance", of(instance_norm), ["image"])
print("\n}  // namespace volume_reference")
