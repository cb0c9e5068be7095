// CPU kernels called directly: strides, broadcasting, 16-bit storage, reductions over any axes, losses,
// random numbers.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/philox.h"
#include "core/tensor_impl.h"
#include "cpu/isa/isa.h"
#include "cpu/parallel.h"
#include "mezzo/error.h"
#include "tests/support/kernels.h"

using namespace mezzo;
using test::cpu_kernel;
using test::run;

namespace {

const double nan_value = std::numeric_limits<double>::quiet_NaN();

Tensor make(const std::vector<double>& values, const Shape& shape, Dtype dtype) {
    return Tensor::from<double>(values, shape, {.dtype = dtype});
}
Tensor random(const Shape& shape, Dtype dtype, unsigned seed, double low = -2, double high = 2) {
    std::mt19937 bits(seed);
    std::uniform_real_distribution<double> uniform(low, high);
    std::vector<double> values(std::size_t(shape.numel()));
    for (double& v : values) v = uniform(bits);
    return make(values, shape, dtype);
}
// x with its dimensions reversed, as a strided view of a reversed copy.
Tensor reversed_strides(const Tensor& x) {
    Shape shape;
    Strides view;
    for (int d = x.dim() - 1; d >= 0; --d) shape.push_back(x.shape()[d]);
    const Strides reversed = contiguous_strides(shape);
    for (int d = 0; d < x.dim(); ++d) view.push_back(reversed[x.dim() - 1 - d]);
    const Tensor storage = empty(shape, {.dtype = x.dtype()});
    const Tensor y = make_tensor(storage->storage, x.shape(), view, 0, x.dtype());
    cpu_kernel<kernels::CopyInto>({&x, 1}, {}, {&y, 1});
    return y;
}
double rounding(Dtype dtype) {
    return dtype == float16 ? 1e-3 : dtype == bfloat16 ? 8e-3 : dtype == float32 ? 1e-6 : 1e-13;
}

void check_close(const std::vector<double>& got, const std::vector<double>& expected, double relative,
                 double absolute = 0) {
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        const bool close = std::isnan(expected[i]) ? std::isnan(got[i])
                                                   : std::fabs(got[i] - expected[i]) <=
                                                         absolute + relative * std::fabs(expected[i]);
        INFO("element " << i << ": " << got[i] << " instead of " << expected[i]);
        if (!close) CHECK(close);
    }
}

const Dtype real_dtypes[] = {float16, bfloat16, float32, float64};

}  // namespace

TEST_CASE("binary kernels broadcast, stride and mix dtypes", "[cpu_kernels]") {
    const std::vector<std::pair<Shape, Shape>> shapes = {
        {{3, 5}, {3, 5}},    {{3, 5}, {5}},           {{3, 5}, {3, 1}}, {{3, 5}, {}},
        {{2, 1, 4}, {3, 1}}, {{70, 90}, {70, 90}},    {{1}, {1}},       {{4, 1, 2, 3}, {5, 1, 3}},
        {{0, 3}, {3}},       {{2, 600, 3}, {600, 1}}, {{}, {}}};
    for (const auto& [sa, sb] : shapes)
        for (const Dtype da : {float16, float32, float64, int32})
            for (const Dtype db : {bfloat16, float32, boolean}) {
                const Tensor a = random(sa, da, 1, -9, 9), b = random(sb, db, 2, -9, 9);
                const Shape shape = broadcast_shapes("test", sa, sb);
                const Dtype dtype = promote(da, db);
                const std::vector<double> va = a.to_vector<double>(), vb = b.to_vector<double>();
                std::vector<double> expected(std::size_t(shape.numel()));
                const Strides ta = contiguous_strides(sa), tb = contiguous_strides(sb);
                for (std::int64_t i = 0; i < shape.numel(); ++i) {
                    std::int64_t rest = i, ia = 0, ib = 0;
                    for (int d = shape.size() - 1; d >= 0; --d) {
                        const std::int64_t at = rest % shape[d];
                        rest /= shape[d];
                        const int pa = d - (shape.size() - sa.size()), pb = d - (shape.size() - sb.size());
                        if (pa >= 0 && sa[pa] != 1) ia += at * ta[pa];
                        if (pb >= 0 && sb[pb] != 1) ib += at * tb[pb];
                    }
                    expected[std::size_t(i)] = va[std::size_t(ia)] + vb[std::size_t(ib)];
                }
                INFO(name(da) << " " << name(db) << " numel " << shape.numel());
                check_close(run(cpu_kernel<kernels::add>, {a, b}, {}, shape, dtype), expected,
                            rounding(dtype), 1e-6);
                check_close(run(cpu_kernel<kernels::add>, {reversed_strides(a), b}, {}, shape, dtype),
                            expected, rounding(dtype), 1e-6);
                check_close(run(cpu_kernel<kernels::add>, {reversed_strides(a), reversed_strides(b)}, {},
                                shape, dtype),
                            expected, rounding(dtype), 1e-6);
            }
}

