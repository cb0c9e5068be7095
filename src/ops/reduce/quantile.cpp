// Quantiles: interpolation between sorted elements.
#include <algorithm>
#include <cmath>

#include "autograd/op_observer.h"
#include "core/enumerators.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/sort_ops.h"
#include "ops/common.h"

namespace mezzo {

namespace {

// A position between elements `low` and `low + 1`.
struct SortedPosition {
    std::int64_t low;
    double fraction;
};

SortedPosition place_of(double q, std::int64_t n, Interpolation interpolation) {
    check(q >= 0 && q <= 1, ErrorKind::value, "quantile: q is ", q, "; it must be in [0, 1]");
    double place = q * double(n - 1);
    if (interpolation == Interpolation::lower) place = std::floor(place);
    if (interpolation == Interpolation::higher) place = std::ceil(place);
    if (interpolation == Interpolation::nearest) place = std::nearbyint(place);
    const auto low = std::min(std::int64_t(place), n - 1);
    double fraction = place - double(low);
    if (interpolation == Interpolation::midpoint && fraction != 0) fraction = 0.5;
    return {low, fraction};
}

// The quantile along the last dimension of sorted values, where NaN is last.
Tensor sorted_quantile(const Tensor& values, double q, Interpolation interpolation) {
    const std::int64_t n = values.size(-1);
    const SortedPosition place = place_of(q, n, interpolation);
    Tensor y = values.select(-1, place.low);
    if (place.fraction != 0) y = lerp(y, values.select(-1, place.low + 1), place.fraction);
    const Tensor last = values.select(-1, n - 1);  // with its history, so that a NaN result has a gradient
    return where(isnan(last), last, y);
}

Tensor sorted_lines(const Tensor& x, const QuantileOptions& options) {
    check_floating("quantile", x);
    check_enumerator("quantile", "interpolation", options.interpolation, Interpolation::midpoint);
    const Tensor lines = options.dim ? x : x.reshape({x.numel()});
    const int d = wrap_dim("quantile", options.dim.value_or(0), lines.dim());
    const Tensor line = lines.dim() == 0 ? lines.reshape({1}) : lines.transpose(d, -1);
    check(line.size(-1) > 0, ErrorKind::shape, "quantile: ", x.shape(),
          " has no elements along the dimension");
    return sort(line, -1).values;
}

// y without the reduced dimension, or with size 1 there if keepdim is set.
Tensor in_place(const Tensor& y, const Tensor& x, const QuantileOptions& options) {
    if (!options.dim) return options.keepdim ? y.reshape(Shape::filled(x.dim(), 1)) : y.reshape({});
    const int d = wrap_dim("quantile", *options.dim, x.dim());
    if (x.dim() == 0) return y.reshape({});
    const Tensor kept = y.unsqueeze(-1).transpose(d, -1);
    return options.keepdim ? kept : kept.squeeze(d);
}

}  // namespace

Tensor quantile(const Tensor& x, double q, const QuantileOptions& options) {
    const CompositeOp here("quantile");
    const Tensor values = sorted_lines(x, options);
    return in_place(sorted_quantile(values, q, options.interpolation), x, options);
}

Tensor quantile(const Tensor& x, const std::vector<double>& q, const QuantileOptions& options) {
    const CompositeOp here("quantile");
    const Tensor values = sorted_lines(x, options);
    check(!q.empty(), ErrorKind::value, "quantile: the list of q is empty");
    Tensors each;
    for (const double one : q)
        each.push_back(in_place(sorted_quantile(values, one, options.interpolation), x, options));
    return stack(each);
}

}  // namespace mezzo
