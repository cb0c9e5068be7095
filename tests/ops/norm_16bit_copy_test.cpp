// Under autocast a normalisation writes its result a second time, in 16 bit: the copy that the next product
// would otherwise make.
#include <catch2/catch.hpp>

#include "autograd/autocast_state.h"
#include "mezzo/mezzo.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

enum class Norm { layer, rms, dropped, dropped_without_mask };
constexpr Norm norms[] = {Norm::layer, Norm::rms, Norm::dropped, Norm::dropped_without_mask};

struct Given {
    Tensor x, residual, w, b;
    Given(const Shape& shape, Dtype dtype, Device device)
        : x(tensor_of(random_values(shape.numel(), 1, Domain::any), shape, dtype, device)),
          residual(tensor_of(random_values(shape.numel(), 2, Domain::any), shape, float32, device)),
          w(tensor_of(random_values(shape.back(), 3, Domain::positive), {shape.back()}, float32, device)),
          b(tensor_of(random_values(shape.back(), 4, Domain::any), {shape.back()}, float32, device)) {}
    const Given& recorded() const {
        for (const Tensor& t : {x, residual, w, b}) t.set_requires_grad();
        return *this;
    }
    Tensor run(Norm norm) const {
        if (norm == Norm::layer) return layer_norm(x, w, b);
        if (norm == Norm::rms) return rms_norm(x, w);
        manual_seed(5);
        return dropout_add_layer_norm(x, b, residual, w, b, {.p = norm == Norm::dropped ? 0.3 : 0.0});
    }
};

Tensor copy_of(const Tensor& y) { return y->grad_meta != nullptr ? y->grad_meta->copy16.value : Tensor(); }

Tensor matrix(std::int64_t rows, std::int64_t cols, Dtype dtype, Device device) {
    return tensor_of(random_values(rows * cols, 6, Domain::any), {rows, cols}, dtype, device);
}

std::uint64_t casts() { return autocast_counters().casts; }

}  // namespace

TEST_CASE("a norm's 16-bit copy has the bits of a conversion of its result", "[norm][autocast]") {
    for (Device device : devices())
        for (Dtype scope : {float16, bfloat16})
            for (Norm norm : norms)
                // Every case of the CUDA kernels: warps with 4 and 8 packs, blocks, odd and very long rows.
                for (const Shape& shape : {Shape{5, 7}, Shape{3, 4, 384}, Shape{6, 768}, Shape{2, 1000},
                                           Shape{3, 1536}, Shape{2, 9000}, Shape{16}, Shape{0, 8}})
                    for (Dtype dtype : {float32, scope}) {
                        CAPTURE(name(device.type()), name(scope), int(norm), shape.numel(), name(dtype));
                        const Given t(shape, dtype, device);
                        const amp::Autocast open({.device = device.type(), .dtype = scope});
                        const Tensor y = t.run(norm);
                        REQUIRE(copy_of(y).defined());
                        CHECK(y.dtype() == float32);
                        CHECK(copy_of(y).dtype() == scope);
                        CHECK(copy_of(y).shape() == shape);
                        CHECK(doubles(copy_of(y)) == doubles(y.to(scope)));
                        const Tensor recorded = t.recorded().run(norm);
                        CHECK(doubles(recorded) == doubles(y));
                        CHECK(doubles(copy_of(recorded)) == doubles(copy_of(y)));
                    }
}

TEST_CASE("products read a norm's copy, and none of them converts it", "[norm][autocast]") {
    for (Device device : devices())
        for (Dtype scope : {float16, bfloat16})
            for (Norm norm : norms) {
                CAPTURE(name(device.type()), name(scope), int(norm));
                const Given t = Given({2, 6, 24}, float32, device).recorded();
                const Tensor w = matrix(10, 24, scope, device);
                const amp::Autocast open({.device = device.type(), .dtype = scope});
                const Tensor y = t.run(norm);
                const std::uint64_t before = casts();
                const Tensor z = linear(y, w), again = linear(y, w);
                CHECK(casts() == before);
                CHECK(doubles(z) == doubles(linear(y.detach(), w)));
                CHECK(casts() == before + 1);
                CHECK(doubles(again) == doubles(z));
            }
}

