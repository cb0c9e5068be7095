// Writes by index: scatter and its reductions, whole slices, and masked_scatter. Kernels write single values;
// the rest is made of look-ups and sums.
#include <cmath>
#include <limits>

#include "autograd/op_observer.h"
#include "core/enumerators.h"
#include "kernels/index.h"
#include "mezzo/index_ops.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/sort_ops.h"
#include "ops/index/index.h"
#include "ops/index/index_common.h"

namespace mezzo {

namespace {

TensorOptions like(const Tensor& x, Dtype dtype) { return {.dtype = dtype, .device = x.device()}; }

// How many elements of index lead to each element of x along dim.
Tensor writes(const Tensor& x, int dim, const Tensor& index) {
    return scatter_add(zeros(x.shape(), like(x, int64)), dim, index, ones(index.shape(), like(x, int64)));
}
// Whether any does.
Tensor written(const Tensor& x, int dim, const Tensor& index) { return ne(writes(x, dim, index), 0); }

// 1, 2, ... along dim of a tensor of that shape: the positions of what is written, and 0 means none.
Tensor positions(const Tensor& index, int dim) {
    Shape line = Shape::filled(index.dim(), 1);
    line[dim] = index.size(dim);
    return arange(1, index.size(dim) + 1, like(index, int64)).reshape(line).expand(index.shape());
}

Tensors scatter_vjp(const Node& c, const kernels::Scatter& at, const Tensors& g);

// Adds the elements of src to 0, of several for one element of x only the last.
Tensors scatter_decomposition(In in, const kernels::Scatter& at) {
    const Tensor &src = in[0], &index = in[1], &x = in[2];
    const std::int64_t n = index.size(at.dim);
    if (n == 0) return {x.clone()};
    const int d = int(at.dim);
    const Tensor order = argsort(index, d), sorted = gather(index, d, order);
    const Tensor end = ones(index.select(d, 0).unsqueeze(d).shape(), like(index, boolean));
    const Tensor last = cat({ne(sorted.slice(d, 0, n - 1), sorted.slice(d, 1, n)), end}, d);
    const Tensor counts = scatter_add(zeros_like(index), d, order, cast(last, int64));
    const Dtype dtype = src.dtype() == boolean ? uint8 : src.dtype();
    const Tensor value = masked_fill(cast(src, dtype), eq(counts, 0), 0);
    const Tensor sum = scatter_add(zeros(x.shape(), like(x, dtype)), d, index, value);
    return {where(written(x, d, index), cast(sum, src.dtype()), x)};
}

const Op<kernels::Scatter> scatter_op{
    {.name = "scatter", .saves = save_second}, scatter_vjp, scatter_decomposition};

Tensor write(const Tensor& src, const Tensor& index, const Tensor& x, int dim) {
    return call(scatter_op, {src, index, x}, {.dim = dim}, x.shape());
}

Tensors scatter_vjp(const Node& c, const kernels::Scatter& at, const Tensors& g) {
    const Tensor index = c.in(1);
    const int d = int(at.dim);
    Tensors grads(3);
    if (c.needs(0)) {
        const Tensor own = positions(index, d);
        const Tensor last = write(own, index, zeros(g[0].shape(), like(g[0], int64)), d);
        grads[0] = masked_fill(gather(g[0], d, index), ne(gather(last, d, index), own), 0);
    }
    if (c.needs(2)) grads[2] = masked_fill(g[0], written(g[0], d, index), 0);
    return grads;
}

Tensors scatter_reduce_vjp(const Node& c, const kernels::ScatterReduce& at, const Tensors& g);

const Op<kernels::ScatterReduce> scatter_reduce_op{
    {.name = "scatter_reduce", .saves = save_inputs | save_outputs}, scatter_reduce_vjp};

// The product of the other factors is P / f for the product P of the factors that are not 0. A single 0 has
// the gradient P, and leaves none to the others.
Tensors product_grads(const Tensor& src, const Tensor& index, const Tensor& x, int d, const Tensor& g) {
    const Tensor none_src = eq(src, 0.0), none_x = eq(x, 0.0);
    const Tensor s = masked_fill(src, none_src, 1), self = masked_fill(x, none_x, 1);
    const Tensor product = g * call(scatter_reduce_op, {s, index, self}, {.dim = d}, x.shape());
    const Tensor count = scatter_add(cast(none_x, float32), d, index, cast(none_src, float32));
    Tensor others = masked_fill(product, ne(count, 0.0), 0);
    const Tensor of_zero = masked_fill(product, ne(count, 1.0), 0);
    if (recording(src) || recording(x)) {  // the gradient of the others is a multiple of the 0
        const Tensor zero = scatter_add(masked_fill(x, !none_x, 0), d, index, masked_fill(src, !none_src, 0));
        others = where(eq(count, 1.0), product * zero, others);
    }
    return {where(none_src, gather(of_zero, d, index), gather(others, d, index) / s), Tensor(),
            where(none_x, of_zero, others / self)};
}

Tensors scatter_reduce_vjp(const Node& c, const kernels::ScatterReduce& at, const Tensors& g) {
    const Tensor src = c.in(0), index = c.in(1), x = c.in(2);
    const int d = int(at.dim);
    if (at.kind == kernels::ScatterReduce::Kind::prod) return product_grads(src, index, x, d, g[0]);
    const Tensor y = c.out().detach();
    const Tensor other_src = ne(src, gather(y, d, index)), other_x = ne(x, y);
    const Tensor ties = scatter_add(cast(!other_x, g[0].dtype()), d, index, cast(!other_src, g[0].dtype()));
    // A result that is NaN has NaN gradients, so that a loss scaler sees it.
    const Tensor undefined = isnan(y), share = masked_fill(g[0] / ties, undefined, NAN);
    const Tensor hidden_src = logical_and(other_src, !gather(undefined, d, index));
    return {masked_fill(gather(share, d, index), hidden_src, 0), Tensor(),
            masked_fill(share, logical_and(other_x, !undefined), 0)};
}

// The dtype in which scatter_reduce() computes. In that of 16 bit products of two numbers keep their range.
Dtype reduced_in(Dtype dtype) {
    if (!is_floating(dtype)) return int64;
    return dtype == bfloat16 || dtype == float64 ? float64 : float32;
}

Tensor reduced_by(const Tensor& src, const Tensor& index, const Tensor& x, int d, ScatterReduction reduction,
                  bool include_self) {
    using enum ScatterReduction;
    using Limits = std::numeric_limits<std::int64_t>;
    using Kind = kernels::ScatterReduce::Kind;
    const bool sums = reduction == sum || reduction == mean, real = is_floating(x.dtype());
    const Tensor hit = include_self ? Tensor() : written(x, d, index);
    const auto start = [&](const Tensor& old, Scalar value) {
        return include_self ? old : masked_fill(old, hit, value);
    };
    const Dtype dtype = reduced_in(x.dtype());
    const Tensor values = cast(src, dtype), old = cast(x, dtype);
    if (sums) {
        const Tensor total = scatter_add(start(old, 0), d, index, values);
        if (reduction == sum) return cast(total, x.dtype());
        Tensor count = writes(x, d, index);
        count = include_self ? count + 1 : clamp(count, 1, Limits::max());
        return cast(real ? total / cast(count, dtype) : div(total, count, RoundingMode::floor), x.dtype());
    }
    const Scalar lowest = real ? Scalar(-INFINITY) : Scalar(Limits::min());
    const Scalar highest = real ? Scalar(INFINITY) : Scalar(Limits::max());
    const Kind kind = reduction == prod ? Kind::prod : reduction == amax ? Kind::amax : Kind::amin;
    const Scalar identity = reduction == prod ? Scalar(1) : reduction == amax ? lowest : highest;
    const Tensor first = start(old, identity);
    return cast(call(scatter_reduce_op, {values, index, first}, {.dim = d, .kind = kind}, x.shape()),
                x.dtype());
}

// x with the part that index reaches replaced by f(part of src, index, part of x, dim).
template <class F> Tensor scattered(const char* op, const Tensor& x, std::int64_t dim, const Tensor& index,
                                    const Tensor& src, const F& f) {
    const IndexedElements e = indexed_elements(op, x, dim, index);
    check_same_dtype(op, x, "src", src);
    if (index.numel() == 0) return unchanged(x, src);
    const Tensor part = reached(e.x, e.dim, e.index.shape());
    return with_reached(e.x, f(reached_source(op, src, e.index), e.index, part, e.dim), e.dim)
        .reshape(x.shape());
}

// Input of at least one dimension, dim, and a checked index [n] of slices of it.
struct IndexedSlices {
    Tensor x, index;
    int dim;
    // One number per slice, for broadcasting to x.
    Tensor spread(const Tensor& per_slice) const {
        Shape shape = Shape::filled(x.dim(), 1);
        shape[dim] = x.size(dim);
        return per_slice.reshape(shape);
    }
    Tensor marked() const { return spread(written(zeros({x.size(dim)}, like(x, int64)), 0, index)); }
};
IndexedSlices indexed_slices(const char* op, const Tensor& x, std::int64_t dim, const Tensor& index,
                             bool negative) {
    check_defined(op, x);
    const int d = wrap_dim(op, dim, x.dim());
    IndexedSlices e{x.dim() > 0 ? x : x.reshape({1}), slice_index(op, index), d};
    const std::int64_t n = e.x.size(d);
    const Tensor wrapped = wrapped_index(op, e.index, n);
    if (negative) {
        e.index = wrapped;
    } else if (wrapped.impl() != e.index.impl() && x.device().type() == DeviceType::cpu) {
        const bool below = e.index.numel() > 0 && min(e.index).item<std::int64_t>() < 0;
        check(!below, ErrorKind::value, op, ": an index is negative; count from the start, in [0, ", n, ")");
    }
    return e;
}

// src with the dimensions of e.x; Error(shape) unless it has a slice for each index.
Tensor slices(const char* op, const IndexedSlices& e, const Tensor& given) {
    check_same_dtype(op, e.x, "src", given);
    const Tensor src = given.dim() > 0 ? given : given.reshape({1});
    Shape wanted = e.x.shape();
    wanted[e.dim] = e.index.numel();
    check(src.shape() == wanted, ErrorKind::shape, op, ": src ", given.shape(), " is not ", wanted,
          ", a slice of the input for each of the ", e.index.numel(), " indices");
    return src;
}

// The index of slices as an index of the elements of src.
Tensor of_elements(const IndexedSlices& e, const Tensor& src) {
    Shape line = Shape::filled(src.dim(), 1);
    line[e.dim] = e.index.numel();
    return e.index.reshape(line).expand(src.shape());
}

}  // namespace

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
    return scattered("scatter", x, dim, index, src, write);
}

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, Scalar value) {
    const CompositeOp here("scatter");
    const IndexedElements e = indexed_elements("scatter", x, dim, index);
    if (index.numel() == 0) return x.clone();
    const Tensor part = reached(e.x, e.dim, e.index.shape());
    const Tensor filled = masked_fill(part, written(part, e.dim, e.index), value);
    return with_reached(e.x, filled, e.dim).reshape(x.shape());
}

