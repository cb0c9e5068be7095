// Float8 layers as ops: codes of weights, merged layers, and their names for observers.
#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "autograd/op_observer.h"
#include "mezzo/amp.h"
#include "mezzo/attention_ops.h"
#include "mezzo/autograd.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"
#include "mezzo/quantize.h"
#include "ops/gemm/fp8_weight.h"

using namespace mezzo;
using amp::Autocast;
using amp::Fp8;

namespace {

// The largest difference relative to the largest element.
double error(const Tensor& x, const Tensor& expected) {
    const Tensor exact = expected.detach().to(float64);
    return (max(abs(x.detach().to(float64) - exact)) / max(abs(exact))).item<double>();
}

// The result of a layer with copies of the tensors.
Tensor linear_of_copy(const nn::Linear& layer, const Tensor& x, const Fp8& fp8) {
    const Autocast scope({.dtype = bfloat16, .fp8 = fp8});
    return linear(x, layer.weight.detach().clone(), layer.bias.detach().clone());
}

}  // namespace

TEST_CASE("fp8: a merged linear layer has the gradients of its parts", "[amp]") {
    for (const Granularity granularity : {Granularity::tensor, Granularity::row})
        for (const bool create_graph : {false, true}) {
            CAPTURE(int(granularity), create_graph);
            manual_seed(12);
            const Tensors in{randn({2, 16, 48}).set_requires_grad(), randn({16, 48}).set_requires_grad(),
                             randn({32, 48}).set_requires_grad(), randn({32}).set_requires_grad()};
            const Tensor dy = randn({2, 16, 48}).to(bfloat16);
            const auto gradients = [&](bool merged) {
                Tensor y;
                {
                    const Autocast scope(
                        {.dtype = bfloat16, .fp8 = Fp8{.granularity = granularity, .least_size = 16}});
                    y = merged ? merged_linear(in[0], {in[1], in[2]}, {{}, in[3]})
                               : cat({linear(in[0], in[1]), linear(in[0], in[2], in[3])}, -1);
                }
                return autograd::grad({y}, in, {.grad_outputs = {dy}, .create_graph = create_graph});
            };
            const Tensors merged = gradients(true), parts = gradients(false);
            // The parts' gradients of x are rounded to 16 bit before they are added.
            CHECK(error(merged[0], parts[0]) < (create_graph ? 1e-6 : 0x1p-7));
            for (std::size_t i = 1; i < in.size(); ++i) CHECK(equal(merged[i], parts[i]));
        }
}

TEST_CASE("fp8: codes of a weight are made once for each of its changes", "[amp]") {
    const Fp8 fp8{.least_size = 16};
    nn::Linear layer(16, 16);
    optim::SGD optimizer(layer.parameters(), {.lr = 0.5});
    const Tensor x = randn({16, 16});
    const auto run = [&] {
        const Autocast scope({.dtype = bfloat16, .fp8 = fp8});
        return layer(x);
    };
    int made = 0;
    const auto kept = [&](std::uint64_t version, const Tensor& made_of) {
        return Fp8Weight::of(layer.weight)
            ->codes({.version = version}, Wanted::matrix, 0,
                    [&] {
                        ++made;
                        return Fp8Codes{{quantize(made_of), {}}};
                    })
            .matrix;
    };
    const auto codes = [&] { return kept(layer.weight.version(), layer.weight.detach().to(bfloat16)); };
    const Tensor y = run();
    const Tensor first = codes().codes;
    CHECK(made == 0);
    (void)run();
    y.sum().backward();
    CHECK(codes().codes.impl() == first.impl());
    CHECK(made == 0);
    optimizer.step();
    CHECK(equal(run(), linear_of_copy(layer, x, fp8)));
    CHECK(codes().codes.impl() != first.impl());
    CHECK(made == 0);
    {
        const NoGrad plain;
        layer.weight.mul_(2);
    }
    CHECK(equal(run(), linear_of_copy(layer, x, fp8)));
    {
        const Autocast scope({.dtype = bfloat16, .cache = false, .fp8 = fp8});
        const NoGrad plain;
        layer.weight.mul_(2);
        (void)layer(x);  // makes codes that it does not keep
    }
    (void)codes();
    CHECK(std::exchange(made, 0) == 1);
    const Tensor held = codes().codes;
    const auto users = held->refs.load();
    layer.to(float64);
    CHECK(held->refs == users - 1);  // the weight has dropped its codes
    {
        const NoGrad plain;
        layer.weight.mul_(2);
    }
    layer.to(float32);
    CHECK(equal(run(), linear_of_copy(layer, x, fp8)));
    {
        const Autocast scope(
            {.dtype = bfloat16, .fp8 = Fp8{.granularity = Granularity::row, .least_size = 16}});
        (void)layer(x);
    }
    (void)codes();
    CHECK(made == 1);  // under another key
    (void)kept(0, ones({16, 16}));
    CHECK(made == 2);  // an older version replaces nothing
    (void)codes();
    CHECK(made == 2);
}

