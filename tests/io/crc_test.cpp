#include "io/crc.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <string>

namespace {

// Bit by bit, as CRCs are defined. `polynomial` has the lowest power in its highest bit.
std::uint32_t reference_crc(std::uint32_t polynomial, std::string_view bytes) {
    std::uint32_t crc = ~0u;
    for (const char byte : bytes) {
        crc ^= static_cast<unsigned char>(byte);
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? polynomial : 0u);
    }
    return ~crc;
}

std::string random_bytes(std::size_t count) {
    std::mt19937 generator(7);
    std::string bytes(count, '\0');
    for (char& byte : bytes) byte = static_cast<char>(generator());
    return bytes;
}

}  // namespace

TEST_CASE("crc: the check values of both polynomials") {
    CHECK(mezzo::io::crc32(0, "123456789", 9) == 0xCBF43926u);
    CHECK(mezzo::io::crc32c("123456789") == 0xE3069283u);
    CHECK(mezzo::io::crc32(0, "", 0) == 0);
}

TEST_CASE("crc: every length and alignment agrees with the definition") {
    const std::string bytes = random_bytes(400);
    for (std::size_t first = 0; first < 17; ++first)
        for (std::size_t count = 0; first + count <= bytes.size(); ++count) {
            const std::string_view part = std::string_view(bytes).substr(first, count);
            const std::uint32_t expected = reference_crc(0xEDB88320u, part);
            if (mezzo::io::crc32(0, part.data(), count) != expected)
                FAIL("crc32 of " << count << " bytes from " << first);
            if (mezzo::io::crc32c(part) != reference_crc(0x82F63B78u, part))
                FAIL("crc32c of " << count << " bytes from " << first);
        }
}

TEST_CASE("crc: a CRC goes on where the one before ended") {
    const std::string bytes = random_bytes(5000);
    const std::uint32_t whole = reference_crc(0xEDB88320u, bytes);
    for (const std::size_t piece : {1, 15, 17, 63, 64, 65, 200, 1024}) {
        std::uint32_t crc = 0;
        for (std::size_t first = 0; first < bytes.size(); first += piece)
            crc = mezzo::io::crc32(crc, bytes.data() + first, std::min(piece, bytes.size() - first));
        CHECK(crc == whole);
    }
}
