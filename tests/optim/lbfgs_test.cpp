// LBFGS against PyTorch, its state, and what it refuses.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "mezzo/mezzo.h"
#include "tests/reference/optimizers.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::optim;
using Catch::Matchers::Contains;

namespace {

// The function and start of tools/reference_optim.py.
struct Valley {
    Tensor x, y;
    double sign = 1;
    int evaluations = 0;

    explicit Valley(Dtype dtype = float64, Device device = cpu_device)
        : x(test::tensor_of({-1.2, 1}, {2}, dtype, device).set_requires_grad()),
          y(test::tensor_of({0.5}, {}, dtype, device).set_requires_grad()) {}
    Tensor loss() const {
        const Tensor a = x.to(float64), first = a.select(0, 0), second = a.select(0, 1);
        return sign * (10 * square(second - square(first)) + square(1 - first) +
                       square(square(first - y.to(float64))));
    }
    Tensor step(LBFGS& optimizer) {
        return optimizer.step([&] {
            ++evaluations;
            optimizer.zero_grad();
            const Tensor value = loss();
            value.backward();
            return value;
        });
    }
    std::vector<double> values() const {
        std::vector<double> all = test::doubles(x);
        all.push_back(y.item<double>());
        return all;
    }
};

template <int steps>
void follows(const double (&expected)[steps][5], const LBFGSOptions& options, double slack = 1e-9) {
    for (const Device device : test::devices()) {
        Valley valley(float64, device);
        valley.sign = options.maximize ? -1 : 1;
        LBFGS optimizer({valley.x, valley.y}, options);
        for (int t = 0; t < steps; ++t) {
            INFO("step " << t);
            const double loss = valley.step(optimizer).item<double>();
            const std::vector<double> actual = valley.values();
            for (std::size_t i = 0; i < 3; ++i)
                CHECK(actual[i] == Approx(expected[t][i]).epsilon(slack).margin(slack));
            CHECK(loss == Approx(expected[t][3]).epsilon(slack).margin(slack));
            CHECK(valley.evaluations == int(expected[t][4]));
            CHECK(optimizer.state_dict()["lbfgs.func_evals"].item<double>() == expected[t][4]);
        }
        CHECK(optimizer.applied_steps() == steps);
    }
}

const LBFGSOptions wolfe{.max_iter = 4, .line_search_fn = LineSearch::strong_wolfe};

}  // namespace

TEST_CASE("LBFGS follows PyTorch", "[optim]") {
    follows(reference::lbfgs, {.lr = 0.1});
    follows(reference::lbfgs_short, {.lr = 0.3, .max_iter = 5, .history_size = 2, .maximize = true});
    follows(reference::lbfgs_wolfe, wolfe);
    // The line search widens its interval many times, and narrows it near its bounds.
    LBFGSOptions slow = wolfe, far = wolfe;
    slow.max_iter = far.max_iter = 6;
    slow.lr = 1e-3;
    far.lr = 50;
    follows(reference::lbfgs_wolfe_slow, slow);
    follows(reference::lbfgs_wolfe_far, far);
    follows(reference::lbfgs_wolfe_short,
            {.max_iter = 6, .max_eval = 5, .history_size = 3, .line_search_fn = LineSearch::strong_wolfe});
}

TEST_CASE("LBFGS follows PyTorch on functions with kinks", "[optim]") {
    int seed = 0;
    for (const auto& expected : reference::lbfgs_kinks) {
        INFO("function " << seed);
        std::vector<double> v;
        for (int i = 0; i < 19; ++i) v.push_back(std::sin(1.7 * i * i + 3.1 * seed + i));
        const Tensor a = Tensor::from(std::vector<double>(v.begin(), v.begin() + 12), {4, 3});
        const Tensor b = Tensor::from(std::vector<double>(v.begin() + 12, v.begin() + 16), {4, 1});
        const Tensor x =
            (Tensor::from(std::vector<double>(v.begin() + 16, v.end()), {3, 1}) * 3.0).set_requires_grad();
        const double powers[] = {1.05, 1.5, 3};
        LBFGS optimizer({x}, {.lr = seed % 4 == 0 ? 5.0 : 1.0,
                              .max_iter = 8,
                              .history_size = 4,
                              .line_search_fn = LineSearch::strong_wolfe});
        int evaluations = 0;
        const auto closure = [&] {
            ++evaluations;
            optimizer.zero_grad();
            const Tensor loss = sum(pow(abs(matmul(a, x) - b), powers[seed % 3])) + 0.1 * sum(exp(x));
            loss.backward();
            return loss;
        };
        optimizer.step(closure);
        CHECK(optimizer.step(closure).item<double>() == Approx(expected[1]).epsilon(1e-6));
        CHECK(evaluations == int(expected[0]));
        for (std::size_t i = 0; i < 3; ++i)
            CHECK(test::doubles(x)[i] == Approx(expected[2 + i]).epsilon(1e-6).margin(1e-6));
        ++seed;
    }
}

