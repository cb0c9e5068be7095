// Optimizers that users write with ops: the same training as with a built-in one, in every kind of step.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <memory>

#include "autograd/autocast_state.h"
#include "mezzo/mezzo.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

// AdamW written with ops. in_place: writes to the tensors that it gets instead of assigning others.
class OwnAdamW : public optim::CustomOptimizer {
public:
    OwnAdamW(const std::vector<optim::CustomGroup>& groups, bool in_place)
        : CustomOptimizer({"OwnAdamW",
                           {{"lr", 0.1},
                            {"beta1", 0.9},
                            {"beta2", 0.99},
                            {"eps", 1e-8},
                            {"weight_decay", 0.1},
                            {"maximize", 0}},
                           {"m", "v"}},
                          groups),
          in_place_(in_place) {}
    int fail_at = -1;

protected:
    void update(optim::ParameterUpdate& p) override {
        check(fail_at-- != 0, ErrorKind::value, "broken");
        const double beta1 = p.option("beta1"), beta2 = p.option("beta2");
        Tensor &m = p.state("m"), &v = p.state("v");
        if (in_place_) {
            m.mul_(beta1).add_(p.grad * (1 - beta1));
            v.mul_(beta2).add_(square(p.grad) * (1 - beta2));
        } else {
            m = beta1 * m + (1 - beta1) * p.grad;
            v = beta2 * v + (1 - beta2) * square(p.grad);
        }
        const Tensor correction1 = 1.0 - exp(p.step * std::log(beta1));
        const Tensor correction2 = 1.0 - exp(p.step * std::log(beta2));
        const Tensor step = m / correction1 / (sqrt(v / correction2) + p.option("eps"));
        const Tensor moved = p.value * (1.0 - p.lr * p.option("weight_decay")) - p.lr * step;
        if (in_place_)
            p.value.copy_(moved);
        else
            p.value = moved;
    }

private:
    bool in_place_;
};

struct Recipe {
    Device device;
    Dtype params = float32;
    bool scaled = true, clip = false, in_place = false, captured = false;
};

struct Training {
    Recipe recipe;
    std::unique_ptr<nn::Sequential> net;
    std::unique_ptr<optim::Optimizer> optimizer;
    std::unique_ptr<optim::ExponentialLR> schedule;
    amp::GradScaler scaler{{.init_scale = 256, .growth_interval = 3}};
    Tensor x;
    std::unique_ptr<cuda::CapturedStep> step;

    Training(const Recipe& r, bool own) : recipe(r) {
        manual_seed(3);
        net = std::make_unique<nn::Sequential>(nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 3));
        net->to(r.device);
        net->to(r.params);
        const Tensors params = net->parameters();
        const Tensors some(params.begin(), params.begin() + 2), others(params.begin() + 2, params.end());
        if (own)
            optimizer = std::make_unique<OwnAdamW>(
                std::vector<optim::CustomGroup>{
                    {.params = some},
                    {.params = others, .options = {{"lr", 0.05}, {"beta1", 0.8}, {"maximize", 1}}}},
                r.in_place);
        else
            optimizer = std::make_unique<optim::AdamW>(std::vector<optim::AdamWGroup>{
                {.params = some, .options = {.lr = 0.1, .beta2 = 0.99, .weight_decay = 0.1}},
                {.params = others,
                 .options = {
                     .lr = 0.05, .beta1 = 0.8, .beta2 = 0.99, .weight_decay = 0.1, .maximize = true}}});
        if (is_16bit(r.params)) optimizer->use_master_weights();
        schedule = std::make_unique<optim::ExponentialLR>(*optimizer, 0.9);
        x = test::tensor_of(test::random_values(20, 5, test::Domain::any), {5, 4}, r.params, r.device);
    }
    void run_step(const Tensor& factor) {
        Tensor loss;
        {
            amp::Autocast scope({.dtype = recipe.params == bfloat16 ? bfloat16 : float16});
            loss = mean(square((*net)(x))) * factor;
        }
        optimizer->zero_grad();
        if (recipe.scaled) loss = scaler.scale(loss);
        loss.backward();
        if (recipe.scaled && recipe.clip) scaler.unscale_(*optimizer);
        if (recipe.clip) nn::clip_grad_norm_(net->parameters(), 0.05);
        if (recipe.scaled) {
            scaler.step(*optimizer);
            scaler.update();
        } else {
            optimizer->step();
        }
    }
    void train(int steps, int overflow_at = -1) {
        for (int i = 0; i < steps; ++i) {
            const bool overflow = i == overflow_at && recipe.scaled;
            const Tensor factor =
                full({}, overflow ? std::numeric_limits<double>::infinity() : 1.0, {.device = recipe.device});
            if (recipe.captured) {
                if (!step)
                    step = std::make_unique<cuda::CapturedStep>([this](const Tensors& in) {
                        run_step(in.at(0));
                        return Tensors{};
                    });
                (*step)({factor});
            } else {
                run_step(factor);
            }
            schedule->step();
        }
    }
    std::vector<double> values() const {
        std::vector<double> result;
        for (const Tensor& p : optimizer->master_parameters())
            for (const double v : test::doubles(p)) result.push_back(v);
        return result;
    }
};

