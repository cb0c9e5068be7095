// arange() of any numbers, linspace() and eye(), computed from whole numbers 0, 1, 2, ... in float64 or
// int64.
#include <cmath>

#include "mezzo/autograd.h"
#include "ops/common.h"

namespace mezzo {

namespace {

constexpr double exact = 0x1p53;  // whole numbers up to here are float64

// The result of values(), without history, in the dtype of the options and with their requires_grad.
template <class F> Tensor finished(const TensorOptions& options, const F& values) {
    Tensor result;
    {
        const NoGrad plain;
        result = values().to(options.dtype);
    }
    if (options.requires_grad) result.set_requires_grad();
    return result;
}

void check_dtype(const char* op, const TensorOptions& options) {
    check(options.dtype != boolean, ErrorKind::dtype, op, ": boolean cannot count");
    check_computes(op, options.dtype);
}

// The length of the sequence start, start + step, ... before end.
std::int64_t count_steps(double start, double end, double step) {
    check(std::isfinite(start) && std::isfinite(end) && std::isfinite(step), ErrorKind::value,
          "arange: start ", start, ", end ", end, " and step ", step, " must be finite");
    check(step != 0 && (end - start) / step >= 0, ErrorKind::value, "arange: from ", start, " to ", end,
          " in steps of ", step, " never ends; the step must lead from start to end");
    const double count = std::ceil((end - start) / step);
    check(count < exact, ErrorKind::value, "arange: ", count, " numbers are too many");
    return std::int64_t(count);
}

// Throws Error(value) for an integer beyond +-2^53.
double exact_double(const char* op, Scalar value) {
    check(!value.is_integer() || (value.to<std::int64_t>() >= std::int64_t(-exact) &&
                                  value.to<std::int64_t>() <= std::int64_t(exact)),
          ErrorKind::value, op, ": ", item(value), " is beyond 2^53");
    return value.to<double>();
}

}  // namespace

Tensor arange(std::int64_t start, std::int64_t end, std::int64_t step, IntegerOptions options) {
    check_dtype("arange", options);
    for (const std::int64_t bound : {start, end, step}) exact_double("arange", bound);
    const std::int64_t count = count_steps(double(start), double(end), double(step));
    return finished(options, [&] {
        const Tensor numbers = arange(count, {.dtype = int64, .device = options.device});
        return numbers * step + start;
    });
}

Tensor arange_of(Scalar from, Scalar to, Scalar by, TensorOptions options) {
    check_dtype("arange", options);
    const double start = exact_double("arange", from), end = exact_double("arange", to);
    const double step = exact_double("arange", by);
    const std::int64_t count = count_steps(start, end, step);
    return finished(
        options, [&] { return arange(count, {.dtype = float64, .device = options.device}) * step + start; });
}

// The second half counts from the end, so that it is reached exactly and the numbers are symmetric.
Tensor linspace(Scalar from, Scalar to, std::int64_t steps, TensorOptions options) {
    check_dtype("linspace", options);
    if (!is_floating(options.dtype))
        for (const Scalar& bound : {from, to}) exact_double("linspace", bound);
    const double start = from.to<double>(), end = to.to<double>();
    check(steps >= 0, ErrorKind::value, "linspace: steps is ", steps, "; it must not be negative");
    check(std::isfinite(start) && std::isfinite(end) && std::isfinite(end - start), ErrorKind::value,
          "linspace: start ", start, ", end ", end, " and their difference must be finite");
    const double by = steps > 1 ? (end - start) / double(steps - 1) : 0;
    const std::int64_t half = steps > 1 ? steps / 2 : steps;
    return finished(options, [&] {
        const TensorOptions wide{.dtype = float64, .device = options.device};
        const Tensor first = arange(half, wide) * by + start;
        return cat({first, end - (double(steps - half - 1) - arange(steps - half, wide)) * by});
    });
}

Tensor eye(std::int64_t n, std::int64_t m, TensorOptions options) {
    check(n >= 0 && m >= 0, ErrorKind::value, "eye: ", n, " rows and ", m,
          " columns; neither may be negative");
    return finished(options, [&] {
        const TensorOptions whole{.dtype = int64, .device = options.device};
        return arange(n, whole).unsqueeze(1) == arange(m, whole);
    });
}

Tensor eye(std::int64_t n, TensorOptions options) { return eye(n, n, options); }

}  // namespace mezzo
