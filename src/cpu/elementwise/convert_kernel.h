// Conversions among float16, bfloat16 and float32, and from small integers to float32, one source for all
// instruction sets. The including file defines MEZZO_LANES. Everything has internal linkage, for the reason
// in vector.h.
#pragma once

#include "cpu/isa/isa_tables.h"
#include "cpu/isa/vector.h"

namespace mezzo::cpu {
namespace {

template <class From, class To> void convert_floats(const void* src, void* dst, std::int64_t n) {
    constexpr int lanes = MEZZO_LANES;
    const From* from = static_cast<const From*>(src);
    To* to = static_cast<To*>(dst);
    std::int64_t i = 0;
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
        const FloatN<lanes> a = load<lanes>(from + i), b = load<lanes>(from + i + lanes);
        store<lanes>(to + i, a);
        store<lanes>(to + i + lanes, b);
    }
    for (; i + 4 <= n; i += 4) store<4>(to + i, load<4>(from + i));
    if (i < n) store_first<4>(to + i, load_first<4>(from + i, n - i), n - i);
}

template <class From> void integers_to_float(const void* src, void* dst, std::int64_t n) {
    const char* const from = static_cast<const char*>(src);
    float* const to = static_cast<float*>(dst);
    for (std::int64_t i = 0; i < n; ++i) {
        From x;
        __builtin_memcpy(&x, from + i * std::int64_t(sizeof x), sizeof x);
        to[i] = float(x);
    }
}
void booleans_to_float(const void* src, void* dst, std::int64_t n) {
    const std::uint8_t* const from = static_cast<const std::uint8_t*>(src);
    float* const to = static_cast<float*>(dst);
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[i] != 0 ? 1.0f : 0.0f;
}

constexpr ConvertKernels convert_kernels = {
    {
        {nullptr, convert_floats<float16_t, bfloat16_t>, convert_floats<float16_t, float>},
        {convert_floats<bfloat16_t, float16_t>, nullptr, convert_floats<bfloat16_t, float>},
        {convert_floats<float, float16_t>, convert_floats<float, bfloat16_t>, nullptr},
    },
    {booleans_to_float, integers_to_float<std::uint8_t>, integers_to_float<std::int32_t>}};

}  // namespace
}  // namespace mezzo::cpu
