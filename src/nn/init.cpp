#include "mezzo/init.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/enumerators.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo::nn::init {

namespace {

void check_floating(const char* op, const Tensor& x) {
    check(x.defined(), ErrorKind::value, op, ": the tensor is undefined");
    check(is_floating(x.dtype()), ErrorKind::dtype, op, ": the tensor is ", x.dtype(),
          ", but must be floating");
}

Fans fans_of(const char* op, const Tensor& weight) {
    check_floating(op, weight);
    check(weight.dim() >= 2, ErrorKind::shape, op, ": weight ", weight.shape(), " has ", weight.dim(),
          " dimensions; fans need at least two, [out, .., in]");
    const std::int64_t places = Shape(weight.shape().begin() + 1, weight.dim() - 2).numel();
    return {places * weight.size(-1), places * weight.size(0)};
}

double kaiming_std(const char* op, const Tensor& weight, const KaimingOptions& options) {
    check_enumerator(op, "mode", options.mode, FanMode::fan_out);
    const Fans fans = fans_of(op, weight);
    const std::int64_t fan = options.mode == FanMode::fan_in ? fans.in : fans.out;
    return calculate_gain(options.nonlinearity, options.a) /
           std::sqrt(double(std::max<std::int64_t>(1, fan)));
}

double xavier_std(const char* op, const Tensor& weight, double gain) {
    check(gain >= 0, ErrorKind::value, op, ": gain ", gain, " is negative or not a number");
    const Fans fans = fans_of(op, weight);
    return gain * std::sqrt(2 / double(std::max<std::int64_t>(1, fans.in + fans.out)));
}

// Uniform numbers of this standard deviation.
const Tensor& spread_evenly(const Tensor& x, double std) {
    return uniform_(x, -std::sqrt(3.0) * std, std::sqrt(3.0) * std);
}

}  // namespace

Fans calculate_fans(const Tensor& weight) { return fans_of("calculate_fans", weight); }

double calculate_gain(Nonlinearity nonlinearity, double slope) {
    check_enumerator("calculate_gain", "nonlinearity", nonlinearity, Nonlinearity::selu);
    switch (nonlinearity) {
        case Nonlinearity::tanh:
            return 5.0 / 3;
        case Nonlinearity::relu:
            return std::sqrt(2.0);
        case Nonlinearity::leaky_relu:
            check(std::isfinite(slope), ErrorKind::value, "calculate_gain: slope ", slope, " is not finite");
            return std::sqrt(2 / (1 + slope * slope));
        case Nonlinearity::selu:
            return 0.75;
        case Nonlinearity::linear:
        case Nonlinearity::sigmoid:
            break;
    }
    return 1;
}

const Tensor& kaiming_uniform_(const Tensor& weight, const KaimingOptions& options) {
    return spread_evenly(weight, kaiming_std("kaiming_uniform_", weight, options));
}
const Tensor& kaiming_normal_(const Tensor& weight, const KaimingOptions& options) {
    return normal_(weight, 0, kaiming_std("kaiming_normal_", weight, options));
}
const Tensor& xavier_uniform_(const Tensor& weight, double gain) {
    return spread_evenly(weight, xavier_std("xavier_uniform_", weight, gain));
}
const Tensor& xavier_normal_(const Tensor& weight, double gain) {
    return normal_(weight, 0, xavier_std("xavier_normal_", weight, gain));
}

const Tensor& constant_(const Tensor& x, Scalar value) {
    check_floating("constant_", x);
    const NoGrad plain;
    return x.fill_(value);
}
const Tensor& zeros_(const Tensor& x) { return constant_(x, 0); }
const Tensor& ones_(const Tensor& x) { return constant_(x, 1); }
const Tensor& uniform_(const Tensor& x, double low, double high) {
    check_floating("uniform_", x);
    const NoGrad plain;
    return x.uniform_(low, high);
}
const Tensor& normal_(const Tensor& x, double mean, double std) {
    check_floating("normal_", x);
    const NoGrad plain;
    return x.normal_(mean, std);
}

namespace {

// The standard normal distribution function at x, without cancellation for negative x.
double below(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

// The inverse of below() for p in (0, 0.5]: a rational approximation (Abramowitz and Stegun 26.2.23, error
// 4.5e-4), then Halley's method, which triples the digits with each step.
double quantile(double p) {
    const double t = std::sqrt(-2 * std::log(p));
    double x =
        (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308))) - t;
    for (int step = 0; step < 2; ++step) {
        const double error = (below(x) - p) * std::sqrt(2 * std::acos(-1.0)) * std::exp(x * x / 2);
        x -= error / (1 + x * error / 2);
    }
    return x;
}