TEST_CASE("fp8: several threads share the codes of a weight", "[amp]") {
    for (const amp::Recipe recipe : {amp::Recipe::current, amp::Recipe::delayed}) {
        CAPTURE(int(recipe));
        const Fp8 fp8{.recipe = recipe, .least_size = 16};
        nn::Linear layer(16, 16);
        const Tensor x = randn({16, 16});
        for (int change = 0; change < 8; ++change) {
            {
                const NoGrad plain;
                layer.weight.mul_(1.5);
            }
            Tensors results(4);
            std::vector<std::thread> threads;
            for (Tensor& y : results)
                threads.emplace_back([&] {
                    const Autocast scope({.dtype = bfloat16, .fp8 = fp8});
                    y = layer(x).detach();
                });
            for (std::thread& thread : threads) thread.join();
            const Tensor expected = linear_of_copy(layer, x, {.least_size = 16});
            for (const Tensor& y : results) CHECK(equal(y, expected));
        }
    }
}

TEST_CASE("fp8: the gradient reads the weight of the forward pass", "[amp]") {
    for (const Granularity granularity : {Granularity::tensor, Granularity::row}) {
        const auto gradient = [&](bool changes) {
            manual_seed(13);
            nn::Linear layer(16, 16);
            const Tensor x = randn({16, 16}).set_requires_grad();
            Tensor y, other;
            {
                const Autocast scope(
                    {.dtype = bfloat16, .fp8 = Fp8{.granularity = granularity, .least_size = 16}});
                y = layer(x);
                if (changes) {
                    {
                        const NoGrad plain;
                        layer.weight.mul_(3);
                    }
                    other = layer(x);
                }
            }
            square(y.to(float32)).sum().backward();
            return x.grad();
        };
        CHECK(equal(gradient(true), gradient(false)));
    }
}

TEST_CASE("fp8: observers and graphs name a layer as in 16 bit", "[amp]") {
    struct Names final : OpObserver {
        std::vector<std::string> forward, backward;
        void called(const AnyOp& op, In given, In results) override {
            forward.push_back(op.name() + std::string(" ") + std::to_string(given.size()) + " " +
                              std::to_string(results.size()));
        }
        void visiting(const Node& node) override { backward.emplace_back(node.op->name()); }
    };
    const auto names = [](const std::optional<Fp8>& fp8) {
        const nn::Linear a(16, 16), b(16, 16), c(16, 16);
        const Tensor x = randn({16, 16}).to(bfloat16);
        Names observer;
        Tensor y;
        {
            const Autocast scope({.dtype = bfloat16, .fp8 = fp8});
            y = linear(x, a.weight, a.bias, LinearActivation::relu);
            y = linear(y, b.weight, b.bias, LinearActivation::gelu);
            y = merged_linear(b(y), {b.weight, c.weight}, {b.bias, c.bias});
        }
        y.backward({.gradient = ones_like(y.detach())});
        std::erase_if(observer.forward, [](const std::string& name) { return name.starts_with("cast "); });
        return std::pair(observer.forward, observer.backward);
    };
    const auto [forward, backward] = names(Fp8{.least_size = 16});
    CHECK(forward ==
          std::vector<std::string>{"linear_relu 3 1", "linear_gelu 3 1", "linear 3 1", "merged_linear 5 1"});
    CHECK(backward == std::vector<std::string>{"merged_linear", "linear", "linear_gelu", "linear_relu"});
    CHECK(names({}).second == backward);
}

TEST_CASE("fp8: ops after a layer send it gradients of its result", "[amp]") {
    const auto gradients = [](bool fused) {
        manual_seed(14);
        const nn::Linear a(16, 16), b(16, 16);
        nn::Linear head(16, 16);
        head.set_fp8(false);
        const Tensor x = randn({16, 16}).to(bfloat16), target = randn({16, 16});
        Tensor y, z;
        {
            const Autocast scope({.dtype = bfloat16, .fp8 = Fp8{.least_size = 16}});
            y = linear(x, a.weight, a.bias, LinearActivation::relu);
            if (!fused) y = y * 1.0;
            y = head(y);
            z = b(x);
            if (!fused) z = z * 1.0;
        }
        (mse_loss(z, target.to(bfloat16)).to(float32) + y.to(float32).sum()).backward();
        Tensors result;
        for (const Tensor& p : {a.weight, a.bias, b.weight, b.bias}) result.push_back(p.grad());
        return result;
    };
    const Tensors fused = gradients(true), apart = gradients(false);
    for (std::size_t i = 0; i < fused.size(); ++i) CHECK(error(fused[i], apart[i]) < 1e-6);
}
