// Overflow forensics: ranges, the trace of a step, its replay, anomaly detection, exponent histograms.
#include "mezzo/insight/insight.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <optional>

#include "mezzo/amp.h"
#include "mezzo/autograd.h"
#include "mezzo/insight/exponents.h"
#include "mezzo/models/bert.h"
#include "mezzo/module_scope.h"
#include "mezzo/nn.h"
#include "mezzo/norm_layers.h"
#include "mezzo/optim.h"
#include "mezzo/pointwise_ops.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;
using insight::Pass;

constexpr double inf = std::numeric_limits<double>::infinity(),
                 not_a_number = std::numeric_limits<double>::quiet_NaN();

// Residual block whose sum has no parameters to name it: ModuleScope assigns it to the block.
struct Block : nn::Module {
    explicit Block(std::int64_t n) : up(n, 2 * n), down(2 * n, n) {}
    Tensor operator()(const Tensor& x) const {
        const nn::ModuleScope here(*this);
        return x + down(relu(up(x)));
    }
    nn::Linear up, down;
    MEZZO_MODULE(Block, up, down)
};
struct Net : nn::Module {
    Net()
        : blocks{Block(8), Block(8)},
          head(nn::Linear(8, 8), nn::Dropout(0.5), nn::ReLU(), nn::Linear(8, 4)) {}
    Tensor operator()(Tensor x) const {
        for (const Block& block : blocks) x = block(x);
        return head(x);
    }
    std::vector<Block> blocks;
    nn::Sequential head;
    MEZZO_MODULE(Net, blocks, head)
};

struct Step {
    explicit Step(Device device = {}) : device_(device) {
        seed(3);
        net = Net();
        net.to(device);
        x = test::tensor_of(test::random_values(16 * 8, 1, test::Domain::any), {16, 8}, float32, device);
        target = zeros({16}, {.dtype = int64, .device = device});
    }
    void forward_backward() {
        const Tensor logits = [&] {
            const amp::Autocast scope({.dtype = float16});
            return net(x);
        }();
        scaler.scale(cross_entropy(logits.to(float32), target)).backward();
    }
    static void seed(std::uint64_t n) { manual_seed(n); }

    Device device_;
    Net net;
    amp::GradScaler scaler{{.init_scale = 1024}};
    Tensor x, target;
};

void multiply(const Tensor& x, double factor) {
    NoGrad plain;
    x.mul_(factor);
}

std::vector<double> gradients_of(const nn::Module& net) {
    std::vector<double> all;
    for (const Tensor& p : net.parameters())
        for (const double g : test::doubles(p.grad())) all.push_back(g);
    return all;
}

}  // namespace

TEST_CASE("insight: the range of a tensor, in every dtype and size", "[insight]") {
    for (const Device device : test::devices())
        for (const Dtype dtype : {float16, bfloat16, float32, float64})
            for (const std::int64_t n : {0, 1, 31, 64, 1000, 70001}) {
                INFO(int(device.type()) << " " << dtype_info(dtype).name << " " << n);
                std::vector<double> values = test::random_values(n, 5, test::Domain::any);
                insight::Range expected{.elements = n};
                for (std::int64_t i = 0; i < n; ++i) {
                    double& v = values[std::size_t(i)];
                    if (i % 7 == 3) v = (i % 2 != 0 ? 0.0 : -0.0), ++expected.zeros;
                    if (i % 1001 == 500) v = (i % 2 != 0 ? inf : -inf), ++expected.infs;
                    if (i % 997 == 900) v = not_a_number, ++expected.nans;
                    if (i % 7 == 3 && v != 0) --expected.zeros;
                }
                if (n > 40) values[40] = -1000;
                for (const double v : test::doubles(test::tensor_of(values, {n}, dtype)))
                    if (std::isfinite(v)) expected.max_abs = std::max(expected.max_abs, std::fabs(v));
                const Tensor x = test::tensor_of(values, {n}, dtype, device);
                const insight::Range range = insight::range_of(x);
                CHECK(range.max_abs == expected.max_abs);
                CHECK(range.infs == expected.infs);
                CHECK(range.nans == expected.nans);
                CHECK(range.zeros == expected.zeros);
                CHECK(range.elements == n);
            }
    const Tensor wide = Tensor::from({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 600.0f}, {2, 3});
    CHECK(insight::range_of(wide.slice(1, 0, 2)).max_abs == 5);
    CHECK(insight::range_of(wide.slice(1, 0, 2)).elements == 4);
    CHECK(insight::range_of(zeros({1}).expand({5})).zeros == 5);
    CHECK(insight::range_of(scalar(std::numeric_limits<float>::denorm_min())).max_abs > 0);
    CHECK_THROWS_WITH(insight::range_of({}), Contains("undefined"));
    CHECK_THROWS_WITH(insight::range_of(zeros({2}, {.dtype = int64})), Contains("int64"));
}

