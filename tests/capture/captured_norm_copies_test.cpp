// 16-bit copies of norms' results in captured steps: made by the step, or made before it.
#include <catch2/catch.hpp>

#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

Tensor values(const Shape& shape, int seed, Dtype dtype = float32) {
    return tensor_of(random_values(shape.numel(), std::uint64_t(seed), Domain::any), shape, dtype,
                     {DeviceType::cuda});
}

}  // namespace

TEST_CASE("captured step: copies of norms inside the step and from outside", "[cuda]") {
    if (no_device()) return;
    const Tensor x = values({4, 16}, 1), norm_weight = values({16}, 2), w = values({16, 16}, 3, float16);
    const auto normed = [&](const Tensor& rows) {
        const amp::Autocast open;
        return layer_norm(rows, norm_weight, {});
    };
    const Tensor outer = normed(x);
    const auto step = [&](const Tensors& in) {
        const Tensor inner = normed(in[0]);
        const amp::Autocast open;
        return Tensors{linear(inner, w) + linear(outer, w)};
    };
    cuda::CapturedStep captured(step, {.device = {DeviceType::cuda}});
    for (int i = 0; i < 8; ++i) {
        CAPTURE(i);
        const Tensor now = x * double(i + 1);
        if (i == 6) outer.mul_(3.0);  // a replay would read the copy, which is void now
        CHECK(doubles(captured({now})[0]) == doubles(step({now})[0]));
    }
    CHECK(captured.statistics().replays > 1);
}
