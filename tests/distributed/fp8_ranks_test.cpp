// Recipe::delayed with several ranks: all have the scales of one rank with all rows.
#include <catch2/catch.hpp>
#include <deque>
#include <optional>
#include <vector>

#include "mezzo/distributed/data_parallel.h"
#include "mezzo/mezzo.h"
#include "tests/distributed/thread_group.h"
#include "tests/distributed/training.h"

using namespace mezzo;
using distributed::DataParallel;
using distributed::Group;

namespace {

constexpr int steps = 4;
constexpr amp::Fp8 fp8{.recipe = amp::Recipe::delayed, .least_size = 16};

// A training of which each rank, or each accumulated pass, has a part of the rows.
struct Training {
    nn::Sequential net;
    std::optional<optim::AdamW> optimizer;

    Training() {
        net = test::seeded(31, [] {
            return nn::Sequential{nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 16)};
        });
        optimizer.emplace(net.parameters(), optim::AdamWOptions{.lr = 0.01});
    }
    Tensor loss(int step, int part) const {
        const amp::Autocast scope({.dtype = bfloat16, .fp8 = fp8});
        // Other parts have the largest rows in other steps.
        const Tensor x = full({16, 16}, 0.5 + (step == 2 && part == 1 ? 30 : step + part));
        return square(net(x).to(float32)).mean();
    }
    // Parameters and histories. passes: the divisor of the loss, by which histories of dy are multiplied.
    std::vector<float> numbers(int passes) const {
        std::vector<float> all;
        for (const StateDict& part : {net.state_dict(), amp::Fp8State(net).state_dict()})
            for (const auto& [name, x] : part)
                for (const float v : x.to_vector<float>())
                    all.push_back(name.ends_with(".gradient") ? v * float(passes) : v);
        return all;
    }
};

std::vector<float> alone(int parts) {
    Training training;
    for (int step = 0; step < steps; ++step) {
        training.optimizer->zero_grad();
        for (int part = 0; part < parts; ++part) (training.loss(step, part) / double(parts)).backward();
        training.optimizer->step();
    }
    return training.numbers(parts);
}

}  // namespace

TEST_CASE("fp8 delayed: ranks have the scales of one process with all rows", "[distributed]") {
    constexpr int ranks = 2;
    const std::vector<float> expected = alone(ranks);
    for (const bool sharded : {false, true}) {
        CAPTURE(sharded);
        std::vector<std::vector<float>> found(ranks);
        test::run_ranks(ranks, [&](const Group& group) {
            Training training;
            DataParallel parallel(training.net, group, {.ordered = true});
            if (sharded) distributed::shard(*training.optimizer, parallel);
            for (int step = 0; step < steps; ++step) {
                training.optimizer->zero_grad();
                training.loss(step, group.rank()).backward();
                training.optimizer->step();
            }
            found[std::size_t(group.rank())] = training.numbers(1);
        });
        CHECK(found[0] == expected);
        CHECK(found[1] == expected);
    }
}

TEST_CASE("fp8 delayed: a number that is not finite on one rank enters no rank's history", "[distributed]") {
    std::vector<std::vector<float>> found(2);
    test::run_ranks(2, [&](const Group& group) {
        Training training;
        DataParallel parallel(training.net, group);
        amp::GradScaler scaler;
        for (const double size : {1.0, double(std::nanf("")), 3.0}) {
            const double own = group.rank() == 1 || size == 1 ? size : 2;
            Tensor loss;
            {
                const amp::Autocast scope({.dtype = bfloat16, .fp8 = fp8});
                loss = training.net(full({16, 16}, own)).to(float32).mean();
            }
            training.optimizer->zero_grad();
            scaler.scale(loss).backward();
            scaler.step(*training.optimizer);
            scaler.update();
        }
        const StateDict state = amp::Fp8State(training.net).state_dict();
        found[std::size_t(group.rank())] = state[0].second.slice(0, 0, 5).to_vector<float>();
    });
    CHECK(found[0] == std::vector<float>{0, 3, 3, 1, 0});
    CHECK(found[1] == found[0]);
}

// Ranks that take different layers, or none in float8, still make the same collective calls.
TEST_CASE("fp8 delayed: a rank without float8 products of a weight has the history of the others",
          "[distributed]") {
    for (const bool one_each : {false, true}) {
        CAPTURE(one_each);
        std::vector<std::vector<float>> found(2);
        test::run_ranks(2, [&](const Group& group) {
            const nn::Sequential net = test::seeded(33, [] {
                return nn::Sequential{nn::Linear(16, 32), nn::Linear(16, 16), nn::Linear(16, 16)};
            });
            optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
            const DataParallel parallel(net, group);
            for (int step = 0; step < 4; ++step) {
                const int own = step < 2 ? group.rank() : 1 - group.rank();
                Tensor loss;
                {
                    const bool in_fp8 = one_each || own == 0;
                    const amp::Autocast scope(
                        {.dtype = bfloat16, .fp8 = in_fp8 ? std::optional(fp8) : std::nullopt});
                    const Tensor x = full({16, 16}, step + 1);
                    const std::size_t layer = one_each ? std::size_t(own) : 0;
                    loss = net.at<nn::Linear>(layer)(x).to(float32).mean();
                }
                optimizer.zero_grad();
                loss.backward();
                optimizer.step();
            }
            std::vector<float>& numbers = found[std::size_t(group.rank())];
            for (const auto& [name, row] : amp::Fp8State(net).state_dict()) {
                CHECK(name.substr(0, 1) != "2");  // of a layer that no rank has called
                for (const float v : row.to_vector<float>()) numbers.push_back(v);
            }
        });
        REQUIRE(found[0].size() == std::size_t(one_each ? 6 : 3) * 18);
        CHECK(std::vector<float>(found[0].begin(), found[0].begin() + 6) ==
              std::vector<float>{0, 4, 4, 3, 2, 1});
        CHECK(found[1] == found[0]);
    }
}

