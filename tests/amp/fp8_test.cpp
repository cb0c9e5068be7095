// Float8 products under Autocast: quantize(), values and gradients against float64, what stays in 16 bit.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <set>

#include "mezzo/amp.h"
#include "mezzo/attention_ops.h"
#include "mezzo/autograd.h"
#include "mezzo/fusion.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"
#include "mezzo/quantize.h"
#include "mezzo/transformer.h"

using namespace mezzo;
using amp::Autocast;
using amp::AutocastOptions;
using amp::Fp8;
using Catch::Matchers::Contains;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

// x as a code of `mantissa` bits of significand after the point, exponents from `least`, up to `top`: rounded
// to nearest even, from the definition.
double rounded(double x, int mantissa, int least, double top) {
    if (x == 0 || !std::isfinite(x)) return std::isfinite(x) ? 0 : std::nan("");
    const double unit = std::ldexp(1.0, std::max(std::ilogb(x), least) - mantissa);
    const double y = std::nearbyint(x / unit) * unit;
    return std::copysign(std::min(std::fabs(y), top), x);
}
double rounded(double x, Dtype dtype) {
    return dtype == float8_e4m3fn ? rounded(x, 3, -6, 448) : rounded(x, 2, -14, 57344);
}
double scale_of(const std::vector<float>& group, Dtype dtype, bool exact) {
    double largest = 0;
    for (const float x : group) largest = std::isfinite(x) ? std::max(largest, std::fabs(double(x))) : inf;
    if (largest == 0 || !std::isfinite(largest)) return 1;
    const double ratio = std::min((dtype == float8_e4m3fn ? 448 : 57344) / largest, 0x1p126);
    return exact ? double(float(ratio)) : std::ldexp(1.0, std::ilogb(ratio));
}
// dequantize(quantize(x)) in float64, for a matrix.
Tensor reference(const Tensor& x, Dtype dtype, const Fp8& fp8) {
    const std::vector<float> values = x.to_vector<float>();
    std::vector<double> result;
    const std::size_t group = fp8.granularity == Granularity::row ? std::size_t(x.size(1)) : values.size();
    for (std::size_t i = 0; i < values.size(); i += group) {
        const std::vector<float> part(values.begin() + std::ptrdiff_t(i),
                                      values.begin() + std::ptrdiff_t(i + group));
        const double scale = scale_of(part, dtype, fp8.exact_scale);
        for (const float v : part) result.push_back(rounded(double(v) * scale, dtype) / scale);
    }
    return Tensor::from(result, x.shape());
}

Tensor wide(const Tensor& x) { return x.detach().to(float64); }
// With rounded scales, ties may fall otherwise than in float64: the values are those of quantize().
Tensor operand(const Tensor& x, Dtype dtype, const Fp8& fp8) {
    if (!fp8.exact_scale) return reference(x, dtype, fp8);
    return wide(dequantize(quantize(x, {dtype, fp8.granularity, fp8.exact_scale})));
}
// The largest difference relative to the largest element.
double error(const Tensor& x, const Tensor& expected) {
    return (max(abs(wide(x) - expected)) / max(abs(expected))).item<double>();
}
// Numbers of the dtype, some of them large.
Tensor numbers(const Shape& shape, Dtype dtype, double outliers = 20) {
    const Tensor x = randn(shape);
    return where(rand(shape) < 0.02, x * outliers, x).to(dtype);
}

// All numbers of a 16-bit dtype, in rows of neighbours, some of which are not finite.
template <class T> Tensor all_patterns(Dtype dtype) {
    std::vector<T> values;
    for (unsigned bits = 0; bits <= 0xffff; ++bits) values.push_back(T::from_bits(std::uint16_t(bits)));
    return Tensor::from<T>(values, {256, 256}, {.dtype = dtype});
}

}  // namespace

