// load_state_dict() of optimizers, schedules and scalers: a state is taken as a whole or not at all.
#include <algorithm>
#include <ctime>
#include <memory>

#include "mezzo/mezzo.h"
#include "tests/amp/scaler_bench.h"

namespace {

// Processor time of this program, which other programs do not increase.
double processor_seconds() { return double(std::clock()) / CLOCKS_PER_SEC; }

using optim::Adam;
using optim::AdamW;

Tensor number(double value) { return scalar(value, {.dtype = float64}); }

StateDict with(StateDict state, const std::string& key, const Tensor& value) {
    for (auto& [name, entry] : state)
        if (name == key) {
            entry = value;
            return state;
        }
    state.emplace_back(key, value);
    return state;
}
StateDict without(StateDict state, const std::string& key) {
    const std::size_t before = state.size();
    std::erase_if(state, [&](const auto& entry) { return entry.first == key; });
    REQUIRE(state.size() + 1 == before);
    return state;
}

std::vector<std::vector<double>> values_of(const StateDict& state) {
    std::vector<std::vector<double>> result;
    for (const auto& [name, value] : state) result.push_back(value.to(float64).to_vector<double>());
    return result;
}

void one_step(optim::Optimizer& optimizer) {
    for (const Tensor& p : optimizer.parameters()) p.set_grad(ones_like(p));
    optimizer.step();
}

// Checks that the state is refused with this text and leaves the target unchanged.
template <class Target> void refuses(Target& target, const StateDict& state, const std::string& text) {
    CAPTURE(text);
    const auto before = values_of(target.state_dict());
    CHECK_THROWS_WITH(target.load_state_dict(state), Contains(text));
    CHECK(values_of(target.state_dict()) == before);
}

}  // namespace

TEST_CASE("load: an optimizer refuses the options that its constructor refuses", "[load]") {
    const Tensor w = leaf({1, 2});
    Adam adam({w}, {.lr = 0.1});
    SGD sgd({w}, {.lr = 0.1, .momentum = 0.9});
    one_step(adam);
    one_step(sgd);
    struct Bad {
        const char* option;
        double value;
    };
    for (const auto& [option, value] :
         {Bad{"lr", quiet_nan}, Bad{"lr", -0.1}, Bad{"lr", inf}, Bad{"initial_lr", quiet_nan},
          Bad{"initial_lr", -1}, Bad{"beta1", 5}, Bad{"beta1", -0.1}, Bad{"beta2", 1},
          Bad{"beta2", quiet_nan}, Bad{"eps", -1e-8}, Bad{"eps", quiet_nan}, Bad{"weight_decay", -1},
          Bad{"weight_decay", inf}, Bad{"maximize", 0.5}, Bad{"maximize", quiet_nan}, Bad{"size", 1.5},
          Bad{"size", -1}, Bad{"size", 1e30}, Bad{"size", quiet_nan}}) {
        const std::string key = std::string("groups.0.") + option;
        refuses(adam, with(adam.state_dict(), key, number(value)),
                option == std::string("size") ? "group 0" : option);
    }
    refuses(sgd, with(sgd.state_dict(), "groups.0.momentum", number(-0.5)),
            "SGD.load_state_dict: groups.0: momentum is -0.5");
    refuses(sgd, with(sgd.state_dict(), "groups.0.dampening", number(inf)), "dampening is inf");
    refuses(sgd, with(sgd.state_dict(), "groups.0.nesterov", number(2)), "nesterov is 2");
    refuses(sgd,
            with(with(sgd.state_dict(), "groups.0.nesterov", number(1)), "groups.0.dampening", number(0.5)),
            "nesterov needs momentum > 0");
}

TEST_CASE("load: an optimizer refuses counts that are none", "[load]") {
    const Tensor a = leaf({1, 2}), b = leaf({3});
    AdamW optimizer(StateDict{{"a", a}, {"b", b}}, {.lr = 0.1});
    one_step(optimizer);
    const StateDict good = optimizer.state_dict();
    for (const double bad : {double(quiet_nan), double(inf), -1.0, 0.5, 1e30}) {
        refuses(optimizer, with(good, "applied_steps", number(bad)), "applied_steps is");
        refuses(optimizer, with(good, "skipped_steps", number(bad)), "skipped_steps is");
        refuses(optimizer, with(good, "steps", Tensor::from({1, float(bad)})), "for b (parameter 1)");
        refuses(optimizer, with(good, "groups", number(bad)), "groups");
        refuses(optimizer, with(good, "algorithm", number(bad)), "another type");
    }
    refuses(optimizer, without(good, "steps"), "steps is missing");
    refuses(optimizer, with(good, "steps", ones({3})), "steps has shape [3] for 2 parameters");
    refuses(optimizer, with(good, "steps", ones({2, 1})), "steps has shape [2, 1]");
    refuses(optimizer, with(good, "applied_steps", ones({2})), "applied_steps has shape [2]");
}

