// pad: constants by one op whose gradient is a crop; the other modes by index_select.
#include <algorithm>

#include "core/enumerators.h"
#include "kernels/pad.h"
#include "mezzo/image_ops.h"
#include "ops/common.h"

namespace mezzo {

namespace {

// x with rows and columns cut off: elements from[d] to to[d] of each dimension.
Tensor cropped(Tensor x, const Shape& from, const Shape& to) {
    for (int d = 0; d < x.dim(); ++d)
        if (from[d] != 0 || to[d] != x.size(d)) x = x.slice(d, from[d], to[d]);
    return x;
}

Tensors pad_decomposition(In in, const kernels::Pad& at) {
    Tensor y = in[0];
    for (int d = 0; d < y.dim(); ++d) {
        Shape before = y.shape(), after = y.shape();
        before[d] = at.before[d];
        after[d] = at.sizes[d] - at.before[d] - y.size(d);
        const TensorOptions like{.dtype = y.dtype(), .device = y.device()};
        y = cat({full(before, at.value, like), y, full(after, at.value, like)}, d);
    }
    return {y};
}

const Op<kernels::Pad> pad_op{{.saves = save_none},
                              [](const Node& c, const kernels::Pad& at, const Tensors& g) -> Tensors {
                                  Shape to = at.before;
                                  for (int d = 0; d < to.size(); ++d) to[d] += c.inputs[0].shape[d];
                                  return {cropped(g[0], at.before, to)};
                              },
                              pad_decomposition};

// Numbers of elements to add to each dimension, and the resulting sizes.
struct Plan {
    Shape before, after, sizes;
};

Plan planned(const Tensor& x, const std::vector<Padding>& padding) {
    Plan plan{Shape::filled(x.dim(), 0), Shape::filled(x.dim(), 0), x.shape()};
    bool used[max_dims] = {};
    for (const Padding& p : padding) {
        check(x.dim() > 0, ErrorKind::shape, "pad: a 0-dim input has no dimension to pad");
        const int d = wrap_dim("pad", p.dim, x.dim());
        check(!used[d], ErrorKind::value, "pad: dimension ", d, " is listed twice");
        used[d] = true;
        plan.before[d] = p.before;
        plan.after[d] = p.after;
        const bool too_large = __builtin_add_overflow(plan.sizes[d], p.before, &plan.sizes[d]) ||
                               __builtin_add_overflow(plan.sizes[d], p.after, &plan.sizes[d]);
        check(!too_large && plan.sizes[d] >= 0, ErrorKind::shape, "pad: ", p.before, " before and ", p.after,
              " after dimension ", d, " of ", x.shape(),
              too_large ? " are beyond 2^63" : " leave less than nothing");
    }
    checked_numel("pad", plan.sizes, size_of(x.dtype()));
    return plan;
}

// The part of x that stays, then constants around it.
Tensor padded_with(const Tensor& x, const Plan& plan, Scalar value) {
    if (x.dtype() == int64 && exceeds_double(value)) {
        const Tensor outside =
            padded_with(zeros(x.shape(), {.dtype = boolean, .device = x.device()}), plan, 1);
        return where(outside, value, padded_with(x, plan, 0));
    }
    Shape from = plan.before, to = plan.before;
    kernels::Pad at{.before = plan.before, .sizes = plan.sizes, .value = kernel_number(value, x.dtype())};
    for (int d = 0; d < x.dim(); ++d) {
        const std::int64_t n = x.size(d);
        from[d] = plan.before[d] < -n ? n : std::max<std::int64_t>(-plan.before[d], 0);
        to[d] = std::max(from[d], plan.after[d] < -n ? 0 : n + std::min<std::int64_t>(plan.after[d], 0));
        at.before[d] = std::clamp<std::int64_t>(plan.before[d], 0, plan.sizes[d] - (to[d] - from[d]));
    }
    const Tensor kept = cropped(x, from, to);
    return kept.shape() == plan.sizes ? in_own_memory(kept, x) : call(pad_op, {kept}, at, plan.sizes);
}

// The index, in a dimension of n elements, of the source of each element of the result.
Tensor source_index(PadMode mode, std::int64_t n, std::int64_t before, std::int64_t size, Device device) {
    const Tensor place = arange(size, {.dtype = int64, .device = device}) - before;
    const double last = double(n - 1);
    if (mode == PadMode::replicate) return clamp(place, 0, last);
    if (mode == PadMode::reflect) return last - abs(last - abs(place));
    const Tensor lifted = where(lt(place, 0), place + double(n), place);
    return where(gt(lifted, last), lifted - double(n), lifted);
}

const char* mode_name(PadMode mode) {
    return mode == PadMode::reflect ? "reflect" : mode == PadMode::replicate ? "replicate" : "circular";
}

// The indices in dimension d of x of the elements of the result, in a mode other than constant; undefined
// where they are those of x. Cut-off elements are removed from x.
Tensor continued(Tensor& x, int d, std::int64_t before, std::int64_t after, PadMode mode) {
    if (before == 0 && after == 0) return {};
    if (mode == PadMode::circular) {  // cropped elements do not come back, as in PyTorch
        const std::int64_t end = x.size(d) + std::min<std::int64_t>(after, 0);
        x = x.slice(d, std::max<std::int64_t>(-before, 0), std::max<std::int64_t>(end, 0));
        before = std::max<std::int64_t>(before, 0);
        after = std::max<std::int64_t>(after, 0);
    }
    const std::int64_t n = x.size(d), most = std::max(before, after);
    const std::int64_t limit = mode == PadMode::reflect ? n - 1 : n;
    const bool fits =
        mode == PadMode::replicate ? n > 0 || before + after <= 0 : most <= std::max<std::int64_t>(limit, 0);
    check(fits, ErrorKind::value, "pad: ", mode_name(mode), " cannot add ", before, " and ", after,
          " elements to the ", n, " of dimension ", d,
          "; reflect adds at most size - 1, circular at most size");
    if (most > 0) return source_index(mode, n, before, n + before + after, x.device());
    x = x.slice(d, -before, n + after);
    return {};
}

// Pads by look-ups. Two neighbouring dimensions are one if an element of them is a row of at least `least`
// numbers, next to which the indices are small.
Tensor padded_by_index(Tensor x, const Plan& plan, PadMode mode) {
    constexpr std::int64_t least = 16;
    Tensor index[max_dims];
    for (int d = 0; d < x.dim(); ++d) index[d] = continued(x, d, plan.before[d], plan.after[d], mode);
    std::int64_t row = 1;
    for (int d = x.dim() - 1; d >= 0; row *= plan.sizes[d--]) {
        if (!index[d].defined()) continue;
        if (d == 0 || !index[d - 1].defined() || row < least) {
            x = index_select(x, d, index[d]);
            continue;
        }
        const Tensor both = (index[d - 1].unsqueeze(1) * double(x.size(d)) + index[d]).reshape({-1});
        Shape merged = x.shape(), shape = x.shape();
        merged[d - 1] *= merged[d];
        merged[d] = 1;
        shape[d] = plan.sizes[d];
        shape[d - 1] = plan.sizes[d - 1];
        x = index_select(x.reshape(merged), d - 1, both).reshape(shape);
        row *= plan.sizes[d--];
    }
    return x;
}

}  // namespace

Tensor pad(const Tensor& x, const std::vector<Padding>& padding, PadMode mode, Scalar value) {
    check_enumerator("pad", "mode", mode, PadMode::circular);
    check_defined("pad", x);
    const Plan plan = planned(x, padding);
    if (mode == PadMode::constant) {
        check_value("pad", "value", value, x.dtype());
        return padded_with(x, plan, value);
    }
    check(value.to<double>() == 0, ErrorKind::value, "pad: value ", item(value),
          " is for PadMode::constant, not for ", mode_name(mode));
    return in_own_memory(padded_by_index(x, plan, mode), x);
}

}  // namespace mezzo
