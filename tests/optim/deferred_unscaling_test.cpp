// Deferred unscaling: factors of unscale_, clip_grad_norm_ and step that the optimizer's update applies.
// Every case is compared with an eager run, in which a second owner of the gradients makes the factors apply
// at once.
#include <catch2/catch.hpp>
#include <memory>

#include "core/tensor_impl.h"
#include "mezzo/mezzo.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

using test::doubles;

std::vector<float> floats(const Tensor& x) { return x.to(float32).to_vector<float>(); }

// Three parameters, one or two optimizers that divide them, and a scaler.
struct World {
    bool eager;
    Tensors w;
    std::unique_ptr<optim::Optimizer> a, b;
    amp::GradScaler scaler{{.init_scale = 64, .growth_interval = 2}};
    Tensors held;
    std::vector<std::vector<double>> seen;

    World(Device device, bool at_once, bool two = false) : eager(at_once) {
        for (int i = 0; i < 3; ++i)
            w.push_back(test::tensor_of(test::random_values(5 + i, std::uint64_t(i), test::Domain::any),
                                        {5 + i}, float32, device)
                            .set_requires_grad());
        a = std::make_unique<optim::AdamW>(two ? Tensors{w[0], w[1]} : w, optim::AdamWOptions{.lr = 0.05});
        if (two)
            b = std::make_unique<optim::SGD>(Tensors{w[2]}, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
    }
    Tensor loss(double slope = 1) const {
        Tensor total;
        for (const Tensor& x : w) {
            const Tensor part = sum(square(x) * slope + x);
            total = total.defined() ? total + part : part;
        }
        return total;
    }
    void backward(double slope = 1) { scaler.scale(loss(slope)).backward(); }
    void zero_grad() {
        a->zero_grad();
        if (b) b->zero_grad();
    }
    // In the eager run the gradients get a second owner from here on.
    void hold() {
        held.clear();
        for (const Tensor& x : w)
            if (eager) held.push_back(x.grad());
    }
    void unscale(optim::Optimizer& optimizer) {
        hold();
        scaler.unscale_(optimizer);
    }
    void clip(const Tensors& parameters, double max_norm = 0.7) {
        hold();
        seen.push_back(doubles(nn::clip_grad_norm_(parameters, max_norm)));
    }
    void step(optim::Optimizer& optimizer) {
        hold();
        scaler.step(optimizer);
    }
    void look() {
        held.clear();
        for (const Tensor& x : w)
            seen.push_back(x.grad().defined() ? doubles(x.grad()) : std::vector<double>());
        for (const Tensor& x : w) seen.push_back(doubles(x));
    }
    bool waits(std::size_t i) const { return w[i]->grad_meta->gradient.pending(); }
};

// Requires the same numbers from the script with deferred and with eager unscaling.
template <class Script> void same_either_way(const Script& script, bool two = false) {
    for (const Device device : test::devices()) {
        CAPTURE(name(device.type()));
        World eager(device, true, two), lazy(device, false, two);
        for (World* world : {&eager, &lazy}) {
            script(*world);
            world->look();
            for (const Tensor& x : world->w) x.set_grad({});  // one with a history would hold its leaf
        }
        REQUIRE(lazy.seen.size() == eager.seen.size());
        for (std::size_t i = 0; i < lazy.seen.size(); ++i) {
            CAPTURE(i);
            CHECK(test::difference(lazy.seen[i], eager.seen[i], {1e-6, 1e-7}) == "");
        }
    }
}

}  // namespace

TEST_CASE("deferred unscaling: an ordinary loop, and a look at the gradients anywhere in it",
          "[deferred_unscaling]") {
    for (int look = 0; look < 6; ++look) {
        CAPTURE(look);
        same_either_way([look](World& t) {
            for (int i = 0; i < 3; ++i) {
                t.a->zero_grad();
                t.backward();
                t.unscale(*t.a);
                CHECK(t.waits(0) != t.eager);
                if (look == 1) t.look();
                t.clip(t.w);
                CHECK(t.waits(0) == (!t.eager));
                if (look == 2) t.look();
                t.step(*t.a);
                if (look == 3) t.look();
                t.scaler.update();
                if (look == 4) t.look();
                if (look == 5) t.seen.push_back({t.scaler.get_scale()});
            }
        });
    }
}