TEST_CASE("kernels write strided outputs and only those elements", "[cpu_kernels]") {
    for (const Dtype dtype : {float16, float32, int64, uint8}) {
        const Tensor storage = make(std::vector<double>(100, 7), {10, 10}, dtype);
        const Tensor view = make_tensor(storage->storage, {4, 3}, {20, 2}, 11, dtype);
        const Tensor a = random({4, 3}, dtype, 3, 0, 9), b = random({3}, dtype, 4, 0, 9);
        const std::vector<Tensor> in = {a, b};
        cpu_kernel<kernels::add>(in, {}, {&view, 1});
        const std::vector<double> all = storage.to_vector<double>(), va = a.to_vector<double>(),
                                  vb = b.to_vector<double>();
        for (std::size_t i = 0; i < 100; ++i) {
            const std::size_t at = i - 11;
            const bool inside = i >= 11 && at / 20 < 4 && at % 20 % 2 == 0 && at % 20 / 2 < 3;
            const double expected = inside ? va[at / 20 * 3 + at % 20 / 2] + vb[at % 20 / 2] : 7;
            CHECK(all[i] == Approx(expected).epsilon(2e-3));
        }
        cpu_kernel<kernels::Fill>({}, {.value = 3}, {&view, 1});
        double total = 0;
        for (const double v : storage.to_vector<double>()) total += v;
        CHECK(total == 88 * 7 + 12 * 3);
    }
}

TEST_CASE("cast, copies of transposed tensors, cat and arange", "[cpu_kernels]") {
    for (const Dtype from : {float16, float32, float64, int32})
        for (const Dtype to : {float16, bfloat16, float32, int64, boolean}) {
            const Tensor x = random({70, 130}, from, 5, -50, 50), strided = reversed_strides(x);
            const std::vector<double> expected = run(cpu_kernel<kernels::Cast>, {x}, {}, x.shape(), to);
            CHECK(run(cpu_kernel<kernels::Cast>, {strided}, {}, x.shape(), to) == expected);
            check_close(expected, Tensor(x).to_vector<double>(),
                        to == boolean ? 1e9
                        : to == int64 ? 0
                                      : 8e-3,
                        to == int64 ? 1 : 1);
        }
    const Tensor a = make({1, 2, 3, 4}, {2, 2}, float32), b = make({5, 6}, {2, 1}, float32),
                 c = empty({2, 0});
    CHECK(run(cpu_kernel<kernels::Cat>, {a, b, c}, {.dim = 1}, {2, 3}, float32) ==
          std::vector<double>{1, 2, 5, 3, 4, 6});
    CHECK(run(cpu_kernel<kernels::Arange>, {}, {}, {5}, int32) == std::vector<double>{0, 1, 2, 3, 4});
    const Tensor x = make({1, 2, 3, 4}, {2, 2}, float32);
    const Tensor transposed = make_tensor(x->storage, {2, 2}, {1, 2}, 0, float32);
    cpu_kernel<kernels::CopyInto>({&transposed, 1}, {}, {&x, 1});  // overlapping
    CHECK(x.to_vector<double>() == std::vector<double>{1, 3, 2, 4});
}

