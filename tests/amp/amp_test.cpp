// Autocast: policies, nesting, the cast cache and its traps, gradients, user-defined functions, the report.
#include <catch2/catch.hpp>
#include <limits>
#include <thread>

#include "autograd/autocast_state.h"
#include "core/tensor_impl.h"
#include "mezzo/amp.h"
#include "mezzo/autograd.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"

using namespace mezzo;
using amp::Autocast;
using Catch::Matchers::Contains;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

Tensor half(std::initializer_list<float> values) { return Tensor::from(values).to(float16); }
std::vector<float> floats(const Tensor& x) { return x.to_vector<float>(); }
Tensor leaf(std::initializer_list<float> values, const Shape& shape) {
    return Tensor::from(values, shape).set_requires_grad();
}
std::uint64_t casts() { return autocast_counters().casts; }

}  // namespace

TEST_CASE("autocast: products run in the scope's dtype", "[amp]") {
    const Tensor x = Tensor::from({1, 1}, {1, 2}), w = Tensor::from({2048, 1}, {2, 1});
    CHECK(matmul(x, w).item<float>() == 2049);
    for (const Dtype low : {float16, bfloat16}) {
        Autocast scope({.dtype = low});
        CHECK(matmul(x, w).dtype() == low);
        CHECK(matmul(x, w).item<float>() == 2048);
        CHECK(linear(x, w.t()).dtype() == low);
        CHECK(matmul(x.reshape({1, 1, 2}), w.reshape({1, 2, 1})).dtype() == low);
        const Tensor big = full({1, 1}, 256);
        CHECK(matmul(big, big).item<float>() == (low == float16 ? inf : 65536));
        CHECK(x.dtype() == float32);
        CHECK(w.dtype() == float32);
    }
    CHECK(matmul(full({1, 1}, 256), full({1, 1}, 256)).item<float>() == 65536);
}

TEST_CASE("autocast: what needs range runs in float32", "[amp]") {
    CHECK(exp(half({12})).item<float>() == inf);
    Autocast scope;
    const Tensor e = exp(half({12}));
    CHECK(e.dtype() == float32);
    CHECK(e.item<float>() == Approx(162754.79).margin(0.1));
    CHECK(pow(half({300}), 2).item<float>() == 90000);
    CHECK(pow(half({300}), 2).dtype() == float32);
    const Tensor s = sum(half({60000, 60000}));
    CHECK(s.dtype() == float32);
    CHECK(s.item<float>() == 120000);
    const Tensor x = half({1, 2, 3});
    CHECK(softmax(x).dtype() == float32);
    CHECK(log_softmax(x).dtype() == float32);
    CHECK(norm(x).dtype() == float32);
    CHECK(mse_loss(x, x).dtype() == float32);
    CHECK(cross_entropy(x.reshape({1, 3}), Tensor::from(std::vector<std::int64_t>{1}, {1})).dtype() ==
          float32);
    CHECK(log(x).dtype() == float32);
    CHECK(softplus(x).dtype() == float32);
}

TEST_CASE("autocast: other ops keep their dtype", "[amp]") {
    Autocast scope;
    for (const Dtype dtype : {float16, float32}) {
        const Tensor x = Tensor::from({1, 2}).to(dtype);
        for (const Tensor& y : {relu(x), gelu(x), tanh(x), sigmoid(x), mean(x), max(x), x * 2.5})
            CHECK(y.dtype() == dtype);
    }
    CHECK((half({1}) + Tensor::from({1})).dtype() == float32);
    CHECK(cat({half({1}), Tensor::from({1})}).dtype() == float32);
    CHECK(cat({half({1}), half({1})}).dtype() == float16);
}

TEST_CASE("autocast: another 16-bit dtype is converted", "[amp]") {
    Autocast scope;
    const Tensor brain = full({1, 1}, 1e5, {.dtype = bfloat16});
    const Tensor y = matmul(brain, ones({1, 1}));
    CHECK(y.dtype() == float16);
    CHECK(y.item<float>() == inf);
}