TEST_CASE("load: what an update has written may not be missing, and nothing may be unknown", "[load]") {
    const Tensor a = leaf({1, 2}), b = leaf({3}), idle = leaf({4});
    Adam adam({a, b, idle}, {.lr = 0.1});
    SGD momentum({a}, {.lr = 0.1, .momentum = 0.9}), plain({a}, {.lr = 0.1});
    a.set_grad(ones({2}));
    b.set_grad(ones({1}));
    adam.step();
    momentum.step();
    plain.step();
    const StateDict good = adam.state_dict();
    refuses(adam, without(good, "state.0.exp_avg"),
            "state.0.exp_avg is missing, and parameter 0 has taken 1 steps");
    refuses(adam, without(good, "state.1.exp_avg_sq"), "state.1.exp_avg_sq is missing");
    refuses(momentum, without(momentum.state_dict(), "state.0.momentum_buffer"),
            "state.0.momentum_buffer is missing");
    CHECK_NOTHROW(adam.load_state_dict(good));  // the idle parameter has no moments
    CHECK_NOTHROW(plain.load_state_dict(plain.state_dict()));
    refuses(adam, with(good, "state.0.exp_avg", Tensor()), "state.0.exp_avg is undefined");
    refuses(adam, with(good, "state.0.exp_avg", ones({2}).to(int64)), "state.0.exp_avg is int64");
    refuses(adam, with(good, "state.0.exp_avg", ones({3})), "state.0.exp_avg has shape [3]");

    StateDict unknown = with(good, "state.0.expavg", ones({2}));
    unknown.emplace_back("state.3.exp_avg", ones({1}));
    refuses(adam, unknown, "2 unknown entries: state.0.expavg, state.3.exp_avg");
    refuses(momentum, with(momentum.state_dict(), "state.0.exp_avg", ones({2})),
            "unknown entries: state.0.exp_avg");
    for (int i = 0; i < 30; ++i) unknown.emplace_back("more." + std::to_string(i), ones({1}));
    refuses(adam, unknown, "32 unknown entries");
    StateDict twice = good;
    twice.push_back(good.back());
    refuses(adam, twice, "is there twice");
}

TEST_CASE("load: state that an option needs since the last update", "[load]") {
    const auto resumes = [](auto&& make, const char* option, double value) {
        CAPTURE(option);
        const Tensor a = leaf({1, 2}), b = leaf({1, 2}), idle = leaf({3});
        const auto first = make(Tensors{a, idle}), second = make(Tensors{b, idle});
        const auto step = [](optim::Optimizer& optimizer, const Tensor& p, double gradient) {
            p.set_grad(full({2}, gradient));
            optimizer.step();
        };
        step(*first, a, 1);
        step(*second, b, 1);
        first->set_option(option, value, 0);
        second->load_state_dict(first->state_dict());
        step(*first, a, 3);
        step(*second, b, 3);
        CHECK(floats(a) == floats(b));
        CHECK(values_of(first->state_dict()) == values_of(second->state_dict()));
    };
    using optim::RMSprop;
    resumes([](const Tensors& p) { return std::make_unique<SGD>(p); }, "momentum", 0.9);
    resumes([](const Tensors& p) { return std::make_unique<Adam>(p); }, "amsgrad", 1);
    resumes([](const Tensors& p) { return std::make_unique<RMSprop>(p); }, "centered", 1);
    resumes([](const Tensors& p) { return std::make_unique<RMSprop>(p); }, "momentum", 0.5);
}

