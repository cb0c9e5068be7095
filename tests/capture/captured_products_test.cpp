// Training steps with matrix products of many kinds, captured on the CUDA device, real or emulated: the same
// bits as in eager calls.
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <vector>

#include "mezzo/mezzo.h"
#include "mezzo/models/bert.h"
#include "tests/cpu/gemm_options_scope.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using namespace mezzo::test;

struct Training {
    cuda::StepFunction step;
    std::function<Tensors(int)> inputs;  // of call i
    Tensors state;                       // compared at the end
};

const Device gpu{DeviceType::cuda};
constexpr std::int64_t width = 8;

Tensor values(std::int64_t rows, int seed, std::int64_t cols = width) {
    return tensor_of(random_values(rows * cols, std::uint64_t(seed), Domain::any), {rows, cols}, float32,
                     gpu);
}

Tensor weight(int seed) { return (values(width, seed) * 0.25).detach().set_requires_grad(); }

Tensors random_pair(int i) { return {values(4, i), values(4, i + 100)}; }

// Dropout, autocast, scaler and clipping; gradients accumulate over `micro_batches`.
Training network(int micro_batches, bool checkpointed) {
    struct Parts {
        nn::Sequential model{nn::Linear(width, 2 * width), nn::ReLU(), nn::Dropout(0.25),
                             nn::Linear(2 * width, width), nn::GELU(), nn::Linear(width, width)};
        std::unique_ptr<optim::AdamW> optimizer;
        amp::GradScaler scaler{{.init_scale = 1024, .growth_interval = 2}};
    };
    auto p = std::make_shared<Parts>();
    p->model.to(gpu);
    p->optimizer = std::make_unique<optim::AdamW>(p->model.parameters(), optim::AdamWOptions{.lr = 0.02});
    const auto forward = [p, checkpointed](const Tensor& x) {
        if (!checkpointed) return p->model(x);
        return autograd::checkpoint([p](const Tensors& in) { return Tensors{p->model(in[0])}; }, {x})[0];
    };
    const auto step = [=](const Tensors& in) {
        Tensor loss;
        for (int m = 0; m < micro_batches; ++m) {
            const amp::Autocast scope({.device = DeviceType::cuda});
            loss = mse_loss(forward(in[0]), in[1]);
            p->scaler.scale(loss).backward();
        }
        p->scaler.unscale_(*p->optimizer);
        const Tensor norm = nn::clip_grad_norm_(p->model.parameters(), 0.5);
        p->scaler.step(*p->optimizer);
        p->scaler.update();
        p->optimizer->zero_grad();
        return Tensors{loss, norm};
    };
    return {step, random_pair, p->model.parameters()};
}

// A masked language model: the word embeddings are also the weight of the last product.
Training bert() {
    struct Parts {
        nn::BertForMaskedLM model{{.vocab_size = 16,
                                   .hidden_size = 16,
                                   .num_hidden_layers = 2,
                                   .num_attention_heads = 2,
                                   .intermediate_size = 16,
                                   .hidden_dropout_prob = 0.2,
                                   .attention_probs_dropout_prob = 0.2,
                                   .max_position_embeddings = 8,
                                   .initializer_range = 0.3}};
        std::unique_ptr<optim::AdamW> optimizer;
    };
    auto p = std::make_shared<Parts>();
    p->model.to(gpu);
    p->optimizer = std::make_unique<optim::AdamW>(p->model.parameters(), optim::AdamWOptions{.lr = 0.01});
    const auto step = [p](const Tensors& in) {
        Tensor loss;
        {
            const amp::Autocast scope({.device = DeviceType::cuda, .dtype = bfloat16});
            loss = p->model.loss(in[0], {.positions = in[1], .labels = in[2]});
        }
        loss.backward();
        p->optimizer->step();
        p->optimizer->zero_grad();
        return Tensors{loss};
    };
    const auto inputs = [](int i) {
        std::vector<std::int64_t> ids(12);
        for (std::size_t k = 0; k < ids.size(); ++k) ids[k] = std::int64_t(k * 5 + std::size_t(i) * 3) % 16;
        const std::int64_t positions[] = {1, 4, 9}, labels[] = {i % 16, 7, 3};
        return Tensors{Tensor::from<std::int64_t>(ids, {2, 6}, {.dtype = int64, .device = gpu}),
                       Tensor::from<std::int64_t>(positions, {3}, {.dtype = int64, .device = gpu}),
                       Tensor::from<std::int64_t>(labels, {3}, {.dtype = int64, .device = gpu})};
    };
    return {step, inputs, p->model.parameters()};
}

// One weight in several products, which accumulate in its gradient over two backward passes.
Training shared_weight() {
    const Tensor w = weight(1), b = full({width}, 0.1, {.device = gpu}).set_requires_grad();
    auto optimizer = std::make_shared<optim::SGD>(Tensors{w, b}, optim::SGDOptions{.lr = 0.05});
    const auto step = [=](const Tensors& in) {
        const Tensor h = linear(in[0], w, b, LinearActivation::relu);
        const Tensor y = matmul(linear(h, w, b, LinearActivation::gelu), w);
        const Tensor loss = mean(square(y - in[1]));
        loss.backward();
        mean(square(linear(linear(in[1], w), w, b))).backward();
        optimizer->step();
        optimizer->zero_grad();
        return Tensors{loss};
    };
    return {step, random_pair, {w, b}};
}

