// Element-wise kernels: those of the ops in mezzo/ops.def, and a few others. Inputs and results may have any
// strides and be broadcast; inputs may differ in dtype.
#pragma once

#include "kernels/kernel.h"

namespace mezzo::kernels {

// One struct for each op of the table, with the same name as its public function and its functor.
#define MEZZO_UNARY(op, cast, ints, save, gradient) \
    struct op {                                     \
        static constexpr const char* name = #op;    \
    };
// alpha is the scalar. clamp has two: alpha is its lower bound, beta its upper bound.
#define MEZZO_UNARY_SCALAR(op, cast, ints, save, gradient) \
    struct op {                                            \
        static constexpr const char* name = #op;           \
        double alpha = 0, beta = 0;                        \
    };
#define MEZZO_BINARY(op, cast, ints, save, gradient_a, gradient_b) \
    struct op {                                                    \
        static constexpr const char* name = #op;                   \
    };
#define MEZZO_COMPARE(op)                        \
    struct op {                                  \
        static constexpr const char* name = #op; \
    };
#include "mezzo/ops.def"
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
#undef MEZZO_BINARY
#undef MEZZO_COMPARE

// x -> boolean, true where x is 0.
struct LogicalNot {
    static constexpr const char* name = "logical_not";
};
// x -> boolean; integers are finite.
struct IsFinite {
    static constexpr const char* name = "isfinite";
};
// Boolean condition, a, b -> a where the condition is true, else b, in their promoted dtype.
struct Where {
    static constexpr const char* name = "where";
};
// x, boolean mask -> x with `value` where the mask is true.
struct MaskedFill {
    static constexpr const char* name = "masked_fill";
    double value = 0;
};
// g, x -> g where low <= x <= high, else 0.
struct ClampGrad {
    static constexpr const char* name = "clamp_grad";
    double low = 0, high = 0;
};

}  // namespace mezzo::kernels
