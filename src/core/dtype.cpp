#include "mezzo/dtype.h"

#include "core/storage_codes.h"
#include "mezzo/error.h"

namespace mezzo {
namespace {

// Whether every value of b is one of a; both are of one kind.
bool holds(Dtype a, Dtype b) {
    const DtypeInfo &wide = dtype_info(a), &narrow = dtype_info(b);
    return wide.significand_bits >= narrow.significand_bits && wide.exponent_bits >= narrow.exponent_bits;
}

}  // namespace

void detail::unknown_dtype(int number) {
    mezzo::fail(ErrorKind::dtype, "Dtype: ", number, " is no dtype; there are 0 to ", dtype_count - 1);
}

Dtype promote(Dtype a, Dtype b) {
    const DtypeKind kind_a = dtype_info(a).kind, kind_b = dtype_info(b).kind;
    if (a == b) return a;
    check_computes("promote", a);
    check_computes("promote", b);
    if (kind_a != kind_b) return kind_a > kind_b ? a : b;
    if (holds(a, b)) return a;
    if (holds(b, a)) return b;
    // Neither of float16 and bfloat16 holds the other's values: takes the smallest dtype that holds both.
    Dtype smallest = float64;
    for (const Dtype dtype : all_dtypes)
        if (dtype_info(dtype).kind == kind_a && holds(dtype, a) && holds(dtype, b) &&
            size_of(dtype) < size_of(smallest))
            smallest = dtype;
    return smallest;
}

}  // namespace mezzo
