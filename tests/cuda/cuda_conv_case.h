// Compares convolutions on the CUDA device, real or emulated, with plain loops in float64.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "cuda/conv/conv.h"
#include "tests/cuda/mma_kernels.h"
#include "tests/support/both_devices.h"

namespace mezzo::test {

using cuda::ConvTile;
using cuda::ConvWay;
using Values = std::vector<double>;

struct ConvCase {
    std::int64_t images, height, width, channels, results;
    Size2d kernel = 3;
    kernels::ConvGeometry at = {.padding = 1};
    Dtype dtype = float16;
    bool bias = true;
    Size2d cropped = 0;  // rows and columns at the end of the result that there are not

    Size2d result() const {
        const auto size = [](std::int64_t x, std::int64_t k, std::int64_t s, std::int64_t p, std::int64_t d) {
            return (x + 2 * p - d * (k - 1) - 1) / s + 1;
        };
        const Size2d &s = at.stride, &p = at.padding, &d = at.dilation;
        return {size(height, kernel.height, s.height, p.height, d.height) - cropped.height,
                size(width, kernel.width, s.width, p.width, d.width) - cropped.width};
    }
    Shape x() const { return {images, height, width, channels}; }
    Shape weight() const { return {results, kernel.height, kernel.width, channels / at.groups}; }
    Shape y() const { return {images, result().height, result().width, results}; }
    std::string text() const {
        const auto pair = [](Size2d s) { return std::to_string(s.height) + "x" + std::to_string(s.width); };
        return to_string(x()) + " by " + to_string(weight()) + ", stride " + pair(at.stride) + ", padding " +
               pair(at.padding) + ", dilation " + pair(at.dilation) + ", groups " +
               std::to_string(at.groups) + ", " + name(dtype);
    }
    static std::string to_string(const Shape& shape) {
        std::string s = "[";
        for (std::int64_t n : shape) s += std::to_string(n) + " ";
        return s + "]";
    }
};

// Calls use(element of y, element of x, element of the weight) for every product of the convolution.
template <class Use> void each_conv_product(const ConvCase& c, const Use& use) {
    const Size2d size = c.result();
    const std::int64_t in = c.channels / c.at.groups, out = c.results / c.at.groups;
    for (std::int64_t pixel = 0; pixel < c.images * size.height * size.width; ++pixel)
        for (std::int64_t tap = 0; tap < c.kernel.height * c.kernel.width; ++tap) {
            const std::int64_t n = pixel / (size.height * size.width);
            const std::int64_t ho = pixel / size.width % size.height, wo = pixel % size.width;
            const std::int64_t r = tap / c.kernel.width, s = tap % c.kernel.width;
            const std::int64_t h = ho * c.at.stride.height - c.at.padding.height + r * c.at.dilation.height;
            const std::int64_t w = wo * c.at.stride.width - c.at.padding.width + s * c.at.dilation.width;
            if (h < 0 || h >= c.height || w < 0 || w >= c.width) continue;
            for (std::int64_t o = 0; o < c.results; ++o)
                for (std::int64_t i = 0; i < in; ++i)
                    use(std::size_t(pixel * c.results + o),
                        std::size_t(((n * c.height + h) * c.width + w) * c.channels + o / out * in + i),
                        std::size_t((o * c.kernel.height * c.kernel.width + tap) * in + i));
        }
}

struct ConvProblem {
    ConvCase c;
    Both x, weight, bias, g, old;
    Values y, dx, dw;  // in float64

