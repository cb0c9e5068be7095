// The kernel that makes float8 codes: its codes and scales are those of ops, which the third backend runs.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "mezzo/device.h"
#include "mezzo/ops.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/quantize.h"
#include "ops/gemm/fp8_product.h"
#include "tests/third_backend/backend.h"

using namespace mezzo;
using test::third_backend;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

Tensor numbers(const Shape& shape, Dtype dtype) {
    const Tensor x = randn(shape);
    return where(rand(shape) < 0.02, x * 20, x).to(dtype);
}

void check_same(const Quantized& kernel, const Quantized& ops) {
    CHECK(equal(as_dtype(kernel.codes, uint8), as_dtype(ops.codes, uint8).to(cpu_device)));
    CHECK(equal(kernel.scale, ops.scale.to(cpu_device)));
    CHECK(equal(kernel.inverse, 1.0 / kernel.scale));
}

void compare(const Tensor& x, const QuantizeOptions& options) {
    const Tensor far = x.to(third_backend());
    for (const Granularity granularity : {Granularity::tensor, Granularity::row}) {
        CAPTURE(int(granularity));
        const QuantizeOptions all{options.dtype, granularity, options.exact_scale};
        check_same(quantize(x, all), quantize(far, all));
    }
    for (const float last : {0.0f, 0.7f, 1e-30f}) {
        CAPTURE(last);
        const Tensor history = full({1, 1}, last);
        const double margin = 1.5;
        const Fp8Codes kernel = quantize_delayed(x, history, options, margin);
        const Fp8Codes ops = quantize_delayed(far, history.to(third_backend()), options, margin);
        check_same(kernel.both.matrix, ops.both.matrix);
        check_same(kernel.both.transposed, ops.both.transposed);
        const auto largest = kernel.largest.item<float>(), expected = ops.largest.item<float>();
        CHECK((largest == expected || (std::isnan(largest) && std::isnan(expected))));
    }
}

}  // namespace

TEST_CASE("quantize: codes and scales of the kernel are those of ops", "[amp]") {
    manual_seed(5);
    const float special[] = {0, 1e-38f, 1e-45f, inf, -inf, std::nanf("")};
    for (const Shape& shape : {Shape{1, 1}, Shape{40, 33}, Shape{3, 1030}})
        for (const Dtype dtype : {float32, bfloat16, float16})
            for (const Dtype code : {float8_e4m3fn, float8_e5m2})
                for (const bool exact : {false, true})
                    for (int which = -1; which < 6; ++which) {
                        CAPTURE(shape, name(dtype), name(code), which, exact);
                        const Tensor x = numbers(shape, dtype);
                        if (which == 0) x.zero_();
                        if (which > 0) x[0].slice(0, 0, 1).fill_(special[which]);
                        compare(x, {.dtype = code, .exact_scale = exact});
                    }
}

TEST_CASE("quantize: codes and scales do not depend on the number of threads", "[amp]") {
    manual_seed(6);
    const Tensor x = numbers({40, 1027}, bfloat16);
    const int before = num_threads();
    set_num_threads(3);
    compare(x, {});
    set_num_threads(before);
}