TEST_CASE("where, masked_fill, clamp_grad and tests of elements", "[cpu_kernels]") {
    const Tensor condition = make({1, 0, 1}, {3}, boolean), a = make({1, 2, 3, 4, 5, 6}, {2, 3}, float16),
                 b = make({-1}, {}, float32);
    CHECK(run(cpu_kernel<kernels::Where>, {condition, a, b}, {}, {2, 3}, float32) ==
          std::vector<double>{1, -1, 3, 4, -1, 6});
    CHECK(run(cpu_kernel<kernels::MaskedFill>, {a, condition}, {.value = -1e9}, {2, 3}, float16) ==
          std::vector<double>{-65504, 2, -65504, -65504, 5, -65504});
    CHECK(run(cpu_kernel<kernels::MaskedFill>, {a, condition}, {.value = -1e9}, {2, 3}, float32)[0] == -1e9);
    CHECK(std::isinf(
        run(cpu_kernel<kernels::MaskedFill>, {a, condition}, {.value = -INFINITY}, {2, 3}, float16)[0]));
    CHECK(run(cpu_kernel<kernels::ClampGrad>, {a, a}, {.low = 2, .high = 4}, {2, 3}, float32) ==
          std::vector<double>{0, 2, 3, 4, 0, 0});
    const Tensor odd = make({0, nan_value, INFINITY, -3}, {4}, bfloat16);
    CHECK(run(cpu_kernel<kernels::IsFinite>, {odd}, {}, {4}, boolean) == std::vector<double>{1, 0, 0, 1});
    CHECK(run(cpu_kernel<kernels::LogicalNot>, {odd}, {}, {4}, boolean) == std::vector<double>{1, 0, 0, 0});
}

TEST_CASE("reductions over every set of axes", "[cpu_kernels]") {
    const Shape shapes[] = {{7},        {3, 5},    {40, 6}, {4, 3, 5, 2}, {2, 1100, 3}, {3, 70000},
                            {70000, 3}, {5, 1, 4}, {}};
    for (const Shape& shape : shapes)
        for (const Dtype dtype : {float16, float32, float64, int32})
            for (int mask = shape.size() ? 1 : 0; mask < 1 << shape.size(); ++mask) {
                const Tensor x = random(shape, dtype, 6, -3, 3);
                const std::vector<double> values = x.to_vector<double>();
                Axes axes;
                Shape kept;
                for (int d = 0; d < shape.size(); ++d)
                    mask >> d & 1 ? axes.push_back(d) : kept.push_back(shape[d]);
                std::vector<double> sums(std::size_t(kept.numel()), 0), squares = sums,
                                                                        largest(sums.size(), -1e30);
                for (std::int64_t i = 0; i < x.numel(); ++i) {
                    std::int64_t rest = i, at = 0, step = 1;
                    for (int d = shape.size() - 1; d >= 0; --d) {
                        if (!(mask >> d & 1)) at += rest % shape[d] * step, step *= shape[d];
                        rest /= shape[d];
                    }
                    sums[std::size_t(at)] += values[std::size_t(i)];
                    squares[std::size_t(at)] += values[std::size_t(i)] * values[std::size_t(i)];
                    largest[std::size_t(at)] = std::max(largest[std::size_t(at)], values[std::size_t(i)]);
                }
                const double count = double(x.numel()) / double(kept.numel());
                INFO(name(dtype) << " numel " << x.numel() << " mask " << mask);
                const Dtype wide = dtype == float64 ? float64 : dtype == int32 ? int64 : float32;
                check_close(run(cpu_kernel<kernels::Sum>, {x}, {.axes = axes}, kept, wide), sums, 1e-6,
                            1e-6 * count);
                check_close(run(cpu_kernel<kernels::Max>, {x}, {.axes = axes}, kept, dtype), largest, 0);
                if (dtype == int32) continue;
                for (double& v : squares) v = std::sqrt(v);
                for (double& v : sums) v /= count;
                check_close(run(cpu_kernel<kernels::Norm>, {x}, {.axes = axes}, kept, wide), squares, 1e-6);
                check_close(run(cpu_kernel<kernels::Mean>, {x}, {.axes = axes}, kept, wide), sums, 1e-5,
                            1e-5);
            }
}

