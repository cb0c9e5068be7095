// Kernels of the CUDA backend that other files do not launch, against the CPU's on the same values: pairs of
// dtypes, lengths of rows and lists of parameters that choose a kernel of their own. tests/ptx/coverage.py
// lists the kernels that remain.
#include <catch2/catch.hpp>
#include <cmath>

#include "cuda/reduce/ordered_mean.h"
#include "cuda/runtime/runtime.h"
#include "kernels/moments.h"
#include "mezzo/autograd.h"
#include "mezzo/image_ops.h"
#include "mezzo/nn.h"
#include "mezzo/optim.h"
#include "tests/support/both_devices.h"

namespace {

using namespace mezzo;
using namespace mezzo::test;

#define AGREE(op, ...) agree<kernels::op>(__VA_ARGS__)

Both undefined() {
    return Both({1}, float32, 1).view([](const Tensor&) { return Tensor(); });
}

// A row of up to 512 columns takes a warp with four packs of four per thread, a row of up to 1024 a warp with
// eight; a longer row takes a block.
constexpr std::int64_t row_lengths[] = {64, 600, 1100};

// Compares the results of f, and its gradients of x, on both devices.
template <class F> void agree_with_gradients(const Shape& shape, Dtype dtype, const F& f) {
    const Both x(shape, dtype, 1, Domain::distinct);
    const auto run = [&](Tensor leaf) {
        leaf.set_requires_grad();
        const Tensor y = f(leaf);
        const Tensor g =
            tensor_of(random_values(y.numel(), 2, Domain::any), y.shape(), y.dtype(), y.device());
        autograd::backward({y}, {.grad_outputs = {g}});
        return std::pair(doubles(y), doubles(leaf.grad()));
    };
    const auto [y_host, dx_host] = run(x.host);
    const auto [y_cuda, dx_cuda] = run(x.cuda);
    Tolerance allowed = tolerance(dtype);
    allowed.relative *= 4, allowed.absolute *= 4;
    CHECK(difference(y_cuda, y_host, allowed) == "");
    CHECK(difference(dx_cuda, dx_host, allowed) == "");
}

}  // namespace

TEST_CASE("kernel types: softmax between dtypes", "[cuda]") {
    if (no_device()) return;
    struct Case {
        Shape shape;
        int dim;
    };
    for (const Case& c : {Case{{3, 40}, 1}, Case{{2, 1100}, 1}, Case{{5, 40}, 0}}) {
        CAPTURE(c.dim);
        AGREE(Softmax, {Both(c.shape, float32, 1)}, {.dim = c.dim}, {{c.shape, bfloat16}}, 4);
        for (const Dtype dtype : {float16, bfloat16}) {
            const Both g(c.shape, dtype, 2), y(c.shape, dtype, 3, Domain::unit);
            AGREE(SoftmaxGrad, {g, y}, {.dim = c.dim}, {{c.shape, float32}}, 64);
        }
    }
}

TEST_CASE("kernel types: the gradient of cross_entropy in another dtype", "[cuda]") {
    if (no_device()) return;
    for (const std::int64_t classes : {5, 1100}) {
        const Both target({1, -100, 4, 0}, {4}, int64), g({}, float32, 2);
        const Both largest({2, 3, 2.5, 8}, {4}, float32), sum({1, 2, 1.5, 30}, {4}, float32);
        for (const Dtype dtype : {float32, float16, bfloat16}) {
            const Dtype result = dtype == float32 ? bfloat16 : float32;
            AGREE(CrossEntropyGrad, {g, Both({4, classes}, dtype, 1), target, largest, sum}, {},
                  {{{4, classes}, result}}, 4);
        }
    }
}

TEST_CASE("kernel types: cross_entropy of many rows", "[cuda]") {
    if (no_device()) return;
    constexpr std::int64_t rows = 9000;
    std::vector<double> targets;
    for (std::int64_t row = 0; row < rows; ++row) targets.push_back(row % 7 == 0 ? -100 : double(row % 3));
    for (const Dtype dtype : {float32, float64})
        AGREE(CrossEntropy, {Both({rows, 3}, dtype, 1), Both(targets, {rows}, int64)}, {},
              {{{}, dtype}, {{rows}, dtype}, {{rows}, dtype}}, 20);
}