TEST_CASE("deferred unscaling: step without unscale_ leaves unscaled gradients", "[deferred_unscaling]") {
    same_either_way([](World& t) {
        t.backward();
        t.step(*t.a);
        CHECK(t.waits(0) != t.eager);
        t.scaler.update();
        t.look();
        CHECK_FALSE(t.waits(0));
        t.loss().backward();  // added to unscaled ones
        t.look();
        t.a->step();
        t.a->zero_grad();
        t.backward();
        t.step(*t.a);
    });
}

TEST_CASE("deferred unscaling: a second backward adds to the multiplied gradient", "[deferred_unscaling]") {
    same_either_way([](World& t) {
        t.loss().backward();
        t.clip(t.w);
        t.loss(0.5).backward();
        t.look();
        t.a->step();
        t.loss().backward();
        t.clip(t.w);
        const Tensor total = sum(square(t.w[0]));
        autograd::backward({total}, {.create_graph = true});
        t.look();
        t.a->step();
    });
}

TEST_CASE("deferred unscaling: a product adds to the multiplied gradient", "[deferred_unscaling]") {
    for (const Device device : test::devices()) {
        const Tensor w = ones({4, 3}, {.device = device}).set_requires_grad();
        const Tensor x = ones({2, 4}, {.device = device});
        optim::SGD optimizer({w}, {.lr = 0.1});
        amp::GradScaler scaler({.init_scale = 8});
        scaler.scale(sum(matmul(x, w))).backward();
        scaler.unscale_(optimizer);
        CHECK(w->grad_meta->gradient.pending());
        sum(matmul(x, w)).backward();  // inside the GEMM
        CHECK(floats(w.grad()) == std::vector<float>(12, 4));
    }
}

TEST_CASE("deferred unscaling: hooks see what they saw", "[deferred_unscaling]") {
    same_either_way([](World& t) {
        autograd::add_hook(t.w[1], [&t](const Tensor& g) {
            t.seen.push_back(doubles(g));
            return g * 2.0;
        });
        t.backward();
        t.unscale(*t.a);
        t.loss().backward();
        t.look();
        t.step(*t.a);
        t.scaler.update();
    });
}

TEST_CASE("deferred unscaling: two optimizers of one scaler", "[deferred_unscaling]") {
    same_either_way(
        [](World& t) {
            for (int i = 0; i < 3; ++i) {
                t.a->zero_grad();
                t.b->zero_grad();
                t.backward();
                t.unscale(*t.a);
                if (i != 1) t.unscale(*t.b);
                if (i == 0) t.clip(t.w);               // of both
                if (i == 1) t.clip({t.w[0], t.w[1]});  // of one
                if (i == 2) t.clip({t.w[1]});          // of a part of one
                t.step(*t.a);
                t.step(*t.b);
                t.scaler.update();
                t.look();
            }
        },
        true);
}

TEST_CASE("deferred unscaling: clipping parts, twice, by value", "[deferred_unscaling]") {
    same_either_way([](World& t) {
        t.backward();
        t.unscale(*t.a);
        t.clip({t.w[2], t.w[0]}, 0.5);
        t.clip(t.w, 0.4);
        t.clip(t.w, 0.3);
        t.step(*t.a);
        t.scaler.update();
        t.a->zero_grad();
        t.backward();
        t.unscale(*t.a);
        t.clip({t.w[0], t.w[0], t.w[1]}, 100);  // as many as were unscaled, but not these
        t.step(*t.a);
        t.scaler.update();
        t.a->zero_grad();
        t.backward();
        t.clip(t.w, 5);  // of the scaled gradients
        t.unscale(*t.a);
        t.hold();
        nn::clip_grad_value_(t.w, 0.01);
        t.step(*t.a);
        t.scaler.update();
        t.a->zero_grad();
        t.backward();
        t.unscale(*t.a);
        t.clip({}, 1);
        t.a->step();  // not the scaler's
        t.scaler.update();
    });
}

