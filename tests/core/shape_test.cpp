#include "mezzo/shape.h"

#include <catch2/catch.hpp>

using namespace mezzo;
using Catch::Matchers::Contains;

TEST_CASE("shape: values, edits and the limit of eight dimensions") {
    Shape s{2, 3, 4};
    CHECK(s.size() == 3);
    CHECK(s.numel() == 24);
    CHECK(s.back() == 4);
    CHECK(Shape().numel() == 1);
    CHECK(Shape{3, 0, 5}.numel() == 0);
    CHECK(Shape::filled(3, 7) == Shape{7, 7, 7});
    CHECK_FALSE(s == Shape{2, 3});
    CHECK_FALSE(s == Shape{2, 3, 5});
    s.insert(0, 9);
    CHECK(s == Shape{9, 2, 3, 4});
    s.insert(2, 8);
    CHECK(s == Shape{9, 2, 8, 3, 4});
    s.insert(5, 7);
    CHECK(s == Shape{9, 2, 8, 3, 4, 7});
    s.erase(2);
    s.erase(4);
    s.erase(0);
    CHECK(s == Shape{2, 3, 4});
    CHECK_THROWS_WITH(s.erase(3), Contains("no dimension 3 to erase in [2, 3, 4]"));
    CHECK_THROWS_WITH(s.insert(4, 1), Contains("position 4"));
    Shape full = Shape::filled(8, 1);
    CHECK_THROWS_WITH(full.push_back(1), Contains("more than 8 dimensions"));
    CHECK_THROWS_AS(full.insert(0, 1), Error);
    CHECK(full == Shape::filled(8, 1));
    CHECK_THROWS_AS((Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}), Error);
}

TEST_CASE("shape: row-major strides") {
    CHECK(contiguous_strides({2, 3, 4}) == Strides{12, 4, 1});
    CHECK(contiguous_strides({}) == Strides{});
    CHECK(contiguous_strides({5}) == Strides{1});
    CHECK(contiguous_strides({2, 0, 4}) == Strides{4, 4, 1});
}

TEST_CASE("shape: broadcasting") {
    CHECK(broadcast_shapes("add", {2, 3}, {2, 3}) == Shape{2, 3});
    CHECK(broadcast_shapes("add", {2, 3}, {3}) == Shape{2, 3});
    CHECK(broadcast_shapes("add", {}, {4}) == Shape{4});
    CHECK(broadcast_shapes("add", {2, 1, 4}, {3, 1}) == Shape{2, 3, 4});
    CHECK(broadcast_shapes("add", {1}, {0}) == Shape{0});
    CHECK(broadcast_shapes("add", {5, 1}, {1, 3}) == Shape{5, 3});
    CHECK_THROWS_WITH(
        broadcast_shapes("add", {2, 3}, {2, 4}),
        Contains("add: shapes [2, 3] and [2, 4] do not broadcast") && Contains("sizes 3 and 4"));
    CHECK_THROWS_WITH(broadcast_shapes("mul", {2}, {0}), Contains("mul"));
    try {
        broadcast_shapes("add", {2}, {3, 4});
        FAIL("no error");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::shape);
    }
}

TEST_CASE("shape: dimensions count from either end") {
    CHECK(wrap_dim("sum", 0, 3) == 0);
    CHECK(wrap_dim("sum", 2, 3) == 2);
    CHECK(wrap_dim("sum", -1, 3) == 2);
    CHECK(wrap_dim("sum", -3, 3) == 0);
    CHECK(wrap_dim("sum", 0, 0) == 0);
    CHECK(wrap_dim("sum", -1, 0) == 0);
    CHECK_THROWS_WITH(wrap_dim("sum", 3, 3),
                      Contains("sum: dimension 3 is out of range for 3 dimensions") && Contains("-3 to 2"));
    CHECK_THROWS_AS(wrap_dim("sum", -4, 3), Error);
    CHECK_THROWS_AS(wrap_dim("sum", 1, 0), Error);
}
