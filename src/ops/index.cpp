// Look-ups by index.
#include "ops/common.h"
#include "ops/kernels.h"

namespace mezzo {

namespace {

// [count, n], 1 at each index: the look-up as a matrix product. Rows of indices that are not wanted are 0.
Tensor one_hot(const Tensor& index, std::int64_t n, const Attrs& at, Dtype dtype) {
    const Tensor flat = index.reshape({index.numel(), 1});
    Tensor hot = eq(arange(n, {.dtype = int64, .device = index.device()}), flat);
    if (at.index >= 0) hot = logical_and(hot, ne(flat, double(at.index)));
    return cast(hot, dtype);
}

Tensors embedding_meaning(In in, const Attrs&) {
    const Tensor& weight = in[0];
    Shape shape = in[1].shape();
    shape.push_back(weight.size(1));
    const Tensor hot = one_hot(in[1], weight.size(0), {.index = -1}, widened(weight).dtype());
    return {cast(matmul(hot, widened(weight)), weight.dtype()).reshape(shape)};
}

Tensors embedding_grad_meaning(In in, const Attrs& at) {
    const Tensor g = widened(in[0]).reshape({in[1].numel(), at.shape[1]});
    return {cast(matmul(one_hot(in[1], at.shape[0], at, g.dtype()).t(), g), at.dtype)};
}

Tensors embedding_grad_vjp(const Call& c, const Tensors& g);

// Inputs g [..., dim], index [...]; at.shape = [n, dim], at.index = padding_idx -> gradient of the weight.
const Op embedding_grad_op{{.name = "embedding_grad",
                            .keep = keep_second,
                            .result = Result::attr,
                            .mixed = true,
                            .vjp = embedding_grad_vjp,
                            .meaning = embedding_grad_meaning}};

// Inputs weight [n, dim], index [...]; at.index = padding_idx.
const Op embedding_op{{.name = "embedding",
                       .keep = keep_second,
                       .mixed = true,
                       .vjp = [](const Call& c, const Tensors& g) -> Tensors {
                           const Shape& shape = c.inputs[0].shape;
                           const Attrs at{.shape = shape, .index = c.at.index, .dtype = c.grad_dtype(0)};
                           return {call(embedding_grad_op, {g[0], c.in(1)}, at, shape), Tensor()};
                       },
                       .meaning = embedding_meaning}};

Shape looked_up(const Tensor& weight, const Tensor& index) {
    Shape shape = index.shape();
    shape.push_back(weight.size(1));
    return shape;
}

// Linear in g, with the look-up as its transpose; the padding row gave nothing and gets nothing.
Tensors embedding_grad_vjp(const Call& c, const Tensors& g) {
    if (!c.needs(0)) return {};
    const Tensor index = c.in(1);
    Tensor rows = call(embedding_op, {g[0], index}, {.index = c.at.index}, looked_up(g[0], index));
    if (c.at.index >= 0) rows = masked_fill(rows, eq(index, double(c.at.index)).unsqueeze(-1), 0);
    return {rows, Tensor()};
}

void check_index(const char* op, const Tensor& index) {
    check_defined(op, index);
    check(index.dtype() == int64, ErrorKind::dtype, op, ": index is ", index.dtype(),
          ", but must be int64; convert it with to(int64)");
}

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& index, std::int64_t padding_idx) {
    check_floating("embedding", weight);
    check_index("embedding", index);
    check(weight.dim() == 2, ErrorKind::shape, "embedding: weight ", weight.shape(), " is not [n, dim]");
    check(padding_idx >= -1 && padding_idx < weight.size(0), ErrorKind::value, "embedding: padding_idx ",
          padding_idx, " is outside the ", weight.size(0), " rows of the weight");
    return call(embedding_op, {weight, index}, {.index = padding_idx}, looked_up(weight, index));
}

}  // namespace mezzo
