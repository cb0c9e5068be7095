// Gradients of two linear layers with other uses of the value between them, against the plain ops in float64.
#include <catch2/catch.hpp>
#include <functional>

#include "mezzo/autocast.h"
#include "mezzo/mezzo.h"
#include "tests/cpu/gemm_options_scope.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

struct Net {
    Tensor x, w1, b1, w2, b2, w3;  // leaves: [2, 3, 8] -> 6 -> 6 -> 4
    LinearActivation activation;

    Net(Dtype dtype, Device device, LinearActivation act) : activation(act) {
        const auto leaf = [&](const Shape& shape, std::uint64_t seed) {
            const Tensor t = test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any),
                                             shape, dtype, device);
            return t.set_requires_grad();
        };
        x = leaf({2, 3, 8}, 1), w1 = leaf({6, 8}, 2), b1 = leaf({6}, 3);
        w2 = leaf({6, 6}, 4), b2 = leaf({6}, 5), w3 = leaf({4, 6}, 6);
    }
    Tensors leaves() const { return {x, w1, b1, w2, b2, w3}; }
    Tensor hidden() const { return linear(x, w1, b1, activation); }
    Tensor upper(const Tensor& h) const { return linear(h, w2, b2, activation); }
    Tensor loss(const Tensor& h) const { return sum(square(linear(upper(h), w3))); }
};

// Returns the tensors to compare, and may accumulate gradients in the leaves.
using Scene = std::function<Tensors(const Net&)>;

std::vector<std::vector<double>> played(const Scene& scene, const Net& net) {
    manual_seed(7);
    Tensors all = scene(net);
    for (const Tensor& leaf : net.leaves()) {
        all.push_back(leaf.grad());
        leaf.set_grad({});  // a recorded one holds its leaf
    }
    std::vector<std::vector<double>> result;
    for (const Tensor& t : all)
        result.push_back(t.defined() ? test::doubles(t.detach()) : std::vector<double>());
    return result;
}

void check(const Scene& scene, Dtype dtype = float64) {
    const test::GemmOptionsScope fused({.fuse_layers = true, .relu_masks = GENERATE(false, true)});
    const auto activation =
        GENERATE(LinearActivation::relu, LinearActivation::gelu, LinearActivation::gelu_tanh);
    std::vector<std::vector<double>> expected;
    {
        const test::ByDecomposition plain;
        expected = played(scene, Net(float64, cpu_device, activation));
    }
    for (const Device device : test::devices()) {
        const auto got = played(scene, Net(dtype, device, activation));
        REQUIRE(got.size() == expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
            CAPTURE(i, int(activation), name(device.type()));
            double most = 0;
            for (double v : expected[i]) most = std::max(most, std::abs(v));
            const double relative = dtype == float64 ? 1e-10 : 0.03;
            CHECK(test::difference(got[i], expected[i], {relative, relative * most}) == "");
        }
    }
}

}  // namespace

TEST_CASE("hidden gradient: nothing in between", "[linear]") {
    check([](const Net& n) {
        n.loss(n.hidden()).backward();
        return Tensors{};
    });
}