TEST_CASE("deferred unscaling: gradients replaced, dropped and set to zero meanwhile",
          "[deferred_unscaling]") {
    same_either_way([](World& t) {
        t.backward();
        t.unscale(*t.a);
        t.held.clear();
        t.w[1].set_grad(ones_like(t.w[1]));
        t.clip(t.w, 2);
        t.step(*t.a);
        t.scaler.update();
        t.a->zero_grad(false);
        t.look();
        t.backward();
        t.unscale(*t.a);
        t.held.clear();
        t.w[0].set_grad({});
        t.clip(t.w, 1);  // the norm is that of the others
        t.step(*t.a);
        t.scaler.update();
        t.a->zero_grad(false);
        t.backward();
        t.step(*t.a);
        t.scaler.update();
    });
}

TEST_CASE("deferred unscaling: who holds a gradient sees it multiplied", "[deferred_unscaling]") {
    for (const Device device : test::devices()) {
        World t(device, false);
        t.backward();
        const Tensor whole = t.w[0].grad(), part = t.w[1].grad().slice(0, 1, 3);
        const std::vector<float> before = floats(whole);
        t.scaler.unscale_(*t.a);
        CHECK(floats(whole)[0] == before[0] / 64);
        CHECK(floats(part)[0] == floats(t.w[1].grad())[1]);
        CHECK_FALSE(t.waits(2));
    }
}

TEST_CASE("deferred unscaling: optimizer, scaler, parameters and the model go while gradients wait",
          "[deferred_unscaling]") {
    const LiveObjects before = live_objects();
    for (const Device device : test::devices()) {
        auto t = std::make_unique<World>(device, false);
        t->backward();
        const Tensor kept = t->w[1], other = t->w[0];
        t->scaler.unscale_(*t->a);
        t->clip(t->w, 0.01);
        const double norm = t->seen[0][0];
        t.reset();
        const std::vector<float> w = floats(kept), g = floats(kept.grad());
        CHECK(g[0] == Approx((2 * w[0] + 1) * 0.01 / norm).epsilon(1e-4));
        CHECK_FALSE(other->grad_meta->gradient.pending());
    }
    CHECK(live_objects().tensors == before.tensors);
    CHECK(live_objects().storages == before.storages);
}

TEST_CASE("deferred unscaling: a model that changes dtype", "[deferred_unscaling]") {
    std::vector<std::vector<float>> seen;
    for (const bool hold : {false, true}) {
        manual_seed(4);
        nn::Linear layer(3, 2);
        optim::SGD optimizer(layer.parameters(), {.lr = 0.1});
        amp::GradScaler scaler({.init_scale = 8});
        scaler.scale(sum(layer(ones({2, 3})))).backward();
        const Tensor held = hold ? layer.weight.grad() : Tensor();
        scaler.unscale_(optimizer);
        layer.to(float64);
        seen.push_back(floats(layer.weight.grad()));
        layer.zero_grad(false);
        sum(layer(ones({2, 3}, {.dtype = float64}))).backward();
        seen.push_back(floats(layer.weight.grad()));
    }
    CHECK((seen[0] == seen[2] && seen[1] == seen[3]));
    CHECK(seen[0][0] == 2);
}

