// Convolutions on Tensor Cores by implicit GEMM, which reads the images without im2col copies.
#include <catch2/catch.hpp>

#include "tests/cuda/cuda_conv_case.h"

using namespace mezzo;
using namespace mezzo::test;

TEST_CASE("cuda conv: small: a few blocks of every kernel", "[cuda]") {
    if (no_device()) return;
    // 7 k-steps of the sums over kernel positions and channels, 6 of those over pixels: pipeline stages are
    // reused
    for (std::int64_t stride : {1, 2}) {
        const ConvProblem p({.images = 2,
                             .height = 9 * stride,
                             .width = 9 * stride,
                             .channels = 24,
                             .results = 24,
                             .at = {.stride = stride, .padding = 1}});
        require_implicit(p);
        check_all(p, {.implicit = true, .tile = ConvTile::m64n64});
        check_weight_grad(p, {.implicit = true, .tile = ConvTile::m64n64, .splits = 2}, float32);
        if (stride == 2) check_all(p, {.implicit = false, .matrix_bytes = 1 << 15});
    }
}

TEST_CASE("cuda conv: implicit products of every geometry", "[cuda]") {
    if (no_device()) return;
    for (Dtype dtype : {bfloat16, float16})
        for (const ConvCase& c : conv_geometries) {
            if (c.channels % 8 != 0 ||
                (c.kernel == Size2d(1) && c.at.stride == Size2d(1) && c.at.padding == Size2d(0)))
                continue;
            const ConvProblem p(with(c, dtype));
            require_implicit(p);
            for (ConvTile tile : conv_tiles) check_all(p, {.implicit = true, .tile = tile});
        }
}

TEST_CASE("cuda conv: implicit products at the edges of tiles", "[cuda]") {
    if (no_device()) return;
    // 63 to 65 and 127 to 129 pixels; 8 to 136 input and output channels, so that k-steps of 32 end inside a
    // kernel position
    const ConvCase cases[] = {
        {.images = 1, .height = 7, .width = 9, .channels = 24, .results = 56},
        {.images = 1, .height = 8, .width = 8, .channels = 32, .results = 64},
        {.images = 5,
         .height = 1,
         .width = 13,
         .channels = 40,
         .results = 72,
         .kernel = {1, 3},
         .at = {.padding = {0, 1}}},
        {.images = 1,
         .height = 1,
         .width = 127,
         .channels = 64,
         .results = 120,
         .kernel = {1, 2},
         .at = {.padding = {0, 1}},
         .cropped = {0, 1}},
        {.images = 2,
         .height = 8,
         .width = 8,
         .channels = 16,
         .results = 128,
         .kernel = {2, 1},
         .at = {.padding = {1, 0}},
         .cropped = {1, 0}},
        {.images = 3,
         .height = 1,
         .width = 43,
         .channels = 72,
         .results = 136,
         .kernel = {1, 3},
         .at = {.padding = {0, 1}}},
        {.images = 2,
         .height = 15,
         .width = 9,
         .channels = 136,
         .results = 24,
         .kernel = 1,
         .at = {.stride = 2}},
    };
    for (Dtype dtype : {bfloat16, float16})
        for (const ConvCase& c : cases) {
            const ConvProblem p(with(c, dtype));
            require_implicit(p);
            for (ConvTile tile : conv_tiles)
                if (dtype == float16) check_all(p, {.implicit = true, .tile = tile});
            check_all(p, {.implicit = true});
        }
}

TEST_CASE("cuda conv: a weight gradient's sums in parts", "[cuda]") {
    if (no_device()) return;
    const ConvProblem p({.images = 3, .height = 8, .width = 9, .channels = 8, .results = 8});
    for (int splits : {1, 2, 3, 4, 7, 100})  // 216 pixels, 7 steps
        for (Dtype dtype : {float16, float32})
            for (double beta : {0.0, 1.0, -0.5})
                check_weight_grad(p, {.implicit = true, .tile = ConvTile::m64n64, .splits = splits}, dtype,
                                  beta);
}

