// Every op kernel of the CUDA backend against the CPU's on the same values: on a GPU, or on the emulated
// device.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "cuda/runtime/runtime.h"
#include "tests/support/both_devices.h"

namespace {

using namespace mezzo;
using namespace mezzo::test;

const Device device{DeviceType::cuda};
constexpr double inf = std::numeric_limits<double>::infinity(),
                 not_a_number = std::numeric_limits<double>::quiet_NaN();

#define AGREE(op, ...) agree<kernels::op>(__VA_ARGS__)

using Inputs = std::vector<Both>;
using Results = std::vector<test::Result>;

// Compares one op, with the given scalars if it has any.
template <class A>
void agree_with(const Inputs& inputs, double alpha, double beta, const Results& results, double slack) {
    A at;
    if constexpr (requires { at.alpha; }) {
        at.alpha = alpha;
        at.beta = beta;
    }
    agree<A>(inputs, at, results, slack);
}

struct Entry {
    const char* name;
    void (*agree)(const Inputs& inputs, double alpha, double beta, const Results& results, double slack);
    bool integers, two_inputs;
};
constexpr bool same = true, real = false;
#define MEZZO_UNARY(op, cast, ints, save, gradient) {#op, agree_with<kernels::op>, ints, false},
#define MEZZO_UNARY_SCALAR(op, cast, ints, save, gradient) {#op, agree_with<kernels::op>, ints, false},
#define MEZZO_BINARY(op, cast, ints, save, gradient_a, gradient_b) {#op, agree_with<kernels::op>, ints, true},
const Entry arithmetic[] = {
#include "mezzo/ops.def"
};
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
#undef MEZZO_BINARY
#define MEZZO_COMPARE(op) {#op, agree_with<kernels::op>, true, true},
const Entry comparisons[] = {
#include "mezzo/ops.def"
};
#undef MEZZO_COMPARE

const std::vector<Dtype> floating = {float32, float16, bfloat16, float64};
const std::vector<Dtype> integral = {int32, int64, uint8};

std::vector<double> small_integers(std::int64_t n, std::uint64_t seed) {
    std::vector<double> values = test::random_values(n, seed, Domain::any);
    for (double& v : values) v = std::floor(std::fabs(v) * 5);
    return values;
}

}  // namespace

TEST_CASE("cuda: every element-wise op of the table", "[cuda]") {
    if (no_device()) return;
    for (const Entry& op : arithmetic) {
        CAPTURE(op.name);
        for (Dtype dtype : floating) {
            const Shape shape{5, 21};
            std::vector<Both> inputs = {Both(shape, dtype, 1, Domain::positive)};
            if (op.two_inputs) inputs.push_back(Both(shape, dtype, 2, Domain::positive));
            op.agree(inputs, 0.5, 1.25, {{shape, dtype}}, 4);
            // a transposed view and one broadcast dimension: the general path
            inputs[0] = inputs[0].view([](const Tensor& x) { return x.transpose(0, 1); });
            if (op.two_inputs) inputs[1] = Both({5}, dtype, 3, Domain::positive);
            op.agree(inputs, 0.5, 1.25, {{{21, 5}, dtype}}, 4);
        }
        if (!op.integers) continue;
        for (Dtype dtype : integral) {
            std::vector<Both> inputs = {Both(small_integers(12, 4), {12}, dtype)};
            if (op.two_inputs) inputs.push_back(Both(small_integers(12, 5), {12}, dtype));
            op.agree(inputs, 2, 7, {{{12}, dtype}}, 1);
        }
    }
}

TEST_CASE("cuda: infinities and NaN pass as on the CPU", "[cuda]") {
    if (no_device()) return;
    const std::vector<double> special = {inf, -inf, not_a_number, 0.0, -0.0, 1.0, -1.0, 3e-8, 65504};
    for (const Entry& op : arithmetic) {
        CAPTURE(op.name);
        for (Dtype dtype : {float32, float16, float64}) {
            std::vector<Both> inputs = {Both(special, {9}, dtype)};
            if (op.two_inputs) inputs.push_back(Both({1}, dtype, 6));
            op.agree(inputs, -0.5, 0.5, {{{9}, dtype}}, 4);
        }
    }
}

