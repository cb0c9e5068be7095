// The inner loops of normalisation, a part of loops_kernel.h. A call computes one row, which is in the L1
// cache after the first pass.
#pragma once

#include "cpu/elementwise/loops.h"

namespace mezzo::cpu {
namespace {

struct TwoSums {
    double first, second;
};

// Two sums over i < n at once: term(i, s, t) adds the terms of one i to both, vectors(i, s, t) those from i
// to i + lanes - 1. Partial sums are as in accumulate().
template <class T, class Vectors, class Term>
MEZZO_HD TwoSums accumulate_two(std::int64_t n, const Vectors vectors, const Term term) {
    constexpr std::int64_t lanes = Wide<T>::lanes, block = 64 * lanes;
    TwoSums total = {0, 0};
    std::int64_t i = 0;
    while (n - i >= lanes) {
        const std::int64_t end = n - i < block ? n - (n - i) % lanes : i + block;
        typename Wide<T>::V s0 = {}, s1 = {}, t0 = {}, t1 = {};
        for (; i + 2 * lanes <= end; i += 2 * lanes) {
            vectors(i, s0, t0);
            vectors(i + lanes, s1, t1);
        }
        if (i < end) vectors(i, s0, t0);
        i = end;
        total.first += add_lanes<T>(s0 + s1);
        total.second += add_lanes<T>(t0 + t1);
    }
    for (; i < n; ++i) term(i, total.first, total.second);
    return total;
}

// The two-pass algorithm with the correction of Chan, Golub and LeVeque ("Algorithms for computing the sample
// variance", 1983): the second pass also finds the rounding error of the mean, so that a mean far from 0
// costs no digits of the result.
template <class T> void norm_row(NormLoop<T>& s) {
    using V = typename Wide<T>::V;
    const T *const x = s.x, *const weight = s.weight, *const bias = s.bias;
    const T shift = s.centred ? T(sum(x, s.n) / double(s.n)) : T(0);
    const TwoSums moments = accumulate_two<T>(
        s.n,
        [=](std::int64_t i, V& a, V& b) {
            const V c = load_wide(x + i) - shift;
            a += c;
            b += c * c;
        },
        [=](std::int64_t i, double& a, double& b) {
            const double c = double(x[i]) - double(shift);
            a += c;
            b += c * c;
        });
    const double rest = s.centred ? moments.first / double(s.n) : 0;
    const double variance = moments.second / double(s.n) - rest * rest;
    s.mean = double(shift) + rest;
    s.rstd = 1 / math::sqrt((variance < 0 ? 0 : variance) + s.eps);
    const T off = T(rest), rstd = T(s.rstd);
    T* const y = s.y;
    if (bias)
        MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < s.n; ++i) y[i] =
            (x[i] - shift - off) * rstd * weight[i] + bias[i];
    else
        MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < s.n; ++i) y[i] =
            (x[i] - shift - off) * rstd * weight[i];
}

// With h = (x - mean) rstd and c = g weight: dx = rstd (c - mean(c) - h mean(c h)), without mean(c) unless
// centred; weight_grad += g h, bias_grad += g.
template <class T> void norm_grad_row(const NormGradLoop<T>& s) {
    using V = typename Wide<T>::V;
    const T *const g = s.g, *const x = s.x, *const weight = s.weight;
    const T mean = s.mean, rstd = s.rstd;
    const TwoSums sums = accumulate_two<T>(
        s.n,
        [=](std::int64_t i, V& a, V& b) {
            const V c = load_wide(g + i) * load_wide(weight + i);
            a += c;
            b += c * (load_wide(x + i) - mean);
        },
        [=](std::int64_t i, double& a, double& b) {
            const double c = double(g[i]) * double(weight[i]);
            a += c;
            b += c * (double(x[i]) - double(mean));
        });
    const T along = T(sums.second * double(rstd) / double(s.n));
    const T offset = s.bias_grad ? T(sums.first / double(s.n)) : T(0);
    T *const dx = s.dx, *const weight_grad = s.weight_grad, *const bias_grad = s.bias_grad;
    if (bias_grad) MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < s.n; ++i) {
            const T h = (x[i] - mean) * rstd, gradient = g[i];
            weight_grad[i] += gradient * h;
            bias_grad[i] += gradient;
            dx[i] = rstd * (gradient * weight[i] - offset - h * along);
        }
    else
        MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < s.n; ++i) {
            const T h = x[i] * rstd, gradient = g[i];
            weight_grad[i] += gradient * h;
            dx[i] = rstd * (gradient * weight[i] - h * along);
        }
}

// Copies 1,024 half-words at a time out of the words, into an array that loops can vectorise over.
template <class T> void dropped_sum(const DroppedSumLoop<T>& s) {
    constexpr std::int64_t block = 1024;
    std::uint16_t halves[block];
    const char* const words = reinterpret_cast<const char*>(s.words);
    const auto run = [&](const auto value, const auto rest) __attribute__((always_inline)) {
        for (std::int64_t begin = 0; begin < s.n; begin += block) {
            const std::int64_t count = s.n - begin < block ? s.n - begin : block;
            T* const to = s.dst + begin;
            if (!words) {
                MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < count; ++i) to[i] =
                    value(begin + i) + rest(begin + i);
                continue;
            }
            const std::uint32_t threshold = s.threshold;
            const T scale = s.scale;
            __builtin_memcpy(halves, words + 2 * (s.first_half + begin), std::uint64_t(count) * 2);
            MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < count; ++i) {
                const T kept = std::uint32_t(halves[i]) >= threshold ? value(begin + i) * scale : T(0);
                to[i] = kept + rest(begin + i);
            }
        }
    };
    const T *const x = s.x, *const bias = s.bias, *const residual = s.residual;
    const auto plain = [x](std::int64_t i) __attribute__((always_inline)) { return x[i]; };
    const auto biased = [ x, bias ](std::int64_t i) __attribute__((always_inline)) { return x[i] + bias[i]; };
    const auto added = [residual](std::int64_t i) __attribute__((always_inline)) { return residual[i]; };
    const auto nothing = [](std::int64_t) __attribute__((always_inline)) { return T(0); };
    if (!residual)
        run(plain, nothing);
    else if (bias)
        run(biased, added);
    else
        run(plain, added);
}

}  // namespace
}  // namespace mezzo::cpu
