// Look-ups by index, and their gradients: sums over equal indices.
#include "kernels/index.h"
#include "autograd/autocast_state.h"
#include "kernels/dispatch.h"
#include "ops/index/index.h"

#include "ops/gemm/quantized_weight.h"
#include "ops/index/index_common.h"

namespace mezzo {

namespace {

const KernelOf<kernels::EmbeddingGrad> embedding_grad_kernel;

// [count, n], each row with a 1 at its index: multiplied by the weight it is the look-up. Rows with the index
// `without` are 0 (-1: none).
Tensor one_hot(const Tensor& index, std::int64_t n, std::int64_t without, Dtype dtype) {
    const Tensor flat = index.reshape({index.numel(), 1});
    Tensor hot = eq(arange(n, {.dtype = int64, .device = index.device()}), flat);
    if (without >= 0) hot = logical_and(hot, ne(flat, double(without)));
    return cast(hot, dtype);
}

// The padding row of the weight is read as a constant, so that it gets no gradient.
Tensors embedding_decomposition(In in, const kernels::Embedding& at) {
    Tensor weight = in[0];
    const std::int64_t n = weight.size(0);
    Shape shape = in[1].shape();
    shape.push_back(weight.size(1));
    if (at.padding_idx >= 0) {
        const Tensor row = arange(n, {.dtype = int64, .device = weight.device()}).unsqueeze(-1);
        weight = where(eq(row, double(at.padding_idx)), weight.detach(), weight);
    }
    const Tensor hot = one_hot(in[1], n, -1, weight.dtype());
    return {matmul(hot, weight).reshape(shape)};
}

Tensors embedding_grad_decomposition(In in, const kernels::EmbeddingGrad& at) {
    const Tensor g = in[0].reshape({in[1].numel(), in[0].size(-1)});
    return {matmul(one_hot(in[1], at.rows, at.padding_idx, g.dtype()).t(), g)};
}

Tensors embedding_grad_vjp(const Node& c, const kernels::EmbeddingGrad& at, const Tensors& g);

const Op<kernels::EmbeddingGrad> embedding_grad_op{
    {.name = "embedding_grad", .saves = save_second, .result = ResultDtype::requested, .mixed = true},
    embedding_grad_vjp,
    embedding_grad_decomposition};

// The gradient of the weight. If the engine allows it (Node::accumulator), rows are added to the leaf's
// grad() in place and the result is undefined: to fill a second tensor of the weight's size and add it would
// cost more than everything else.
Tensor table_grad(const Node& c, std::int64_t padding_idx, const Tensor& g) {
    const Tensor index = c.in(1), grad = c.accumulator(0);
    const Shape& shape = c.inputs[0].shape;
    kernels::EmbeddingGrad at{.rows = shape[0], .padding_idx = padding_idx};
    if (!grad.defined() || g.dtype() == float64)
        return call(embedding_grad_op, {g, index}, at, shape, c.grad_dtype(0));
    at.accumulate = true;
    const Tensor inputs[] = {g.contiguous(), index};
    embedding_grad_kernel(inputs, at, grad);
    grad->storage->version.fetch_add(1, std::memory_order_relaxed);
    return {};
}

const Op<kernels::Embedding> embedding_op{
    {.name = "embedding", .saves = save_second, .mixed = true},
    [](const Node& c, const kernels::Embedding& at, const Tensors& g) -> Tensors {
        return {table_grad(c, at.padding_idx, g[0]), Tensor()};
    },
    embedding_decomposition};

Shape looked_up(const Tensor& weight, const Tensor& index) {
    Shape shape = index.shape();
    shape.push_back(weight.size(1));
    return shape;
}

// Rows of an 8-bit weight; their codes are looked up as bytes.
Tensor quantized_rows(const Tensor& weight, const Tensor& index) {
    const Tensor& scale = weight->grad_meta->scale;
    const Tensor bytes = call(embedding_op, {as_dtype(weight, uint8), index}, {}, looked_up(weight, index));
    const Tensor factors = call(embedding_op, {scale, index}, {}, looked_up(scale, index));
    return cast(scaled_codes(as_dtype(bytes, weight.dtype()), factors), weight->grad_meta->row_dtype);
}

// The op is linear in g and its transpose is the look-up. Rows of g at the padding index are not in its
// result, so their gradient is 0.
Tensors embedding_grad_vjp(const Node& c, const kernels::EmbeddingGrad& at, const Tensors& g) {
    if (!c.needs(0)) return {};
    const Tensor index = c.in(1);
    Tensor rows = call(embedding_op, {g[0], index}, {.padding_idx = at.padding_idx}, looked_up(g[0], index));
    if (at.padding_idx >= 0) rows = masked_fill(rows, eq(index, double(at.padding_idx)).unsqueeze(-1), 0);
    return {rows, Tensor()};
}

Tensors index_select_vjp(const Node& c, const kernels::IndexSelect& at, const Tensors& g);
Tensors index_select_grad_vjp(const Node& c, const kernels::IndexSelectGrad& at, const Tensors& g);
Tensors gather_vjp(const Node& c, const kernels::Gather& at, const Tensors& g);
Tensors scatter_add_vjp(const Node& c, const kernels::ScatterAdd& at, const Tensors& g);

// A table look-up along any dimension.
const Op<kernels::IndexSelect> index_select_op{{.name = "index_select", .saves = save_second},
                                               index_select_vjp};
const Op<kernels::IndexSelectGrad> index_select_grad_op{
    {.name = "index_select_grad", .saves = save_second, .result = ResultDtype::requested},
    index_select_grad_vjp};
const Op<kernels::Gather> gather_op{{.name = "gather", .saves = save_second}, gather_vjp};
const Op<kernels::ScatterAdd> scatter_add_op{
    {.name = "scatter_add", .cast = CastPolicy::promote, .saves = save_second}, scatter_add_vjp};

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

Tensors index_select_vjp(const Node& c, const kernels::IndexSelect& at, const Tensors& g) {
    const std::int64_t size = c.inputs[0].shape[int(at.dim)];
    return {index_select_grad(g[0], at.dim, c.in(1), size, c.grad_dtype(0)), Tensor()};
}
Tensors index_select_grad_vjp(const Node& c, const kernels::IndexSelectGrad& at, const Tensors& g) {
    return {index_selected(g[0], at.dim, c.in(1)), Tensor()};
}
Tensors gather_vjp(const Node& c, const kernels::Gather& at, const Tensors& g) {
    return {call(scatter_add_op, {g[0], c.in(1)}, {.dim = at.dim}, c.inputs[0].shape), Tensor()};
}
Tensors scatter_add_vjp(const Node& c, const kernels::ScatterAdd& at, const Tensors& g) {
    Tensors grads{c.needs(0) ? gathered(g[0], at.dim, c.in(1)) : Tensor(), Tensor()};
    if (c.inputs.size() > 2) grads.push_back(g[0]);
    return grads;
}

}  // namespace

Tensor int64_index(const char* op, const Tensor& index) {
    check_defined(op, index);
    check(index.dtype() == int64 || index.dtype() == int32, ErrorKind::dtype, op, ": index is ",
          index.dtype(), ", but must be int64 or int32; convert it with to(int64)");
    return index.to(int64);
}

Tensor wrapped_index(const char* op, const Tensor& given, std::int64_t n) {
    if (given.device().type() != DeviceType::cpu) return where(lt(given, 0), given + n, given);
    const Tensor index = given.contiguous();
    const std::int64_t count = index.numel();
    if (count == 0) return index;
    const auto* const values = index.data<std::int64_t>();
    bool negative = false;
    for (std::int64_t i = 0; i < count; ++i) {
        check(values[i] >= -n && values[i] < n, ErrorKind::value, op, ": index ", values[i], " at position ",
              i, " is outside [", -n, ", ", n, ")");
        negative = negative || values[i] < 0;
    }
    return negative ? where(lt(index, 0), index + n, index) : index;
}

Tensor slice_index(const char* op, const Tensor& index) {
    const Tensor whole = int64_index(op, index);
    check(whole.dim() <= 1, ErrorKind::shape, op, ": index ", whole.shape(),
          " is not one dimension; flatten() it, or use gather or scatter for an index per element");
    return whole.reshape({whole.numel()});
}

Tensor embedding(const Tensor& weight, const Tensor& given, std::int64_t padding_idx) {
    if (!is_quantized(weight)) check_floating("embedding", weight, "weight");
    const Tensor index = int64_index("embedding", given);
    check(weight.dim() == 2, ErrorKind::shape, "embedding: weight ", weight.shape(), " is not [n, dim]");
    check(padding_idx >= -1 && padding_idx < weight.size(0), ErrorKind::value, "embedding: padding_idx ",
          padding_idx, " is outside the ", weight.size(0), " rows of the weight");
    if (is_quantized(weight)) return quantized_rows(weight, index);
    return call(embedding_op, {weight, index}, {.padding_idx = padding_idx}, looked_up(weight, index));
}

Tensor index_select_grad(const Tensor& g, std::int64_t dim, const Tensor& index, std::int64_t size,
                         Dtype dtype) {
    return call(index_select_grad_op, {g, index}, {.dim = dim}, with_size(g.shape(), dim, size), dtype);
}

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& given) {
    check_defined("index_select", x, any_dtype);
    const Tensor index = slice_index("index_select", given);
    const int d = wrap_dim("index_select", dim, x.dim());
    if (x.dim() > 0) return index_selected(x, d, index);
    check(index.numel() == 1, ErrorKind::shape, "index_select: a 0-dim input has one element, but index has ",
          index.numel());
    return index_selected(x.reshape({1}), 0, index).reshape({});
}