TEST_CASE("LBFGS finds the minimum in every dtype", "[optim]") {
    for (const Device device : test::devices())
        for (const Dtype dtype : {float32, float64, float16, bfloat16}) {
            INFO(name(dtype));
            Valley valley(dtype, device);
            LBFGS optimizer({valley.x, valley.y}, {.line_search_fn = LineSearch::strong_wolfe});
            if (is_16bit(dtype)) optimizer.use_master_weights();
            for (int t = 0; t < 6; ++t) valley.step(optimizer);
            // With masters the loss is that of the rounded parameters, which has no gradient between them.
            const double slack = dtype == float64 ? 1e-2 : dtype == float32 ? 2e-2 : 0.15;
            for (const double v : valley.values()) CHECK(v == Approx(1).margin(slack));
            for (const Tensor& p : optimizer.parameters()) CHECK(p.dtype() == dtype);
            for (std::size_t i = 0; i < 2; ++i)
                CHECK(test::doubles(optimizer.master_parameters()[i].detach().to(dtype)) ==
                      test::doubles(optimizer.parameters()[i]));
        }
}

TEST_CASE("LBFGS continues bit for bit from its state", "[optim]") {
    for (const LBFGSOptions& options : {wolfe, LBFGSOptions{.lr = 0.1, .max_iter = 4, .history_size = 3}}) {
        Valley straight, other;
        LBFGS one({straight.x, straight.y}, options), two({other.x, other.y}, options);
        const StateDict fresh = one.state_dict();
        for (int t = 0; t < 2; ++t) straight.step(one);
        other.x.detach().copy_(straight.x.detach());
        other.y.detach().copy_(straight.y.detach());
        two.load_state_dict(one.state_dict());
        Optimizer& base = two;
        CHECK(base.state_dict().size() == one.state_dict().size());  // also through the base class
        for (int t = 0; t < 2; ++t) {
            straight.step(one);
            other.step(two);
        }
        CHECK(other.values() == straight.values());
        two.load_state_dict(fresh);
        CHECK(two.state_dict()["lbfgs.n_iter"].item<double>() == 0);
        CHECK_FALSE(two.state_dict().contains("lbfgs.d"));
    }
}

TEST_CASE("LBFGS refuses states that do not fit, with nothing changed", "[optim]") {
    Valley valley;
    LBFGS optimizer({valley.x, valley.y}, wolfe);
    valley.step(optimizer);
    const StateDict state = optimizer.state_dict();
    const auto refuses = [&](const char* name, const Tensor& value, const char* text) {
        StateDict changed;
        for (const auto& entry : state)
            if (entry.first != name) changed.push_back(entry);
        if (value.defined()) changed.emplace_back(name, value);
        CHECK_THROWS_WITH(optimizer.load_state_dict(changed), Contains(text));
        const StateDict now = optimizer.state_dict();
        for (std::size_t i = 0; i < state.size(); ++i)
            CHECK(test::doubles(now[i].second) == test::doubles(state[i].second));
    };
    refuses("lbfgs.n_iter", {}, "lbfgs.n_iter is missing");
    refuses("lbfgs.n_iter", scalar(0.5, {.dtype = float64}), "must be a whole number");
    refuses("lbfgs.d", ones({2}), "lbfgs.d has shape [2]; it must be [3]");
    refuses("lbfgs.old_stps", {}, "lbfgs.old_stps is missing");
    refuses("lbfgs.old_dirs", ones({1, 3}, {.dtype = int32}), "lbfgs.old_dirs");
    refuses("lbfgs.more", ones({1}), "1 entries lbfgs.");
    refuses("groups.0.lr", {}, "groups.0.lr is missing");
    CHECK_THROWS_WITH(SGD({valley.x}).load_state_dict(state), Contains("another type"));
}

