#include "mezzo/version.h"

#include <catch2/catch.hpp>
#include <cstdio>

using namespace mezzo;

TEST_CASE("version: the library's is that of the headers, and the number orders versions") {
    int major = -1, minor = -1, patch = -1, end = 0;
    REQUIRE(std::sscanf(version(), "%d.%d.%d%n", &major, &minor, &patch, &end) == 3);
    CHECK(version()[end] == '\0');
    CHECK(major == MEZZO_VERSION_MAJOR);
    CHECK(minor == MEZZO_VERSION_MINOR);
    CHECK(patch == MEZZO_VERSION_PATCH);
    CHECK(MEZZO_VERSION == (major * 100 + minor) * 100 + patch);
#if MEZZO_VERSION < 1 || MEZZO_VERSION > 990000
    FAIL("MEZZO_VERSION is no number that the preprocessor can compare");
#endif
}
