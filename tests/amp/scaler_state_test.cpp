// The loss scaler: saving, accumulation, what counts as overflow, the order of calls, errors.
#include "tests/amp/scaler_bench.h"

namespace {

StateDict scaler_state(double scale, double growth, double backoff, double interval, double tracker) {
    const auto entry = [](double value) { return scalar(value, {.dtype = float64}); };
    return {{"scale", entry(scale)},
            {"growth_factor", entry(growth)},
            {"backoff_factor", entry(backoff)},
            {"growth_interval", entry(interval)},
            {"_growth_tracker", entry(tracker)}};
}

void check_values(const GradScaler& s, double scale, double growth, double backoff, double interval,
                  double tracker) {
    CHECK(s.get_scale() == scale);
    CHECK(s.get_growth_factor() == growth);
    CHECK(s.get_backoff_factor() == backoff);
    CHECK(double(s.get_growth_interval()) == interval);
    CHECK(double(s.get_growth_tracker()) == tracker);
}

}  // namespace

TEST_CASE("scaler: state dict", "[scaler]") {
    const StateDict saved =
        GradScaler({.init_scale = 3, .growth_factor = 4, .backoff_factor = 0.5, .growth_interval = 2})
            .state_dict();
    for (const bool used_before : {false, true}) {
        GradScaler scaler({.init_scale = 6, .growth_factor = 7, .backoff_factor = 0.8, .growth_interval = 1});
        scaler.load_state_dict(scaler_state(6, 7, 0.8, 1, 7));
        if (used_before) scaler.scale(scalar(1));
        check_values(scaler, 6, 7, 0.8, 1, 7);
        CHECK_THROWS_WITH(scaler.load_state_dict({}), Contains("missing"));
        StateDict partial = saved;
        partial.erase(partial.begin() + 3);
        CHECK_THROWS_WITH(scaler.load_state_dict(partial), Contains("growth_interval is missing"));
        CHECK_THROWS_AS(scaler.load_state_dict(scaler_state(6, 0.5, 0.8, 1, 7)), Error);
        check_values(scaler, 6, 7, 0.8, 1, 7);
        scaler.load_state_dict(saved);
        check_values(scaler, 3, 4, 0.5, 2, 0);
        CHECK(scaler.scale(scalar(1)).item<float>() == 3);
    }
}

TEST_CASE("scaler: a resumed run is the uninterrupted one", "[scaler]") {
    const char* const events = "ooioooioio";
    Bench whole({.init_scale = 64, .growth_interval = 2}, 0.01);
    const Scales straight = whole.scales(events);

    Bench first({.init_scale = 64, .growth_interval = 2}, 0.01);
    first.scales("ooioo");
    Bench second({}, 0.7);
    {
        NoGrad plain;
        second.w.copy_(first.w);
    }
    second.optimizer.load_state_dict(first.optimizer.state_dict());
    second.scaler.load_state_dict(first.scaler.state_dict());
    second.w.set_grad(scalar(3 * first.scaler.get_scale()).reshape({1}));
    second.scaler.unscale_(second.optimizer);  // the first call after loading
    CHECK(second.w.grad().item<float>() == 3);
    second.scaler.step(second.optimizer);
    second.scaler.update();
    CHECK(second.scaler.get_scale() == straight[5]);
    const Scales rest = second.scales("ioio");
    CHECK(rest == Scales(straight.begin() + 6, straight.end()));
    CHECK(second.w.item<float>() == whole.w.item<float>());
    CHECK(second.optimizer.applied_steps() == whole.optimizer.applied_steps());
    CHECK(second.optimizer.skipped_steps() == whole.optimizer.skipped_steps());
}

