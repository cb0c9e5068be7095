// Host cost of an eager step: heap allocations, counted while the emulated device does nothing, and waits.
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/memory/free_list.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "mezzo/models/bert.h"
#include "mezzo/models/resnet.h"
#include "tests/emulation/idle.h"
#include "tools/heap.h"

namespace {

using namespace mezzo;

const Device gpu{DeviceType::cuda};

// In its scope kernels do nothing.
struct Idle {
    Idle() { emulation::idle = true; }
    ~Idle() { emulation::idle = false; }
};

// Allocations of a call that is like the ones before it. Those come first with kernels, because products are
// checked at their first use.
long allocations_of(const std::function<void()>& call) {
    call();
    const Idle scope;
    for (int i = 0; i < 3; ++i) call();
    const long before = heap_allocations();
    call();
    return heap_allocations() - before;
}

struct OpCase {
    std::string name;
    std::vector<Shape> shapes;  // of leaves that require a gradient
    std::function<Tensor(const Tensors&)> op;
    long forward, backward;  // the most that is allowed; backward() itself takes about 7
};

std::vector<OpCase> op_cases() {
    using In = const Tensors&;
    const Shape x{16, 32}, w{32, 32}, b{32};
    return {
        {"add", {x, x}, [](In t) { return t[0] + t[1]; }, 0, 8},
        {"mul_scalar", {x}, [](In t) { return t[0] * 2.0; }, 0, 8},
        {"relu", {x}, [](In t) { return relu(t[0]); }, 0, 8},
        {"gelu", {x}, [](In t) { return gelu(t[0]); }, 0, 8},
        {"linear", {x, w, b}, [](In t) { return linear(t[0], t[1], t[2]); }, 3, 11},
        {"linear_relu",
         {x, w, b},
         [](In t) { return linear(t[0], t[1], t[2], LinearActivation::relu); },
         4,
         11},
        {"matmul", {x, w}, [](In t) { return matmul(t[0], t[1]); }, 1, 10},
        {"reshape", {x}, [](In t) { return t[0].reshape({512}); }, 0, 8},
        {"cast", {x}, [](In t) { return t[0].to(bfloat16); }, 0, 8},
        {"softmax", {x}, [](In t) { return softmax(t[0]); }, 0, 8},
        {"dropout", {x}, [](In t) { return dropout(t[0], 0.1); }, 0, 8},
        {"layer_norm", {x, b, b}, [](In t) { return layer_norm(t[0], t[1], t[2]); }, 2, 9},
        {"mse_loss", {x, x}, [](In t) { return mse_loss(t[0], t[1]); }, 0, 8},
    };
}

// One training step: forward under autocast, backward, update.
std::function<void()> training_step(const std::shared_ptr<optim::Optimizer>& optimizer,
                                    const std::function<Tensor()>& loss_of) {
    auto scaler = std::make_shared<amp::GradScaler>();
    return [=] {
        Tensor loss;
        {
            const amp::Autocast scope;
            loss = loss_of();
        }
        scaler->scale(loss).backward();
        scaler->step(*optimizer);
        scaler->update();
        optimizer->zero_grad();
    };
}

struct Step {
    std::string name;
    std::function<void()> run;
    long allocations;  // the most that is allowed
};

Step recipe_step(std::int64_t rows) {
    nn::Sequential net(nn::Linear(32, 32), nn::ReLU(), nn::Linear(32, 32), nn::ReLU(), nn::Linear(32, 32));
    net.to(gpu);
    const Tensor x = randn({rows, 32}), y = randn({rows, 32});
    return {"recipe",
            training_step(std::make_shared<optim::SGD>(net.parameters()),
                          [=] { return mse_loss(net(x.to(gpu)), y.to(gpu)); }),
            50};
}

Step bert_step() {
    const nn::BertForSequenceClassification net({.vocab_size = 64,
                                                 .hidden_size = 32,
                                                 .num_hidden_layers = 2,
                                                 .num_attention_heads = 2,
                                                 .intermediate_size = 64,
                                                 .max_position_embeddings = 16});
    const_cast<nn::BertForSequenceClassification&>(net).to(gpu);
    const Tensor ids = randint(1, 64, {2, 8}), labels = randint(0, 2, {2});
    return {"BERT",
            training_step(std::make_shared<optim::AdamW>(net.parameters()),
                          [=] { return cross_entropy(net(ids.to(gpu)), labels.to(gpu)); }),
            233};
}

Step resnet_step() {
    nn::ResNetConfig config = nn::resnet_config(20);
    config.num_classes = 10;
    const nn::ResNet net(config);
    const_cast<nn::ResNet&>(net).to(gpu);
    const Tensor images = randn({2, 8, 8, 3}), labels = randint(0, 10, {2});
    return {"ResNet",
            training_step(std::make_shared<optim::SGD>(
                              net.parameters(), optim::SGDOptions{.momentum = 0.9, .weight_decay = 5e-4}),
                          [=] { return cross_entropy(net(images.to(gpu)), labels.to(gpu)); }),
            323};
}

}  // namespace

TEST_CASE("host work: heap allocations of ops", "[cuda][emulation]") {
    if (free_list_limit == 0) return;  // the sanitizer wants to see every object
    for (const OpCase& c : op_cases()) {
        CAPTURE(c.name);
        Tensors inputs;
        for (const Shape& shape : c.shapes)
            inputs.push_back(randn(shape, {.device = gpu}).set_requires_grad());
        const BackwardOptions options{.gradient = ones_like(c.op(inputs))};
        const long forward = allocations_of([&] { static_cast<void>(c.op(inputs)); });
        CHECK(forward <= c.forward);
        const long both = allocations_of([&] {
            c.op(inputs).backward(options);
            for (const Tensor& x : inputs) x.set_grad({});
        });
        CHECK(both - forward <= c.backward);
    }
}

TEST_CASE("host work: heap allocations of training steps", "[cuda][emulation]") {
    if (free_list_limit == 0) return;
    manual_seed(1);
    for (const Step& step : {recipe_step(16), bert_step(), resnet_step()}) {
        CAPTURE(step.name);
        CHECK(allocations_of(step.run) <= step.allocations);
    }
}

TEST_CASE("host work: memory of blocks that are cut and joined is not taken from the heap",
          "[cuda][emulation]") {
    if (free_list_limit == 0) return;
    // beyond the front cache's sizes: cut from a segment, and joined with it again
    const auto large = [] {
        Tensors held;
        held.reserve(3);
        for (int i = 0; i < 3; ++i) held.push_back(empty({(100 + i) << 10}, {.device = gpu}));
    };
    CHECK(allocations_of(large) == 1);  // of `held`
}

TEST_CASE("host work: a steady training step waits for nothing", "[cuda][emulation]") {
    manual_seed(1);
    // the recipe's batch is larger than what drivers take over without waiting
    for (const Step& step : {recipe_step(600), bert_step(), resnet_step()}) {
        CAPTURE(step.name);
        step.run();
        const Idle scope;
        for (int i = 0; i < 2; ++i) step.run();
        const std::uint64_t before = cuda::counters().host_syncs;
        for (int i = 0; i < 3; ++i) step.run();
        CHECK(cuda::counters().host_syncs == before);
    }
}