Tensor scatter_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src,
                      ScatterReduction reduction, ScatterOptions options) {
    const CompositeOp here("scatter_reduce");
    check_enumerator("scatter_reduce", "reduction", reduction, ScatterReduction::amin);
    check_defined("scatter_reduce", x);
    check(x.dtype() != boolean, ErrorKind::dtype, "scatter_reduce: no arithmetic on boolean");
    return scattered("scatter_reduce", x, dim, index, src,
                     [&](const Tensor& values, const Tensor& at, const Tensor& part, int d) {
                         return reduced_by(values, at, part, d, reduction, options.include_self);
                     });
}

Tensor index_copy(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& given) {
    const CompositeOp here("index_copy");
    const IndexedSlices e = indexed_slices("index_copy", x, dim, index, false);
    const Tensor src = slices("index_copy", e, given);
    if (e.index.numel() == 0) return unchanged(x, src);
    const Tensor last = write(positions(e.index, 0), e.index, zeros({e.x.size(e.dim)}, like(x, int64)), 0);
    const Tensor rows =
        index_select(src, e.dim, clamp(last - 1, 0, std::numeric_limits<std::int64_t>::max()));
    return where(e.spread(ne(last, 0)), rows, e.x).reshape(x.shape());
}

Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& given, Scalar alpha) {
    const CompositeOp here("index_add");
    const IndexedSlices e = indexed_slices("index_add", x, dim, index, false);
    const Tensor src = slices("index_add", e, given);
    const bool once = alpha.to<double>() == 1;
    if (!is_floating(x.dtype()))
        return scatter_add(e.x, e.dim, of_elements(e, src), once ? src : src * alpha).reshape(x.shape());
    const Tensor sum = index_select_grad(src, e.dim, e.index, e.x.size(e.dim), widened(e.x).dtype());
    return cast(widened(e.x) + (once ? sum : sum * alpha), x.dtype()).reshape(x.shape());
}

