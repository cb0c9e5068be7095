#include "mezzo/dtype.h"

#include <algorithm>

namespace mezzo {
namespace {

// bool < uint8 < int32 < int64; only asked of integral dtypes.
int integral_rank(Dtype dtype) {
    switch (dtype) {
        case Dtype::boolean:
            return 0;
        case Dtype::uint8:
            return 1;
        case Dtype::int32:
            return 2;
        default:
            return 3;
    }
}

}  // namespace

const char* name(Dtype dtype) {
    constexpr const char* names[dtype_count] = {"float16", "bfloat16", "float32", "float64",
                                                "int32",   "int64",    "uint8",   "boolean"};
    return names[static_cast<int>(dtype)];
}

Dtype promote(Dtype a, Dtype b) {
    if (a == b) return a;
    if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
    if (!is_floating(a)) return integral_rank(a) > integral_rank(b) ? a : b;
    if (is_16bit(a) && is_16bit(b)) return float32;  // neither 16-bit dtype holds the other
    return std::max(a, b);                           // the enumerators ascend: 16 bit, float32, float64
}

}  // namespace mezzo
