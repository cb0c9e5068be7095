// Ops that the CPU computes in another way where rows are short, lines long or dimensions neighbours: the
// results are those of the plain way.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "mezzo/autograd.h"
#include "mezzo/image_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/shape_ops.h"
#include "mezzo/sort_ops.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

using Integers = std::vector<std::int64_t>;

// Positions in order; equal values keep theirs.
Integers order_of(const Integers& values, bool descending) {
    Integers order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        const std::int64_t x = values[std::size_t(a)], y = values[std::size_t(b)];
        return descending ? x > y : x < y;
    });
    return order;
}

void check_sorted(const Integers& values) {
    const Tensor x = Tensor::from(values, {std::int64_t(values.size())});
    for (const bool descending : {false, true})
        CHECK(argsort(x, 0, {.descending = descending}).to_vector<std::int64_t>() ==
              order_of(values, descending));
}

}  // namespace

TEST_CASE("long lines are sorted as by std::stable_sort", "[ops]") {
    constexpr std::int64_t n = 70001;
    std::mt19937_64 bits(1);
    Integers values(static_cast<std::size_t>(n));
    for (const std::uint64_t range : {std::uint64_t(1), std::uint64_t(1000), std::uint64_t(1) << 40}) {
        for (std::int64_t& v : values) v = std::int64_t(bits() % range) - std::int64_t(range / 2);
        check_sorted(values);
    }
    values[5] = std::numeric_limits<std::int64_t>::max();  // with the least the difference takes 64 bits
    values.back() = std::numeric_limits<std::int64_t>::min();
    check_sorted(values);
    Tensor columns = randn({n, 2});
    columns.slice(0, 0, n, 9).fill_(NAN);
    const std::vector<double> sorted = doubles(sort(columns, 0).values);
    for (const std::size_t c : {0u, 1u}) {
        bool ordered = true;
        for (std::size_t i = 2 + c; i < sorted.size(); i += 2)
            ordered &= sorted[i - 2] <= sorted[i] || sorted[i] != sorted[i];
        CHECK(ordered);
    }
    CHECK(sum(ne(sort(columns, 0).values, sort(columns, 0).values)).item<std::int64_t>() ==
          2 * ((n + 8) / 9));
}

TEST_CASE("cat of many short rows", "[ops]") {
    for (const Dtype dtype : {float32, bfloat16}) {
        const Tensor a = arange(30000).reshape({10000, 3}).to(dtype),
                     b = arange(50000).reshape({5, 10000}).to(dtype).t(),
                     c = zeros({10000, 0}, {.dtype = dtype});
        const Tensor y = cat({a, c, b}, 1);
        CHECK(doubles(y.slice(1, 0, 3)) == doubles(a));
        CHECK(doubles(y.slice(1, 3, 8)) == doubles(b));
    }
}

TEST_CASE("padding of two neighbouring dimensions is that of one after the other", "[ops]") {
    for (const Device device : devices())
        for (const PadMode mode : {PadMode::reflect, PadMode::replicate, PadMode::circular})
            for (const std::int64_t channels : {3, 16, 20}) {
                CAPTURE(int(mode), channels);
                const std::vector<Padding> padding = {{1, 2, 1}, {2, 1, 3}, {3, 1, 0}};
                const Tensor values = randn({2, 4, 5, channels}).to(device);
                Tensor x = values.clone(), z = values.clone();
                x.set_requires_grad();
                z.set_requires_grad();
                const Tensor y = pad(x, padding, mode);
                Tensor expected = z;
                for (const Padding& p : padding) expected = pad(expected, {p}, mode);
                CHECK(doubles(y) == doubles(expected));
                const Tensor g = randn(y.shape()).to(device);
                y.backward({.gradient = g});
                expected.backward({.gradient = g});
                CHECK(difference(doubles(x.grad()), doubles(z.grad()), {1e-5, 1e-5}) == "");
            }
}

TEST_CASE("logical_and and logical_or of booleans", "[ops]") {
    for (const std::int64_t n : {1, 7, 8, 9, 1000, 3001})
        for (const bool single : {false, true}) {
            const Tensor a = gt(randn({n}), 0), b = gt(randn({single ? 1 : n}), single ? -9 : 0.3);
            const Tensor x = cast(a, float32), y = cast(b, float32);
            CHECK(doubles(cast(logical_and(a, b), float32)) == doubles(x * y));
            CHECK(doubles(cast(logical_or(b, a), float32)) == doubles(maximum(x, y).expand({n})));
        }
}

TEST_CASE("nonzero of booleans: every byte but 0 is true", "[ops]") {
    const Tensor x = zeros({4}, {.dtype = boolean});
    std::memcpy(x.mutable_data<bool>(), "\0\2\0\1", 4);
    CHECK(nonzero(x).to_vector<std::int64_t>() == Integers{1, 3});
}

TEST_CASE("results of sums over a middle dimension are those of other layouts", "[ops]") {
    for (const Dtype dtype : {float32, float16, bfloat16})
        for (const Shape& shape :
             {Shape{300, 3, 7}, Shape{65, 8, 64}, Shape{3, 70, 900}, Shape{1, 5, 3000}}) {
            const Tensor x = cast(randint(-8, 8, shape), dtype);  // exact sums
            CHECK(doubles(sum(x, {1})) == doubles(cast(sum(cast(x, float64), {1}), dtype)));
            CHECK(doubles(mean(x, {1})) == doubles(cast(mean(cast(x, float64), {1}), dtype)));
        }
}
