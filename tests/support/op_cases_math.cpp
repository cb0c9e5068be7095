// Op cases of the functions of pointwise_ops.h that are formulas of others, and of norms, scans, medians and
// contractions.
#include <algorithm>
#include <cmath>

#include "mezzo/pointwise_ops.h"
#include "mezzo/product_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/shape_ops.h"
#include "mezzo/sort_ops.h"
#include "tests/support/op_cases.h"

namespace mezzo::test {

namespace {

using enum Under;
using enum Domain;

const Shape pair{3, 5};

template <class F> Reference each(F f) {
    return [f](std::span<const Array> x) {
        std::vector<double> y;
        for (const double v : x[0].values) y.push_back(f(v));
        return y;
    };
}

// f of element i of the first input and element i modulo 5 of the second, a vector.
template <class F> Reference with_row(F f) {
    return [f](std::span<const Array> x) {
        std::vector<double> y;
        for (std::size_t i = 0; i < x[0].values.size(); ++i)
            y.push_back(f(x[0].values[i], x[1].values[i % x[1].values.size()]));
        return y;
    };
}

// clang-format off
#define UNARY(op, value, ...) \
    {#op, [](In x) { return op(x[0]); }, {pair}, \
     each([](double x) -> double { return value; }) __VA_OPT__(,) __VA_ARGS__}
#define NUMBER(name, call, value, ...) \
    {name, [](In x) { return call; }, {pair}, \
     each([](double x) -> double { return value; }) __VA_OPT__(,) __VA_ARGS__}
#define ROW(name, call, value, ...) \
    {name, [](In x) { return call; }, {pair, {5}}, \
     with_row([](double a, double b) -> double { return value; }) __VA_OPT__(,) __VA_ARGS__}
#define OF(name, call, shapes, ...) \
    {name, [](In x) { return call; }, shapes, nullptr __VA_OPT__(,) __VA_ARGS__}
#define SHAPES(...) {__VA_ARGS__}

std::vector<OpCase> elementary() {
    return {
        UNARY(exp2, std::exp2(x)),
        UNARY(log2, std::log2(x), fp32, positive),
        UNARY(log10, std::log10(x), fp32, positive),
        UNARY(tan, std::tan(x), fp32, unit),
        UNARY(asin, std::asin(x), fp32, unit),
        UNARY(acos, std::acos(x), fp32, unit),
        UNARY(atan, std::atan(x)),
        UNARY(sinh, std::sinh(x), fp32),
        UNARY(cosh, std::cosh(x), fp32),
        UNARY(asinh, std::asinh(x)),
        NUMBER("acosh", acosh(x[0] + 2.0), std::acosh(x + 2), keep, positive),
        UNARY(atanh, std::atanh(x), keep, unit),
        UNARY(erfc, std::erfc(x)),
        NUMBER("erfc of small numbers", erfc(x[0]), std::erfc(x), keep, unit),
        {"erfinv", [](In x) { return erfinv(x[0]); }, {pair}, nullptr, fp32, unit},
        NUMBER("lgamma", lgamma(x[0]), std::lgamma(x)),
        NUMBER("lgamma beyond 8", lgamma(x[0] + 8.0), std::lgamma(x + 8)),
        OF("digamma", digamma(x[0]), SHAPES(pair)),
        OF("digamma beyond 8", digamma(x[0] + 8.0), SHAPES(pair)),
        ROW("logaddexp", logaddexp(x[0], x[1]), std::log(std::exp(a) + std::exp(b))),
        ROW("hypot", hypot(x[0], x[1]), std::hypot(a, b)),
        ROW("xlogy", xlogy(x[0], x[1]), a * std::log(b), keep, positive),
        OF("xlogy of a broadcast first", xlogy(x[0], x[1]), SHAPES({3, 1}, {4}), keep, positive),
        OF("logaddexp of a broadcast first", logaddexp(x[0], x[1]), SHAPES({3, 1}, {4})),
        OF("hypot of a broadcast first", hypot(x[0], x[1]), SHAPES({3, 1}, {4})),
        OF("fmod of a broadcast first", fmod(x[0], x[1]), SHAPES({3, 1}, {4}), keep, positive),
        ROW("fmod", fmod(x[0], x[1]), std::fmod(a, b), keep, positive),
        NUMBER("fmod by a number", fmod(x[0], -0.75), std::fmod(x, -0.75)),
        ROW("div, rounded", div(x[0], x[1], RoundingMode::floor), std::floor(a / b), keep, distinct, "", "", false),
    };
}

std::vector<OpCase> activations() {
    constexpr double scale = 1.0507009873554805, alpha = 1.6732632423543772;
    return {
        UNARY(selu, scale * (x > 0 ? x : alpha * std::expm1(x))),
        NUMBER("celu", celu(x[0], 0.75), x > 0 ? x : 0.75 * std::expm1(x / 0.75)),
        NUMBER("relu6", relu6(x[0] * 4.0), std::clamp(4 * x, 0.0, 6.0)),
        NUMBER("hardsigmoid", hardsigmoid(x[0] * 2.5), std::clamp(2.5 * x / 6 + 0.5, 0.0, 1.0)),
        NUMBER("hardswish", hardswish(x[0] * 2.5), 2.5 * x * std::clamp(2.5 * x / 6 + 0.5, 0.0, 1.0)),
        NUMBER("hardshrink", hardshrink(x[0]), std::abs(x) > 0.5 ? x : 0),
        NUMBER("softshrink", softshrink(x[0]), x > 0.5 ? x - 0.5 : x < -0.5 ? x + 0.5 : 0),
        UNARY(logsigmoid, -std::log1p(std::exp(-x))),
        ROW("prelu", prelu(x[0], x[1]), a > 0 ? a : a * b, low),
        NUMBER("threshold", threshold(x[0], 0.5, -1.5), x > 0.5 ? x : -1.5),
        NUMBER("nan_to_num", nan_to_num(x[0]), x),
    };
}

std::vector<OpCase> families() {
    return {
        OF("vector_norm", vector_norm(x[0], 3, {0, 2}), SHAPES({2, 3, 4}), fp32),
        OF("vector_norm of 1.5", vector_norm(x[0], 1.5, {1}, {.keepdim = true}), SHAPES(pair), fp32),
        OF("vector_norm of 1", vector_norm(x[0], 1), SHAPES(pair), fp32),
        OF("vector_norm of -2", vector_norm(x[0], -2, {1}), SHAPES(pair), fp32, any, "", "", true, true, false),
        OF("vector_norm of inf", vector_norm(x[0], INFINITY, {1}), SHAPES(pair), fp32, distinct, "", "", true, true, false),
        OF("nansum", nansum(x[0], {1}), SHAPES(pair), fp32),
        OF("nanmean", nanmean(x[0], {1}), SHAPES(pair)),
        OF("median", median(x[0], 1).values, SHAPES(pair), keep, distinct, "", "", true, true, false),
        OF("median of all", median(x[0]), SHAPES(pair), keep, distinct, "", "", true, true, false),
        OF("cummax", cummax(x[0], 1).values, SHAPES(pair), keep, distinct),
        OF("cummin of the first", cummin(x[0], 0).values, SHAPES({4, 3}), keep, distinct),
        OF("logcumsumexp", logcumsumexp(x[0], 1), SHAPES(pair)),
        OF("tensordot", tensordot(x[0], x[1], {0, 2}, {1, 0}), SHAPES({2, 3, 4}, {4, 2, 5})),
        OF("kron", kron(x[0], x[1]), SHAPES({2, 3}, {4, 2})),
        OF("trace", trace(x[0]), SHAPES({4, 4}), fp32),
        OF("cdist", cdist(x[0], x[1]), SHAPES({2, 3, 4}, {5, 4}), fp32),
        OF("cdist by products", cdist(x[0], x[1]), SHAPES({27, 4}, {2, 4}), fp32, any, "", "", true, false, true, 4),
        OF("cdist of p 3", cdist(x[0], x[1], 3), SHAPES(pair, {2, 5}), fp32),
        OF("meshgrid", meshgrid({x[0], x[1]}, {.indexing = MeshIndexing::xy})[1] * 1.0, SHAPES({3}, {4})),
        OF("diff", diff(x[0], 2, 1), SHAPES(pair), keep, any, "", "", true, false),
    };
}
// clang-format on

}  // namespace

std::vector<OpCase> math_cases() {
    std::vector<OpCase> all;
    for (auto family : {elementary, activations, families}) {
        const std::vector<OpCase> more = family();
        all.insert(all.end(), more.begin(), more.end());
    }
    return all;
}

}  // namespace mezzo::test
