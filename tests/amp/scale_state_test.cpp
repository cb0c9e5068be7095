// Scaled and unscaled gradients: a mixture of both is reported where it would be used, and no other sequence
// of calls is.
#include <memory>
#include <type_traits>

#include "mezzo/mezzo.h"
#include "tests/amp/scaler_bench.h"

namespace {

// Two parameters, each with an optimizer, and one scaler.
struct Pair {
    explicit Pair(Device device = {}) : a(leaf({1, 2}, device)), b(leaf({3, 4}, device)) {}
    Tensor loss_a(double slope = 3) const { return sum(a * slope); }
    Tensor loss_b(double slope = 5) const { return sum(b * slope); }
    void backward(const Tensor& loss) { scaler.scale(loss).backward(); }

    Tensor a, b;
    SGD first{StateDict{{"trunk", a}}, {.lr = 1}}, second{StateDict{{"head", b}}, {.lr = 1}};
    GradScaler scaler{{.init_scale = 8}};
};

// Runs `mix`, which adds a scaled gradient to the unscaled one of w, and expects an error from the step.
template <class Mix> void mixing_is_reported(const Tensor& w, const Tensor& scaled_first, const Mix& mix) {
    for (const bool held : {false, true}) {  // held: the gradient is divided at once, it does not wait
        CAPTURE(held);
        w.set_grad({});
        SGD optimizer(StateDict{{"w", w}}, {.lr = 1});
        GradScaler scaler({.init_scale = 8});
        autograd::backward({scaler.scale(scaled_first)}, {.retain_graph = true});
        const Tensor holder = held ? w.grad() : Tensor();
        scaler.unscale_(optimizer);
        mix(scaler);
        const std::vector<double> before = test::doubles(w);
        CHECK_THROWS_WITH(scaler.step(optimizer), Contains("w (parameter 0) of this SGD") &&
                                                      Contains("scaled ones were added to unscaled"));
        CHECK_THROWS_WITH(optimizer.step(), Contains("scaled ones were added to unscaled"));
        CHECK(test::doubles(w) == before);
        optimizer.zero_grad();
        scaler.update();
        autograd::backward({scaler.scale(scaled_first)}, {.retain_graph = true});
        CHECK(scaler.step(optimizer).stepped());
        scaler.update();
        w.set_grad({});
    }
}

}  // namespace

TEST_CASE("scaler: one that has never scaled refuses gradients", "[scaler]") {
    for (const Device device : test::devices()) {
        Pair p(device);
        p.loss_a().backward();
        CHECK_THROWS_WITH(p.scaler.unscale_(p.first), Contains("scale(loss).backward()"));
        CHECK_THROWS_WITH(p.scaler.step(p.first), Contains("scale(loss).backward()"));
        CHECK(floats(p.a) == std::vector<float>{1, 2});
        CHECK(floats(p.a.grad()) == std::vector<float>{3, 3});
        p.scaler.load_state_dict(GradScaler({.init_scale = 2}).state_dict());
        p.scaler.unscale_(p.first);
        CHECK(floats(p.a.grad()) == std::vector<float>{1.5, 1.5});
        CHECK(p.scaler.step(p.first).stepped());

        Pair off(device);
        GradScaler disabled({.enabled = false});
        off.loss_a().backward();
        disabled.unscale_(off.first);
        CHECK(disabled.step(off.first).stepped());
        CHECK(floats(off.a) == std::vector<float>{-2, -1});
    }
}

TEST_CASE("scaler: a loss may run backward after another optimizer's unscale_", "[scaler]") {
    for (const Device device : test::devices())
        for (const bool scaled_before : {false, true}) {
            Pair p(device);
            Tensor second;
            if (scaled_before) second = p.scaler.scale(p.loss_b());
            p.backward(p.loss_a());
            p.scaler.unscale_(p.first);
            if (!scaled_before) second = p.scaler.scale(p.loss_b());
            second.backward();
            p.scaler.unscale_(p.second);
            nn::clip_grad_norm_({p.a, p.b}, 1e6);
            CHECK(p.scaler.step(p.first).stepped());
            CHECK(p.scaler.step(p.second).stepped());
            p.scaler.update();
            CHECK(floats(p.a) == std::vector<float>{-2, -1});
            CHECK(floats(p.b) == std::vector<float>{-2, -1});
        }
}