TEST_CASE("scaler: results are float32 or wider", "[scaler]") {
    GradScaler scaler;
    const Tensor half = full({2}, 2, {.dtype = float16});
    CHECK(scaler.scale(half).dtype() == float32);
    CHECK(floats(scaler.scale(half)) == std::vector<float>{131072, 131072});
    CHECK(scaler.scale(scalar(2, {.dtype = bfloat16})).dtype() == float32);
    CHECK(scaler.scale(scalar(2, {.dtype = float64})).dtype() == float64);
    const Tensors both = scaler.scale(Tensors{scalar(1), half});
    CHECK(both.size() == 2);
    CHECK(both[0].item<float>() == 65536);
    CHECK_THROWS_AS(scaler.scale(Tensor()), Error);
    CHECK_THROWS_AS(scaler.scale(arange(3)), Error);
}

TEST_CASE("scaler: accumulation", "[scaler]") {
    const auto micro = [](Bench& b, double x) { b.scaler.scale(sum(b.w * x) * 0.5).backward(); };
    Bench b({.init_scale = 8}, 0.25);
    micro(b, 3);
    micro(b, 5);
    CHECK(b.w.grad().item<float>() == 32);
    b.scaler.step(b.optimizer);
    b.scaler.update();
    CHECK(b.w.item<float>() == 0);

    Bench bad({.init_scale = 8}, 0.25);
    micro(bad, 3);
    poke(bad.w, 0, inf);
    micro(bad, 5);
    CHECK(bad.scaler.step(bad.optimizer).skipped());
    bad.scaler.update();
    CHECK(bad.w.item<float>() == 1);
    CHECK(bad.scaler.get_scale() == 4);

    Bench mixed({.init_scale = 8}, 0.25);
    micro(mixed, 3);
    mixed.scaler.unscale_(mixed.optimizer);
    micro(mixed, 5);
    CHECK_THROWS_WITH(mixed.scaler.step(mixed.optimizer), Contains("scaled ones were added to unscaled"));
    CHECK(mixed.w.item<float>() == 1);
}

TEST_CASE("scaler: what counts as overflow", "[scaler]") {
    for (const std::int64_t n :
         {std::int64_t(1), std::int64_t(255), std::int64_t(256), std::int64_t(257), std::int64_t(100003)}) {
        const Tensor w = zeros({n}).set_requires_grad();
        SGD optimizer({w});
        GradScaler scaler = scaler_in_use({.init_scale = 3});
        for (const float bad : {inf, -inf, quiet_nan})
            for (const std::int64_t at : {std::int64_t(0), n / 2, n - 1}) {
                w.set_grad(ones({n}));
                poke(w, at, bad);
                INFO(n << " elements, " << bad << " at " << at);
                CHECK(scaler.step(optimizer).skipped());
                scaler.update(3);
            }
        w.set_grad(ones({n}));
        CHECK(scaler.step(optimizer).stepped());
    }
    const Tensor w = leaf({0, 0});
    SGD optimizer({w});
    GradScaler scaler = scaler_in_use({.init_scale = 2});
    const auto skipped = [&](const Tensor& gradient) {
        w.set_grad(gradient);
        const bool result = scaler.step(optimizer).skipped();
        scaler.update(2);
        return result;
    };
    CHECK(skipped(Tensor::from({inf, -inf})));
    CHECK_FALSE(skipped(Tensor::from({3e38f, 3e38f})));
    CHECK_FALSE(skipped(Tensor::from({1e-42f, 1e-45f})));
    CHECK(skipped(Tensor::from({1, 7, inf, 7}).slice(0, 0, 4, 2)));
    CHECK_FALSE(skipped(Tensor::from({1, inf, 1, inf}).slice(0, 0, 4, 2)));
}

TEST_CASE("scaler: the arithmetic of unscaling", "[scaler]") {
    const auto unscaled = [](double scale, std::initializer_list<float> values) {
        const Tensor w = zeros({std::int64_t(values.size())}).set_requires_grad();
        SGD optimizer({w});
        GradScaler scaler = scaler_in_use({.init_scale = scale});
        set_grad(w, values);
        scaler.unscale_(optimizer);
        return floats(w.grad());
    };
    CHECK(unscaled(3, {27, 0.3f}) == std::vector<float>{9, 0.10000000894069672f});
    CHECK(unscaled(1, {0.3f, 1e-45f, -0.0f}) == std::vector<float>{0.3f, 1e-45f, -0.0f});
    const Tensor w = leaf({1});
    SGD optimizer({w});
    GradScaler scaler = scaler_in_use({.init_scale = 1});
    set_grad(w, {quiet_nan});
    CHECK(scaler.step(optimizer).skipped());
}