TEST_CASE("reductions: empty, NaN, threads, ties", "[cpu_kernels]") {
    const Tensor none = empty({0, 3});
    CHECK(run(cpu_kernel<kernels::Sum>, {none}, {.axes = {0}}, {3}, float32) == std::vector<double>{0, 0, 0});
    CHECK(std::isnan(run(cpu_kernel<kernels::Mean>, {none}, {.axes = {0}}, {3}, float32)[0]));
    const Tensor holes = make({1, nan_value, 3, 4, 5, nan_value}, {2, 3}, float32);
    check_close(run(cpu_kernel<kernels::Max>, {holes}, {.axes = {1}}, {2}, float32), {nan_value, nan_value},
                0);
    check_close(run(cpu_kernel<kernels::Min>, {holes}, {.axes = {0}}, {3}, float32),
                {1, nan_value, nan_value}, 0);
    CHECK(run(cpu_kernel<kernels::ArgMax>, {holes}, {.dim = 1}, {2}, int64) == std::vector<double>{1, 2});
    const Tensor ties = make({2, 5, 5, 1, 7, 0}, {2, 3}, float32);
    CHECK(run(cpu_kernel<kernels::ArgMax>, {ties}, {.dim = 1}, {2}, int64) == std::vector<double>{1, 1});
    CHECK(run(cpu_kernel<kernels::ArgMax>, {ties}, {.dim = 0}, {3}, int64) == std::vector<double>{0, 1, 0});
    const Tensor g = make({4, 10}, {2, 1}, float32), y = make({5, 7}, {2, 1}, float32);
    CHECK(run(cpu_kernel<kernels::AmaxGrad>, {g, ties, y}, {}, {2, 3}, float32) ==
          std::vector<double>{0, 2, 2, 0, 10, 0});
    const Tensor large = random({1000, 700}, float32, 8);
    const int threads = cpu::num_threads();
    std::vector<double> sums[3], columns[3];
    for (int n = 1; n <= 3; ++n) {
        cpu::set_num_threads(n);
        sums[n - 1] = run(cpu_kernel<kernels::Sum>, {large}, {.axes = {0, 1}}, {}, float32);
        columns[n - 1] = run(cpu_kernel<kernels::ColumnSum>, {large}, {}, {700}, float32);
    }
    cpu::set_num_threads(threads);
    CHECK((sums[0] == sums[1] && sums[1] == sums[2] && columns[0] == columns[1] && columns[1] == columns[2]));
}

// Sizes on both sides of 16 lines, which fill a cache line. lines_test.cpp has softmax of lines in columns.
TEST_CASE("softmax along a copied dimension has the bits of softmax along rows", "[cpu_kernels]") {
    const Dtype dtype = GENERATE(float32, float64, bfloat16);
    const std::int64_t inner = GENERATE(2, 15, 16, 17, 40);
    const auto logarithm = GENERATE(false, true);
    if (!logarithm && dtype != bfloat16 && inner >= 8) return;
    const auto of = [&](const Tensor& values, bool last) {
        const Tensor x = (last ? values.transpose(1, 2).contiguous() : values.clone()).detach();
        x.set_requires_grad();
        const Tensor y = logarithm ? log_softmax(x, last ? 2 : 1) : softmax(x, last ? 2 : 1);
        const Tensor weights = random({3, 21, inner}, dtype, 5);
        y.backward({.gradient = last ? weights.transpose(1, 2).contiguous() : weights});
        return last ? Tensors{y.transpose(1, 2), x.grad().transpose(1, 2)} : Tensors{y, x.grad()};
    };
    const Tensor values = random({3, 21, inner}, dtype, 4, -5, 5);
    const Tensors blocks = of(values, false), lines = of(values, true);
    for (int i = 0; i < 2; ++i)
        CHECK(blocks[std::size_t(i)].detach().to(float64).contiguous().to_vector<double>() ==
              lines[std::size_t(i)].detach().to(float64).contiguous().to_vector<double>());
}