TEST_CASE("insight: an overflow planted in a layer is named by module, op and step", "[insight]") {
    for (const Device device : test::devices()) {
        Step step(device);
        step.forward_backward();
        multiply(step.x, 50);
        multiply(step.net.blocks[1].down.weight, 1e4);
        optim::SGD optimizer(step.net.parameters(), {.lr = 0.1});
        optimizer.zero_grad();
        const RandomState random = random_state();
        step.forward_backward();
        REQUIRE(step.scaler.step(optimizer).skipped());
        const insight::OverflowReport report =
            insight::replay(step.net, [&] { step.forward_backward(); }, {.step = 41, .random = random});
        REQUIRE(report.forward);
        CHECK(report.forward->module == "blocks.1.down");
        CHECK(report.forward->shape[0] == 16);
        CHECK(report.forward->pass == Pass::forward);
        CHECK(report.forward->dtype == float16);
        CHECK(report.forward->range.infs > 0);
        CHECK(report.forward->origin);
        CHECK(report.to_string().find("step 41: ") == 0);
        CHECK_THAT(report.to_string(), Contains("in blocks.1.down: result float16 [16, 8]"));
        REQUIRE(!report.gradients.empty());
        CHECK(report.gradients.size() == insight::overflowed_gradients(step.net).size());
        CHECK(report.bad_inputs.empty());
        step.scaler.update();
    }
}

TEST_CASE("insight: an overflow of the backward pass alone", "[insight]") {
    for (const Device device : test::devices()) {
        Step step(device);
        step.net.eval();
        step.scaler.update(0x1p30);
        insight::RangeTrace trace(step.net);
        step.forward_backward();
        const insight::OverflowReport report = trace.report(7);
        CHECK(!report.forward);
        REQUIRE(report.backward);
        CHECK(report.backward->pass == Pass::backward);
        CHECK(report.backward->range.infs > 0);
        CHECK(report.backward->origin);
        CHECK(report.backward->dtype == float16);
        CHECK(trace.fitting_scale(0x1p30) <= 0x1p29);
        step.net.zero_grad();
        trace.clear();
        CHECK(trace.fitting_scale(1024) == 0);
        step.scaler.update(1024);
        step.forward_backward();
        const double fits = trace.fitting_scale(1024);
        CHECK(fits > 1024);
        // The scale is right if the gradients fit, with the headroom, and do not fit with eight times as
        // much.
        for (const double factor : {1.0, 8.0}) {
            step.net.zero_grad();
            trace.clear();
            step.scaler.update(fits * factor);
            step.forward_backward();
            double largest = 0;
            for (const insight::OpRange& op : trace.ops())
                if (op.pass == Pass::backward && op.dtype == float16)
                    largest = std::max(largest, op.range.max_abs);
            if (factor == 1) {
                CHECK(!trace.report().found());
                CHECK(largest <= 65504.0 / 2);
                CHECK(trace.fitting_scale(fits) == fits);
                CHECK(trace.report(3).to_string() == "step 3: everything stayed in range\n");
            } else {
                CHECK((trace.report().found() || largest > 65504.0 / 2));
            }
        }
        CHECK_THROWS_AS(trace.fitting_scale(0), Error);
        CHECK_THROWS_AS(trace.fitting_scale(1, 0.5), Error);
    }
}

TEST_CASE("insight: every op and gradient is listed with its module", "[insight]") {
    Step step;
    insight::RangeTrace trace(step.net);
    step.forward_backward();
    std::vector<std::string> forward, parameters;
    for (const insight::OpRange& op : trace.ops()) {
        CHECK(op.range.finite());
        CHECK(!op.origin);
        if (op.pass == Pass::forward) forward.push_back(op.module + ":" + op.op);
        if (!op.parameter.empty()) parameters.push_back(op.parameter);
    }
    const auto has = [](const std::vector<std::string>& all, const std::string& one) {
        return std::find(all.begin(), all.end(), one) != all.end();
    };
    for (const char* name : {"blocks.0.up:linear", "blocks.0:relu", "blocks.0.down:linear", "blocks.0:add",
                             "head.0:linear", "head.1:dropout", "head.2:relu", "head.3:linear"}) {
        INFO(name);
        CHECK(has(forward, name));
    }
    for (const auto& [name, parameter] : step.net.named_parameters()) {
        INFO(name);
        CHECK(has(parameters, name));
    }
}

