// Sums of products over chosen dimensions: tensordot, kron, trace.
#include <algorithm>

#include "autograd/autocast_state.h"
#include "autograd/op_observer.h"
#include "mezzo/product_ops.h"
#include "mezzo/shape_ops.h"
#include "ops/common.h"

namespace mezzo {

namespace {

// The dimensions of x that `dims` does not list, in order.
Axes others(const Tensor& x, const Axes& dims) {
    Axes rest;
    for (int d = 0; d < x.dim(); ++d)
        if (std::find(dims.begin(), dims.end(), d) == dims.end()) rest.push_back(d);
    return rest;
}

Axes wrapped(const Tensor& x, const Axes& dims) {
    Axes result;
    if (!dims.empty()) (void)normal_axes("tensordot", dims, x.dim());
    for (const std::int64_t d : dims) result.push_back(wrap_dim("tensordot", d, x.dim()));
    return result;
}

// x as a matrix: the dimensions `rows` of x by the dimensions `columns`.
Tensor matrix(const Tensor& x, const Axes& rows, const Axes& columns) {
    Axes order = rows;
    for (const std::int64_t d : columns) order.push_back(d);
    return x.permute(order).reshape({count_along(x.shape(), rows), count_along(x.shape(), columns)});
}

}  // namespace

Tensor tensordot(const Tensor& given_a, const Tensor& given_b, const Axes& dims_a, const Axes& dims_b) {
    const CompositeOp here("tensordot");
    check_floating("tensordot", given_a, "a");
    check_floating("tensordot", given_b, "b");
    check(dims_a.size() == dims_b.size(), ErrorKind::value, "tensordot: ", dims_a.size(),
          " dimensions of a for ", dims_b.size(), " of b");
    const Axes in_a = wrapped(given_a, dims_a), in_b = wrapped(given_b, dims_b);
    const Dtype dtype =
        promote(autocast_dtype(CastPolicy::promote, given_a), autocast_dtype(CastPolicy::promote, given_b));
    Tensor a = cast(given_a, dtype), b = cast(given_b, dtype);
    Axes sum_a, sum_b;  // dimensions that meet a size of 1
    for (int i = 0; i < in_a.size(); ++i) {
        const std::int64_t n = a.size(in_a[i]), m = b.size(in_b[i]);
        check(n == m || n == 1 || m == 1, ErrorKind::shape, "tensordot: dimension ", in_a[i], " of ",
              a.shape(), " and dimension ", in_b[i], " of ", b.shape(), " differ");
        if (n != m) (n == 1 ? sum_b : sum_a).push_back(n == 1 ? in_b[i] : in_a[i]);
    }
    const NoAutocast plain;
    if (!sum_a.empty()) a = sum(a, sum_a, keep_dims());
    if (!sum_b.empty()) b = sum(b, sum_b, keep_dims());
    const Axes rows = others(a, in_a), columns = others(b, in_b);
    Shape shape;
    for (const std::int64_t d : rows) shape.push_back(a.size(d));
    for (const std::int64_t d : columns) shape.push_back(b.size(d));
    return matmul(matrix(a, rows, in_a), matrix(b, in_b, columns)).reshape(shape);
}

Tensor tensordot(const Tensor& a, const Tensor& b, std::int64_t dims) {
    check_defined("tensordot", a);
    check_defined("tensordot", b);
    check(dims >= 0 && dims <= std::min(a.dim(), b.dim()), ErrorKind::value, "tensordot: dims is ", dims,
          " for ", a.shape(), " and ", b.shape());
    Axes dims_a, dims_b;
    for (std::int64_t i = 0; i < dims; ++i) {
        dims_a.push_back(a.dim() - dims + i);
        dims_b.push_back(i);
    }
    return tensordot(a, b, dims_a, dims_b);
}

Tensor kron(const Tensor& given_a, const Tensor& given_b) {
    const CompositeOp here("kron");
    check_defined("kron", given_a);
    check_defined("kron", given_b);
    const int dims = std::max(given_a.dim(), given_b.dim());
    const auto filled = [&](const Tensor& x) {
        Shape shape = Shape::filled(dims - x.dim(), 1);
        for (const std::int64_t size : x.shape()) shape.push_back(size);
        return x.reshape(shape);
    };
    const Tensor b = filled(given_b);
    Tensor a = filled(given_a);
    const Shape blocks = a.shape();
    for (int d = 0; d < dims; ++d) a = repeat_interleave(a, b.size(d), d);
    return a * repeat(b, blocks);
}

Tensor trace(const Tensor& x) {
    const CompositeOp here("trace");
    check_defined("trace", x);
    check(x.dim() == 2, ErrorKind::shape, "trace: ", x.shape(), " is not a matrix");
    return sum(diag(x));
}

}  // namespace mezzo
