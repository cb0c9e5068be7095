// The autograd engine: order, freeing, hooks, user-defined functions, checkpoints, second derivatives, and
// lifetimes.
#include <catch2/catch.hpp>
#include <thread>

#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

using namespace mezzo;

namespace {

Tensor leaf(std::initializer_list<float> values) { return Tensor::from(values).set_requires_grad(); }
std::vector<float> floats(const Tensor& x) { return x.to_vector<float>(); }

// Fails unless the block leaves as many tensors, nodes and storages alive as it found.
template <class F> void leaves_nothing(F block) {
    const LiveObjects before = live_objects();
    block();
    const LiveObjects after = live_objects();
    CHECK(after.tensors == before.tensors);
    CHECK(after.nodes == before.nodes);
    CHECK(after.storages == before.storages);
}

}  // namespace

TEST_CASE("backward adds to the leaves", "[autograd]") {
    leaves_nothing([] {
        const Tensor a = leaf({1, 2, 3}), b = leaf({4, 5, 6});
        sum(a * b + a).backward();
        CHECK(floats(a.grad()) == std::vector<float>{5, 6, 7});
        CHECK(floats(b.grad()) == std::vector<float>{1, 2, 3});
        sum(a * b).backward();
        CHECK(floats(a.grad()) == std::vector<float>{9, 11, 13});
        CHECK(a.is_leaf());
        CHECK_FALSE((a * b).is_leaf());
    });
}

TEST_CASE("two leaves never share one gradient tensor", "[autograd]") {
    const Tensor a = leaf({1, 2}), b = leaf({3, 4});
    sum(a + b).backward();
    {
        NoGrad plain;
        a.grad().mul_(10);
    }
    CHECK(floats(a.grad()) == std::vector<float>{10, 10});
    CHECK(floats(b.grad()) == std::vector<float>{1, 1});
}

TEST_CASE("the seed given to backward is not written to", "[autograd]") {
    const Tensor a = leaf({1, 2}), seed = Tensor::from({1, 1});
    for (int i = 0; i < 3; ++i) (a * 1.0).backward({.gradient = seed});
    CHECK(floats(seed) == std::vector<float>{1, 1});
    CHECK(floats(a.grad()) == std::vector<float>{3, 3});
}

TEST_CASE("a tensor used many times gets the sum of its gradients", "[autograd]") {
    const Tensor x = leaf({2});
    const Tensor y = square(x);
    sum(y * y + y * x + y).backward();  // x^4 + x^3 + x^2
    CHECK(floats(x.grad())[0] == Approx(4 * 8 + 3 * 4 + 2 * 2));
}

TEST_CASE("grad does not touch grad() and follows only what was asked", "[autograd]") {
    leaves_nothing([] {
        const Tensor x = leaf({1, 2}), w = leaf({3, 4});
        const Tensor h = x * w, y = sum(square(h));
        const Tensors g = autograd::grad({y}, {x, h});
        CHECK(floats(g[0]) == std::vector<float>{18, 64});
        CHECK(floats(g[1]) == std::vector<float>{6, 16});
        CHECK_FALSE(x.grad().defined());
        CHECK_FALSE(w.grad().defined());
    });
}

TEST_CASE("grad reports inputs that no output depends on", "[autograd]") {
    const Tensor x = leaf({1}), unused = leaf({1});
    CHECK_THROWS_WITH(autograd::grad({sum(x)}, {unused}), Catch::Contains("no output depends on input 0"));
    const Tensors g = autograd::grad({sum(x)}, {x, unused}, {.allow_unused = true});
    CHECK(g[0].defined());
    CHECK_FALSE(g[1].defined());
    CHECK_THROWS_WITH(autograd::grad({sum(x)}, {Tensor::from({1})}),
                      Catch::Contains("does not require grad"));
}

TEST_CASE("the same input may be asked for twice", "[autograd]") {
    const Tensor x = leaf({3});
    const Tensors g = autograd::grad({sum(square(x))}, {x, x});
    CHECK(floats(g[0])[0] == 6);
    CHECK(floats(g[1])[0] == 6);
}