TEST_CASE("cuda: fast path with a tail, a single-element operand, and misaligned views", "[cuda]") {
    if (no_device()) return;
    for (Dtype dtype : {float32, float16, bfloat16})
        for (std::int64_t n : {0, 1, 7, 8, 9, 333}) {
            const Both a({n}, dtype, 1), b({n}, dtype, 2), one({}, dtype, 3);
            AGREE(add, {a, b}, {}, {{{n}, dtype}});
            AGREE(mul, {a, one}, {}, {{{n}, dtype}});
            AGREE(sub, {one, a}, {}, {{{n}, dtype}});
            if (n < 2) continue;
            const Both rest = a.view([](const Tensor& x) { return x.slice(0, 1, x.size(0)); });
            AGREE(neg, {rest}, {}, {{{n - 1}, dtype}});
        }
}

TEST_CASE("cuda: operands of different dtypes and ranks", "[cuda]") {
    if (no_device()) return;
    const Both a({2, 3, 4}, float16, 1), b({3, 1}, float32, 2), c({4}, float64, 3);
    AGREE(mul, {a, b}, {}, {{{2, 3, 4}, float32}});
    AGREE(add, {b, a}, {}, {{{2, 3, 4}, bfloat16}});
    AGREE(sub, {a, c}, {}, {{{2, 3, 4}, float64}});
    const Both expanded = b.view([](const Tensor& x) { return x.expand({3, 4}); });
    AGREE(maximum, {a, expanded}, {}, {{{2, 3, 4}, float32}});
}

TEST_CASE("cuda: comparisons and predicates", "[cuda]") {
    if (no_device()) return;
    const Both a({0, 1, not_a_number, inf, 2, 3}, {6}, float32),
        b({0, 2, not_a_number, 1, 2, 0}, {6}, float16);
    const Both i({0, 1, 2, 3, 4, 5}, {6}, int64), flags({1, 0, 0, 1, 1, 0}, {6}, boolean);
    for (const Entry& op : comparisons) {
        CAPTURE(op.name);
        op.agree({a, b}, 0, 0, {{{6}, boolean}}, 1);
        op.agree({i, flags}, 0, 0, {{{6}, boolean}}, 1);
    }
    for (const Both& x : {a, b, i, flags}) {
        AGREE(LogicalNot, {x}, {}, {{{6}, boolean}});
        AGREE(IsFinite, {x}, {}, {{{6}, boolean}});
    }
}

TEST_CASE("cuda: where, masked_fill, clamp_grad", "[cuda]") {
    if (no_device()) return;
    const Both condition({1, 0, 1}, {3}, boolean);
    for (Dtype dtype : {float32, float16, float64, int64}) {
        const Both a({4, 3}, dtype, 1), b({4, 1}, dtype, 2);
        AGREE(Where, {condition, a, b}, {}, {{{4, 3}, dtype}});
        AGREE(MaskedFill, {a, condition}, {.value = -3}, {{{4, 3}, dtype}});
        AGREE(ClampGrad, {a, b.view([](const Tensor& x) {
                              return x.expand({4, 3});
                          })},
              {.low = -1, .high = 1}, {{{4, 3}, dtype}});
    }
}

TEST_CASE("cuda: casts between all dtypes, copies and fills", "[cuda]") {
    if (no_device()) return;
    const std::vector<Dtype> all = {float16, bfloat16, float32, float64, int32, int64, uint8, boolean};
    for (Dtype from : all)
        for (Dtype to : all) {
            CAPTURE(name(from), name(to));
            const Both x(small_integers(21, 7), {3, 7}, from);
            AGREE(Cast, {x}, {}, {{{3, 7}, to}});
            AGREE(Cast, {x.view([](const Tensor& t) { return t.transpose(0, 1); })}, {}, {{{7, 3}, to}});
        }
    const Both rounding(
        {1.00048828125, 65519.9, 65520, 1e-8, 5.9604645e-8, 3.1415927, inf, not_a_number, 1e39}, {9},
        float32);
    AGREE(Cast, {rounding}, {}, {{{9}, float16}}, 0);
    AGREE(Cast, {rounding}, {}, {{{9}, bfloat16}}, 0);
    for (Dtype dtype : all) {
        Both target(small_integers(20, 8), {4, 5}, dtype);
        const Both source(small_integers(5, 9), {5}, float32);
        const auto inner = [](const Tensor& t) { return t.slice(1, 0, 5, 2).slice(0, 1, 4); };
        const Both view = target.view(inner),
                   part = source.view([](const Tensor&t) { return t.slice(0, 0, 3); });
        cpu_kernel<kernels::CopyInto>({&part.host, 1}, {}, {&view.host, 1});
        cuda_kernel<kernels::CopyInto>({&part.cuda, 1}, {}, {&view.cuda, 1});
        CHECK(test::doubles(target.cuda) == test::doubles(target.host));
        cpu_kernel<kernels::Fill>({}, {.value = 1}, {&view.host, 1});
        cuda_kernel<kernels::Fill>({}, {.value = 1}, {&view.cuda, 1});
        CHECK(test::doubles(target.cuda) == test::doubles(target.host));
        for (double value : {0.0, 1.0}) AGREE(Fill, {}, {.value = value}, {{{3, 5}, dtype}});
        AGREE(Arange, {}, {}, {{{9}, dtype}}, 0);
    }
}