TEST_CASE("softmax and its gradients along any dimension", "[cpu_kernels]") {
    for (const Dtype dtype : real_dtypes)
        for (const Shape& shape : {Shape{4, 7}, Shape{3, 1500}, Shape{2, 5, 3}, Shape{1, 1}}) {
            const Tensor x = random(shape, dtype, 9, -8, 8), g = random(shape, dtype, 10);
            for (int dim = 0; dim < shape.size(); ++dim) {
                const Strides strides = contiguous_strides(shape);
                const std::vector<double> v = x.to_vector<double>(), vg = g.to_vector<double>();
                std::vector<double> y(v.size()), log_y(v.size()), grad(v.size()), log_grad(v.size());
                for (std::size_t i = 0; i < v.size(); ++i) {
                    const std::int64_t place = std::int64_t(i) / strides[dim] % shape[dim];
                    const std::size_t first = i - std::size_t(place * strides[dim]);
                    double total = 0;
                    for (std::int64_t k = 0; k < shape[dim]; ++k)
                        total += std::exp(v[first + std::size_t(k * strides[dim])]);
                    log_y[i] = v[i] - std::log(total), y[i] = std::exp(log_y[i]);
                }
                for (std::size_t i = 0; i < v.size(); ++i) {
                    const std::int64_t place = std::int64_t(i) / strides[dim] % shape[dim];
                    const std::size_t first = i - std::size_t(place * strides[dim]);
                    double dot = 0, sum = 0;
                    for (std::int64_t k = 0; k < shape[dim]; ++k) {
                        const std::size_t j = first + std::size_t(k * strides[dim]);
                        dot += vg[j] * y[j], sum += vg[j];
                    }
                    grad[i] = y[i] * (vg[i] - dot), log_grad[i] = vg[i] - y[i] * sum;
                }
                const Dtype wide = dtype == float64 ? float64 : float32;
                const double precise = dtype == float64 ? 1e-13 : 2e-6;
                INFO(name(dtype) << " dim " << dim << " numel " << x.numel());
                check_close(run(cpu_kernel<kernels::Softmax>, {x}, {.dim = dim}, shape, wide), y, precise,
                            1e-30);
                check_close(run(cpu_kernel<kernels::Softmax>, {x}, {.dim = dim}, shape, dtype), y,
                            rounding(dtype) + precise, 6e-8);
                check_close(run(cpu_kernel<kernels::LogSoftmax>, {x}, {.dim = dim}, shape, wide), log_y,
                            precise, precise);
                const Tensor ty = make(y, shape, float64), tl = make(log_y, shape, float64);
                check_close(run(cpu_kernel<kernels::SoftmaxGrad>, {g, ty}, {.dim = dim}, shape, wide), grad,
                            1e-5, precise);
                check_close(run(cpu_kernel<kernels::LogSoftmaxGrad>, {g, tl}, {.dim = dim}, shape, wide),
                            log_grad, 1e-5, 20 * precise);
            }
        }
}