TEST_CASE("second and third derivatives", "[autograd]") {
    leaves_nothing([] {
        const Tensor x = leaf({0.5});
        const Tensor y = sum(exp(x * x));
        const Tensor d1 = autograd::grad({y}, {x}, {.create_graph = true})[0];
        const Tensor d2 = autograd::grad({sum(d1)}, {x}, {.create_graph = true})[0];
        const Tensor d3 = autograd::grad({sum(d2)}, {x})[0];
        const double e = std::exp(0.25);
        CHECK(d1.item<double>() == Approx(2 * 0.5 * e));
        CHECK(d2.item<double>() == Approx((2 + 4 * 0.25) * e));
        CHECK(d3.item<double>() == Approx((12 * 0.5 + 8 * 0.125) * e));
    });
}

TEST_CASE("a gradient without create_graph has no history", "[autograd]") {
    const Tensor x = leaf({2});
    const Tensor g = autograd::grad({sum(x * x * x)}, {x})[0];
    CHECK_FALSE(g.requires_grad());
}

TEST_CASE("backward frees the graph unless it is retained", "[autograd]") {
    const Tensor x = leaf({2});
    Tensor y = sum(square(x));
    y.backward({.retain_graph = true});
    y.backward();
    CHECK(x.grad().item<float>() == 8);
    CHECK_THROWS_WITH(y.backward(), Catch::Contains("retain_graph"));
    CHECK(x.grad().item<float>() == 8);
}

TEST_CASE("NoGrad and EnableGrad nest and survive exceptions", "[autograd]") {
    const Tensor x = leaf({2});
    {
        NoGrad plain;
        CHECK_FALSE((x * x).requires_grad());
        {
            EnableGrad on;
            CHECK((x * x).requires_grad());
        }
        CHECK_FALSE(grad_enabled());
    }
    try {
        NoGrad plain;
        throw 1;
    } catch (int) {
    }
    CHECK(grad_enabled());
    bool other_thread = false;
    {
        NoGrad plain;
        std::thread([&] { other_thread = grad_enabled(); }).join();
    }
    CHECK(other_thread);
}

TEST_CASE("errors of backward leave everything usable", "[autograd]") {
    const Tensor x = leaf({1, 2});
    CHECK_THROWS_WITH((x * x).backward(), Catch::Contains("one-element"));
    CHECK_THROWS_WITH(Tensor::from({1.0f}).backward(), Catch::Contains("does not require grad"));
    CHECK_THROWS_WITH((x * x).backward({.gradient = Tensor::from({1, 2, 3})}), Catch::Contains("[3]"));
    CHECK_THROWS_WITH(autograd::grad({Tensor()}, {x}), Catch::StartsWith("grad: output 0 does not require"));
    CHECK_THROWS_WITH(autograd::grad({x * x}, {x}), Catch::StartsWith("grad: the output has shape [2]"));
    CHECK_THROWS_WITH(autograd::grad({x * x}, {x}, {.grad_outputs = {Tensor::from({1, 2, 3})}}),
                      Catch::StartsWith("grad: the gradient has shape [3]"));
    CHECK_THROWS_WITH(Tensor().backward(), Catch::StartsWith("backward: output 0 does not require"));
    sum(x * x).backward();
    CHECK(floats(x.grad()) == std::vector<float>{2, 4});
}

TEST_CASE("an in-place write to a kept value is noticed", "[autograd]") {
    const Tensor x = leaf({1, 2});
    const Tensor h = x * 3.0;
    const Tensor y = sum(square(h));
    {
        NoGrad plain;
        h.fill_(7);
    }
    CHECK_THROWS_WITH(y.backward(), Catch::Contains("changed in place"));
    CHECK_THROWS_WITH(h.fill_(1), Catch::Contains("NoGrad"));
}

