// Measures the host's time and heap allocations per op of an eager training step: the ops of the recipe's MLP
// and of a BERT layer on tiny tensors, forward and backward, optimizer steps, and whole steps. With --idle
// the kernels of the emulated device do nothing, so that only mezzo's own work is measured: call(), nodes,
// memory from the allocator, preparation of launches. tools/torch_host.py measures the same in PyTorch.
// Prints one JSON object per line.
#include <fmt/format.h>
#include <mezzo/mezzo.h>
#include <mezzo/models/bert.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "samples/program.h"
#include "tools/bench_device.h"
#include "tools/heap.h"
#include "tools/idle_device.h"

namespace mz = mezzo;

namespace {

struct Settings {
    mz::Device device;
    mz::Dtype dtype = mz::bfloat16;  // of autocast; float32: no autocast
    std::string only;                // part of the names of the cases to run
    int calls = 100, rounds = 21;
    bool idle = false;
};

struct Cost {
    double ns = 0, allocations = 0;  // per call
    double launches = 0;             // of the device, per call
};

double now_ns() {
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Returns the median over rounds of so many calls each. Waits for the device between rounds, outside of the
// measured time.
Cost cost_of(const Settings& s, int calls, const std::function<void()>& call) {
    std::vector<double> ns;
    Cost cost;
    for (int round = 0; round < s.rounds; ++round) {
        const long allocations = heap_allocations();
        const Asked before = asked();
        const double begin = now_ns();
        for (int i = 0; i < calls; ++i) call();
        ns.push_back((now_ns() - begin) / calls);
        cost.allocations = double(heap_allocations() - allocations) / calls;
        cost.launches = per_step(before, asked(), calls).launches;
        mz::synchronize(s.device);
    }
    std::nth_element(ns.begin(), ns.begin() + s.rounds / 2, ns.end());
    cost.ns = ns[std::size_t(s.rounds / 2)];
    return cost;
}

void print(const std::string& name, const Cost& cost) {
    fmt::print("{{\"case\": \"{}\", \"ns\": {:.0f}, \"allocations\": {:.2f}, \"launches\": {:.2f}}}\n", name,
               cost.ns, cost.allocations, cost.launches);
}

using Op = std::function<mz::Tensor(const mz::Tensors&)>;

struct OpCase {
    std::string name;
    std::vector<mz::Shape> shapes;  // of the inputs, float32 leaves that require a gradient
    Op op;
    bool low = false;  // the first input is the result of another op in autocast's dtype
};

mz::Tensors inputs_of(const Settings& s, const OpCase& c) {
    mz::Tensors inputs;
    for (const mz::Shape& shape : c.shapes) {
        const bool low = c.low && inputs.empty() && s.dtype != mz::float32;
        const mz::Tensor x = mz::randn(shape, {.device = s.device});
        inputs.push_back((low ? x.to(s.dtype) : x).set_requires_grad());
    }
    return inputs;
}

// Measures the forward pass of one op, and its backward pass as the difference between both passes and the
// forward pass.
void run_op(const Settings& s, const OpCase& c) {
    const mz::Tensors inputs = inputs_of(s, c);
    const mz::amp::Autocast scope(
        {.dtype = s.dtype == mz::float32 ? mz::bfloat16 : s.dtype, .enabled = s.dtype != mz::float32});
    const mz::Tensor first = c.op(inputs);
    const mz::Tensor gradient = mz::ones_like(first);
    const mz::BackwardOptions options{.gradient = gradient};
    const auto both = [&] {
        c.op(inputs).backward(options);
        for (const mz::Tensor& x : inputs) x.set_grad({});
    };
    for (int i = 0; i < 3; ++i) both();
    if (s.idle) set_device_idle(true);
    for (int i = 0; i < 3; ++i) both();
    const Cost forward = cost_of(s, s.calls, [&] { static_cast<void>(c.op(inputs)); });
    const Cost all = cost_of(s, s.calls, both);
    set_device_idle(false);
    print(c.name, forward);
    print(c.name + " backward",
          {all.ns - forward.ns, all.allocations - forward.allocations, all.launches - forward.launches});
}

constexpr std::int64_t rows = 16, width = 32, heads = 2;

std::vector<OpCase> op_cases() {
    using In = const mz::Tensors&;
    const mz::Shape x{rows, width}, w{width, width}, b{width}, images{2, heads, 8, width};
    return {
        {"add", {x, x}, [](In t) { return t[0] + t[1]; }},
        {"mul_scalar", {x}, [](In t) { return t[0] * 2.0; }},
        {"relu", {x}, [](In t) { return mz::relu(t[0]); }},
        {"gelu", {x}, [](In t) { return mz::gelu(t[0]); }},
        {"linear", {x, w, b}, [](In t) { return mz::linear(t[0], t[1], t[2]); }, true},
        {"linear_relu",
         {x, w, b},
         [](In t) { return mz::linear(t[0], t[1], t[2], mz::LinearActivation::relu); },
         true},
        {"linear_gelu",
         {x, w, b},
         [](In t) { return mz::linear(t[0], t[1], t[2], mz::LinearActivation::gelu); },
         true},
        {"matmul", {x, w}, [](In t) { return mz::matmul(t[0], t[1]); }, true},
        {"reshape", {x}, [](In t) { return t[0].reshape({rows * width}); }},
        {"transpose", {x}, [](In t) { return t[0].t(); }},
        {"cast", {x}, [](In t) { return t[0].to(mz::bfloat16); }},
        {"sum", {x}, [](In t) { return mz::sum(t[0]); }},
        {"softmax", {x}, [](In t) { return mz::softmax(t[0]); }},
        {"dropout", {x}, [](In t) { return mz::dropout(t[0], 0.1); }},
        {"layer_norm", {x, b, b}, [](In t) { return mz::layer_norm(t[0], t[1], t[2]); }},
        {"dropout_add_layer_norm",
         {x, b, x, b, b},
         [](In t) { return mz::dropout_add_layer_norm(t[0], t[1], t[2], t[3], t[4], {.p = 0.1}); },
         true},
        {"attention",
         {images, images, images},
         [](In t) { return mz::scaled_dot_product_attention(t[0], t[1], t[2]); },
         true},
        {"mse_loss", {x, x}, [](In t) { return mz::mse_loss(t[0], t[1]); }},
    };
}

struct StepCase {
    std::string name;
    std::function<std::function<void()>(const Settings&)> make;
};

// One training step: forward under autocast, backward, update.
template <class Optimizer, class Loss>
std::function<void()> training_step(const Settings& s, std::shared_ptr<Optimizer> optimizer, Loss loss_of) {
    auto scaler =
        std::make_shared<mz::amp::GradScaler>(mz::amp::GradScalerOptions{.enabled = s.dtype == mz::float16});
    return [=, &s] {
        mz::Tensor loss;
        {
            const mz::amp::Autocast scope({.dtype = s.dtype == mz::float32 ? mz::bfloat16 : s.dtype,
                                           .enabled = s.dtype != mz::float32});
            loss = loss_of();
        }
        scaler->scale(loss).backward();
        scaler->step(*optimizer);
        scaler->update();
        optimizer->zero_grad();
    };
}

// The recipe's network, three linear layers with ReLU between them.
std::function<void()> recipe_step(const Settings& s) {
    mz::nn::Sequential net;
    for (int i = 0; i < 3; ++i) {
        net.push_back(mz::nn::Linear(width, width));
        if (i < 2) net.push_back(mz::nn::ReLU());
    }
    net.to(s.device);
    const mz::Tensor x = mz::randn({rows, width}, {.device = s.device}),
                     y = mz::randn({rows, width}, {.device = s.device});
    auto optimizer = std::make_shared<mz::optim::SGD>(net.parameters(), mz::optim::SGDOptions{.lr = 1e-3});
    return training_step(s, optimizer, [=] { return mz::mse_loss(net(x), y); });
}

std::function<void()> bert_step(const Settings& s, std::int64_t layers) {
    const mz::nn::BertForSequenceClassification net({.vocab_size = 64,
                                                     .hidden_size = width,
                                                     .num_hidden_layers = layers,
                                                     .num_attention_heads = heads,
                                                     .intermediate_size = 2 * width,
                                                     .max_position_embeddings = 16});
    const_cast<mz::nn::BertForSequenceClassification&>(net).to(s.device);
    const mz::TensorOptions options{.dtype = mz::int64, .device = s.device};
    const mz::Tensor ids = mz::randint(1, 64, {2, 8}, options), labels = mz::randint(0, 2, {2}, options);
    auto optimizer = std::make_shared<mz::optim::AdamW>(net.parameters());
    return training_step(s, optimizer, [=] { return mz::cross_entropy(net(ids), labels); });
}

// Updates 200 parameters as in BERT-base, with gradients in the state that backward() leaves.
std::function<void()> adamw_step(const Settings& s) {
    mz::Tensors params;
    for (int i = 0; i < 200; ++i) {
        params.push_back(mz::randn({width}, {.device = s.device}).set_requires_grad());
        params.back().set_grad(mz::randn({width}, {.device = s.device}));
    }
    auto optimizer = std::make_shared<mz::optim::AdamW>(params);
    return [=] { optimizer->step(); };
}

// Allocates 4 MiB, which the allocator splits from a segment.
std::function<void()> memory_step(const Settings& s) {
    return [&s] { static_cast<void>(mz::empty({1 << 20}, {.device = s.device})); };
}

std::vector<StepCase> step_cases() {
    return {{"recipe step", recipe_step},
            {"BERT step, 1 layer", [](const Settings& s) { return bert_step(s, 1); }},
            {"BERT step, 12 layers", [](const Settings& s) { return bert_step(s, 12); }},
            {"AdamW of 200 parameters", adamw_step},
            {"memory of a large tensor", memory_step}};
}

void run_step(const Settings& s, const StepCase& c) {
    const std::function<void()> step = c.make(s);
    for (int i = 0; i < 3; ++i) step();
    if (s.idle) set_device_idle(true);
    for (int i = 0; i < 3; ++i) step();
    print(c.name, cost_of(s, 1 + s.calls / 20, step));
    set_device_idle(false);
}

int parse_and_run(int argc, char** argv) {
    Settings s;
    std::string device = "cpu", precision = "bfloat16";
    CLI::App app{"Measures the host's time and heap allocations per op."};
    app.option_defaults()->always_capture_default();
    app.add_option("--device", device, "cpu, cuda or cuda:N");
    app.add_option("--precision", precision, "of autocast; float32: none")
        ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
    app.add_option("--only", s.only, "cases with this in their name");
    app.add_option("--calls", s.calls, "per round")->transform(program::in_range(1, 100000));
    app.add_option("--rounds", s.rounds, "of which the median counts")
        ->transform(program::in_range(1, 100000));
    app.add_flag("--idle", s.idle, "the emulated device does nothing");
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    s.device = mz::parse_device(device.c_str());
    s.dtype = precision == "float32" ? mz::float32 : precision == "float16" ? mz::float16 : mz::bfloat16;
    mz::set_num_threads(1);
    mz::manual_seed(0);
    const auto wanted = [&](const std::string& name) { return name.find(s.only) != std::string::npos; };
    for (const OpCase& c : op_cases())
        if (wanted(c.name)) run_op(s, c);
    for (const StepCase& c : step_cases())
        if (wanted(c.name)) run_step(s, c);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("bench_host", [&] { return parse_and_run(argc, argv); });
}
