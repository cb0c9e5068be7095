// Gradients whose scale is no longer the scaler's: from before an update(), or from another scaler.
#include "mezzo/mezzo.h"
#include "tests/amp/scaler_bench.h"

namespace {

struct Pair {
    explicit Pair(Device device = {}, const GradScalerOptions& options = {.init_scale = 8})
        : a(leaf({1, 2}, device)), b(leaf({3, 4}, device)), scaler(options) {}
    void backward(const Tensor& x, double slope) { scaler.scale(sum(x * slope)).backward(); }

    Tensor a, b;
    SGD first{StateDict{{"trunk", a}}, {.lr = 1}}, second{StateDict{{"head", b}}, {.lr = 1}};
    GradScaler scaler;
};

// Ways to change the scale.
enum class Change { number, tensor, load, other_scaler, overflow, clean_step };

// Changes the scale of p.scaler. Returns the scaler to go on with.
GradScaler& change_scale(Pair& p, GradScaler& other, Change change) {
    if (change == Change::number) p.scaler.update(4.0);
    if (change == Change::tensor) p.scaler.update(full({}, 4.0, {.device = p.a.device()}));
    if (change == Change::load) p.scaler.load_state_dict(other.state_dict());
    if (change == Change::overflow || change == Change::clean_step) {
        p.backward(p.b, change == Change::overflow ? double(inf) : 1.0);
        p.scaler.step(p.second);
        p.scaler.update();
    }
    return change == Change::other_scaler ? other : p.scaler;
}

constexpr Change changes[] = {Change::number,       Change::tensor,   Change::load,
                              Change::other_scaler, Change::overflow, Change::clean_step};

}  // namespace

TEST_CASE("scaler: parts under two different scales are reported", "[scaler]") {
    for (const Device device : test::devices())
        for (const Change change : changes) {
            CAPTURE(int(change), device);
            Pair p(device);
            GradScaler other({.init_scale = 4});
            p.backward(p.a, 3);
            change_scale(p, other, change).scale(sum(p.a * 3.0)).backward();
            const char* const words = "trunk (parameter 0) of this SGD parts under two different scales";
            CHECK_THROWS_WITH(p.scaler.unscale_(p.first), Contains(words));
            CHECK_THROWS_WITH(p.scaler.step(p.first), Contains(words));
            CHECK_THROWS_WITH(p.first.step(), Contains(words));
            CHECK(floats(p.a) == std::vector<float>{1, 2});
            p.first.zero_grad();
            p.backward(p.a, 3);
            p.backward(p.a, 3);
            CHECK(p.scaler.step(p.first).stepped());
            CHECK(floats(p.a) == std::vector<float>{-5, -4});
        }
}

TEST_CASE("scaler: a gradient is divided by its own scale only", "[scaler]") {
    for (const Device device : test::devices())
        for (const Change change : changes) {
            CAPTURE(int(change), device);
            Pair p(device);
            GradScaler other({.init_scale = 4});
            other.scale(sum(p.b));  // so that it is in use
            p.backward(p.a, 3);
            GradScaler& now = change_scale(p, other, change);
            const char* const words = "trunk (parameter 0) of this SGD there is one under another scale";
            CHECK_THROWS_WITH(now.unscale_(p.first), Contains(words) && Contains("zero_grad()"));
            CHECK_THROWS_WITH(now.step(p.first), Contains(words));
            CHECK(floats(p.a) == std::vector<float>{1, 2});
            CHECK(floats(p.a.grad()) == std::vector<float>{24, 24});
            p.first.zero_grad();
            now.scale(sum(p.a * 3.0)).backward();
            CHECK(now.step(p.first).stepped());
            CHECK(floats(p.a) == std::vector<float>{-2, -1});
        }
}

TEST_CASE("scaler: a loss that was scaled before update() comes too late", "[scaler]") {
    for (const Device device : test::devices()) {
        Pair p(device);
        const Tensor late = p.scaler.scale(sum(p.a));
        p.backward(p.b, 1);
        p.scaler.step(p.second);
        p.scaler.update();
        late.backward();
        CHECK_THROWS_WITH(p.scaler.step(p.first), Contains("there is one under another scale"));
    }
}

TEST_CASE("scaler: the usual orders of calls keep one scale per gradient", "[scaler]") {
    for (const Device device : test::devices())
        for (const bool in_place : {false, true}) {  // how zero_grad() works
            Pair p(device, {.init_scale = 8, .growth_interval = 2});
            float a = 1, b = 3;
            for (int i = 0; i < 9; ++i) {
                const bool overflow = i % 3 == 2;
                for (int m = 0; m < 3; ++m) p.backward(p.a, m == 1 && overflow ? double(inf) : 1.0);
                p.backward(p.b, 2);
                if (i % 2 == 0) p.scaler.unscale_(p.first);
                CHECK(p.scaler.step(p.first).stepped() == !overflow);
                CHECK(p.scaler.step(p.second).stepped());
                p.scaler.update();
                p.first.zero_grad(!in_place);
                p.second.zero_grad(!in_place);
                if (!overflow) a -= 3;
                b -= 2;
                CHECK((floats(p.a)[0] == a && floats(p.b)[0] == b));
            }
        }
}

TEST_CASE("scaler: gradients may be accumulated across update() if the scale is fixed", "[scaler]") {
    for (const Device device : test::devices()) {
        Pair p(device, {.init_scale = 8, .dynamic = false});
        p.backward(p.a, 3);
        for (const double slope : {1.0, double(inf)}) {
            p.backward(p.b, slope);
            p.scaler.step(p.second);
            p.scaler.update();
            p.second.zero_grad();
        }
        p.backward(p.a, 3);
        CHECK(p.scaler.step(p.first).stepped());
        CHECK(floats(p.a) == std::vector<float>{-5, -4});
    }
}