TEST_CASE("quantize: codes and scales are those of the definition", "[amp]") {
    manual_seed(3);
    for (const Dtype dtype : {float8_e4m3fn, float8_e5m2})
        for (const Granularity granularity : {Granularity::tensor, Granularity::row})
            for (const bool exact : {false, true})
                for (const double factor : {1.0, 1e-38, 1e-30, 1e37, 447.9}) {
                    CAPTURE(name(dtype), int(granularity), exact, factor);
                    const Tensor x = numbers({7, 24}, float32, 4) * factor;
                    const Quantized q =
                        quantize(x, {.dtype = dtype, .granularity = granularity, .exact_scale = exact});
                    CHECK(q.codes.dtype() == dtype);
                    CHECK(q.scale.shape() == (granularity == Granularity::row ? Shape{7, 1} : Shape{1, 1}));
                    const Fp8 options{.granularity = granularity, .exact_scale = exact};
                    const Tensor expected = reference(x, dtype, options);
                    if (!exact) {
                        CHECK(equal(wide(dequantize(q)), expected));
                        continue;
                    }
                    // Rounded scales may move a tie.
                    CHECK(error(dequantize(q, float64), expected) < (dtype == float8_e5m2 ? 0.13 : 0.07));
                    const Tensor top = max(abs(wide(q.codes.to(float32))), -1);
                    if (factor != 1e-38)
                        CHECK((granularity == Granularity::row ? min(top) : max(top)).item<double>() ==
                              dtype_info(dtype).max);
                }
}

TEST_CASE("quantize: every number of the 16-bit dtypes", "[amp]") {
    for (const Dtype low : {float16, bfloat16})
        for (const Dtype dtype : {float8_e4m3fn, float8_e5m2}) {
            CAPTURE(name(low), name(dtype));
            const Tensor x = low == float16 ? all_patterns<float16_t>(low) : all_patterns<bfloat16_t>(low);
            const Tensor back = wide(dequantize(quantize(x, {dtype, Granularity::row})));
            const Tensor expected = reference(x.to(float32), dtype, {.granularity = Granularity::row});
            CHECK(equal(nan_to_num(back, {.nan = 7}), nan_to_num(expected, {.nan = 7})));
        }
}

TEST_CASE("quantize: zeros, infinities, NaN and empty tensors", "[amp]") {
    CHECK(equal(dequantize(quantize(zeros({3, 4}))), zeros({3, 4})));
    const Quantized odd = quantize(Tensor::from({1, inf, -inf, std::nanf(""), 0, 2, 3, 448}, {2, 4}),
                                   {.granularity = Granularity::row});
    CHECK(odd.scale.to_vector<float>() == std::vector<float>{1, 1});
    const std::vector<float> back = dequantize(odd).to_vector<float>();
    CHECK(back[0] == 1);
    for (int i : {1, 2, 3}) CHECK(std::isnan(back[std::size_t(i)]));
    CHECK(std::vector<float>(back.begin() + 4, back.end()) == std::vector<float>{0, 2, 3, 448});
    CHECK(quantize(empty({0, 4})).codes.shape() == Shape{0, 4});
    CHECK(quantize(Tensor::from({5}, {})).codes.to(float32).item<float>() == 320);  // 5 * 2^6
    CHECK_THROWS_WITH(quantize(ones({2}), {.dtype = int8}), Contains("quantize: dtype is int8"));
    CHECK_THROWS_WITH(quantize(arange(3)), Contains("quantize"));
    CHECK_THROWS_WITH(quantize(Tensor::from({5}, {}), {.granularity = Granularity::row}),
                      Contains("without dimensions"));
}