TEST_CASE("scaler: a gradient made after unscale_ is scaled all the same", "[scaler]") {
    for (const Device device : test::devices()) {
        Pair p(device);
        SGD both({p.a, p.b}, {.lr = 1});
        p.backward(p.loss_a());
        p.scaler.unscale_(both);
        p.backward(p.loss_b());
        CHECK_THROWS_WITH(p.scaler.step(both), Contains("parameter 1 of this SGD there is a scaled one"));
        CHECK(floats(p.b) == std::vector<float>{3, 4});
        p.b.set_grad({});
        CHECK(p.scaler.step(both).stepped());
        p.scaler.update();

        p.first.zero_grad();
        p.backward(p.loss_a());
        p.scaler.unscale_(p.first);
        p.first.zero_grad();  // and the next one is not divided any more
        p.backward(p.loss_a());
        CHECK_THROWS_WITH(p.scaler.step(p.first), Contains("trunk (parameter 0)"));
    }
}

TEST_CASE("scaler: mixing is noticed on every way to a gradient", "[scaler]") {
    for (const Device device : test::devices()) {
        CAPTURE(name(device.type()));
        const Tensor w = ones({4, 3}, {.device = device}).set_requires_grad(),
                     x = ones({2, 4}, {.device = device});
        const auto product = [&] { return sum(matmul(x, w)); };
        SECTION(std::string("scaled before unscale_ ") + name(device.type())) {
            Tensor early;
            GradScaler other({.init_scale = 8});
            early = other.scale(product());
            mixing_is_reported(w, product(),
                               [&](GradScaler&) { autograd::backward({early}, {.retain_graph = true}); });
        }
        SECTION(std::string("inside the GEMM ") + name(device.type()))
        mixing_is_reported(w, product(), [&](GradScaler& s) { s.scale(product()).backward(); });
        SECTION(std::string("element-wise ") + name(device.type()))
        mixing_is_reported(w, product(), [&](GradScaler& s) { s.scale(sum(square(w))).backward(); });
        SECTION(std::string("only a part of the loss is scaled ") + name(device.type()))
        mixing_is_reported(w, product(), [&](GradScaler& s) { (s.scale(product()) + sum(w)).backward(); });
        SECTION(std::string("with a history ") + name(device.type()))
        mixing_is_reported(w, product(), [&](GradScaler& s) {
            autograd::backward({s.scale(sum(square(w)))}, {.create_graph = true});
        });
        SECTION(std::string("behind a hook ") + name(device.type())) {
            autograd::add_hook(w, [](const Tensor& g) { return g * 2.0; });
            mixing_is_reported(w, product(), [&](GradScaler& s) { s.scale(product()).backward(); });
        }
        SECTION(std::string("out of a checkpoint ") + name(device.type())) {
            const auto block = [&](const Tensors& in) -> Tensors { return {matmul(in[0], w)}; };
            mixing_is_reported(w, product(), [&](GradScaler& s) {
                s.scale(sum(autograd::checkpoint(block, {x})[0])).backward();
            });
        }
        SECTION(std::string("scaled inside a checkpoint ") + name(device.type()))
        mixing_is_reported(w, product(), [&](GradScaler& s) {
            const auto block = [&](const Tensors& in) -> Tensors { return {s.scale(sum(matmul(x, in[0])))}; };
            autograd::checkpoint(block, {w})[0].backward();
        });
        SECTION(std::string("out of a function of the user's ") + name(device.type()))
        mixing_is_reported(w, product(), [&](GradScaler& s) {
            const auto doubled = autograd::apply_function(
                {}, [](autograd::Context&, const Tensors& in) -> Tensors { return {in[0] * 2.0}; },
                [](autograd::Context&, const Tensors& g) -> Tensors { return {g[0] * 2.0}; }, {w});
            s.scale(sum(doubled[0])).backward();
        });
        SECTION(std::string("an embedding ") + name(device.type())) {
            const Tensor index = Tensor::from(std::vector<std::int64_t>{0, 2}, {2}).to(device);
            mixing_is_reported(w, product(),
                               [&](GradScaler& s) { s.scale(sum(embedding(w, index))).backward(); });
        }
    }
}

