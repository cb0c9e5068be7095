// Element-wise losses, on every device: the loss of input x and target t, and its derivative by x divided by
// `slopes`. Only SmoothError and HuberError read beta.
#pragma once

#include "kernels/functors.h"

namespace mezzo::functors {
MEZZO_FUNCTORS_OPEN

struct SquaredError {
    static constexpr int slopes = 2;  // the derivative is beyond the range where that of a mean may not be
    template <class T> static MEZZO_HD T loss(T x, T t, T) { return (x - t) * (x - t); }
    template <class T> static MEZZO_HD T slope(T x, T t, T) { return x - t; }
};
struct AbsoluteError {
    static constexpr int slopes = 1;
    template <class T> static MEZZO_HD T loss(T x, T t, T) { return math::abs(x - t); }
    template <class T> static MEZZO_HD T slope(T x, T t, T) { return sign{}(x - t); }
};
// d^2 / (2 beta) where |d| < beta, else |d| - beta / 2
struct SmoothError {
    static constexpr int slopes = 1;
    template <class T> static MEZZO_HD T loss(T x, T t, T beta) {
        const T d = math::abs(x - t);
        const T linear = d == T(__builtin_inf()) ? d : d - T(0.5) * beta;
        return d < beta ? T(0.5) * d * (d / beta) : linear;
    }
    template <class T> static MEZZO_HD T slope(T x, T t, T beta) {
        const T d = x - t;
        return math::abs(d) < beta ? d / beta : sign{}(d);
    }
};
// d^2 / 2 where |d| < delta, else delta (|d| - delta / 2)
struct HuberError {
    static constexpr int slopes = 1;
    template <class T> static MEZZO_HD T loss(T x, T t, T delta) {
        const T d = math::abs(x - t);
        const T linear = d == T(__builtin_inf()) ? d : delta * (d - T(0.5) * delta);
        return d < delta ? T(0.5) * d * d : linear;
    }
    template <class T> static MEZZO_HD T slope(T x, T t, T delta) {
        const T d = x - t;
        return math::abs(d) < delta ? d : delta * sign{}(d);
    }
};
// -(t ln x + (1 - t) ln(1 - x)), logarithms not below -100, as PyTorch's binary_cross_entropy has it.
struct BinaryError {
    static constexpr int slopes = 1;
    template <class T> static MEZZO_HD T bounded(T log_x) { return log_x < T(-100) ? T(-100) : log_x; }
    template <class T> static MEZZO_HD T loss(T x, T t, T) {
        return (t - T(1)) * bounded(math::log1p(-x)) - t * bounded(math::log(x));
    }
    template <class T> static MEZZO_HD T slope(T x, T t, T) {
        const T width = (T(1) - x) * x;
        return (x - t) / (width < T(1e-12) ? T(1e-12) : width);
    }
};
// (1 - t) max(x, 0) + t max(-x, 0) + ln(1 + e^-|x|): no difference of large numbers, and a factor of 0 makes
// its product 0 where x is infinite. The derivative sigmoid(x) - t is (1 - t) sigmoid(x) - t sigmoid(-x), in
// which nothing cancels where sigmoid(x) rounds to 1.
struct LogitError {
    static constexpr int slopes = 1;
    template <class T> static MEZZO_HD T linear(T x, T t) {
        const T weight = x > T(0) ? T(1) - t : -t;
        return weight == T(0) ? T(0) : weight * x;
    }
    template <class T> static MEZZO_HD T loss(T x, T t, T) {
        return linear(x, t) + math::log1p(math::exp(-math::abs(x)));
    }
    template <class T> static MEZZO_HD T slope(T x, T t, T) {
        const T e = math::exp(-math::abs(x)), likely = T(1) / (T(1) + e), unlikely = e * likely;
        return x > T(0) ? (T(1) - t) * likely - t * unlikely : (T(1) - t) * unlikely - t * likely;
    }
};

MEZZO_FUNCTORS_CLOSE
}  // namespace mezzo::functors
