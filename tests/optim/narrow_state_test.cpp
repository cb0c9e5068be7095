// Moments in less than 32 bits: stochastic rounding to bfloat16, and blocks of 8-bit codes.
#include "kernels/narrow_state.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <sstream>

#include "core/philox.h"
#include "mezzo/capture.h"
#include "mezzo/mezzo.h"
#include "optim/optimizer.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using optim::StatePrecision;

constexpr StatePrecision narrow[] = {StatePrecision::bf16, StatePrecision::eight_bit,
                                     StatePrecision::both_eight_bit};
constexpr float inf = std::numeric_limits<float>::infinity();

std::vector<std::vector<double>> numbers(const StateDict& state) {
    std::vector<std::vector<double>> result;
    for (const auto& [name, value] : state) result.push_back(value.to(float64).to_vector<double>());
    return result;
}
const Tensor* find(const StateDict& state, const std::string& name) {
    for (const auto& [key, value] : state)
        if (key == name) return &value;
    return nullptr;
}

constexpr std::int64_t width = 64, hidden = 80;  // 5,120 elements, 20 blocks

Tensor drawn(const Shape& shape, std::uint64_t seed, Device device, double scale = 1) {
    return test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any), shape, float32,
                           device) *
           scale;
}

nn::Sequential make_net(Device device = cpu_device) {
    manual_seed(3);
    nn::Sequential net{nn::Linear(width, hidden), nn::ReLU(), nn::Linear(hidden, width)};
    net.to(device);
    return net;
}

// Gradients of the two weights of a small model in a float32 training on a fixed task.
const std::vector<Tensors>& recorded_gradients() {
    static const std::vector<Tensors> recorded = [] {
        const nn::Sequential net = make_net(), teacher = [] {
            manual_seed(9);
            return nn::Sequential{nn::Linear(width, hidden), nn::ReLU(), nn::Linear(hidden, width)};
        }();
        optim::AdamW optimizer(net.parameters(), {.lr = 2e-3});
        std::vector<Tensors> steps;
        for (int step = 0; step < 300; ++step) {
            const Tensor x = drawn({16, width}, std::uint64_t(step), cpu_device);
            mse_loss(net(x), teacher(x).detach()).backward();
            steps.push_back({net.parameters()[0].grad().clone(), net.parameters()[2].grad().clone()});
            optimizer.step();
            optimizer.zero_grad();
        }
        return steps;
    }();
    return recorded;
}

// Updates of zero weights by an optimizer that gets the recorded gradients: m / (sqrt(v) + eps), corrected.
struct Updates {
    Tensors weights;
    optim::AdamW optimizer;
    Updates(Device device, StatePrecision states)
        : weights{zeros({hidden, width}, {.device = device}).set_requires_grad(),
                  zeros({width, hidden}, {.device = device}).set_requires_grad()},
          optimizer(weights, {.lr = 1, .weight_decay = 0, .states = states}) {}
    std::vector<double> operator()(const Tensors& gradients) {
        std::vector<double> all;
        for (std::size_t i = 0; i < weights.size(); ++i) {
            weights[i].detach().zero_();
            weights[i].set_grad(gradients[i].to(weights[i].device()));
        }
        optimizer.step();
        for (const Tensor& w : weights) {
            const std::vector<double> values = test::doubles(w.detach());
            all.insert(all.end(), values.begin(), values.end());
        }
        return all;
    }
};

double norm(const std::vector<double>& x) {
    double sum = 0;
    for (const double v : x) sum += v * v;
    return std::sqrt(sum);
}
double largest(const std::vector<double>& x) {
    double most = 0;
    for (const double v : x) most = std::max(most, std::abs(v));
    return most;
}

// A model in training, in float32 on the given device.
struct Training {
    nn::Sequential net;
    optim::AdamW optimizer;
    Training(Device device, StatePrecision states)
        : net(make_net(device)), optimizer(net.parameters(), {.lr = 2e-3, .states = states}) {}
    void step(int number) {
        const Device device = net.parameters()[0].device();
        const Tensor x = drawn({4, width}, std::uint64_t(number), device);
        sum(square(net(x) - drawn({4, width}, std::uint64_t(1000 + number), device))).backward();
        optimizer.step();
        optimizer.zero_grad();
    }
    std::vector<std::vector<double>> state() const {
        auto result = numbers(optimizer.state_dict());
        for (const Tensor& p : net.parameters()) result.push_back(test::doubles(p.detach()));
        return result;
    }
};

}  // namespace