TEST_CASE("autocast: float64, integers and explicit dtypes are left alone", "[amp]") {
    Autocast scope;
    const Tensor wide = ones({1, 1}, {.dtype = float64}), narrow = ones({1, 1}, {.dtype = float16});
    CHECK(matmul(wide, wide).dtype() == float64);
    CHECK_THROWS_AS(matmul(wide, narrow), Error);
    CHECK(sum(ones({2}, {.dtype = int32})).dtype() == int64);
    CHECK(sum(narrow, {}, {.dtype = float64, .explicit_dtype = true}).dtype() == float64);
}

TEST_CASE("autocast: in-place writes are not cast", "[amp]") {
    Autocast scope;
    const Tensor y = Tensor::from({0});
    y.add_(Tensor::from({2049}));
    CHECK(y.dtype() == float32);
    CHECK(y.item<float>() == 2049);
}

TEST_CASE("autocast: binary_cross_entropy is refused, and the text helps", "[amp]") {
    const Tensor p = Tensor::from({0.5}), target = Tensor::from({1});
    Autocast scope;
    CHECK_THROWS_WITH(binary_cross_entropy(p.to(float16), target), Contains("with_logits"));
    const Tensor layer = matmul(ones({1, 1}), ones({1, 1})).reshape({1}).to(float32);
    CHECK_THROWS_WITH(binary_cross_entropy(layer, target), Contains("with_logits"));
    CHECK(binary_cross_entropy(p, target).dtype() == float32);  // float32 that no cast produced
    CHECK(binary_cross_entropy_with_logits(p.to(float16), target).dtype() == float32);
    Autocast off({.enabled = false});
    CHECK(binary_cross_entropy(p, target).item<float>() == Approx(0.6931472));
}

TEST_CASE("autocast: scopes nest and survive exceptions", "[amp]") {
    const Tensor x = Tensor::from({1, 1}, {1, 2}), w = Tensor::from({2048, 1}, {2, 1});
    {
        Autocast scope;
        const Tensor h = matmul(x, w);
        CHECK(h.dtype() == float16);
        {
            Autocast off({.enabled = false});
            CHECK_FALSE(amp::autocast_enabled(DeviceType::cpu));
            CHECK(matmul(x, w).item<float>() == 2049);
            CHECK_THROWS_AS(matmul(h, ones({1, 1})), Error);
            CHECK(matmul(h.to(float32), ones({1, 1})).dtype() == float32);
        }
        {
            Autocast other({.dtype = float32});  // off
            CHECK_FALSE(amp::autocast_enabled(DeviceType::cpu));
            CHECK(matmul(x, w).item<float>() == 2049);
        }
        {
            Autocast other({.dtype = bfloat16});
            CHECK(matmul(x, w).dtype() == bfloat16);
        }
        CHECK(matmul(x, w).dtype() == float16);
        try {
            Autocast inner({.dtype = bfloat16});
            fail(ErrorKind::value, "thrown inside");
        } catch (const Error&) {
        }
        CHECK(amp::autocast_dtype(DeviceType::cpu) == float16);
    }
    CHECK(matmul(x, w).dtype() == float32);
    CHECK_THROWS_WITH(Autocast({.dtype = float64}), Contains("dtype is float64"));
    CHECK_FALSE(amp::autocast_enabled(DeviceType::cpu));
}

TEST_CASE("autocast: threads and devices have states of their own", "[amp]") {
    const Tensor x = ones({1, 1});
    Autocast scope;
    Dtype before = float64, inside = float64;
    std::thread other([&] {
        before = matmul(x, x).dtype();
        Autocast own({.dtype = bfloat16});
        inside = matmul(x, x).dtype();
    });
    other.join();
    CHECK(before == float32);
    CHECK(inside == bfloat16);
    CHECK(matmul(x, x).dtype() == float16);
    Autocast off({.enabled = false});
    Autocast cuda({.device = DeviceType::cuda});
    CHECK(matmul(x, x).dtype() == float32);
}