TEST_CASE("fp8: linear and its gradients are those of the quantized operands", "[amp]") {
    manual_seed(5);
    for (const Dtype low : {bfloat16, float16})
        for (const Granularity granularity : {Granularity::tensor, Granularity::row})
            for (const bool exact : {false, true})
                for (const amp::WeightGrad weight_grad : {amp::WeightGrad::fp8, amp::WeightGrad::low}) {
                    CAPTURE(name(low), int(granularity), exact, int(weight_grad));
                    const Fp8 fp8{.granularity = granularity,
                                  .exact_scale = exact,
                                  .weight_grad = weight_grad,
                                  .least_size = 16};
                    const Tensor x = numbers({2, 16, 48}, low).set_requires_grad();
                    const Tensor w = numbers({32, 48}, low).to(float32).set_requires_grad();
                    const Tensor b = randn({32}).set_requires_grad();
                    const Tensor dy = numbers({2, 16, 32}, low, 100);
                    Tensor y;
                    {
                        const Autocast scope({.dtype = low, .fp8 = fp8});
                        y = linear(x, w, b);
                    }
                    CHECK(y.dtype() == low);
                    y.backward({.gradient = dy});
                    const bool rows = granularity == Granularity::row;
                    const Dtype of_gradient = rows ? float8_e4m3fn : float8_e5m2;
                    const Tensor xs = x.detach().reshape({32, 48}), gs = dy.reshape({32, 32}),
                                 ws = w.detach();
                    const auto e4m3 = [&](const Tensor& a) { return operand(a, float8_e4m3fn, fp8); };
                    const auto gradient = [&](const Tensor& a) { return operand(a, of_gradient, fp8); };
                    const double unit = low == bfloat16 ? 0x1p-8 : 0x1p-11;
                    const double slack = 1e-6;
                    CHECK(error(y.reshape({32, 32}), matmul(e4m3(xs), e4m3(ws).t()) + wide(b)) <
                          unit + slack);
                    CHECK(x.grad().dtype() == low);
                    CHECK(error(x.grad().reshape({32, 48}), matmul(gradient(gs), e4m3(ws.t()).t())) <
                          unit + slack);
                    const Tensor dw = weight_grad == amp::WeightGrad::low
                                          ? matmul(wide(gs).t(), wide(xs))
                                          : matmul(gradient(gs.t()), e4m3(xs.t()).t());
                    CHECK(w.grad().dtype() == float32);
                    CHECK(error(w.grad(), dw) < 2e-6);
                    CHECK(error(b.grad(), sum(wide(gs), {0})) < 2e-6);
                }
}

TEST_CASE("fp8: activations come before the result is rounded", "[amp]") {
    manual_seed(6);
    const Fp8 fp8{.least_size = 16};
    for (const LinearActivation activation :
         {LinearActivation::relu, LinearActivation::gelu, LinearActivation::gelu_tanh}) {
        const Tensor x = numbers({16, 32}, bfloat16).set_requires_grad(),
                     w = (numbers({16, 32}, float32) * 0.1).detach().set_requires_grad(),
                     b = randn({16}).set_requires_grad();
        const Tensor dy = numbers({16, 16}, bfloat16);
        Tensor y;
        {
            const Autocast scope({.dtype = bfloat16, .fp8 = fp8});
            y = linear(x, w, b, activation);
        }
        y.backward({.gradient = dy});
        const Tensor z = (matmul(reference(x.detach(), float8_e4m3fn, fp8),
                                 reference(w.detach().to(bfloat16), float8_e4m3fn, fp8).t()) +
                          wide(b))
                             .set_requires_grad();
        const Tensor expected = activation == LinearActivation::relu   ? relu(z)
                                : activation == LinearActivation::gelu ? gelu(z)
                                                                       : gelu_tanh(z);
        CHECK(error(y, expected.detach()) < 0x1p-8);
        expected.backward({.gradient = wide(dy)});
        CHECK(error(b.grad(), sum(z.grad(), {0})) < 0x1p-6);
        // dx, from codes of dz that may differ where dz was rounded to 16 bit.
        CHECK(error(x.grad(), matmul(reference(z.grad().to(bfloat16), float8_e5m2, fp8),
                                     reference(w.detach().to(bfloat16), float8_e4m3fn, fp8))) < 0.05);
    }
}

