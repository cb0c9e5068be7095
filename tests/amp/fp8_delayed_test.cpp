// Recipe::delayed: scales from the history, the history through steps, skipped steps, and Fp8State.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "mezzo/amp.h"
#include "mezzo/attention_ops.h"
#include "mezzo/autograd.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"
#include "mezzo/quantize.h"

using namespace mezzo;
using amp::Autocast;
using amp::Fp8;
using amp::Fp8State;
using Catch::Matchers::Contains;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity(),
                 not_a_number = std::numeric_limits<double>::quiet_NaN();

Fp8 delayed(int history = 3, double margin = 0) {
    return {.recipe = amp::Recipe::delayed, .least_size = 16, .history = history, .margin = margin};
}

// y of a layer in a bfloat16 scope.
Tensor run(const nn::Linear& layer, const Tensor& x, const Fp8& fp8, Dtype low = bfloat16) {
    const Autocast scope({.dtype = low, .fp8 = fp8});
    return layer(x);
}

std::map<std::string, std::vector<float>> histories(const Fp8State& state) {
    std::map<std::string, std::vector<float>> result;
    for (const auto& [name, row] : state.state_dict()) result[name] = row.to_vector<float>();
    return result;
}

float largest(const Tensor& x) { return max(abs(x.detach().to(float32))).item<float>(); }

// The codes of x in float64, from the definition, with a scale for numbers up to `top`.
Tensor dequantized(const Tensor& x, double top, Dtype dtype, double margin = 0) {
    const double largest_code = dtype_info(dtype).max;
    const double scale = std::exp2(std::floor(std::log2(largest_code / (top * std::exp2(margin)))));
    const Tensor scaled = clamp(x.detach().to(float32) * scale, -largest_code, largest_code);
    return scaled.to(dtype).to(float64) / scale;
}

double error(const Tensor& x, const Tensor& expected) {
    return (max(abs(x.detach().to(float64) - expected)) / max(abs(expected))).item<double>();
}

// A linear layer without bias, and its inputs and gradients of a step.
struct Layer {
    nn::Linear layer{32, 16, {.bias = false}};
    optim::SGD optimizer{layer.parameters(), {.lr = 0}};
    Fp8State state{layer};
    Tensor x, dy, y;

    void step(double size, const Fp8& fp8) {
        x = (randn({16, 32}) * size).to(bfloat16).set_requires_grad();
        dy = (randn({16, 16}) * (1 / size)).to(bfloat16);
        y = run(layer, x, fp8);
        optimizer.zero_grad();
        y.backward({.gradient = dy});
    }
};

}  // namespace

TEST_CASE("fp8 delayed: scales and gradients are those of the last steps' largest elements", "[amp]") {
    for (const double margin : {0.0, 1.0}) {
        CAPTURE(margin);
        manual_seed(21);
        Layer l;
        const Fp8 fp8 = delayed(2, margin);
        std::vector<float> xs, ws, gs;  // newest first
        for (const double size : {1.0, 4.0, 0.25, 0.25, 0.25}) {
            CAPTURE(size);
            {
                const NoGrad plain;
                l.layer.weight.mul_(1 + size);
            }
            const Tensor w = l.layer.weight.detach().to(bfloat16);
            l.step(size, fp8);
            const auto top = [](const std::vector<float>& steps, const Tensor& own) {
                if (steps.empty()) return double(largest(own));
                return double(*std::max_element(steps.begin(), steps.end()));
            };
            const Tensor x = dequantized(l.x, top(xs, l.x), float8_e4m3fn, margin),
                         qw = dequantized(w, top(ws, w), float8_e4m3fn, margin),
                         g = dequantized(l.dy, top(gs, l.dy), float8_e5m2, margin);
            CHECK(error(l.y, matmul(x, qw.t())) < 0x1p-8 + 1e-6);
            CHECK(error(l.x.grad(), matmul(g, qw)) < 0x1p-8 + 1e-6);
            CHECK(error(l.layer.weight.grad(), matmul(g.t(), x)) < 2e-6);
            CHECK(histories(l.state)["weight.input"][0] == largest(l.x));
            l.optimizer.step();
            const auto push = [](std::vector<float>& steps, float value) {
                steps.insert(steps.begin(), value);
                steps.resize(std::min<std::size_t>(steps.size(), 2));
            };
            push(xs, largest(l.x)), push(ws, largest(w)), push(gs, largest(l.dy));
            const auto found = histories(l.state);
            for (const auto& [name, steps] :
                 {std::pair("weight.input", xs), {"weight.weight", ws}, {"weight.gradient", gs}}) {
                CAPTURE(name);
                std::vector<float> row{0, *std::max_element(steps.begin(), steps.end())};
                row.insert(row.end(), steps.begin(), steps.end());
                row.resize(4);
                CHECK(found.at(name) == row);
            }
        }
    }
}