TEST_CASE("hidden gradient: a second consumer", "[linear]") {
    SECTION("another op") {
        check([](const Net& n) {
            const Tensor h = n.hidden();
            (n.loss(h) + sum(h * h)).backward();
            return Tensors{};
        });
    }
    SECTION("another linear layer") {
        check([](const Net& n) {
            const Tensor h = n.hidden();
            (n.loss(h) + sum(linear(h, n.w3))).backward();
            return Tensors{};
        });
    }
    SECTION("as both factors") {
        check([](const Net& n) {
            const Tensor h = n.hidden().reshape({6, 6});
            const Tensor square_matrix = linear(h, n.w2, n.b2, n.activation);
            sum(linear(square_matrix, square_matrix)).backward();
            return Tensors{};
        });
    }
    SECTION("recorded later, before the backward") {
        check([](const Net& n) {
            const Tensor h = n.hidden();
            const Tensor loss = n.loss(h);
            const Tensor later = sum(exp(h * 0.1));
            autograd::backward({loss, later});
            return Tensors{};
        });
    }
    SECTION("with a backward of its own") {
        check([](const Net& n) {
            const Tensor h = n.hidden();
            const Tensor loss = n.loss(h), other = sum(h * 3.0);
            autograd::backward({loss}, {.retain_graph = true});
            other.backward();
            return Tensors{};
        });
    }
    SECTION("a user's function") {
        check([](const Net& n) {
            const Tensor h = n.hidden();
            const auto triple = [](autograd::Context&, const Tensors& t) { return Tensors{t[0] * 3.0}; };
            const Tensor z = autograd::apply_function({}, triple, triple, {h})[0];
            (n.loss(h) + sum(z)).backward();
            return Tensors{};
        });
    }
    SECTION("a checkpoint") {
        check([](const Net& n) {
            const Tensor h = n.hidden();
            const Tensor z =
                autograd::checkpoint([](const Tensors& t) { return Tensors{square(t[0])}; }, {h})[0];
            (n.loss(h) + sum(z)).backward();
            return Tensors{};
        });
    }
}

TEST_CASE("hidden gradient: hooks see and replace it", "[linear]") {
    check([](const Net& n) {
        const Tensor h = n.hidden(), u = n.upper(h);
        Tensors seen;
        autograd::add_hook(h, [&](const Tensor& g) {
            seen.push_back(g.detach());
            return g * 2.0;
        });
        autograd::add_hook(u, [&](const Tensor& g) {
            seen.push_back(g.detach());
            return Tensor();
        });
        sum(square(linear(u, n.w3))).backward();
        REQUIRE(seen.size() == 2);
        return seen;
    });
}

TEST_CASE("hidden gradient: grad() asks for it", "[linear]") {
    check([](const Net& n) {
        const Tensor h = n.hidden(), u = n.upper(h);
        const Tensor loss = sum(square(linear(u, n.w3)));
        Tensors all = autograd::grad({loss}, {h, n.w1, n.b1}, {.retain_graph = true});
        for (const Tensor& g : autograd::grad({loss}, {u}, {.retain_graph = true})) all.push_back(g);
        for (const Tensor& g : autograd::grad({loss}, {n.x, n.b2}, {.retain_graph = true})) all.push_back(g);
        return all;
    });
}

TEST_CASE("hidden gradient: backward starts at it, too", "[linear]") {
    check([](const Net& n) {
        const Tensor h = n.hidden();
        autograd::backward({n.loss(h), h}, {.grad_outputs = {{}, square(h).detach()}});
        return Tensors{};
    });
}

TEST_CASE("hidden gradient: a graph that is kept", "[linear]") {
    check([](const Net& n) {
        const Tensor h = n.hidden();
        const Tensor loss = n.loss(h);
        autograd::backward({loss}, {.retain_graph = true});
        autograd::backward({loss}, {.retain_graph = true});
        (loss + sum(h * 0.5)).backward();
        return Tensors{};
    });
}

TEST_CASE("hidden gradient: second derivatives", "[linear]") {
    SECTION("of gradients by parameters") {
        check([](const Net& n) {
            const Tensors g =
                autograd::grad({n.loss(n.hidden())}, {n.x, n.w1, n.b1, n.w2}, {.create_graph = true});
            Tensor penalty = sum(square(g[0]));
            for (std::size_t i = 1; i < g.size(); ++i) penalty = penalty + sum(square(g[i]));
            (penalty * 1e-3).backward();
            return Tensors{};
        });
    }
    SECTION("of gradients by hidden values, added to first ones") {
        check([](const Net& n) {
            const Tensor h = n.hidden();
            const Tensor loss = n.loss(h);
            const Tensor g = autograd::grad({loss}, {h}, {.create_graph = true})[0];
            (loss + sum(square(g)) * 1e-3).backward();
            return Tensors{};
        });
    }
    SECTION("of grad()") {
        check([](const Net& n) {
            const Tensor loss = n.loss(n.hidden());
            autograd::backward({loss}, {.create_graph = true});
            const Tensor penalty = sum(square(n.w1.grad())) * 1e-3;
            const Tensors second =
                autograd::grad({penalty}, {n.x, n.w2}, {.retain_graph = true, .allow_unused = true});
            loss.backward();
            return second;
        });
    }
}