TEST_CASE("fp8: the loss scale changes no bit of a bfloat16 scope", "[amp]") {
    const auto gradients = [](double scale) {
        manual_seed(7);
        const nn::Sequential net{nn::Linear(32, 64), nn::ReLU(), nn::Linear(64, 16)};
        {
            const Autocast scope({.dtype = bfloat16, .fp8 = Fp8{.least_size = 16}});
            (square(net(randn({32, 32}))).sum() * scale).backward();
        }
        std::vector<float> all;
        for (const Tensor& p : net.parameters())
            for (const float g : p.grad().to_vector<float>()) all.push_back(float(g / scale));
        return all;
    };
    CHECK(gradients(1) == gradients(1024));
}

TEST_CASE("fp8: an overflow reaches the scaler", "[amp]") {
    nn::Linear layer(16, 16);
    optim::SGD optimizer(layer.parameters(), {.lr = 1});
    const std::vector<float> before = layer.weight.to_vector<float>();
    amp::GradScaler scaler;
    Tensor y;
    {
        const Autocast scope({.dtype = float16, .fp8 = Fp8{.least_size = 16}});
        y = layer(full({16, 16}, 1e5));  // infinite in float16
    }
    CHECK(std::isnan(y.to_vector<float>()[0]));
    scaler.scale(y.sum()).backward();
    scaler.step(optimizer);
    scaler.update();
    CHECK(layer.weight.to_vector<float>() == before);
    CHECK(scaler.get_scale() == 32768);
}

TEST_CASE("fp8: what stays in 16 bit, and why the report says", "[amp]") {
    const Fp8 fp8{.least_size = 32};
    amp::clear_autocast_report();
    amp::collect_autocast_report(true);
    const Tensor x = randn({32, 32});
    nn::Linear head(32, 32), small(32, 16), odd(32, 40), taken(32, 32);
    head.set_fp8(false);
    {
        const Autocast scope({.dtype = bfloat16, .fp8 = fp8});
        (void)taken(x), (void)head(x), (void)small(x), (void)odd(x), (void)matmul(x, x);
        (void)merged_linear(x, {taken.weight, taken.weight});
        (void)linear(x.to(float64), ones({32, 32}, {.dtype = float64}));
        const nn::Linear copy = nn::clone(head);
        (void)copy(x);
        const Autocast plain({.dtype = bfloat16});
        (void)taken(x);
    }
    amp::collect_autocast_report(false);
    std::multiset<std::string> lines;
    for (const amp::AutocastReportLine& line : amp::autocast_report())
        lines.insert(line.op + " " + name(line.computed) + " " + std::to_string(line.calls) + " " +
                     line.reason);
    amp::clear_autocast_report();
    for (const char* const line :
         {"linear float8_e4m3fn 1 ", "merged_linear float8_e4m3fn 1 ", "linear bfloat16 2 set_fp8(false)",
          "linear bfloat16 1 a size is below least_size", "linear bfloat16 1 a size is no multiple of 16",
          "matmul bfloat16 1 the op has no float8 form", "linear bfloat16 1 ", "linear float64 1 "}) {
        CAPTURE(line, lines);
        CHECK(lines.count(line) == 1);
    }
}

TEST_CASE("fp8: a merged linear layer is its parts", "[amp]") {
    manual_seed(8);
    const Tensor x = randn({32, 48}), v = randn({16, 48}), w = randn({32, 48}), b = randn({32});
    const Autocast scope({.dtype = bfloat16, .fp8 = Fp8{.least_size = 16}});
    CHECK(equal(merged_linear(x, {v, w}, {{}, b}), cat({linear(x, v), linear(x, w, b)}, -1)));
}

