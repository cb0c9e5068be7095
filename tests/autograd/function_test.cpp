// User-defined functions and checkpoints that break their contracts: an error each, and no leaks.
#include <catch2/catch.hpp>

#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;

Tensor leaf(double value = 2) { return full({2, 3}, value).set_requires_grad(); }

// The product of two tensors, with the given backward.
Tensor product(const Tensor& a, const Tensor& b, autograd::Backward backward) {
    return autograd::apply_function({.name = "product"},
                                    [](autograd::Context& c, const Tensors& x) -> Tensors {
                                        const Tensor y = x[0] * x[1];
                                        c.saved = {x[0], x[1], y};
                                        return {y};
                                    },
                                    std::move(backward), {a, b})[0];
}

// Runs `run` twice: the live objects after both runs must be those before.
template <class Run> void leaves_nothing(const Run& run) {
    const LiveObjects before = live_objects();
    for (int i = 0; i < 2; ++i) run();
    CHECK(live_objects().tensors == before.tensors);
    CHECK(live_objects().nodes == before.nodes);
    CHECK(live_objects().storages == before.storages);
}

}  // namespace

TEST_CASE("a function's backward returns one gradient per input", "[autograd]") {
    leaves_nothing([] {
        const Tensor a = leaf(2), b = leaf(3);
        const auto refused = [&](autograd::Backward backward, const char* text) {
            const Tensor loss = sum(product(a, b, backward));
            CHECK_THROWS_WITH(loss.backward(), Contains("product: backward returned") && Contains(text));
            CHECK_FALSE(a.grad().defined());
            CHECK_FALSE(b.grad().defined());
        };
        refused([](autograd::Context&, const Tensors&) -> Tensors { return {}; }, "0 gradients for 2 inputs");
        refused([](autograd::Context& c, const Tensors& g) -> Tensors { return {g[0] * c.saved[1]}; },
                "1 gradients for 2 inputs");
        refused(
            [](autograd::Context&, const Tensors& g) -> Tensors {
                return {g[0], g[0], g[0]};
            },
            "3 gradients for 2 inputs");
        refused(
            [](autograd::Context&, const Tensors& g) -> Tensors {
                return {Tensor(), g[0].slice(0, 0, 1)};
            },
            "[1, 3] for input 1 of shape [2, 3]");
        refused(
            [](autograd::Context&, const Tensors& g) -> Tensors {
                return {Tensor(), g[0].t()};
            },
            "[3, 2]");
    });
}

TEST_CASE("a function's backward may leave gradients undefined, and broadcast ones are summed",
          "[autograd]") {
    leaves_nothing([] {
        const Tensor a = leaf(2), b = leaf(3), row = full({3}, 1).set_requires_grad();
        sum(product(a, b, [](autograd::Context& c, const Tensors& g) -> Tensors {
            return {Tensor(), g[0] * c.saved[0]};
        })).backward();
        CHECK_FALSE(a.grad().defined());
        CHECK(test::doubles(b.grad()) == std::vector<double>(6, 2));
        sum(product(a, row, [](autograd::Context& c, const Tensors& g) -> Tensors {
            return {g[0] * c.saved[1], g[0] * c.saved[0]};
        })).backward();
        CHECK(test::doubles(row.grad()) == std::vector<double>(3, 4));
        // An input that needs no gradient may get one of any shape.
        sum(product(a, full({2, 3}, 1), [](autograd::Context&, const Tensors& g) -> Tensors {
            return {g[0], ones({7})};
        })).backward();
    });
}

TEST_CASE("a function's backward that throws while it is recorded leaves nothing", "[autograd]") {
    leaves_nothing([] {
        const Tensor a = leaf(2), b = leaf(3);
        bool fails = true;
        const Tensor loss = sum(product(a, b, [&](autograd::Context& c, const Tensors& g) -> Tensors {
            const Tensor part = g[0] * c.saved[2];
            if (fails) throw std::runtime_error("backward of the user's");
            return {part, part * 2.0};
        }));
        for (int i = 0; i < 2; ++i)
            CHECK_THROWS_WITH(autograd::grad({loss}, {a, b}, {.create_graph = true}),
                              "backward of the user's");
        fails = false;
        const Tensors g = autograd::grad({loss}, {a, b}, {.create_graph = true});
        CHECK(test::doubles(g[1]) == std::vector<double>(6, 12));
        fails = true;
        CHECK_THROWS_WITH(autograd::grad({sum(g[0])}, {a}), "backward of the user's");
    });
    leaves_nothing([] {  // one that returns too little is no different
        const Tensor a = leaf(2), b = leaf(3);
        const Tensor loss =
            sum(product(a, b, [](autograd::Context& c, const Tensors&) -> Tensors { return {c.saved[2]}; }));
        CHECK_THROWS_AS(autograd::grad({loss}, {a, b}, {.create_graph = true}), Error);
    });
}