TEST_CASE("cuda: cat", "[cuda]") {
    if (no_device()) return;
    for (Dtype dtype : {float32, float16, int64, boolean}) {
        const Both a({2, 3, 4}, dtype, 1), b({2, 1, 4}, dtype, 2), none({2, 0, 4}, dtype, 3);
        AGREE(Cat, {a, none, b}, {.dim = 1}, {{{2, 4, 4}, dtype}}, 0);
        AGREE(Cat, {a, a}, {.dim = 0}, {{{4, 3, 4}, dtype}}, 0);
        AGREE(Cat, {b, a.view([](const Tensor& t) { return t.slice(1, 0, 1).contiguous(); })}, {.dim = 2},
              {{{2, 1, 8}, dtype}}, 0);
    }
}

TEST_CASE("cuda: reductions over any axes", "[cuda]") {
    if (no_device()) return;
    const Shape shape{3, 5, 4, 7};
    struct Case {
        Axes axes;
        Shape result;
    };
    const Case cases[] = {{{0, 1, 2, 3}, {}}, {{3}, {3, 5, 4}}, {{0}, {5, 4, 7}},
                          {{1}, {3, 4, 7}},   {{0, 2}, {5, 7}}, {{1, 3}, {3, 4}},
                          {{}, {3, 5, 4, 7}}, {{2, 3}, {3, 5}}, {{0, 3}, {5, 4}}};
    for (Dtype dtype : {float32, float16, bfloat16, float64, int64, uint8}) {
        const bool real_dtype = is_floating(dtype);
        const Both x = real_dtype ? Both(shape, dtype, 1, Domain::distinct)
                                  : Both(small_integers(shape.numel(), 2), shape, dtype);
        for (const Case& c : cases) {
            CAPTURE(name(dtype), c.axes.size(), c.result.size());
            AGREE(Sum, {x}, {.axes = c.axes}, {{c.result, real_dtype ? float32 : int64}}, 8);
            AGREE(Max, {x}, {.axes = c.axes}, {{c.result, dtype}}, 0);
            AGREE(Min, {x}, {.axes = c.axes}, {{c.result, dtype}}, 0);
            if (!real_dtype) continue;
            AGREE(Mean, {x}, {.axes = c.axes}, {{c.result, dtype}}, 8);
            AGREE(Norm, {x}, {.axes = c.axes}, {{c.result, float32}}, 8);
        }
        for (std::int64_t dim = 0; dim < 4; ++dim) {
            Shape reduced = shape;
            reduced.erase(int(dim));
            AGREE(ArgMax, {x}, {.dim = dim}, {{reduced, int64}}, 0);
        }
    }
}

TEST_CASE("cuda: long reductions in several parts, and empty ones", "[cuda]") {
    if (no_device()) return;
    for (Dtype dtype : {float32, float16}) {
        const Both row({9001}, dtype, 1), columns({301, 21}, dtype, 2);
        AGREE(Sum, {row}, {.axes = {0}}, {{{}, float32}}, 200);
        AGREE(Norm, {row}, {.axes = {0}}, {{{}, float32}}, 20);
        AGREE(Max, {row}, {.axes = {0}}, {{{}, dtype}}, 0);
        AGREE(ArgMax, {row}, {.dim = 0}, {{{}, int64}}, 0);
        AGREE(ColumnSum, {columns}, {}, {{{21}, float32}}, 20);
        AGREE(ColumnSum, {columns}, {}, {{{21}, dtype}}, 20);
        AGREE(Min, {columns}, {.axes = {0}}, {{{21}, dtype}}, 0);
    }
    const Both none({0, 3}, float32, 1);
    AGREE(Sum, {none}, {.axes = {0}}, {{{3}, float32}});
    AGREE(Mean, {none}, {.axes = {0}}, {{{3}, float32}});
    AGREE(Norm, {none}, {.axes = {0, 1}}, {{{}, float32}});
    AGREE(Sum, {none}, {.axes = {1}}, {{{0}, float32}});
}