TEST_CASE("autocast: a weight is cast once per scope", "[amp]") {
    const Tensor w = leaf({1, 2}, {1, 2}), x = half({1, 1}).reshape({1, 2});
    for (int round = 0; round < 2; ++round) {
        const std::uint64_t before = casts();
        {
            Autocast scope;
            linear(x, w);
            { Autocast off({.enabled = false}); }
            linear(x, w);
            linear(x, w);
            CHECK(autocast_counters().cache_entries == 1);
        }
        CHECK(casts() - before == 1);
        CHECK(autocast_counters().cache_entries == 0);
    }
    const std::uint64_t before = casts();
    Autocast scope({.cache = false});
    for (int use = 0; use < 3; ++use) CHECK(linear(x, w).item<float>() == 3);
    CHECK(casts() - before == 3);
}

TEST_CASE("autocast: the cache knows the dtype, changes in place and grad mode", "[amp]") {
    const Tensor w = leaf({2049, 1}, {1, 2}), x = Tensor::from({1, 0}, {1, 2});
    {
        Autocast scope;
        CHECK(linear(x, w).dtype() == float16);
        Autocast nested({.dtype = bfloat16});
        CHECK(linear(x, w).dtype() == bfloat16);
    }
    {
        Autocast scope;
        CHECK(linear(x, w).item<float>() == 2048);
        {
            NoGrad plain;
            w.fill_(7);
        }
        CHECK(linear(x, w).item<float>() == 7);
    }
    Autocast scope;
    {
        NoGrad plain;
        linear(x, w);
    }
    linear(x, w).backward();
    REQUIRE(w.grad().defined());
    CHECK(floats(w.grad()) == std::vector<float>{1, 0});
}

TEST_CASE("autocast: an InferenceMode keeps converted parameters, but no activations", "[amp]") {
    nn::LayerNorm norm(8);
    nn::Linear layer(8, 8);
    layer.freeze(), norm.eval(), layer.eval();
    const InferenceMode plain;
    const std::uint64_t before = casts();
    for (int i = 0; i < 3; ++i) {
        const amp::Autocast scope({.dtype = bfloat16});
        const Tensor y = norm(randn({2, 8}));
        y.mul_(2);  // the 16-bit copy that the norm's kernel has written is out of date
        (void)layer(y);
    }
    CHECK(casts() - before == 5);  // weight and bias once, three activations
}

TEST_CASE("autocast: what is not cached is right too", "[amp]") {
    const Tensor w = leaf({1, 2, 3, 4}, {2, 2}), x = Tensor::from({1, 10}, {1, 2});
    const Tensor frozen = Tensor::from({1, 2}, {1, 2});
    Autocast scope;
    for (int use = 0; use < 2; ++use) {
        CHECK(floats(matmul(x, w.t())) == std::vector<float>{21, 43});
        CHECK(floats(matmul(x, w * 1.0)) == std::vector<float>{31, 42});
        CHECK(linear(x, frozen).item<float>() == 21);
    }
    frozen.fill_(3);
    CHECK(linear(x, frozen).item<float>() == 33);
}

TEST_CASE("autocast: dtypes of gradients", "[amp]") {
    const Tensor x = leaf({2049}, {1, 1}), w = leaf({1}, {1, 1});
    Tensor y;
    {
        Autocast scope;
        y = matmul(x, w);
    }
    Dtype arrived = float64;
    autograd::add_hook(y, [&](const Tensor& g) {
        arrived = g.dtype();
        return Tensor();
    });
    y.backward({.gradient = ones({1, 1}, {.dtype = float16})});
    CHECK(arrived == float16);
    CHECK(x.grad().dtype() == float32);
    CHECK(w.grad().dtype() == float32);
    CHECK(w.grad().item<float>() == 2048);  // what the product saw
}

TEST_CASE("autocast: gradients of a shared weight add up in float32", "[amp]") {
    // In bfloat16 a running sum of ones would stop at 256, in float16 at 2048.
    for (const Dtype low : {bfloat16, float16}) {
        const Tensor w = leaf({1}, {1, 1}), x = ones({1, 1});
        const int uses = low == bfloat16 ? 600 : 2100;
        Tensor total;
        {
            Autocast scope({.dtype = low});
            Tensors results;
            for (int i = 0; i < uses; ++i) results.push_back(linear(x, w));
            total = sum(cat(results));
        }
        total.backward();
        CHECK(w.grad().item<float>() == float(uses));
    }
    const Tensor w = leaf({1}, {1, 1}), x = ones({1, 1});
    Tensor a, b;
    {
        Autocast scope;
        a = linear(x, w);
        b = linear(x, w);
    }
    const Tensor big = full({1, 1}, 40000, {.dtype = float16});
    autograd::backward({a, b}, {.grad_outputs = {big, big}});
    CHECK(w.grad().item<float>() == 80000);
}