TEST_CASE("LBFGS works with a schedule", "[optim]") {
    Valley valley;
    LBFGS optimizer({valley.x, valley.y}, {.lr = 0.5, .max_iter = 2});
    ExponentialLR schedule(optimizer, 0.5);
    for (int t = 0; t < 3; ++t) {
        valley.step(optimizer);
        schedule.step();
    }
    CHECK(optimizer.lr() == 0.5 / 8);
}

TEST_CASE("LBFGS: a closure that throws, or a loss that is not finite, changes nothing", "[optim]") {
    for (const LineSearch search : {LineSearch::none, LineSearch::strong_wolfe}) {
        Valley valley, same;
        const LBFGSOptions options{.lr = 0.1, .max_iter = 4, .line_search_fn = search};
        LBFGS optimizer({valley.x, valley.y}, options), other({same.x, same.y}, options);
        valley.step(optimizer);
        same.step(other);
        const std::vector<double> before = valley.values();
        int calls = 0;
        CHECK_THROWS_WITH(optimizer.step([&]() -> Tensor {
            if (++calls == 3) throw std::runtime_error("no data");
            optimizer.zero_grad();
            const Tensor loss = valley.loss();
            loss.backward();
            return loss;
        }),
                          Contains("no data"));
        CHECK(calls == 3);
        CHECK(valley.values() == before);
        const Tensor loss = optimizer.step([&] {
            optimizer.zero_grad();
            const Tensor infinite = valley.loss() * std::numeric_limits<double>::infinity();
            infinite.backward();
            return infinite;
        });
        CHECK(std::isinf(loss.item<double>()));
        CHECK(valley.values() == before);
        CHECK(optimizer.skipped_steps() == 1);
        CHECK(optimizer.applied_steps() == 1);
        valley.step(optimizer);
        same.step(other);
        CHECK(valley.values() == same.values());
    }
}

TEST_CASE("LBFGS refuses a GradScaler, a step without a closure, and options out of their range", "[optim]") {
    Valley valley;
    LBFGS optimizer({valley.x, valley.y});
    const std::vector<double> before = valley.values();
    amp::GradScaler scaler({.init_scale = 8});
    const auto scaled = [&] {
        optimizer.zero_grad();
        const Tensor loss = valley.loss();
        scaler.scale(loss).backward();
        return loss;
    };
    CHECK_THROWS_WITH(optimizer.step(scaled),
                      Contains("the gradient of parameter 0 is scaled") && Contains("GradScaler"));
    scaled();
    CHECK_THROWS_WITH(scaler.step(optimizer), Contains("call step(closure)"));
    Optimizer& base = optimizer;
    CHECK_THROWS_WITH(base.step(), Contains("LBFGS.step: it evaluates the loss several times"));
    CHECK_THROWS_WITH(optimizer.step([&] { return valley.x; }), Contains("one number"));
    CHECK_THROWS_WITH(optimizer.step([&] { return Tensor(); }), Contains("one number"));
    CHECK(valley.values() == before);
    valley.step(optimizer);
    CHECK(valley.values() != before);
    CHECK_THROWS_WITH(LBFGS({valley.x}, {.max_iter = 0}), Contains("max_iter is 0"));
    CHECK_THROWS_WITH(LBFGS({valley.x}, {.max_eval = -1}), Contains("max_eval is -1"));
    CHECK_THROWS_WITH(LBFGS({valley.x}, {.history_size = 0}), Contains("history_size is 0"));
    CHECK_THROWS_WITH(LBFGS({valley.x}, {.line_search_fn = LineSearch(2)}), Contains("line_search_fn is 2"));
    CHECK_THROWS_WITH(optimizer.set_option("history_size", 0, 0), Contains("history_size is 0"));
    CHECK_THROWS_WITH(LBFGS({valley.x}, {.tolerance_grad = -1}), Contains("tolerance_grad is -1"));
    CHECK_THROWS_WITH(optimizer.set_option("max_iter", 2.5, 0),
                      Contains("max_iter is 2.5") && Contains("whole"));
    CHECK_THROWS_WITH(optimizer.set_option("line_search_fn", 0.5, 0), Contains("line_search_fn is 0.5"));
    CHECK_THROWS_WITH(optimizer.set_option("history_size", INFINITY, 0), Contains("finite"));
    Muon muon({ones({2, 2}).set_requires_grad()});
    CHECK_THROWS_WITH(muon.set_option("ns_steps", 2.5, 0), Contains("ns_steps is 2.5"));
    muon.set_option("ns_steps", 3, 0);
}

