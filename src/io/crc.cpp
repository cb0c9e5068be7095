#include "io/crc.h"

#include <array>
#include <bit>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace mezzo::io {

namespace {

// Slicing by 16 (Kounavis and Berry, "A systematic approach to building high performance software-based CRC
// generators", ISCC 2005): row k has the remainders of each byte followed by k zero bytes, so that the
// remainder of 16 bytes is the exclusive or of 16 entries.
using Tables = std::array<std::array<std::uint32_t, 256>, 16>;

// `polynomial` has the lowest power in its highest bit.
Tables make_tables(std::uint32_t polynomial) {
    Tables tables{};
    for (std::uint32_t i = 0; i < 256; ++i) {
        std::uint32_t crc = i;
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? polynomial : 0u);
        tables[0][i] = crc;
    }
    for (std::size_t k = 1; k < tables.size(); ++k)
        for (std::size_t i = 0; i < 256; ++i)
            tables[k][i] = tables[k - 1][i] >> 8 ^ tables[0][tables[k - 1][i] & 0xff];
    return tables;
}

// Made by their first use: in the library's file they would be 32 KB.
const Tables& zlib_tables() {
    static const Tables tables = make_tables(0xEDB88320u);
    return tables;
}
const Tables& castagnoli_tables() {
    static const Tables tables = make_tables(0x82F63B78u);
    return tables;
}

static_assert(std::endian::native == std::endian::little);

// Returns the remainder after further bytes; `crc` is the one before them.
std::uint32_t remainder_of(const Tables& tables, std::uint32_t crc, const unsigned char* data,
                           std::size_t bytes) {
    for (; bytes >= 16; bytes -= 16, data += 16) {
        std::uint64_t low = 0, high = 0;
        std::memcpy(&low, data, 8);
        std::memcpy(&high, data + 8, 8);
        low ^= crc;
        std::uint32_t left = 0, right = 0;
#pragma GCC unroll 8
        for (std::size_t k = 0; k < 8; ++k) {
            left ^= tables[15 - k][low >> 8 * k & 0xff];
            right ^= tables[7 - k][high >> 8 * k & 0xff];
        }
        crc = left ^ right;
    }
    for (; bytes > 0; --bytes, ++data) crc = crc >> 8 ^ tables[0][(crc ^ *data) & 0xff];
    return crc;
}

#ifdef __x86_64__
// CRC-32 of a multiple of 16 bytes, at least 64, by products without carry (Gopal et al., "Fast CRC
// computation for generic polynomials using PCLMULQDQ instruction", Intel 2009). 16 bytes are moved forward
// by a product of each half with a power of x, modulo the polynomial; the last 16 have the remainder of all.
__attribute__((target("pclmul"))) std::uint32_t folded_remainder(std::uint32_t crc, const unsigned char* data,
                                                                 std::size_t bytes) {
    const auto load = [](const unsigned char* from) {
        __m128i value;
        std::memcpy(&value, from, sizeof value);
        return value;
    };
    const __m128i by_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);  // x^(512 - 32), x^(512 + 32), mirrored
    const __m128i by_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);  // x^(128 - 32), x^(128 + 32)
    __m128i part[4];
    for (int i = 0; i < 4; ++i) part[i] = load(data + 16 * i);
    part[0] = part[0] ^ _mm_cvtsi32_si128(int(crc));
    for (data += 64, bytes -= 64; bytes >= 64; data += 64, bytes -= 64)
        for (int i = 0; i < 4; ++i)
            part[i] = _mm_clmulepi64_si128(part[i], by_64, 0x00) ^
                      _mm_clmulepi64_si128(part[i], by_64, 0x11) ^ load(data + 16 * i);
    for (int i = 1; i < 4; ++i)
        part[i] = part[i] ^ _mm_clmulepi64_si128(part[i - 1], by_16, 0x00) ^
                  _mm_clmulepi64_si128(part[i - 1], by_16, 0x11);
    for (; bytes > 0; data += 16, bytes -= 16)
        part[3] = _mm_clmulepi64_si128(part[3], by_16, 0x00) ^ _mm_clmulepi64_si128(part[3], by_16, 0x11) ^
                  load(data);
    unsigned char last[16];
    std::memcpy(last, &part[3], sizeof last);
    return remainder_of(zlib_tables(), 0, last, sizeof last);
}
#endif

}  // namespace

std::uint32_t crc32(std::uint32_t before, const void* data, std::size_t bytes) {
    const auto* from = static_cast<const unsigned char*>(data);
    std::uint32_t crc = ~before;
#ifdef __x86_64__
    if (bytes >= 64 && __builtin_cpu_supports("pclmul")) {
        crc = folded_remainder(crc, from, bytes / 16 * 16);
        from += bytes / 16 * 16;
        bytes %= 16;
    }
#endif
    return ~remainder_of(zlib_tables(), crc, from, bytes);
}

std::uint32_t crc32c(std::string_view bytes) {
    return ~remainder_of(castagnoli_tables(), ~0u, reinterpret_cast<const unsigned char*>(bytes.data()),
                         bytes.size());
}

std::uint32_t masked_crc32c(std::string_view bytes) {
    const std::uint32_t crc = crc32c(bytes);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

}  // namespace mezzo::io
