// Notifications that an observer of a backward pass (distributed/backward_observer.h) gets, and their order.
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

#include "distributed/backward_observer.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using distributed::BackwardObserver;
using distributed::BackwardPlan;

// Records its notifications. Leaf i is called 'a' + i.
class Notes final : public BackwardObserver {
public:
    explicit Notes(const Tensors& leaves) : leaves_(leaves) {}
    void attach() {
        for (std::uint32_t i = 0; i < leaves_.size(); ++i)
            leaves_[i]->grads().gradient.link({Ref<GradientHook>(this), i});
    }
    void detach() {
        for (const Tensor& leaf : leaves_) leaf->grads().gradient.unlink(this);
    }
    std::string take() { return std::exchange(text_, {}); }
    bool offers_homes = false;

    void settle(std::uint32_t) override {}
    void complete(std::uint32_t) override {}
    void adding(std::uint32_t place) override { text_ += std::string("+") + name(place); }
    Tensor bucket_view(std::uint32_t place) override {
        return offers_homes ? empty_like(leaves_[place].detach()) : Tensor();
    }
    bool is_bucket_view(std::uint32_t, const Tensor&) const override { return false; }
    std::uint64_t number() const override { return 0; }
    void begin(const BackwardPlan& plan) override {
        text_ += "begin(";
        for (const std::uint32_t place : plan.order) text_ += name(place);
        text_ += plan.opaque == 0 ? ")" : "," + std::to_string(plan.opaque) + ")";
    }
    void finished(std::uint32_t place) override { text_ += std::string(" ") + name(place) + "."; }
    void opaque_begins(std::size_t number) override { text_ += " <" + std::to_string(number); }
    void opaque_finished(std::size_t number) override { text_ += std::to_string(number) + ">"; }
    void end() override { text_ += " end"; }
    void abandon(std::string_view words) noexcept override {
        text_ += " abandoned: ";
        text_ += words;
    }

private:
    static char name(std::uint32_t place) { return char('a' + place); }
    Tensors leaves_;
    std::string text_;
};

Tensors leaves(int count) {
    Tensors result;
    for (int i = 0; i < count; ++i) result.push_back(ones({2}).set_requires_grad());
    return result;
}

// Notes of the leaves, attached while the object exists.
struct Watched {
    explicit Watched(const Tensors& leaves) : notes(new Notes(leaves)) { notes->attach(); }
    ~Watched() { notes->detach(); }
    Notes* operator->() const { return notes.get(); }
    Ref<Notes> notes;
};

}  // namespace

TEST_CASE("observer: leaves become final after the oldest node with an edge to them", "[autograd]") {
    const Tensors w = leaves(4);
    const Watched notes(w);
    const Tensor h = w[0] * w[1];
    const Tensor y = h * w[2] * w[0];
    sum(y).backward();
    CHECK(notes->take() == "begin(cab)+a+c c.+a+b a. b. end");
    CHECK(test::doubles(w[0].grad()) == std::vector<double>{2, 2});
    sum(w[3]).backward();
    CHECK(notes->take() == "begin(d)+d d. end");
    w[3].backward({.gradient = ones({2})});  // the root is a leaf
    CHECK(notes->take() == "begin(d)+d d. end");
}

TEST_CASE("observer: nodes that get no gradient hold nobody up", "[autograd]") {
    const Tensors w = leaves(2);
    const Watched notes(w);
    const Tensor skipped = autograd::apply_function(
        {}, [](autograd::Context&, const Tensors& x) { return Tensors{x[0] * 1.0}; },
        [](autograd::Context&, const Tensors&) { return Tensors{Tensor()}; }, {w[0] * 2.0})[0];
    sum(skipped + w[1]).backward();
    CHECK(notes->take() == "begin(ba)+b b. a. end");
    CHECK(!w[0].grad().defined());
}

TEST_CASE("observer: a leaf with hooks is final at the end", "[autograd]") {
    const Tensors w = leaves(2);
    const Watched notes(w);
    autograd::add_hook(w[1], [](const Tensor& g) { return g * 2.0; });
    sum((w[0] * 2.0) * w[1]).backward();
    CHECK(notes->take() == "begin(ab)+a a.+b b. end");
    CHECK(test::doubles(w[1].grad()) == std::vector<double>{4, 4});
}

TEST_CASE("observer: checkpointed segments deliver between their beginning and end", "[autograd]") {
    const Tensors w = leaves(3);
    const Watched notes(w);
    const auto segment = [&](int i) {
        return [&w, i](const Tensors& x) { return Tensors{x[0] * w[std::size_t(i)]}; };
    };
    Tensor x = w[2] * 1.0;
    x = autograd::checkpoint(segment(0), {x})[0];
    x = autograd::checkpoint(segment(1), {x})[0];
    sum(x).backward();
    CHECK(notes->take() == "begin(c,2) <0+b0> <1+a1>+c c. end");
    // The plan has no leaves, because the leaves of a segment become known when it delivers to the first of
    // them.
    const Tensor input = ones({2}).set_requires_grad();
    x = autograd::checkpoint(segment(1), {autograd::checkpoint(segment(0), {input * 1.0})[0] * 2.0})[0];
    sum(x).backward();
    CHECK(notes->take() == "begin(,2) <0+b0> <1+a1> end");
}

TEST_CASE("observer: only a backward of one's own leaves is observed", "[autograd]") {
    const Tensors w = leaves(2);
    const Tensor other = ones({2}).set_requires_grad();
    const Watched notes(w);
    sum(other * 2.0).backward();
    CHECK(autograd::grad({sum(w[0] * 2.0)}, {w[0]}).size() == 1);
    CHECK(notes->take().empty());
    // A backward inside another one is a part of it.
    autograd::add_hook(other, [&](const Tensor&) {
        const EnableGrad recorded;
        sum(w[1] * 2.0).backward();
        return Tensor();
    });
    sum(other * w[0]).backward();
    CHECK(notes->take() == "begin(a)+a a.+b end");
}

TEST_CASE("observer: an exception is told, with its words where it has any", "[autograd]") {
    const Tensors w = leaves(2);
    const Watched notes(w);
    const Tensor h = w[0] * 2.0;
    int thrown = 0;
    autograd::add_hook(h, [&](const Tensor&) -> Tensor {
        if (thrown++ == 0) throw std::runtime_error("stop");
        throw 7;
    });
    CHECK_THROWS_WITH(sum(h * w[1]).backward(), "stop");
    CHECK(notes->take() == "begin(ba)+b b. abandoned: stop");
    CHECK_THROWS_AS(sum(h * w[1]).backward(), int);
    CHECK(notes->take() == "begin(ba)+b b. abandoned: ");
}

TEST_CASE("observer: gradients begin in the places that it offers", "[autograd]") {
    const Tensor x = test::tensor_of(test::random_values(12, 1, test::Domain::any), {4, 3}, float32);
    const Tensors w{
        test::tensor_of(test::random_values(6, 2, test::Domain::any), {2, 3}, float32).set_requires_grad(),
        ones({2}).set_requires_grad()};
    const auto backward = [&] {
        sum(relu(linear(x, w[0], w[1]))).backward();
        std::vector<double> all = test::doubles(w[0].grad());
        for (const double v : test::doubles(w[1].grad())) all.push_back(v);
        for (const Tensor& leaf : w) leaf.set_grad({});
        return all;
    };
    const std::vector<double> plain = backward();
    const Watched notes(w);
    notes->offers_homes = true;
    CHECK(backward() == plain);
}