void check_close(const std::vector<double>& a, const std::vector<double>& b, double slack) {
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] == Approx(b[i]).epsilon(slack).margin(slack));
}

std::vector<Recipe> recipes() {
    std::vector<Recipe> result;
    for (const Device device : test::devices())
        for (const Dtype params : {float32, float16, bfloat16})
            for (const bool scaled : {true, false})
                for (const bool clip : {true, false})
                    result.push_back({device, params, scaled, clip, params == float32});
    return result;
}

}  // namespace

TEST_CASE("an optimizer in ops trains like the kernel", "[optim]") {
    for (const Recipe& recipe : recipes()) {
        CAPTURE(int(recipe.device.type()), name(recipe.params), recipe.scaled, recipe.clip);
        if (!recipe.scaled && is_16bit(recipe.params) && recipe.clip) continue;  // 16-bit gradients round
        Training own(recipe, true), kernel(recipe, false);
        own.train(7, 3);
        kernel.train(7, 3);
        check_close(own.values(), kernel.values(), recipe.params == float32 ? 1e-4 : 2e-2);
        CHECK(own.optimizer->applied_steps() == kernel.optimizer->applied_steps());
        CHECK(own.optimizer->skipped_steps() == (recipe.scaled ? 1 : 0));
        CHECK(own.scaler.get_scale() == kernel.scaler.get_scale());
        CHECK(own.optimizer->lr(1) == kernel.optimizer->lr(1));
        if (is_16bit(recipe.params))
            for (const Tensor& p : own.net->parameters()) CHECK(p.dtype() == recipe.params);
    }
}

TEST_CASE("an optimizer in ops writes the 16-bit copy that autocast reads", "[optim]") {
    Training own({}, true);
    own.train(3);
    const std::uint64_t before = autocast_counters().casts;
    {
        amp::Autocast scope;
        static_cast<void>((*own.net)(own.x.to(float16)));
    }
    CHECK(autocast_counters().casts == before);
    for (const Tensor& p : own.net->parameters())
        CHECK(test::doubles(p->grad_meta->copy16.value) == test::doubles(p.detach().to(float16)));
}

TEST_CASE("an optimizer in ops continues bit for bit from its state", "[optim]") {
    for (const Recipe& recipe : recipes()) {
        CAPTURE(int(recipe.device.type()), name(recipe.params), recipe.scaled, recipe.clip);
        Training straight(recipe, true), first(recipe, true), resumed(recipe, true);
        straight.train(6, 1);
        first.train(3, 1);
        resumed.net->load_state_dict(first.net->state_dict());
        resumed.optimizer->load_state_dict(first.optimizer->state_dict());
        resumed.scaler.load_state_dict(first.scaler.state_dict());
        resumed.schedule->step();
        resumed.train(3);
        CHECK(resumed.values() == straight.values());
    }
    Training own({}, true), kernel({}, false);
    CHECK_THROWS_WITH(own.optimizer->load_state_dict(kernel.optimizer->state_dict()),
                      Contains("another type"));
}