TEST_CASE("fp8: scopes nest, and end with them", "[amp]") {
    const Tensor x = randn({16, 16}), w = randn({16, 16});
    const Tensor plain = [&] {
        const Autocast scope({.dtype = bfloat16});
        return linear(x, w);
    }();
    const Autocast outer({.dtype = bfloat16, .fp8 = Fp8{.least_size = 16}});
    const Tensor quantized = linear(x, w);
    CHECK(!equal(plain, quantized));
    {
        const Autocast inner({.dtype = bfloat16});
        CHECK(equal(linear(x, w), plain));
        const Autocast off({.dtype = float32, .fp8 = Fp8{.least_size = 16}});
        CHECK(linear(x, w).dtype() == float32);
    }
    {
        const Autocast other({.device = DeviceType::cuda, .dtype = bfloat16});
        CHECK(equal(linear(x, w), quantized));
    }
    CHECK(equal(linear(x, w), quantized));
    CHECK_THROWS_WITH(Autocast({.fp8 = Fp8{.least_size = 0}}), Contains("least_size is 0"));
    CHECK(equal(linear(x, w), quantized));
}

TEST_CASE("fp8: a checkpoint computes the same codes again", "[amp]") {
    const auto gradient = [](bool checkpointed) {
        manual_seed(9);
        const nn::Sequential net{nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 16)};
        const Tensor x = randn({16, 16}).set_requires_grad();
        {
            const Autocast scope({.dtype = bfloat16, .fp8 = Fp8{.least_size = 16}});
            const auto run = [&](const Tensors& in) { return Tensors{net(in[0])}; };
            (checkpointed ? autograd::checkpoint(run, {x}) : run({x}))[0].sum().backward();
        }
        return net.parameters()[0].grad().to_vector<float>();
    };
    CHECK(gradient(false) == gradient(true));
}

TEST_CASE("fp8: gradients of gradients take quantization for the identity", "[amp]") {
    for (const LinearActivation activation :
         {LinearActivation::none, LinearActivation::relu, LinearActivation::gelu}) {
        CAPTURE(int(activation));
        const auto second = [&](bool fp8) {
            manual_seed(10);
            const Tensor x = randn({16, 16}).set_requires_grad(), w = randn({16, 16}).set_requires_grad(),
                         b = randn({16}).set_requires_grad();
            Tensor y;
            {
                const Autocast scope(
                    {.dtype = bfloat16, .fp8 = fp8 ? std::optional(Fp8{.least_size = 16}) : std::nullopt});
                y = linear(x, w, b, activation);
            }
            const Tensors first =
                autograd::grad({square(y.to(float32)).sum()}, {x, w, b}, {.create_graph = true});
            Tensor norm =
                square(first[0].to(float32)).sum() + square(first[1]).sum() + square(first[2]).sum();
            return autograd::grad({norm}, {x, w, b});
        };
        const Tensors quantized = second(true), plain = second(false);
        for (std::size_t i = 0; i < 3; ++i) {
            CAPTURE(i);
            CHECK(error(quantized[i], wide(plain[i])) < 0.12);
        }
    }
}

TEST_CASE("fp8: gradients of a recorded backward have the shapes and the range of others", "[amp]") {
    const Tensor x = full({2, 256, 16}, 200.5).set_requires_grad(), w = ones({16, 16}).set_requires_grad(),
                 b = zeros({16}).set_requires_grad();
    const auto first = [&](bool create_graph) {
        Tensor y;
        {
            const Autocast scope({.dtype = float16, .fp8 = Fp8{.least_size = 16}});
            y = linear(x, w, b);
        }
        return autograd::grad(
            {y}, {x, w, b},
            {.grad_outputs = {full(y.shape(), 8000, {.dtype = float16})}, .create_graph = create_graph});
    };
    for (const bool create_graph : {false, true}) {
        const Tensors g = first(create_graph);
        CHECK(g[0].shape() == x.shape());
        CHECK(max(g[0]).item<float>() == Approx(128000).epsilon(0.07));  // beyond float16
        CHECK(max(g[2]).item<float>() == Approx(8000.0 * 512).epsilon(1e-5));
    }
    square(first(true)[1]).sum().backward();
    CHECK(x.grad().shape() == x.shape());
}