TEST_CASE("scaler: dtypes of gradients", "[scaler]") {
    const Tensor w = Tensor::from({1}).to(float16).detach().set_requires_grad();
    GradScaler scaler = scaler_in_use({.init_scale = 4});
    const auto give = [&] { w.set_grad(Tensor::from({12}).to(float16)); };
    {
        SGD optimizer(StateDict{{"head.weight", w}}, {.lr = 0.125});
        give();
        CHECK_THROWS_WITH(scaler.unscale_(optimizer), Contains("head.weight (parameter 0)"));
        CHECK_THROWS_WITH(scaler.step(optimizer), Contains("float16"));
        CHECK_THROWS_WITH(scaler.update(), Contains("no inf checks"));
        CHECK(w.item<float>() == 1);
        optimizer.use_master_weights();
        scaler.unscale_(optimizer);
        CHECK(w.grad().dtype() == float32);
        CHECK(w.grad().item<float>() == 3);
        CHECK(optimizer.master_parameters()[0].grad().item<float>() == 3);
        CHECK(scaler.step(optimizer).stepped());
        scaler.update();
        CHECK(w.item<float>() == 0.625f);
    }
    GradScaler fused = scaler_in_use({.init_scale = 4, .unscale_in_step = false});
    SGD optimizer({w}, {.lr = 0.125});
    give();
    CHECK(fused.step(optimizer).stepped());
    CHECK(w.item<float>() == 0.25f);

    const Tensor b = Tensor::from({1}).to(bfloat16).detach().set_requires_grad();
    SGD brain({b});
    GradScaler third = scaler_in_use({.init_scale = 4});
    b.set_grad(Tensor::from({12}).to(bfloat16));
    third.unscale_(brain);
    CHECK(b.grad().dtype() == bfloat16);
    CHECK(b.grad().item<float>() == 3);
}

TEST_CASE("scaler: the order of calls", "[scaler]") {
    Bench b({.init_scale = 4});
    CHECK_THROWS_WITH(b.scaler.update(), Contains("no inf checks"));
    b.backward();
    b.scaler.unscale_(b.optimizer);
    CHECK_THROWS_WITH(b.scaler.unscale_(b.optimizer), Contains("already been called"));
    b.scaler.step(b.optimizer);
    CHECK_THROWS_WITH(b.scaler.unscale_(b.optimizer), Contains("after step()"));
    CHECK_THROWS_WITH(b.scaler.step(b.optimizer), Contains("already been called"));
    b.scaler.update();
    CHECK(b.w.item<float>() == -0.5f);
    CHECK(b.step().stepped());
}

TEST_CASE("scaler: a step says what became of it", "[scaler]") {
    Bench b({.init_scale = 4}, 1);
    optim::ExponentialLR schedule(b.optimizer, 0.5);
    const bool overflow[] = {false, true, false, false};
    for (const bool bad : overflow) {
        const amp::StepResult result = b.step(bad);
        CHECK(result.skipped() == bad);
        CHECK(result.stepped() == !bad);
        CHECK_FALSE(result.nothing_to_do());
        b.scaler.update();
        schedule.step();
    }
    CHECK(b.optimizer.applied_steps() == 3);
    CHECK(b.optimizer.skipped_steps() == 1);
    CHECK(b.optimizer.lr() == 0.125);

    const amp::StepResult old = b.step();
    b.scaler.update();
    b.step();
    CHECK_THROWS_WITH(old.stepped(), Contains("has gone on"));
    b.scaler.update();
    const amp::StepResult stale = b.step();
    b.scaler.update();
    b.scaler.unscale_(b.optimizer);
    CHECK_THROWS_WITH(stale.skipped(), Contains("has gone on"));
}

