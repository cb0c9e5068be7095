#include "cpu/elementwise/convert.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/round_to_odd.h"
#include "core/storage_codes.h"
#include "core/visit_dtype.h"
#include "cpu/isa/isa.h"
#include "cpu/isa/isa_tables.h"

namespace mezzo::cpu {
namespace {

template <class T> T saturate(double x) {
    if (x != x) return 0;
    constexpr double limit = -static_cast<double>(std::numeric_limits<T>::min());  // a power of two
    if (x >= limit) return std::numeric_limits<T>::max();
    if (x <= -limit) return std::numeric_limits<T>::min();
    return static_cast<T>(x);
}

// To a storage type: from float directly, from anything wider through one rounding to odd.
template <class To, class From> To cast(From x) {
    if constexpr (is_storage_type<From>) {
        return cast<To>(static_cast<float>(x));
    } else if constexpr (is_storage_type<To>) {
        if constexpr (std::is_same_v<From, float>)
            return To(x);
        else if constexpr (std::is_same_v<From, std::int64_t>)
            return To(round_to_odd(x));
        else
            return To(round_to_odd(static_cast<double>(x)));
    } else if constexpr (std::is_same_v<To, bool>) {
        return x != From(0);
    } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
        if constexpr (sizeof(To) == 1)
            return static_cast<To>(saturate<std::int64_t>(static_cast<double>(x)));
        else
            return saturate<To>(static_cast<double>(x));
    } else {
        return static_cast<To>(x);
    }
}

// Reads and writes bytes, so that neither side needs alignment.
template <class From, class To> void loop(const void* src, void* dst, std::int64_t n) {
    const char* from = static_cast<const char*>(src);
    char* to = static_cast<char*>(dst);
    for (std::int64_t i = 0; i < n; ++i) {
        From x;
        if constexpr (std::is_same_v<From, bool>)
            x = from[i] != 0;
        else
            std::memcpy(&x, from + i * std::int64_t(sizeof x), sizeof x);
        const To y = cast<To>(x);
        std::memcpy(to + i * std::int64_t(sizeof y), &y, sizeof y);
    }
}

using Loop = void (*)(const void*, void*, std::int64_t);

Loop general_loop(Dtype from, Dtype to) {
    return visit_dtype(from, [to]<class From>(std::type_identity<From>) {
        return visit_dtype(to, []<class To>(std::type_identity<To>) -> Loop { return loop<From, To>; });
    });
}

const ConvertKernels& active_kernels() {
    const Isa isa = active_isa();
    if (isa >= Isa::avx512 && convert_avx512.convert[0][1]) return convert_avx512;
    if (isa != Isa::portable && convert_avx2.convert[0][1]) return convert_avx2;
    return convert_portable;
}

// Codes to float32.
void decode(const void* src, Dtype from, float* dst, std::int64_t n) {
    const auto* const codes = static_cast<const std::uint8_t*>(src);
    const float* const values = values_of_codes(from);
    for (std::int64_t i = 0; i < n; ++i) dst[i] = values[codes[i]];
}

template <class From> void odd_loop(const void* src, float* dst, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        From x;
        std::memcpy(&x, static_cast<const char*>(src) + i * std::int64_t(sizeof x), sizeof x);
        if constexpr (std::is_same_v<From, std::int64_t>)
            dst[i] = round_to_odd(x);
        else
            dst[i] = round_to_odd(static_cast<double>(x));
    }
}

// Elements of any dtype as float32 that gives the same codes.
void widen(const void* src, Dtype from, float* dst, std::int64_t n) {
    if (from == float64) return active_kernels().from_double_to_odd(src, dst, n);
    if (from == int64) return odd_loop<std::int64_t>(src, dst, n);
    if (from == int32) return odd_loop<std::int32_t>(src, dst, n);
    convert(src, from, dst, float32, n);
}

void encode(const void* src, void* dst, Dtype to, std::int64_t n) {
    active_kernels().to_float8[to == float8_e4m3fn ? 0 : to == float8_e5m2 ? 1 : 2](src, dst, n);
}

// In blocks of float32. int8 has the bits that uint8 would have.
void convert_by_floats(const void* src, Dtype from, void* dst, Dtype to, std::int64_t n) {
    if (to == int8) return convert(src, from, dst, uint8, n);
    if (from == float32) return encode(src, dst, to, n);
    constexpr std::int64_t block = 1024;
    float values[block];
    const char* in = static_cast<const char*>(src);
    char* out = static_cast<char*>(dst);
    for (std::int64_t count; n > 0; n -= count) {
        count = std::min(n, block);
        if (is_storage_only(from))
            decode(in, from, values, count);
        else
            widen(in, from, values, count);
        if (is_storage_only(to))
            encode(values, out, to, count);
        else
            convert(values, float32, out, to, count);
        in += count * std::int64_t(size_of(from));
        out += count * std::int64_t(size_of(to));
    }
}

}  // namespace

void convert(const void* src, Dtype from, void* dst, Dtype to, std::int64_t n) {
    if (n <= 0) return;
    if (from == to) {
        std::memcpy(dst, src, static_cast<std::size_t>(n) * size_of(from));
        return;
    }
    const bool narrow_double = (from == float64 && is_16bit(to)) || (is_16bit(from) && to == float64);
    if (narrow_double || is_storage_only(from) || is_storage_only(to))
        return convert_by_floats(src, from, dst, to, n);
    const int row = convert_index(from), column = convert_index(to);
    if (row >= 0 && column >= 0)
        active_kernels().convert[row][column](src, dst, n);
    else if (to == float32 && (from == boolean || from == uint8 || from == int32))
        active_kernels().to_float[from == boolean ? 0 : from == uint8 ? 1 : 2](src, dst, n);
    else if (from == float32 && to == float64)
        active_kernels().to_double(src, dst, n);
    else if (from == float64 && to == float32)
        active_kernels().from_double(src, dst, n);
    else
        general_loop(from, to)(src, dst, n);
}

}  // namespace mezzo::cpu