TEST_CASE("kernel types: layer_norm of dtypes that differ", "[cuda]") {
    if (no_device()) return;
    struct Case {
        Dtype x, parameters, y;
    };
    for (const std::int64_t cols : row_lengths)
        for (const Case& c : {Case{float16, float16, float16}, Case{float16, float32, float16},
                              Case{float16, float32, float32}, Case{bfloat16, bfloat16, bfloat16},
                              Case{bfloat16, float32, bfloat16}, Case{bfloat16, float32, float32}}) {
            CAPTURE(cols, name(c.x), name(c.parameters), name(c.y));
            const Both x({3, cols}, c.x, 1), weight({cols}, c.parameters, 2), bias({cols}, c.parameters, 3);
            AGREE(LayerNorm, {x, weight, bias}, {}, {{{3, cols}, c.y}, {{3}, float32}, {{3}, float32}}, 16);
        }
}

TEST_CASE("kernel types: dropout_add_layer_norm of dtypes that differ", "[cuda]") {
    if (no_device()) return;
    struct Case {
        Dtype x, residual, parameters, y;
    };
    for (const std::int64_t cols : row_lengths)
        for (const Case& c :
             {Case{float16, float16, float16, float16}, Case{float16, float16, float32, float16},
              Case{float16, float32, float32, float32}, Case{bfloat16, bfloat16, bfloat16, bfloat16},
              Case{bfloat16, bfloat16, float32, bfloat16}, Case{bfloat16, float32, float32, float32}}) {
            CAPTURE(cols, name(c.x), name(c.residual), name(c.parameters), name(c.y));
            const Shape shape{3, cols};
            const Both x(shape, c.x, 1), residual(shape, c.residual, 2);
            const Both weight({cols}, c.parameters, 3), x_bias({cols}, c.parameters, 4),
                bias({cols}, c.parameters, 5);
            AGREE(DropoutAddLayerNorm, {weight, x, x_bias, residual, bias},
                  {.dropout_p = 0.25, .stream = {5, 9}},
                  {{shape, c.y}, {shape, float32}, {{3}, float32}, {{3}, float32}}, 16);
        }
}

TEST_CASE("kernel types: gradients of norms of dtypes that differ", "[cuda]") {
    if (no_device()) return;
    for (const std::int64_t cols : row_lengths) {
        const Shape shape{3, cols};
        const Both weight({cols}, float32, 3), mean({3}, float32, 4), rstd({3}, float32, 5, Domain::positive),
            z(shape, float32, 6);
        for (const Dtype dtype : {float16, bfloat16}) {
            CAPTURE(cols, name(dtype));
            AGREE(LayerNormGrad,
                  {Both(shape, float32, 1), Both(shape, dtype, 2), weight, mean, rstd, undefined()}, {},
                  {{shape, dtype}, {{cols}, float32}, {{cols}, float32}}, 64);
            for (const Dtype of_g : {float32, dtype})
                AGREE(DropoutAddLayerNormGrad, {Both(shape, of_g, 1), z, weight, mean, rstd}, {},
                      {{shape, dtype}, {shape, float32}, {{cols}, float32}, {{cols}, float32}}, 64);
        }
    }
}

TEST_CASE("kernel types: reductions of whole numbers and of float64", "[cuda]") {
    if (no_device()) return;
    for (const Dtype dtype : {int64, int32, float32, float16, bfloat16, float64}) {
        CAPTURE(name(dtype));
        const bool whole = dtype == int64 || dtype == int32;
        const Both ones(std::vector<double>(9000, 1), {9000}, dtype), x({4, 33}, dtype, 2, Domain::positive);
        const Dtype result = whole ? int64 : dtype;
        for (const int axis : {0, 1}) {
            const Shape reduced{axis == 0 ? 33 : 4};
            AGREE(Prod, {x}, {.axes = {axis}}, {{reduced, result}}, 64);
            if (!whole) AGREE(Norm, {x}, {.axes = {axis}}, {{reduced, dtype}}, 8);
        }
        if (whole) AGREE(ColumnSum, {x}, {}, {{{33}, result}}, 0);
        AGREE(Prod, {ones}, {.axes = {0}}, {{{}, result}}, 8);
        if (!whole) AGREE(Norm, {ones}, {.axes = {0}}, {{{}, dtype}}, 200);
        AGREE(Sum, {ones}, {.axes = {0}}, {{{}, result == float16 || result == bfloat16 ? float32 : result}},
              200);
        AGREE(Max, {ones}, {.axes = {0}}, {{{}, dtype}}, 0);
        AGREE(ArgMax, {ones}, {.dim = 0}, {{{}, int64}}, 0);
    }
}