TEST_CASE("autocast: a weight gradient beyond float16 survives", "[amp]") {
    const Tensor w = leaf({1}, {1, 1}), x = full({4, 1}, 30000);
    Tensor y;
    {
        Autocast scope;
        y = linear(x, w);
    }
    y.backward({.gradient = ones({4, 1}, {.dtype = float16})});
    CHECK(w.grad().item<float>() == 120000);
}

TEST_CASE("autocast: backward inside the scope is the same", "[amp]") {
    manual_seed(1);
    const nn::Sequential net{nn::Linear(8, 16), nn::ReLU(), nn::Linear(16, 4)};
    const Tensor x = randn({5, 8});
    std::vector<std::vector<float>> gradients[2];
    for (const bool inside : {false, true}) {
        nn::Sequential(net).zero_grad();
        Tensor loss;
        {
            Autocast scope({.dtype = bfloat16});
            loss = mean(square(net(x)));
            if (inside) loss.backward();
        }
        if (!inside) loss.backward();
        for (const Tensor& p : net.parameters()) gradients[inside].push_back(floats(p.grad()));
    }
    CHECK(gradients[0] == gradients[1]);
}

namespace {

// y = 2x, which records its input's dtype and the autocast state of forward and backward.
struct Seen {
    Dtype input = float64;
    bool forward_on = false, backward_on = false;
    Dtype backward_dtype = float64;
};
Tensor doubled(const Tensor& x, const autograd::FunctionOptions& options, Seen& seen) {
    return autograd::apply_function(
        options,
        [&seen](autograd::Context&, const Tensors& in) -> Tensors {
            seen.input = in[0].dtype();
            seen.forward_on = amp::autocast_enabled(DeviceType::cpu);
            return {in[0] * 2.0};
        },
        [&seen](autograd::Context&, const Tensors& g) -> Tensors {
            seen.backward_on = amp::autocast_enabled(DeviceType::cpu);
            seen.backward_dtype = amp::autocast_dtype(DeviceType::cpu);
            return {g[0] * 2.0};
        },
        {x})[0];
}

}  // namespace

TEST_CASE("autocast: functions of the user's", "[amp]") {
    const autograd::FunctionOptions casting{.has_cast_inputs = true, .cast_inputs = float32};
    const Tensor x = ones({1}, {.dtype = float16}).set_requires_grad();
    Seen seen;
    Tensor y;
    {
        Autocast scope;
        y = doubled(x, casting, seen);
    }
    CHECK(seen.input == float32);
    CHECK_FALSE(seen.forward_on);
    CHECK(y.dtype() == float32);
    {
        Autocast scope;
        y.backward();
    }
    CHECK_FALSE(seen.backward_on);
    CHECK(x.grad().dtype() == float16);
    doubled(x, casting, seen);
    CHECK(seen.input == float16);

    const Tensor z = ones({1}).set_requires_grad();
    {
        Autocast scope({.dtype = bfloat16});
        y = doubled(z, {}, seen);
    }
    CHECK(seen.input == float32);
    CHECK(seen.forward_on);
    y.backward();
    CHECK(seen.backward_on);
    CHECK(seen.backward_dtype == bfloat16);
}

TEST_CASE("autocast: scalars do not promote", "[amp]") {
    const Tensor x = half({1, 1});
    CHECK((x * 70000.0).dtype() == float16);
    CHECK(floats(x * 70000.0) == std::vector<float>{inf, inf});
    CHECK((x + scalar(1)).dtype() == float16);
    CHECK((scalar(1, {.dtype = float16}) * scalar(1)).dtype() == float32);
    CHECK((x + ones({2}, {.dtype = bfloat16})).dtype() == float32);
    const Tensor mask = gt(Tensor::from({0, 1}), 0.5);
    CHECK(floats(masked_fill(x, mask, -1e9)) == std::vector<float>{1, -65504});
}