IndexedElements indexed_elements(const char* op, const Tensor& given, std::int64_t dim,
                                 const Tensor& given_index, bool takes_any_dtype) {
    check_defined(op, given, takes_any_dtype);
    IndexedElements e{given, int64_index(op, given_index), wrap_dim(op, dim, given.dim())};
    if (e.x.dim() == 0) e.x = e.x.reshape({1});
    if (e.index.dim() == 0) e.index = e.index.reshape({1});
    bool fits = e.index.dim() == e.x.dim();
    for (int d = 0; fits && d < e.x.dim(); ++d) fits = d == e.dim || e.index.size(d) <= e.x.size(d);
    check(fits, ErrorKind::shape, op, ": index ", given_index.shape(), " does not fit input ", given.shape(),
          "; it needs as many dimensions, none larger than the input's but dimension ", e.dim);
    return e;
}

Tensor reached(Tensor x, int dim, const Shape& index) {
    for (int d = 0; d < x.dim(); ++d)
        if (d != dim && x.size(d) != index[d]) x = x.slice(d, 0, index[d]);
    return x;
}

Tensor unchanged(const Tensor& x, const Tensor& src) {
    const NoAutocast plain;
    return recording(src) ? x - sum(src.reshape({src.numel()}).slice(0, 0, 0)) : x.clone();
}

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