TEST_CASE("scaler: a gradient left from the last iteration is unscaled", "[scaler]") {
    for (const Device device : test::devices())
        for (const bool unscale : {false, true}) {
            Pair p(device);
            p.backward(p.loss_a());
            p.scaler.step(p.first);
            p.scaler.update();
            p.backward(p.loss_a());  // zero_grad() is missing
            if (unscale)
                CHECK_THROWS_WITH(p.scaler.unscale_(p.first), Contains("trunk (parameter 0) of this SGD"));
            CHECK_THROWS_WITH(p.scaler.step(p.first), Contains("zero_grad()"));
            CHECK(floats(p.a) == std::vector<float>{-2, -1});
            p.first.zero_grad();
            p.backward(p.loss_a());
            CHECK(p.scaler.step(p.first).stepped());
            CHECK(floats(p.a) == std::vector<float>{-5, -4});
        }
}

TEST_CASE("scaler: what is no mixture", "[scaler]") {
    for (const Device device : test::devices()) {
        Pair p(device);
        p.backward(p.loss_a());
        p.scaler.unscale_(p.first);
        p.loss_a(1).backward();  // an unscaled loss fits to unscaled gradients
        CHECK(p.scaler.step(p.first).stepped());
        p.scaler.update();
        CHECK(floats(p.a) == std::vector<float>{-3, -2});

        // Four ways to zero the gradient.
        const auto zero = [&](int way) {
            if (way == 0) p.first.zero_grad(false);
            if (way == 1) p.a.grad().zero_();
            if (way == 2) p.a.grad().fill_(0);
            if (way == 3) p.a.set_grad(zeros_like(p.a));
        };
        for (int way = 0; way < 4; ++way) {
            CAPTURE(way);
            zero(way);
            p.backward(p.loss_a(1));
            p.backward(p.loss_a(1));
            CHECK(p.scaler.step(p.first).stepped());
            p.scaler.update();
            CHECK(floats(p.a)[0] == -3.f - 2.f * float(way + 1));
        }
        // A mixture that is discarded.
        p.backward(p.loss_a(1));
        CHECK_THROWS_AS(p.scaler.step(p.first), Error);
        zero(1);
        p.loss_a(1).backward();
        p.first.step();
        CHECK(floats(p.a)[0] == -12);
    }
}

TEST_CASE("scaler: an empty parameter is no mixture", "[scaler]") {
    for (const Device device : test::devices()) {
        const Tensor a = leaf({1}).to(device).detach().set_requires_grad();
        const Tensor none = empty({0, 3}, {.device = device}).set_requires_grad();
        SGD optimizer({a, none}, {.lr = 1});
        GradScaler scaler({.init_scale = 4});
        for (int step = 0; step < 2; ++step) {  // the second one adds to gradients of the first
            scaler.scale(sum(a) + sum(none)).backward();
            scaler.unscale_(optimizer);
            CHECK(scaler.step(optimizer).stepped());
            scaler.update();
            a.set_grad({});
        }
        CHECK(a.item<float>() == -1);
    }
}

TEST_CASE("scaler: gradients with a history are divided once", "[scaler]") {
    for (const Device device : test::devices()) {
        Pair p(device);
        SGD both({p.a, p.b}, {.lr = 1});
        autograd::backward({p.scaler.scale(sum(square(p.a + p.b)))}, {.create_graph = true});
        p.scaler.unscale_(both);
        for (const Tensor& x : {p.a, p.b}) {
            CHECK(test::doubles(x.grad()) == std::vector<double>{8, 12});
            x.set_grad({});
        }
    }
}

TEST_CASE("scaler: what is known of a gradient goes with it", "[scaler]") {
    nn::Linear layer(2, 2);
    const auto loss = [&] { return sum(layer(ones({1, 2}, {.dtype = layer.weight.dtype()}))); };
    SGD optimizer(layer.parameters(), {.lr = 1});
    GradScaler scaler({.init_scale = 8});
    scaler.scale(loss()).backward();
    scaler.unscale_(optimizer);
    layer.to(float64);
    scaler.scale(loss()).backward();
    CHECK_THROWS_WITH(scaler.step(optimizer), Contains("scaled ones were added to unscaled"));
    layer.zero_grad(false);
    loss().backward();
    CHECK(scaler.step(optimizer).stepped());
}