TEST_CASE("deferred unscaling: 16-bit parameters with masters", "[deferred_unscaling]") {
    for (const Device device : test::devices())
        for (const Dtype dtype : {float16, bfloat16}) {
            std::vector<std::vector<float>> seen;
            for (const bool hold : {false, true}) {
                const Tensor w = full({6}, 0.5, {.dtype = dtype, .device = device}).set_requires_grad();
                optim::AdamW optimizer({w}, {.lr = 0.01});
                optimizer.use_master_weights();
                amp::GradScaler scaler({.init_scale = 1024});
                for (int i = 0; i < 3; ++i) {
                    optimizer.zero_grad();
                    scaler.scale(sum(w.to(float32) * (1 + 0.37 * i))).backward();
                    const Tensor held = hold ? w.grad() : Tensor();
                    scaler.unscale_(optimizer);
                    nn::clip_grad_norm_({w}, 1);
                    scaler.step(optimizer);
                    scaler.update();
                    if (i == 2) CHECK(w.grad().dtype() == float32);
                    if (i != 1) seen.push_back(floats(w.grad()));
                    seen.push_back(floats(optimizer.master_parameters()[0]));
                }
            }
            for (std::size_t i = 0; i < seen.size() / 2; ++i) {
                CAPTURE(i, name(dtype));
                const std::vector<float>&lazy = seen[i], &eager = seen[i + seen.size() / 2];
                for (std::size_t k = 0; k < lazy.size(); ++k)
                    CHECK(lazy[k] == Approx(eager[k]).epsilon(1e-3));
            }
        }
}

TEST_CASE("deferred unscaling: backward of one loss after the step of another", "[deferred_unscaling]") {
    for (const Device device : test::devices()) {
        World t(device, false, true);
        const Tensor first = t.scaler.scale(sum(t.w[0] * 3.0) + sum(t.w[1])),
                     second = t.scaler.scale(sum(t.w[2]));
        first.backward();
        t.scaler.step(*t.a);
        CHECK(t.scaler.get_scale() == 64);
        second.backward();
        CHECK(floats(t.w[2].grad())[0] == 64);
        t.scaler.step(*t.b);
        CHECK(floats(t.w[2].grad())[0] == 1);
        t.scaler.update();
        t.zero_grad();
        t.backward();
        t.scaler.step(*t.a);
        t.scaler.update();
        CHECK(t.scaler.get_scale() == 128);
        CHECK(floats(t.scaler.scale(ones({1}, {.device = device})))[0] == 128);
    }
}

TEST_CASE("deferred unscaling: the scaler's state until update()", "[deferred_unscaling]") {
    for (const Device device : test::devices()) {
        World t(device, false, true);
        t.zero_grad();
        t.backward();
        t.scaler.step(*t.a);
        t.scaler.update();
        t.zero_grad();
        t.backward();
        t.scaler.step(*t.a);  // the device holds the grown scale already
        CHECK((t.scaler.get_scale() == 64 && t.scaler.get_growth_tracker() == 1 && !t.scaler.found_inf()));
        CHECK(t.scaler.state_dict()[0].second.item<double>() == 64);
        CHECK(floats(t.scaler.scale(ones({1}, {.device = device})))[0] == 64);
        t.scaler.step(*t.b);
        t.scaler.set_growth_factor(8);  // after the check: update() computes anew
        t.scaler.update();
        CHECK((t.scaler.get_scale() == 512 && t.scaler.get_growth_tracker() == 0));
        t.scaler.set_growth_factor(2);
        t.zero_grad();
        t.backward();
        t.scaler.step(*t.a);
        t.scaler.update(100.0);
        CHECK((t.scaler.get_scale() == 100 && t.scaler.get_growth_tracker() == 0));
        t.zero_grad();
        t.backward();
        t.scaler.step(*t.a);
        const StateDict saved = t.scaler.state_dict();
        t.scaler.update();
        t.zero_grad();
        t.backward();
        t.scaler.step(*t.a);
        t.scaler.load_state_dict(saved);  // between step and update
        CHECK((t.scaler.get_scale() == 100 && t.scaler.get_growth_tracker() == 0));
        t.scaler.update();
        CHECK((t.scaler.get_scale() == 100 && t.scaler.get_growth_tracker() == 1));
    }
}