TEST_CASE("matmul: transposed, batched and broadcast operands, accumulation", "[cpu_kernels]") {
    const auto reference = [](const Tensor& a, const Tensor& b, std::int64_t batch, std::int64_t m,
                              std::int64_t n, std::int64_t k) {
        const std::vector<double> va = a.to_vector<double>(), vb = b.to_vector<double>();
        std::vector<double> y(std::size_t(batch * m * n), 0);
        const std::int64_t step_a = a.dim() > 2 ? m * k : 0, step_b = b.dim() > 2 ? k * n : 0;
        for (std::int64_t e = 0; e < batch; ++e)
            for (std::int64_t i = 0; i < m; ++i)
                for (std::int64_t j = 0; j < n; ++j)
                    for (std::int64_t p = 0; p < k; ++p)
                        y[std::size_t((e * m + i) * n + j)] +=
                            va[std::size_t(e * step_a + i * k + p)] * vb[std::size_t(e * step_b + p * n + j)];
        return y;
    };
    for (const Dtype dtype : real_dtypes) {
        const Dtype wide = dtype == float64 ? float64 : float32;
        const Tensor a = random({3, 5, 7}, dtype, 11), b = random({3, 7, 4}, dtype, 12),
                     b2 = random({7, 4}, dtype, 13);
        const Tensor a2 = random({5, 7}, dtype, 14),
                     wide_batch = make_tensor(b2->storage, {3, 7, 4}, {0, 4, 1}, 0, dtype);
        const auto compare = [&](const Tensor& x, const Tensor& y) {
            const std::vector<double> expected = reference(x, y, x.dim() > 2 || y.dim() > 2 ? 3 : 1, 5, 4, 7);
            const Shape shape = x.dim() > 2 || y.dim() > 2 ? Shape{3, 5, 4} : Shape{5, 4};
            check_close(run(cpu_kernel<kernels::MatMul>, {x, y}, {}, shape, wide), expected, 1e-5, 1e-5);
            check_close(
                run(cpu_kernel<kernels::MatMul>, {reversed_strides(x), reversed_strides(y)}, {}, shape, wide),
                expected, 1e-5, 1e-5);
        };
        compare(a2, b2), compare(a, b), compare(a, b2), compare(a2, b), compare(a, wide_batch);
        const Tensor y = make(std::vector<double>(20, 100), {5, 4}, wide);
        const std::vector<Tensor> in = {a2, b2};
        cpu_kernel<kernels::MatMul>(in, {.beta = 1}, {&y, 1});
        std::vector<double> expected = reference(a2, b2, 1, 5, 4, 7);
        for (double& v : expected) v += 100;
        check_close(y.to_vector<double>(), expected, 1e-5, 1e-5);
        const Tensor weight = random({4, 7}, dtype, 15), bias = random({4}, dtype, 16);
        const std::vector<double> va = a2.to_vector<double>(), vw = weight.to_vector<double>(),
                                  vb = bias.to_vector<double>();
        std::vector<double> plain(20);
        for (std::size_t i = 0; i < 20; ++i) {
            plain[i] = vb[i % 4];
            for (std::size_t p = 0; p < 7; ++p) plain[i] += va[i / 4 * 7 + p] * vw[i % 4 * 7 + p];
        }
        const std::vector<Tensor> linear_in = {a2, weight, bias};
        const std::vector<Tensor> both = {empty({5, 4}, {.dtype = wide}), empty({5, 4}, {.dtype = wide})};
        cpu_kernel<kernels::Linear>(linear_in, {.activation = Activation::gelu}, both);
        check_close(both[1].to_vector<double>(), plain, 1e-5, 1e-5);
        for (double& v : plain) v *= std::erfc(-v / std::sqrt(2.0)) / 2;
        check_close(both[0].to_vector<double>(), plain, 1e-5, 1e-5);
    }
}

namespace {

using LossRun = std::vector<double>(const std::vector<Tensor>& in, Reduction reduction, const Shape& shape,
                                    Dtype dtype);
template <class A> std::vector<double> run_loss(const std::vector<Tensor>& in, Reduction reduction,
                                                const Shape& shape, Dtype dtype) {
    A at{.reduction = reduction};
    if constexpr (requires { at.beta; }) at.beta = 0.3;
    return run(cpu_kernel<A>, in, at, shape, dtype);
}

}  // namespace