// Batched products of strided operands, one with a frozen weight, one with a frozen input.
Training layouts() {
    const Tensor w = weight(2), frozen = weight(3).detach();
    auto optimizer = std::make_shared<optim::SGD>(Tensors{w}, optim::SGDOptions{.lr = 0.05});
    const auto step = [=](const Tensors& in) {
        const Tensor x = linear(in[0], w);   // its input is frozen
        const Tensor q = linear(x, frozen);  // its weight is
        const Tensor a = q.reshape({2, 2, 2, 4}).permute({1, 3, 0, 2});
        const Tensor b = x.reshape({2, 2, 2, 4}).permute({1, 3, 2, 0});
        const Tensor loss = sum(matmul(a, b));
        loss.backward();
        optimizer->step();
        optimizer->zero_grad();
        return Tensors{loss};
    };
    return {step, random_pair, {w}};
}

// The gradient is one number, expanded: each product copies it.
Training expanded_gradient() {
    const Tensor first = values(64, 7).detach().set_requires_grad();
    const Tensor second = values(64, 8, 48).detach().set_requires_grad();
    auto optimizer = std::make_shared<optim::SGD>(Tensors{first, second}, optim::SGDOptions{.lr = 1e-3});
    const auto step = [=](const Tensors& in) {
        const Tensor loss = sum(matmul(linear(in[0], first), second));
        loss.backward();
        optimizer->step();
        optimizer->zero_grad();
        return Tensors{loss};
    };
    return {step, random_pair, {first, second}};
}

// Gradient of a gradient: products of a backward that is recorded.
Training gradient_penalty() {
    const Tensor w = weight(4), v = weight(5);
    auto optimizer = std::make_shared<optim::SGD>(Tensors{w, v}, optim::SGDOptions{.lr = 0.02});
    const auto step = [=](const Tensors& in) {
        const Tensor y = sum(square(matmul(gelu(matmul(in[0], w)), v)));
        const Tensors g = autograd::grad({y}, {w, v}, {.create_graph = true});
        const Tensor loss = y * 0.01 + mean(square(g[0])) * 1e-4 + mean(square(g[1])) * 1e-4;
        loss.backward();
        optimizer->step();
        optimizer->zero_grad();
        return Tensors{loss};
    };
    return {step, random_pair, {w, v}};
}

// Layers fused with the activation before them: one of the weights is used twice, one bias is frozen.
Training fused_layers() {
    const Tensor first = weight(9), last = weight(10),
                 b = full({width}, 0.1, {.device = gpu}).set_requires_grad();
    auto optimizer = std::make_shared<optim::SGD>(Tensors{first, last, b}, optim::SGDOptions{.lr = 0.05});
    const auto step = [=](const Tensors& in) {
        const GemmOptionsScope fused({.fuse_layers = true});
        const Tensor lower = linear(in[0], first, b, LinearActivation::relu);
        const Tensor y = linear(linear(lower, first, b.detach(), LinearActivation::relu), last);
        const Tensor loss = mean(square(y - in[1]));
        loss.backward();
        optimizer->step();
        optimizer->zero_grad();
        return Tensors{loss};
    };
    return {step, random_pair, {first, last, b}};
}

// Both factors are one leaf: its two gradients accumulate in the same memory, one after the other.
Training both_factors() {
    const Tensor w = weight(6);
    auto optimizer = std::make_shared<optim::SGD>(Tensors{w}, optim::SGDOptions{.lr = 0.05});
    const auto step = [=](const Tensors& in) {
        const Tensor loss = mean(square(matmul(in[0], matmul(w, w)) - in[1])) + mean(square(linear(w, w)));
        loss.backward();
        optimizer->step();
        optimizer->zero_grad();
        return Tensors{loss};
    };
    return {step, random_pair, {w}};
}

void append(std::vector<std::vector<double>>& seen, const Tensors& tensors) {
    for (const Tensor& x : tensors) seen.push_back(doubles(x.detach()));
}

constexpr int calls = 6;  // two warm-up runs, a capture, three replays

// Results of all calls, and the final state.
std::vector<std::vector<double>> run(const std::function<Training()>& make, bool capture) {
    manual_seed(11);
    const Training t = make();
    cuda::CapturedStep captured(t.step, {.warmup = 2, .device = gpu});
    std::vector<std::vector<double>> seen;
    for (int i = 0; i < calls; ++i) append(seen, capture ? captured(t.inputs(i)) : t.step(t.inputs(i)));
    append(seen, t.state);
    if (capture) CHECK(captured.statistics().replays == calls - 3);
    return seen;
}

}  // namespace

TEST_CASE("captured products: captured and eager are the same", "[cuda]") {
    if (no_device()) return;
    const struct {
        const char* name;
        std::function<Training()> make;
    } cases[] = {
        {"mlp", [] { return network(1, false); }},
        {"mlp, two micro-batches", [] { return network(2, false); }},
        {"mlp, checkpointed", [] { return network(1, true); }},
        {"bert", bert},
        {"shared weight", shared_weight},
        {"layouts", layouts},
        {"expanded gradient", expanded_gradient},
        {"gradient penalty", gradient_penalty},
        {"fused layers", fused_layers},
        {"both factors", both_factors},
    };
    for (const auto& c : cases) {
        CAPTURE(c.name);
        const std::vector<std::vector<double>> eager = run(c.make, false);
        CHECK((run(c.make, true) == eager));
    }
}