// A history that one rank makes between backward and step is not reduced in this step, and is the same on all
// ranks from the next one on.
TEST_CASE("fp8 delayed: a history made after the gradients are reduced", "[distributed]") {
    for (const bool two_optimizers : {false, true}) {
        CAPTURE(two_optimizers);
        std::vector<std::vector<float>> found(2);
        test::run_ranks(2, [&](const Group& group) {
            const nn::Sequential net = test::seeded(34, [] {
                return nn::Sequential{nn::Linear(16, 16), nn::Linear(16, 16)};
            });
            const auto &late = net.at<nn::Linear>(0), &first = net.at<nn::Linear>(1);
            std::deque<optim::AdamW> optimizers;
            if (two_optimizers)
                for (const nn::Linear* layer : {&late, &first}) optimizers.emplace_back(layer->parameters());
            else
                optimizers.emplace_back(net.parameters());
            const DataParallel parallel(net, group);  // one bucket
            for (int step = 0; step < 4; ++step) {
                const Tensor y = late(full({16, 16}, 1));  // in float32
                const amp::Autocast scope({.dtype = bfloat16, .fp8 = fp8});
                for (optim::AdamW& optimizer : optimizers) optimizer.zero_grad();
                (y + first(full({16, 16}, step + 1))).mean().backward();
                if (step == 1 && group.rank() == 0) (void)late(full({16, 16}, 50));
                for (optim::AdamW& optimizer : optimizers) optimizer.step();
            }
            for (const auto& [name, row] : amp::Fp8State(net).state_dict())
                for (const float v : row.to_vector<float>()) found[std::size_t(group.rank())].push_back(v);
        });
        REQUIRE(found[0].size() == 6 * 18);
        CHECK(found[0][1] == 50);
        CHECK(found[1] == found[0]);
    }
}

TEST_CASE("fp8 delayed: ranks with histories of different lengths", "[distributed]") {
    test::run_ranks(2, [&](const Group& group) {
        const nn::Sequential net{nn::Linear(16, 16), nn::Linear(16, 16)};
        optim::AdamW optimizer(net.parameters());
        const DataParallel parallel(net, group);
        amp::Fp8 own = fp8;
        own.history = group.rank() == 0 ? 4 : 8;
        for (const int step : {1, 2, 3}) {
            const amp::Autocast scope({.dtype = bfloat16, .fp8 = own});
            const Tensor x = full({16, 16}, step + group.rank());
            Tensor y = net.at<nn::Linear>(1)(x);
            if (group.rank() == 0) y = y + net.at<nn::Linear>(0)(x);
            optimizer.zero_grad();
            y.mean().backward();
            optimizer.step();
        }
        const StateDict state = amp::Fp8State(net).state_dict();
        REQUIRE(state.size() == 6);
        CHECK(state[3].second.slice(0, 0, 5).to_vector<float>() == std::vector<float>{0, 4, 4, 3, 2});
    });
}

TEST_CASE("fp8 delayed: layers outside of a DataParallel have histories of their own", "[distributed]") {
    test::run_ranks(2, [&](const Group& group) {
        const nn::Linear shared(16, 16), own(16, 16);
        Tensors parameters = shared.parameters();
        for (const Tensor& parameter : own.parameters()) parameters.push_back(parameter);
        optim::AdamW optimizer(parameters);
        const DataParallel parallel(shared, group);
        for (const int step : {1, 2}) {
            Tensor y = shared(full({16, 16}, step));
            {
                const amp::Autocast scope({.dtype = bfloat16, .fp8 = fp8});
                y = y + own(full({16, 16}, step));
            }
            optimizer.zero_grad();
            y.mean().backward();
            optimizer.step();
        }
        const StateDict state = amp::Fp8State(own).state_dict();
        CHECK(state[0].second.slice(0, 0, 4).to_vector<float>() == std::vector<float>{0, 2, 2, 1});
    });
}

TEST_CASE("fp8 delayed: a rank with too few rows for float8 has the history of the others", "[distributed]") {
    for (const bool merged : {false, true}) {
        CAPTURE(merged);
        std::vector<std::vector<float>> found(2);
        test::run_ranks(2, [&](const Group& group) {
            const nn::Sequential net = test::seeded(32, [] {
                return nn::Sequential{nn::Linear(16, 32), nn::Linear(16, 16)};
            });
            const auto &a = net.at<nn::Linear>(0), &b = net.at<nn::Linear>(1);
            optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
            const DataParallel parallel(net, group);
            for (const double size : {1.0, 4.0, 2.0}) {
                Tensor y;
                {
                    const amp::Autocast scope({.dtype = bfloat16, .fp8 = fp8});
                    const Tensor x = full({group.rank() == 0 ? 32 : 8, 16}, size);
                    y = merged ? merged_linear(x, {a.weight, b.weight}, {a.bias, b.bias})
                               : cat({a(x), b(x)}, -1);
                }
                optimizer.zero_grad();
                y.to(float32).mean().backward();
                optimizer.step();
            }
            std::vector<float>& numbers = found[std::size_t(group.rank())];
            for (const auto& [name, row] : amp::Fp8State(net).state_dict())
                for (const float v : row.to_vector<float>()) numbers.push_back(v);
        });
        REQUIRE(found[0].size() == 6 * 18);
        CHECK(found[0][1] == 4);
        CHECK(found[1] == found[0]);
    }
}
