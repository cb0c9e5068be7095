// Bad input: the message names the op first and shows the values; the library stays usable. Also type
// promotion.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/image_ops.h"
#include "mezzo/matmul_precision.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/shape_ops.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;
using Values = std::vector<double>;

namespace {

struct Bad {
    void (*attempt)();
    ErrorKind kind;
    const char* starts;
    const char* contains;
};

Tensor f(const Shape& shape) { return zeros(shape); }
Tensor half(const Shape& shape) { return zeros(shape, {.dtype = float16}); }
Tensor classes(std::initializer_list<std::int64_t> values) {
    return Tensor::from(std::vector<std::int64_t>(values), {std::int64_t(values.size())});
}

const Bad bad[] = {
    {[] { f({2}) + f({3}); }, ErrorKind::shape, "add:", "[3]"},
    {[] { add(Tensor(), f({3})); }, ErrorKind::value, "add:", "undefined"},
    {[] { exp(Tensor()); }, ErrorKind::value, "exp:", "undefined"},
    {[] { neg(zeros({2}, {.dtype = boolean})); }, ErrorKind::dtype, "neg:", "boolean"},
    {[] { clamp(f({2}), 2, 1); }, ErrorKind::value, "clamp:", "2"},
    {[] { where(f({2}), f({2}), f({2})); }, ErrorKind::dtype, "where:", "boolean"},
    {[] { masked_fill(f({2}), zeros({3}, {.dtype = boolean}), 0); }, ErrorKind::shape, "masked_fill:", "[3]"},
    {[] {
         matmul(f({2, 3}), f({4, 5}));
     },
     ErrorKind::shape, "matmul:", "[4, 5]"},
    {[] {
         matmul(f({2, 2, 3}), f({3, 3, 4}));
     },
     ErrorKind::shape, "matmul:", "3"},
    {[] {
         matmul(f({2, 3}), half({3, 5}));
     },
     ErrorKind::dtype, "matmul:", "float16"},
    {[] { matmul(arange(3), arange(3)); }, ErrorKind::dtype, "matmul:", "the first operand is int64"},
    {[] { matmul(f({3}), arange(3)); }, ErrorKind::dtype, "matmul:", "the second operand is int64"},
    {[] { mse_loss(f({3}), arange(3)); }, ErrorKind::dtype, "mse_loss:", "target is int64"},
    {[] { mse_loss(arange(3), f({3})); }, ErrorKind::dtype, "mse_loss:", "input is int64"},
    {[] {
         embedding(zeros({2, 3}, {.dtype = int32}), classes({1}));
     },
     ErrorKind::dtype, "embedding:", "weight is int32"},
    {[] {
         layer_norm(f({2, 3}), arange(3), f({3}), 1e-5);
     },
     ErrorKind::dtype, "layer_norm:", "weight is int64"},
    {[] {
         layer_norm(f({2, 3}), f({3}), arange(3), 1e-5);
     },
     ErrorKind::dtype, "layer_norm:", "bias is int64"},
    {[] {
         scaled_dot_product_attention(f({1, 2, 1, 4}), f({1, 2, 1, 4}),
                                      zeros({1, 2, 1, 4}, {.dtype = int64}));
     },
     ErrorKind::dtype, "scaled_dot_product_attention:", "v is int64"},
    {[] { matmul(scalar(1), f({2})); }, ErrorKind::shape, "matmul:", "0-dim"},
    {[] {
         linear(f({2, 3}), f({4, 5}));
     },
     ErrorKind::shape, "linear:", "[2, 3]"},
    {[] {
         linear(f({2, 5}), f({4, 5}), f({5}));
     },
     ErrorKind::shape, "linear:", "[5]"},
    {[] {
         linear(f({2, 5}), half({4, 5}));
     },
     ErrorKind::dtype, "linear:", "float16"},
    {[] { sum(f({2}), {1}); }, ErrorKind::shape, "sum:", "1"},
    {[] {
         sum(f({2, 2}), {1, -1});
     },
     ErrorKind::shape, "sum:", "twice"},
    {[] { mean(arange(3)); }, ErrorKind::dtype, "mean:", "int64"},
    {[] {
         max(f({0, 2}));
     },
     ErrorKind::shape, "max:", "empty"},
    {[] {
         argmax(f({2, 0}));
     },
     ErrorKind::shape, "argmax:", "empty"},
    {[] {
         sum_to(f({2, 3}), {2});
     },
     ErrorKind::shape, "sum_to:", "[2]"},
    {[] { softmax(f({2}), 1); }, ErrorKind::shape, "softmax:", "1"},
    {[] { softmax(arange(3)); }, ErrorKind::dtype, "softmax:", "int64"},
    {[] { cat({}); }, ErrorKind::value, "cat:", "empty"},
    {[] {
         cat({f({2, 3}), f({2, 4})});
     },
     ErrorKind::shape, "cat:", "[2, 4]"},
    {[] {
         stack({f({2}), f({3})});
     },
     ErrorKind::shape, "stack:", "[3]"},
    {[] {
         mse_loss(f({2}), f({2, 1}));
     },
     ErrorKind::shape, "mse_loss:", "[2, 1]"},
    {[] { smooth_l1_loss(f({2}), f({2}), {.beta = 0}); }, ErrorKind::value, "smooth_l1_loss:", "beta"},
    {[] {
         cross_entropy(f({2, 3}), f({2}));
     },
     ErrorKind::dtype, "cross_entropy:", "int64"},
    {[] {
         cross_entropy(f({2, 3}), classes({0}));
     },
     ErrorKind::shape, "cross_entropy:", "[1]"},
    {[] {
         cross_entropy(f({2, 3}), classes({0, 3}));
     },
     ErrorKind::value, "cross_entropy:", "3"},
    {[] {
         cross_entropy(f({2, 3}), classes({0, 1}), {.label_smoothing = 2});
     },
     ErrorKind::value, "cross_entropy:", "2"},
    {[] {
         nll_loss(f({2, 3}), classes({-1, 0}));
     },
     ErrorKind::value, "nll_loss:", "-1"},
    {[] {
         f({2, 3}).reshape({4, -1});
     },
     ErrorKind::shape, "reshape:", "[4, -1]"},
    {[] {
         f({2, 3}).reshape({-1, -1});
     },
     ErrorKind::shape, "reshape:", "-1"},
    {[] {
         f({2, 3}).permute({0, 0});
     },
     ErrorKind::shape, "permute:", "twice"},
    {[] {
         f({2, 3}).select(0, 2);
     },
     ErrorKind::shape, "select:", "2"},
    {[] {
         f({2, 3}).slice(0, 0, 2, 0);
     },
     ErrorKind::value, "slice:", "step"},
    {[] {
         f({2, 3}).expand({2, 4});
     },
     ErrorKind::shape, "expand:", "[2, 4]"},
    {[] {
         f({2, 3}).transpose(0, 2);
     },
     ErrorKind::shape, "transpose:", "2"},
    {[] { f({3}).t(); }, ErrorKind::shape, "t:", "[3]"},
    {[] { f({2}).add_(f({3})); }, ErrorKind::shape, "add_:", "[3]"},
    {[] { arange(2).add_(f({2})); }, ErrorKind::dtype, "add_:", "float32"},
    {[] { f({1}).expand({4}).fill_(1); }, ErrorKind::state, "fill_:", "expanded"},
    {[] { f({2}).copy_(f({2}).set_requires_grad()); }, ErrorKind::state, "copy_:", "detach"},
    {[] { f({2}).to(Device(DeviceType::cuda, 99)); }, ErrorKind::device, "to:", "cuda"},
};

}  // namespace