TEST_CASE("cuda: max, argmax and their gradient with ties and NaN", "[cuda]") {
    if (no_device()) return;
    const Both x({1, 3, 3, -inf, -inf, -inf, 2, not_a_number, not_a_number, 5, 5, 5}, {4, 3}, float32);
    AGREE(Max, {x}, {.axes = {1}}, {{{4}, float32}}, 0);
    AGREE(Min, {x}, {.axes = {0}}, {{{3}, float32}}, 0);
    AGREE(ArgMax, {x}, {.dim = 1}, {{{4}, int64}}, 0);
    AGREE(ArgMax, {x}, {.dim = 0}, {{{3}, int64}}, 0);
    const Both rows({3, -inf, not_a_number, 5}, {4, 1}, float32), columns({5, 5, 5}, {1, 3}, float32);
    AGREE(AmaxGrad, {Both({4, 1}, float32, 1), x, rows}, {.axes = {1}}, {{{4, 3}, float32}});
    AGREE(AmaxGrad, {Both({1, 3}, float32, 1), x, columns}, {.axes = {0}}, {{{4, 3}, float32}});
    AGREE(AmaxGrad, {Both({4, 3}, float32, 1), x, x}, {}, {{{4, 3}, float32}});
    const Both h(small_integers(40, 1), {2, 4, 5}, float16), top({9, 9}, {2, 1, 1}, float16);
    AGREE(AmaxGrad, {Both({2, 1, 1}, float16, 2), h, top}, {.axes = {1, 2}}, {{{2, 4, 5}, float16}});
}

TEST_CASE("cuda: softmax along every dimension", "[cuda]") {
    if (no_device()) return;
    struct Case {
        Shape shape;
        std::int64_t dim;
    };
    // one thread, one warp and one block per row; more rows than blocks
    const Case cases[] = {{{3, 5, 40}, 1}, {{3, 5, 4}, 1}, {{4, 33}, 1}, {{7, 1100}, 1},
                          {{5, 64}, 0},    {{}, 0},        {{0, 4}, 1}};
    for (const Case& c : cases)
        for (Dtype dtype : floating) {
            CAPTURE(c.shape.numel(), name(dtype));
            const Both x(c.shape, dtype, 1), g(c.shape, dtype, 2), wide_g(c.shape, float32, 2);
            const Both y(c.shape, dtype, 3, Domain::unit), wide_y(c.shape, float32, 3, Domain::unit);
            AGREE(Softmax, {x}, {.dim = c.dim}, {{c.shape, dtype}}, 4);
            AGREE(LogSoftmax, {x}, {.dim = c.dim}, {{c.shape, dtype}}, 4);
            AGREE(SoftmaxGrad, {g, y}, {.dim = c.dim}, {{c.shape, dtype}}, 8);
            AGREE(LogSoftmaxGrad, {g, y}, {.dim = c.dim}, {{c.shape, dtype}}, 8);
            if (dtype == float64) continue;
            AGREE(Softmax, {x}, {.dim = c.dim}, {{c.shape, float32}}, 4);
            AGREE(LogSoftmaxGrad, {wide_g, wide_y}, {.dim = c.dim}, {{c.shape, dtype}}, 8);
            AGREE(SoftmaxGrad, {wide_g, y}, {.dim = c.dim}, {{c.shape, float32}}, 8);
        }
    const Both special({1, -inf, 2, -inf, -inf, -inf, 1, not_a_number, 2, 1000, 999, -1000}, {4, 3}, float32);
    AGREE(Softmax, {special}, {.dim = 1}, {{{4, 3}, float32}});
    AGREE(LogSoftmax, {special}, {.dim = 1}, {{{4, 3}, float32}});
}

namespace {

constexpr Reduction reductions[] = {Reduction::none, Reduction::mean, Reduction::sum};

struct LossCase {
    Dtype input, target;
    Reduction reduction;
    Domain domain;
};

template <class A, class G> void loss_agrees(const LossCase& c) {
    const Shape shape{70, 9};
    const Dtype result = c.input == float64 ? float64 : float32;
    const Both x(shape, c.input, 1, c.domain), t(shape, c.target, 2, Domain::unit);
    const Shape reduced = c.reduction == Reduction::none ? shape : Shape{};
    const Both g(reduced, result, 3);
    A at{.reduction = c.reduction};
    G grad{.reduction = c.reduction};
    if constexpr (requires { at.beta; }) at.beta = grad.beta = 0.75;
    agree<A>({x, t}, at, {{reduced, result}}, 8);
    agree<G>({g, x, t}, grad, {{shape, c.input}}, 4);
}

}  // namespace