TEST_CASE("kernel types: sums of columns, and ties", "[cuda]") {
    if (no_device()) return;
    for (const Dtype dtype : {int64, int32, bfloat16, float64}) {
        CAPTURE(name(dtype));
        const Dtype result = dtype == bfloat16 ? float32 : dtype == float64 ? float64 : int64;
        const Both x({700, 64}, dtype, 1, Domain::positive);
        AGREE(Sum, {x}, {.axes = {0}}, {{{64}, result}}, 200);
        AGREE(Sum, {x}, {.axes = {1}}, {{{700}, result}}, 200);
    }
    AGREE(LayerNormGrad,
          {Both({9, 1}, float64, 1), Both({9, 1}, float64, 2), Both({1}, float64, 3), Both({9}, float64, 4),
           Both({9}, float64, 5), undefined()},
          {}, {{{9, 1}, float64}, {{1}, float64}, {{1}, float64}}, 64);
    const Both tied({1, 2, 2, 2, 1, 2}, {3, 2}, float64), largest({2, 2}, {1, 2}, float64);
    AGREE(AmaxGrad, {Both({1, 2}, float64, 1), tied, largest}, {.axes = {0}}, {{{3, 2}, float64}});
}

TEST_CASE("kernel types: packs of pixels", "[cuda]") {
    if (no_device()) return;
    for (const Dtype dtype : {float32, float16, bfloat16}) {
        CAPTURE(name(dtype));
        const Shape shape{2, 6, 6, 16};
        const auto pixels = [&](const auto& f) { agree_with_gradients(shape, dtype, f); };
        pixels([](const Tensor& x) { return max_pool2d(x, {.kernel_size = 2}); });
        pixels([](const Tensor& x) { return max_pool2d(x, {.kernel_size = 3, .stride = 2, .padding = 1}); });
        pixels([](const Tensor& x) { return avg_pool2d(x, {.kernel_size = 3, .stride = 2, .padding = 1}); });
        pixels([](const Tensor& x) { return interpolate(x, {9, 4}); });
        pixels([](const Tensor& x) { return interpolate(x, {9, 4}, {.mode = InterpolateMode::bilinear}); });
    }
}

TEST_CASE("kernel types: the gradient of the gradient of max_pool2d", "[cuda]") {
    if (no_device()) return;
    for (const Dtype dtype : {float32, float64}) {
        CAPTURE(name(dtype));
        const Both x({2, 6, 6, 4}, dtype, 1, Domain::distinct), weight({2, 3, 3, 4}, dtype, 2),
            v({2, 6, 6, 4}, dtype, 3);
        const auto run = [](Tensor leaf, Tensor g, const Tensor& direction) {
            leaf.set_requires_grad();
            g.set_requires_grad();
            // Not by backward(): a leaf whose gradient refers to the leaf is never freed.
            const Tensors first = autograd::grad({max_pool2d(leaf, {.kernel_size = 2})}, {leaf},
                                                 {.grad_outputs = {g}, .create_graph = true});
            autograd::backward(first, {.grad_outputs = {direction}});
            return doubles(g.grad());
        };
        CHECK(run(x.cuda, weight.cuda, v.cuda) == run(x.host, weight.host, v.host));
    }
}

TEST_CASE("kernel types: an element that an index names often", "[cuda]") {
    if (no_device()) return;
    std::vector<double> often;
    for (int k = 0; k < 5000; ++k) often.push_back(k % 3);
    const Both index(often, {5000}, int64);
    for (const Dtype dtype : {float32, float64}) {
        const Both x({3, 1}, dtype, 1), g({5000, 1}, dtype, 2);
        const auto run = [](Tensor leaf, const Tensor& at, const Tensor& of_result) {
            leaf.set_requires_grad();
            autograd::backward({index_select(leaf, 0, at)}, {.grad_outputs = {of_result}});
            return doubles(leaf.grad());
        };
        CHECK(difference(run(x.cuda, index.cuda, g.cuda), run(x.host, index.host, g.host), {1e-4, 1e-4}) ==
              "");
    }
}

TEST_CASE("kernel types: vectors that an index selects, and padded booleans", "[cuda]") {
    if (no_device()) return;
    for (const Dtype dtype : {float16, bfloat16}) {
        const Both x({5, 16}, dtype, 1), index({3, 0, 4, 4}, {4}, int64);
        const auto select = [](const Tensor& from, const Tensor& at) {
            return doubles(index_select(from, 0, at));
        };
        CHECK(select(x.cuda, index.cuda) == select(x.host, index.host));
    }
    const Both flags({1, 0, 1, 1, 0, 1}, {2, 3}, boolean);
    const auto padded = [](const Tensor& x) {
        return doubles(pad(x, {{.dim = 1, .before = 1, .after = 2}}, PadMode::constant, 1));
    };
    CHECK(padded(flags.cuda) == padded(flags.host));
}

