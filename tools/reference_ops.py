#!/usr/bin/env python3
"""Writes tests/reference/ops.h: results and gradients of ops from PyTorch (any CPU build), in float64.

Usage: tools/reference_ops.py > tests/reference/ops.h

Inputs are waves(), which tests/ops/op_families_test.cpp makes by the same formula. Each array is the result, followed by the gradients of
sum(result * waves(of the result's shape)) by all inputs, or the result alone where it is not floating.
"""
import torch
import torch.nn.functional as f


def waves(shape, phase, scale=1.0):
    count = torch.Size(shape).numel()
    return (scale * torch.sin(1.3 * torch.arange(count, dtype=torch.float64) + phase)).reshape(shape)


def case(name, function, *inputs):
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    y = function(*leaves)
    values = y.detach().flatten().tolist()
    if y.requires_grad:
        (y * waves(y.shape, 0.25)).sum().backward()
        for x in leaves:
            if x.is_floating_point():
                values += (torch.zeros_like(x) if x.grad is None else x.grad).flatten().tolist()
    print(f"inline constexpr double {name}[] = {{")
    for i in range(0, len(values), 5):
        print("    " + " ".join(word(v) + "," for v in values[i:i + 5]))
    print("};")


def word(value):
    value = float(value)
    if value != value:
        return "nan"
    return f"{value:.17g}" if abs(value) != float("inf") else ("-inf" if value < 0 else "inf")


def main():
    a, b, c = waves((3, 4), 0.5), waves((3, 4), 1.5), waves((4,), 2.5)
    zeros = torch.tensor([[1.0, 0.0, -2.0, 3.0], [0.0, 2.0, 0.0, 1.5], [1.0, -1.0, 2.0, 0.5]], dtype=torch.float64)
    positive, signs = a.abs() + 0.1, torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    target, weight = torch.tensor([2, -100, 0]), torch.tensor([0.5, 2.0, 1.0, 0.25], dtype=torch.float64)
    print("// Written by tools/reference_ops.py with PyTorch " + torch.__version__ + "; do not edit.\n// clang-format off")
    print("#pragma once\n\n#include <limits>\n\nnamespace reference {\n")
    print("inline constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();")
    case("prod_with_zeros", lambda x: x.prod(1), zeros)
    case("prod_of_all", lambda x: x.prod(), a)
    case("cumprod_with_zeros", lambda x: x.cumprod(1), zeros)
    case("cumprod_first", lambda x: x.cumprod(0), zeros)
    case("cumsum", lambda x: x.cumsum(1), a)
    case("var", lambda x: x.var(1), a)
    case("var_biased", lambda x: x.var((0, 1), correction=0), a)
    case("std", lambda x: x.std(0, correction=2), a)
    for mode in ("linear", "lower", "higher", "nearest", "midpoint"):
        case("quantile_" + mode, lambda x: x.quantile(torch.tensor([0.1, 0.5, 0.8], dtype=x.dtype), dim=1, interpolation=mode), a)
    case("quantile_of_all", lambda x: x.quantile(0.37), a)
    case("sort_descending", lambda x: x.sort(0, descending=True)[0], a)
    case("topk", lambda x: x.topk(2, 1)[0], a)
    case("kthvalue", lambda x: x.kthvalue(3, 1)[0], a)
    case("searchsorted", lambda x, y: torch.searchsorted(x.sort(1)[0], y, right=True), a, b)
    case("remainder", lambda x, y: x.remainder(y), 5 * a, b)
    case("atan2", lambda x, y: torch.atan2(x, y), a, b)
    case("mish", f.mish, 4 * a)
    case("elu", lambda x: f.elu(x, 1.5), 4 * a)
    case("leaky_relu", lambda x: f.leaky_relu(x, 0.2), a)
    case("hardtanh", lambda x: f.hardtanh(x, -0.5, 0.25), a)
    case("softmin", lambda x: f.softmin(x, 0), a)
    case("glu", f.glu, a)
    case("lerp", lambda x, y, w: torch.lerp(x, y, w), a, b, c)
    case("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), a, b, c)
    case("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=-2), a, b, c)
    case("addmm", lambda x, y, z: torch.addmm(x, y, z, beta=0.5, alpha=2), waves((3,), 0.1), a, waves((4, 3), 1.1))
    case("einsum", lambda x, y, z: torch.einsum("abc,...cd,ad->b...a", x, y, z), waves((2, 3, 4), 0.1), waves((5, 4, 2), 1.1),
         waves((2, 2), 2.1))
    case("einsum_implied", lambda x, y: torch.einsum("Ba...,a...", x, y), waves((2, 3, 4), 0.1), waves((3, 4), 1.1))
    case("cosine_similarity", lambda x, y: f.cosine_similarity(x, y, 1), a, c)
    case("pairwise_distance", lambda x, y: f.pairwise_distance(x, y, 3), a, b)
    case("pairwise_distance_max", lambda x, y: f.pairwise_distance(x, y, float("inf"), keepdim=True), a, b)
    case("normalize", lambda x: f.normalize(x, 3, 0), zeros)
    case("tril", lambda x: x.tril(-1), waves((2, 3, 4), 0.1))
    case("triu", lambda x: x.triu(1), waves((2, 3, 4), 0.1))
    case("diag", lambda x: x.diag(-1), c)
    case("diag_of", lambda x: x.diag(2), a)
    case("roll", lambda x: x.roll((1, -2), (0, 1)), a)
    case("flip", lambda x: x.flip((0, 1)), a)
    case("repeat", lambda x: x.repeat(2, 1, 2), a)
    case("kl_div", lambda x, t: f.kl_div(x, t, reduction="batchmean"), a, positive)
    case("kl_div_log", lambda x, t: f.kl_div(x, t, reduction="mean", log_target=True), a, b)
    case("huber", lambda x, t: f.huber_loss(x, t, delta=0.3), a, b)
    case("hinge", lambda x: f.hinge_embedding_loss(x, signs[:, None], margin=0.5), a)
    case("cosine_embedding", lambda x, y: f.cosine_embedding_loss(x, y, signs, margin=-0.5), a, b)
    case("triplet", lambda x, y, z: f.triplet_margin_loss(x, y, z, swap=True, reduction="none"), a, b, b.flip(0) * 0.5)
    case("cross_entropy_weights", lambda x: f.cross_entropy(x, target, weight, label_smoothing=0.1), a)
    case("cross_entropy_none", lambda x: f.cross_entropy(x, target, weight, reduction="none"), a)
    case("cross_entropy_soft", lambda x, t: f.cross_entropy(x, t, weight, label_smoothing=0.2), a, positive)
    case("cross_entropy_leading", lambda x: f.cross_entropy(x.permute(0, 2, 1), torch.tensor([[0, 1], [3, 2], [1, 1]]), weight),
         waves((3, 2, 4), 0.7))
    case("nll_weights", lambda x: f.nll_loss(x, target, weight), a)
    print("\n}  // namespace reference")


if __name__ == "__main__":
    main()
