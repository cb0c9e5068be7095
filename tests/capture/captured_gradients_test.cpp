// Gradients with a pending factor (optim/deferred_factor.h) in steps captured as graphs.
#include <catch2/catch.hpp>

#include "capture/step_graph.h"
#include "core/tensor_impl.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

const Device gpu{DeviceType::cuda};
constexpr std::int64_t width = 8;

enum class Zero { drop, fill, never };

struct Recipe {
    Zero zero;
    bool scaled, clip;
    int first_look;    // no reads of gradients before this step: 8 leaves factors pending at the capture
    bool look_inside;  // reads a gradient inside the step, which then applies the factors
};

Tensor values(int seed, std::int64_t rows) {
    return test::tensor_of(test::random_values(rows * width, std::uint64_t(seed), test::Domain::any),
                           {rows, width}, float32, gpu);
}

// Runs fourteen steps, reading gradients after some of them. Returns losses, norms, gradients and parameters.
std::vector<std::vector<double>> look_at_gradients(bool capture, const Recipe& recipe) {
    manual_seed(3);
    nn::Sequential model{nn::Linear(width, width), nn::ReLU(), nn::Linear(width, width)};
    model.to(gpu);
    optim::AdamW optimizer(model.parameters(), {.lr = 0.02});
    amp::GradScaler scaler({.init_scale = 64, .growth_interval = 3, .enabled = recipe.scaled});
    const auto step = [&](const Tensors& in) {
        if (recipe.zero != Zero::never) optimizer.zero_grad(recipe.zero == Zero::drop);
        const Tensor loss = mse_loss(model(in[0]), in[1]);
        scaler.scale(loss).backward();
        Tensor norm;
        if (recipe.clip) {
            scaler.unscale_(optimizer);
            norm = nn::clip_grad_norm_(model.parameters(), 0.1);
        }
        scaler.step(optimizer);
        scaler.update();
        return Tensors{loss, norm, recipe.look_inside ? model.parameters()[0].grad() * 3.0 : Tensor()};
    };
    cuda::CapturedStep captured(step, {.device = gpu});
    std::vector<std::vector<double>> seen;
    for (int i = 0; i < 14; ++i) {
        // Two graphs. Both write the same gradient tensors, or, if gradients are dropped, each graph its own.
        const std::int64_t rows = recipe.zero != Zero::never && i % 2 == 1 ? 6 : 4;
        const Tensors in{values(i, rows), values(i + 100, rows)};
        for (const Tensor& y : capture ? captured(in) : step(in))
            if (y.defined()) seen.push_back(test::doubles(y));
        if (i < recipe.first_look || i % 3 == 1) continue;
        for (const Tensor& p : model.parameters()) seen.push_back(test::doubles(p.grad()));
    }
    for (const Tensor& p : model.parameters()) seen.push_back(test::doubles(p));
    if (capture) CHECK(captured.statistics().replays == (recipe.zero == Zero::never ? 14u - 4 : 14u - 2 * 4));
    return seen;
}

}  // namespace

TEST_CASE("captured gradients: seen with their factor after every replay", "[cuda]") {
    if (test::no_device()) return;
    for (const Zero zero : {Zero::drop, Zero::fill, Zero::never})
        for (const bool scaled : {true, false})
            for (const bool clip : {true, false})
                for (const int first_look : {0, 8})
                    for (const bool look_inside : {false, true}) {
                        if (scaled && zero == Zero::never) continue;  // refused, see below
                        CAPTURE(int(zero), scaled, clip, first_look, look_inside);
                        const Recipe recipe{zero, scaled, clip, first_look, look_inside};
                        CHECK((look_at_gradients(true, recipe) == look_at_gradients(false, recipe)));
                    }
}

