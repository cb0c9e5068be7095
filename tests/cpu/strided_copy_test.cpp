// copy_strided() against one element after the other: every element arrives, and nothing else is written.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "cpu/elementwise/strided.h"
#include "mezzo/mezzo.h"

using namespace mezzo;

namespace {

// A view of memory: strides of a permutation of the dimensions, `step` apart in the last, with `gap` elements
// between lines. In a dimension of `repeated`, a bit set, all elements are one.
struct View {
    Strides strides;
    std::int64_t length = 1;  // of the memory, in elements
};

View make_view(const Shape& shape, const std::vector<int>& order, std::int64_t step, std::int64_t gap,
               unsigned repeated = 0) {
    View v{Strides::filled(shape.size(), 0), step};
    for (std::size_t i = order.size(); i-- > 0;) {
        const int d = order[i];
        if (repeated >> d & 1u) continue;
        v.strides[d] = v.length;
        v.length = v.length * shape[d] + gap;
    }
    return v;
}

std::int64_t offset_of(std::int64_t element, const Shape& shape, const Strides& strides) {
    std::int64_t offset = 0;
    for (int d = shape.size() - 1; d >= 0; --d) {
        offset += element % shape[d] * strides[d];
        element /= shape[d];
    }
    return offset;
}

template <class T> void check_copy(const Shape& shape, const View& to, const View& from) {
    std::vector<T> x(std::size_t(from.length)), y(std::size_t(to.length), T(-1)), expected = y;
    std::uint64_t bits = 88172645463325252u;
    for (T& value : x) {
        bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
        value = T(bits >> 8);
    }
    for (std::int64_t i = 0; i < shape.numel(); ++i)
        expected[std::size_t(offset_of(i, shape, to.strides))] =
            x[std::size_t(offset_of(i, shape, from.strides))];
    cpu::copy_strided(shape, reinterpret_cast<char*>(y.data()), to.strides,
                      reinterpret_cast<const char*>(x.data()), from.strides, sizeof(T));
    const bool equal = y == expected;
    CAPTURE(shape, to.strides, from.strides, sizeof(T));
    if (!equal) CHECK(equal);
}

void check_all_sizes(const Shape& shape, const View& to, const View& from) {
    check_copy<std::uint8_t>(shape, to, from);
    check_copy<std::uint16_t>(shape, to, from);
    check_copy<std::uint32_t>(shape, to, from);
    check_copy<std::uint64_t>(shape, to, from);
}

const std::vector<Shape> shapes = {
    {70, 130},     {300, 9, 4},        {2, 33, 40},      {2, 3, 50, 60}, {1, 1000}, {9, 2, 2, 2},
    {40, 8, 1, 5}, {2, 3, 2, 3, 2, 3}, {16, 16, 16, 16}, {3, 70000, 1},  {},        {5, 0, 3}};

}  // namespace

TEST_CASE("strided copies: every order of the dimensions on both sides", "[strided_copy]") {
    for (const Shape& shape : shapes) {
        std::vector<int> order(std::size_t(shape.size()));
        std::iota(order.begin(), order.end(), 0);
        const View plain = make_view(shape, order, 1, 0);
        do {
            check_all_sizes(shape, plain, make_view(shape, order, 1, 0));
            check_all_sizes(shape, make_view(shape, order, 1, 0), plain);
        } while (shape.size() < 5 && std::next_permutation(order.begin(), order.end()));
    }
    CHECK(true);
}

TEST_CASE("strided copies: steps, gaps and repeated elements", "[strided_copy]") {
    for (const Shape& shape : shapes) {
        std::vector<int> order(std::size_t(shape.size())), back;
        std::iota(order.begin(), order.end(), 0);
        back.assign(order.rbegin(), order.rend());
        for (const std::int64_t step : {1, 2, 3})
            for (const std::int64_t gap : {0, 5}) {
                check_all_sizes(shape, make_view(shape, order, 1, 0), make_view(shape, back, step, gap));
                check_all_sizes(shape, make_view(shape, back, step, gap), make_view(shape, order, 1, 0));
                check_all_sizes(shape, make_view(shape, order, step, gap), make_view(shape, order, 1, gap));
            }
        for (unsigned repeated = 1; repeated < 1u << order.size(); ++repeated) {
            check_all_sizes(shape, make_view(shape, order, 1, 0), make_view(shape, back, 1, 0, repeated));
            check_all_sizes(shape, make_view(shape, order, 1, 0), make_view(shape, order, 1, 0, repeated));
        }
    }
    CHECK(true);
}

TEST_CASE("strided copies: short runs of every length", "[strided_copy]") {
    for (std::int64_t run = 1; run < 80; ++run)
        check_all_sizes({37, run}, make_view({37, run}, {0, 1}, 1, 3), make_view({37, run}, {0, 1}, 1, 1));
    CHECK(true);
}
