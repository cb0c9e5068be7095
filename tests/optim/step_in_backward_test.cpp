// Optimizer::step_in_backward(): updates during the backward pass, which release gradients.
#include <algorithm>
#include <catch2/catch.hpp>

#include "mezzo/capture.h"
#include "mezzo/mezzo.h"
#include "mezzo/optim_in_ops.h"
#include "optim/optimizer.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

enum class Graph { plain, shared, checkpointed, hooked };

struct Model {
    nn::Linear first{8, 8}, second{8, 8}, unused{8, 8};
    void to(Dtype dtype, Device device) {
        for (nn::Linear* layer : {&first, &second, &unused}) {
            layer->to(dtype);
            layer->to(device);
        }
    }
    Tensors parameters() const {
        return {first.weight, first.bias, second.weight, second.bias, unused.weight, unused.bias};
    }
    Tensor loss(Graph graph, int step) const {
        const Tensor x = test::tensor_of(test::random_values(32, std::uint64_t(step), test::Domain::any),
                                         {4, 8}, first.weight.dtype(), first.weight.device());
        Tensor y = relu(first(x));
        if (graph == Graph::checkpointed)
            y = autograd::checkpoint([this](const Tensors& in) { return Tensors{relu(second(in[0]))}; },
                                     {y})[0];
        y = relu(second(y));
        if (graph == Graph::shared) y = first(second(y));
        return sum(square(y.to(float32)));
    }
};

std::vector<std::vector<double>> train(Graph graph, Dtype dtype, Device device, bool released,
                                       bool autocast) {
    manual_seed(6);
    Model model;
    model.to(dtype, device);
    const Tensors params = model.parameters();
    optim::AdamW optimizer(std::vector<optim::AdamWGroup>{
        {.params = {params[0], params[1]}, .options = {.lr = 0.01}},
        {.params = {params.begin() + 2, params.end()}, .options = {.lr = 0.02, .weight_decay = 0.1}}});
    if (dtype == bfloat16) optimizer.use_master_weights(optim::MasterWeights::split);
    if (graph == Graph::hooked)
        autograd::add_hook(params[2], [](const Tensor& gradient) { return gradient * 2.0; });
    for (int step = 0; step < 4; ++step) {
        Tensor loss;
        {
            const amp::Autocast scope({.device = device.type(), .dtype = bfloat16, .enabled = autocast});
            loss = model.loss(graph, step);
        }
        if (released) {
            optimizer.step_in_backward(loss);
        } else {
            loss.backward();
            optimizer.step();
            optimizer.zero_grad();
        }
        for (const Tensor& p : params) CHECK_FALSE(p.grad().defined());
    }
    CHECK(optimizer.applied_steps() == 4);
    std::vector<std::vector<double>> result;
    for (const Tensor& p : params) result.push_back(test::doubles(p.detach()));
    for (const auto& [name, value] : optimizer.state_dict())
        result.push_back(value.to(float64).to_vector<double>());
    return result;
}

}  // namespace

TEST_CASE("step in backward: the bits of backward and step", "[optim]") {
    for (const Device device : test::devices())
        for (const Graph graph : {Graph::plain, Graph::shared, Graph::checkpointed, Graph::hooked})
            for (const Dtype dtype : {float32, bfloat16, float64})
                for (const bool autocast : {false, true}) {
                    if (autocast && dtype != float32) continue;
                    CAPTURE(int(device.type()), int(graph), name(dtype), autocast);
                    CHECK((train(graph, dtype, device, true, autocast) ==
                           train(graph, dtype, device, false, autocast)));
                }
}

TEST_CASE("step in backward: gradients are there one by one", "[optim]") {
    for (const Device device : test::devices()) {
        constexpr std::int64_t width = 128, layers = 12, weight = width * width * 4;
        std::size_t peaks[2];
        for (const bool released : {false, true}) {
            Tensors weights;
            for (std::int64_t i = 0; i < layers; ++i)
                weights.push_back(full({width, width}, 0.01, {.device = device}).set_requires_grad());
            optim::SGD optimizer(weights, {.lr = 0.1});
            for (int step = 0; step < 2; ++step) {
                const std::size_t before = memory_stats(device).allocated;
                reset_peak(device);
                Tensor y = ones({1, width}, {.device = device});
                for (const Tensor& w : weights) y = matmul(y, w);
                if (released) {
                    optimizer.step_in_backward(sum(y));
                } else {
                    sum(y).backward();
                    optimizer.step();
                    optimizer.zero_grad();
                }
                peaks[released] = memory_stats(device).max_allocated - before;
            }
        }
        CAPTURE(peaks[0], peaks[1]);
        CHECK(peaks[0] >= std::size_t(layers * weight));
        CHECK(peaks[1] < std::size_t(4 * weight));
    }
}

TEST_CASE("step in backward: what needs all gradients is refused", "[optim]") {
    const Tensor w = ones({2}).set_requires_grad(), other = ones({2}).set_requires_grad();
    const auto loss = [&] { return sum(w * other); };
    optim::SGD optimizer({w}, {.lr = 0.5});
    loss().backward();
    CHECK_THROWS_WITH(optimizer.step_in_backward(loss()), Catch::Contains("has a gradient already"));
    optimizer.zero_grad();
    other.set_grad({});
    amp::GradScaler scaler({.init_scale = 4});
    CHECK_THROWS_WITH(optimizer.step_in_backward(scaler.scale(loss())),
                      Catch::Contains("the loss is scaled"));
    CHECK(test::doubles(w.detach()) == std::vector<double>{1, 1});
    optimizer.zero_grad();
    other.set_grad({});
    optim::LAMB lamb({w});
    CHECK_THROWS_WITH(lamb.step_in_backward(loss()), Catch::Contains("reads all gradients at once"));
    CHECK(optimizer.applied_steps() == 0);
    optimizer.step_in_backward(loss());
    CHECK(test::doubles(w.detach()) == std::vector<double>{0.5, 0.5});
    CHECK(test::doubles(other.grad()) == std::vector<double>{1, 1});  // not the optimizer's, so it stays
    CHECK(optimizer.applied_steps() == 1);
}