TEST_CASE("errors name the op and show the values", "[errors]") {
    const LiveObjects before = live_objects();
    for (std::size_t i = 0; i < std::size(bad); ++i) {
        CAPTURE(i, bad[i].starts);
        try {
            bad[i].attempt();
            FAIL_CHECK("nothing was thrown");
        } catch (const Error& e) {
            const std::string text = e.what();
            CAPTURE(text);
            CHECK(e.kind() == bad[i].kind);
            CHECK(text.rfind(bad[i].starts, 0) == 0);
            CHECK(text.find(bad[i].contains) != std::string::npos);
        }
    }
    CHECK(live_objects().tensors == before.tensors);
    CHECK(live_objects().storages == before.storages);
    CHECK(doubles(f({2}) + 1.0) == Values{1, 1});
}

TEST_CASE("devices do not mix", "[errors][cuda]") {
    if (no_device()) return;
    CHECK_THROWS_WITH(f({2}) + f({2}).to(Device(DeviceType::cuda)), Catch::StartsWith("add:"));
}

TEST_CASE("how dtypes combine", "[dtypes]") {
    const Tensor h = full({2}, 2, {.dtype = float16}), b = full({2}, 2, {.dtype = bfloat16}),
                 s = full({2}, 2);
    const Tensor d = full({2}, 2, {.dtype = float64}), i = full({2}, 2, {.dtype = int64}),
                 u = full({2}, 2, {.dtype = uint8});
    CHECK((h + s).dtype() == float32);
    CHECK((h + b).dtype() == float32);
    CHECK((s * d).dtype() == float64);
    CHECK((i * h).dtype() == float16);
    CHECK((i + u).dtype() == int64);
    CHECK((i / u).dtype() == float32);
    CHECK(doubles(i / full({2}, 4, {.dtype = int64})) == Values{0.5, 0.5});
    CHECK((h + scalar(1)).dtype() == float16);
    CHECK((scalar(1, {.dtype = float64}) * h).dtype() == float16);
    CHECK((i + scalar(1)).dtype() == float32);
    CHECK((scalar(1, {.dtype = float16}) * scalar(1)).dtype() == float32);
    CHECK((u + scalar(300, {.dtype = int64})).dtype() == uint8);
    CHECK(where(gt(s, 0.0), h, scalar(1)).dtype() == float16);
    CHECK(cat({h, s}).dtype() == float32);
    CHECK(cat({h, h}).dtype() == float16);
    CHECK(exp(i).dtype() == float32);
    CHECK(sum(u).dtype() == int64);
    CHECK(sum(gt(s, 0.0)).item<int>() == 2);
    CHECK(sum(h, {}, {.dtype = float64, .explicit_dtype = true}).dtype() == float64);
    CHECK(sum(s, {}, {.dtype = float16, .explicit_dtype = true}).dtype() == float16);
    CHECK((i + 1.0).dtype() == int64);
    CHECK((i + 0.5).dtype() == float32);
    CHECK((gt(s, 0.0) + 1.0).dtype() == int64);
    CHECK(pow(i, 2).dtype() == float32);
    CHECK(neg(i).dtype() == int64);
    CHECK(mse_loss(h, h).dtype() == float16);
    CHECK(mse_loss(h, s).dtype() == float32);
}

