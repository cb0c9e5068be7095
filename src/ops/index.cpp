// Look-ups by index and the sums they transpose to.
#include "ops/common.h"
#include "ops/kernel_for.h"

namespace mezzo {

namespace {

const Kernels embedding_grad_kernel{"embedding_grad", MEZZO_KERNELS(embedding_grad)};

// [count, n], 1 at each index: the look-up as a matrix product. Rows of indices that are not wanted are 0.
Tensor one_hot(const Tensor& index, std::int64_t n, const Attrs& at, Dtype dtype) {
    const Tensor flat = index.reshape({index.numel(), 1});
    Tensor hot = eq(arange(n, {.dtype = int64, .device = index.device()}), flat);
    if (at.index >= 0) hot = logical_and(hot, ne(flat, double(at.index)));
    return cast(hot, dtype);
}

// The padding row is read, but as a constant.
Tensors embedding_decomposition(In in, const Attrs& at) {
    Tensor weight = in[0];
    const std::int64_t n = weight.size(0);
    Shape shape = in[1].shape();
    shape.push_back(weight.size(1));
    if (at.index >= 0) {
        const Tensor row = arange(n, {.dtype = int64, .device = weight.device()}).unsqueeze(-1);
        weight = where(eq(row, double(at.index)), weight.detach(), weight);
    }
    const Tensor hot = one_hot(in[1], n, {.index = -1}, widened(weight).dtype());
    return {cast(matmul(hot, widened(weight)), weight.dtype()).reshape(shape)};
}

Tensors embedding_grad_decomposition(In in, const Attrs& at) {
    const Tensor g = widened(in[0]).reshape({in[1].numel(), at.shape[1]});
    return {cast(matmul(one_hot(in[1], at.shape[0], at, g.dtype()).t(), g), at.dtype)};
}

Tensors embedding_grad_vjp(const Node& c, const Tensors& g);

// Inputs g [..., dim], index [...]; at.shape = [n, dim], at.index = padding_idx -> gradient of the weight.
const Op embedding_grad_op{{.name = "embedding_grad",
                            .save = save_second,
                            .result = Result::attr,
                            .mixed = true,
                            .kernel = MEZZO_KERNELS(embedding_grad),
                            .vjp = embedding_grad_vjp,
                            .decomposition = embedding_grad_decomposition}};

// The gradient of the table. Where the engine allows it, it is added to the leaf's grad() row by row and the
// result is undefined: a second table for it would cost more than all the rest.
Tensor table_grad(const Node& c, const Tensor& g) {
    const Tensor index = c.in(1), grad = c.accumulator(0);
    Attrs at{.shape = c.inputs[0].shape, .index = c.at.index, .dtype = c.grad_dtype(0)};
    if (!grad.defined() || g.dtype() == float64) return call(embedding_grad_op, {g, index}, at, at.shape);
    at.beta = 1;
    const Tensor inputs[] = {g.contiguous(), index};
    embedding_grad_kernel(inputs, at, grad);
    grad->storage->version.fetch_add(1, std::memory_order_relaxed);
    return {};
}

// Inputs weight [n, dim], index [...]; at.index = padding_idx.
const Op embedding_op{{.name = "embedding",
                       .save = save_second,
                       .mixed = true,
                       .kernel = MEZZO_KERNELS(embedding),
                       .vjp = [](const Node& c, const Tensors& g) -> Tensors {
                           return {table_grad(c, g[0]), Tensor()};
                       },
                       .decomposition = embedding_decomposition}};

Shape looked_up(const Tensor& weight, const Tensor& index) {
    Shape shape = index.shape();
    shape.push_back(weight.size(1));
    return shape;
}

// Linear in g, with the look-up as its transpose; the padding row gave nothing and gets nothing.
Tensors embedding_grad_vjp(const Node& c, const Tensors& g) {
    if (!c.needs(0)) return {};
    const Tensor index = c.in(1);
    Tensor rows = call(embedding_op, {g[0], index}, {.index = c.at.index}, looked_up(g[0], index));
    if (c.at.index >= 0) rows = masked_fill(rows, eq(index, double(c.at.index)).unsqueeze(-1), 0);
    return {rows, Tensor()};
}

Tensors index_select_vjp(const Node& c, const Tensors& g);
Tensors index_select_grad_vjp(const Node& c, const Tensors& g);
Tensors gather_vjp(const Node& c, const Tensors& g);
Tensors scatter_add_vjp(const Node& c, const Tensors& g);

// Inputs x, index [n]; at.dim. A table look-up along any dimension.
const Op index_select_op{{.name = "index_select",
                          .save = save_second,
                          .kernel = MEZZO_KERNELS(index_select),
                          .vjp = index_select_vjp}};
// Inputs g, index [n]; at.dim, at.shape -> sums of the slices of g that have one index.
const Op index_select_grad_op{{.name = "index_select_grad",
                               .save = save_second,
                               .result = Result::attr,
                               .kernel = MEZZO_KERNELS(index_select_grad),
                               .vjp = index_select_grad_vjp}};
// Inputs x, index; at.dim. Outside of dim their shapes are equal.
const Op gather_op{
    {.name = "gather", .save = save_second, .kernel = MEZZO_KERNELS(gather), .vjp = gather_vjp}};
// Inputs src, index, and x unless it is 0; at.dim. Outside of dim their shapes are equal.
const Op scatter_add_op{{.name = "scatter_add",
                         .cast = Cast::promote,
                         .save = save_second,
                         .kernel = MEZZO_KERNELS(scatter_add),
                         .vjp = scatter_add_vjp}};

Shape with_size(Shape shape, std::int64_t dim, std::int64_t size) {
    shape[int(dim)] = size;
    return shape;
}

Tensor index_selected(const Tensor& x, std::int64_t dim, const Tensor& index) {
    return call(index_select_op, {x, index}, {.dim = dim}, with_size(x.shape(), dim, index.numel()));
}
Tensor gathered(const Tensor& x, std::int64_t dim, const Tensor& index) {
    return call(gather_op, {x, index}, {.dim = dim}, index.shape());
}

Tensors index_select_vjp(const Node& c, const Tensors& g) {
    const Attrs at{.shape = c.inputs[0].shape, .dim = c.at.dim, .dtype = c.grad_dtype(0)};
    return {call(index_select_grad_op, {g[0], c.in(1)}, at, at.shape), Tensor()};
}
Tensors index_select_grad_vjp(const Node& c, const Tensors& g) {
    return {index_selected(g[0], c.at.dim, c.in(1)), Tensor()};
}
Tensors gather_vjp(const Node& c, const Tensors& g) {
    return {call(scatter_add_op, {g[0], c.in(1)}, {.dim = c.at.dim}, c.inputs[0].shape), Tensor()};
}
Tensors scatter_add_vjp(const Node& c, const Tensors& g) {
    Tensors grads{c.needs(0) ? gathered(g[0], c.at.dim, c.in(1)) : Tensor(), Tensor()};
    if (c.inputs.size() > 2) grads.push_back(g[0]);
    return grads;
}

void check_index(const char* op, const Tensor& index) {
    check_defined(op, index);
    check(index.dtype() == int64, ErrorKind::dtype, op, ": index is ", index.dtype(),
          ", but must be int64; convert it with to(int64)");
}

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& index, std::int64_t padding_idx) {
    check_floating("embedding", weight, "weight");
    check_index("embedding", index);
    check(weight.dim() == 2, ErrorKind::shape, "embedding: weight ", weight.shape(), " is not [n, dim]");
    check(padding_idx >= -1 && padding_idx < weight.size(0), ErrorKind::value, "embedding: padding_idx ",
          padding_idx, " is outside the ", weight.size(0), " rows of the weight");
    return call(embedding_op, {weight, index}, {.index = padding_idx}, looked_up(weight, index));
}

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
    check_defined("index_select", x);
    check_index("index_select", index);
    check(x.dim() > 0, ErrorKind::shape, "index_select: a 0-dim input has nothing to select from");
    check(index.dim() == 1, ErrorKind::shape, "index_select: index ", index.shape(),
          " is not one dimension; flatten() it, or use gather for an index per element");
    return index_selected(x, wrap_dim("index_select", dim, x.dim()), index);
}