TEST_CASE("cuda: element-wise losses", "[cuda]") {
    if (no_device()) return;
    using Losses = void (*)(const LossCase&);
    const std::pair<Losses, Domain> losses[] = {
        {loss_agrees<kernels::MseLoss, kernels::MseLossGrad>, Domain::any},
        {loss_agrees<kernels::L1Loss, kernels::L1LossGrad>, Domain::any},
        {loss_agrees<kernels::SmoothL1Loss, kernels::SmoothL1LossGrad>, Domain::any},
        {loss_agrees<kernels::HuberLoss, kernels::HuberLossGrad>, Domain::any},
        {loss_agrees<kernels::BinaryCrossEntropy, kernels::BinaryCrossEntropyGrad>, Domain::unit},
        {loss_agrees<kernels::BinaryCrossEntropyWithLogits, kernels::BinaryCrossEntropyWithLogitsGrad>,
         Domain::any}};
    const std::pair<Dtype, Dtype> dtypes[] = {
        {float32, float32}, {float16, float32}, {bfloat16, bfloat16}, {float64, float64}};
    for (const auto& [agrees, domain] : losses)
        for (const auto& [input, target] : dtypes)
            for (const Reduction reduction : reductions) {
                CAPTURE(int(domain), name(input), int(reduction));
                agrees({input, target, reduction, domain});
            }
}

TEST_CASE("cuda: losses of class indices", "[cuda]") {
    if (no_device()) return;
    for (std::int64_t classes : {5, 1100})
        for (Dtype dtype : floating)
            for (const Reduction reduction : reductions) {
                CAPTURE(classes, name(dtype), int(reduction));
                const Dtype result = dtype == float64 ? float64 : float32;
                const Shape shape{4, classes}, reduced = reduction == Reduction::none ? Shape{4} : Shape{};
                const Both x(shape, dtype, 1), target({1, -100, 4, 0}, {4}, int64), g(reduced, result, 2);
                const Both largest({2, 3, 2.5, 8}, {4}, result), sum({1, 2, 1.5, 30}, {4}, result);
                for (double smoothing : {0.0, 0.1}) {
                    AGREE(CrossEntropy, {x, target}, {.reduction = reduction, .label_smoothing = smoothing},
                          {{reduced, result}, {{4}, result}, {{4}, result}}, 4);
                    AGREE(CrossEntropyGrad, {g, x, target, largest, sum},
                          {.reduction = reduction, .label_smoothing = smoothing}, {{shape, dtype}}, 4);
                }
                AGREE(NllLoss, {x, target}, {.reduction = reduction}, {{reduced, result}});
                AGREE(NllLossGrad, {g, target}, {.reduction = reduction, .classes = classes},
                      {{shape, dtype}});
            }
}

TEST_CASE("cuda: a target that is no class makes the loss NaN", "[cuda]") {
    if (no_device()) return;
    const Tensor x = test::tensor_of({1, 2, 3, 4, 5, 6}, {2, 3}, float32, device);
    const Tensor target = test::tensor_of({0, 3}, {2}, int64, device);
    const Tensor loss = empty({}, {.device = device}), largest = empty({2}, {.device = device}),
                 sum = empty({2}, {.device = device});
    const Tensor grad = empty({2, 3}, {.device = device}), g = test::tensor_of({1}, {}, float32, device);
    const auto run = [&]<class A>(const A& at, const std::vector<Tensor>& in,
                                  const std::vector<Tensor>& out) {
        cuda_kernel<A>(in, at, out);
        return test::doubles(out[0]);
    };
    const Reduction of = Reduction::sum;
    CHECK(std::isnan(run(kernels::CrossEntropy{.reduction = of}, {x, target}, {loss, largest, sum})[0]));
    CHECK(std::isnan(run(kernels::NllLoss{.reduction = of}, {x, target}, {loss})[0]));
    for (const auto& values :
         {run(kernels::CrossEntropyGrad{.reduction = of}, {g, x, target, largest, sum}, {grad}),
          run(kernels::NllLossGrad{.reduction = of, .classes = 3}, {g, target}, {grad})}) {
        CHECK(std::isfinite(values[0]));
        CHECK(std::isnan(values[3]));
    }
}