TEST_CASE("narrow state: an update takes the random bits of parameter, state, step and element", "[optim]") {
    for (const Device device : test::devices()) {
        const Tensors params = {zeros({64, 64}, {.device = device}).set_requires_grad(),
                                zeros({65, 67}, {.device = device}).set_requires_grad()};
        // With beta1 = 0 the first moment is the gradient.
        optim::AdamW optimizer(params, {.beta1 = 0, .states = StatePrecision::bf16});
        for (int step = 0; step < 2; ++step) {
            for (const Tensor& p : params) p.set_grad(drawn(p.shape(), std::uint64_t(step), device));
            optimizer.step();
            const std::vector<float> gradient = params[1].grad().to_vector<float>();
            const std::vector<float> moment =
                find(optimizer.state_dict(), "state.1.exp_avg")->to(float32).to_vector<float>();
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < gradient.size(); ++i) {
                const PhiloxWords words = philox(functors::rounding_key(1, 0, float(step)), i / 8);
                const std::uint32_t bits = functors::rounded_stochastically(
                    std::bit_cast<std::uint32_t>(gradient[i]), philox_half(words, int(i % 8)));
                wrong += moment[i] != std::bit_cast<float>(bits << 16);
            }
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("narrow state: updates are near those of float32 moments", "[optim]") {
    for (const Device device : test::devices())
        for (const StatePrecision states : narrow) {
            CAPTURE(int(device.type()), int(states));
            const std::size_t steps = device.type() == DeviceType::cpu ? 300 : 40, from = steps / 5;
            Updates exact(device, StatePrecision::fp32), approximate(device, states);
            double error = 0, most = 0, most_exact = 0;
            for (std::size_t step = 0; step < steps; ++step) {
                const Tensors& gradients = recorded_gradients()[step];
                const std::vector<double> u = exact(gradients);
                std::vector<double> difference = approximate(gradients);
                if (step < from) continue;
                most = std::max(most, largest(difference));
                most_exact = std::max(most_exact, largest(u));
                for (std::size_t i = 0; i < u.size(); ++i) difference[i] -= u[i];
                error += norm(difference) / norm(u) / double(steps - from);
            }
            CAPTURE(error, most, most_exact);
            const double allowed = states == StatePrecision::bf16        ? 0.012
                                   : states == StatePrecision::eight_bit ? 0.03
                                                                         : 0.065;
            CHECK(error < allowed);
            CHECK(error > allowed / 20);
            CHECK(most <= 1.5 * most_exact);
        }
}

TEST_CASE("narrow state: options are printed with any value", "[optim]") {
    std::ostringstream out;
    out << optim::AdamOptions{.lr = -1, .states = StatePrecision(200)};
    CHECK(out.str().starts_with("AdamOptions(lr=-1, "));
    CHECK(out.str().find("states=200") != std::string::npos);
}

TEST_CASE("narrow state: the same bits with any number of threads", "[optim]") {
    const int before = num_threads();
    for (const StatePrecision states : narrow) {
        std::vector<std::vector<double>> first;
        for (const int threads : {1, 2, 3}) {
            set_num_threads(threads);
            const Tensor w =
                zeros({700, 100}).set_requires_grad();  // five pieces, the last block is not full
            optim::AdamW optimizer({w}, {.lr = 0.1, .states = states});
            for (int step = 0; step < 3; ++step) {
                w.set_grad(drawn({700, 100}, std::uint64_t(step), cpu_device));
                optimizer.step();
            }
            std::vector<std::vector<double>> state = numbers(optimizer.state_dict());
            state.push_back(test::doubles(w.detach()));
            if (first.empty()) first = state;
            CHECK((state == first));
        }
    }
    set_num_threads(before);
}

TEST_CASE("narrow state: devices round alike", "[optim]") {
    for (const StatePrecision states : narrow) {
        std::vector<std::vector<double>> expected;
        for (const Device device : test::devices()) {
            const Tensor w = zeros({70, 100}, {.device = device}).set_requires_grad();
            optim::Adam optimizer({w}, {.lr = 0.1, .states = states});
            for (int step = 0; step < 3; ++step) {
                w.set_grad(drawn({70, 100}, std::uint64_t(step), device));
                optimizer.step();
            }
            const std::vector<double> values = test::doubles(w.detach());
            expected.push_back(values);
            // Some numbers are rounded to another neighbour, as devices sum in different orders.
            std::size_t far = 0;
            for (std::size_t i = 0; i < values.size(); ++i)
                far += std::abs(values[i] - expected[0][i]) > 1e-4;
            CHECK(far < values.size() / 100);
        }
    }
}

TEST_CASE("narrow state: a state goes on with the same bits, and formats convert into each other",
          "[optim]") {
    for (const Device device : test::devices())
        for (const StatePrecision states : narrow) {
            CAPTURE(int(device.type()), int(states));
            Training straight(device, states), resumed(device, states), wide(device, StatePrecision::fp32);
            for (int step = 0; step < 3; ++step) straight.step(step);
            const StateDict saved = straight.optimizer.state_dict();
            resumed.net.load_state_dict(straight.net.state_dict());
            resumed.optimizer.load_state_dict(saved);
            CHECK((numbers(resumed.optimizer.state_dict()) == numbers(saved)));
            for (int step = 3; step < 6; ++step) {
                straight.step(step);
                resumed.step(step);
            }
            CHECK((straight.state() == resumed.state()));

            wide.optimizer.load_state_dict(saved);
            const StateDict widened = wide.optimizer.state_dict();
            CHECK(find(widened, "state.0.exp_avg")->dtype() == float32);
            CHECK(find(widened, "state.0.exp_avg")->shape() == Shape{hidden, width});
            resumed.optimizer.load_state_dict(widened);  // back to the same codes
            CHECK((numbers(resumed.optimizer.state_dict()) == numbers(saved)));
            wide.step(3);
        }
}

TEST_CASE("narrow state: the option may change between steps", "[optim]") {
    for (const Device device : test::devices()) {
        Training training(device, StatePrecision::fp32);
        const auto dtype = [&](const char* name) {
            return find(training.optimizer.state_dict(), name)->dtype();
        };
        training.step(0);
        CHECK(dtype("state.0.exp_avg") == float32);
        training.optimizer.set_option("states", double(StatePrecision::eight_bit), 0);
        training.step(1);
        CHECK(dtype("state.0.exp_avg") == uint8);
        CHECK(dtype("state.0.exp_avg_sq") == bfloat16);
        CHECK(dtype("state.1.exp_avg") == float32);  // a bias
        training.optimizer.set_option("narrow_all", 1, 0);
        training.step(2);
        CHECK(dtype("state.1.exp_avg") == uint8);
        training.optimizer.set_option("states", double(StatePrecision::fp32), 0);
        training.step(3);
        CHECK(dtype("state.1.exp_avg") == float32);
        CHECK(training.optimizer.applied_steps() == 4);
    }
}

TEST_CASE("narrow state: a skipped step writes nothing", "[optim]") {
    for (const Device device : test::devices())
        for (const StatePrecision states : narrow) {
            Training training(device, states);
            for (int step = 0; step < 2; ++step) training.step(step);
            const auto before = training.state();
            amp::GradScaler scaler({.init_scale = 4});
            const Tensor x = drawn({4, width}, 77, device);
            scaler.scale(sum(training.net(x) * double(inf))).backward();
            scaler.step(training.optimizer);
            scaler.update();
            training.optimizer.zero_grad();
            CHECK(training.optimizer.skipped_steps() == 1);
            auto after = training.state();
            after[3] = before[3];  // the count of skipped steps
            CHECK((after == before));
        }
}

TEST_CASE("narrow state: bytes of an element", "[optim]") {
    for (const Device device : test::devices()) {
        constexpr std::int64_t n = 1 << 16;
        // Parameter 2, lower half 2, gradient 2, and moments.
        for (const auto& [states, bytes] : {std::pair{StatePrecision::fp32, 14.0},
                                            {StatePrecision::bf16, 10.0},
                                            {StatePrecision::eight_bit, 9.02},
                                            {StatePrecision::both_eight_bit, 8.04}}) {
            const std::size_t before = memory_stats(device).allocated;
            const Tensor w = zeros({256, 256}, {.dtype = bfloat16, .device = device}).set_requires_grad();
            optim::AdamW optimizer({w}, {.states = states});
            optimizer.use_master_weights(optim::MasterWeights::split);
            w.set_grad(ones({256, 256}, {.dtype = bfloat16, .device = device}));
            optimizer.step();
            const double used = double(memory_stats(device).allocated - before) / n;
            CAPTURE(used);
            CHECK(used >= std::floor(bytes));
            CHECK(used < bytes + 0.03);  // step counts
        }
    }
}

TEST_CASE("narrow state: what cannot have it keeps wide state or is refused", "[optim]") {
    const auto leaf = [](const Shape& shape, Dtype dtype = float32) {
        return ones(shape, {.dtype = dtype}).set_requires_grad();
    };
    const Tensors params = {leaf({64, 64}), leaf({64, 63}), leaf({5000}), leaf({64, 64}, float64)};
    optim::AdamW optimizer(params, {.states = StatePrecision::bf16});
    for (const Tensor& p : params) p.set_grad(ones_like(p));
    optimizer.step();
    const Dtype expected[] = {bfloat16, float32, float32, float64};
    for (std::size_t i = 0; i < params.size(); ++i)
        CHECK(optimizer.impl().slots[i].state[0].dtype() == expected[i]);

    nn::Embedding table(100, 64);
    const nn::Embedding copy = nn::clone(table), loaded = nn::Embedding::from_pretrained(table.weight, false);
    table.to(bfloat16);
    for (const Tensor& weight : Tensors{table.weight, copy.weight, loaded.weight}) {
        optim::AdamW of_table({weight}, {.states = StatePrecision::bf16});
        weight.set_grad(ones_like(weight));
        of_table.step();
        CHECK(of_table.impl().slots[0].state[0].dtype() == float32);
    }

    nn::Linear head(64, 100);
    nn::Embedding tied(100, 64);
    nn::EmbeddingBag bags(100, 64);
    bags.weight = tied.weight = head.weight;
    const auto layout_of = [](const Tensors& listed) {
        optim::AdamW of_first({listed.at(0)}, {.states = StatePrecision::bf16});
        listed[0].set_grad(ones_like(listed[0]));
        of_first.step();
        return of_first.impl().slots[0].state[0].dtype();
    };
    CHECK(layout_of(head.parameters()) == bfloat16);
    CHECK(layout_of(tied.parameters()) == float32);
    head.weight = nn::Parameter(head.weight.detach().clone());
    bags.weight = head.weight;
    CHECK(layout_of(bags.parameters()) == float32);

    CHECK_THROWS_WITH(optim::AdamW(params, {.amsgrad = true, .states = StatePrecision::bf16}),
                      Catch::Contains("states in less than 32 bits need amsgrad = false") &&
                          Catch::Contains("states bf16"));
    CHECK_THROWS_WITH(optimizer.set_option("states", 4, 0), Catch::Contains("states is 4"));
    CHECK_THROWS_WITH(optim::SGD(params).set_option("states", 1, 0), Catch::Contains("no option 'states'"));

    Training eight(cpu_device, StatePrecision::eight_bit);
    eight.step(0);
    StateDict saved = eight.optimizer.state_dict();
    for (auto& [name, value] : saved)
        if (name == "state.0.exp_avg") value = zeros({3, 260}, {.dtype = uint8});
    CHECK_THROWS_WITH(eight.optimizer.load_state_dict(saved), Catch::Contains("state.0.exp_avg has shape"));
}

TEST_CASE("narrow state: a captured step replays", "[cuda]") {
    if (test::no_device()) return;
    const Device gpu{DeviceType::cuda};
    for (const StatePrecision states : narrow) {
        std::vector<std::vector<double>> seen[2];
        for (const bool capture : {false, true}) {
            const Tensor w = full({64, 64}, 0.5, {.device = gpu}).set_requires_grad();
            optim::AdamW optimizer({w}, {.lr = 0.01, .states = states});
            const auto step = [&](const Tensors& in) -> Tensors {
                optimizer.zero_grad();
                sum(w * in[0]).backward();
                optimizer.step();
                return {};
            };
            cuda::CapturedStep captured(step, {.device = gpu});
            for (int i = 0; i < 6; ++i) {
                const Tensors in{drawn({64, 64}, std::uint64_t(i), gpu)};
                if (capture)
                    captured(in);
                else
                    step(in);
            }
            seen[capture] = numbers(optimizer.state_dict());
            seen[capture].push_back(test::doubles(w.detach()));
            if (capture) CHECK(captured.statistics().replays > 0);
        }
        CHECK((seen[0] == seen[1]));
    }
}
