// A leaf's gradient slot: reads, accumulation, replacement, removal and restoring.
#include <catch2/catch.hpp>
#include <stdexcept>

#include "core/tensor_impl.h"
#include "mezzo/mezzo.h"
#include "optim/deferred_factor.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using test::doubles;

GradientSlot& slot_of(const Tensor& leaf) { return leaf->grads().gradient; }

// A pending factor of 2 that counts how often it is applied.
struct Twice final : optim::PendingFactor {
    int times = 0;
    bool fails = false;
    void multiply(const std::vector<TensorImpl*>& leaves, Tensors& gradients) override {
        if (fails) throw std::runtime_error("no memory");
        CHECK(leaves.size() == gradients.size());
        for (Tensor& gradient : gradients) gradient = gradient * 2.0;
        ++times;
    }
};

// Leaves of one element with gradients 1, 2, ….
Tensors leaves(int count) {
    Tensors result;
    for (int i = 0; i < count; ++i) {
        result.push_back(ones({1}).set_requires_grad());
        result.back().set_grad(full({1}, i + 1));
    }
    return result;
}

std::vector<TensorImpl*> impls(const Tensors& tensors) {
    std::vector<TensorImpl*> result;
    for (const Tensor& x : tensors) result.push_back(x.impl());
    return result;
}

}  // namespace

TEST_CASE("gradient slot: one look multiplies all that wait, once", "[gradient]") {
    const Tensors w = leaves(3);
    const Ref<Twice> twice(new Twice);
    twice->attach(impls(w));
    CHECK(twice->times == 0);
    CHECK((slot_of(w[0]).defined() && slot_of(w[0]).pending()));
    slot_of(w[2]).drop();
    CHECK(doubles(w[1].grad()) == std::vector<double>{4});
    CHECK(doubles(w[0].grad()) == std::vector<double>{2});
    CHECK_FALSE(w[2].grad().defined());
    CHECK(twice->times == 1);
    CHECK(twice->refs.load() == 1);
}

TEST_CASE("gradient slot: an update reads without its own factor, and with any other", "[gradient]") {
    const Tensors w = leaves(2);
    const Ref<Twice> one(new Twice), two(new Twice);
    one->attach({w[0].impl()});
    two->attach({w[1].impl()});
    CHECK(doubles(slot_of(w[0]).read_for_update(one.get())) == std::vector<double>{1});
    CHECK(doubles(slot_of(w[1]).read_for_update(one.get())) == std::vector<double>{4});
    CHECK((one->times == 0 && two->times == 1));
    one->attach({w[1].impl()});
    two->attach({w[0].impl()});  // instead of the first one
    CHECK(doubles(w[1].grad()) == std::vector<double>{8});
    CHECK(doubles(w[0].grad()) == std::vector<double>{2});
}

TEST_CASE("gradient slot: what others hold is multiplied at once, what is overwritten never", "[gradient]") {
    const Tensors w = leaves(3);
    const Ref<Twice> twice(new Twice);
    const Tensor held = w[1].grad();
    CHECK(slot_of(w[1]).shared());
    twice->attach({w[0].impl(), w[1].impl()});
    CHECK(twice->times == 1);
    CHECK((!slot_of(w[0]).pending() && !slot_of(w[1]).pending()));
    twice->attach({w[2].impl()});
    CHECK(doubles(slot_of(w[2]).overwrite()) == std::vector<double>{3});
    CHECK_FALSE(slot_of(w[2]).pending());
    CHECK(twice->times == 1);
}

TEST_CASE("gradient slot: a factor that cannot be applied leaves the gradient waiting", "[gradient]") {
    const Tensors w = leaves(2);
    const Ref<Twice> twice(new Twice);
    twice->attach(impls(w));
    twice->fails = true;
    CHECK_THROWS_AS(w[0].grad(), std::runtime_error);
    twice->fails = false;
    CHECK(doubles(w[0].grad()) == std::vector<double>{2});
    CHECK(doubles(w[1].grad()) == std::vector<double>{4});
}

TEST_CASE("gradient slot: a scope multiplies what waits at its end, leaves and factors may go",
          "[gradient]") {
    const LiveObjects before = live_objects();
    {
        Tensors w = leaves(3);
        Ref<Twice> twice(new Twice);
        {
            PendingHooks outer;
            {
                PendingHooks scope;
                twice->attach(impls(w));
                w.erase(w.begin());
                scope.apply();
            }
            CHECK(twice->times == 1);
            outer.apply();
            CHECK(twice->times == 1);
        }
        CHECK(doubles(slot_of(w[0]).read()) == std::vector<double>{4});
        twice->attach(impls(w));
        twice = {};  // the slots hold it
        CHECK(doubles(w[1].grad()) == std::vector<double>{12});
        Ref<Twice>(new Twice)->attach(impls(w));
    }
    CHECK(live_objects().tensors == before.tensors);
    CHECK(live_objects().storages == before.storages);
}

TEST_CASE("gradient slot: taken out and put back with its parts", "[gradient]") {
    const Tensor w = leaves(1)[0];
    slot_of(w).note_unscaled();
    const void* const address = slot_of(w).address();
    const Gradient taken = slot_of(w).take();
    CHECK((!slot_of(w).defined() && slot_of(w).address() == nullptr && slot_of(w).scale_state() == 0));
    CHECK(taken.scale_state == unscaled_part);
    slot_of(w).put(taken);
    CHECK((slot_of(w).address() == address && slot_of(w).has_scale_state(unscaled_part)));
    w.set_grad(zeros({1}));
    CHECK(slot_of(w).scale_state() == 0);
}

TEST_CASE("gradient slot: scale_loss that throws puts a mixture back as one", "[gradient]") {
    nn::Linear model(1, 1);
    optim::SGD optimizer(model.named_parameters(), {.lr = 1});
    amp::Handle handle = amp::initialize(model, optimizer, {.opt_level = "O1"});
    const auto loss = [&] { return sum(model(ones({1, 1}))); };
    handle.scaler().scale(loss()).backward();
    handle.scaler().unscale_(optimizer);
    handle.scaler().update();
    handle.scaler().scale(loss()).backward();
    CHECK_THROWS_AS(handle.scale_loss(loss(), optimizer, [](const Tensor&) { throw 42; }), int);
    CHECK_THROWS_WITH(optimizer.step(), Catch::Matchers::Contains("scaled ones were added to unscaled"));
}