TEST_CASE("scalars and 0-dim tensors leave 16 bit as it is", "[dtypes]") {
    const Tensor h = ones({2}, {.dtype = float16});
    const Tensor product = h * 70000.0;
    CHECK(product.dtype() == float16);
    CHECK(std::isinf(doubles(product)[0]));
    CHECK(doubles(lt(h, 70000.0)) == Values{1, 1});
    for (const Dtype dtype : {float16, bfloat16, float32}) {  // a number beyond the range is not infinity
        INFO(name(dtype));
        const Tensor infinite = full({1}, INFINITY, {.dtype = dtype});
        for (const double finite : {3.4e38, 1e39}) {
            if (finite < dtype_info(dtype).max) continue;
            CHECK(doubles(eq(infinite, finite)) == Values{0});
            CHECK(doubles(gt(infinite, finite)) == Values{1});
            CHECK(doubles(lt(neg(infinite), -finite)) == Values{1});
        }
        CHECK(doubles(eq(infinite, INFINITY)) == Values{1});
    }
    const Tensor mask = ones({2}, {.dtype = boolean});
    CHECK(doubles(masked_fill(h, mask, -1e9)) == Values{-65504, -65504});
    CHECK(masked_fill(h, mask.expand({3, 2}), -1e9).shape() == Shape{3, 2});  // x broadcasts, too
    CHECK(doubles(masked_fill(h.to(bfloat16), mask, 1e39))[0] == 0x1.FEp127);
    CHECK(std::isinf(doubles(masked_fill(h, mask, -INFINITY))[0]));
    CHECK(doubles(masked_fill(h.to(float32), mask, -1e9)) == Values{-1e9, -1e9});
}

TEST_CASE("ties and kinks share or choose gradients as documented", "[gradients]") {
    const Tensor a = Tensor::from({1, 2, 3}).set_requires_grad(),
                 b = Tensor::from({1, 3, 2}).set_requires_grad();
    const auto slopes = [&](const Tensor& y) {
        const Tensors g = autograd::grad({sum(y)}, {a, b});
        Values all = doubles(g[0]);
        for (double v : doubles(g[1])) all.push_back(v);
        return all;
    };
    CHECK(slopes(maximum(a, b)) == Values{0.5, 0, 1, 0.5, 1, 0});
    CHECK(slopes(minimum(a, b)) == Values{0.5, 1, 0, 0.5, 0, 1});
    const Tensor x = Tensor::from({0, 5, 5, 5, -1}).set_requires_grad();
    const auto slope = [&](const Tensor& y) { return doubles(autograd::grad({sum(y)}, {x})[0]); };
    CHECK(slope(max(x) * 3.0) == Values{0, 1, 1, 1, 0});
    CHECK(slope(relu(x)) == Values{0, 1, 1, 1, 0});
    CHECK(slope(abs(x)) == Values{0, 1, 1, 1, -1});
    CHECK(slope(clamp(x, 0, 5)) == Values{0, 0, 0, 0, 0});  // 0 at a bound
    CHECK(slope(clamp(x, -1, INFINITY)) == Values{1, 1, 1, 1, 0});
    CHECK(slope(norm(x * 0.0)) == Values{0, 0, 0, 0, 0});
    CHECK(slope(pow(x, 2)) == Values{0, 10, 10, 10, -2});
    CHECK(slope(pow(x, 1)) == Values{1, 1, 1, 1, 1});
    CHECK(slope(pow(x, 0)) == Values{0, 0, 0, 0, 0});
}

