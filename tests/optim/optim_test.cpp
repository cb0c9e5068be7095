// Optimizers against PyTorch's trajectories, groups, master weights and 16-bit copies, saving, schedules,
// errors.
#include <catch2/catch.hpp>
#include <cmath>

#include "autograd/autocast_state.h"
#include "core/tensor_impl.h"
#include "mezzo/amp.h"
#include "mezzo/nn.h"
#include "mezzo/optim.h"
#include "tests/reference/pytorch.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

constexpr int steps = 8, size = 5;

std::vector<float> row(const float (&values)[size]) { return {values, values + size}; }
std::vector<float> floats(const Tensor& x) { return x.to_vector<float>(); }

Tensor leaf(const std::vector<float>& values, Device device = {}) {
    return Tensor::from(values, {std::int64_t(values.size())}).to(device).detach().set_requires_grad();
}

void set_grad(const Tensor& w, const std::vector<float>& values, Dtype dtype = float32) {
    w.set_grad(Tensor::from(values, w.shape()).to(dtype).to(w.device()));
}

// Runs the recorded gradients through an optimizer made by `make`, and compares every parameter value.
template <class Make> void follows(const float (&expected)[steps][size], Make make) {
    for (const Device device : test::devices()) {
        const Tensor w = leaf(row(reference::start[0]), device);
        auto optimizer = make(w);
        for (int t = 0; t < steps; ++t) {
            set_grad(w, row(reference::gradients[t]));
            optimizer.step();
            const std::vector<float> actual = floats(w);
            for (int i = 0; i < size; ++i) {
                INFO("step " << t << ", element " << i);
                CHECK(actual[std::size_t(i)] == Approx(expected[t][i]).epsilon(2e-6).margin(1e-6));
            }
        }
        CHECK(optimizer.applied_steps() == steps);
        CHECK(optimizer.skipped_steps() == 0);
    }
}

using optim::Adam;
using optim::AdamW;
using optim::SGD;

}  // namespace

TEST_CASE("SGD follows PyTorch", "[optim]") {
    follows(reference::sgd, [](const Tensor& w) { return SGD({w}, {.lr = 0.1}); });
    follows(reference::sgd_momentum, [](const Tensor& w) {
        return SGD({w}, {.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05});
    });
    follows(reference::sgd_nesterov, [](const Tensor& w) {
        return SGD({w}, {.lr = 0.1, .momentum = 0.8, .weight_decay = 0.01, .nesterov = true});
    });
    follows(reference::sgd_maximize, [](const Tensor& w) {
        return SGD({w}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .maximize = true});
    });
}

TEST_CASE("Adam and AdamW follow PyTorch", "[optim]") {
    follows(reference::adam, [](const Tensor& w) { return Adam({w}, {.lr = 0.05}); });
    follows(reference::adam_decay, [](const Tensor& w) {
        return Adam({w}, {.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.1});
    });
    follows(reference::adam_maximize,
            [](const Tensor& w) { return Adam({w}, {.lr = 0.05, .weight_decay = 0.1, .maximize = true}); });
    follows(reference::adamw, [](const Tensor& w) { return AdamW({w}, {.lr = 0.05}); });
    follows(reference::adamw_decay, [](const Tensor& w) {
        return AdamW({w}, {.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.3});
    });
}

TEST_CASE("float64 parameters are updated in float64", "[optim]") {
    const std::vector<double> start{1, 2};
    const Tensor w = Tensor::from(start, {2}).set_requires_grad();
    SGD optimizer({w}, {.lr = 1e-12, .momentum = 0.5});
    w.set_grad(ones({2}, {.dtype = float64}));
    optimizer.step();
    CHECK(w.to_vector<double>() == std::vector<double>{1 - 1e-12, 2 - 1e-12});
}

TEST_CASE("groups have options of their own", "[optim]") {
    const Tensor a = leaf({1}), b = leaf({1}), c = leaf({1});
    SGD optimizer({{.params = {a, b}, .options = {.lr = 0.5}},
                   {.params = {c}, .options = {.lr = 0.25, .momentum = 0.5}}});
    CHECK(optimizer.group_count() == 2);
    for (int t = 0; t < 2; ++t) {
        set_grad(a, {1});
        set_grad(c, {1});
        optimizer.step();
    }
    CHECK(floats(a) == std::vector<float>{0});
    CHECK(floats(b) == std::vector<float>{1});                 // no gradient: left out
    CHECK(floats(c) == std::vector<float>{1 - .25f - .375f});  // 0.25 (1 + 1.5)
    optimizer.set_lr(2, 1);
    CHECK(optimizer.lr(0) == 0.5);
    CHECK(optimizer.lr(1) == 2);
    CHECK_THROWS_WITH(optimizer.set_lr(1, 2), Contains("no group 2"));
    CHECK_THROWS_WITH(optimizer.set_lr(-1), Contains("lr is -1"));
}