TEST_CASE("fp8 delayed: cutting a step into parts changes no scale", "[amp]") {
    const auto train = [](std::int64_t parts) {
        manual_seed(22);
        const nn::Sequential net{nn::Linear(32, 64), nn::GELU(), nn::Linear(64, 16)};
        optim::SGD optimizer(net.parameters(), {.lr = 0.01});
        for (int step = 0; step < 4; ++step) {
            const Tensor x = randn({64, 32});
            optimizer.zero_grad();
            for (std::int64_t i = 0; i < parts; ++i) {
                Tensor y;
                {
                    const Autocast scope({.dtype = bfloat16, .fp8 = delayed()});
                    y = net(x.slice(0, i * 64 / parts, (i + 1) * 64 / parts));
                }
                (square(y.to(float32)).sum() * 0.01).backward();
            }
            optimizer.step();
        }
        std::vector<int> exponents;  // of the scales
        for (const auto& [name, row] : Fp8State(net).state_dict())
            exponents.push_back(std::ilogb(row.to_vector<float>()[1]));
        return exponents;
    };
    const std::vector<int> whole = train(1);
    CHECK(whole.size() == 6);
    CHECK(train(2) == whole);
    CHECK(train(4) == whole);
}

TEST_CASE("fp8 delayed: a skipped step adds finite numbers only", "[amp]") {
    manual_seed(23);
    Layer l;
    const Fp8 fp8 = delayed();
    amp::GradScaler scaler({.init_scale = 4});
    const auto step = [&](const Tensor& x) {
        l.optimizer.zero_grad();
        scaler.scale(run(l.layer, x, fp8, float16).to(float32).sum()).backward();
        scaler.step(l.optimizer);
        scaler.update();
    };
    step(full({16, 32}, inf));  // before there is any history
    CHECK(l.optimizer.skipped_steps() == 1);
    auto found = histories(l.state);
    const float w = largest(l.layer.weight.detach().to(float16));
    CHECK(found["weight.input"] == std::vector<float>(5, 0));
    CHECK(found["weight.weight"] == std::vector<float>{0, w, w, 0, 0});
    CHECK(found["weight.gradient"] == std::vector<float>{0, 4, 4, 0, 0});
    step(full({16, 32}, 2));
    step(full({16, 32}, -inf));
    CHECK(l.optimizer.skipped_steps() == 2);
    CHECK(histories(l.state)["weight.input"] == std::vector<float>{0, 2, 2, 0, 0});
    CHECK(histories(l.state)["weight.gradient"] == std::vector<float>{0, 4, 2, 2, 4});
    step(zeros({16, 32}));  // an operand of zeros has no scale to remember
    CHECK(histories(l.state)["weight.input"] == std::vector<float>{0, 2, 2, 0, 0});
}

TEST_CASE("fp8 delayed: only training writes the history", "[amp]") {
    manual_seed(24);
    Layer l;
    l.step(1, delayed());
    l.optimizer.step();
    const auto before = histories(l.state);
    const float top = before.at("weight.input")[1];
    {
        const NoGrad plain;
        const Tensor x = full({16, 32}, 1000).to(bfloat16), y = run(l.layer, x, delayed());
        // 1000 saturates.
        const Tensor w = l.layer.weight.detach().to(bfloat16);
        CHECK(error(y, matmul(dequantized(x, top, float8_e4m3fn),
                              dequantized(w, largest(w), float8_e4m3fn).t())) < 0x1p-8 + 1e-6);
    }
    CHECK(histories(l.state) == before);
    l.step(1, delayed());  // with the codes of the weight that the evaluation has made
    CHECK(histories(l.state)["weight.weight"][0] == largest(l.layer.weight.detach().to(bfloat16)));
    Layer unused;
    {
        const NoGrad plain;
        (void)run(unused.layer, ones({16, 32}), delayed());
    }
    CHECK(unused.state.state_dict().empty());
    const nn::Linear alone(32, 16);  // in no optimizer: current scaling
    for (const double size : {1.0, 100.0}) {
        const Tensor x = full({16, 32}, size).to(bfloat16);
        CHECK(equal(run(alone, x, delayed()), run(alone, x, {.least_size = 16})));
    }
    l.layer.freeze();
    const Tensor x = full({16, 32}, 1000).to(bfloat16);
    CHECK(equal(run(l.layer, x, delayed()), run(l.layer, x, {.least_size = 16})));
}

