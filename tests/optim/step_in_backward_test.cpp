// Optimizer::step_in_backward(): updates during the backward pass, which release gradients.
#include <algorithm>
#include <catch2/catch.hpp>

#include "core/memory/flat_view.h"
#include "core/tensor_impl.h"
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

void step_once(optim::Optimizer& optimizer, const Tensor& loss, bool released) {
    if (released) return optimizer.step_in_backward(loss);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
}

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
        step_once(optimizer, loss, released);
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

TEST_CASE("step in backward: a leaf with a hook that only a checkpointed segment reaches", "[optim]") {
    std::vector<std::vector<double>> seen[2];
    for (const bool released : {false, true}) {
        const Tensor w = ones({2}).set_requires_grad(), v = ones({2}).set_requires_grad();
        optim::SGD optimizer({w, v}, {.lr = 0.5});
        autograd::add_hook(w, [](const Tensor& gradient) { return gradient * 2.0; });
        for (int step = 0; step < 2; ++step) {
            const Tensor y =
                autograd::checkpoint([&](const Tensors& in) { return Tensors{in[0] * w}; }, {v * 1.0})[0];
            step_once(optimizer, sum(y), released);
            CHECK_FALSE(w.grad().defined());
        }
        seen[released] = {test::doubles(w.detach()), test::doubles(v.detach())};
    }
    CHECK(seen[0] == seen[1]);
}

TEST_CASE("step in backward: older nodes read a parameter's memory without an edge to it", "[optim]") {
    enum class Reader { detached, slices, function };
    for (const Reader reader : {Reader::detached, Reader::slices, Reader::function}) {
        CAPTURE(int(reader));
        std::vector<std::vector<double>> seen[2];
        for (const bool released : {false, true}) {
            const Tensor flat = ones({8});
            const auto leaf = [&](std::int64_t begin) {
                const Tensor own = reader == Reader::slices ? flat.slice(0, begin, begin + 4) : ones({4});
                return own.detach().set_requires_grad();
            };
            const Tensor u = leaf(0), w = leaf(4);
            optim::SGD optimizer({w, u}, {.lr = 0.5});
            const auto product = [&] {
                if (reader == Reader::slices) return u * full({4}, 2.0);
                if (reader == Reader::detached) return u * w.detach();
                return autograd::apply_function(
                    {.name = "product"},
                    [&](autograd::Context& context, const Tensors& in) {
                        context.saved = {w.detach()};
                        return Tensors{in[0] * context.saved[0]};
                    },
                    [](autograd::Context& context, const Tensors& g) {
                        return Tensors{g[0] * context.saved[0]};
                    },
                    {u})[0];
            };
            step_once(optimizer, sum(square(product()) * w), released);
            seen[released] = {test::doubles(u.detach()), test::doubles(w.detach())};
        }
        CHECK(seen[0] == seen[1]);
    }
}

TEST_CASE("step in backward: 16-bit copies of merged weights lie behind each other", "[optim]") {
    for (const Device device : test::devices()) {
        nn::SwiGLU net(8, 16, {.bias = false});
        net.to(device);
        optim::AdamW optimizer(net.parameters());
        for (int step = 0; step < 3; ++step) {
            Tensor loss;
            {
                const amp::Autocast scope({.device = device.type(), .dtype = bfloat16});
                loss = sum(square(net(ones({2, 8}, {.device = device})).to(float32)));
            }
            optimizer.step_in_backward(loss);
            CHECK(directly_behind(net.gate_proj.weight->grad_meta->copy16.value,
                                  net.up_proj.weight->grad_meta->copy16.value));
        }
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
                step_once(optimizer, sum(y), released);
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

TEST_CASE("step in backward: parameters that an update would refuse are found before the pass", "[optim]") {
    const Tensor w = ones({3}).set_requires_grad();
    const Tensor transposed = ones({2, 3}).transpose(0, 1).detach().set_requires_grad();
    optim::SGD strided({w, transposed}, {.lr = 0.5});
    CHECK_THROWS_WITH(strided.step_in_backward(sum(transposed) + sum(w)),
                      Catch::Contains("SGD.step_in_backward: parameter 1 is not contiguous"));
    nn::Linear half(2, 2);
    optim::SGD split({half.weight, w}, {.lr = 0.5});
    split.use_master_weights(optim::MasterWeights::split);
    half.to(float16);
    CHECK_THROWS_WITH(split.step_in_backward(sum(half.weight.to(float32)) + sum(w)),
                      Catch::Contains("float16 parameter, parameter 0, cannot be split"));
    if (test::devices().size() > 1) {
        const Tensor far = ones({3}, {.device = test::devices().back()}).set_requires_grad();
        optim::SGD apart({w, far}, {.lr = 0.5});
        CHECK_THROWS_WITH(apart.step_in_backward(sum(far).to(cpu_device) + sum(w)),
                          Catch::Contains("SGD.step_in_backward: parameter 1 is on "));
    }
    CHECK(test::doubles(w.detach()) == std::vector<double>{1, 1, 1});
    CHECK_FALSE(w.grad().defined());
}

TEST_CASE("step in backward: inside of a pass or of a captured step it is refused", "[optim]") {
    const Tensor w = ones({2}).set_requires_grad(), v = ones({2}).set_requires_grad();
    optim::SGD outer({w}), inner({v});
    const int hook = autograd::add_hook(w, [&](const Tensor& gradient) {
        const EnableGrad recorded;
        CHECK_THROWS_WITH(inner.step_in_backward(sum(v)),
                          Catch::Contains("SGD.step_in_backward: it runs a backward pass of its own"));
        return gradient;
    });
    outer.step_in_backward(sum(w));
    autograd::remove_hook(w, hook);
    CHECK(inner.applied_steps() == 0);
    if (test::no_device()) return;
    const Device gpu{DeviceType::cuda};
    const Tensor x = ones({2}, {.device = gpu}).set_requires_grad();
    optim::SGD optimizer({x});
    cuda::CapturedStep captured(
        [&](const Tensors&) -> Tensors {
            optimizer.step_in_backward(sum(x));
            return {};
        },
        {.warmup = 1, .device = gpu});
    captured({});  // runs eagerly
    CHECK_THROWS_WITH(captured({}), Catch::Contains("SGD.step_in_backward"));
}
