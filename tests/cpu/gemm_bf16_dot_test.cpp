// The kernels that multiply bfloat16 in pairs of k: odd k, subnormals, other types.

#include "tests/cpu/gemm_case.h"

using namespace gemm_case;

namespace {

// Whether the variant flushes subnormal operands and sums to zero, as the bf16 dot instructions do; every
// other kernel keeps them.
bool flushes(const Variant& v) {
    return v.name == "avx512_bf16" || v.name == "tile model" || v.name == "amx";
}

// One element of a 16 x 48 product of constant matrices.
float product(double x, Dtype x_type, double y, Dtype y_type, std::int64_t k, bool transposed,
              const cpu::GemmKernels& kernels) {
    Matrix a(transposed ? k : 16, transposed ? 16 : k, x_type),
        b(transposed ? 48 : k, transposed ? k : 48, y_type);
    Matrix c(16, 48, float32);
    a.fill([=] { return x; }), b.fill([=] { return y; });
    cpu::gemm(gemm_of(a, b, c, transposed, transposed), kernels);
    for (std::int64_t i = 0; i < 16; ++i)
        for (std::int64_t j = 0; j < 48; ++j) CHECK(c.at(0, i, j) == c.at(0, 0, 0));
    return float(c.at(0, 0, 0));
}

}  // namespace

TEST_CASE("gemm: odd and even numbers of steps", "[gemm]") {
    for (const Variant& v : variants())
        for (const bool transposed : {false, true})
            for (const std::int64_t k : {1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 1023, 1025})
                CHECK(product(3.0, bfloat16, 0.5, bfloat16, k, transposed, *v.kernels) == 1.5f * float(k));
}

TEST_CASE("gemm: subnormal bfloat16 operands and sums", "[gemm]") {
    for (const Variant& v : variants()) {
        INFO(v.name);
        const auto times = [&](double x, double y) {
            return product(x, bfloat16, y, bfloat16, 1, false, *v.kernels);
        };
        CHECK(times(0x1p-60, 0x1p-60) == 0x1p-120f);
        CHECK(times(0x1p-126, 1.0) == 0x1p-126f);
        CHECK(times(0x1p-130, 1.0) == (flushes(v) ? 0.0f : 0x1p-130f));
        CHECK(times(0x1p-130, 0x1p20) == (flushes(v) ? 0.0f : 0x1p-110f));
        CHECK(times(0x1p-65, 0x1p-65) == (flushes(v) ? 0.0f : 0x1p-130f));
        // Only pairs of bfloat16 use that kernel.
        CHECK(product(0x1p-130, bfloat16, 1.0, float32, 1, false, *v.kernels) == 0x1p-130f);
        CHECK(product(0x1p-130, float32, 1.0, bfloat16, 1, true, *v.kernels) == 0x1p-130f);
        CHECK(product(0x1p-20, float16, 0x1p-110, bfloat16, 1, false, *v.kernels) == 0x1p-130f);
    }
}

TEST_CASE("gemm: the instruction set in use decides on subnormal bfloat16", "[gemm]") {
    for (const cpu::Isa isa : cpu::all_isas) {
        if (isa > cpu::best_isa()) continue;
        cpu::force_isa(isa);
        const float got = product(0x1p-130, bfloat16, 1.0, bfloat16, 4, false, cpu::gemm_kernels(isa));
        CHECK(got == (isa >= cpu::Isa::avx512_bf16 ? 0.0f : 0x1p-128f));
        CHECK(cpu::name(isa) == std::string(cpu::name(cpu::active_isa())));
    }
    cpu::release_isa();
}
