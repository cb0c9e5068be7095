// Element-wise reductions of all_reduce() for engines that work on host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "distributed/collectives.h"

namespace mezzo::distributed {

template <class T> struct Sum {
    static T of(T a, T b) { return static_cast<T>(a + b); }
};
// Both return NaN if either side is NaN.
template <class T> struct Smaller {
    static T of(T a, T b) { return a < b || a != a ? a : b; }
};
template <class T> struct Larger {
    static T of(T a, T b) { return a > b || a != a ? a : b; }
};

// out = left op right; out may alias either operand.
using Reduction = void(void* out, const void* left, const void* right, std::size_t count);

template <class T, template <class> class Op>
void reduce(void* out, const void* left, const void* right, std::size_t count) {
    auto* const to = static_cast<T*>(out);
    const auto *const a = static_cast<const T*>(left), *const b = static_cast<const T*>(right);
    for (std::size_t i = 0; i < count; ++i) to[i] = Op<T>::of(a[i], b[i]);
}

template <class T> Reduction* reduction_of(ReduceOp op) {
    if (op == ReduceOp::min) return reduce<T, Smaller>;
    if (op == ReduceOp::max) return reduce<T, Larger>;
    return reduce<T, Sum>;
}

// Calls f(T()) with the type of the elements. Throws std::runtime_error for dtypes and operations that
// all_reduce() does not take.
template <class F> void with_reduced_type(Dtype dtype, ReduceOp op, const F& f) {
    if (dtype == float32) return f(float());
    if (dtype == float64) return f(double());
    if (op == ReduceOp::mean) throw std::runtime_error("all_reduce: no mean of integers");
    if (dtype == int64) return f(std::int64_t());
    if (dtype == uint8) return f(std::uint8_t());
    throw std::runtime_error(std::string("all_reduce: no ") + mezzo::name(dtype));
}

}  // namespace mezzo::distributed
