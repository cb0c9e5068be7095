// Gradient accumulation fusion at a residual: the op whose gradient comes last adds it to the pending one.
#include <catch2/catch.hpp>

#include "autograd/extra.h"
#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

// The identity, by a node that takes the pending gradient of its input, if there is one, and returns the sum.
struct Taking {
    static constexpr const char* name = "test: taking";
    bool alone = false;
};
std::vector<bool> found;
const Op<Taking> taking_op{{.saves = save_none},
                           [](const Node& c, const Taking& at, const Tensors& g) -> Tensors {
                               const Tensor waiting = c.take_accumulated(0, at.alone);
                               found.push_back(waiting.defined());
                               return {waiting.defined() ? waiting + g[0] : g[0]};
                           }};
Tensor taking(const Tensor& x, bool alone) {
    const Tensor y = alias(x);
    if (grad_enabled()) record(taking_op, Tensors{x}, AttributesRef(Taking{alone}), Out(&y, 1));
    return y;
}

Tensor values(const Shape& shape, int seed, Dtype dtype = float32, Device device = cpu_device) {
    return tensor_of(random_values(shape.numel(), std::uint64_t(seed), Domain::any), shape, dtype, device);
}

using Found = std::vector<bool>;
using Values = std::vector<double>;

}  // namespace

TEST_CASE("waiting gradient: there is one where another consumer came before", "[autograd]") {
    const Tensor x = values({2, 3}, 1).set_requires_grad(), h = relu(x);
    const Tensor first = taking(h, true), second = h * 2.0, third = taking(h, true);
    found.clear();
    sum(first + second + third).backward();  // newest first: third, second, first
    CHECK(found == Found{false, true});
    const Tensor expected = x.grad();
    Values by_hand = doubles(x);
    for (double& v : by_hand) v = v > 0 ? 4 : 0;
    CHECK(doubles(expected) == by_hand);
}

TEST_CASE("waiting gradient: others may hold it, unless it is asked for alone", "[autograd]") {
    for (bool alone : {false, true}) {
        CAPTURE(alone);
        const Tensor x = values({2, 3}, 1).set_requires_grad(), h = relu(x);
        const Tensor first = taking(h, alone), second = taking(h, true);  // passes its gradient on as it is
        const Tensor g = ones({2, 3}), other = g * 4.0;
        found.clear();
        autograd::backward({first, second}, {.grad_outputs = {other, g}});
        CHECK(found == Found{false, !alone});
        CHECK(doubles(g) == Values(6, 1));
        Values by_hand = doubles(x);
        for (double& v : by_hand) v = v > 0 ? 5 : 0;
        CHECK(doubles(x.grad()) == by_hand);
    }
}

TEST_CASE("waiting gradient: none in a recorded backward and none for leaves", "[autograd]") {
    const Tensor x = values({2, 3}, 1).set_requires_grad(), h = relu(x);
    const Tensor first = taking(h, false), y = sum(first + h * 2.0);
    found.clear();
    (void)autograd::grad({y}, {x}, {.create_graph = true});
    CHECK(found == Found{false});
    const Tensor of_leaf = taking(x, false);
    sum(of_leaf + x * 2.0).backward();
    CHECK(found == Found{false, false});
}

TEST_CASE("waiting gradient: hooks, grad() of the place where gradients meet, and two backwards",
          "[autograd]") {
    const Tensor x = values({4, 3}, 1).set_requires_grad(), w = values({3, 3}, 2).set_requires_grad();
    const Tensor h = x * 2.0;
    const Tensor product = linear(h, w), square = h * h;  // in this order: the product's gradient is the last
    const Tensor y = sum(product) + sum(square);
    Tensor seen;
    autograd::add_hook(h, [&](const Tensor& g) {
        seen = g.clone();
        return Tensor();
    });
    const Tensor of_h = autograd::grad({y}, {h}, {.retain_graph = true})[0];
    Values by_hand = doubles(h);
    const Values weight = doubles(w);
    for (std::size_t i = 0; i < by_hand.size(); ++i)
        by_hand[i] = 2 * by_hand[i] + weight[i % 3] + weight[3 + i % 3] + weight[6 + i % 3];
    CHECK(difference(doubles(of_h), by_hand, tolerance(float32)) == "");
    CHECK(doubles(seen) == doubles(of_h));
    autograd::backward({y}, {.retain_graph = true});
    y.backward();
    for (double& v : by_hand) v *= 4;
    CHECK(difference(doubles(x.grad()), by_hand, tolerance(float32)) == "");
}