TEST_CASE("scaler: it is moved, not copied", "[scaler]") {
    static_assert(!std::is_copy_constructible_v<GradScaler> && !std::is_copy_assignable_v<GradScaler>);
    static_assert(std::is_nothrow_move_constructible_v<GradScaler> &&
                  std::is_nothrow_move_assignable_v<GradScaler>);
    Bench b({.init_scale = 4, .growth_interval = 2});
    b.scales("o");
    b.backward();
    GradScaler moved = std::move(b.scaler);
    CHECK_THROWS_WITH(b.scaler.get_scale(), Contains("moved from"));
    CHECK(moved.step(b.optimizer).stepped());
    moved.update();
    CHECK(moved.get_scale() == 8);
    b.scaler = std::move(moved);
    CHECK(b.scales("o") == Scales{8});
    GradScaler other({.init_scale = 2});
    b.scaler = std::move(other);
    CHECK(b.scaler.get_scale() == 2);
    CHECK_THROWS_WITH(other.get_scale(), Contains("moved from"));
}

namespace {

// Reference model of a scaler, three parameters and two optimizers, with numbers for tensors. A gradient is
// the sum of a scaled and an unscaled part.
struct Model {
    static constexpr double scale = 8;
    static constexpr int of[3] = {0, 0, 1};  // the optimizer of each parameter
    struct Gradient {
        bool there = false;
        double scaled = 0, plain = 0;
        bool has_scaled = false, divided = false, two_scales = false;
        int iteration = 0;  // the number of update()s before the scaled parts
        double value() const { return scaled * scale + plain; }
    };
    enum class Stage { ready, unscaled, stepped };
    double w[3] = {1, 2, 3};
    Gradient g[3];
    Stage stage[2] = {Stage::ready, Stage::ready};
    bool checked[2] = {}, ever = false;
    int iteration = 0;