TEST_CASE("fp8 delayed: checkpoint() uses the same scales again", "[amp]") {
    const auto gradient = [](bool checkpointed) {
        manual_seed(25);
        const nn::Sequential net{nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 16)};
        optim::SGD optimizer(net.parameters(), {.lr = 0.1});
        std::vector<float> all;
        for (int step = 0; step < 3; ++step) {
            const Tensor x = randn({16, 16}).set_requires_grad();
            optimizer.zero_grad();
            {
                const Autocast scope({.dtype = bfloat16, .fp8 = delayed()});
                const auto segment = [&](const Tensors& in) { return Tensors{net(in[0])}; };
                (checkpointed ? autograd::checkpoint(segment, {x}) : segment({x}))[0].sum().backward();
            }
            optimizer.step();
            for (const float g : net.parameters()[0].grad().to_vector<float>()) all.push_back(g);
        }
        for (const auto& [name, row] : histories(Fp8State(net)))
            all.insert(all.end(), row.begin(), row.end());
        return all;
    };
    CHECK(gradient(false) == gradient(true));
}

TEST_CASE("fp8 delayed: Fp8State loads other lengths, and refuses what does not fit", "[amp]") {
    manual_seed(27);
    Layer l;
    for (const double size : {1.0, 2.0, 4.0}) {
        l.step(size, delayed(3));
        l.optimizer.step();
    }
    const StateDict saved = l.state.state_dict();
    const std::vector<float> input = histories(l.state)["weight.input"];
    REQUIRE(saved.size() == 3);
    CHECK(saved[0].first == "weight.input");
    CHECK(saved[2].first == "weight.gradient");

    Layer other;
    other.state.load_state_dict(saved);
    CHECK(histories(other.state)["weight.input"] == input);
    (void)run(other.layer, ones({16, 32}), delayed(5));
    CHECK(histories(other.state)["weight.input"] ==
          std::vector<float>{1, input[1], input[2], input[3], input[4], 0, 0});
    (void)run(other.layer, ones({16, 32}), delayed(1));
    CHECK(histories(other.state)["weight.input"] == std::vector<float>{1, input[2], input[2]});

    const auto refused = [&](StateDict state, const char* text) {
        CHECK_THROWS_WITH(l.state.load_state_dict(state), Contains(text));
        CHECK(histories(l.state)["weight.input"] == input);
    };
    StateDict state = saved;
    state.erase(state.begin() + 1);
    refused(state, "weight.weight is missing");
    state = saved, state.erase(state.begin());
    refused(state, "weight.input is missing");
    state = saved, state[1].second = zeros({5}, {.dtype = float64});
    refused(state, "weight.weight is float64");
    state = saved, state[1].second = zeros({4});
    refused(state, "weight.weight has shape [4]");
    state = saved, state[1].second = full({5}, -1);
    refused(state, "weight.weight has a number that is negative");
    state = saved, state[1].second = Tensor::from({0.0f, float(inf), 1.0f, 1.0f, 1.0f});
    refused(state, "weight.weight has a number that is negative or not finite");
    state = saved, state[1].second = Tensor::from({0.0f, 1.0f, 1.0f, float(not_a_number), 1.0f});
    refused(state, "weight.weight has a number that is negative or not finite");
    state = saved, state[1].second = Tensor();
    refused(state, "weight.weight is undefined");
    state = saved, state.push_back(saved[0]);
    refused(state, "there twice");
    state = saved, state.emplace_back("bias.input", zeros({5}));
    refused(state, "bias.input is of no parameter");
    l.state.load_state_dict({});
    CHECK(l.state.state_dict().empty());
}

TEST_CASE("fp8 delayed: Fp8State loads a running step that is not finite", "[amp]") {
    for (const double value : {inf, not_a_number}) {
        CAPTURE(value);
        Layer l;
        l.step(1, delayed());
        l.optimizer.step();
        std::vector<float> before = histories(l.state)["weight.input"];
        (void)run(l.layer, full({16, 32}, value), delayed());
        Layer other;
        other.state.load_state_dict(l.state.state_dict());
        CHECK(!std::isfinite(histories(other.state)["weight.input"][0]));
        other.step(2, delayed());
        other.optimizer.step();  // which the running step enters no more
        CHECK(histories(other.state)["weight.input"] == before);
    }
}