TEST_CASE("insight: a trace changes no bit, and what it watched is watched no longer", "[insight]") {
    for (const Device device : test::devices()) {
        Step plain(device), traced(device);
        Step::seed(9);
        plain.forward_backward();
        plain.forward_backward();
        Step::seed(9);
        {
            insight::RangeTrace trace(traced.net);
            traced.forward_backward();
            CHECK(trace.ops().size() > 20);
        }
        insight::RangeTrace later(traced.net);
        later.clear();
        CHECK(later.ops().empty());
        traced.forward_backward();
        CHECK(gradients_of(plain.net) == gradients_of(traced.net));
    }
}

namespace {

struct Normed : nn::Module {
    Normed() : fc(4, 4), norm(4), drop(0.5) {}
    Tensor operator()(const Tensor& x) const { return drop(norm(fc(x))); }
    nn::Linear fc;
    nn::BatchNorm1d norm;
    nn::Dropout drop;
    MEZZO_MODULE(Normed, fc, norm, drop)
};

}  // namespace

TEST_CASE("insight: a replay leaves gradients, buffers and the random stream as they were", "[insight]") {
    Normed net;
    const Tensor x = test::tensor_of(test::random_values(24, 2, test::Domain::any), {6, 4}, float32);
    sum(net(x) * 3.0).backward();
    const std::vector<double> before = gradients_of(net);
    std::vector<double> buffers;
    const auto read_buffers = [&] {
        std::vector<double> all;
        for (const auto& [name, buffer] : net.named_buffers())
            for (const double v : test::doubles(buffer)) all.push_back(v);
        return all;
    };
    buffers = read_buffers();
    const RandomState start{.seed = 77, .offset = 5};
    std::vector<double> first;
    const RandomState now = random_state();
    set_random_state(start);
    first = test::doubles(net.drop(x));
    set_random_state(now);
    std::vector<double> again;
    const auto run = [&] {
        again = test::doubles(net.drop(x));
        sum(net(x)).backward();
    };
    CHECK(!insight::replay(net, run, {.random = start}).found());
    CHECK(again == first);
    CHECK(gradients_of(net) == before);
    CHECK(read_buffers() == buffers);
    CHECK(random_state().offset == now.offset);
    CHECK(random_state().seed == now.seed);
    CHECK_THROWS_WITH(insight::replay(net,
                                      [&] {
                                          run();
                                          throw std::runtime_error("mine");
                                      }),
                      "mine");
    CHECK(gradients_of(net) == before);
    CHECK(read_buffers() == buffers);
    CHECK(random_state().offset == now.offset);
    // A gradient that was undefined before is undefined afterwards.
    net.zero_grad();
    CHECK(insight::replay(net, run).found() == false);
    CHECK(!net.fc.weight.grad().defined());
}

TEST_CASE("replay: the history of a float8 layer is restored", "[insight]") {
    const nn::Linear layer(16, 16);
    const auto run = [&](double size) {
        const amp::Fp8 fp8{.recipe = amp::Recipe::delayed, .least_size = 16};
        const amp::Autocast scope({.dtype = bfloat16, .fp8 = fp8});
        sum(layer(full({16, 16}, size))).backward();
    };
    const auto running = [&] { return amp::Fp8State(layer).state_dict()[0].second.to_vector<float>()[0]; };
    for (const double value : {1.0, not_a_number}) {
        run(value);
        (void)insight::replay(layer, [&] { run(5); });
        CHECK((running() == 1 || (std::isnan(value) && std::isnan(running()))));
    }
}

TEST_CASE("insight: infinities that end before the loss are no finding", "[insight]") {
    nn::Linear net(4, 4);
    const Tensor x = test::tensor_of(test::random_values(8, 2, test::Domain::any), {2, 4}, float32);
    const Tensor mask = Tensor::from({0.0f, 0.0f, float(-inf), 0.0f}, {4});
    const insight::OverflowReport report =
        insight::replay(net, [&] { sum(softmax(net(x) + mask, -1) * x).backward(); });
    CHECK(!report.found());
    const insight::OverflowReport made = insight::replay(net, [&] {
        sum(softmax(net(x) + log(isfinite(mask).to(float32)), -1).detach() * net(x)).backward();
    });
    CHECK(!made.forward);
    // If the mask makes the loss infinite, no forward op is reported.
    const insight::OverflowReport bad = insight::replay(net, [&] { sum(net(x) + mask).backward(); });
    CHECK(!bad.forward);
}