namespace {

// One parameter w with loss = slope * w, and a scaler; the parts of an iteration may be captured one by one.
struct Parts {
    Tensor w = ones({4}, {.device = gpu}).set_requires_grad();
    optim::SGD optimizer{StateDict{{"w", w}}, {.lr = 1}};
    amp::GradScaler scaler{{.init_scale = 8}};
    cuda::CapturedStep backward{[this](const Tensors& in) -> Tensors {
                                    scaler.scale(sum(w * in[0])).backward();
                                    return {};
                                },
                                {.device = gpu}};
    cuda::CapturedStep update{[this](const Tensors&) -> Tensors {
                                  scaler.step(optimizer);
                                  scaler.update();
                                  return {};
                              },
                              {.device = gpu}};
    Tensors slope(double value) const { return {full({1}, value, {.device = gpu})}; }
};

}  // namespace

TEST_CASE("captured gradients: micro-batches replay while gradients are set to zero in place", "[cuda]") {
    if (test::no_device()) return;
    Parts p;
    double expected = 1;
    for (int i = 0; i < 8; ++i) {
        p.optimizer.zero_grad(false);
        for (int m = 0; m < 3; ++m) {
            p.backward(p.slope(i + m));
            expected -= i + m;
        }
        p.scaler.step(p.optimizer);
        p.scaler.update();
    }
    CHECK(test::doubles(p.w) == std::vector<double>(4, expected));
    CHECK(p.backward.statistics().captures <= 2);
    CHECK(p.backward.statistics().replays >= 16);
}

TEST_CASE("captured gradients: a replayed backward into unscaled gradients is noticed", "[cuda]") {
    if (test::no_device()) return;
    using Catch::Matchers::Contains;
    for (const bool waits : {true, false}) {
        CAPTURE(waits);
        Parts p;
        for (int i = 0; i < 6; ++i) {
            p.optimizer.zero_grad(false);
            p.backward(p.slope(1));
            p.scaler.step(p.optimizer);
            p.scaler.update();
        }
        const std::uint64_t replays = p.backward.statistics().replays;
        REQUIRE(replays > 0);
        p.optimizer.zero_grad(false);
        p.backward(p.slope(1));
        p.scaler.unscale_(p.optimizer);
        if (!waits) CHECK(test::doubles(p.w.grad()) == std::vector<double>(4, 1));
        p.backward(p.slope(1));
        const std::vector<double> before = test::doubles(p.w);
        CHECK_THROWS_WITH(p.scaler.step(p.optimizer), Contains("w (parameter 0) of this SGD scaled ones"));
        CHECK(test::doubles(p.w) == before);
        p.optimizer.zero_grad(false);
        p.scaler.update();
        p.backward(p.slope(1));
        CHECK(p.scaler.step(p.optimizer).stepped());
        p.scaler.update();
    }
}

TEST_CASE("captured gradients: a captured step of the optimizer is not replayed on mixed gradients",
          "[cuda]") {
    if (test::no_device()) return;
    Parts p;
    const auto iterate = [&](bool zero) {
        if (zero) p.optimizer.zero_grad(false);
        p.scaler.scale(sum(p.w * 1.0)).backward();
        p.update({});
    };
    for (int i = 0; i < 8; ++i) iterate(true);
    REQUIRE(p.update.statistics().replays > 0);
    const std::vector<double> before = test::doubles(p.w);
    CHECK_THROWS_WITH(iterate(false), Catch::Matchers::Contains("scaled ones were added to unscaled"));
    CHECK(test::doubles(p.w) == before);
    iterate(true);
    CHECK(test::doubles(p.w)[0] == before[0] - 1);
}

TEST_CASE("captured gradients: a replayed backward marks gradients with the scale of its time", "[cuda]") {
    if (test::no_device()) return;
    using Catch::Matchers::Contains;
    Parts p;
    const auto iterate = [&](const auto& between) {
        p.optimizer.zero_grad(false);
        p.backward(p.slope(1));
        between();
        p.backward(p.slope(1));
        p.update({});
    };
    for (int i = 0; i < 6; ++i) iterate([] {});
    REQUIRE((p.backward.statistics().replays > 0 && p.update.statistics().replays > 0));
    const std::vector<double> before = test::doubles(p.w);
    const std::uint64_t replays = p.backward.statistics().replays;
    CHECK_THROWS_WITH(iterate([&] { p.scaler.update(4.0); }), Contains("under two different scales"));
    CHECK_THROWS_WITH(p.scaler.step(p.optimizer), Contains("under two different scales"));
    CHECK(p.backward.statistics().replays > replays);
    p.optimizer.zero_grad(false);
    p.backward(p.slope(1));
    p.scaler.update(2.0);
    CHECK_THROWS_WITH(p.update({}), Contains("w (parameter 0) of this SGD there is one under another scale"));
    CHECK_THROWS_WITH(p.scaler.step(p.optimizer), Contains("under another scale"));
    CHECK(test::doubles(p.w) == before);
    iterate([] {});
    CHECK(test::doubles(p.w)[0] == before[0] - 2);
}

