#!/usr/bin/env python3
"""Writes tests/reference/pool.h: values and input gradients of pooling, resizing and padding from PyTorch (any CPU build).

Usage: tools/reference_pool.py > tests/reference/pool.h
"""
import torch
import torch.nn.functional as F

SHAPE = (1, 5, 6, 2)  # [N, H, W, C]


def values(count, step, modulus):
    """The numbers that tests/ops/pool_test.cpp makes, too: with ties, and exact in every dtype."""
    return torch.tensor([(i * step + 3) % modulus - modulus // 2 for i in range(count)], dtype=torch.float64) / 8


def image(shape, step, modulus):
    return values(torch.Size(shape).numel(), step, modulus).reshape(shape)


def array(name, kind, numbers):
    words = [f"{float(v):.9g}" for v in numbers.reshape(-1)]
    print(f"inline constexpr double {name}_{kind}[{len(words)}] = {{")
    for i in range(0, len(words), 16):
        print("    " + ", ".join(words[i:i + 16]) + ",")
    print("};")


def case(name, function, shape=SHAPE):
    x = image(shape, 29, 31).requires_grad_()
    y = function(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()
    y.backward(image(y.shape, 13, 17))
    sizes = ", ".join(str(n) for n in y.shape)
    print(f"inline constexpr std::int64_t {name}_shape[{y.dim()}] = {{{sizes}}};")
    array(name, "value", y.detach())
    array(name, "gradient", x.grad)


print(f"// Written by tools/reference_pool.py with PyTorch {torch.__version__.split('+')[0]}; do not edit.")
print("// clang-format off\n#pragma once\n\n#include <cstdint>\n\nnamespace pool_reference {\n")
case("max_2", lambda x: F.max_pool2d(x, 2))
case("max_3_2_1", lambda x: F.max_pool2d(x, 3, 2, 1))
case("max_ceil", lambda x: F.max_pool2d(x, (2, 3), (2, 2), (0, 1), ceil_mode=True))
case("max_dilated", lambda x: F.max_pool2d(x, (2, 3), 1, (1, 0), (2, 2)))
case("avg_2", lambda x: F.avg_pool2d(x, 2))
case("avg_3_2_1", lambda x: F.avg_pool2d(x, 3, 2, 1))
case("avg_without_padding", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False))
case("avg_ceil", lambda x: F.avg_pool2d(x, (2, 4), (2, 3), (1, 2), ceil_mode=True))
case("avg_ceil_without_padding", lambda x: F.avg_pool2d(x, (2, 4), (2, 3), (1, 2), ceil_mode=True, count_include_pad=False))
case("adaptive_avg_1", lambda x: F.adaptive_avg_pool2d(x, 1))
case("adaptive_avg_3_4", lambda x: F.adaptive_avg_pool2d(x, (3, 4)))
case("adaptive_avg_7_8", lambda x: F.adaptive_avg_pool2d(x, (7, 8)))
case("adaptive_max_3_4", lambda x: F.adaptive_max_pool2d(x, (3, 4)))
case("adaptive_max_7_4", lambda x: F.adaptive_max_pool2d(x, (7, 4)))
case("nearest_up", lambda x: F.interpolate(x, (10, 13)))
case("nearest_down", lambda x: F.interpolate(x, (3, 4)))
case("bilinear_up", lambda x: F.interpolate(x, (10, 13), mode="bilinear"))
case("bilinear_down", lambda x: F.interpolate(x, (3, 4), mode="bilinear"))
case("bilinear_corners_up", lambda x: F.interpolate(x, (9, 8), mode="bilinear", align_corners=True))
case("bilinear_corners_down", lambda x: F.interpolate(x, (1, 3), mode="bilinear", align_corners=True))
# F.pad counts from the last dimension: width before, width after, height before, height after.
case("pad_constant", lambda x: F.pad(x, (1, 2, 0, 3), value=1.5))
case("pad_constant_crop", lambda x: F.pad(x, (-1, 2, 3, -2), value=-2))
case("pad_reflect", lambda x: F.pad(x, (5, 1, 2, 4), mode="reflect"))
case("pad_reflect_crop", lambda x: F.pad(x, (-2, 3, 1, -1), mode="reflect"))
case("pad_replicate", lambda x: F.pad(x, (7, 1, 2, 6), mode="replicate"))
case("pad_replicate_crop", lambda x: F.pad(x, (-2, 3, 1, -1), mode="replicate"))
case("pad_circular", lambda x: F.pad(x, (6, 1, 2, 5), mode="circular"))
case("pad_circular_crop", lambda x: F.pad(x, (-2, 3, 1, -1), mode="circular"))
# Which pixel is nearest is decided by rounding: a sum over all results for each size up to 24, made into every size up to 98.
rows = []
for size in range(1, 25):
    line = torch.arange(size, dtype=torch.float32).reshape(1, 1, size, 1)
    rows.append(sum((i + results) * int(v) for results in range(1, 99)
                    for i, v in enumerate(F.interpolate(line, (results, 1)).reshape(-1))))
array("nearest", "places", torch.tensor(rows, dtype=torch.float64))
print("\n}  // namespace pool_reference")
