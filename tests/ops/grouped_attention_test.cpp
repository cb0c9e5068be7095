// Attention whose query heads share heads of keys and values, and rotary positions.
#include <catch2/catch.hpp>
#include <cmath>

#include "mezzo/attention_ops.h"
#include "mezzo/autograd.h"
#include "mezzo/shape_ops.h"
#include "tests/support/grad_check.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

constexpr std::int64_t batch = 2, heads = 6, shared = 2, query = 3, key = 5, dim = 8;

Tensor values(const Shape& shape, std::uint64_t seed, Dtype dtype, Device device) {
    return test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any), shape, dtype, device);
}

Tensor repeated(const Tensor& x) { return repeat_interleave(x, heads / shared, 1); }

// Difference between attention with shared key and value heads and the same with the heads repeated in
// memory.
std::string differs(const AttentionOptions& options, Dtype dtype, Device device) {
    Tensors leaves{values({batch, heads, query, dim}, 1, dtype, device),
                   values({batch, shared, key, dim}, 2, dtype, device),
                   values({batch, shared, key, dim}, 3, dtype, device)};
    Tensors again;
    for (const Tensor& x : leaves) again.push_back(x.clone());
    for (const Tensors& all : {leaves, again})
        for (const Tensor& x : all) x.set_requires_grad();
    const Tensor y = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], options);
    const Tensor z = scaled_dot_product_attention(again[0], repeated(again[1]), repeated(again[2]), options);
    y.backward({.gradient = values(y.shape(), 4, dtype, device)});
    z.backward({.gradient = values(y.shape(), 4, dtype, device)});
    const test::Tolerance allowed = test::tolerance(dtype);
    std::string result = test::difference(test::doubles(y), test::doubles(z), allowed);
    for (std::size_t i = 0; i < 3; ++i)
        result += test::difference(test::doubles(leaves[i].grad()), test::doubles(again[i].grad()),
                                   {4 * allowed.relative, 8 * allowed.absolute});
    return result;
}

}  // namespace

TEST_CASE("grouped attention is attention with repeated heads", "[ops][attention]") {
    for (const Device device : test::devices()) {
        const TensorOptions flags{.dtype = boolean, .device = device};
        const auto seen = [&](const Shape& shape) { return ge(values(shape, 7, float32, device), -1.0); };
        const auto added = [&](const Shape& shape) { return values(shape, 7, float32, device); };
        const AttentionOptions options[] = {{},
                                            {.causal = true},
                                            {.mask = ones({key}, flags)},
                                            {.mask = seen({query, key})},
                                            {.mask = seen({batch, 1, 1, key}), .causal = true},
                                            {.mask = seen({1, heads, query, key})},
                                            {.mask = seen({batch, heads, query, key}), .scale = 0.3},
                                            {.mask = added({heads, 1, key})}};
        for (const Dtype dtype : {float32, float64, bfloat16})
            for (std::size_t i = 0; i < std::size(options); ++i) {
                CAPTURE(device.type(), name(dtype), i);
                AttentionOptions own = options[i];
                if (own.mask.defined() && own.mask.dtype() != boolean) own.mask = own.mask.to(dtype);
                CHECK(differs(own, dtype, device) == "");
            }
    }
}

TEST_CASE("grouped attention refuses heads that do not divide", "[ops][attention]") {
    const Tensor q = ones({2, 6, 3, 8}), k = ones({2, 4, 3, 8});
    try {
        (void)scaled_dot_product_attention(q, k, k);
        FAIL("no error");
    } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::shape);
        CHECK_THAT(e.what(),
                   StartsWith("scaled_dot_product_attention: ") && Contains("6 heads") && Contains("4"));
    }
    CHECK_THROWS_AS(scaled_dot_product_attention(q, ones({2, 0, 3, 8}), ones({2, 0, 3, 8})), Error);
    CHECK(scaled_dot_product_attention(ones({0, 6, 3, 8}), ones({0, 2, 3, 8}), ones({0, 2, 3, 8})).shape() ==
          Shape{0, 6, 3, 8});
}

TEST_CASE("rotary_embedding turns pairs by their angles", "[ops][attention]") {
    const std::int64_t length = 3;
    for (const Device device : test::devices()) {
        for (const Dtype dtype : {float32, float64, float16, bfloat16}) {
            CAPTURE(device.type(), name(dtype));
            const Tensor x = values({batch, 2, length, dim}, 1, dtype, device);
            const Dtype real = dtype == float64 ? float64 : float32;
            for (const bool own : {false, true}) {
                const Tensor angles =
                    values(own ? Shape{batch, length, dim / 2} : Shape{length, dim / 2}, 5, real, device);
                for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::neighbours}) {
                    const Tensor y = rotary_embedding(x, cos(angles), sin(angles), pairs);
                    CHECK(y.dtype() == dtype);
                    const std::vector<double> in = test::doubles(x), angle = test::doubles(angles);
                    std::vector<double> expected(in.size());
                    for (std::int64_t row = 0; row < batch * 2 * length; ++row)
                        for (std::int64_t i = 0; i < dim / 2; ++i) {
                            const bool halves = pairs == RotaryPairs::halves;
                            const std::int64_t a = row * dim + (halves ? i : 2 * i),
                                               b = a + (halves ? dim / 2 : 1);
                            const std::int64_t place =
                                own ? row / (2 * length) * length + row % length : row % length;
                            const double phi = angle[std::size_t(place * dim / 2 + i)];
                            const double p = in[std::size_t(a)], q = in[std::size_t(b)];
                            expected[std::size_t(a)] = p * std::cos(phi) - q * std::sin(phi);
                            expected[std::size_t(b)] = q * std::cos(phi) + p * std::sin(phi);
                        }
                    CHECK(test::difference(test::doubles(y), expected, test::tolerance(dtype)) == "");
                }
            }
        }
    }
}

TEST_CASE("rotary_embedding refuses what does not fit", "[ops][attention]") {
    const auto refused = [](const Tensor& x, const Tensor& cos, const Tensor& sin,
                            ErrorKind kind) -> std::string {
        try {
            (void)rotary_embedding(x, cos, sin);
        } catch (const Error& e) {
            CHECK(e.kind() == kind);
            CHECK_THAT(e.what(), StartsWith("rotary_embedding: "));
            return e.what();
        }
        return "no error";
    };
    const Tensor x = ones({2, 3, 4, 6}), table = ones({4, 3});
    CHECK_THAT(refused(x[0], table, table, ErrorKind::shape), Contains("[3, 4, 6]"));
    CHECK_THAT(refused(ones({2, 3, 4, 5}), table, table, ErrorKind::shape), Contains("even"));
    CHECK_THAT(refused(x, ones({4, 6}), table, ErrorKind::shape), Contains("[4, 6]"));
    CHECK_THAT(refused(x, ones({3, 4, 3}), ones({3, 4, 3}), ErrorKind::shape), Contains("[3, 4, 3]"));
    CHECK_THAT(refused(x, table.to(int64), table, ErrorKind::dtype), Contains("int64"));
    CHECK_THAT(refused(x, Tensor(), table, ErrorKind::value), Contains("rotary_embedding"));
    CHECK(rotary_embedding(ones({0, 3, 4, 6}), table, table).shape() == Shape{0, 3, 4, 6});
}
