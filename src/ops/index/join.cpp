// cat and stack.
#include "autograd/op_observer.h"
#include "kernels/copy.h"
#include "ops/common.h"

namespace mezzo {

namespace {

const Op<kernels::Cat> cat_op{
    {.name = "cat", .saves = save_none, .strided = true},
    [](const Node& c, const kernels::Cat& at, const Tensors& g) -> Tensors {
        const int dim = int(at.dim);
        Tensors grads;
        std::int64_t start = 0;
        for (std::size_t i = 0; i < c.inputs.size(); ++i) {
            const std::int64_t count = c.inputs[i].shape[dim];
            grads.push_back(c.needs(int(i)) ? g[0].slice(dim, start, start + count) : Tensor());
            start += count;
        }
        return grads;
    }};

// Sizes must agree except along dim, where they add up.
Shape joined_shape(const Tensors& tensors, int dim) {
    Shape shape = tensors[0].shape();
    for (std::size_t i = 1; i < tensors.size(); ++i) {
        Shape other = tensors[i].shape();
        const std::int64_t count = other.size() == shape.size() ? other[dim] : 0;
        if (other.size() == shape.size()) other[dim] = shape[dim];
        check(other == shape, ErrorKind::shape, "cat: shapes ", tensors[0].shape(), " and ",
              tensors[i].shape(), " differ outside dimension ", dim);
        check(!__builtin_add_overflow(shape[dim], count, &shape[dim]), ErrorKind::shape, "cat: dimension ",
              dim, " of the result is beyond 2^63");
    }
    return shape;
}

}  // namespace

Tensor cat(const Tensors& tensors, std::int64_t dim) {
    check(!tensors.empty(), ErrorKind::value, "cat: the list of tensors is empty");
    for (const Tensor& x : tensors) check_defined("cat", x, any_dtype);
    Dtype dtype = tensors[0].dtype();
    bool vectors = true;
    for (const Tensor& x : tensors) {
        if (x.dtype() != dtype) {
            check_computes("cat", dtype);
            check_computes("cat", x.dtype());
            dtype = promote(dtype, x.dtype());
        }
        vectors = vectors && x.dim() == 1;
    }
    Tensors same;
    same.reserve(tensors.size());
    for (const Tensor& x : tensors)  // as in PyTorch, a start value of shape [0] joins any others
        if (vectors || !(x.shape() == Shape{0})) same.push_back(cast(x, dtype));
    check(same[0].dim() > 0, ErrorKind::shape, "cat: 0-dim tensors have no dimension to join; use stack");
    const int d = wrap_dim("cat", dim, same[0].dim());
    const Shape shape = joined_shape(same, d);
    return call(cat_op, same, {.dim = d}, shape);
}

Tensor stack(const Tensors& tensors, std::int64_t dim) {
    const CompositeOp here("stack");
    check(!tensors.empty(), ErrorKind::value, "stack: the list of tensors is empty");
    Tensors raised;
    raised.reserve(tensors.size());
    for (const Tensor& x : tensors) {
        check_defined("stack", x, any_dtype);
        check_same_shape("stack", tensors[0], x);
        raised.push_back(x.unsqueeze(wrap_dim("stack", dim, x.dim() + 1)));
    }
    return cat(raised, wrap_dim("stack", dim, tensors[0].dim() + 1));
}

}  // namespace mezzo