TEST_CASE("load: masters are taken by an optimizer that has none", "[load]") {
    // After two steps the float16 parameter still shows 1; only the master has the change.
    for (const Device device : test::devices()) {
        const auto fresh = [&](Dtype dtype) {
            return ones({1}, {.dtype = dtype, .device = device}).set_requires_grad();
        };
        const auto step = [](const Tensor& w, SGD& optimizer) {
            w.set_grad(ones_like(w));
            optimizer.step();
            return double(w.to(float32).item<float>());
        };
        const Tensor w = fresh(float16);
        SGD optimizer({w}, {.lr = 1e-4});
        optimizer.use_master_weights();
        step(w, optimizer);
        CHECK(step(w, optimizer) == 1);
        const StateDict saved = optimizer.state_dict();

        const Tensor loaded = fresh(float16);
        SGD resumed({loaded}, {.lr = 1e-4});
        resumed.load_state_dict(saved);
        CHECK(resumed.master_parameters()[0].dtype() == float32);
        CHECK(step(loaded, resumed) == 0.99951171875);
        CHECK(values_of(resumed.state_dict()) != values_of(saved));
        CHECK(step(w, optimizer) == 0.99951171875);
        CHECK(values_of(resumed.state_dict()) == values_of(optimizer.state_dict()));

        const Tensor wide = fresh(float32);
        SGD float32_model({wide}, {.lr = 1e-4});
        refuses(float32_model, saved, "state.0.master is the float32 master of a 16-bit parameter");

        const Tensor first = fresh(float16), second = fresh(float16);
        SGD both({first, second}, {.lr = 1e-4});
        both.use_master_weights();
        step(second, both);
        step(first, both);
        refuses(both, without(both.state_dict(), "state.1.master"), "state.1.master is missing");
    }
}

TEST_CASE("load: masters that a state lacks are made from the parameters", "[load]") {
    for (const Device device : test::devices()) {
        const auto weights = [&] {
            return full({2}, 0.5, {.dtype = float16, .device = device}).set_requires_grad();
        };
        Adam without_masters({weights()});
        one_step(without_masters);
        const Tensor w = weights();
        Adam optimizer({w});
        optimizer.use_master_weights();
        optimizer.load_state_dict(without_masters.state_dict());
        const Tensor master = optimizer.master_parameters()[0];
        REQUIRE(master.defined());
        CHECK(master.dtype() == float32);
        CHECK(master.to_vector<float>() == std::vector<float>{0.5f, 0.5f});
        one_step(optimizer);
        CHECK(optimizer.applied_steps() == 2);
    }
}

TEST_CASE("load: a resumed run goes on as if it had never stopped, 16-bit copies included", "[load]") {
    for (const Device device : test::devices()) {
        const auto train = [&](nn::Linear& layer, optim::Optimizer& optimizer, int steps) {
            const Tensor x = full({2, 5}, 0.3, {.device = device});
            for (int i = 0; i < steps; ++i) {
                optimizer.zero_grad();
                Tensor y;
                {
                    const amp::Autocast scope({.dtype = bfloat16});
                    y = layer(x);
                }
                sum(square(y.to(float32))).backward();
                optimizer.step();
            }
        };
        const auto make = [&] {
            manual_seed(5);
            auto layer = std::make_unique<nn::Linear>(5, 3);
            layer->to(device);
            return layer;
        };
        const auto whole = make(), again = make();
        AdamW straight(whole->parameters(), {.lr = 0.01}), resumed(again->parameters(), {.lr = 0.5});
        train(*whole, straight, 3);
        train(*again, resumed, 1);  // has moments and 16-bit copies already
        const StateDict saved = straight.state_dict();
        again->load_state_dict(whole->state_dict());
        refuses(resumed, with(saved, "steps", Tensor::from({1, quiet_nan})), "steps holds nan");
        resumed.load_state_dict(saved);
        CHECK(values_of(resumed.state_dict()) == values_of(saved));
        train(*whole, straight, 4);
        train(*again, resumed, 4);
        CHECK(values_of(again->state_dict()) == values_of(whole->state_dict()));
        CHECK(values_of(resumed.state_dict()) == values_of(straight.state_dict()));
        const Copy16& copy16 = again->weight->grad_meta->copy16;
        REQUIRE(copy16.value.defined());
        CHECK(test::doubles(copy16.value) == test::doubles(again->weight.detach().to(bfloat16)));
    }
}

TEST_CASE("load: the time grows with the number of parameters, not with its square", "[load]") {
    StateDict named;
    for (int i = 0; i < 20000; ++i)
        named.emplace_back("layer." + std::to_string(i), zeros({1}).set_requires_grad());
    const double start = processor_seconds();
    AdamW optimizer(named, {.lr = 0.1});
    const double made = processor_seconds();
    one_step(optimizer);
    const StateDict saved = optimizer.state_dict();
    const double saved_at = processor_seconds();
    optimizer.load_state_dict(saved);
    const double loaded = processor_seconds();
    CAPTURE(made - start, saved_at - made);
    CHECK(made - start < 1);
    CHECK(loaded - saved_at < 1);
}

