#include "mezzo/error.h"

#include <catch2/catch.hpp>

#include "mezzo/device.h"
#include "mezzo/shape.h"

using namespace mezzo;

namespace {

template <class... Items> std::string text_of(const Items&... items) {
    try {
        fail(ErrorKind::value, items...);
    } catch (const Error& error) {
        return error.what();
    }
}

}  // namespace

TEST_CASE("error: every kind of item in words") {
    CHECK(text_of("op: ", std::string("a"), std::string_view("bcd", 2)) == "op: abc");
    CHECK(text_of(true, " ", false) == "true false");
    CHECK(text_of(-7, " ", 8L, " ", -9LL, " ", 10u, " ", 11ul, " ", 12ull) == "-7 8 -9 10 11 12");
    CHECK(text_of(std::size_t(1) << 40) == "1099511627776");
    CHECK(text_of(0.5, " ", 1e-8, " ", -3.0) == "0.5 1e-08 -3");
    CHECK(text_of(float16, " ", boolean) == "float16 boolean");
    CHECK(text_of(Shape{2, 3}, " ", Shape{}, " ", Shape{-1}) == "[2, 3] [] [-1]");
    CHECK(text_of(cpu_device, " ", Device(DeviceType::cuda), " ", Device(DeviceType::cuda, 3)) ==
          "cpu cuda:0 cuda:3");
    CHECK(text_of() == "");
}

TEST_CASE("error: check throws only when the condition fails, with its kind") {
    CHECK_NOTHROW(check(true, ErrorKind::shape, "never"));
    for (const ErrorKind kind : {ErrorKind::shape, ErrorKind::dtype, ErrorKind::device, ErrorKind::value,
                                 ErrorKind::state, ErrorKind::memory, ErrorKind::io, ErrorKind::backend}) {
        bool thrown = false;
        try {
            check(false, kind, "matmul: inner sizes differ, ", Shape{2, 3}, " and ", Shape{4, 5});
        } catch (const Error& error) {
            thrown = true;
            CHECK(error.kind() == kind);
            CHECK(std::string(error.what()) == "matmul: inner sizes differ, [2, 3] and [4, 5]");
        }
        CHECK(thrown);
    }
}

TEST_CASE("error: is a std::runtime_error and survives copying") {
    try {
        fail(ErrorKind::io, "load: no file ", std::string(100, 'x'));
    } catch (const std::runtime_error& error) {
        const std::runtime_error copy = error;
        CHECK(std::string(copy.what()) == "load: no file " + std::string(100, 'x'));
    }
}