TEST_CASE("insight: what was bad before the step is named as such", "[insight]") {
    nn::Sequential net(nn::Linear(4, 4), nn::Linear(4, 2));
    multiply(net.at<nn::Linear>(1).weight, not_a_number);
    const Tensor x = ones({2, 4});
    const insight::OverflowReport report = insight::replay(net, [&] { sum(net(x)).backward(); });
    REQUIRE(report.bad_inputs.size() == 1);
    CHECK(report.bad_inputs[0] == "parameter 1.weight");
    CHECK(!report.forward);
    CHECK_THAT(report.to_string(), Contains("not finite before: parameter 1.weight"));
    nn::Sequential good(nn::Linear(4, 2));
    const insight::OverflowReport data =
        insight::replay(good, [&] { sum(good(x * not_a_number)).backward(); });
    CHECK(data.found());
}

TEST_CASE("insight: BERT's modules are named, also in checkpoints", "[insight]") {
    nn::BertConfig config;
    config.vocab_size = 40;
    config.hidden_size = 16;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 2;
    config.intermediate_size = 32;
    config.max_position_embeddings = 16;
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
    nn::Bert bert(config);
    multiply(bert.encoder.layer[1].intermediate.dense.weight, 1e8);
    const Tensor ids = ones({2, 6}, {.dtype = int64});
    for (const bool checkpoints : {false, true}) {
        bert.encoder.checkpoint_layers = checkpoints;
        const auto run = [&] {
            const Tensor hidden = [&] {
                const amp::Autocast scope({.dtype = float16});
                return bert(ids).last_hidden_state;
            }();
            sum(hidden.to(float32)).backward();
        };
        const insight::OverflowReport report = insight::replay(bert, run);
        REQUIRE(report.forward);
        CHECK(report.forward->module == "encoder.layer.1.intermediate.dense");
        REQUIRE(report.backward);
        CHECK_THAT(report.backward->module, Contains("encoder.layer.1"));
        // An op without parameters, in a module that a checkpoint has copied.
        insight::RangeTrace trace(bert);
        run();
        bool attention = false;
        for (const insight::OpRange& op : trace.ops())
            attention =
                attention || (op.op == "packed_attention" && op.module == "encoder.layer.0.attention.self");
        CHECK(attention);
    }
}

TEST_CASE("insight: gradients that meet, and those added inside a kernel, are seen", "[insight]") {
    nn::Linear net(2, 2);
    // Twice the largest half: each of the two gradients is finite, their sum is not.
    const Tensor x = full({1, 2}, 1, {.dtype = float16}).set_requires_grad();
    insight::RangeTrace trace(net);
    const Tensor y = x * 1.0;
    sum(y * 40000.0 + y * 40000.0).backward();
    const insight::OverflowReport report = trace.report();
    REQUIRE(report.backward);
    CHECK(report.backward->op == "gradients of mul_scalar");
    trace.clear();
    sum(net(ones({3, 2}))).backward();
    sum(net(full({3, 2}, 3e38))).backward();  // 9e38 of the weight, added to its gradient
    const insight::OverflowReport added = trace.report();
    REQUIRE(added.backward);
    CHECK(added.backward->parameter == "weight");
}

TEST_CASE("insight: detect_anomaly stops at the first NaN and names it", "[insight]") {
    for (const Device device : test::devices()) {
        Step step(device);
        const Tensor negative = full({3}, -1, {.device = device}).set_requires_grad();
        {
            const insight::DetectAnomaly scope({.model = &step.net});
            step.forward_backward();
            CHECK_THROWS_WITH(sqrt(negative),
                              Contains("detect_anomaly: sqrt: its result, float32 [3], has 0 inf and 3 NaN"));
            CHECK_NOTHROW(ones({1}, {.device = device}) / 0.0);
            // 0 * inf: the gradient of x * 0 times that of sqrt at 0.
            const Tensor zero = zeros({1}, {.device = device}).set_requires_grad();
            CHECK_THROWS_WITH(sum(sqrt(zero * 0.0) * 0.0).backward(),
                              Contains("detect_anomaly: ") && Contains("the gradient of input 0"));
            multiply(step.net.blocks[0].up.weight, not_a_number);
            CHECK_THROWS_WITH(
                step.net.blocks[0].up(step.x),
                Contains("linear in blocks.0.up: before it, its parameter blocks.0.up.weight,"));
            const Tensor bad = full({2}, not_a_number, {.device = device});
            CHECK_THROWS_WITH(bad * 2.0,
                              Contains("before it, its input 0, float32 [2], has 0 inf and 2 NaN"));
            CHECK_NOTHROW(masked_fill(bad, isnan(bad), 0));
        }
        CHECK_NOTHROW(sqrt(negative));
        const insight::DetectAnomaly backward_only({.forward = false});
        CHECK_NOTHROW(sqrt(negative));
        const insight::DetectAnomaly strict({.infinities = true});
        CHECK_THROWS_WITH(ones({1}, {.device = device}) / zeros({1}, {.device = device}),
                          Contains("div") && Contains("1 inf"));
        const Tensor mask = full({1}, -inf, {.device = device});
        CHECK_NOTHROW(mask + 1.0);
        CHECK_THROWS_WITH(mask - mask, Contains("its result") && Contains("1 NaN"));
    }
}