TEST_CASE("cuda conv: parts of a weight gradient are added in their order", "[cuda]") {
    if (no_device()) return;
    // One pixel in each of three k-steps: 2^28 - 2^28 + 1 is 1 in float32, and 0 in any other order.
    Values g(96 * 8), x(96 * 8);
    for (std::size_t i = 0; i < 8; ++i) {
        g[i] = x[i] = x[32 * 8 + i] = 16384;
        g[32 * 8 + i] = -16384;
        g[64 * 8 + i] = x[64 * 8 + i] = 1;
    }
    const Tensor in[] = {tensor_of(g, {1, 1, 96, 8}, bfloat16, cuda_device),
                         tensor_of(x, {1, 1, 96, 8}, bfloat16, cuda_device)};
    const Tensor dw = zeros({8, 1, 2, 8}, {.dtype = float32, .device = cuda_device});
    const kernels::Conv2dWeightGrad at{{.padding = {0, 1}}, {1, 2}, 0};
    cuda::conv_weight_grad(in, at, {&dw, 1}, {.implicit = true, .splits = 3});
    CHECK(doubles(dw.select(2, 1)) == Values(64, 1.0));
}

TEST_CASE("cuda conv: implicit products have the same bits at every run and with every tile", "[cuda]") {
    if (no_device()) return;
    const ConvProblem p({.images = 2,
                         .height = 9,
                         .width = 8,
                         .channels = 24,
                         .results = 72,
                         .at = {.stride = 2, .padding = 1}});
    const auto bits = [&](ConvTile tile) {
        const TensorOptions like{.dtype = float16, .device = cuda_device};
        const Tensor y = empty(p.c.y(), like), dx = empty(p.c.x(), like);
        const Tensor dw = empty(p.c.weight(), {.dtype = float32, .device = cuda_device});
        const ConvWay way{.implicit = true, .tile = tile, .splits = 2};
        const Tensor backward[] = {p.g.cuda, p.weight.cuda}, weight[] = {p.g.cuda, p.x.cuda};
        cuda::conv_forward(p.forward_in(), {p.c.at}, {&y, 1}, way);
        cuda::conv_input_grad(backward, {p.c.at, {9, 8}}, {&dx, 1}, way);
        cuda::conv_weight_grad(weight, {p.c.at, 3}, {&dw, 1}, way);
        return std::vector{doubles(y), doubles(dx), doubles(dw)};
    };
    const auto first = bits(ConvTile::m64n64);
    CHECK(bits(ConvTile::m64n64) == first);
    CHECK(bits(ConvTile::m128n64) == first);
    CHECK(bits(ConvTile::m128n128) == first);
}

TEST_CASE("cuda conv: what implicit products do not take is computed by windows", "[cuda]") {
    if (no_device()) return;
    const ConvCase base{.images = 2, .height = 6, .width = 5, .channels = 8, .results = 8};
    ConvCase few = base, odd = base, groups = base, wide = base, one = base;
    few.results = 4;
    odd.channels = 12;
    groups.at.groups = 2;
    wide.at.stride = 5;  // only the input gradient
    one.kernel = 1, one.at.padding = 0;
    const auto takes = [](const ConvProblem& p) {
        const TensorOptions like{.dtype = p.c.dtype, .device = cuda_device};
        const Tensor y = empty(p.c.y(), like), dx = empty(p.c.x(), like), dw = empty(p.c.weight(), like);
        return std::vector<bool>{
            cuda::implicit_forward(p.sizes(), p.x.cuda, p.weight.cuda, {}, y, ConvTile::automatic),
            cuda::implicit_input_grad(p.sizes(), p.g.cuda, p.weight.cuda, {}, dx, ConvTile::automatic),
            cuda::implicit_weight_grad(p.sizes(), p.g.cuda, p.x.cuda, 0, dw, ConvTile::automatic, 0)};
    };
    const std::vector<bool> none(3, false);
    for (const ConvCase& c : {few, odd, groups, one, with(base, float32), with(base, float64)}) {
        const ConvProblem p(c);
        CAPTURE(c.text());
        CHECK(takes(p) == none);
        check_all(p, {.implicit = true});
    }
    CHECK(takes(ConvProblem(wide)) == std::vector<bool>{true, false, true});
    check_all(ConvProblem(wide), {.implicit = true});

    ConvProblem shifted(base);
    const auto one_behind = [](const Tensor& x) {
        return cat({x.flatten().slice(0, 0, 1), x.flatten()}).slice(0, 1, x.numel() + 1).reshape(x.shape());
    };
    for (Both* b : {&shifted.x, &shifted.g}) {
        const Tensor aligned = b->cuda;
        b->cuda = one_behind(aligned);
        const std::vector<bool> found = takes(shifted);
        CHECK(found == (b == &shifted.x ? std::vector<bool>{false, true, false}
                                        : std::vector<bool>{true, false, false}));
        check_all(shifted, {.implicit = true});
        b->cuda = aligned;
    }
}
