// Checks everything that other code on a CUDA device needs, one thing per case and the simplest first: if a
// device, a driver or a toolkit is not as expected, the first case that fails says so. tools/gpu_check begins
// with it.
#include <catch2/catch.hpp>
#include <numeric>

#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/mma_kernels.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using test::DeviceArray;

const Device gpu{DeviceType::cuda};

std::vector<std::uint16_t> counted() {
    std::vector<std::uint16_t> values(256);
    std::iota(values.begin(), values.end(), std::uint16_t(1));
    return values;
}

// Small whole numbers, whose products and sums are exact in every dtype.
Tensor whole_numbers(std::int64_t rows, std::int64_t cols, int modulus, Dtype dtype, Device device) {
    std::vector<double> values(std::size_t(rows * cols));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = double(i % std::size_t(modulus)) - 1;
    return test::tensor_of(values, {rows, cols}, dtype, device);
}

void check_product(Dtype dtype) {
    CAPTURE(name(dtype));
    const auto product = [&](Device device) {
        return matmul(whole_numbers(24, 40, 3, dtype, device), whole_numbers(40, 16, 4, dtype, device));
    };
    CHECK(product(gpu).to(cpu_device).to(float64).to_vector<double>() ==
          product(cpu_device).to(float64).to_vector<double>());
}

}  // namespace

TEST_CASE("smoke: memory of the device, filled and copied back", "[cuda]") {
    if (test::no_device()) return;
    const DeviceArray<std::uint16_t> x(counted());
    CHECK(x.host() == counted());
    cuda::fill_zero(x.data(), 2 * x.size());
    CHECK(x.host() == std::vector<std::uint16_t>(256));
}

TEST_CASE("smoke: one kernel", "[cuda]") {
    if (test::no_device()) return;
    const Tensor x = whole_numbers(8, 32, 100, float32, gpu);
    CHECK((x + x).to(cpu_device).to_vector<float>() ==
          (2 * whole_numbers(8, 32, 100, float32, cpu_device)).to_vector<float>());
}

TEST_CASE("smoke: one product in float32", "[cuda]") {
    if (test::no_device()) return;
    check_product(float32);
}

TEST_CASE("smoke: one product in float16", "[cuda]") {
    if (test::no_device()) return;
    check_product(float16);
}

TEST_CASE("smoke: one product in bfloat16", "[cuda]") {
    if (test::no_device()) return;
    check_product(bfloat16);
}

TEST_CASE("smoke: one product in TF32", "[cuda]") {
    if (test::no_device()) return;
    set_float32_matmul_precision(Float32MatmulPrecision::high);
    check_product(float32);
    set_float32_matmul_precision(Float32MatmulPrecision::highest);
}

TEST_CASE("smoke: one product in float64", "[cuda]") {
    if (test::no_device()) return;
    check_product(float64);
}

TEST_CASE("smoke: one capture, replayed", "[cuda]") {
    if (test::no_device()) return;
    cuda::CapturedStep step([](const Tensors& inputs) { return Tensors{inputs[0] * 2 + 1}; },
                            {.warmup = 1, .device = gpu});
    for (int offset : {0, 1, 2, 3}) {
        const Tensor x = whole_numbers(8, 32, 100, float32, cpu_device) + offset;
        CHECK(step({x})[0].to(cpu_device).to_vector<float>() == (x * 2 + 1).to_vector<float>());
    }
    CHECK(step.statistics().replays >= 2);
}

TEST_CASE("smoke: cp.async", "[cuda]") {
    if (test::no_device()) return;
    const DeviceArray<std::uint16_t> in(counted()), out(256);
    test::run_copy_async(in.data(), out.data());
    std::vector<std::uint16_t> expected = counted();
    for (std::size_t i = 0; i < 256; ++i)
        if (i % 8 >= i / 8 % 9) expected[i] = 0;
    CHECK(out.host() == expected);
}

TEST_CASE("smoke: ldmatrix", "[cuda]") {
    if (test::no_device()) return;
    const DeviceArray<std::uint16_t> in(counted()), out(256);
    test::run_load_matrices(false, in.data(), out.data());
    const std::vector<std::uint16_t> found = out.host();
    CHECK(std::vector<std::uint16_t>(found.begin(), found.begin() + 4) ==
          std::vector<std::uint16_t>{1, 2, 65, 66});
}

TEST_CASE("smoke: mma.sync", "[cuda]") {
    if (test::no_device()) return;
    for (Dtype dtype : {float16, bfloat16}) {
        CAPTURE(name(dtype));
        if (!test::multiplies(dtype)) continue;
        const std::vector<std::uint16_t> twos(256, 0x4000);  // of either dtype
        const DeviceArray<std::uint16_t> a(twos), b(twos);
        const DeviceArray<float> d(std::vector<float>(128, 3));
        test::run_multiply_add(dtype, a.data(), b.data(), d.data());
        CHECK(d.host() == std::vector<float>(128, 67));
    }
}