TEST_CASE("insight: an anomaly of the backward pass has its module's path and parameter", "[insight]") {
    Step step;
    step.net.eval();
    const insight::DetectAnomaly scope({.model = &step.net});
    const Tensor y = step.net.blocks[1](step.x);
    CHECK_THROWS_WITH(y.backward({.gradient = full({16, 8}, not_a_number)}), Contains("in blocks.1"));
}

TEST_CASE("insight: exponent histograms", "[insight]") {
    for (const Device device : test::devices()) {
        const Tensor x = Tensor::from({0.0f, 0x1p-30f, -0x1.8p-30f, 0x1p-20f, 1.0f, 1.5f, -1.99f, 2.0f,
                                       0x1p17f, float(inf)})
                             .to(device);
        const insight::ExponentHistogram h(x);
        CHECK(h.lowest() == -30);
        CHECK(h.highest() == 17);
        CHECK(h.count(-30) == 2);
        CHECK(h.count(0) == 3);
        CHECK(h.count(1) == 1);
        CHECK(h.count(2) == 0);
        CHECK(h.count(99) == 0);
        CHECK(h.range().zeros == 1);
        CHECK(h.underflow(float16) == Approx(2.0 / 8));
        CHECK(h.subnormal(float16) == Approx(1.0 / 8));
        CHECK(h.overflow(float16) == Approx(1.0 / 8));
        CHECK(h.underflow(float16, 0x1p6) == 0);
        CHECK(h.subnormal(float16, 0x1p6) == Approx(2.0 / 8));
        CHECK(h.underflow(bfloat16) == 0);
        CHECK(h.fitting_scale(float16) == 0x1p-3);
        CHECK(h.fitting_scale(float16, 1) == 0x1p-2);
        CHECK_THAT(h.to_string(), Contains("2^0                3 #"));
        CHECK_THAT(h.to_string(), Contains("zero               1, inf 1, NaN 0"));
        CHECK_THROWS_AS(h.underflow(int64), Error);
        CHECK_THROWS_AS(h.underflow(float16, 0), Error);
        CHECK_THROWS_AS(h.fitting_scale(float16, 0), Error);
    }
    const insight::ExponentHistogram none(zeros({0}));
    CHECK(none.lowest() > none.highest());
    CHECK(none.underflow(float16) == 0);
    CHECK(none.fitting_scale(float16) == 0);
    const insight::ExponentHistogram tiny(full({1}, 5e-324, {.dtype = float64}));
    CHECK(tiny.lowest() == -1074);
    // The prediction equals the effect of a conversion.
    const std::vector<double> values = test::random_values(4000, 4, test::Domain::any);
    std::vector<double> spread;
    for (std::size_t i = 0; i < values.size(); ++i) spread.push_back(std::ldexp(values[i], -int(i % 40)));
    const Tensor y = test::tensor_of(spread, {4000}, float32);
    const insight::ExponentHistogram many(y);
    const insight::Range half = insight::range_of((y * 16.0).to(float16));
    CHECK(many.underflow(float16, 16) * 4000 == Approx(double(half.zeros)));
}

TEST_CASE("insight: a trace's report may be made when the model is gone", "[insight]") {
    std::optional<nn::Linear> net;
    net.emplace(2, 2);
    const insight::RangeTrace trace(*net);
    sum((*net)(full({1, 2}, 1e38)) * 1e10).backward();
    net.reset();
    const insight::OverflowReport report = trace.report();
    CHECK(report.found());
    CHECK(report.gradients.size() == 1);
    CHECK(report.gradients[0].name == "weight");
}