namespace {

// The dimension, wrapped, when index has as many as x and fits into `bound` outside of it.
int check_elements(const char* op, const Tensor& x, std::int64_t dim, const Tensor& index) {
    check_defined(op, x);
    check_index(op, index);
    check(x.dim() > 0, ErrorKind::shape, op, ": a 0-dim input has no dimension to index");
    const int wrapped = wrap_dim(op, dim, x.dim());
    bool fits = index.dim() == x.dim();
    for (int d = 0; fits && d < x.dim(); ++d) fits = d == wrapped || index.size(d) <= x.size(d);
    check(fits, ErrorKind::shape, op, ": index ", index.shape(), " does not fit input ", x.shape(),
          "; it needs as many dimensions, none larger than the input's but dimension ", wrapped);
    return wrapped;
}

// The part of x that index reaches: the first elements of every dimension but dim.
Tensor reached(Tensor x, int dim, const Shape& index) {
    for (int d = 0; d < x.dim(); ++d)
        if (d != dim && x.size(d) != index[d]) x = x.slice(d, 0, index[d]);
    return x;
}

// x with its reached part replaced.
Tensor with_reached(const Tensor& x, Tensor part, int dim) {
    for (int d = x.dim() - 1; d >= 0; --d) {
        if (part.size(d) == x.size(d)) continue;
        Tensor rest = x.slice(d, part.size(d), x.size(d));
        for (int outer = 0; outer < d; ++outer)
            if (outer != dim && rest.size(outer) != part.size(outer))
                rest = rest.slice(outer, 0, part.size(outer));
        part = cat({part, rest}, d);
    }
    return part;
}

}  // namespace

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index) {
    const int d = check_elements("gather", x, dim, index);
    return gathered(reached(x, d, index.shape()), d, index);
}

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
    const int d = check_elements("scatter_add", x, dim, index);
    check_defined("scatter_add", src);
    const bool agree = x.dtype() == src.dtype() || (autocast_takes(x) && autocast_takes(src));
    check(agree && x.dtype() != boolean, ErrorKind::dtype, "scatter_add: input is ", x.dtype(), " and src ",
          src.dtype(), "; they must agree and not be boolean; convert one with to()");
    bool fits = src.dim() == index.dim();
    for (int i = 0; fits && i < src.dim(); ++i) fits = index.size(i) <= src.size(i);
    check(fits, ErrorKind::shape, "scatter_add: index ", index.shape(), " does not fit src ", src.shape(),
          "; it needs as many dimensions, none larger");
    if (index.numel() == 0)
        return x.dtype() == src.dtype() ? x.clone() : cast(x, promote(x.dtype(), src.dtype()));
    const Tensor part = reached(x, d, index.shape());
    const Tensor values = reached(src, -1, index.shape());
    const Tensor sum = call(scatter_add_op, {values, index, part}, {.dim = d}, part.shape());
    return with_reached(x, sum, d);
}

}  // namespace mezzo