TEST_CASE("captured gradients: a replayed update() ends the time of a scale", "[cuda]") {
    if (test::no_device()) return;
    using Catch::Matchers::Contains;
    Parts p;
    const Tensor other = ones({4}, {.device = gpu}).set_requires_grad();
    optim::SGD second{StateDict{{"other", other}}, {.lr = 1}};
    const auto iterate = [&] {
        p.optimizer.zero_grad(false);
        p.backward(p.slope(1));
        p.update({});
    };
    for (int i = 0; i < 6; ++i) iterate();
    const std::uint64_t replays = p.update.statistics().replays;
    p.scaler.scale(sum(other)).backward();
    iterate();
    CHECK(p.update.statistics().replays == replays + 1);
    CHECK_THROWS_WITH(p.scaler.step(second), Contains("other (parameter 0)") && Contains("another scale"));
    second.zero_grad();
    p.scaler.scale(sum(other)).backward();
    CHECK(p.scaler.step(second).stepped());
    p.scaler.update();
}

TEST_CASE("captured gradients: what a step scales after its own update() belongs to the next one", "[cuda]") {
    if (test::no_device()) return;
    using Catch::Matchers::Contains;
    Parts p;
    const Tensor other = ones({4}, {.device = gpu}).set_requires_grad();
    optim::SGD second{StateDict{{"other", other}}, {.lr = 1}};
    const auto step = [&](bool early) {
        return [&, early](const Tensors& in) -> Tensors {
            p.optimizer.zero_grad();
            second.zero_grad(false);
            p.scaler.scale(sum(p.w * in[0])).backward();
            if (early) p.scaler.scale(sum(other)).backward();
            p.scaler.step(p.optimizer);
            p.scaler.update();
            if (!early) p.scaler.scale(sum(other)).backward();
            return {};
        };
    };
    other.set_grad(zeros({4}, {.device = gpu}));
    for (const bool early : {false, true}) {
        cuda::CapturedStep captured(step(early), {.device = gpu});
        for (int i = 0; i < 7; ++i) {
            CAPTURE(early, i);
            captured(p.slope(1));
            if (early) continue;
            CHECK(p.scaler.step(second).stepped());
            p.scaler.update();
        }
        REQUIRE(captured.statistics().replays > 0);
        if (early) CHECK_THROWS_WITH(p.scaler.step(second), Contains("another scale"));
    }
}

TEST_CASE("captured gradients: whether a graph fits is asked without a launch", "[cuda]") {
    if (test::no_device()) return;
    Parts p;
    const Tensor more = full({4}, 0.5, {.device = gpu});
    p.scaler.scale(sum(p.w * 3.0)).backward();
    StepGraph graph(gpu, {});
    graph.capture([&] {
        const NoGrad plain;
        p.w.grad().add_(more);
    });
    p.optimizer.zero_grad(false);
    p.scaler.scale(sum(p.w * 3.0)).backward();
    p.scaler.unscale_(p.optimizer);
    REQUIRE(p.w->grad_meta->gradient.pending());
    const std::uint64_t launches = cuda::counters().launches;
    CHECK(graph.fits());
    CHECK(cuda::counters().launches == launches);
    CHECK(p.w->grad_meta->gradient.pending());
    graph.replay();  // to the gradient with its factor
    CHECK(test::doubles(p.w.grad()) == std::vector<double>(4, 3.5));
    p.w.set_grad(more.clone());
    CHECK_FALSE(graph.fits());
}

