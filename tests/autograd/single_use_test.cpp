// Single use of a result: the condition under which a node of the graph may send gradients past the node
// below it.
#include <catch2/catch.hpp>

#include "autograd/extra.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

std::vector<bool> answers;

// The identity, by a node that records whether it is the sole consumer of each of its inputs.
struct Asking {
    static constexpr const char* name = "test: asking";
};
const Op<Asking> asking_op{{.saves = save_none}, [](const Node& c, const Tensors& g) -> Tensors {
                               for (std::size_t i = 0; i < c.edges.size(); ++i)
                                   answers.push_back(c.sole_consumer(int(i)));
                               return Tensors(c.edges.size(), g[0]);
                           }};
Tensor asking(const Tensors& x) {
    const Tensor y = alias(x[0]);
    if (grad_enabled()) record(asking_op, x, AttributesRef(Asking{}), Out(&y, 1));
    return y;
}
Tensor asking(const Tensor& x) { return asking(Tensors{x}); }

Tensor leaf() { return ones({2, 3}).set_requires_grad(); }

using Answers = std::vector<bool>;
template <class F> Answers asked(const F& f) {
    answers.clear();
    f();
    return answers;
}

}  // namespace

TEST_CASE("sole consumer: one op reads the result", "[autograd]") {
    const Tensor x = leaf();
    const Tensor h = relu(x);
    const Tensor y = sum(asking(h));
    // Every backward checks again.
    CHECK(asked([&] { autograd::backward({y}, {.retain_graph = true}); }) == Answers{true});
    CHECK(asked([&] { (void)autograd::grad({y}, {x}, {.retain_graph = true}); }) == Answers{true});
    {
        NoGrad plain;
        asking(h);
    }
    (void)(h.detach() + 1.0);
    CHECK(asked([&] { autograd::backward({y}, {.create_graph = true}); }) == Answers{true});
    x.set_grad({});
}

TEST_CASE("sole consumer: not where another op reads the result, then or later", "[autograd]") {
    const Tensor x = leaf();
    const Tensor h = relu(x);
    const Tensor first = asking(h);
    SECTION("two of them") {
        CHECK(asked([&] { sum(first * asking(h)).backward(); }) == Answers{false, false});
    }
    SECTION("another op") {
        CHECK(asked([&] { sum(first + h * 2.0).backward(); }) == Answers{false});
    }
    SECTION("one that is gone again") {  // an edge that has been is not told from one that is
        (void)sum(h);
        CHECK(asked([&] { sum(first).backward(); }) == Answers{false});
    }
    SECTION("one beside this backward") {
        const Tensor other = sum(h);
        CHECK(asked([&] { autograd::backward({sum(first)}, {.retain_graph = true}); }) == Answers{false});
        CHECK(asked([&] { other.backward(); }).empty());
    }
    SECTION("a view") {
        CHECK(asked([&] { sum(first + h.reshape({3, 2}).t()).backward(); }) == Answers{false});
    }
    SECTION("a value that autocast converted, in a recorded backward") {  // recorded before its rival
        const Tensor other = relu(x);
        const Tensor z = reattach(other.detach(), edge_of(other), float32);
        CHECK(asked([&] { sum(asking(other) + z).backward(); }) == Answers{false});
    }
    SECTION("a function") {
        const auto same = [](autograd::Context&, const Tensors& t) { return Tensors{t[0] * 1.0}; };
        const Tensor z = autograd::apply_function({}, same, same, {h})[0];
        CHECK(asked([&] { sum(first + z).backward(); }) == Answers{false});
    }
    SECTION("a checkpoint") {
        const Tensor z = autograd::checkpoint([](const Tensors& t) { return Tensors{t[0] * 1.0}; }, {h})[0];
        CHECK(asked([&] { sum(first + z).backward(); }) == Answers{false});
    }
    SECTION("a recorded backward") {
        const Tensor g = autograd::grad({sum(square(first))}, {x}, {.create_graph = true})[0];
        REQUIRE(g.requires_grad());
        CHECK(asked([&] { sum(first).backward(); }) == Answers{false});
    }
}

TEST_CASE("sole consumer: not of a leaf, and not by two inputs", "[autograd]") {
    const Tensor x = leaf();
    CHECK(asked([&] { sum(asking(x)).backward(); }) == Answers{false});
    const Tensor h = relu(x);
    CHECK(asked([&] { sum(asking(Tensors{h, h})).backward(); }) == Answers{false, false});
    const Tensor a = relu(x), b = relu(x);
    CHECK(asked([&] { sum(asking(Tensors{a, b})).backward(); }) == Answers{true, true});
    CHECK(asked([&] { sum(asking(Tensors{a.detach(), x})).backward(); }) == Answers{false, false});
    const Tensor c = asking(relu(x));
    CHECK_FALSE(c->grad_meta->node->sole_consumer(0));  // no backward is running
}

TEST_CASE("sole consumer: not where somebody looks at the gradient of the result", "[autograd]") {
    const Tensor x = leaf();
    const Tensor h = relu(x);
    const Tensor y = sum(asking(h));
    const autograd::GradOptions keep{.retain_graph = true};
    const int hook = autograd::add_hook(h, [](const Tensor&) { return Tensor(); });
    CHECK(asked([&] { autograd::backward({y}, keep); }) == Answers{false});
    autograd::remove_hook(h, hook);
    CHECK(asked([&] { autograd::backward({y}, keep); }) == Answers{true});
    CHECK(asked([&] { (void)autograd::grad({y}, {h}, keep); }) == Answers{false});
    CHECK(asked([&] { (void)autograd::grad({y}, {x, h}, keep); }) == Answers{false});
    CHECK(asked([&] {
              autograd::backward({y, h}, {.grad_outputs = {{}, h}, .retain_graph = true});
          }) == Answers{false});
    CHECK(asked([&] {
              autograd::backward({h, y}, {.grad_outputs = {h, {}}, .retain_graph = true});
          }) == Answers{false});
    CHECK(asked([&] { autograd::backward({y}, keep); }) == Answers{true});
}

TEST_CASE("sole consumer: inside a checkpoint that reads a result from outside", "[autograd]") {
    const Tensor x = leaf();
    const Tensor h = relu(x);
    const auto inside = [](const Tensors& t) { return Tensors{asking(relu(t[0]))}; };
    CHECK(asked([&] { sum(autograd::checkpoint(inside, {h})[0]).backward(); }) == Answers{true});
    CHECK(test::doubles(x.grad()) == std::vector<double>(6, 1));
}