TEST_CASE("an optimizer in ops is captured, and its rate changes between replays", "[cuda]") {
    if (test::no_device()) return;
    const Device gpu{DeviceType::cuda};
    for (const bool clip : {false, true}) {
        Training captured({.device = gpu, .clip = clip, .captured = true}, true);
        Training eager({.device = gpu, .clip = clip}, true);
        captured.train(12, 8);
        eager.train(12, 8);
        CHECK(captured.values() == eager.values());
        CHECK(captured.optimizer->skipped_steps() == 1);
        CHECK(captured.step->statistics().replays >= 4);
    }
}

TEST_CASE("an optimizer in ops that throws has changed nothing", "[optim]") {
    Training own({.device = cpu_device, .scaled = false}, true);
    own.train(2);
    const std::vector<double> before = own.values();
    const StateDict state = own.optimizer->state_dict();
    auto& optimizer = dynamic_cast<OwnAdamW&>(*own.optimizer);
    optimizer.fail_at = 2;
    CHECK_THROWS_WITH(own.train(1), Contains("broken"));
    CHECK(own.values() == before);
    const StateDict now = own.optimizer->state_dict();
    for (std::size_t i = 0; i < state.size(); ++i)
        CHECK(test::doubles(now[i].second) == test::doubles(state[i].second));
    optimizer.fail_at = -1;
    own.train(1);
    CHECK(own.optimizer->applied_steps() == 3);
}

namespace {

// Does to a parameter whatever a test needs.
class Odd : public optim::CustomOptimizer {
public:
    using Act = autograd::Callback<void(optim::ParameterUpdate&)>;
    Odd(const Tensor& w, Act act, const optim::CustomType& type = {"Odd", {{"lr", 1}, {"a", 2}}, {"s"}})
        : CustomOptimizer(type, {{.params = {w}}}), act_(std::move(act)) {}

protected:
    void update(optim::ParameterUpdate& p) override { act_(p); }

private:
    Act act_;
};

void refuses(const Odd::Act& act, const std::string& text) {
    const Tensor w = ones({2}).set_requires_grad();
    Odd optimizer(w, act);
    w.set_grad(ones({2}));
    CHECK_THROWS_WITH(optimizer.step(), Contains(text));
    CHECK(test::doubles(w) == std::vector<double>{1, 1});
    CHECK(optimizer.applied_steps() == 0);
}

// w += g, without temporary tensors.
class InPlace : public optim::CustomOptimizer {
public:
    explicit InPlace(const Tensors& params)
        : CustomOptimizer({"InPlace", {{"lr", 1}}}, {{.params = params}}) {}

protected:
    void update(optim::ParameterUpdate& p) override { p.value.add_(p.grad); }
};

// Raises the device's memory limit step by step, until a step of two large parameters, the second twice as
// large, succeeds.
void short_of_memory() {
    const std::int64_t n = 3 << 20;
    const Tensor first = ones({n}).set_requires_grad(), second = ones({2 * n}).set_requires_grad();
    InPlace optimizer({first, second});
    first.set_grad(ones({n}));
    second.set_grad(ones({2 * n}));
    const auto changed = [](const Tensor& w) { return min(w.detach()).item<double>() != 1; };
    for (std::size_t failures = 0, stepped = 0; stepped == 0; ++failures) {
        amp::GradScaler scaler({.init_scale = 1});
        static_cast<void>(scaler.scale(ones({1})));
        empty_cache(cpu_device);
        set_memory_limit(cpu_device,
                         memory_stats(cpu_device).reserved + (failures + 1) * std::size_t(n) * sizeof(float));
        try {
            scaler.step(optimizer);
            stepped = 1;
            CHECK(failures > 1);
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::memory);
        }
        set_memory_limit(cpu_device, 0);
        CHECK(changed(first) == (stepped == 1));
        CHECK(changed(second) == (stepped == 1));
        REQUIRE(failures < 100);
    }
}

}  // namespace

TEST_CASE("an optimizer in ops that is short of memory has changed nothing", "[optim][memory]") {
    short_of_memory();
}