TEST_CASE("captured gradients: a step that only reads a gradient notices another one", "[cuda]") {
    if (test::no_device()) return;
    const Tensor w = ones({4}, {.device = gpu}).set_requires_grad();
    cuda::CapturedStep step([&](const Tensors& in) { return Tensors{w.grad() * in[0]}; },
                            {.warmup = 1, .device = gpu});
    w.set_grad(full({4}, 2, {.device = gpu}));
    for (int i = 0; i < 8; ++i) {
        if (i == 4) w.set_grad(full({4}, 5, {.device = gpu}));
        const Tensor y = step({full({1}, 3, {.device = gpu})})[0];
        CHECK(test::doubles(y) == std::vector<double>(4, i < 4 ? 6 : 15));
    }
    CHECK(step.statistics().captures == 2);
}

TEST_CASE("captured gradients: a replay drops and sets what the step drops and sets", "[cuda]") {
    if (test::no_device()) return;
    const Tensor dropped = ones({4}, {.device = gpu}).set_requires_grad();
    const Tensor set = ones({4}, {.device = gpu}).set_requires_grad();
    const Tensor buffer = full({4}, 7, {.device = gpu});
    cuda::CapturedStep step(
        [&](const Tensors& in) {
            dropped.set_grad({});
            set.set_grad(buffer);
            return Tensors{in[0] + 1.0};
        },
        {.warmup = 1, .device = gpu});
    for (int i = 0; i < 5; ++i) {
        CAPTURE(i);
        dropped.set_grad(full({4}, i, {.device = gpu}));
        set.set_grad({});
        step({full({1}, 3, {.device = gpu})});
        CHECK_FALSE(dropped.grad().defined());
        REQUIRE(set.grad().defined());
        CHECK(test::doubles(set.grad()) == std::vector<double>(4, 7));
    }
    CHECK(step.statistics().replays == 3);
}

TEST_CASE("captured gradients: 16-bit gradients of masters are widened by the step itself", "[cuda]") {
    if (test::no_device()) return;
    std::vector<std::vector<double>> seen[2];
    for (const bool capture : {false, true}) {
        const Tensor w = full({6}, 0.5, {.dtype = float16, .device = gpu}).set_requires_grad();
        optim::AdamW optimizer({w}, {.lr = 0.01});
        optimizer.use_master_weights();
        amp::GradScaler scaler({.init_scale = 64});
        const auto step = [&](const Tensors& in) -> Tensors {
            optimizer.zero_grad();
            scaler.scale(sum(w.to(float32) * in[0])).backward();
            scaler.step(optimizer);
            scaler.update();
            return {};
        };
        cuda::CapturedStep captured(step, {.device = gpu});
        for (int i = 0; i < 7; ++i) {
            const Tensors in{full({1}, 1 + 0.37 * i, {.device = gpu})};
            if (capture)
                captured(in);
            else
                step(in);
            CHECK(w.grad().dtype() == float32);
            seen[capture].push_back(test::doubles(w.grad()));
            seen[capture].push_back(test::doubles(optimizer.master_parameters()[0]));
        }
        if (capture) CHECK(captured.statistics().replays == 3);
    }
    CHECK((seen[0] == seen[1]));
}

TEST_CASE("captured gradients: a step that applies a factor from before it is not repeated", "[cuda]") {
    if (test::no_device()) return;
    Parts p;
    const Tensor more = full({4}, 0.5, {.device = gpu});
    cuda::CapturedStep add(
        [&](const Tensors&) -> Tensors {
            const NoGrad plain;
            p.w.grad().add_(more);
            return {};
        },
        {.warmup = 1, .device = gpu});
    for (int i = 0; i < 6; ++i) {
        p.optimizer.zero_grad(false);
        p.scaler.scale(sum(p.w * 3.0)).backward();
        p.scaler.unscale_(p.optimizer);
        add({});
        CHECK(test::doubles(p.w.grad()) == std::vector<double>(4, 3.5));
        p.scaler.update();
    }
    CHECK(add.statistics().replays == 0);
}