TEST_CASE("hidden gradient: dropout, views and values without history in between", "[linear]") {
    SECTION("dropout") {
        check([](const Net& n) {
            n.loss(dropout(n.hidden(), 0.5)).backward();
            return Tensors{};
        });
    }
    SECTION("a view") {
        check([](const Net& n) {
            n.loss(n.hidden().transpose(0, 1)).backward();
            return Tensors{};
        });
    }
    SECTION("a part") {
        check([](const Net& n) {
            n.loss(n.hidden().slice(0, 0, 1)).backward();
            return Tensors{};
        });
    }
    SECTION("detached, and without recording") {
        check([](const Net& n) {
            const Tensor h = n.hidden();
            Tensor outside;
            {
                NoGrad plain;
                outside = n.loss(h);
            }
            (n.loss(h) + sum(h.detach() * n.w1.slice(1, 0, 6)[0]) + outside).backward();
            return Tensors{};
        });
    }
}

TEST_CASE("hidden gradient: checkpoints around and inside", "[linear]") {
    SECTION("around") {
        check([](const Net& n) {
            const auto segment = [&](const Tensors& t) {
                return Tensors{n.upper(linear(t[0], n.w1, n.b1, n.activation))};
            };
            sum(square(linear(autograd::checkpoint(segment, {n.x})[0], n.w3))).backward();
            return Tensors{};
        });
    }
    SECTION("above") {
        check([](const Net& n) {
            const auto segment = [&](const Tensors& t) { return Tensors{n.loss(t[0])}; };
            autograd::checkpoint(segment, {n.hidden()})[0].backward();
            return Tensors{};
        });
    }
}

TEST_CASE("hidden gradient: autocast around both layers, or one", "[linear][autocast]") {
    const bool lower = GENERATE(false, true);
    check(
        [=](const Net& n) {
            const auto low = [&](bool on) {
                return amp::Autocast({.device = n.x.device().type(),
                                      .dtype = float16,
                                      .enabled = on && n.x.dtype() == float32});
            };
            Tensor h, y;
            {
                const amp::Autocast scope = low(lower);
                h = n.hidden();
            }
            {
                const amp::Autocast scope = low(true);
                y = n.upper(h);
            }
            autograd::backward({sum(square(y))});
            return Tensors{};
        },
        float32);
}

TEST_CASE("hidden gradient: leaves of any rank get theirs in place", "[linear]") {
    for (const Device device : test::devices())
        for (const Shape& shape :
             {Shape{8}, Shape{5, 8}, Shape{2, 3, 8}, Shape{2, 1, 2, 8}, Shape{0, 3, 8}}) {
            CAPTURE(shape.size());
            const auto leaf = [&](const Shape& s) {
                return test::tensor_of(test::random_values(s.numel(), 3, test::Domain::any), s, float32,
                                       device)
                    .set_requires_grad();
            };
            const Tensor x = leaf(shape), w = leaf({4, 8});
            sum(linear(x, w)).backward();
            const std::vector<double> once = test::doubles(x.grad());
            const void* const place = x.grad()->storage->data;
            sum(linear(x, w)).backward();
            CHECK(x.grad()->storage->data == place);
            CHECK(x.grad().shape() == shape);
            CHECK(test::doubles(x.grad()) == test::doubles(Tensor::from(once, shape) * 2.0));
        }
}