TEST_CASE("kernel types: look-ups with an index out of range give NaN, or 0 for integers", "[cuda]") {
    if (no_device()) return;
    for (const Dtype dtype : {float8_e4m3fn, float8_e5m2, float8_e8m0fnu, float16, bfloat16, float32, float64,
                              int8, uint8, int32, int64}) {
        CAPTURE(name(dtype));
        const Tensor x = ones({3, 2}).to(dtype).to(cuda_device);
        const Tensor rows = Tensor::from<std::int64_t>({2, 3, -1, 0}, {4}).to(cuda_device);
        const Tensor each = Tensor::from<std::int64_t>({2, 3, -1, 0}, {2, 2}).to(cuda_device);
        const auto check_lookups = [&](const Tensor& y, const std::vector<bool>& inside) {
            const std::vector<double> values = y.to(cpu_device).to(float64).to_vector<double>();
            for (std::size_t i = 0; i < inside.size(); ++i)
                CHECK((inside[i]             ? values[i] == 1
                       : has_exponent(dtype) ? std::isnan(values[i])
                                             : values[i] == 0));
        };
        check_lookups(index_select(x, 0, rows), {true, true, false, false, false, false, true, true});
        check_lookups(gather(x, 0, each), {true, false, false, true});
    }
}

TEST_CASE("kernel types: shares of a mean in the order of the ranks", "[cuda]") {
    if (no_device()) return;
    constexpr std::int64_t count = 37;
    const std::vector<double> values = random_values(2 * count, 1, Domain::any);
    for (const Dtype dtype : {float32, float16, bfloat16}) {
        CAPTURE(name(dtype));
        const Tensor from = tensor_of(values, {2 * count}, float32, cuda_device);
        const Tensor packed = zeros({2 * count}, {.dtype = dtype, .device = cuda_device});
        const Tensor mean = zeros({count}, {.dtype = dtype, .device = cuda_device});
        const Tensor wide = zeros({count}, {.dtype = float32, .device = cuda_device});
        cuda::pack_shares(raw(from), raw(packed), 2 * count, dtype, 0.5f);
        cuda::add_pieces(raw(packed), 2, raw(mean), count, dtype, 0.5f);
        cuda::widen(raw(mean), raw(wide), count, dtype);
        const std::vector<double> share = doubles((tensor_of(values, {2 * count}, float32) * 0.5).to(dtype));
        CHECK(doubles(packed) == share);
        std::vector<double> expected;
        for (std::size_t i = 0; i < count; ++i) expected.push_back((share[i] + share[i + count]) * 0.5);
        CHECK(difference(doubles(mean), expected, tolerance(dtype)) == "");
        CHECK(doubles(wide) == doubles(mean));
    }
}

namespace {

// More parameters than a small table of kernel arguments has entries.
std::vector<Tensor> many_parameters(Device device, int count) {
    std::vector<Tensor> parameters;
    for (int k = 0; k < count; ++k) {
        Tensor p = tensor_of(random_values(3, std::uint64_t(k), Domain::any), {3}, float32, device);
        p.set_requires_grad();
        autograd::backward(
            {p}, {.grad_outputs = {tensor_of(random_values(3, std::uint64_t(count + k), Domain::any), {3},
                                             float32, device)}});
        parameters.push_back(p);
    }
    return parameters;
}

std::vector<double> all_values(const std::vector<Tensor>& tensors) {
    std::vector<double> values;
    for (const Tensor& t : tensors)
        for (const double x : doubles(t)) values.push_back(x);
    return values;
}

template <class Optimizer, class Options> void agree_on_update(const Options& options) {
    const auto run = [&](Device device) {
        const std::vector<Tensor> parameters = many_parameters(device, 60);
        Optimizer optimizer(parameters, options);
        optimizer.step();
        return all_values(parameters);
    };
    CHECK(difference(run(cuda_device), run(cpu_device), {1e-5, 1e-6}) == "");
}

}  // namespace

TEST_CASE("kernel types: optimizers of many parameters", "[cuda]") {
    if (no_device()) return;
    agree_on_update<optim::Adagrad>(optim::AdagradOptions{});
    agree_on_update<optim::Lion>(optim::LionOptions{});
    agree_on_update<optim::NAdam>(optim::NAdamOptions{});
}

TEST_CASE("kernel types: gradients of many parameters are clipped", "[cuda]") {
    if (no_device()) return;
    const auto run = [&](Device device, bool by_value) {
        const std::vector<Tensor> parameters = many_parameters(device, 200);
        if (by_value)
            nn::clip_grad_value_(parameters, 0.5);
        else
            nn::clip_grad_norm_(parameters, 0.5);
        std::vector<Tensor> gradients;
        for (const Tensor& p : parameters) gradients.push_back(p.grad());
        return all_values(gradients);
    };
    for (const bool by_value : {false, true})
        CHECK(difference(run(cuda_device, by_value), run(cpu_device, by_value), {1e-5, 1e-6}) == "");
}