TEST_CASE("a parameter's step count is its own", "[optim]") {
    // Adam's bias correction makes the first step lr * sign(g), whenever the first gradient arrives.
    const Tensor a = leaf({0}), late = leaf({0});
    Adam optimizer({a, late}, {.lr = 1});
    for (int t = 0; t < 3; ++t) {
        set_grad(a, {3});
        optimizer.step();
    }
    set_grad(late, {-7});
    optimizer.step();
    CHECK(late.item<float>() == Approx(1).epsilon(1e-6));
    CHECK(a.item<float>() == Approx(-4).epsilon(1e-5));
}

TEST_CASE("gradients of any dtype and layout are read", "[optim]") {
    const Tensor w = leaf({1, 2, 3});
    SGD optimizer({w}, {.lr = 1});
    set_grad(w, {1, 0.5, 0.25}, float16);
    optimizer.step();
    CHECK(floats(w) == std::vector<float>{0, 1.5, 2.75});
    w.set_grad(Tensor::from({1, 9, 2, 9, 3, 9}).slice(0, 0, 6, 2));
    optimizer.step();
    CHECK(floats(w) == std::vector<float>{-1, -0.5, -0.25});
}

TEST_CASE("16-bit parameters without masters stall, with masters they do not", "[optim]") {
    // 1 - 1e-4 rounds to 1 in float16, whose spacing below 1 is 2^-11.
    for (const bool masters : {false, true}) {
        const Tensor w = Tensor::from({1}).to(float16).detach().set_requires_grad();
        SGD optimizer({w}, {.lr = 1e-4});
        if (masters) optimizer.use_master_weights();
        std::vector<float> copies;
        for (int t = 0; t < 3; ++t) {
            set_grad(w, {1}, float16);
            optimizer.step();
            copies.push_back(w.item<float>());
        }
        CHECK(copies == (masters ? std::vector<float>{1, 1, 0.99951171875f} : std::vector<float>{1, 1, 1}));
        CHECK(w.dtype() == float16);
        CHECK(optimizer.master_parameters()[0].dtype() == (masters ? float32 : float16));
    }
}

TEST_CASE("writing to a mastered parameter changes its master, where the value changed", "[optim]") {
    const Tensor w = Tensor::from({1, 1}).to(float16).detach().set_requires_grad();
    SGD optimizer({w}, {.lr = 1e-4});
    optimizer.use_master_weights();
    set_grad(w, {1, 1}, float16);
    optimizer.step();
    {
        NoGrad plain;
        w.copy_(Tensor::from({1, 2}));
    }
    set_grad(w, {0, 0}, float16);
    optimizer.step();
    CHECK(floats(optimizer.master_parameters()[0]) == std::vector<float>{1 - 1e-4f, 2});
}

TEST_CASE("a step writes the 16-bit copy that autocast reads", "[optim]") {
    for (const Dtype dtype : {float16, bfloat16}) {
        const Tensor w = Tensor::from({1.0001f, -3.0003f}, {1, 2}).set_requires_grad();
        const Tensor x = Tensor::from({1, 1}, {1, 2});
        SGD optimizer({w}, {.lr = 0.1});
        for (int t = 0; t < 3; ++t) {
            {
                amp::Autocast scope({.dtype = dtype});
                sum(linear(x, w)).backward();
            }
            optimizer.step();
            optimizer.zero_grad();
            const Copy16& copy16 = w->grad_meta->copy16;
            REQUIRE(copy16.value.defined());
            CHECK(copy16.version == w.version());
            CHECK(copy16.value.dtype() == dtype);
            CHECK(floats(copy16.value) == floats(w.detach().to(dtype)));
        }
    }
}

