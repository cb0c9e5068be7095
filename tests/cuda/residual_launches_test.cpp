// Counts the kernel launches of residual connections on the CUDA device, real or emulated.
#include <catch2/catch.hpp>

#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

const Device gpu{DeviceType::cuda};

Tensor values(const Shape& shape, int seed) {
    return tensor_of(random_values(shape.numel(), std::uint64_t(seed), Domain::any), shape, float32, gpu);
}

template <class F> std::uint64_t launches(const F& f) {
    const std::uint64_t before = cuda::counters().launches;
    f();
    return cuda::counters().launches - before;
}

}  // namespace

TEST_CASE("residual gradients: the addition is no launch of its own", "[cuda]") {
    if (no_device()) return;
    using Branch = Tensor (*)(const Tensor&, const Tensor&);
    const struct {
        const char* what;
        Branch branch;
    } branches[] = {
        {"linear", [](const Tensor& h, const Tensor& w) { return linear(h, w); }},
        {"layer_norm", [](const Tensor& h, const Tensor& w) { return layer_norm(h, w[0], w[1]); }},
        {"rms_norm", [](const Tensor& h, const Tensor& w) { return rms_norm(h, w[0]); }},
    };
    for (const auto& one : branches)
        for (bool mixed : {false, true}) {
            CAPTURE(one.what, mixed);
            const Tensor x = values({2, 3, 16}, 1).set_requires_grad(), w = values({16, 16}, 2);
            const Tensor factors = values({2, 3, 16}, 3);
            // Backward visits the op that was recorded first last.
            const auto backward = [&](bool branch_last) {
                const amp::Autocast open({.dtype = bfloat16, .enabled = mixed});
                const Tensor h = x * 2.0;
                Tensor way, y;
                if (branch_last) y = one.branch(h, w);
                way = h * factors;
                if (!branch_last) y = one.branch(h, w);
                const Tensor loss = sum(y) + sum(way);
                return launches([&] { (void)autograd::grad({loss}, {x}); });
            };
            for (bool last : {false, true}) backward(last);  // fast paths are checked here
            CHECK(backward(true) + 1 == backward(false));
        }
}
