// Named products of vectors and matrices (outer, dot, bmm, addmm, baddbmm), similarities and distances.
#include <algorithm>
#include <cmath>

#include "autograd/op_observer.h"
#include "kernels/moments.h"
#include "mezzo/product_ops.h"
#include "ops/gemm/products.h"
#include "ops/reduce/p_norm.h"

namespace mezzo {

namespace {

// 16-bit products are exact and their sum is rounded once.
const Op<kernels::Dot> dot_op{
    {.name = "dot", .cast = CastPolicy::promote},
    [](const Node& c, const Tensors& g) -> Tensors {
        return {c.needs(0) ? g[0] * c.in(1) : Tensor(), c.needs(1) ? g[0] * c.in(0) : Tensor()};
    },
    [](In in) -> Tensors { return {matmul(in[0], in[1])}; }};

void check_p(const char* op, double p) {
    check(p >= 0, ErrorKind::value, op, ": p is ", p, "; it must not be negative");
}

struct Bilinear {
    static constexpr const char* name = "bilinear";
};
const Op<Bilinear> bilinear_op{
    {.cast = CastPolicy::promote, .result = ResultDtype::promoted}, nullptr, [](In in) -> Tensors {
        const Tensor a = matrix_of(in[0]), b = matrix_of(in[1]);
        const std::int64_t rows = a.size(0), out = in[2].size(0);
        Shape shape = in[0].shape();
        shape[shape.size() - 1] = out;
        // [rows, in1] [in1, out in2] as [rows, out, in2], times b.
        const Tensor factor = in[2].permute({1, 0, 2}).reshape({in[2].size(1), out * in[2].size(2)});
        const Tensor y = sum(matmul(a, factor).reshape({rows, out, in[2].size(2)}) * b.unsqueeze(1), {-1});
        return {(in[3].defined() ? y + in[3] : y).reshape(shape)};
    }};

struct CosineSimilarity {
    static constexpr const char* name = "cosine_similarity";
    std::int64_t dim = 1;
    double eps = 0;
};
const Op<CosineSimilarity> cosine_similarity_op{
    {.cast = CastPolicy::fp32, .result = ResultDtype::promoted},
    nullptr,
    [](In in, const CosineSimilarity& at) -> Tensors {
        const Tensor a = in[0] / clamp(p_norm(in[0], 2, {at.dim}, true), at.eps, INFINITY);
        const Tensor b = in[1] / clamp(p_norm(in[1], 2, {at.dim}, true), at.eps, INFINITY);
        return {sum(a * b, {at.dim})};
    }};

struct PairwiseDistance {
    static constexpr const char* name = "pairwise_distance";
    double p = 2, eps = 0;
    bool keepdim = false;
};
const Op<PairwiseDistance> pairwise_distance_op{
    {.cast = CastPolicy::fp32, .result = ResultDtype::promoted},
    nullptr,
    [](In in, const PairwiseDistance& at) -> Tensors {
        return {p_norm(in[0] - in[1] + at.eps, at.p, {-1}, at.keepdim)};
    }};

struct Normalize {
    static constexpr const char* name = "normalize";
    double p = 2;
    std::int64_t dim = 1;
    double eps = 0;
};
const Op<Normalize> normalize_op{
    {.cast = CastPolicy::fp32}, nullptr, [](In in, const Normalize& at) -> Tensors {
        const Tensor size = p_norm(in[0], at.p, {at.dim}, true);
        return {in[0] / clamp(size, at.eps, INFINITY)};
    }};

struct Cdist {
    static constexpr const char* name = "cdist";
    double p = 2;
};

// |a|^2 + |b|^2 - 2 a b, which rounding may make negative where rows are equal. The root of 0 is a constant.
Tensor distances_by_product(const Tensor& a, const Tensor& b) {
    const Tensor of_a = sum(square(a), {-1}, keep_dims()), of_b = sum(square(b), {-1}, keep_dims());
    const Tensor squares = of_a + of_b.transpose(-2, -1) - 2.0 * matmul(a, b.transpose(-2, -1));
    const Tensor none = le(squares, 0.0);
    return masked_fill(sqrt(masked_fill(squares, none, 1)), none, 0);
}

// PyTorch's rule for p = 2: products from 26 rows on.
const Op<Cdist> cdist_op{{.cast = CastPolicy::fp32, .result = ResultDtype::promoted},
                         nullptr,
                         [](In in, const Cdist& at) -> Tensors {
                             const Tensor &a = in[0], &b = in[1];
                             if (at.p == 2 && std::max(a.size(-2), b.size(-2)) > 25)
                                 return {distances_by_product(a, b)};
                             const Tensor apart = a.unsqueeze(-2) - b.unsqueeze(-3);
                             return {a.size(-1) > 0 ? p_norm(apart, at.p, {-1}, false) : sum(apart, {-1})};
                         }};

void check_dims(const char* op, const Tensor& x, int dims, const char* what) {
    check_floating(op, x);
    check(x.dim() == dims, ErrorKind::shape, op, ": an operand is ", x.shape(), ", but must be ", what);
}

// beta input + alpha a b. The product of 16-bit operands stays in float32 until the sum is rounded.
Tensor added_product(const char* op, const Tensor& input, const Tensor& a, const Tensor& b,
                     const AddMmOptions& options) {
    check_floating(op, input);
    check_factors(op, a, b);
    const int last = a.dim() - 1;
    check(a.size(last) == b.size(last - 1), ErrorKind::shape, op, ": inner sizes differ, ", a.shape(),
          " and ", b.shape());
    Shape shape = a.shape();
    shape[last] = b.size(last);
    check(broadcast_shapes(op, input.shape(), shape) == shape, ErrorKind::shape, op, ": input ",
          input.shape(), " does not broadcast to ", shape);
    const Dtype dtype = autocast_dtype(CastPolicy::low, a), of_input = autocast_dtype(CastPolicy::low, input);
    check(dtype == of_input, ErrorKind::dtype, op, ": input is ", of_input, " and the factors are ", dtype,
          "; convert one with to()");
    Tensor y = product_as(cast(a, dtype), cast(b, dtype), is_16bit(dtype) ? float32 : dtype);
    if (options.alpha != 1) y = y * options.alpha;
    if (options.beta != 0) y = y + (options.beta == 1 ? input : widened(input) * options.beta);
    return cast(y, dtype);
}

}  // namespace

Tensor outer(const Tensor& a, const Tensor& b) {
    const CompositeOp here("outer");
    check_defined("outer", a);
    check_defined("outer", b);
    check(a.dim() == 1 && b.dim() == 1, ErrorKind::shape, "outer: operands are ", a.shape(), " and ",
          b.shape(), ", but must be vectors");
    return a.unsqueeze(1) * b.unsqueeze(0);
}

Tensor dot(const Tensor& a, const Tensor& b) {
    check_dims("dot", a, 1, "a vector");
    check_dims("dot", b, 1, "a vector");
    check_same_shape("dot", a, b);
    check(a.dtype() == b.dtype() || (autocast_takes(a) && autocast_takes(b)), ErrorKind::dtype,
          "dot: operands are ", a.dtype(), " and ", b.dtype(), "; convert one with to()");
    return call(dot_op, {a, b}, {}, {});
}

Tensor bmm(const Tensor& a, const Tensor& b) {
    const CompositeOp here("bmm");
    check_dims("bmm", a, 3, "[batch, n, k] and [batch, k, m]");
    check_dims("bmm", b, 3, "[batch, n, k] and [batch, k, m]");
    check(a.size(0) == b.size(0) && a.size(2) == b.size(1), ErrorKind::shape, "bmm: ", a.shape(), " and ",
          b.shape(), " are not [batch, n, k] and [batch, k, m]");
    return matmul(a, b);
}

Tensor addmm(const Tensor& input, const Tensor& a, const Tensor& b, AddMmOptions options) {
    const CompositeOp here("addmm");
    check_dims("addmm", a, 2, "[n, k] and [k, m]");
    check_dims("addmm", b, 2, "[n, k] and [k, m]");
    return added_product("addmm", input, a, b, options);
}

Tensor baddbmm(const Tensor& input, const Tensor& a, const Tensor& b, AddMmOptions options) {
    const CompositeOp here("baddbmm");
    check_dims("baddbmm", a, 3, "[batch, n, k] and [batch, k, m]");
    check_dims("baddbmm", b, 3, "[batch, n, k] and [batch, k, m]");
    check(a.size(0) == b.size(0), ErrorKind::shape, "baddbmm: batches differ, ", a.shape(), " and ",
          b.shape());
    return added_product("baddbmm", input, a, b, options);
}

Tensor bilinear(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias) {
    for (const Tensor& x : {a, b, weight}) check_floating("bilinear", x);
    if (bias.defined()) check_floating("bilinear", bias, "bias");
    check(weight.dim() == 3, ErrorKind::shape, "bilinear: weight ", weight.shape(),
          " is not [out, in1, in2]");
    Shape shape = a.shape();
    const int last = shape.size() - 1;
    check(last >= 0 && b.dim() == a.dim() && a.size(-1) == weight.size(1) && b.size(-1) == weight.size(2) &&
              std::equal(shape.begin(), shape.begin() + last, b.shape().begin()),
          ErrorKind::shape, "bilinear: inputs ", a.shape(), " and ", b.shape(), " do not fit weight ",
          weight.shape(), "; they are [..., in1] and [..., in2] with equal leading dimensions");
    check(!bias.defined() || bias.shape() == Shape{weight.size(0)}, ErrorKind::shape, "bilinear: bias ",
          bias.defined() ? bias.shape() : Shape{}, " is not [", weight.size(0), "]");
    shape[last] = weight.size(0);
    return call(bilinear_op, {a, b, weight, bias}, {}, shape);
}

Tensor cosine_similarity(const Tensor& a, const Tensor& b, std::int64_t dim, double eps) {
    check_floating("cosine_similarity", a);
    check_floating("cosine_similarity", b);
    const Shape shape = broadcast_shapes("cosine_similarity", a.shape(), b.shape());
    const int d = wrap_dim("cosine_similarity", dim, shape.size());
    check(shape.size() > 0, ErrorKind::shape, "cosine_similarity: operands are 0-dim");
    return call(cosine_similarity_op, {a.expand(shape), b.expand(shape)}, {.dim = d, .eps = eps},
                reduced_shape(shape, {d}, false));
}

Tensor pairwise_distance(const Tensor& a, const Tensor& b, PairwiseDistanceOptions options) {
    check_floating("pairwise_distance", a);
    check_floating("pairwise_distance", b);
    check_p("pairwise_distance", options.p);
    const Shape shape = broadcast_shapes("pairwise_distance", a.shape(), b.shape());
    check(shape.size() > 0, ErrorKind::shape, "pairwise_distance: operands are 0-dim");
    return call(pairwise_distance_op, {a, b},
                {.p = options.p, .eps = options.eps, .keepdim = options.keepdim},
                reduced_shape(shape, {shape.size() - 1}, options.keepdim));
}

Tensor cdist(const Tensor& a, const Tensor& b, double p) {
    const char* name = "cdist";
    check_floating(name, a);
    check_floating(name, b);
    check_p(name, p);
    check(a.dim() >= 2 && b.dim() >= 2 && a.size(-1) == b.size(-1), ErrorKind::shape, name, ": rows of ",
          a.shape(), " and ", b.shape(), " are not [..., n, m] and [..., k, m]");
    const auto leading = [](const Tensor& x) { return Shape(x.shape().begin(), x.dim() - 2); };
    Shape shape = broadcast_shapes(name, leading(a), leading(b));
    shape.push_back(a.size(-2));
    shape.push_back(b.size(-2));
    return call(cdist_op, {a, b}, {.p = p}, shape);
}

Tensor normalize(const Tensor& x, double p, std::int64_t dim, double eps) {
    check_floating("normalize", x);
    check_p("normalize", p);
    const int d = wrap_dim("normalize", dim, x.dim());
    if (x.dim() == 0) return normalize(x.reshape({1}), p, 0, eps).reshape({});
    return call(normalize_op, {x}, {.p = p, .dim = d, .eps = eps}, x.shape());
}

}  // namespace mezzo