TEST_CASE("residual gradients: products and norms add them", "[autograd][norm]") {
    using Branch = Tensor (*)(const Tensor&, const Tensor&);
    const struct {
        const char* what;
        Branch branch;
    } branches[] = {
        {"linear", [](const Tensor& h, const Tensor& w) { return linear(h, w); }},
        {"linear with GELU",
         [](const Tensor& h, const Tensor& w) { return linear(h, w, {}, LinearActivation::gelu); }},
        {"layer_norm", [](const Tensor& h, const Tensor& w) { return layer_norm(h, w[0], w[1]); }},
        {"rms_norm", [](const Tensor& h, const Tensor& w) { return rms_norm(h, w[0]); }},
    };
    for (Device device : devices())
        for (const auto& one : branches)
            for (std::int64_t cols : {12, 13, 768})
                for (Dtype scope : {float32, bfloat16}) {
                    CAPTURE(name(device.type()), one.what, cols, name(scope));
                    const Tensor x = values({2, 3, cols}, 1, float32, device).set_requires_grad();
                    const Tensor w = (values({cols, cols}, 2, float32, device) * 0.1).set_requires_grad();
                    const Tensor coefficients = values({2, 3, cols}, 3, float32, device);
                    // Backward visits the op that was recorded first last.
                    const auto gradients = [&](bool branch_last) {
                        const amp::Autocast open(
                            {.dtype = is_16bit(scope) ? scope : float16, .enabled = is_16bit(scope)});
                        const Tensor h = x * 2.0;
                        Tensor way, y;
                        if (branch_last) y = one.branch(h, w);
                        way = h * coefficients;
                        if (!branch_last) y = one.branch(h, w);
                        return autograd::grad({sum(y) + sum(way)}, {x, w});
                    };
                    const Tensors apart = gradients(false), fused = gradients(true);
                    CHECK(difference(doubles(fused[0]), doubles(apart[0]), {1e-5, 1e-4}) == "");
                    CHECK(doubles(fused[1]) == doubles(apart[1]));
                }
}

TEST_CASE("residual gradients: a product of a result with itself", "[autograd]") {
    for (Device device : devices()) {
        const Tensor x = values({6, 6}, 1, float32, device).set_requires_grad(), h = x * 1.0;
        const Tensor y = matmul(h, h), way = h * 3.0;
        const Tensor g = values({6, 6}, 2, float32, device);
        autograd::backward({y, way}, {.grad_outputs = {g, g}});
        const Tensor plain = x.detach();
        const Tensor expected = matmul(g, plain.t()) + matmul(plain.t(), g) + g * 3.0;
        CHECK(difference(doubles(x.grad()), doubles(expected), {1e-5, 1e-5}) == "");
    }
}

TEST_CASE("residual gradients: one tensor that is the gradient of two is not written to", "[autograd]") {
    for (Device device : devices()) {
        // y = h + h W^T sends its gradient to both operands; the product's backward finds the other part
        // pending.
        const Tensor x = values({4, 6}, 1, float32, device).set_requires_grad();
        const Tensor w = values({6, 6}, 2, float32, device).set_requires_grad(), h = x * 1.0;
        const Tensor g = values({4, 6}, 3, float32, device);
        autograd::backward({linear(h, w) + h}, {.grad_outputs = {g}});
        CHECK(doubles(g) == doubles(values({4, 6}, 3)));
        const Tensor expected = matmul(g, w.detach()) + g;
        CHECK(difference(doubles(x.grad()), doubles(expected), {1e-5, 1e-5}) == "");
        CHECK(difference(doubles(w.grad()), doubles(matmul(g.t(), h.detach())), {1e-5, 1e-5}) == "");
    }
}

TEST_CASE("residual gradients: a norm's 16-bit sum is rounded once", "[autograd][norm]") {
    for (Device device : devices())
        for (std::int64_t cols : {16, 15, 768}) {
            CAPTURE(name(device.type()), cols);
            const Tensor x = values({5, cols}, 1, bfloat16, device).set_requires_grad();
            const Tensor w = values({cols}, 2, float32, device);
            const Tensor coefficients = values({5, cols}, 3, bfloat16, device);
            const Tensor h = x * 1.0, y = layer_norm(h, w), way = h * coefficients;
            const Tensor g = values({5, cols}, 4, bfloat16, device);
            autograd::backward({y, way}, {.grad_outputs = {g, ones_like(way)}});
            const Tensor exact = x.detach().to(float64).set_requires_grad();
            autograd::backward({layer_norm(exact, w.to(float64))}, {.grad_outputs = {g.to(float64)}});
            Values sum = doubles(exact.grad() + coefficients.to(float64));
            const Tensor rounded = tensor_of(sum, {5, cols}, bfloat16);
            // Float32 sums may round to the other side of a tie, which is rare.
            const Values actual = doubles(x.grad()), once = doubles(rounded);
            std::int64_t differ = 0;
            for (std::size_t i = 0; i < once.size(); ++i) differ += actual[i] != once[i];
            CHECK(differ <= 5 * cols / 50 + 1);
        }
}