TEST_CASE("a steady training step casts no weights", "[optim]") {
    nn::Sequential net{nn::Linear(4, 4), nn::ReLU(), nn::Linear(4, 1)};
    SGD optimizer(net.parameters(), {.lr = 0.01});
    const Tensor x = ones({2, 4}, {.dtype = float16});
    std::uint64_t casts = 0, hits = 0;
    for (int t = 0; t < 3; ++t) {
        const AutocastCounters before = autocast_counters();
        Tensor y;
        {
            amp::Autocast scope;
            y = net(x);
        }
        casts = autocast_counters().casts - before.casts;
        hits = autocast_counters().copy16_hits - before.copy16_hits;
        sum(y).backward();
        optimizer.step();
        optimizer.zero_grad();
        CHECK(casts == (t == 0 ? 4 : 0));
        CHECK(hits == (t == 0 ? 0 : 4));
    }
}

TEST_CASE("a step inside an open scope is seen by the next product", "[optim]") {
    const Tensor w = Tensor::from({1}, {1, 1}).set_requires_grad(), x = ones({1, 1});
    SGD optimizer({w}, {.lr = 1});
    amp::Autocast scope;
    for (const float expected : {1.f, 0.f, -1.f}) {
        const std::uint64_t version = w.version();
        const Tensor y = linear(x, w);
        CHECK(y.item<float>() == expected);
        y.backward();
        optimizer.step();
        optimizer.zero_grad();
        CHECK(w.version() > version);
    }
}

TEST_CASE("a graph that still holds the 16-bit copy keeps the old values", "[optim]") {
    const Tensor w = Tensor::from({2}, {1, 1}).set_requires_grad();
    const Tensor x = Tensor::from({3}, {1, 1}).set_requires_grad();
    SGD optimizer({w}, {.lr = 1});
    const auto forward = [&] {
        amp::Autocast scope;
        return linear(x, w);
    };
    forward().backward();
    optimizer.step();  // w = -1, its copy exists
    const Tensor y = forward();
    optimizer.step();  // w = -4
    x.set_grad({});
    y.backward();
    CHECK(x.grad().item<float>() == -1);
}

TEST_CASE("zero_grad drops or zeroes", "[optim]") {
    const Tensor w = leaf({1, 2});
    SGD optimizer({w});
    set_grad(w, {3, 4});
    const Tensor gradient = w.grad();
    optimizer.zero_grad(false);
    CHECK(floats(gradient) == std::vector<float>{0, 0});
    CHECK(w.grad().impl() == gradient.impl());
    optimizer.zero_grad();
    CHECK_FALSE(w.grad().defined());
}

namespace {

template <class Make> void resumes_exactly(Make make) {
    const Tensor whole = leaf(row(reference::start[0]));
    auto straight = make(whole);
    StateDict saved;
    std::vector<float> middle;
    for (int t = 0; t < steps; ++t) {
        if (t == 3) {
            saved = straight.state_dict();
            middle = floats(whole);
        }
        set_grad(whole, row(reference::gradients[t]));
        straight.step();
    }
    const Tensor again = leaf(middle);
    auto resumed = make(again);
    resumed.set_lr(123);
    resumed.load_state_dict(saved);
    for (int t = 3; t < steps; ++t) {
        set_grad(again, row(reference::gradients[t]));
        resumed.step();
    }
    CHECK(floats(again) == floats(whole));
    CHECK(resumed.applied_steps() == steps);
}

}  // namespace

TEST_CASE("a loaded state continues bit for bit", "[optim]") {
    resumes_exactly([](const Tensor& w) { return SGD({w}, {.lr = 0.1, .momentum = 0.9}); });
    resumes_exactly([](const Tensor& w) { return Adam({w}, {.lr = 0.1}); });
    resumes_exactly([](const Tensor& w) { return AdamW({w}, {.lr = 0.1}); });
}

TEST_CASE("masters are part of the state", "[optim]") {
    // After two steps the float16 parameter still shows 1; only the master has the change.
    const auto fresh = [] { return Tensor::from({1}).to(float16).detach().set_requires_grad(); };
    const auto one_step = [](const Tensor& w, SGD& optimizer) {
        set_grad(w, {1}, float16);
        optimizer.step();
        return w.item<float>();
    };
    const Tensor w = fresh();
    SGD optimizer({w}, {.lr = 1e-4});
    optimizer.use_master_weights();
    one_step(w, optimizer);
    CHECK(one_step(w, optimizer) == 1);
    const StateDict saved = optimizer.state_dict();
    const Tensor loaded = fresh(), rebuilt = fresh();
    SGD resumed({loaded}, {.lr = 1e-4}), forgetful({rebuilt}, {.lr = 1e-4});
    resumed.use_master_weights();
    forgetful.use_master_weights();
    resumed.load_state_dict(saved);
    CHECK(one_step(loaded, resumed) == 0.99951171875f);
    CHECK(one_step(rebuilt, forgetful) == 1);
}

