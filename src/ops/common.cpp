#include "ops/common.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mezzo {

void check_defined(const char* op, const Tensor& x, bool takes_any_dtype) {
    check(x.defined(), ErrorKind::value, op, ": an input is undefined");
    if (!takes_any_dtype) check_computes(op, x.dtype());
}

void check_floating(const char* op, const Tensor& x, const char* what) {
    check_defined(op, x);
    check(is_floating(x.dtype()), ErrorKind::dtype, op, ": ", what, " is ", x.dtype(),
          ", but must be floating; convert it with to(float32)");
}

void check_value(const char* op, const char* what, Scalar value, Dtype dtype) {
    const DtypeInfo& info = dtype_info(dtype);
    if (dtype == boolean || has_exponent(dtype)) return;
    const std::int64_t most =
        dtype == int64 ? std::numeric_limits<std::int64_t>::max() : std::int64_t(info.max);
    const std::int64_t least = dtype == uint8 ? 0 : -most - 1;
    // As doubles the bounds are exact but for the most of int64, which is 2^63.
    const double whole = std::trunc(value.to<double>());
    const bool fits = value.is_integer()
                          ? value.to<std::int64_t>() >= least && value.to<std::int64_t>() <= most
                          : whole >= double(least) && whole <= double(most) && whole < 0x1p63;
    check(fits, ErrorKind::value, op, ": ", what, " ", item(value), " is no number of ", dtype);
    check(value.is_integer() || std::abs(whole) < 0x1p53 || whole == -0x1p63, ErrorKind::value, op, ": ",
          what, " ", item(value),
          " is not below 2^53, where a double holds every integer; pass an std::int64_t");
}

Tensor in_own_memory(const Tensor& y, const Tensor& x) {
    return y.impl()->storage == x.impl()->storage ? y.clone() : y;
}

void check_same_shape(const char* op, const Tensor& a, const Tensor& b) {
    check(a.shape() == b.shape(), ErrorKind::shape, op, ": shapes differ, ", a.shape(), " and ", b.shape(),
          "; reshape() or expand() one of them");
}

void check_same_dtype(const char* op, const Tensor& a, const char* what, const Tensor& b) {
    check_defined(op, b);
    check(a.dtype() == b.dtype(), ErrorKind::dtype, op, ": input is ", a.dtype(), " and ", what, " ",
          b.dtype(), "; convert one with to()");
}

void check_boolean(const char* op, const char* what, const Tensor& mask) {
    check_defined(op, mask);
    check(mask.dtype() == boolean, ErrorKind::dtype, op, ": the ", what, " is ", mask.dtype(),
          ", but must be boolean; compare it, as in ne(x, 0)");
}

namespace {

// boolean < integral < floating.
int category(Dtype dtype) {
    if (is_floating(dtype)) return 2;
    return dtype == boolean ? 0 : 1;
}

}  // namespace

Dtype promote_operands(Dtype a, int a_dims, Dtype b, int b_dims) {
    if ((a_dims == 0) == (b_dims == 0)) return promote(a, b);
    const Dtype full = a_dims ? a : b, single = a_dims ? b : a;
    return category(single) > category(full) ? promote(full, single) : full;
}

Axes normal_axes(const char* op, const Axes& axes, int dims) {
    Axes sorted;
    if (axes.empty()) {
        for (int d = 0; d < dims; ++d) sorted.push_back(d);
        return sorted;
    }
    bool used[max_dims] = {};
    for (std::int64_t axis : axes) {
        const int d = wrap_dim(op, axis, dims);
        check(!used[d], ErrorKind::shape, op, ": axis ", d, " is listed twice in ", axes);
        used[d] = true;
    }
    for (int d = 0; d < dims; ++d)
        if (used[d]) sorted.push_back(d);
    return sorted;
}

Shape reduced_shape(const Shape& shape, const Axes& axes, bool keepdim) {
    Shape out;
    for (int d = 0; d < shape.size(); ++d) {
        const bool reduced = std::find(axes.begin(), axes.end(), d) != axes.end();
        if (!reduced)
            out.push_back(shape[d]);
        else if (keepdim)
            out.push_back(1);
    }
    return out;
}

Tensor with_kept_dims(const Tensor& reduced, const Shape& full, const Axes& axes) {
    const Shape kept = reduced_shape(full, axes, true);
    return reduced.shape() == kept ? reduced : reduced.reshape(kept);
}

std::int64_t count_along(const Shape& shape, const Axes& axes) {
    std::int64_t n = 1;
    for (std::int64_t axis : axes) n *= shape[int(axis)];
    return n;
}

std::int64_t rows_of(const Shape& shape) {
    std::int64_t rows = 1;
    for (int d = 0; d + 1 < shape.size(); ++d) rows *= shape[d];
    return rows;
}

Tensor recorded_view(const AnyOp& op, const Tensor& x, const AttributesRef& at, const Tensor& view) {
    view->view = true;
    view->from_cast = x->from_cast;
    return record_view(op, x, at, view);
}

}  // namespace mezzo