TEST_CASE("fp8 delayed: options out of range", "[amp]") {
    Fp8 fp8 = delayed();
    fp8.granularity = Granularity::row;
    CHECK_THROWS_WITH(Autocast({.fp8 = fp8}), Contains("Autocast: fp8.recipe is delayed"));
    CHECK_THROWS_WITH(Autocast({.fp8 = delayed(0)}), Contains("fp8.history is 0"));
    CHECK_THROWS_WITH(Autocast({.fp8 = delayed(65537)}), Contains("fp8.history is 65537"));
    CHECK_THROWS_WITH(Autocast({.fp8 = delayed(1, 65)}), Contains("fp8.margin is 65"));
    CHECK_THROWS_WITH(Autocast({.fp8 = delayed(1, std::nan(""))}), Contains("fp8.margin is"));
    fp8 = delayed();
    fp8.recipe = amp::Recipe(7);
    CHECK_THROWS_WITH(Autocast({.fp8 = fp8}), Contains("fp8.recipe"));
}

TEST_CASE("fp8 delayed: merged layers have a history for each weight", "[amp]") {
    manual_seed(28);
    nn::Linear q(32, 16), k(32, 16);
    Tensors parameters = q.parameters();
    for (const Tensor& p : k.parameters()) parameters.push_back(p);
    optim::SGD optimizer(parameters, {.lr = 0});
    const Tensor x = randn({16, 32});
    {
        const Autocast scope({.dtype = bfloat16, .fp8 = delayed()});
        merged_linear(x, {q.weight, k.weight}, {q.bias, k.bias}).sum().backward();
    }
    optimizer.step();
    auto of_q = histories(Fp8State(q)), of_k = histories(Fp8State(k));
    CHECK(of_q["weight.input"][1] == largest(x.to(bfloat16)));
    CHECK(of_k["weight.input"][1] == largest(x.to(bfloat16)));
    CHECK(of_q["weight.weight"][1] == largest(q.weight.to(bfloat16)));
    CHECK(of_k["weight.weight"][1] == largest(k.weight.to(bfloat16)));
    CHECK(of_k["weight.gradient"][1] == 1);
    // Each of them has the scale of x when it runs alone, and when the other is frozen. 1000 saturates.
    const double top = largest(x.to(bfloat16));
    const Tensor far = full({16, 32}, 1000).to(bfloat16),
                 saturated = dequantized(far, top, float8_e4m3fn).to(bfloat16);
    CHECK(equal(run(k, far, delayed()), run(k, saturated, delayed())));
    q.freeze();
    const auto merged = [&](const Tensor& of) {
        const Autocast scope({.dtype = bfloat16, .fp8 = delayed()});
        return merged_linear(of, {q.weight, k.weight}, {q.bias, k.bias});
    };
    CHECK(equal(merged(far), merged(saturated)));
    CHECK(histories(Fp8State(k))["weight.input"][0] == 1000);
}

TEST_CASE("fp8 delayed: a clone begins with the history of its original", "[amp]") {
    manual_seed(29);
    Layer l;
    l.step(1, delayed());
    l.optimizer.step();
    (void)run(l.layer, full({16, 32}, 3), delayed());
    const auto before = histories(l.state);
    const nn::Linear copy = nn::clone(l.layer);
    CHECK(histories(Fp8State(copy)) == before);
    (void)run(copy, full({16, 32}, 5), delayed());
    CHECK(histories(Fp8State(copy))["weight.input"][0] == 5);
    CHECK(histories(l.state) == before);
}

TEST_CASE("fp8 delayed: layers of one optimizer may look back differently", "[amp]") {
    const nn::Linear a(16, 16), b(16, 16);
    optim::SGD optimizer({a.weight, b.weight}, {.lr = 0});
    for (const double size : {4.0, 2.0, 1.0}) {
        const Tensor x = full({16, 16}, size);
        run(a, x, delayed(1)).sum().backward();
        run(b, x, delayed(3)).sum().backward();
        optimizer.step();
    }
    CHECK(histories(Fp8State(a))["weight.input"] == std::vector<float>{0, 1, 1});
    CHECK(histories(Fp8State(b))["weight.input"] == std::vector<float>{0, 4, 1, 2, 4});
}