TEST_CASE("a wrong state is refused and changes nothing", "[optim]") {
    const Tensor w = leaf({1, 2});
    Adam optimizer({w}, {.lr = 0.1});
    set_grad(w, {1, 1});
    optimizer.step();
    const auto same_as_before = [&, before = optimizer.state_dict()] {
        const StateDict now = optimizer.state_dict();
        REQUIRE(now.size() == before.size());
        for (std::size_t i = 0; i < now.size(); ++i)
            CHECK(now[i].second.to_vector<double>() == before[i].second.to_vector<double>());
    };
    StateDict missing = optimizer.state_dict();
    missing.erase(missing.begin() + 4);
    CHECK_THROWS_WITH(optimizer.load_state_dict(missing), Contains("groups.0.size is missing"));
    StateDict shaped = optimizer.state_dict();
    for (auto& [name, value] : shaped)
        if (name == "state.0.exp_avg") value = zeros({3});
    CHECK_THROWS_WITH(optimizer.load_state_dict(shaped), Contains("state.0.exp_avg"));
    const Tensor other = leaf({1, 2});
    CHECK_THROWS_WITH(optimizer.load_state_dict(AdamW({other}).state_dict()), Contains("another type"));
    const Tensor third = leaf({1, 2});
    CHECK_THROWS_WITH(optimizer.load_state_dict(Adam({other, third}).state_dict()),
                      Contains("2 parameters there and 1"));
    same_as_before();
}

TEST_CASE("options and parameters are validated", "[optim]") {
    const Tensor w = leaf({1});
    CHECK_THROWS_WITH(SGD({w}, {.lr = -1}), Contains("SGD: lr is -1"));
    CHECK_THROWS_WITH(SGD({w}, {.lr = NAN}), Contains("lr"));
    CHECK_THROWS_WITH(SGD({w}, {.momentum = -0.5}), Contains("momentum is -0.5"));
    CHECK_THROWS_WITH(SGD({w}, {.weight_decay = -1}), Contains("weight_decay"));
    CHECK_THROWS_WITH(SGD({w}, {.nesterov = true}), Contains("nesterov needs momentum"));
    CHECK_THROWS_WITH(Adam({w}, {.beta1 = 1}), Contains("beta1 is 1"));
    CHECK_THROWS_WITH(Adam({w}, {.beta2 = -0.1}), Contains("beta2"));
    CHECK_THROWS_WITH(AdamW({w}, {.eps = -1}), Contains("eps"));
    CHECK_THROWS_WITH(SGD(Tensors{}), Contains("empty"));
    CHECK_THROWS_WITH(SGD({w, w}, {}), Contains("same tensor"));
    CHECK_THROWS_WITH(SGD({w, Tensor()}, {}), Contains("parameter 1 is undefined"));
    CHECK_THROWS_WITH(SGD({w * 2.0}, {}), Contains("result of an op"));
}

TEST_CASE("training leaves nothing alive", "[optim]") {
    const LiveObjects before = live_objects();
    {
        nn::Sequential net{nn::Linear(3, 4), nn::Tanh(), nn::Linear(4, 1)};
        AdamW optimizer(net.parameters());
        LiveObjects steady{};
        for (int t = 0; t < 4; ++t) {
            mean(net(ones({2, 3}))).backward();
            optimizer.step();
            optimizer.zero_grad();
            if (t == 1) steady = live_objects();
        }
        CHECK(live_objects().tensors == steady.tensors);
        CHECK(live_objects().storages == steady.storages);
        CHECK(live_objects().nodes == steady.nodes);
    }
    CHECK(live_objects().tensors == before.tensors);
    CHECK(live_objects().nodes == before.nodes);
    CHECK(live_objects().storages == before.storages);
}

namespace {

// The learning rates before and after nine steps of SGD at 0.5.
template <class Make> std::vector<double> rates(Make make) {
    const Tensor w = leaf({1});
    SGD optimizer({w}, {.lr = 0.5});
    auto scheduler = make(optimizer);
    std::vector<double> result{optimizer.lr()};
    for (int t = 0; t < 9; ++t) {
        set_grad(w, {0});
        optimizer.step();
        scheduler.step();
        result.push_back(optimizer.lr());
    }
    return result;
}

void check_rates(const std::vector<double>& actual, const float (&expected)[1][10]) {
    for (std::size_t i = 0; i < 10; ++i) CHECK(actual[i] == Approx(expected[0][i]).epsilon(1e-6));
}

}  // namespace