TEST_CASE("the second derivative of max averages over ties", "[gradients]") {
    const Tensor x = Tensor::from({0, 5, 5, 5}).set_requires_grad(), g = ones({}).set_requires_grad();
    const Tensor first = autograd::grad({max(x)}, {x}, {.grad_outputs = {g}, .create_graph = true})[0];
    const Tensor u = Tensor::from({100, 1, 2, 6});
    CHECK(autograd::grad({first}, {g}, {.grad_outputs = {u}})[0].item<float>() == 3);
}

TEST_CASE("NaN passes through", "[values]") {
    const Tensor x = Tensor::from({NAN, 1});
    for (const Tensor& y : {relu(x), clamp(x, 0, 1), maximum(x, zeros({2})), minimum(zeros({2}), x), max(x),
                            min(x), sum(x), softmax(x), norm(x), mse_loss(x, zeros({2}))}) {
        CHECK(std::isnan(doubles(y)[0]));
    }
    CHECK(doubles(isfinite(x)) == Values{0, 1});
    CHECK(std::isnan(mean(zeros({0})).item<double>()));
    CHECK(sum(zeros({0})).item<double>() == 0);
}

TEST_CASE("binary_cross_entropy inside a scope", "[autocast]") {
    const Tensor p = full({2}, 0.5), t = ones({2});
    const double wanted = 0.6931471805599453;
    amp::Autocast scope({.dtype = float16});
    CHECK(binary_cross_entropy(p, t).item<double>() == Approx(wanted));
    CHECK_THROWS_WITH(binary_cross_entropy(p.to(float16), t),
                      Catch::Contains("binary_cross_entropy_with_logits"));
    CHECK_THROWS_WITH(binary_cross_entropy(p.to(float16).to(float32), t), Catch::Contains("_with_logits"));
    CHECK_THROWS_AS(binary_cross_entropy(p.to(float16).to(float32).reshape({2, 1}), t.reshape({2, 1})),
                    Error);
    amp::Autocast off({.enabled = false});
    CHECK(binary_cross_entropy(p.to(float16).to(float32), t).item<double>() == Approx(wanted));
}

TEST_CASE("autocast ranges and rounding of products", "[autocast]") {
    const Tensor x = Tensor::from({1, 1}, {1, 2}), w = Tensor::from({2048, 1}, {2, 1});
    CHECK(matmul(x, w).item<float>() == 2049);
    const Tensor big = Tensor::from({256}, {1, 1}), huge = full({1, 1}, 1e5, {.dtype = bfloat16});
    amp::Autocast scope({.dtype = float16});
    CHECK(matmul(x, w).item<float>() == 2048);
    CHECK(matmul(x, w).dtype() == float16);
    CHECK(std::isinf(matmul(big, big).item<float>()));
    CHECK(std::isinf(matmul(huge, ones({1, 1})).item<float>()));
    CHECK(matmul(x.to(float64), w.to(float64)).dtype() == float64);
    CHECK_THROWS_AS(matmul(x.to(float64), w.to(float16)), Error);
    CHECK(exp(full({1}, 12, {.dtype = float16})).item<float>() == Approx(162754.79));
    CHECK(sum(full({2}, 60000, {.dtype = float16})).item<float>() == 120000);
    const Tensor y = zeros({2, 1});
    y.add_(full({2, 1}, 2049.0));
    CHECK(y.dtype() == float32);
    CHECK(doubles(y) == Values{2049, 2049});
    amp::Autocast inner({.dtype = bfloat16});
    CHECK(matmul(big, big).item<float>() == 65536);
    CHECK(matmul(x, w).dtype() == bfloat16);
}

