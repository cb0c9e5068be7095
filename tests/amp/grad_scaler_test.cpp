// The loss scaler: one step's numbers, skipping, growth, floor.
#include "tests/amp/scaler_bench.h"

TEST_CASE("scaler: defaults and validation", "[scaler]") {
    const GradScaler scaler;
    CHECK(scaler.get_scale() == 65536);
    CHECK(scaler.get_growth_factor() == 2);
    CHECK(scaler.get_backoff_factor() == 0.5);
    CHECK(scaler.get_growth_interval() == 2000);
    CHECK(scaler.is_enabled());
    CHECK_THROWS_WITH(GradScaler({.growth_factor = 1}), Contains("growth_factor is 1"));
    CHECK_THROWS_WITH(GradScaler({.backoff_factor = 1}), Contains("backoff_factor is 1"));
    CHECK_THROWS_AS(GradScaler({.backoff_factor = 0}), Error);
    CHECK_THROWS_AS(GradScaler({.backoff_factor = -0.5}), Error);
    CHECK_THROWS_AS(GradScaler({.growth_interval = 0}), Error);
    CHECK_THROWS_AS(GradScaler({.init_scale = 0}), Error);
    CHECK_THROWS_AS(GradScaler({.init_scale = double(inf)}), Error);
    CHECK_THROWS_AS(GradScaler({.init_scale = double(quiet_nan)}), Error);
    CHECK_THROWS_AS(GradScaler({.init_scale = 4, .min_scale = 8}), Error);
    CHECK_THROWS_AS(GradScaler({.hysteresis = 0}), Error);
}

TEST_CASE("scaler: a step before anything was scaled leaves nothing behind", "[scaler]") {
    GradScaler scaler;
    Bench b({.init_scale = 4}, 0.5, 3, cpu_device);
    CHECK_THROWS_WITH(scaler.step(b.optimizer), Contains("has not scaled anything yet"));
    for (const Device device : test::devices())  // the scaler is in use nowhere, so it may follow the loss
        CHECK(scaler.scale(ones({}, {.device = device})).device() == device);
}

TEST_CASE("scaler: the numbers of one step", "[scaler]") {
    for (const Device device : test::devices())
        for (const bool explicit_unscale : {false, true}) {
            Bench b({.init_scale = 4}, 0.5, 3, device);
            const Tensor scaled = b.scaler.scale(sum(b.w * 3.0));
            CHECK(scaled.item<float>() == 12);
            scaled.backward();
            CHECK(b.w.grad().item<float>() == 12);
            if (explicit_unscale) {
                b.scaler.unscale_(b.optimizer);
                CHECK(b.w.grad().item<float>() == 3);
            }
            CHECK(b.scaler.step(b.optimizer).stepped());
            CHECK(b.w.grad().item<float>() == 3);
            CHECK(b.w.item<float>() == -0.5f);
            b.scaler.update();
        }
}

TEST_CASE("scaler: without unscaling in step the update is the same and the gradient stays scaled",
          "[scaler]") {
    Bench b({.init_scale = 4, .unscale_in_step = false});
    CHECK(b.step().stepped());
    CHECK(b.w.grad().item<float>() == 12);
    CHECK(b.w.item<float>() == -0.5f);
    b.scaler.update();
    CHECK(b.step(true).skipped());
    CHECK(b.w.item<float>() == -0.5f);
}

TEST_CASE("scaler: a skipped step leaves AdamW as it was", "[scaler]") {
    const Tensor w = leaf({1});
    optim::AdamW optimizer({w}, {.lr = 0.1, .weight_decay = 0.01});
    GradScaler scaler({.init_scale = 1024});
    const double values[] = {0.899, 0.899, 0.798101}, scales[] = {1024, 512, 512};
    const std::int64_t applied[] = {1, 1, 2};
    for (int t = 0; t < 3; ++t) {
        optimizer.zero_grad();
        scaler.scale(sum(w * 3.0)).backward();
        if (t == 1) poke(w, 0, quiet_nan);
        scaler.step(optimizer);
        scaler.update();
        CHECK(w.item<float>() == Approx(values[t]).margin(1e-6));
        CHECK(optimizer.applied_steps() == applied[t]);
        CHECK(scaler.get_scale() == scales[t]);
    }
    CHECK(optimizer.skipped_steps() == 1);
}