TEST_CASE("losses and their gradients for three reductions", "[cpu_kernels]") {
    struct Case {
        LossRun *loss, *grad;
        double (*value)(double, double);
        double (*slope)(double, double);
    };
    const Case cases[] = {
        {run_loss<kernels::MseLoss>, run_loss<kernels::MseLossGrad>,
         [](double x, double t) { return (x - t) * (x - t); },
         [](double x, double t) { return 2 * (x - t); }},
        {run_loss<kernels::L1Loss>, run_loss<kernels::L1LossGrad>,
         [](double x, double t) { return std::fabs(x - t); },
         [](double x, double t) { return x > t   ? 1.0
                                         : x < t ? -1.0
                                                 : 0.0; }},
        {run_loss<kernels::SmoothL1Loss>, run_loss<kernels::SmoothL1LossGrad>,
         [](double x, double t) {
             return std::fabs(x - t) < 0.3 ? (x - t) * (x - t) / 0.6 : std::fabs(x - t) - 0.15;
         },
         [](double x, double t) { return std::fabs(x - t) < 0.3 ? (x - t) / 0.3
                                         : x > t                ? 1.0
                                                                : -1.0; }},
        {run_loss<kernels::BinaryCrossEntropy>, run_loss<kernels::BinaryCrossEntropyGrad>,
         [](double x, double t) { return -(t * std::log(x) + (1 - t) * std::log1p(-x)); },
         [](double x, double t) { return (x - t) / (x * (1 - x)); }},
        {run_loss<kernels::BinaryCrossEntropyWithLogits>, run_loss<kernels::BinaryCrossEntropyWithLogitsGrad>,
         [](double x, double t) { return std::log1p(std::exp(x)) - x * t; },
         [](double x, double t) { return 1 / (1 + std::exp(-x)) - t; }}};
    for (const Dtype dtype : real_dtypes)
        for (const Case& c : cases) {
            const std::int64_t n = 3000;
            const Tensor x = random({30, 100}, dtype, 17, 0.05, 0.95),
                         t = random({30, 100}, dtype == float64 ? float64 : float32, 18, 0, 1);
            const std::vector<double> vx = x.to_vector<double>(), vt = t.to_vector<double>();
            std::vector<double> values(vx.size()), slopes(vx.size());
            double total = 0;
            for (std::size_t i = 0; i < vx.size(); ++i) {
                values[i] = c.value(vx[i], vt[i]), slopes[i] = c.slope(vx[i], vt[i]);
                total += values[i];
            }
            const Dtype wide = dtype == float64 ? float64 : float32;
            const double precise = dtype == float64 ? 1e-12 : 4e-6;
            Reduction at = Reduction::none;
            INFO(name(dtype) << " case " << &c - cases);
            check_close(c.loss({x, t}, at, x.shape(), wide), values, precise, precise);
            const Tensor g = random(x.shape(), float64, 19), one = make({3}, {}, float32);
            std::vector<double> scaled = slopes, thirds = slopes;
            const std::vector<double> vg = g.to_vector<double>();
            for (std::size_t i = 0; i < vg.size(); ++i) scaled[i] *= vg[i], thirds[i] *= 3;
            check_close(c.grad({g, x, t}, at, x.shape(), wide), scaled, 4 * precise, precise);
            at = Reduction::sum;
            check_close(c.loss({x, t}, at, {}, wide), {total}, precise);
            check_close(c.grad({one, x, t}, at, x.shape(), wide), thirds, 4 * precise, precise);
            at = Reduction::mean;
            for (double& v : thirds) v /= double(n);
            check_close(c.loss({x, t}, at, {}, wide), {total / double(n)}, precise);
            check_close(c.grad({one, x, t}, at, x.shape(), wide), thirds, 4 * precise, precise);
        }
}