TEST_CASE("schedules follow PyTorch", "[optim]") {
    check_rates(rates([](SGD& o) { return optim::StepLR(o, {.step_size = 3, .gamma = 0.5}); }),
                reference::step_lr);
    check_rates(rates([](SGD& o) { return optim::ExponentialLR(o, 0.9); }), reference::exponential_lr);
    check_rates(rates([](SGD& o) { return optim::CosineAnnealingLR(o, {.t_max = 6, .eta_min = 0.05}); }),
                reference::cosine_lr);
    check_rates(
        rates([](SGD& o) { return optim::LambdaLR(o, [](std::int64_t t) { return 1 / (1 + double(t)); }); }),
        reference::lambda_lr);
    const auto warmup =
        rates([](SGD& o) { return optim::LinearWarmup(o, {.warmup_steps = 2, .total_steps = 6}); });
    CHECK(warmup == std::vector<double>{0, 0.25, 0.5, 0.375, 0.25, 0.125, 0, 0, 0, 0});
    CHECK(rates([](SGD& o) { return optim::LinearWarmup(o, {.warmup_steps = 4}); })[9] == 0.5);
}

TEST_CASE("schedules validate and continue after loading", "[optim]") {
    const Tensor w = leaf({1});
    SGD optimizer({w}, {.lr = 0.5});
    CHECK_THROWS_WITH(optim::StepLR(optimizer, {.step_size = 0}), Contains("step_size is 0"));
    CHECK_THROWS_WITH(optim::CosineAnnealingLR(optimizer, {.t_max = 0}), Contains("t_max"));
    CHECK_THROWS_WITH(optim::LinearWarmup(optimizer, {.warmup_steps = 5, .total_steps = 5}),
                      Contains("total_steps is 5"));
    CHECK_THROWS_WITH(optim::LambdaLR(optimizer, [](std::int64_t) { return NAN; }),
                      Contains("after 0 steps"));
    optim::ExponentialLR scheduler(optimizer, 0.5);
    set_grad(w, {0});
    optimizer.step();
    scheduler.step();
    CHECK(optimizer.lr() == 0.25);
    SGD resumed({w}, {.lr = 0.5});
    resumed.load_state_dict(optimizer.state_dict());
    CHECK(resumed.lr() == 0.25);
    optim::ExponentialLR continued(resumed, 0.5);
    resumed.step();
    continued.step();
    CHECK(resumed.lr() == 0.125);
}

TEST_CASE("clip_grad_norm_: norm and factor of float64 gradients are float64", "[optim]") {
    for (const Device device : test::devices()) {
        const auto leaf = [device](std::vector<double> gradient, Dtype dtype) {
            const Shape shape{std::int64_t(gradient.size())};
            Tensor x = zeros(shape, {.dtype = dtype, .device = device}).set_requires_grad();
            x.set_grad(Tensor::from<double>(gradient, shape).to(dtype).to(device));
            return x;
        };
        const Tensor large = leaf({1e39, 1e39}, float64);
        const Tensor norm = nn::clip_grad_norm_({large}, 1);
        CHECK(norm.dtype() == float64);
        CHECK(norm.item<double>() == Approx(std::sqrt(2.0) * 1e39).epsilon(1e-14));
        CHECK(large.grad().to_vector<double>()[0] == Approx(std::sqrt(0.5)).epsilon(1e-14));

        const Tensor wide = leaf({3}, float64), narrow = leaf({4}, float32);
        CHECK(nn::clip_grad_norm_({wide, narrow}, 1).item<double>() == 5);
        CHECK(wide.grad().item<double>() == Approx(3 / (5 + 1e-6)).epsilon(1e-14));
        CHECK(narrow.grad().item<double>() == Approx(4 / (5 + 1e-6)).epsilon(1e-7));
        CHECK(nn::clip_grad_norm_({wide}, 1e300).item<double>() == wide.grad().item<double>());

        const Tensor bad = leaf({std::nan("")}, float64);
        CHECK(std::isnan(nn::clip_grad_norm_({bad, wide}, 1).item<double>()));
        CHECK(std::isnan(wide.grad().item<double>()));
    }
}