TEST_CASE("fp8: set_fp8(false) reaches slices, checkpoints and folded weights", "[amp]") {
    amp::clear_autocast_report();
    amp::collect_autocast_report(true);
    const Tensor x = randn({32, 32}), memory = randn({32, 1, 32});
    nn::MultiheadAttention attention(32, 2);
    nn::Linear layer(32, 32);
    nn::BatchNorm1d norm(32);
    attention.set_fp8(false), layer.set_fp8(false);
    layer.eval(), norm.eval();
    const nn::Linear folded = nn::fuse_linear_bn_eval(layer, norm);
    {
        const Autocast scope({.dtype = bfloat16, .fp8 = Fp8{.least_size = 32}});
        (void)attention(x.unsqueeze(1), memory, memory.clone());
        (void)folded(x);
        (void)autograd::checkpoint([](const Tensors& in) { return Tensors{linear(in[0], in[1])}; },
                                   {x, layer.weight});
    }
    amp::collect_autocast_report(false);
    for (const amp::AutocastReportLine& line : amp::autocast_report())
        if (line.op == "linear") CHECK(line.computed == bfloat16);
    amp::clear_autocast_report();
}

TEST_CASE("fp8: scales and zeros far from 1 leave no infinity on the way", "[amp]") {
    const Autocast scope({.dtype = bfloat16, .fp8 = Fp8{.least_size = 16}});
    for (const double large : {1e37, 1e-37})
        CHECK(max(linear(full({16, 16}, large), full({16, 16}, 1 / large))).item<float>() ==
              Approx(16).epsilon(0.15));
    CHECK(equal(linear(ones({16, 16}), zeros({16, 16})), zeros({16, 16}, {.dtype = bfloat16})));
    const Tensor top = Tensor::from({65504.0f, 1.0f}).to(float16);
    CHECK(dequantize(quantize(top), float16).to_vector<float>() == std::vector<float>{65504, 1});
}

TEST_CASE("fp8: tensors that no gradient reads may be changed", "[amp]") {
    const Tensor x = randn({16, 16}).to(bfloat16), w = randn({16, 16}).to(bfloat16).set_requires_grad();
    Tensor y;
    {
        const Autocast scope({.dtype = bfloat16, .fp8 = Fp8{.least_size = 16}});
        y = linear(x, w);
    }
    {
        const NoGrad plain;
        w.mul_(2);  // only the gradient of x would read it
    }
    y.sum().backward();
    CHECK(w.grad().defined());
}

TEST_CASE("fp8: training ends near that of bfloat16", "[amp]") {
    const auto loss_of = [](const std::optional<Fp8>& fp8) {
        manual_seed(11);
        nn::Sequential net{nn::Linear(32, 128), nn::GELU(), nn::Linear(128, 64), nn::ReLU(),
                           nn::Linear(64, 32)};
        optim::AdamW optimizer(net.parameters(), {.lr = 2e-3});
        const Tensor x = randn({64, 32}), target = argmax(x.slice(1, 0, 16), 1);
        Tensor loss;
        for (int step = 0; step < 60; ++step) {
            {
                const Autocast scope({.dtype = bfloat16, .fp8 = fp8});
                loss = cross_entropy(net(x), target);
            }
            optimizer.zero_grad();
            loss.backward();
            optimizer.step();
        }
        return loss.item<double>();
    };
    const double plain = loss_of({});
    CHECK(plain < 0.6);
    for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::block32})
        CHECK(std::fabs(loss_of(Fp8{.granularity = granularity, .least_size = 16}) - plain) < 0.05);
}

TEST_CASE("fp8: a layer saves its input in one byte an element", "[amp]") {
    const nn::Linear layer(1024, 1024);
    const auto saved = [&](const std::optional<Fp8>& fp8) {
        const Autocast scope({.dtype = bfloat16, .fp8 = fp8});
        const std::size_t before = memory_stats(cpu_device).allocated;
        Tensor y = layer(randn({1024, 1024}).to(bfloat16));
        return memory_stats(cpu_device).allocated - before;
    };
    (void)saved({}), (void)saved(Fp8{});  // caches, workspaces and codes of the weight
    const std::size_t plain = saved({}), codes = saved(Fp8{});
    CHECK(plain - codes >= (std::size_t(1) << 20) - 65536);
}