TEST_CASE("load: a module of 20,000 parameters is listed and loaded at once", "[load]") {
    nn::Sequential model;
    for (int i = 0; i < 10000; ++i) model.push_back(nn::Linear(1, 1));
    const double start = processor_seconds();
    const StateDict state = model.state_dict();
    CHECK(state.size() == 20000);
    model.load_state_dict(state);
    CHECK(model.parameters().size() == 20000);
    CHECK(processor_seconds() - start < 2);
}

TEST_CASE("load: a scaler refuses what its constructor refuses", "[load]") {
    Bench b({.init_scale = 16, .hysteresis = 3});
    b.scales("ooi");
    const StateDict good = b.scaler.state_dict();
    struct Bad {
        const char* key;
        double value;
    };
    for (const auto& [key, value] : {Bad{"scale", 0},
                                     Bad{"scale", -1},
                                     Bad{"scale", quiet_nan},
                                     Bad{"scale", inf},
                                     Bad{"scale", 1e60},
                                     Bad{"scale", 1e-60},
                                     Bad{"growth_factor", 1},
                                     Bad{"growth_factor", quiet_nan},
                                     Bad{"backoff_factor", 1},
                                     Bad{"backoff_factor", quiet_nan},
                                     Bad{"growth_interval", 0},
                                     Bad{"growth_interval", 2.5},
                                     Bad{"growth_interval", 1e30},
                                     Bad{"growth_interval", quiet_nan},
                                     Bad{"_growth_tracker", -1},
                                     Bad{"_growth_tracker", 1e30},
                                     Bad{"_growth_tracker", 0.5},
                                     Bad{"_growth_tracker", quiet_nan},
                                     Bad{"hysteresis", -1},
                                     Bad{"hysteresis", 1e30},
                                     Bad{"hysteresis", quiet_nan},
                                     Bad{"hysteresis", 1.5}})
        refuses(b.scaler, with(good, key, number(value)), key);
    refuses(b.scaler, with(with(good, "growth", number(2)), "tracker", number(2)),
            "unknown entries: growth, tracker");
    refuses(b.scaler, with(good, "scale", ones({2})), "scale has shape [2]");
    b.scales("oii");
    b.scaler.load_state_dict(good);
    CHECK(values_of(b.scaler.state_dict()) == values_of(good));
    CHECK_THROWS_AS(GradScaler({.init_scale = 1e-60, .min_scale = 0}), Error);
}

TEST_CASE("load: the scalers of a preset are loaded all or none", "[load]") {
    nn::Linear layer(2, 2);
    SGD optimizer(layer.parameters(), {.lr = 0.1});
    amp::Handle handle = amp::initialize(layer, optimizer, {.opt_level = "O1", .num_losses = 12});
    const StateDict good = handle.state_dict();
    refuses(handle,
            with(with(good, "loss_scaler0.loss_scale", number(4)), "loss_scaler11.loss_scale", number(-4)),
            "the loaded scale is -4");
    refuses(handle,
            with(with(good, "loss_scaler0.loss_scale", number(4)), "loss_scaler7.unskipped", number(0.5)),
            "_growth_tracker is 0.5");
    StateDict sorted = with(good, "loss_scaler3.loss_scale", number(8));
    std::sort(sorted.begin(), sorted.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
    handle.load_state_dict(sorted);  // as a file has them: loss_scaler10 before loss_scaler2
    CHECK(handle.scaler(3).get_scale() == 8);
    CHECK(handle.scaler(10).get_scale() == 65536);
    sorted[0].first = "loss_scaler0.scale";
    refuses(handle, sorted, "loss_scaler0.loss_scale is missing");
}

TEST_CASE("load: schedules refuse options that can only give bad rates", "[load]") {
    const Tensor w = leaf({1});
    SGD optimizer({w}, {.lr = 0.5});
    for (const double bad : {double(quiet_nan), double(inf), -0.5}) {
        CHECK_THROWS_WITH(optim::StepLR(optimizer, {.step_size = 2, .gamma = bad}),
                          Contains("StepLR: gamma is"));
        CHECK_THROWS_WITH(optim::ExponentialLR(optimizer, bad), Contains("ExponentialLR: gamma is"));
        CHECK_THROWS_WITH(optim::CosineAnnealingLR(optimizer, {.t_max = 2, .eta_min = bad}),
                          Contains("CosineAnnealingLR: eta_min is"));
    }
    CHECK(optimizer.lr() == 0.5);
}
