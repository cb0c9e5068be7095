// Helpers of element-wise functions that are a decomposition only. Their ops share one struct of attributes,
// because none of them has a kernel.
#pragma once

#include <cstddef>

#include "ops/common.h"

namespace mezzo {

struct Formula {
    static constexpr const char* name = "formula";
};

// The op of x, where integers are converted to float32.
Tensor of_real(const Op<Formula>& op, const Tensor& x);
// The op of a and b, which broadcast and are promoted as in a + b; integers are converted to float32.
Tensor of_reals(const Op<Formula>& op, const Tensor& a, const Tensor& b);

// f for x >= 0, continued by f(-x) = -f(x). Made of where(), so that the gradient at 0 is f's and not that of
// abs(), and so that -0 stays -0.
template <class F> Tensor odd(const Tensor& x, const F& f) {
    const Tensor negative = lt(x, 0.0), y = f(where(negative, -x, x));
    return where(negative, -y, y);
}

// x in float64, where products and squares of float32 numbers stay in range and a formula may lose some bits.
inline Tensor doubled(const Tensor& x) { return cast(x, float64); }

// c[0] + c[1] x + c[2] x^2 + ...
template <std::size_t n> Tensor polynomial(const Tensor& x, const double (&c)[n]) {
    Tensor y = x * c[n - 1];
    for (std::size_t i = n - 2; i > 0; --i) y = (y + c[i]) * x;
    return y + c[0];
}

}  // namespace mezzo