    explicit ConvProblem(const ConvCase& what)
        : c(what),
          x(c.x(), c.dtype, 1),
          weight(c.weight(), c.dtype, 2),
          bias({c.results}, c.dtype, 3),
          g(c.y(), c.dtype, 4),
          old(c.weight(), float32, 5),
          y(std::size_t(c.y().numel())),
          dx(std::size_t(c.x().numel())),
          dw(std::size_t(c.weight().numel())) {
        const Values xs = doubles(x.host), ws = doubles(weight.host), gs = doubles(g.host);
        each_conv_product(c, [&](std::size_t of_y, std::size_t of_x, std::size_t of_w) {
            y[of_y] += xs[of_x] * ws[of_w];
            dx[of_x] += gs[of_y] * ws[of_w];
            dw[of_w] += gs[of_y] * xs[of_x];
        });
        const Values b = doubles(bias.host);
        for (std::size_t i = 0; c.bias && i < y.size(); ++i) y[i] += b[i % std::size_t(c.results)];
    }
    std::vector<Tensor> forward_in() const { return {x.cuda, weight.cuda, c.bias ? bias.cuda : Tensor()}; }
    cuda::ConvSizes sizes() const { return {x.cuda, weight.cuda, g.cuda, c.at}; }
};

// Checks a result's values and the elements around it.
inline void check_result(const Guarded& got, const Values& expected) {
    // products up to 4; float32 sums some hundreds to thousands of them
    const Tolerance own = tolerance(got.out.dtype());
    CHECK(difference(doubles(got.out), expected, {own.relative, 40 * own.absolute}) == "");
    CHECK(got.intact());
}

inline Values plus(const Values& a, const Values& b, double factor) {
    Values sum = a;
    for (std::size_t i = 0; i < a.size(); ++i) sum[i] += factor * b[i];
    return sum;
}

inline void check_forward(const ConvProblem& p, const ConvWay& way) {
    const Guarded y({p.c.y(), p.c.dtype}, cuda_device);
    y.out.fill_(NAN);
    cuda::conv_forward(p.forward_in(), {p.c.at}, {&y.out, 1}, way);
    check_result(y, p.y);
}

inline void check_input_grad(const ConvProblem& p, const ConvWay& way) {
    const Guarded dx({p.c.x(), p.c.dtype}, cuda_device);
    dx.out.fill_(NAN);
    const Tensor in[] = {p.g.cuda, p.weight.cuda};
    cuda::conv_input_grad(in, {p.c.at, {p.c.height, p.c.width}}, {&dx.out, 1}, way);
    check_result(dx, p.dx);
}

inline void check_weight_grad(const ConvProblem& p, const ConvWay& way, Dtype dtype, double beta = 0) {
    CAPTURE(name(dtype), beta);
    const Guarded dw({p.c.weight(), dtype}, cuda_device);
    dw.out.fill_(NAN);  // without beta it is not read
    if (beta != 0) dw.out.copy_(p.old.cuda);
    const Values old = doubles(dw.out);
    const Tensor in[] = {p.g.cuda, p.x.cuda};
    cuda::conv_weight_grad(in, {p.c.at, p.c.kernel, beta}, {&dw.out, 1}, way);
    check_result(dw, beta != 0 ? plus(p.dw, old, beta) : p.dw);
}

inline void check_all(const ConvProblem& p, const ConvWay& way) {
    CAPTURE(p.c.text(), way.matrix_bytes, int(way.tile), way.splits);
    check_forward(p, way);
    check_input_grad(p, way);
    check_weight_grad(p, way, p.c.dtype);
    if (p.c.dtype != float64) check_weight_grad(p, way, float32, 0.5);
}

// Requires that the implicit GEMM kernels accept the problem, so that tests do not compare their fallback. A
// device without Tensor Cores for the dtype has no such kernels.
inline void require_implicit(const ConvProblem& p) {
    CAPTURE(p.c.text());
    if (!test::multiplies(p.c.dtype)) return;
    const TensorOptions like{.dtype = p.c.dtype, .device = cuda_device};
    const Tensor y = empty(p.c.y(), like), dx = empty(p.c.x(), like), dw = empty(p.c.weight(), like);
    const cuda::ConvSizes s = p.sizes();
    REQUIRE(cuda::implicit_forward(s, p.x.cuda, p.weight.cuda, {}, y, ConvTile::automatic));
    REQUIRE(cuda::implicit_input_grad(s, p.g.cuda, p.weight.cuda, {}, dx, ConvTile::automatic));
    REQUIRE(cuda::implicit_weight_grad(s, p.g.cuda, p.x.cuda, 0, dw, ConvTile::automatic, 0));
}

inline constexpr ConvTile conv_tiles[] = {ConvTile::m128n128, ConvTile::m128n64, ConvTile::m64n64};

inline const ConvCase conv_geometries[] = {
    {.images = 2, .height = 5, .width = 6, .channels = 8, .results = 16},
    {.images = 2, .height = 5, .width = 6, .channels = 3, .results = 7},
    {.images = 3, .height = 4, .width = 4, .channels = 8, .results = 8, .kernel = 1, .at = {}},
    {.images = 3, .height = 5, .width = 4, .channels = 8, .results = 8, .kernel = 1, .at = {.stride = 2}},
    {.images = 2, .height = 7, .width = 8, .channels = 8, .results = 8, .at = {.stride = 2, .padding = 1}},
    {.images = 2,
     .height = 8,
     .width = 7,
     .channels = 8,
     .results = 8,
     .kernel = {5, 3},
     .at = {.padding = {2, 1}}},
    {.images = 1, .height = 9, .width = 9, .channels = 8, .results = 8, .at = {.padding = 2, .dilation = 2}},
    {.images = 1,
     .height = 9,
     .width = 8,
     .channels = 8,
     .results = 8,
     .at = {.stride = 2, .padding = 3, .dilation = {3, 2}}},
    {.images = 1, .height = 9, .width = 8, .channels = 8, .results = 8, .kernel = 2, .at = {.stride = 3}},
    {.images = 1,
     .height = 9,
     .width = 11,
     .channels = 8,
     .results = 8,
     .kernel = {1, 3},
     .at = {.stride = {1, 4}}},
    {.images = 2, .height = 4, .width = 3, .channels = 8, .results = 8, .kernel = {4, 3}, .at = {}},
    {.images = 1, .height = 2, .width = 3, .channels = 8, .results = 8, .kernel = 1, .at = {.padding = 2}},
    {.images = 2,
     .height = 1,
     .width = 17,
     .channels = 8,
     .results = 8,
     .kernel = {1, 3},
     .at = {.padding = {0, 1}}},
    {.images = 1,
     .height = 6,
     .width = 6,
     .channels = 8,
     .results = 8,
     .at = {.stride = 2, .padding = 1},
     .cropped = {1, 2}},
};
inline const ConvCase grouped_convs[] = {
    {.images = 2, .height = 5, .width = 4, .channels = 8, .results = 12, .at = {.padding = 1, .groups = 2}},
    {.images = 2,
     .height = 5,
     .width = 4,
     .channels = 16,
     .results = 16,
     .at = {.stride = 2, .padding = 1, .groups = 2}},
    {.images = 2, .height = 4, .width = 5, .channels = 6, .results = 6, .at = {.padding = 1, .groups = 6}},
    {.images = 2, .height = 4, .width = 5, .channels = 6, .results = 4, .kernel = 1, .at = {.groups = 2}},
};

inline ConvCase with(ConvCase c, Dtype dtype) {
    c.dtype = dtype;
    return c;
}

}  // namespace mezzo::test