TEST_CASE("scaler: clipping between unscale_ and step", "[scaler]") {
    for (const Device device : test::devices()) {
        const Tensor w = leaf({1, 1}, device), slopes = Tensor::from({3, 4}).to(device);
        SGD optimizer({w}, {.lr = 1});
        GradScaler scaler({.init_scale = 256});
        scaler.scale(sum(w * slopes)).backward();
        scaler.unscale_(optimizer);
        CHECK(nn::clip_grad_norm_({w}, 1).item<float>() == Approx(5));
        CHECK(floats(w.grad())[0] == Approx(0.6).margin(1e-6));
        CHECK(floats(w.grad())[1] == Approx(0.8).margin(1e-6));
        scaler.step(optimizer);
        scaler.update();
        CHECK(floats(w)[0] == Approx(0.4).margin(1e-6));
        CHECK(floats(w)[1] == Approx(0.2).margin(1e-6));

        const std::vector<float> before = floats(w);
        optimizer.zero_grad();
        scaler.scale(sum(w * slopes)).backward();
        poke(w, 0, inf);
        scaler.unscale_(optimizer);
        const float norm = nn::clip_grad_norm_({w}, 1).item<float>();
        CHECK_FALSE(std::isfinite(norm));
        CHECK(scaler.step(optimizer).skipped());
        scaler.update();
        CHECK(floats(w) == before);
    }
}

TEST_CASE("scaler: optimizers without gradients", "[scaler]") {
    Bench b({.init_scale = 4});
    b.scaler.scale(scalar(1));
    b.scaler.unscale_(b.optimizer);
    CHECK_THROWS_WITH(b.scaler.step(b.optimizer),
                      Contains("SGD") && Contains("of 1 parameters 0 have a gradient"));
    CHECK_THROWS_WITH(b.scaler.update(), Contains("no inf checks"));

    const Tensor used = leaf({1}), idle = leaf({1});
    SGD first({used}, {.lr = 0.5}), second({idle});
    GradScaler scaler({.init_scale = 4});
    scaler.scale(sum(used * 3.0)).backward();
    scaler.unscale_(second);
    scaler.step(first);
    scaler.update();
    CHECK(used.item<float>() == -0.5f);

    const Tensor none = empty({0}).set_requires_grad();
    none.set_grad(empty({0}));
    SGD zero_size({none});
    CHECK(scaler.step(zero_size).stepped());
    scaler.update();

    GradScaler lenient = scaler_in_use({.allow_no_gradients = true});
    CHECK(lenient.step(second).nothing_to_do());
    lenient.update();
    CHECK(second.applied_steps() == 0);
}

TEST_CASE("scaler: unscale_ then update, without step", "[scaler]") {
    Bench b({.init_scale = 4});
    b.backward();
    poke(b.w, 0, inf);
    b.scaler.unscale_(b.optimizer);
    CHECK(b.scaler.found_inf());
    b.scaler.update();
    CHECK(b.scaler.get_scale() == 2);
    CHECK(b.scaler.get_growth_tracker() == 0);
    CHECK(b.w.item<float>() == 1);
    CHECK_FALSE(b.scaler.found_inf());
    CHECK(b.step().stepped());
}

TEST_CASE("scaler: the scale may be set", "[scaler]") {
    Bench b({.init_scale = 8, .growth_interval = 3}, 0, 1);
    b.scales("oo");
    CHECK(b.scaler.get_growth_tracker() == 2);
    b.scaler.update(100);
    CHECK(b.scaler.get_scale() == 100);
    CHECK(b.scaler.get_growth_tracker() == 2);
    b.backward();
    CHECK(b.w.grad().item<float>() == 100);
    b.scaler.step(b.optimizer);
    b.scaler.update();
    CHECK(b.scaler.get_scale() == 200);
    CHECK(b.scaler.get_growth_tracker() == 0);
    b.scaler.update(scalar(50));
    CHECK(b.scaler.get_scale() == 50);
    b.step(true);
    b.scaler.update(64);
    CHECK_FALSE(b.scaler.found_inf());
    CHECK(b.scales("o") == Scales{64});
    CHECK_THROWS_AS(b.scaler.update(0.0), Error);
    CHECK_THROWS_AS(b.scaler.update(double(inf)), Error);
    CHECK_THROWS_AS(b.scaler.update(ones({2})), Error);
    GradScaler untouched;
    untouched.update(32);
    CHECK(untouched.get_scale() == 32);
}

TEST_CASE("scaler: disabled, it forwards or does nothing", "[scaler]") {
    Bench b({.enabled = false});
    const Tensor loss = sum(b.w * 3.0);
    CHECK(b.scaler.scale(loss).impl() == loss.impl());
    loss.backward();
    b.scaler.unscale_(b.optimizer);
    b.scaler.unscale_(b.optimizer);
    b.scaler.update();
    CHECK(b.scaler.step(b.optimizer).stepped());
    CHECK(b.scaler.step(b.optimizer).stepped());
    CHECK(b.w.item<float>() == -2);
    b.scaler.update();
    CHECK(b.scaler.get_scale() == 1);
    CHECK(b.scaler.state_dict().empty());
    CHECK(b.scaler.get_growth_factor() == 2);
    CHECK(b.scaler.get_growth_tracker() == 0);
    b.scaler.load_state_dict({});
}

