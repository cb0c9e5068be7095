// A GEMM case: operands inside guarded allocations, run on given kernels, compared with a float64 loop.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/values.h"
#include "cpu/amx/tile_tables.h"
#include "cpu/gemm/gemm.h"
#include "cpu/isa/isa.h"
#include "cpu/isa/isa_tables.h"
#include "tests/cpu/gemm_wide_tile.h"
#include "tests/cpu/tile_model.h"

namespace gemm_case {

using namespace mezzo;
using cpu::Gemm;

inline double read(const void* p, Dtype type, std::int64_t i) {
    return visit_dtype<Dtypes::floating>(type, [&]<class T>(std::type_identity<T>) {
        return convert_value<double>(static_cast<const T*>(p)[i]);
    });
}

inline void write(void* p, Dtype type, std::int64_t i, double x) {
    visit_dtype<Dtypes::floating>(
        type, [&]<class T>(std::type_identity<T>) { static_cast<T*>(p)[i] = convert_value<T>(x); });
}

// Half the distance between neighbours, relative: the largest error of one rounding to the type.
inline double rounding(Dtype type) { return dtype_info(type).epsilon / 2; }

// A matrix inside a larger allocation: `ld` may exceed the row, all other elements are NaN, and guards are
// checked afterwards.
struct Matrix {
    std::int64_t rows, columns, ld, count;
    Dtype type;
    std::vector<char> bytes;
    static constexpr std::int64_t front = 3;
    static constexpr double guard = -97.5;