TEST_CASE("a chain of 100,000 nodes is built, differentiated and freed", "[autograd]") {
    leaves_nothing([] {
        const Tensor x = leaf({1});
        Tensor y = x;
        for (int i = 0; i < 100'000; ++i) y = y + 1.0;
        sum(y).backward();
        CHECK(x.grad().item<float>() == 1);
        Tensor kept = x;
        for (int i = 0; i < 100'000; ++i) kept = tanh(kept);  // each node keeps its result
    });
}

TEST_CASE("hooks see and replace gradients", "[autograd]") {
    leaves_nothing([] {
        const Tensor x = leaf({1, 2});
        const Tensor h = x * 2.0;
        int seen = 0;
        autograd::add_hook(h, [&](const Tensor& g) {
            ++seen;
            return g * 10.0;
        });
        const int id = autograd::add_hook(x, [&](const Tensor& g) {
            ++seen;
            CHECK(floats(g) == std::vector<float>{40, 40});  // both uses of h, summed, once
            return Tensor();
        });
        sum(h + h).backward();
        CHECK(seen == 2);
        CHECK(floats(x.grad()) == std::vector<float>{40, 40});
        autograd::remove_hook(x, id);
        sum(x).backward();
        CHECK(seen == 2);
        CHECK(floats(x.grad()) == std::vector<float>{41, 41});
    });
}

TEST_CASE("a leaf's hook runs once on the total of its gradients", "[autograd]") {
    const Tensor w = leaf({3});
    int calls = 0;
    autograd::add_hook(w, [&](const Tensor& g) {
        ++calls;
        return g;
    });
    sum(w * 2.0 + w * 5.0).backward();
    CHECK(calls == 1);
    CHECK(w.grad().item<float>() == 7);
}

TEST_CASE("a hook with a wrong shape is refused", "[autograd]") {
    const Tensor x = leaf({1, 2});
    autograd::add_hook(x, [](const Tensor&) { return Tensor::from({1}); });
    CHECK_THROWS_WITH(sum(x).backward(), Catch::Contains("hook"));
}

namespace {

struct Cube : autograd::Function<Cube> {
    static Tensors forward(autograd::Context& c, const Tensors& x) {
        c.saved = {x[0]};
        return {x[0] * x[0] * x[0]};
    }
    static Tensors backward(autograd::Context& c, const Tensors& g) {
        return {g[0] * (3.0 * square(c.saved[0]))};
    }
};

// exp(x), which saves its result; second derivatives need the history of that result.
struct Exp : autograd::Function<Exp> {
    static Tensors forward(autograd::Context& c, const Tensors& x) {
        c.saved = {exp(x[0])};
        return {c.saved[0]};
    }
    static Tensors backward(autograd::Context& c, const Tensors& g) { return {g[0] * c.saved[0]}; }
};

}  // namespace

TEST_CASE("user-defined functions have first and second derivatives", "[autograd]") {
    leaves_nothing([] {
        const Tensor x = leaf({2});
        const Tensor g = autograd::grad({sum(Cube::apply({x})[0])}, {x}, {.create_graph = true})[0];
        CHECK(g.item<float>() == 12);
        CHECK(autograd::grad({sum(g)}, {x})[0].item<float>() == 12);
        const Tensor e = autograd::grad({sum(Exp::apply({x})[0])}, {x}, {.create_graph = true})[0];
        CHECK(autograd::grad({sum(e)}, {x})[0].item<double>() == Approx(std::exp(2.0)));
    });
}

TEST_CASE("checkpoint gives the gradients of the plain run, dropout included", "[autograd]") {
    leaves_nothing([] {
        const Tensor x = randn({16, 8}).set_requires_grad(), w = randn({8, 8}).set_requires_grad();
        const auto block = [&](const Tensors& in) -> Tensors {
            return {dropout(tanh(matmul(in[0], w)), 0.5)};
        };
        manual_seed(3);
        sum(square(block({x})[0])).backward();
        const std::vector<float> gx = floats(x.grad()), gw = floats(w.grad());
        x.set_grad({});
        w.set_grad({});
        manual_seed(3);
        const Tensor y = autograd::checkpoint(block, {x})[0];
        const RandomState after_forward = random_state();
        sum(square(y)).backward();
        CHECK(random_state().offset == after_forward.offset);
        CHECK(floats(x.grad()) == gx);
        CHECK(floats(w.grad()) == gw);
    });
}

TEST_CASE("checkpoint reaches weights even when no input requires grad", "[autograd]") {
    const Tensor x = Tensor::from({1, 2}), w = leaf({3, 4});
    sum(autograd::checkpoint([&](const Tensors& in) -> Tensors { return {in[0] * w}; }, {x})[0]).backward();
    CHECK(floats(w.grad()) == std::vector<float>{1, 2});
}

TEST_CASE("threads differentiate graphs of their own at once", "[autograd]") {
    std::vector<std::thread> threads;
    std::vector<float> results(4);
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([t, &results] {
            for (int i = 0; i < 50; ++i) {
                const Tensor x = leaf({float(t + 1)});
                sum(square(x) * x).backward();
                results[std::size_t(t)] = x.grad().item<float>();
            }
        });
    for (auto& t : threads) t.join();
    CHECK(results == std::vector<float>{3, 12, 27, 48});
}