TEST_CASE("a function refuses a saved tensor that was written to since", "[autograd]") {
    const auto backward = [](autograd::Context& c, const Tensors& g) -> Tensors {
        return {g[0] * c.saved[1], g[0] * c.saved[0]};
    };
    leaves_nothing([&] {
        const Tensor b = leaf(3), x = full({2, 3}, 2);
        for (const int written : {0, 1, 2}) {
            const Tensor a = leaf(2), y = product(a, b, backward), loss = sum(y);
            {
                const NoGrad plain;
                const Tensor row = (written == 0 ? a : written == 1 ? b : y).slice(0, 0, 1);
                row.fill_(100);
            }
            for (const bool create_graph : {true, false})
                CHECK_THROWS_WITH(autograd::grad({loss}, {a, b}, {.create_graph = create_graph}),
                                  Contains("product: its saved tensor " + std::to_string(written) +
                                           " was changed in place"));
            CHECK_FALSE(a.grad().defined());
        }
    });
    leaves_nothing([&] {  // forward itself may write, and backward may run twice
        const Tensor a = leaf(2);
        const Tensor y = sum(autograd::apply_function(
            {.name = "twice"},
            [](autograd::Context& c, const Tensors& in) -> Tensors {
                const Tensor factor = zeros({2, 3});
                c.saved = {factor, Tensor()};
                factor.fill_(2);
                return {in[0] * factor};
            },
            [](autograd::Context& c, const Tensors& g) -> Tensors { return {g[0] * c.saved[0]}; }, {a})[0]);
        y.backward({.retain_graph = true});
        y.backward();
        CHECK(test::doubles(a.grad()) == std::vector<double>(6, 4));
    });
}

TEST_CASE("a checkpoint refuses an input that was written to since", "[autograd]") {
    leaves_nothing([] {
        const Tensor w = leaf(2), x = full({2, 3}, 3);
        const Tensor y = sum(
            autograd::checkpoint([&](const Tensors& in) -> Tensors { return {in[1] * w}; }, {w, x, {}})[0]);
        x.fill_(100);
        CHECK_THROWS_WITH(y.backward(), Contains("checkpoint: its input 1 was changed in place"));
        CHECK_FALSE(w.grad().defined());
    });
}

TEST_CASE("a gradient with a history is nobody else's", "[autograd]") {
    const Tensor a = leaf(2), b = leaf(3);
    autograd::backward({sum(a + b)}, {.create_graph = true});
    {
        NoGrad plain;
        a.grad().mul_(5);
    }
    CHECK(test::doubles(b.grad()) == std::vector<double>(6, 1));
    a.set_grad({});
    b.set_grad({});
}

TEST_CASE("a checkpoint's segment must do the same twice", "[autograd]") {
    leaves_nothing([] {
        const Tensor w = leaf(2), x = full({2, 3}, 3);
        int run = 0;
        const auto refused = [&](autograd::Segment segment, const char* text) {
            run = 0;
            const Tensors y = autograd::checkpoint(segment, {x});
            const RandomState random = random_state();
            CHECK_THROWS_WITH(sum(y[0]).backward(), Contains("checkpoint: ") && Contains(text));
            CHECK(random_state().offset == random.offset);
            CHECK_FALSE(w.grad().defined());
        };
        const auto again = [&run] { return run++ != 0; };
        refused(
            [&](const Tensors& in) -> Tensors {
                return again() ? Tensors{in[0] * w, in[0], in[0]} : Tensors{in[0] * w};
            },
            "returned 1 tensors in the forward pass and 3");
        refused(
            [&](const Tensors& in) -> Tensors {
                return again() ? Tensors{in[0] * w} : Tensors{in[0] * w, in[0]};
            },
            "returned 2 tensors in the forward pass and 1");
        refused([&](const Tensors&) -> Tensors { return again() ? Tensors{} : Tensors{rand({2}) * sum(w)}; },
                "1 tensors in the forward pass and 0");
        refused([&](const Tensors& in) -> Tensors { return {again() ? sum(in[0] * w) : in[0] * w}; },
                "result 0 of the segment was float32 [2, 3]");
        refused([&](const Tensors& in) -> Tensors { return {(in[0] * w).to(again() ? float64 : float32)}; },
                "is float64 [2, 3]");
        refused([&](const Tensors& in) -> Tensors { return {again() ? Tensor() : in[0] * w}; }, "undefined");
        CHECK_THROWS_WITH(autograd::checkpoint([](const Tensors&) -> Tensors { return {Tensor()}; }, {x}),
                          Contains("checkpoint: the segment returned an undefined tensor"));
        const auto good = [&](const Tensors& in) -> Tensors { return {in[0] * w}; };
        sum(autograd::checkpoint(good, {x})[0]).backward();
        CHECK(test::doubles(w.grad()) == std::vector<double>(6, 3));
    });
}

TEST_CASE("integral results of a function and of a checkpoint have no history", "[autograd]") {
    leaves_nothing([] {
        const Tensor x = leaf();
        const Tensors y = autograd::apply_function(
            {},
            [](autograd::Context& c, const Tensors& in) -> Tensors {
                c.saved = {arange(3), in[0] * 2};
                return {c.saved[0], c.saved[1]};
            },
            [](autograd::Context& c, const Tensors& g) -> Tensors {
                CHECK_FALSE(c.saved[0].requires_grad());
                CHECK(c.saved[1].requires_grad());
                CHECK(g[0].dtype() == int64);
                return {g[1] * 2};
            },
            {x});
        CHECK_FALSE(y[0].requires_grad());
        CHECK(autograd::grad({y[1].sum()}, {x}, {.create_graph = true})[0].sum().item<double>() == 12);
        y[0].fill_(1);  // nothing reads it again
        const Tensors z = autograd::checkpoint(
            [](const Tensors& in) -> Tensors {
                return {in[0] * 3, in[0].argmax()};
            },
            {x});
        CHECK_FALSE(z[1].requires_grad());
        CHECK(autograd::grad({z[0].sum()}, {x})[0].sum().item<double>() == 18);
    });
}
