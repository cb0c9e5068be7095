// The arithmetic of the element-wise ops, shared by all devices: for each op of mezzo/ops.def the type
// functors::<op>.
//   MEZZO_UNARY         functors::exp{}(x)                       T(T)
//   MEZZO_UNARY_SCALAR  functors::clamp<T>{alpha, beta}(x)       T(T)
//   MEZZO_BINARY        functors::add{}(a, b)                    T(T, T)
//   MEZZO_COMPARE       functors::lt{}(a, b)                     bool(T, T)
// and functors::glu and functors::swiglu.
// T is float or double; also int32_t and int64_t for the ops whose `ints` column is `same` and for
// comparisons. 16-bit types are computed in float, small integers and booleans in int32_t. Integers wrap
// around. NaN passes through everything.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/functor_math.h"

namespace mezzo::functors {
MEZZO_FUNCTORS_OPEN

// Integers are added and multiplied unsigned, where overflow is defined.
template <class T> using Wrapping =
    std::conditional_t<std::is_same_v<T, std::int32_t>, std::uint32_t,
                       std::conditional_t<std::is_same_v<T, std::int64_t>, std::uint64_t, T>>;
template <class T> MEZZO_HD T wrap_add(T a, T b) { return T(Wrapping<T>(a) + Wrapping<T>(b)); }
template <class T> MEZZO_HD T wrap_sub(T a, T b) { return T(Wrapping<T>(a) - Wrapping<T>(b)); }
template <class T> MEZZO_HD T wrap_mul(T a, T b) { return T(Wrapping<T>(a) * Wrapping<T>(b)); }
template <class T> MEZZO_HD T negative(T a) {
    if constexpr (std::is_integral_v<T>)
        return wrap_sub(T(0), a);
    else
        return -a;
}

#define MEZZO_UNARY_FUNCTOR(name, ...)                                              \
    struct name {                                                                   \
        template <class T> MEZZO_HD T operator()(T x) const { return __VA_ARGS__; } \
    };
#define MEZZO_SCALAR_FUNCTOR(name, ...)                          \
    template <class T> struct name {                             \
        T alpha, beta;                                           \
        MEZZO_HD T operator()(T x) const { return __VA_ARGS__; } \
    };
#define MEZZO_BINARY_FUNCTOR(name, result, ...)                                               \
    struct name {                                                                             \
        template <class T> MEZZO_HD result operator()(T a, T b) const { return __VA_ARGS__; } \
    };

MEZZO_UNARY_FUNCTOR(neg, negative(x))
MEZZO_UNARY_FUNCTOR(sign, x > T(0) ? T(1) : x < T(0) ? T(-1) : x)
MEZZO_UNARY_FUNCTOR(square, wrap_mul(x, x))
MEZZO_UNARY_FUNCTOR(exp, math::exp(x))
MEZZO_UNARY_FUNCTOR(expm1, math::expm1(x))
MEZZO_UNARY_FUNCTOR(log, math::log(x))
MEZZO_UNARY_FUNCTOR(log1p, math::log1p(x))
MEZZO_UNARY_FUNCTOR(sqrt, math::sqrt(x))
MEZZO_UNARY_FUNCTOR(rsqrt, T(1) / math::sqrt(x))
MEZZO_UNARY_FUNCTOR(reciprocal, T(1) / x)
MEZZO_UNARY_FUNCTOR(sin, math::sin(x))
MEZZO_UNARY_FUNCTOR(cos, math::cos(x))
MEZZO_UNARY_FUNCTOR(erf, math::erf(x))
MEZZO_UNARY_FUNCTOR(tanh, math::tanh(x))
MEZZO_UNARY_FUNCTOR(sigmoid, math::sigmoid(x))
MEZZO_UNARY_FUNCTOR(relu, x < T(0) ? T(0) : x)
MEZZO_UNARY_FUNCTOR(gelu, x* math::normal_cdf(x))  // x Phi(x) (Hendrycks and Gimpel, arXiv 1606.08415)
MEZZO_UNARY_FUNCTOR(silu, x* math::sigmoid(x))
MEZZO_UNARY_FUNCTOR(softsign, x / (T(1) + math::abs(x)))

// x s (1 + r) / (1 + r^2), s = sigmoid(x), r = sigmoid(-x): x tanh(ln(1 + e^x)) (Misra, arXiv 1908.08681)
// without overflow or cancellation.
struct mish {
    template <class T> MEZZO_HD T operator()(T x) const {
        const T s = math::sigmoid(x), r = math::sigmoid(-x);
        return x * (s * (T(1) + r) / (T(1) + r * r));
    }
};

#define MEZZO_ROUNDING(name, function)                        \
    struct name {                                             \
        template <class T> MEZZO_HD T operator()(T x) const { \
            if constexpr (std::is_integral_v<T>)              \
                return x;                                     \
            else                                              \
                return math::function(x);                     \
        }                                                     \
    };
MEZZO_ROUNDING(floor, floor)
MEZZO_ROUNDING(ceil, ceil)
MEZZO_ROUNDING(trunc, trunc)
MEZZO_ROUNDING(round, rint)  // halves to even
#undef MEZZO_ROUNDING

struct abs {
    template <class T> MEZZO_HD T operator()(T x) const {
        if constexpr (std::is_integral_v<T>)
            return x < T(0) ? negative(x) : x;
        else
            return math::abs(x);
    }
};

// u = sqrt(2 / pi) (x + 0.044715 x^3); x / 2 (1 + tanh u) = x sigmoid(2 u).
struct gelu_tanh {
    template <class T> MEZZO_HD T operator()(T x) const {
        const T twice_u = (x * x * T(0.044715) + T(1)) * x * T(1.5957691216057308);
        return x * math::sigmoid(twice_u);
    }
};

// ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|)
struct softplus {
    template <class T> MEZZO_HD T operator()(T x) const {
        return (x < T(0) ? T(0) : x) + math::log1p(math::exp(-math::abs(x)));
    }
};

MEZZO_SCALAR_FUNCTOR(add_scalar, wrap_add(x, alpha))
MEZZO_SCALAR_FUNCTOR(rsub_scalar, wrap_sub(alpha, x))
MEZZO_SCALAR_FUNCTOR(mul_scalar, wrap_mul(x, alpha))
MEZZO_SCALAR_FUNCTOR(div_scalar, x / alpha)
MEZZO_SCALAR_FUNCTOR(rdiv_scalar, alpha / x)
MEZZO_SCALAR_FUNCTOR(pow_scalar, math::pow(x, alpha))

// min(max(x, alpha), beta); the comparisons let NaN through.
template <class T> struct clamp {
    T alpha, beta;
    MEZZO_HD T operator()(T x) const {
        const T low = x < alpha ? alpha : x;
        return low > beta ? beta : low;
    }
};

template <class T> struct hardtanh {
    T alpha, beta;
    MEZZO_HD T operator()(T x) const { return clamp<T>{alpha, beta}(x); }
};
// 0 stays 0, also if alpha is infinite in T.
MEZZO_SCALAR_FUNCTOR(elu, x >= T(0) ? x : alpha * math::expm1(x))
MEZZO_SCALAR_FUNCTOR(leaky_relu, x >= T(0) ? x : alpha * x)

MEZZO_BINARY_FUNCTOR(add, T, wrap_add(a, b))
MEZZO_BINARY_FUNCTOR(sub, T, wrap_sub(a, b))
MEZZO_BINARY_FUNCTOR(mul, T, wrap_mul(a, b))
MEZZO_BINARY_FUNCTOR(div, T, a / b)
MEZZO_BINARY_FUNCTOR(pow, T, math::pow(a, b))
MEZZO_BINARY_FUNCTOR(maximum, T, a > b || a != a ? a : b)
MEZZO_BINARY_FUNCTOR(minimum, T, a < b || a != a ? a : b)
MEZZO_BINARY_FUNCTOR(atan2, T, math::atan2(a, b))

// a - b floor(a / b), exactly; it has the sign of b. An integer modulo 0 is 0, because a kernel cannot throw.
struct remainder {
    template <class T> MEZZO_HD T operator()(T a, T b) const {
        if constexpr (std::is_integral_v<T>) {
            if (b == T(0) || b == T(-1)) return T(0);  // the quotient by -1 may be out of range
            const T r = a % b;
            return r != T(0) && (r < T(0)) != (b < T(0)) ? r + b : r;
        } else {
            return math::floor_mod(a, b);
        }
    }
};

// Gradients: a is the incoming gradient; b is the forward result for relu, tanh and sigmoid, else the forward
// input.
MEZZO_BINARY_FUNCTOR(relu_grad, T, b <= T(0) ? T(0) : a)
MEZZO_BINARY_FUNCTOR(tanh_grad, T, a*(T(1) - b * b))
MEZZO_BINARY_FUNCTOR(sigmoid_grad, T, a*(b*(T(1) - b)))

// d/dx x Phi(x) = Phi(x) + x phi(x), phi(x) = e^(-x^2 / 2) / sqrt(2 pi)
struct gelu_grad {
    template <class T> MEZZO_HD T operator()(T a, T b) const {
        const T density = math::exp(b * b * T(-0.5)) * T(0.39894228040143268);
        const T bounded = b > T(40) ? T(40) : b < T(-40) ? T(-40) : b;  // density is 0 there: no inf * 0
        return a * (math::normal_cdf(b) + bounded * density);
    }
};

// d/dx x s, s = sigmoid(2 u): s + x s (1 - s) 2 u', 2 u' = 2 sqrt(2 / pi) (1 + 3 * 0.044715 x^2). Beyond |x|
// = 40 the second term is 0.
struct gelu_tanh_grad {
    template <class T> MEZZO_HD T operator()(T a, T b) const {
        const T x = b > T(40) ? T(40) : b < T(-40) ? T(-40) : b;
        const T square = x * x;
        const T s = math::sigmoid((square * T(0.044715) + T(1)) * x * T(1.5957691216057308));
        const T slope = (square * T(0.134145) + T(1)) * T(1.5957691216057308);
        return a * (s + x * s * (T(1) - s) * slope);
    }
};

// d/dx x s = s (1 + x (1 - s)), s = sigmoid(x)
struct silu_grad {
    template <class T> MEZZO_HD T operator()(T a, T b) const {
        const T s = math::sigmoid(b);
        return a * (s * (T(1) + b * (T(1) - s)));
    }
};

// d/dx x t = t + x t', t = s (1 + r) / (1 + r^2), t' = 4 r^2 s / (1 + r^2)^2. Beyond |x| = 1000 t' is 0.
struct mish_grad {
    template <class T> MEZZO_HD T operator()(T a, T b) const {
        const T x = b > T(1000) ? T(1000) : b < T(-1000) ? T(-1000) : b;
        const T s = math::sigmoid(b), r = math::sigmoid(-b), d = T(1) / (T(1) + r * r);
        return a * (s * d * (T(1) + r + x * (T(4) * r * r * d)));
    }
};

// The gates of kernels/pointwise.h. With e = exp(-|x|) both sigmoid(x) and 1 - sigmoid(x) have all their
// digits.
template <class T> struct SigmoidEnds {
    T at, rest;  // sigmoid(x), sigmoid(-x)
    MEZZO_HD explicit SigmoidEnds(T x) {
        const T e = math::exp(-math::abs(x)), large = T(1) / (T(1) + e), small = e * large;
        at = x < T(0) ? small : large;
        rest = x < T(0) ? large : small;
    }
};
struct glu {
    template <class T> MEZZO_HD T operator()(T a, T b) const { return a * math::sigmoid(b); }
    template <class T> MEZZO_HD void gradient(T g, T a, T b, T& da, T& db) const {
        const SigmoidEnds<T> s(b);
        da = g * s.at;
        db = g * a * (s.at * s.rest);
    }
};
struct swiglu {
    template <class T> MEZZO_HD T operator()(T a, T b) const { return a * math::sigmoid(a) * b; }
    template <class T> MEZZO_HD void gradient(T g, T a, T b, T& da, T& db) const {
        const SigmoidEnds<T> s(a);
        da = g * b * (s.at * (T(1) + a * s.rest));
        db = g * (a * s.at);
    }
};

MEZZO_BINARY_FUNCTOR(eq, bool, a == b)
MEZZO_BINARY_FUNCTOR(ne, bool, a != b)
MEZZO_BINARY_FUNCTOR(lt, bool, a < b)
MEZZO_BINARY_FUNCTOR(le, bool, a <= b)
MEZZO_BINARY_FUNCTOR(gt, bool, a > b)
MEZZO_BINARY_FUNCTOR(ge, bool, a >= b)
MEZZO_BINARY_FUNCTOR(logical_and, bool, (a != T(0)) & (b != T(0)))
MEZZO_BINARY_FUNCTOR(logical_or, bool, (a != T(0)) | (b != T(0)))

#undef MEZZO_UNARY_FUNCTOR
#undef MEZZO_SCALAR_FUNCTOR
#undef MEZZO_BINARY_FUNCTOR

MEZZO_FUNCTORS_CLOSE
}  // namespace mezzo::functors
