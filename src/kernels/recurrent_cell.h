// Arithmetic of one element of a recurrent cell, on every device.
#pragma once

#include "kernels/functor_math.h"

namespace mezzo::functors {
MEZZO_FUNCTORS_OPEN

// The gates' values, and the state after the step.
template <class T> struct LstmStep { T i, f, g, o, c, h; };
// One step from the sums of the gates, and the cell state before.
template <class T> MEZZO_HD LstmStep<T> lstm_step(T i, T f, T g, T o, T c) {
    LstmStep<T> s{math::sigmoid(i), math::sigmoid(f), math::tanh(g), math::sigmoid(o), T(0), T(0)};
    s.c = s.f * c + s.i * s.g;
    s.h = s.o * math::tanh(s.c);
    return s;
}

// Gradients of the sums of the gates, and of the cell state before.
template <class T> struct LstmStepGrad { T i, f, g, o, c; };
// dh, dc: gradients of the state and the cell state after the step; `before`: the cell state before.
template <class T>
MEZZO_HD LstmStepGrad<T> lstm_step_grad(T dh, T dc, T i, T f, T g, T o, T before, T after) {
    const T t = math::tanh(after), d = dc + dh * o * (T(1) - t * t);
    return {d * g * i * (T(1) - i), d * before * f * (T(1) - f), d * i * (T(1) - g * g),
            dh * t * o * (T(1) - o), d * f};
}

// `p` is the state's part of n.
template <class T> struct GruStep { T r, z, n, p, h; };
// One step from the sums of r and z, the two parts of n, and the state before.
template <class T> MEZZO_HD GruStep<T> gru_step(T r, T z, T n, T p, T h) {
    GruStep<T> s{math::sigmoid(r), math::sigmoid(z), T(0), p, T(0)};
    s.n = math::tanh(n + s.r * p);
    s.h = s.n + s.z * (h - s.n);
    return s;
}

// Gradients of the sums of r and z, of the two parts of n, and of the state before, without the product's
// part of the latter.
template <class T> struct GruStepGrad { T r, z, n, p, h; };
template <class T> MEZZO_HD GruStepGrad<T> gru_step_grad(T dh, T r, T z, T n, T p, T before) {
    const T dn = dh * (T(1) - z) * (T(1) - n * n);
    return {dn * p * r * (T(1) - r), dh * (before - n) * z * (T(1) - z), dn, dn * r, dh * z};
}

// Limits p to the range of float16, for saving in float16: the backward multiplies a gradient by it, and 0
// times infinity would be NaN.
template <class T> MEZZO_HD T within_float16(T p) {
    return p > T(65504) ? T(65504) : p < T(-65504) ? T(-65504) : p;
}

template <class T> MEZZO_HD T relu_of(T x) { return x <= T(0) ? T(0) : x; }  // NaN stays NaN

MEZZO_FUNCTORS_CLOSE
}  // namespace mezzo::functors