    void add(int i, double slope, bool scaled, int of_iteration = 0) {
        g[i].there = true;
        (scaled ? g[i].scaled : g[i].plain) += slope;
        if (!scaled) return;
        if (g[i].has_scaled && g[i].iteration != of_iteration) g[i].two_scales = true;
        if (!g[i].has_scaled) g[i].iteration = of_iteration;
        g[i].has_scaled = true;
    }
    // any_scale: scaled gradients may come from another iteration.
    bool any(int o, bool needs_divided, bool any_scale = false) const {
        for (int i = 0; i < 3; ++i)
            if (of[i] == o && g[i].there && g[i].has_scaled &&
                (g[i].two_scales || g[i].divided || !needs_divided ||
                 (!any_scale && g[i].iteration != iteration)))
                return true;
        return false;
    }
    bool has_gradient(int o) const {
        return (of[0] == o && (g[0].there || g[1].there)) || (of[2] == o && g[2].there);
    }
    void divide(int o) {
        for (int i = 0; i < 3; ++i)
            if (of[i] == o && g[i].there) {
                g[i] = {.there = true, .plain = g[i].value() / scale, .divided = true};
            }
    }
    void apply(int o) {
        for (int i = 0; i < 3; ++i)
            if (of[i] == o && g[i].there) w[i] -= g[i].value();
    }
    void zero(int o, bool drop) {
        for (int i = 0; i < 3; ++i)
            if (of[i] == o) g[i] = {.there = g[i].there && !drop};
    }
    // Each call returns whether it is legal.
    bool unscale(int o) {
        if (!ever || stage[o] != Stage::ready || any(o, true)) return false;
        if (has_gradient(o)) divide(o), checked[o] = true;
        stage[o] = Stage::unscaled;
        return true;
    }
    bool step(int o) {
        if (!ever || stage[o] == Stage::stepped || any(o, stage[o] == Stage::ready)) return false;
        if (stage[o] == Stage::ready && has_gradient(o)) divide(o), checked[o] = true;
        if (!checked[o]) return false;
        apply(o);
        stage[o] = Stage::stepped;
        return true;
    }
    bool plain_step(int o) {
        if (any(o, true, true)) return false;
        apply(o);
        return true;
    }
    bool update() {
        if (!checked[0] && !checked[1]) return false;
        ++iteration;
        for (int o = 0; o < 2; ++o) stage[o] = Stage::ready, checked[o] = false;
        return true;
    }
};

struct Sequence {
    Sequence(Device device, std::uint64_t seed) : state(seed * 2654435761u + 1) {
        for (int i = 0; i < 3; ++i) w.push_back(leaf({float(i + 1)}, device));
        optimizers.push_back(std::make_unique<SGD>(Tensors{w[0], w[1]}, optim::SGDOptions{.lr = 1}));
        optimizers.push_back(std::make_unique<SGD>(Tensors{w[2]}, optim::SGDOptions{.lr = 1}));
    }
    int draw(int n) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return int((state >> 33) % std::uint64_t(n));
    }
    // Legal calls must pass, others throw; in both cases nothing else may change.
    template <class Call> void expect(bool legal, const Call& call) {
        bool thrown = false;
        try {
            call();
        } catch (const Error& error) {
            thrown = true;
            CHECK(error.kind() == ErrorKind::state);
        }
        CHECK(thrown != legal);
    }
    Tensor loss(int reached, double slope) const {
        Tensor total;
        for (int i = 0; i < 3; ++i)
            if (reached >> i & 1)
                total =
                    total.defined() ? total + sum(w[std::size_t(i)] * slope) : sum(w[std::size_t(i)] * slope);
        return total;
    }
    void act() {
        const int o = draw(2), reached = 1 + draw(7);
        const double slope = 1 + draw(3);
        optim::Optimizer& optimizer = *optimizers[std::size_t(o)];
        switch (const int action = draw(14)) {
            case 0:
            case 1:
            case 2:
            case 3: {
                const bool scaled = action != 3;
                const Tensor l = loss(reached, slope);
                (scaled ? scaler.scale(l) : l).backward();
                model.ever = model.ever || scaled;
                for (int i = 0; i < 3; ++i)
                    if (reached >> i & 1) model.add(i, slope, scaled, model.iteration);
                break;
            }
            case 4:  // scaled now, backward later
                waiting.push_back({scaler.scale(loss(reached, slope)), reached, slope, model.iteration});
                model.ever = true;
                break;
            case 5:
                for (const auto& [scaled, at, factor, iteration] : waiting) {
                    scaled.backward();
                    for (int i = 0; i < 3; ++i)
                        if (at >> i & 1) model.add(i, factor, true, iteration);
                }
                waiting.clear();
                break;
            case 6:
                expect(model.unscale(o), [&] { scaler.unscale_(optimizer); });
                break;
            case 7:
            case 8:
                expect(model.step(o), [&] { scaler.step(optimizer); });
                break;
            case 9:
                expect(model.update(), [&] { scaler.update(); });
                break;
            case 10:
            case 11:
                optimizer.zero_grad(action == 10);
                model.zero(o, action == 10);
                break;
            case 12:
                expect(model.plain_step(o), [&] { optimizer.step(); });
                break;
            default:
                compare();
        }
    }
    void compare() const {
        for (std::size_t i = 0; i < 3; ++i) {
            REQUIRE(w[i].grad().defined() == model.g[i].there);
            if (model.g[i].there)
                CHECK(double(w[i].grad().item<float>()) == Approx(model.g[i].value()).margin(1e-5));
            CHECK(double(w[i].item<float>()) == Approx(model.w[i]).margin(1e-5));
        }
    }
    struct Waiting {
        Tensor scaled;
        int reached;
        double slope;
        int iteration;
    };
    std::uint64_t state;
    Tensors w;
    std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
    std::vector<Waiting> waiting;
    GradScaler scaler{{.init_scale = Model::scale, .growth_interval = 1000000}};
    Model model;
};

}  // namespace

TEST_CASE("scaler: random sequences of calls", "[scaler]") {
    for (const Device device : test::devices())
        for (std::uint64_t seed = 0; seed < 300; ++seed) {
            CAPTURE(name(device.type()), seed);
            Sequence sequence(device, seed);
            for (int i = 0; i < 40; ++i) sequence.act();
            sequence.compare();
        }
}