Tensor index_fill(const Tensor& x, std::int64_t dim, const Tensor& index, Scalar value) {
    const CompositeOp here("index_fill");
    const IndexedSlices e = indexed_slices("index_fill", x, dim, index, true);
    return masked_fill(e.x, e.marked(), value).reshape(x.shape());
}

Tensor index_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& given,
                    ScatterReduction reduction, ScatterOptions options) {
    const CompositeOp here("index_reduce");
    const IndexedSlices e = indexed_slices("index_reduce", x, dim, index, false);
    const Tensor src = slices("index_reduce", e, given);
    return scatter_reduce(e.x, e.dim, of_elements(e, src), src, reduction, options).reshape(x.shape());
}

Tensor masked_scatter(const Tensor& given, const Tensor& mask, const Tensor& source) {
    const char* name = "masked_scatter";
    const CompositeOp here(name);
    check_defined(name, given);
    check_boolean(name, "mask", mask);
    check_same_dtype(name, given, "source", source);
    const Shape shape = broadcast_shapes(name, given.shape(), mask.shape());
    const Tensor x = given.expand(shape), hit = mask.expand(shape).reshape({shape.numel()});
    if (hit.device().type() == DeviceType::cpu) {
        const std::int64_t needed = count_nonzero(hit).item<std::int64_t>();
        check(needed <= source.numel(), ErrorKind::value, name, ": the mask holds for ", needed,
              " elements, and source has ", source.numel());
    }
    if (x.numel() == 0) return unchanged(x, source);
    if (source.numel() == 0) return masked_fill(x, mask, is_floating(x.dtype()) ? Scalar(NAN) : Scalar(0));
    const Tensor index = masked_fill(cumsum(hit, 0) - 1, !hit, 0);
    const Tensor values = index_select(source.reshape({source.numel()}), 0, index);
    return where(hit.reshape(shape), values.reshape(shape), x);
}

Tensor take_along_dim(const Tensor& x, const Tensor& given, std::optional<std::int64_t> dim) {
    const char* name = "take_along_dim";
    const CompositeOp here(name);
    check_defined(name, x);
    const int d = dim ? wrap_dim(name, *dim, x.dim()) : 0;
    const std::int64_t n = dim && x.dim() > 0 ? x.size(d) : x.numel();
    const Tensor index = wrapped_index(name, int64_index(name, given), n);
    if (!dim) return gather(x.reshape({n}), 0, index.reshape({index.numel()}));
    check(x.dim() == index.dim(), ErrorKind::shape, name, ": input ", x.shape(), " and index ", index.shape(),
          " have different numbers of dimensions");
    if (x.dim() == 0) return gather(x, 0, index);
    Shape of_x = x.shape(), of_index = index.shape();
    of_x[d] = of_index[d] = 1;
    Shape whole = broadcast_shapes(name, of_x, of_index), picked = whole;
    whole[d] = x.size(d);
    picked[d] = index.size(d);
    return gather(x.expand(whole), d, index.expand(picked));
}

}  // namespace mezzo