TEST_CASE("gradients of weights leave products in float32", "[autocast]") {
    for (Device device : devices()) {
        const Tensor x = Tensor::from({2049}, {1, 1}).to(device).set_requires_grad();
        const Tensor w = ones({1, 1}, {.device = device, .requires_grad = true});
        const Tensor many = ones({601, 1}, {.device = device}),
                     v = ones({1, 1}, {.device = device, .requires_grad = true});
        {
            amp::Autocast scope({.device = device.type(), .dtype = bfloat16});
            linear(x, w).backward();
            sum(linear(many, v)).backward();
            sum(linear(many, v)).backward();  // the second product accumulates in the gradient
        }
        CHECK(w.grad().dtype() == float32);
        CHECK(w.grad().item<float>() == 2048);
        CHECK(v.grad().item<float>() == 1202);
    }
}

TEST_CASE("errors: numbers that are no enumerators") {
    const Tensor x = ones({2, 4}), image = ones({1, 2, 2, 1});
    const Device nowhere(DeviceType(7));
    const auto dtype = Dtype(99);
    CHECK_THROWS_WITH(zeros({2}, {.device = nowhere}), Catch::Contains("no device unknown:0"));
    CHECK_THROWS_AS(memory_stats(nowhere), Error);
    CHECK_THROWS_AS(synchronize(nowhere), Error);
    CHECK_THROWS_AS(x.to(nowhere), Error);
    CHECK_THROWS_AS(empty_cache(nowhere), Error);
    CHECK_THROWS_AS(amp::autocast_enabled(DeviceType(7)), Error);
    CHECK(std::string(name(DeviceType(7))) == "unknown");
    CHECK_THROWS_AS(amp::Autocast({.device = DeviceType(7)}), Error);
    CHECK_THROWS_WITH(empty({2}, {.dtype = dtype}), Catch::Contains("dtype is 99"));
    CHECK_THROWS_WITH(x.to(dtype), Catch::Contains("dtype is 99"));
    CHECK_THROWS_WITH(randn({2}, {.dtype = dtype}), Catch::Contains("dtype is 99"));
    CHECK_THROWS_WITH(rand({2}, {.dtype = dtype}), Catch::Contains("dtype is 99"));
    CHECK_THROWS_WITH(randint(0, 2, {2}, {.dtype = dtype}), Catch::Contains("dtype is 99"));
    CHECK_THROWS_WITH(randperm(2, {.dtype = dtype}), Catch::Contains("dtype is 99"));
    CHECK_THROWS_WITH(amp::Autocast({.dtype = dtype}), Catch::Contains("dtype is 99"));
    CHECK_THROWS_WITH(mse_loss(x, x, {.reduction = Reduction(9)}),
                      Catch::Contains("mse_loss: reduction is 9"));
    CHECK_THROWS_WITH(cross_entropy(x, zeros({2}, {.dtype = int64}), {.reduction = Reduction(9)}),
                      Catch::Contains("cross_entropy: reduction is 9"));
    CHECK_THROWS_WITH(linear(x, ones({3, 4}), {}, LinearActivation(9)),
                      Catch::Contains("linear: activation is 9"));
    CHECK_THROWS_WITH(pad(x, {{0, 1, 1}}, PadMode(9)), Catch::Contains("pad: mode is 9"));
    CHECK_THROWS_WITH(interpolate(image, 4, {.mode = InterpolateMode(9)}),
                      Catch::Contains("interpolate: mode is 9"));
    CHECK_THROWS_WITH(quantile(x, 0.5, {.interpolation = Interpolation(9)}),
                      Catch::Contains("quantile: interpolation is 9"));
    CHECK_THROWS_WITH(set_float32_matmul_precision(Float32MatmulPrecision(9)),
                      Catch::Contains("precision is 9"));
}

TEST_CASE("op errors: fmod of a boolean and a floating tensor names itself") {
    const Tensor number = ones({2}), truth = gt(number, 0.0);
    CHECK_THROWS_WITH(fmod(number, truth), Catch::StartsWith("fmod: no arithmetic on boolean"));
    CHECK_THROWS_WITH(fmod(truth, number), Catch::StartsWith("fmod: no arithmetic on boolean"));
}

TEST_CASE("op errors: diagonals far outside of a matrix") {
    for (const std::int64_t far : {std::numeric_limits<std::int64_t>::max(), std::int64_t(1) << 40,
                                   std::numeric_limits<std::int64_t>::min()}) {
        INFO("diagonal " << far);
        const double below = far > 0 ? 6 : 0;  // of six elements, those below that diagonal
        CHECK(tril(ones({3, 2}), far).sum().item<double>() == below);
        CHECK(triu(ones({3, 2}), far).sum().item<double>() == 6 - below);
        CHECK_THROWS_WITH(diag(ones({3}), far), Catch::Contains("diag: diagonal"));
        CHECK_THROWS_WITH(diag(ones({3, 3}), far), Catch::Contains("diag: diagonal"));
    }
}