TEST_CASE("autocast: enabled = false everywhere is plain float32", "[amp]") {
    manual_seed(2);
    const nn::Sequential net{nn::Linear(8, 16), nn::GELU(), nn::Linear(16, 4)};
    const Tensor x = randn({5, 8}), target = randn({5, 4});
    const std::uint64_t before = casts();
    const float plain = mse_loss(net(x), target).item<float>();
    Autocast scope({.enabled = false});
    CHECK(mse_loss(net(x), target).item<float>() == plain);
    CHECK(casts() == before);
}

TEST_CASE("autocast: the report says what ran how", "[amp]") {
    const Tensor w = leaf({1, 2}, {1, 2});
    amp::clear_autocast_report();
    amp::collect_autocast_report(true);
    {
        Autocast scope;
        softmax(linear(ones({3, 2}), w));
        linear(ones({3, 2}), w);
    }
    amp::collect_autocast_report(false);
    const auto report = amp::autocast_report();
    amp::clear_autocast_report();
    bool product = false, rows = false;
    for (const auto& line : report) {
        if (line.op == "linear") {
            product = true;
            CHECK(line.policy == "low");
            CHECK(line.computed == float16);
            CHECK(line.calls == 2);
            CHECK(line.casts == 3);  // the second product finds w in the cache
            CHECK(line.cast_bytes == 2 * (6 + 2 + 6));
        }
        if (line.op == "softmax") {
            rows = true;
            CHECK(line.policy == "fp32_out");
            CHECK(line.result == float32);
        }
    }
    CHECK(product);
    CHECK(rows);
    CHECK(amp::autocast_report().empty());
}

TEST_CASE("autocast: repeated inference keeps nothing", "[amp]") {
    const nn::Sequential net{nn::Linear(4, 4), nn::ReLU(), nn::Linear(4, 2)};
    LiveObjects before{};
    for (int round = 0; round < 3; ++round) {
        {
            NoGrad plain;
            Autocast scope;
            net(ones({2, 4}));
        }
        if (round == 0) before = live_objects();
    }
    CHECK(live_objects().tensors == before.tensors);
    CHECK(live_objects().storages == before.storages);
    CHECK(live_objects().nodes == before.nodes);
}

TEST_CASE("autocast: a leaf made by detach() is converted once, and then by its optimizer", "[amp]") {
    manual_seed(1);
    const Tensor made = randn({32, 16}), x = randn({4, 16});
    const Tensor whole = made.slice(0, 0, 16).clone();
    for (const Tensor& leaf : {whole.clone(), whole.detach(), made.slice(0, 16, 32).detach()}) {
        const Tensor weight = alias(leaf).set_requires_grad();
        optim::SGD optimizer({weight}, {.lr = 0.1});
        const auto step = [&] {
            const std::uint64_t before = casts();
            {
                const amp::Autocast scope;
                sum(linear(linear(x, weight), weight).to(float32)).backward();
            }
            optimizer.step();
            optimizer.zero_grad();
            return casts() - before;
        };
        CHECK(step() == 2);  // x, and the weight for two layers
        CHECK(step() == 1);
        CHECK(weight->grad_meta->copy16.value.defined());
    }
}

TEST_CASE("autocast: a write through mutable_data is seen after the optimizer's first step", "[amp]") {
    for (const bool cache : {true, false}) {
        nn::Linear net(1, 1, {.bias = false});
        const Tensor x = ones({1, 1});
        optim::AdamW optimizer(net.parameters(), {.lr = 0.1});
        const amp::AutocastOptions options{.dtype = bfloat16, .cache = cache};
        for (int step = 0; step < 2; ++step) {
            {
                const amp::Autocast scope(options);
                net(x).sum().backward();
            }
            optimizer.step();
            optimizer.zero_grad();
        }
        const amp::Autocast scope(options);
        (void)net(x);
        for (const float value : {200.0f, 3.0f}) {
            {
                const NoGrad plain;
                *std::as_const(net.weight).mutable_data<float>() = value;
            }
            CHECK(net(x).item<float>() == value);
        }
    }
}
