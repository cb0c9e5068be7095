// The inner loops of optimizer steps, a part of loops_kernel.h. Formulas and their order of evaluation are
// PyTorch's.
#pragma once

#include "kernels/functor_math.h"
#include "loops.h"

namespace mezzo::cpu {
namespace {

template <class T> bool all_finite(const T* x, std::int64_t n, T factor) {
    constexpr T largest = sizeof(T) == 4 ? T(__FLT_MAX__) : T(__DBL_MAX__);
    int bad = 0;
    for (std::int64_t i = 0; i < n; ++i) bad |= !(functors::math::abs(x[i] * factor) <= largest);
    return bad == 0;
}

// g += wd p; buffer = momentum buffer + (1 - dampening) g, at first g; nesterov: g += momentum buffer; p -=
// lr g
template <class T> void sgd(const SgdLoop<T>& s) {
    T* __restrict const p = s.param;
    T* __restrict const buffer = s.momentum_buffer;
    const T* __restrict const grad = s.grad;
    const T multiplier = s.multiplier, lr = s.lr, decay = s.weight_decay, momentum = s.momentum;
    // At first the buffer's content does not count, not even when it is NaN.
    const T gain = s.first ? T(1) : s.gain;
    const T keep_gradient = s.nesterov ? T(1) : T(0);
    if (!buffer && decay == T(0)) {
        for (std::int64_t i = 0; i < s.n; ++i) p[i] -= lr * (grad[i] * multiplier);
        return;
    }
    if (!buffer) {
        for (std::int64_t i = 0; i < s.n; ++i) p[i] -= lr * (grad[i] * multiplier + decay * p[i]);
        return;
    }
    if (s.first)
        for (std::int64_t i = 0; i < s.n; ++i) buffer[i] = T(0);
    const auto run = [&](const auto decayed, const auto direction) __attribute__((always_inline)) {
        for (std::int64_t i = 0; i < s.n; ++i) {
            const T g = decayed(grad[i] * multiplier, p[i]);
            const T b = momentum * buffer[i] + gain * g;
            buffer[i] = b;
            p[i] -= lr * direction(g, b);
        }
    };
    const auto plain = [](T g, T) { return g; };
    const auto with_decay = [decay](T g, T w) { return g + decay * w; };
    const auto along_buffer = [](T, T b) { return b; };
    const auto ahead = [momentum](T g, T b) { return g + momentum * b; };
    if (keep_gradient != T(0))
        decay == T(0) ? run(plain, ahead) : run(with_decay, ahead);
    else
        decay == T(0) ? run(plain, along_buffer) : run(with_decay, along_buffer);
}

// p *= shrink (AdamW) or g += wd p (Adam); m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g;
// p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
template <class T> void adam(const AdamLoop<T>& s) {
    T* __restrict const p = s.param;
    T* __restrict const m = s.exp_avg;
    T* __restrict const v = s.exp_avg_sq;
    const T* __restrict const grad = s.grad;
    const T multiplier = s.multiplier, decay = s.weight_decay, shrink = s.shrink;
    const T beta1 = s.beta1, beta2 = s.beta2, one_minus_beta1 = s.one_minus_beta1,
            one_minus_beta2 = s.one_minus_beta2;
    const T step_size = s.step_size, sqrt_correction2 = s.sqrt_correction2, eps = s.eps;
    const auto run = [&](const auto decayed) __attribute__((always_inline)) {
        for (std::int64_t i = 0; i < s.n; ++i) {
            const T w = p[i] * shrink;
            const T g = decayed(grad[i] * multiplier, w);
            const T m_new = beta1 * m[i] + one_minus_beta1 * g;
            const T v_new = beta2 * v[i] + one_minus_beta2 * g * g;
            m[i] = m_new;
            v[i] = v_new;
            p[i] = w - step_size * (m_new / (functors::math::sqrt(v_new) / sqrt_correction2 + eps));
        }
    };
    if (decay == T(0))
        run([](T g, T) { return g; });
    else
        run([decay](T g, T w) { return g + decay * w; });
}

}  // namespace
}  // namespace mezzo::cpu