TEST_CASE("gradients through a norm's copy are those through a conversion", "[norm][autocast]") {
    for (Device device : devices())
        for (Norm norm : norms) {
            CAPTURE(name(device.type()), int(norm));
            const Given t = Given({2, 6, 24}, float32, device).recorded();
            const Tensor w = matrix(24, 24, float32, device).set_requires_grad();
            const auto run = [&](bool copies, bool second) {
                const amp::Autocast open({.device = device.type(), .dtype = bfloat16, .cache = copies});
                const Tensor y = t.run(norm);
                CHECK(copy_of(y).defined() == copies);
                const Tensor loss = sum(linear(y, w).to(float32) * y);
                const Tensors leaves{t.x, t.w, w};
                Tensors grads = autograd::grad({loss}, leaves, {.create_graph = second});
                if (second)
                    grads = autograd::grad({sum(grads[0] * grads[0]) + sum(grads[2] * grads[2])}, leaves);
                std::vector<std::vector<double>> values;
                for (const Tensor& g : grads) values.push_back(doubles(g));
                return values;
            };
            CHECK(run(true, false) == run(false, false));
            CHECK(run(true, true) == run(false, true));
        }
}

TEST_CASE("a norm writes no copy where nothing would read it", "[norm][autocast]") {
    for (Device device : devices())
        for (Norm norm : norms) {
            CAPTURE(name(device.type()), int(norm));
            const Given t({4, 16}, float32, device);
            CHECK_FALSE(copy_of(t.run(norm)).defined());
            {
                const amp::Autocast open({.device = DeviceType::custom});
                CHECK_FALSE(copy_of(t.run(norm)).defined());
            }
            {
                const amp::Autocast open({.enabled = false});
                CHECK_FALSE(copy_of(t.run(norm)).defined());
            }
            {
                const amp::Autocast open({.cache = false});
                CHECK_FALSE(copy_of(t.run(norm)).defined());
            }
            const amp::Autocast open;
            CHECK_FALSE(copy_of(layer_norm(t.x.to(float64))).defined());
        }
}

TEST_CASE("a write to a norm's result makes its copy void", "[norm][autocast]") {
    for (Device device : devices()) {
        CAPTURE(name(device.type()));
        const Given t({4, 16}, float32, device);
        const Tensor w = matrix(8, 16, float16, device);
        const amp::Autocast open;
        const Tensor y = t.run(Norm::layer), doubled = y.detach() * 2.0;
        const std::uint64_t before = casts();
        y.mul_(2.0);
        CHECK(doubles(linear(y, w)) == doubles(linear(doubled, w)));
        CHECK(casts() == before + 2);
        // A scope of the other dtype does not use the copy.
        const amp::Autocast other({.dtype = bfloat16});
        const Tensor z = t.run(Norm::layer);
        const amp::Autocast back({.dtype = float16});
        CHECK(linear(z, w).dtype() == float16);
        CHECK(casts() == before + 3);
    }
}

TEST_CASE("a product that has read a norm's copy keeps the copy alone", "[norm][autocast]") {
    for (Device device : devices()) {
        CAPTURE(name(device.type()));
        const Given t = Given({4, 16}, float32, device).recorded();
        const Tensor w = matrix(8, 16, bfloat16, device).set_requires_grad();
        const LiveObjects begin = live_objects();
        {
            const amp::Autocast open({.dtype = bfloat16});
            Tensor y = t.run(Norm::rms);
            const Tensor z = linear(y, w);
            const LiveObjects with = live_objects();
            y = Tensor();  // its float32 elements go, and the copy stays for the weight's gradient
            CHECK(live_objects().storages == with.storages - 1);
        }
        CHECK(live_objects().storages == begin.storages);
    }
}

TEST_CASE("a norm's copy goes in and out of the first run of a checkpoint", "[norm][autocast]") {
    for (Device device : devices()) {
        CAPTURE(name(device.type()));
        const Given t = Given({4, 16}, float32, device).recorded();
        const Tensor w = matrix(16, 16, float16, device);
        const amp::Autocast open;
        const auto segment = [&](const Tensors& in) {
            return Tensors{layer_norm(linear(in[0], w), t.w, t.b)};
        };
        const Tensor y = t.run(Norm::layer);
        const std::uint64_t before = casts();
        const Tensor once = autograd::checkpoint(segment, {y})[0],
                     twice = autograd::checkpoint(segment, {once})[0];
        CHECK(casts() == before);
        const Tensor direct = segment({segment({y})[0]})[0];
        CHECK(doubles(twice) == doubles(direct));
        const Tensors leaves{t.x, t.w};
        const Tensors actual = autograd::grad({sum(twice)}, leaves, {.retain_graph = true}),
                      wanted = autograd::grad({sum(direct)}, leaves);
        for (std::size_t i = 0; i < 2; ++i)
            CHECK(difference(doubles(actual[i]), doubles(wanted[i]), {1e-6, 1e-6}) == "");
    }
}
