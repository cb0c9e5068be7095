// Sorting and look-ups in sorted tensors. Kernels find positions; values are gathered, which is
// differentiable.
#include <cmath>

#include "autograd/op_observer.h"
#include "kernels/sort.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/shape_ops.h"
#include "mezzo/sort_ops.h"
#include "ops/common.h"

namespace mezzo {

namespace {

const Op<kernels::ArgSort> argsort_op{
    {.name = "argsort", .saves = save_none, .result = ResultDtype::indices, .differentiable = false}};
const Op<kernels::TopK> topk_op{
    {.name = "topk", .saves = save_none, .result = ResultDtype::indices, .differentiable = false}};
const Op<kernels::SearchSorted> searchsorted_op{
    {.name = "searchsorted", .saves = save_none, .result = ResultDtype::indices, .differentiable = false}};

// Runs f on x with at least one dimension.
template <class F> Sorted of_lines(const char* name, const Tensor& x, std::int64_t dim, const F& f) {
    check_defined(name, x);
    const int d = wrap_dim(name, dim, x.dim());
    if (x.dim() > 0) return f(x, d);
    const Sorted one = f(x.reshape({1}), 0);
    return {one.values.reshape({}), one.indices.reshape({})};
}

Sorted first_of(const char* name, const Tensor& x, std::int64_t k, int d, bool largest) {
    check(k >= 0 && k <= x.size(d), ErrorKind::value, name, ": k is ", k, ", but dimension ", d, " of ",
          x.shape(), " has ", x.size(d), " elements");
    Shape shape = x.shape();
    shape[d] = k;
    const Tensor indices = call(topk_op, {x}, {.dim = d, .k = k, .largest = largest}, shape);
    return {gather(x, d, indices), indices};
}

// The elements of lines, made of x, at `index`, of size 1 along d; without that dimension unless keepdim is
// set.
Sorted picked(const Tensor& lines, int d, const Tensor& index, const Tensor& x, KeepdimOptions options) {
    const Tensor value = gather(lines, d, index);
    if (options.keepdim || x.dim() == 0) return {value, index};
    return {value.squeeze(d), index.squeeze(d)};
}

void check_some(const char* op, const Tensor& x, int d) {
    check(x.size(d) > 0, ErrorKind::shape, op, ": dimension ", d, " of ", x.shape(), " is empty");
}

// Index of the lower middle element along d, or of the first NaN.
Tensor middle_of(const Tensor& x, int d) {
    const std::int64_t n = x.size(d), middle = (n - 1) / 2;
    const Tensor order = argsort(x, d), index = order.slice(d, middle, middle + 1);
    if (!is_floating(x.dtype())) return index;
    const NoGrad plain;
    const Tensor largest = gather(x, d, order.slice(d, n - 1, n));
    return where(isnan(largest), argmax(x, d, {.keepdim = true}), index);
}

// Index of the last of the most frequent elements along the last dimension. In sorted rows the number of
// elements up to each one that equal it is largest at the end of the longest run.
Tensor mode_of(const Tensor& x) {
    const NoGrad plain;
    const Sorted s = sort(x, -1);
    const Tensor place = arange(x.size(-1), {.dtype = int64, .device = x.device()});
    Tensor count = place - searchsorted(s.values, s.values) + 1;
    if (is_floating(x.dtype())) count = masked_fill(count, isnan(s.values), 1);
    return gather(s.indices, -1, argmax(count, -1, {.keepdim = true}));
}

void check_rows(const Tensor& sorted, const Tensor& values) {
    check_defined("searchsorted", sorted);
    check_defined("searchsorted", values);
    check(sorted.dim() > 0, ErrorKind::shape,
          "searchsorted: sorted is 0-dim; it needs a dimension to search");
    bool fits = sorted.dim() == 1 || sorted.dim() == values.dim();
    for (int d = 0; fits && sorted.dim() > 1 && d + 1 < values.dim(); ++d)
        fits = sorted.size(d) == values.size(d);
    check(fits, ErrorKind::shape, "searchsorted: sorted ", sorted.shape(), " and values ", values.shape(),
          " differ before their last dimension");
}

}  // namespace

Tensor argsort(const Tensor& x, std::int64_t dim, SortOptions options) {
    check_defined("argsort", x);
    const int d = wrap_dim("argsort", dim, x.dim());
    if (x.dim() == 0) return zeros({}, {.dtype = int64, .device = x.device()});
    return call(argsort_op, {x}, {.dim = d, .descending = options.descending}, x.shape());
}

Sorted sort(const Tensor& x, std::int64_t dim, SortOptions options) {
    const CompositeOp here("sort");
    return of_lines("sort", x, dim, [&](const Tensor& lines, int d) -> Sorted {
        const Tensor indices = argsort(lines, d, options);
        return {gather(lines, d, indices), indices};
    });
}

Sorted topk(const Tensor& x, std::int64_t k, std::int64_t dim, TopkOptions options) {
    const bool largest = options.largest;
    check_defined("topk", x);
    if (x.dim() == 0 && k == 0) {
        const Sorted one = first_of("topk", x.reshape({1}), k, 0, largest);
        return one;
    }
    return of_lines("topk", x, dim,
                    [&](const Tensor& lines, int d) { return first_of("topk", lines, k, d, largest); });
}

Sorted kthvalue(const Tensor& x, std::int64_t k, std::int64_t dim, KeepdimOptions options) {
    const CompositeOp here("kthvalue");
    return of_lines("kthvalue", x, dim, [&](const Tensor& lines, int d) -> Sorted {
        check(k >= 1 && k <= lines.size(d), ErrorKind::value, "kthvalue: k is ", k, ", but dimension ", d,
              " of ", x.shape(), " has ", lines.size(d), " elements; k counts from 1");
        Shape shape = lines.shape();
        shape[d] = k;
        const Tensor first = call(topk_op, {lines}, {.dim = d, .k = k, .largest = false}, shape);
        return picked(lines, d, first.slice(d, k - 1, k), x, options);
    });
}

Sorted median(const Tensor& x, std::int64_t dim, KeepdimOptions options) {
    const CompositeOp here("median");
    return of_lines("median", x, dim, [&](const Tensor& lines, int d) -> Sorted {
        check_some("median", lines, d);
        return picked(lines, d, middle_of(lines, d), x, options);
    });
}

// The mean of the elements that equal the median, because its gradient is shared by them.
Tensor median(const Tensor& x) {
    const CompositeOp here("median");
    check_defined("median", x);
    check(x.numel() > 0, ErrorKind::shape, "median: ", x.shape(), " is empty");
    const Tensor all = x.reshape({x.numel()}), value = gather(all, 0, middle_of(all, 0)).reshape({});
    if (!is_floating(x.dtype()) || !recording(x)) return value;
    const Tensor same = logical_or(eq(all, value.detach()), logical_and(isnan(all), isnan(value.detach())));
    const Tensor sum_of_equal = sum(cast(masked_fill(all, logical_not(same), 0), float64));
    const Tensor mean = cast(sum_of_equal / cast(sum(same), float64), x.dtype());
    // The mean may be off by a rounding: its history is added to the value. That of infinities is exact.
    return where(isfinite(value), value.detach() + (mean - mean.detach()), mean);
}

Sorted mode(const Tensor& x, std::int64_t dim, KeepdimOptions options) {
    const CompositeOp here("mode");
    return of_lines("mode", x, dim, [&](const Tensor& lines, int d) -> Sorted {
        check_some("mode", lines, d);
        const Tensor index = mode_of(lines.transpose(d, -1)).transpose(d, -1);
        return picked(lines, d, index, x, options);
    });
}

Tensor searchsorted(const Tensor& sorted, const Tensor& values, SearchsortedOptions options) {
    check_rows(sorted, values);
    const Dtype dtype = promote(sorted.dtype(), values.dtype());
    return call(searchsorted_op, {cast(sorted.detach(), dtype), cast(values.detach(), dtype)},
                {.right = options.right}, values.shape());
}

Tensor isin(const Tensor& elements, const Tensor& test) {
    const CompositeOp here("isin");
    check_defined("isin", elements);
    check_defined("isin", test);
    const std::int64_t n = test.numel();
    if (n == 0) return zeros(elements.shape(), {.dtype = boolean, .device = elements.device()});
    const Dtype dtype = promote(elements.dtype(), test.dtype());
    const Tensor x = cast(elements.detach(), dtype).reshape({elements.numel()});
    const Tensor sorted = sort(cast(test.detach(), dtype).reshape({n})).values;
    const Tensor place = clamp(searchsorted(sorted, x), 0, double(n - 1));
    return eq(index_select(sorted, 0, place), x).reshape(elements.shape());
}

}  // namespace mezzo
