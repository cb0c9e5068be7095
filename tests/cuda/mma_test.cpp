// Each wrapper of cuda/mma.cuh alone, on a GPU or on the emulated device. The layouts are written out here a
// second time, from the PTX manual.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/cuda/device_array.h"
#include "tests/cuda/mma_kernels.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using test::DeviceArray;

std::vector<std::uint16_t> counted(int n) {
    std::vector<std::uint16_t> values;
    for (int i = 0; i < n; ++i) values.push_back(std::uint16_t(i + 1));
    return values;
}

template <class T> std::vector<T> rounded(const std::vector<double>& values) {
    std::vector<T> result;
    for (double v : values) result.push_back(T(float(v)));
    return result;
}

template <class T> std::vector<float> floats(const std::vector<T>& values) {
    std::vector<float> result;
    for (T v : values) result.push_back(float(v));
    return result;
}

std::vector<float> single(const std::vector<double>& values) { return {values.begin(), values.end()}; }

// a [16][16] b [16][8] + d [16][8].
std::vector<double> product(const std::vector<float>& a, const std::vector<float>& b,
                            const std::vector<float>& d) {
    std::vector<double> result(128);
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 8; ++j) {
            double sum = d[std::size_t(i * 8 + j)];
            for (int k = 0; k < 16; ++k)
                sum += double(a[std::size_t(i * 16 + k)]) * b[std::size_t(k * 8 + j)];
            result[std::size_t(i * 8 + j)] = sum;
        }
    return result;
}

void check_near(const std::vector<float>& actual, const std::vector<double>& expected) {
    const std::vector<double> values(actual.begin(), actual.end());
    CHECK(test::difference(values, expected, {1e-6, 1e-5}) == "");
}

template <class T> void check_products(Dtype dtype) {
    CAPTURE(name(dtype));
    const auto random = [](int n, std::uint64_t seed) {
        return test::random_values(n, seed, test::Domain::any);
    };
    const std::vector<T> a = rounded<T>(random(256, 1)), b = rounded<T>(random(128, 2));
    const std::vector<float> d = single(random(128, 3)), x = single(random(256, 4));
    const DeviceArray<T> device_a(a), device_b(b);
    const DeviceArray<float> sum(d), packed(128), device_x(x);
    test::run_multiply_add(dtype, device_a.data(), device_b.data(), sum.data());
    check_near(sum.host(), product(floats(a), floats(b), d));
    test::run_pack_operand(dtype, device_x.data(), device_b.data(), packed.data());
    const std::vector<T> rounded_x = rounded<T>(std::vector<double>(x.begin(), x.end()));
    check_near(packed.host(), product(floats(rounded_x), floats(b), std::vector<float>(128)));
}

}  // namespace

TEST_CASE("mma: copy_async brings whole and partial pieces", "[cuda]") {
    if (test::no_device()) return;
    const std::vector<std::uint16_t> values = counted(256);
    const DeviceArray<std::uint16_t> in(values), out(256);
    test::run_copy_async(in.data(), out.data());
    std::vector<std::uint16_t> expected = values;
    for (std::size_t i = 0; i < 256; ++i)
        if (i % 8 >= i / 8 % 9) expected[i] = 0;
    CHECK(out.host() == expected);
}

TEST_CASE("mma: copy_async_wait waits for the oldest groups", "[cuda]") {
    if (test::no_device()) return;
    const std::vector<std::uint16_t> values = counted(768);
    const DeviceArray<std::uint16_t> in(values), out(768);
    test::run_copy_groups(in.data(), out.data());
    CHECK(out.host() == values);
}

TEST_CASE("mma: load_matrices and its transpose", "[cuda]") {
    if (test::no_device()) return;
    const std::vector<std::uint16_t> values = counted(256);
    for (bool transposed : {false, true}) {
        CAPTURE(transposed);
        const DeviceArray<std::uint16_t> in(values), out(256);
        test::run_load_matrices(transposed, in.data(), out.data());
        std::vector<std::uint16_t> expected;
        for (int lane = 0; lane < 32; ++lane)
            for (int m = 0; m < 4; ++m)
                for (int e = 0; e < 2; ++e) {
                    const int row = lane / 4, column = lane % 4 * 2 + e;
                    const int at = transposed ? column * 8 + row : row * 8 + column;
                    expected.push_back(values[std::size_t(m * 64 + at)]);
                }
        CHECK(out.host() == expected);
    }
}

TEST_CASE("mma: multiply_add and pack_operand", "[cuda]") {
    if (test::no_device()) return;
    check_products<float16_t>(float16);
    if (test::multiplies(bfloat16)) check_products<bfloat16_t>(bfloat16);
}

TEST_CASE("mma: exp2_approximate", "[cuda]") {
    if (test::no_device()) return;
    std::vector<float> x = {-INFINITY, 0, 1, -1, -200, 10, INFINITY, NAN};
    while (x.size() < 32) x.push_back(0.37f * float(x.size()) - 9);
    const DeviceArray<float> in(x), out(32);
    test::run_exp2(in.data(), out.data());
    std::vector<double> expected;
    for (float v : x) expected.push_back(std::exp2(double(v)));
    const std::vector<float> values = out.host();
    CHECK(test::difference(std::vector<double>(values.begin(), values.end()), expected, {1e-6, 1e-38}) == "");
    CHECK(values[0] == 0);
}