TEST_CASE("cuda: random numbers are those of the CPU", "[cuda]") {
    if (no_device()) return;
    for (std::int64_t n : {1, 8, 67})
        for (Dtype dtype : floating) {
            CAPTURE(n, name(dtype));
            const RandomState stream{42, 5};
            AGREE(RandomUniform, {}, {.low = -1, .high = 3, .stream = stream}, {{{n}, dtype}}, 0.5);
            AGREE(RandomNormal, {}, {.mean = -1, .stddev = 3, .stream = stream}, {{{n}, dtype}},
                  dtype == float64 ? 1e6 : 4);  // functions in float32
            const kernels::Dropout drop{.p = 0.3, .stream = {7, 11}};
            AGREE(Dropout, {Both({n}, dtype, 1)}, drop, {{{n}, dtype}}, 0.5);
            AGREE(Dropout, {Both({n}, dtype, 1)}, drop, {{{n}, float32}}, 0.5);
        }
    AGREE(Dropout, {Both({80}, float16, 1)}, {.p = 0.3, .stream = {7, 11}}, {{{80}, float16}}, 0.5);
    AGREE(RandomInt, {}, {.low = -5, .high = 1000000, .stream = {3, 0}}, {{{67}, int64}}, 0);
    AGREE(RandomInt, {}, {.low = 0, .high = 9, .stream = {3, 0}}, {{{67}, int32}}, 0);
}

TEST_CASE("cuda: matmul of strided, batched and broadcast operands", "[cuda]") {
    if (no_device()) return;
    for (Dtype dtype : floating) {
        CAPTURE(name(dtype));
        const Both a({4, 6}, dtype, 1), b({6, 5}, dtype, 2);
        const auto t = [](const Tensor& x) { return x.transpose(-1, -2); };
        const auto every_second = [](const Tensor& x) { return x.slice(1, 0, 6, 2); };
        AGREE(MatMul, {a, b}, {}, {{{4, 5}, dtype}}, 4);
        AGREE(MatMul, {b.view(t), a.view(t)}, {}, {{{5, 4}, dtype}}, 4);
        AGREE(MatMul, {a.view(every_second), b.view([](const Tensor& x) { return x.slice(0, 0, 3); })}, {},
              {{{4, 5}, dtype}}, 4);
        AGREE(MatMul, {a, b}, {.beta = 1}, {{{4, 5}, dtype == float64 ? float64 : float32}}, 4);
        const Both batch({2, 3, 4, 6}, dtype, 3), right({2, 3, 6, 5}, dtype, 4), row({1, 6}, dtype, 5);
        AGREE(MatMul, {batch, right}, {}, {{{2, 3, 4, 5}, dtype}}, 4);
        AGREE(MatMul, {batch, b}, {}, {{{2, 3, 4, 5}, dtype}}, 4);
        AGREE(MatMul, {row, b}, {}, {{{1, 5}, dtype}}, 4);
        const auto repeated = [](const Tensor& x) { return x.slice(0, 0, 1).expand({2, 3, 6, 5}); };
        AGREE(MatMul, {batch, right.view(repeated)}, {}, {{{2, 3, 4, 5}, dtype}}, 4);
        const auto swapped = [](const Tensor& x) { return x.transpose(0, 1); };
        const Both turned({3, 2, 4, 6}, dtype, 6);
        AGREE(MatMul, {turned.view(swapped), right}, {}, {{{2, 3, 4, 5}, dtype}}, 4);
        AGREE(MatMul, {Both({4, 0}, dtype, 1), Both({0, 5}, dtype, 1)}, {}, {{{4, 5}, dtype}});
    }
}

TEST_CASE("cuda: linear with bias, activation and pre-activation", "[cuda]") {
    if (no_device()) return;
    for (Dtype dtype : {float32, float16, bfloat16, float64}) {
        const Both x({7, 6}, dtype, 1), weight({5, 6}, dtype, 2), bias({5}, dtype, 3);
        for (Activation activation :
             {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh}) {
            CAPTURE(name(dtype), int(activation));
            const kernels::Linear at{.activation = activation};
            AGREE(Linear, {x, weight, bias}, at, {{{7, 5}, dtype}}, 8);
            AGREE(Linear, {x, weight}, at, {{{7, 5}, dtype}}, 8);
            if (activation == Activation::gelu)
                AGREE(Linear, {x, weight, bias}, at, {{{7, 5}, dtype}, {{7, 5}, dtype}}, 8);
        }
    }
}