TEST_CASE("cross entropy and nll: ignored rows, smoothing, reductions, bad targets", "[cpu_kernels]") {
    const std::int64_t rows = 6, classes = 5;
    const std::vector<std::int64_t> labels = {0, 4, -100, 2, 2, -100};
    const Tensor target = Tensor::from(labels, {rows});
    for (const Dtype dtype : real_dtypes)
        for (const double smoothing : {0.0, 0.2})
            for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
                const Tensor x = random({rows, classes}, dtype, 20);
                const std::vector<double> v = x.to_vector<double>();
                std::vector<double> losses(std::size_t(rows), 0), grad(v.size(), 0),
                    lse(std::size_t(rows), 0);
                for (std::size_t r = 0; r < std::size_t(rows); ++r) {
                    double total = 0;
                    for (std::size_t c = 0; c < 5; ++c) total += std::exp(v[r * 5 + c]);
                    lse[r] = std::log(total);
                    if (labels[r] < 0) continue;
                    for (std::size_t c = 0; c < 5; ++c) {
                        const double wanted =
                            (c == std::size_t(labels[r]) ? 1 - smoothing : 0) + smoothing / 5;
                        losses[r] -= wanted * (v[r * 5 + c] - lse[r]);
                        grad[r * 5 + c] = (std::exp(v[r * 5 + c] - lse[r]) - wanted) * 2 /
                                          (reduction == Reduction::mean ? 4 : 1);
                    }
                }
                double total = 0;
                for (const double loss : losses) total += loss;
                const std::vector<double> expected =
                    reduction == Reduction::none
                        ? losses
                        : std::vector<double>{reduction == Reduction::mean ? total / 4 : total};
                const Dtype wide = dtype == float64 ? float64 : float32;
                const kernels::CrossEntropy at{.reduction = reduction, .label_smoothing = smoothing};
                const kernels::CrossEntropyGrad grad_at{.reduction = reduction, .label_smoothing = smoothing};
                const Shape shape = reduction == Reduction::none ? Shape{rows} : Shape{};
                const Tensor largest = empty({rows}, {.dtype = wide}), sum = empty({rows}, {.dtype = wide});
                const std::vector<Tensor> in = {x, target},
                                          out = {empty(shape, {.dtype = wide}), largest, sum};
                cpu_kernel<kernels::CrossEntropy>(in, at, out);
                check_close(out[0].to_vector<double>(), expected, 2e-6, 1e-6);
                std::vector<double> kept = largest.to_vector<double>(), sums = sum.to_vector<double>();
                for (std::size_t r = 0; r < kept.size(); ++r) kept[r] += std::log(sums[r]);
                check_close(kept, lse, 2e-6);
                const Tensor g =
                    make(std::vector<double>(reduction == Reduction::none ? 6 : 1, 2), shape, wide);
                check_close(run(cpu_kernel<kernels::CrossEntropyGrad>, {g, x, target, largest, sum}, grad_at,
                                x.shape(), dtype),
                            grad, 4 * rounding(dtype), rounding(dtype));
            }
    const Tensor log_p = make({-1, -2, -3, -4}, {2, 2}, float32),
                 two = Tensor::from(std::vector<std::int64_t>{1, 0}, {2});
    CHECK(run(cpu_kernel<kernels::NllLoss>, {log_p, two}, {.reduction = Reduction::mean}, {}, float32)[0] ==
          2.5);
    const Tensor g = make({1}, {}, float32);
    CHECK(run(cpu_kernel<kernels::NllLossGrad>, {g, two}, {.reduction = Reduction::mean, .classes = 2},
              {2, 2}, float32) == std::vector<double>{0, -0.5, -0.5, 0});
    const Tensor bad = Tensor::from(std::vector<std::int64_t>{0, 2}, {2}),
                 untouched = make({42}, {}, float32);
    const std::vector<Tensor> in = {log_p, bad};
    CHECK_THROWS_WITH(cpu_kernel<kernels::NllLoss>(in, {.reduction = Reduction::mean}, {&untouched, 1}),
                      Catch::Contains("nll_loss: target 2 in row 1") && Catch::Contains("2 classes"));
    CHECK(untouched.to_vector<double>()[0] == 42);
    const Tensor ignored = Tensor::from(std::vector<std::int64_t>{-100, -100}, {2});
    CHECK(std::isnan(
        run(cpu_kernel<kernels::NllLoss>, {log_p, ignored}, {.reduction = Reduction::mean}, {}, float32)[0]));
}