TEST_CASE("an optimizer in ops: errors name what is wrong", "[optim]") {
    using Update = optim::ParameterUpdate;
    refuses([](Update& p) { static_cast<void>(p.state("t")); }, "Odd.update: no state 't'");
    refuses([](Update& p) { static_cast<void>(p.option("b")); }, "no option 'b'");
    refuses([](Update& p) { static_cast<void>(p.option("lr")); }, "ParameterUpdate::lr");
    refuses([](Update& p) { p.value = Tensor(); }, "the new value of parameter 0 is undefined");
    refuses([](Update& p) { p.value = ones({3}); }, "has shape [3], not [2]");
    refuses([](Update& p) { p.state("s") = ones({2}, {.dtype = int32}); },
            "the new s of parameter 0 is int32");
    const Tensor w = ones({2}).set_requires_grad();
    const auto nothing = [](Update&) {};
    CHECK_THROWS_WITH(Odd(w, nothing, {"", {{"lr", 1}}}), Contains("no name"));
    CHECK_THROWS_WITH(Odd(w, nothing, {"Odd", {{"a", 1}}}), Contains("no lr"));
    CHECK_THROWS_WITH(Odd(w, nothing, {"Odd", {{"lr", 1}, {"lr", 1}}}), Contains("lr occurs twice"));
    CHECK_THROWS_WITH(Odd(w, nothing, {"Odd", {{"lr", -1}}}), Contains("lr is -1"));
    CHECK_THROWS_WITH(Odd(w, nothing, {"Odd", {{"lr", 1}}, {"master"}}), Contains("'master' cannot be"));
}

TEST_CASE("an optimizer in ops computes in float32 without recording, whatever is open", "[optim]") {
    const Tensor w = ones({2, 2}).set_requires_grad();
    Dtype product = float16;
    bool recorded = true;
    Odd optimizer(w, [&](optim::ParameterUpdate& p) {
        const Tensor y = matmul(p.value, p.grad);
        product = y.dtype();
        recorded = y.requires_grad();
    });
    w.set_grad(ones({2, 2}));
    {
        amp::Autocast scope;
        optimizer.step();
    }
    CHECK(product == float32);
    CHECK_FALSE(recorded);
}

TEST_CASE("an optimizer in ops leaves parameters without gradient out", "[optim]") {
    const Tensor a = ones({1}).set_requires_grad(), b = ones({1}).set_requires_grad();
    optim::LAMB optimizer({a, b}, {.lr = 1});
    for (int t = 0; t < 3; ++t) {
        if (t == 2) b.set_grad(ones({1}));
        a.set_grad(ones({1}));
        optimizer.step();
    }
    for (const auto& [name, value] : optimizer.state_dict())
        if (name == "steps") CHECK(test::doubles(value) == std::vector<double>{3, 1});
}

TEST_CASE("custom optimizer: update() cannot step its own optimizer", "[optim]") {
    struct Nested final : optim::CustomOptimizer {
        explicit Nested(const Tensors& params)
            : CustomOptimizer({.name = "Nested", .options = {{"lr", 0.1}}}, {{.params = params}}) {}
        void update(optim::ParameterUpdate& p) override {
            p.value = p.value - p.lr * p.grad;
            if (how == 1) step();
            if (how == 2) load_state_dict(saved);
            if (how == 3) use_master_weights();
        }
        int how = 0;
        StateDict saved;
    };
    for (const Device device : test::devices()) {
        const Tensor w = ones({3}, {.device = device, .requires_grad = true});
        Nested optimizer({w});
        optimizer.saved = optimizer.state_dict();
        for (const int how : {1, 2, 3}) {
            INFO(how);
            optimizer.how = how;
            w.set_grad(ones({3}, {.device = device}));
            CHECK_THROWS_WITH(optimizer.step(), Contains("inside the update() of the same optimizer"));
            CHECK(w.to_vector<float>() == std::vector<float>{1, 1, 1});
        }
        optimizer.how = 0;
        optimizer.step();  // usable after that
        CHECK(w.to_vector<float>() == std::vector<float>{0.9f, 0.9f, 0.9f});
    }
}