Tensor reached_source(const char* op, const Tensor& given, const Tensor& index) {
    check_defined(op, given);
    const Tensor src = given.dim() > 0 ? given : given.reshape({1});
    bool fits = src.dim() == index.dim();
    for (int d = 0; fits && d < src.dim(); ++d) fits = index.size(d) <= src.size(d);
    check(fits, ErrorKind::shape, op, ": index ", index.shape(), " does not fit src ", given.shape(),
          "; it needs as many dimensions, none larger");
    return reached(src, -1, index.shape());
}

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index) {
    const IndexedElements e = indexed_elements("gather", x, dim, index, any_dtype);
    return gathered(reached(e.x, e.dim, e.index.shape()), e.dim, e.index).reshape(index.shape());
}

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& given) {
    const IndexedElements e = indexed_elements("scatter_add", x, dim, index);
    check_defined("scatter_add", given);
    const bool agree = x.dtype() == given.dtype() || (autocast_takes(x) && autocast_takes(given));
    check(agree && x.dtype() != boolean, ErrorKind::dtype, "scatter_add: input is ", x.dtype(), " and src ",
          given.dtype(), "; they must agree and not be boolean; convert one with to()");
    if (index.numel() == 0) return unchanged(cast(x, promote(x.dtype(), given.dtype())), given);
    const Tensor part = reached(e.x, e.dim, e.index.shape()),
                 src = reached_source("scatter_add", given, e.index);
    const Tensor sum = call(scatter_add_op, {src, e.index, part}, {.dim = e.dim}, part.shape());
    return with_reached(e.x, sum, e.dim).reshape(x.shape());
}

}  // namespace mezzo