    Matrix(std::int64_t r, std::int64_t c, Dtype t, std::int64_t batch = 1, std::int64_t extra = 5)
        : rows(r),
          columns(c),
          ld(c + extra),
          count(batch),
          type(t),
          bytes(static_cast<std::size_t>(2 * front + batch * stride()) * size_of(t)) {
        for (std::int64_t i = 0; i < 2 * front + batch * stride(); ++i) write(bytes.data(), type, i, guard);
    }
    std::int64_t stride() const { return rows * ld + 7; }
    void* data() { return bytes.data() + static_cast<std::size_t>(front) * size_of(type); }
    double at(std::int64_t b, std::int64_t i, std::int64_t j) const {
        return read(bytes.data(), type, front + b * stride() + i * ld + j);
    }
    void set(std::int64_t b, std::int64_t i, std::int64_t j, double x) {
        write(bytes.data(), type, front + b * stride() + i * ld + j, x);
    }
    template <class F> void fill(const F& f) {
        for (std::int64_t b = 0; b < count; ++b)
            for (std::int64_t i = 0; i < rows; ++i)
                for (std::int64_t j = 0; j < columns; ++j) set(b, i, j, f());
    }
    bool guards_intact() const {
        for (std::int64_t at = 0; at < 2 * front + count * stride(); ++at) {
            const std::int64_t local = at - front, inside = local < 0 ? -1 : local % stride();
            const bool element = local >= 0 && local < count * stride() && inside / ld < rows &&
                                 inside % ld < columns && inside < rows * ld;
            if (!element && read(bytes.data(), type, at) != guard) return false;
        }
        return true;
    }
};

// The product of two matrices, or of their transposes.
inline Gemm gemm_of(Matrix& a, Matrix& b, Matrix& c, bool trans_a = false, bool trans_b = false) {
    return {.m = c.rows,
            .n = c.columns,
            .k = trans_a ? a.rows : a.columns,
            .trans_a = trans_a,
            .trans_b = trans_b,
            .a = a.data(),
            .a_type = a.type,
            .lda = a.ld,
            .b = b.data(),
            .b_type = b.type,
            .ldb = b.ld,
            .c = c.data(),
            .c_type = c.type,
            .ldc = c.ld};
}

inline double activate(Activation activation, double x) {
    switch (activation) {
        case Activation::relu:
            return x < 0 ? 0 : x;
        case Activation::gelu:
            return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
        case Activation::gelu_tanh:
            return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        default:
            return x;
    }
}

// Factor of a gradient in the activation's backward; `saved` is the saved value, as in Gemm.
inline double derivative(Activation activation, double saved) {
    const double density = std::exp(-saved * saved / 2) / std::sqrt(2 * M_PI);
    switch (activation) {
        case Activation::relu:
            return saved <= 0 ? 0 : 1;
        case Activation::gelu:
            return 0.5 * std::erfc(-saved / std::sqrt(2.0)) + saved * density;
        default:
            return 1;
    }
}

struct Case {
    std::int64_t m = 1, n = 1, k = 1;
    bool ta = false, tb = false;
    Dtype a = float32, b = float32, c = float32;
    Activation activation = Activation::none;
    bool bias = false, pre = false;
    Dtype bias_type = float32;
    float alpha = 1, beta = 0;
    std::int64_t batch = 1;
    bool share_a = false, share_b = false;
    bool saved = false;  // C is a gradient
};

inline std::string text(const Case& t) {
    return std::to_string(t.m) + "x" + std::to_string(t.n) + "x" + std::to_string(t.k) +
           (t.ta ? " T" : " N") + (t.tb ? "T" : "N") + " types " + std::to_string(int(t.a)) +
           std::to_string(int(t.b)) + std::to_string(int(t.c)) + " activation " +
           std::to_string(int(t.activation)) + " bias " + std::to_string(t.bias) + " beta " +
           std::to_string(t.beta) + (t.saved ? " saved" : "") + " batch " + std::to_string(t.batch);
}

// Runs one case and compares every element with a float64 loop over the stored (already rounded) operands.
// Tolerance: k additions of rounding error u each on the sum of |a b| (the textbook bound, gamma_k), plus one
// rounding to C's type.
inline void run(const Case& t, const cpu::GemmKernels& kernels) {
    INFO(text(t));
    std::mt19937 random(static_cast<unsigned>(t.m * 73 + t.n * 31 + t.k));
    const auto uniform = [&] { return double(random() % 4001) / 2000.0 - 1.0; };
    Matrix a(t.ta ? t.k : t.m, t.ta ? t.m : t.k, t.a, t.share_a ? 1 : t.batch);
    Matrix b(t.tb ? t.n : t.k, t.tb ? t.k : t.n, t.b, t.share_b ? 1 : t.batch);
    Matrix c(t.m, t.n, t.c, t.batch), pre(t.m, t.n, t.c, t.batch), saved(t.m, t.n, t.c, t.batch),
        bias(1, t.n, t.bias_type);
    a.fill(uniform), b.fill(uniform), bias.fill(uniform);
    saved.fill([&] { return 6 * uniform(); });
    if (t.beta != 0)
        c.fill(uniform);
    else
        c.fill([] { return std::numeric_limits<double>::quiet_NaN(); });
    const Matrix old = c;
    Gemm g = gemm_of(a, b, c, t.ta, t.tb);
    if (t.bias) g.bias = bias.data();
    if (t.pre) g.pre_activation = pre.data();
    if (t.saved) g.saved = saved.data();
    g.bias_type = t.bias_type, g.activation = t.activation;
    g.alpha = t.alpha, g.beta = t.beta;
    g.batch = t.batch, g.stride_c = c.stride();
    g.stride_a = t.share_a ? 0 : a.stride(), g.stride_b = t.share_b ? 0 : b.stride();
    cpu::gemm(g, kernels);
    const double unit = t.a == float64 ? 0x1p-53 : 0x1p-24, store = rounding(t.c);
    std::string wrong;
    const auto at = [](std::int64_t row, std::int64_t k, std::int64_t p) {
        return static_cast<std::size_t>(row * k + p);
    };
    std::vector<double> x(at(t.m, t.k, 0)), y(at(t.n, t.k, 0));
    for (std::int64_t q = 0; q < t.batch && wrong.empty(); ++q) {
        const std::int64_t qa = t.share_a ? 0 : q, qb = t.share_b ? 0 : q;
        for (std::int64_t p = 0; p < t.k; ++p) {
            for (std::int64_t i = 0; i < t.m; ++i) x[at(i, t.k, p)] = t.ta ? a.at(qa, p, i) : a.at(qa, i, p);
            for (std::int64_t j = 0; j < t.n; ++j) y[at(j, t.k, p)] = t.tb ? b.at(qb, j, p) : b.at(qb, p, j);
        }
        for (std::int64_t i = 0; i < t.m && wrong.empty(); ++i)
            for (std::int64_t j = 0; j < t.n && wrong.empty(); ++j) {
                double sum = 0, size = 0;
                for (std::int64_t p = 0; p < t.k; ++p) {
                    const double product = x[at(i, t.k, p)] * y[at(j, t.k, p)];
                    sum += product, size += std::fabs(product);
                }
                sum *= t.alpha, size *= std::fabs(t.alpha);
                if (t.bias) sum += bias.at(0, 0, j), size += std::fabs(bias.at(0, 0, j));
                if (t.beta != 0) sum += t.beta * old.at(q, i, j), size += std::fabs(t.beta * old.at(q, i, j));
                const double error = unit * (double(t.k) + 4) * size + 1e-30;
                const double want =
                    t.saved ? sum * derivative(t.activation, saved.at(q, i, j)) : activate(t.activation, sum);
                // |gelu'| < 1.13; its own evaluation adds a few units of the result, or of 1
                const double slack = 1.13 * error + 8 * unit * std::fabs(t.saved ? sum : want) + 1e-30;
                const double half_step = t.c == float16 ? 0x1p-25 : 0.0;  // subnormal spacing
                const double got = c.at(q, i, j);
                if (!(std::fabs(got - want) <= slack + store * (std::fabs(want) + slack) + half_step))
                    wrong = "C[" + std::to_string(i) + "," + std::to_string(j) +
                            "] = " + std::to_string(got) + ", want " + std::to_string(want);
                if (t.pre && !(std::fabs(pre.at(q, i, j) - sum) <=
                               error + store * (std::fabs(sum) + error) + half_step))
                    wrong =
                        "pre-activation " + std::to_string(pre.at(q, i, j)) + ", want " + std::to_string(sum);
            }
    }
    CHECK(wrong == "");
    CHECK(c.guards_intact());
    CHECK(pre.guards_intact());
}

struct Variant {
    std::string name;
    const cpu::GemmKernels* kernels;
};

// Variants for the instruction sets of this processor, the AVX-512 tile shape lowered to them, and the model
// of AMX tiles.
inline std::vector<Variant> variants() {
    std::vector<Variant> list{{"portable", &cpu::gemm_portable}, {"wide tile", &wide_tile_kernels()}};
    if (cpu::best_isa() >= cpu::Isa::avx2 && cpu::gemm_avx2.mr) list.push_back({"avx2", &cpu::gemm_avx2});
    if (cpu::best_isa() >= cpu::Isa::avx512 && cpu::gemm_avx512.mr)
        list.push_back({"avx512", &cpu::gemm_avx512});
    if (cpu::best_isa() >= cpu::Isa::avx512_bf16 && cpu::gemm_avx512_bf16.mr)
        list.push_back({"avx512_bf16", &cpu::gemm_kernels(cpu::Isa::avx512_bf16)});
    list.push_back({"tile model", &tile_model_kernels()});
    if (cpu::gemm_kernels(cpu::Isa::amx).tiles && cpu::best_isa() >= cpu::Isa::amx)
        list.push_back({"amx", &cpu::gemm_kernels(cpu::Isa::amx)});
    return list;
}

inline constexpr Dtype stored[] = {float16, bfloat16, float32};

}  // namespace gemm_case