TEST_CASE("scaler: a gradient broken after unscale_ is applied unless rechecked", "[scaler]") {
    for (const bool recheck : {false, true}) {
        Bench b({.init_scale = 4, .growth_interval = 1, .recheck = recheck});
        b.backward();
        b.scaler.unscale_(b.optimizer);
        poke(b.w, 0, inf);
        CHECK(b.scaler.step(b.optimizer).skipped() == recheck);
        b.scaler.update();
        CHECK(b.w.item<float>() == (recheck ? 1 : -inf));
        CHECK(b.scaler.get_scale() == (recheck ? 2 : 8));
    }
}

TEST_CASE("scaler: an optimizer at the address of a dead one is a new one", "[scaler]") {
    const Tensor w = leaf({1});
    GradScaler scaler = scaler_in_use({.init_scale = 4});
    std::optional<SGD> place;
    place.emplace(Tensors{w}, optim::SGDOptions{.lr = 0.5});
    set_grad(w, {12});
    scaler.unscale_(*place);
    place.reset();
    place.emplace(Tensors{w}, optim::SGDOptions{.lr = 0.5});
    set_grad(w, {12});
    CHECK_NOTHROW(scaler.unscale_(*place));
    CHECK(w.grad().item<float>() == 3);
}

TEST_CASE("scaler: several optimizers, one scaler", "[scaler]") {
    const Tensor a = leaf({1}), b = leaf({1});
    SGD first({a}, {.lr = 0.5}), second({b}, {.lr = 0.5});
    GradScaler scaler({.init_scale = 8});
    const auto iterate = [&](float bad_a, float bad_b) {
        first.zero_grad();
        second.zero_grad();
        scaler.scale(sum(a * 3.0) + sum(b * 5.0)).backward();
        if (bad_a != 0) poke(a, 0, bad_a);
        if (bad_b != 0) poke(b, 0, bad_b);
        scaler.unscale_(second);
        const bool skipped_first = scaler.step(first).skipped();
        const bool skipped_second = scaler.step(second).skipped();
        scaler.update();
        return std::pair(skipped_first, skipped_second);
    };
    CHECK(iterate(inf, 0) == std::pair(true, false));
    CHECK(a.item<float>() == 1);
    CHECK(b.item<float>() == -1.5f);
    CHECK(scaler.get_scale() == 4);
    CHECK(iterate(inf, quiet_nan) == std::pair(true, true));
    CHECK(scaler.get_scale() == 2);  // once, not once per optimizer
}

TEST_CASE("scaler: overflow names its parameters", "[scaler]") {
    const Tensor a = leaf({1, 2}), b = leaf({1}), c = leaf({1});
    SGD optimizer(StateDict{{"encoder.weight", a}, {"encoder.bias", b}, {"head", c}});
    const GradScaler scaler;
    CHECK(scaler.overflowed_parameters(optimizer).empty());
    set_grad(a, {1, quiet_nan});
    set_grad(c, {inf});
    CHECK(scaler.overflowed_parameters(optimizer) ==
          std::vector<std::string>{"encoder.weight (parameter 0)", "head (parameter 2)"});
}

TEST_CASE("scaler: the 16-bit copy is current after a skipped step", "[scaler]") {
    const Tensor w = Tensor::from({1.0001f, 2.0003f}, {1, 2}).set_requires_grad();
    const Tensor x = ones({1, 2});
    SGD optimizer({w}, {.lr = 0.25});
    GradScaler scaler({.init_scale = 4});
    for (const bool overflow : {true, false, true}) {
        {
            amp::Autocast scope;
            scaler.scale(sum(linear(x, w))).backward();
        }
        if (overflow) {
            w.set_grad(full({1, 2}, double(inf)));
            NoGrad plain;
            w.add_(ones({1, 2}));  // makes the copy stale before the step that is skipped
        }
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
        const Copy16& copy16 = w->grad_meta->copy16;
        REQUIRE(copy16.value.defined());
        CHECK(copy16.version == w.version());
        CHECK(floats(copy16.value) == floats(w.detach().to(float16)));
    }
    CHECK(floats(w)[0] == Approx(2.7501));
}