TEST_CASE("LBFGS: its own products are not in 16 bit, also inside of Autocast", "[optim]") {
    Valley inside(float32), outside(float32);
    LBFGS one({inside.x, inside.y}, wolfe), other({outside.x, outside.y}, wolfe);
    for (int t = 0; t < 3; ++t) {
        outside.step(other);
        const amp::Autocast scope({.dtype = bfloat16});
        inside.step(one);
    }
    CHECK(inside.values() == outside.values());
}

TEST_CASE("LBFGS: parameters without a gradient stay, and Autocast computes in 16 bit", "[optim]") {
    manual_seed(5);
    nn::Linear used(3, 2), unused(2, 2);
    const Tensor x = randn({16, 3}), y = matmul(x, Tensor::from({1, 2, 3, 4, 5, 6}, {3, 2}));
    LBFGS optimizer({used.weight, unused.weight, used.bias}, {.line_search_fn = LineSearch::strong_wolfe});
    const std::vector<double> before = test::doubles(unused.weight);
    const auto closure = [&] {
        optimizer.zero_grad();
        const amp::Autocast scope({.dtype = bfloat16});
        const Tensor loss = mse_loss(used(x).to(float32), y);
        loss.backward();
        return loss;
    };
    const double first = optimizer.step(closure).item<double>();
    CHECK(optimizer.step(closure).item<double>() < first / 100);
    CHECK(test::doubles(unused.weight) == before);
}

TEST_CASE("LBFGS: the line search turns back where the loss is not a number", "[optim]") {
    // 4p - log p has its minimum at 1/4. Below 0 log is NaN; `replaced` is what the loss is there.
    const auto found = [](double replaced, bool by_gradient) {
        const Tensor p = test::tensor_of({3}, {1}, float64).set_requires_grad();
        LBFGS optimizer({p}, {.line_search_fn = LineSearch::strong_wolfe});
        int evaluations = 0;
        for (int step = 0; step < 3; ++step)
            (void)optimizer.step([&] {
                ++evaluations;
                optimizer.zero_grad();
                const bool outside = p.item<double>() <= 0;
                const Tensor loss = sum(p * 4.0 - log(outside ? p * 0.0 + 1.0 : p));
                loss.backward();
                if (!outside) return loss;
                if (by_gradient) p.set_grad(full({1}, replaced, {.dtype = float64}));
                return by_gradient ? loss.detach() : full({}, replaced, {.dtype = float64});
            });
        CHECK(evaluations < 30);
        return p.item<double>();
    };
    constexpr double infinity = std::numeric_limits<double>::infinity();
    CHECK(found(infinity, false) == Approx(0.25).epsilon(1e-5));
    CHECK(found(NAN, false) == Approx(0.25).epsilon(1e-5));
    CHECK(found(NAN, true) == Approx(0.25).epsilon(1e-5));
}

TEST_CASE("LBFGS: the largest max_iter and max_eval are no limit", "[optim]") {
    constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
    for (const LineSearch search : {LineSearch::none, LineSearch::strong_wolfe})
        for (const LBFGSOptions& options :
             {LBFGSOptions{.lr = 0.1, .max_iter = 6, .max_eval = largest, .line_search_fn = search},
              LBFGSOptions{.lr = 0.1, .max_iter = largest, .max_eval = 6, .line_search_fn = search},
              LBFGSOptions{
                  .lr = 0.1, .max_iter = largest, .tolerance_grad = 1e-3, .line_search_fn = search}}) {
            Valley valley;
            LBFGS optimizer({valley.x, valley.y}, options);
            valley.step(optimizer);
            CHECK(valley.evaluations >= 6);
        }
}