// The inverse of below() for any p, with `rest` = 1 - p.
double quantile(double p, double rest) { return p <= 0.5 ? quantile(p) : -quantile(rest); }

}  // namespace

// The distribution's inverse at uniform numbers between its values at low and high. Shares are counted from
// the side on which the interval lies, so that tails lose no digits.
const Tensor& trunc_normal_(const Tensor& x, const TruncNormalOptions& o) {
    check_floating("trunc_normal_", x);
    check(o.std > 0 && std::isfinite(o.std) && std::isfinite(o.mean), ErrorKind::value,
          "trunc_normal_: mean ", o.mean, " and std ", o.std, "; both must be finite, and std positive");
    check(o.low < o.high, ErrorKind::value, "trunc_normal_: low ", o.low, " is not less than high ", o.high);
    const bool upper = (o.low - o.mean) + (o.high - o.mean) > 0;  // mirrored: more lies above the mean
    const double first = upper ? below((o.mean - o.high) / o.std) : below((o.low - o.mean) / o.std),
                 last = upper ? below((o.mean - o.low) / o.std) : below((o.high - o.mean) / o.std);
    check(last - first > 1e-300, ErrorKind::value,
          "trunc_normal_: next to nothing of a normal distribution of mean ", o.mean, " and std ", o.std,
          " lies in [", o.low, ", ", o.high, "]");
    const NoGrad plain;
    std::vector<double> values = rand(x.shape(), {.dtype = float64}).to_vector<double>();
    for (double& v : values) {
        const double least = (last - first) * 0x1p-54;  // the edge of the distribution is infinitely far away
        const double share = std::max(first + v * (last - first), least), rest = std::max(1 - share, least);
        const double z = quantile(share, rest);
        v = std::clamp(o.mean + (upper ? -z : z) * o.std, o.low, o.high);
    }
    return x.copy_(Tensor::from(values, x.shape()));
}

namespace {

// The rows [from, to) of q lose their components along the rows before `from`. Twice, because the first time
// leaves what rounding made of large components.
void project(const Tensor& q, std::int64_t from, std::int64_t to) {
    const Tensor before = q.slice(0, 0, from), block = q.slice(0, from, to);
    for (int pass = 0; pass < 2 && from > 0; ++pass)
        block.copy_(block - matmul(matmul(block, before.t()), before));
}

double product(const double* a, const double* b, std::int64_t n) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

// Makes `count` rows of length n orthonormal by Gram and Schmidt's method.
void orthonormalise(double* rows, std::int64_t count, std::int64_t n) {
    for (std::int64_t i = 0; i < count; ++i) {
        double* const row = rows + i * n;
        for (int pass = 0; pass < 2; ++pass)
            for (std::int64_t j = 0; j < i; ++j) {
                const double* const other = rows + j * n;
                const double along = product(row, other, n);
                for (std::int64_t k = 0; k < n; ++k) row[k] -= along * other[k];
            }
        const double length = std::sqrt(product(row, row, n));
        for (std::int64_t k = 0; k < n; ++k) row[k] /= length;
    }
}

// Random orthonormal rows, evenly distributed: of normal numbers, in blocks, so that most of the work is
// matrix products.
Tensor orthonormal_rows(std::int64_t count, std::int64_t n) {
    const Tensor q = randn({count, n}, {.dtype = float64});
    const std::int64_t block = 32;
    for (std::int64_t from = 0; from < count; from += block) {
        const std::int64_t to = std::min(from + block, count);
        project(q, from, to);
        orthonormalise(q.mutable_data<double>() + from * n, to - from, n);
    }
    return q;
}

}  // namespace

const Tensor& orthogonal_(const Tensor& weight, double gain) {
    check_floating("orthogonal_", weight);
    check(weight.dim() >= 2, ErrorKind::shape, "orthogonal_: weight ", weight.shape(), " has ", weight.dim(),
          " dimensions, but must have at least two");
    if (weight.numel() == 0) return weight;
    const NoGrad plain;
    const std::int64_t rows = weight.size(0), columns = weight.numel() / rows;
    const Tensor q = orthonormal_rows(std::min(rows, columns), std::max(rows, columns));
    return weight.copy_(((rows > columns ? q.t() : q) * gain).reshape(weight.shape()));
}

}  // namespace mezzo::nn::init