TEST_CASE("scaler: static, it skips but never changes", "[scaler]") {
    Bench b({.init_scale = 128, .growth_interval = 1, .dynamic = false});
    CHECK(b.scales("oioi") == Scales{128, 128, 128, 128});
    CHECK(b.optimizer.applied_steps() == 2);
    CHECK(b.w.item<float>() == -2);
}

TEST_CASE("scaler: growth stops before infinity", "[scaler]") {
    Bench b({.init_scale = 1e38, .growth_factor = 16, .growth_interval = 1}, 0, 1);
    CHECK(b.scales("o") == Scales{double(1e38f)});
    CHECK(b.scaler.get_growth_tracker() == 0);
    Bench c({.init_scale = 0x1p127, .growth_interval = 1}, 0, 0.25f);
    CHECK(c.scales("oi") == Scales{0x1p127, 0x1p126});
}

TEST_CASE("scaler: one event list through every mode", "[scaler]") {
    const char* const events = "iiioooioi";
    const auto run = [&](GradScalerOptions options, const char* list) {
        options.init_scale = options.init_scale == 65536 ? 16 : options.init_scale;
        options.growth_interval = 3;
        return Bench(options).scales(list);
    };
    CHECK(run({}, events) == Scales{8, 4, 2, 2, 2, 4, 2, 2, 1});
    CHECK(run({.hysteresis = 2}, events) == Scales{16, 8, 4, 4, 4, 8, 8, 8, 4});
    CHECK(run({.hysteresis = 2, .refill_every_clean_step = true}, events) ==
          Scales{16, 8, 4, 4, 4, 8, 8, 8, 8});
    CHECK(run({.init_scale = 4, .min_scale = 0}, "iiiiii") == Scales{2, 1, .5, .25, .125, .0625});
    CHECK(run({.init_scale = 4}, "iiiiii") == Scales{2, 1, 1, 1, 1, 1});
    CHECK(run({}, "oooooooooo") == Scales{16, 16, 32, 32, 32, 64, 64, 64, 128, 128});
    CHECK(run({.max_scale = 48}, "oooooo") == Scales{16, 16, 32, 32, 32, 32});
}

TEST_CASE("scaler: the floor may throw instead of clamping", "[scaler]") {
    Bench b({.init_scale = 4, .at_floor = amp::AtFloor::fail});
    CHECK(b.scales("ii") == Scales{2, 1});
    b.step(true);
    CHECK_THROWS_WITH(b.scaler.update(), Contains("overflow at scale 1"));
}

TEST_CASE("scaler: a lowered interval below the tracker still grows", "[scaler]") {
    Bench b({.init_scale = 4, .growth_interval = 10}, 0);
    b.scales("ooooo");
    b.scaler.set_growth_interval(4);
    CHECK(b.scales("o") == Scales{8});
    CHECK_THROWS_AS(b.scaler.set_growth_factor(1), Error);
    CHECK_THROWS_AS(b.scaler.set_backoff_factor(1), Error);
    b.scaler.set_growth_factor(4);
    CHECK(b.scaler.get_growth_factor() == 4);
}

TEST_CASE("scaler: the multiply may not overflow unseen", "[scaler]") {
    // The gradient is finite before, and infinite after the division by a scale below one.
    Bench b({.init_scale = 0x1p-20, .min_scale = 0});
    b.scaler.scale(scalar(1));
    b.w.set_grad(Tensor::from({3e38f}));
    CHECK(b.scaler.step(b.optimizer).skipped());
    CHECK(b.w.item<float>() == 1);
}

TEST_CASE("scaler: the log is told once when the scale cannot fall", "[scaler]") {
    std::vector<std::string> lines;
    set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
    struct Silent {
        ~Silent() { set_log_sink(nullptr); }
    } const silent;
    for (const Device device : test::devices()) {
        lines.clear();
        Bench b({.init_scale = 4, .growth_interval = 1, .min_scale = 2}, 0.5, 3, device);
        const auto step = [&](bool overflow) {
            b.step(overflow);
            static_cast<void>(b.scaler.found_inf());  // a GPU logs when the host waits
            b.scaler.update();
        };
        step(true);  // from 4 to 2
        CHECK(lines.empty());
        step(true);
        REQUIRE(lines.size() == 1);
        CHECK_THAT(lines[0], Contains("overflow at scale 2, which is min_scale"));
        step(true);
        CHECK(lines.size() == 1);
        step(false);  // up to 4, and down again
        step(true);
        step(true);
        CHECK(lines.size() == 2);
    }
}
