// The dtypes for storage only on the device: conversions with the bits of the CPU's, copies and fills.
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>

#include "mezzo/ops.h"
#include "tests/support/both_devices.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

constexpr Dtype storage[] = {int8, float8_e4m3fn, float8_e5m2, float8_e8m0fnu};

// The bytes of a tensor on the CPU.
std::string bytes_of(const Tensor& x) {
    const Tensor own = x.to(cpu_device).contiguous();
    return {own->bytes(), std::size_t(own.numel()) * size_of(own.dtype())};
}

// Describes the first element of a conversion whose codes differ, or "". Devices may drop the sign of NaN.
std::string differing(const std::string& actual, const std::string& expected, const Tensor& from) {
    const std::vector<double> values = doubles(from.flatten());
    for (std::size_t i = 0; i < values.size(); ++i) {
        const int mask = values[i] != values[i] ? 0x7f : 0xff;
        const int code = std::uint8_t(actual[i]), wanted = std::uint8_t(expected[i]);
        if ((code & mask) != (wanted & mask))
            return "element " + std::to_string(i) + ", " + std::to_string(values[i]) + ": " +
                   std::to_string(code) + ", not " + std::to_string(wanted);
    }
    return "";
}

// Converts on both devices; NaN has one sign and payload there and another here, so NaN equals NaN.
void same_as_cpu(const Tensor& host, Dtype to) {
    INFO(name(host.dtype()) << " to " << name(to));
    const Tensor expected = host.to(to), actual = host.to(cuda_device).to(to);
    CHECK(actual.dtype() == to);
    if (is_floating(to))
        CHECK(difference(doubles(actual), doubles(expected), {0, 0}) == "");
    else
        CHECK(differing(bytes_of(actual), bytes_of(expected), host) == "");
}

template <class Half> Tensor all_patterns(Dtype dtype) {
    std::vector<Half> values;
    for (unsigned bits = 0; bits <= 0xffff; ++bits) values.push_back(Half::from_bits(std::uint16_t(bits)));
    return Tensor::from<Half>(values, {0x10000}, {.dtype = dtype});
}

Tensor all_codes(Dtype dtype) {
    const Tensor x = empty({256}, {.dtype = dtype});
    for (int i = 0; i < 256; ++i) x->bytes()[i] = char(i);
    return x;
}

}  // namespace

TEST_CASE("cuda: floating numbers to dtypes for storage, with the bits of the CPU", "[cuda]") {
    if (no_device()) return;
    std::vector<float> floats;
    std::vector<double> doubles_{0x1p63, -0x1p63, 1e300, -1e300, 1e-300, 17.000000000001, -0x1.8000000001p7};
    for (std::uint64_t bits = 0; bits <= 0xffffffffu; bits += 104729) {
        const auto word = std::uint32_t(bits);
        float x = 0;
        std::memcpy(&x, &word, sizeof x);
        floats.push_back(x);
        if (bits % 8 == 0) doubles_.push_back(double(x) * (1 + 0x1p-40));
    }
    const Tensor wide = Tensor::from<double>(doubles_, {std::int64_t(doubles_.size())}, {.dtype = float64});
    for (const Dtype to : storage) {
        same_as_cpu(all_patterns<float16_t>(float16), to);
        same_as_cpu(all_patterns<bfloat16_t>(bfloat16), to);
        same_as_cpu(Tensor::from<float>(floats, {std::int64_t(floats.size())}), to);
        same_as_cpu(wide, to);
    }
}

TEST_CASE("cuda: all codes to every dtype, and integers to codes", "[cuda]") {
    if (no_device()) return;
    const std::vector<std::int64_t> whole{0,
                                          1,
                                          -1,
                                          17,
                                          127,
                                          128,
                                          300,
                                          -449,
                                          65537,
                                          1 << 30,
                                          (std::int64_t(3) << 61) - 1,
                                          std::numeric_limits<std::int64_t>::min()};
    const Tensor integers = Tensor::from<std::int64_t>(whole, {12}, {.dtype = int64});
    for (const Dtype dtype : storage) {
        for (const Dtype to : all_dtypes)
            if (is_floating(to) || is_storage_only(to) || to == boolean) same_as_cpu(all_codes(dtype), to);
        const Tensor small = full({5}, 3, {.dtype = dtype});
        for (const Dtype to : {int32, int64, uint8}) same_as_cpu(small, to);
        same_as_cpu(integers, dtype);
        same_as_cpu(integers.slice(0, 0, 9).to(int32), dtype);
        same_as_cpu(integers.slice(0, 0, 5).to(uint8), dtype);
        same_as_cpu(integers.slice(0, 0, 2).to(boolean), dtype);
    }
}

TEST_CASE("cuda: copies, joins and fills of dtypes for storage", "[cuda]") {
    if (no_device()) return;
    for (const Dtype dtype : storage) {
        CAPTURE(name(dtype));
        const Tensor host = all_codes(dtype).reshape({4, 8, 8}), x = host.to(cuda_device);
        CHECK(bytes_of(x.clone()) == bytes_of(host));
        CHECK(bytes_of(x.permute({2, 0, 1}).contiguous()) == bytes_of(host.permute({2, 0, 1})));
        CHECK(bytes_of(x.slice(2, 1, 8, 3).contiguous()) == bytes_of(host.slice(2, 1, 8, 3)));
        CHECK(bytes_of(x.permute({1, 2, 0}).to(float32)) == bytes_of(host.permute({1, 2, 0}).to(float32)));
        CHECK(bytes_of(cat({x, x.slice(1, 2, 5)}, 1)) == bytes_of(cat({host, host.slice(1, 2, 5)}, 1)));
        for (const double value : {0.0, -0.0, 1.0, -1.5, 100.0}) {
            CAPTURE(value);
            const Tensor a = full({3, 40}, 2, {.dtype = dtype}), b = a.to(cuda_device);
            CHECK(bytes_of(full({33}, value, {.dtype = dtype, .device = cuda_device})) ==
                  bytes_of(full({33}, value, {.dtype = dtype})));
            a.slice(1, 3, 20, 2).fill_(value);
            b.slice(1, 3, 20, 2).fill_(value);
            CHECK(bytes_of(b) == bytes_of(a));
        }
    }
}
