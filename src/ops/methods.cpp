// Methods of Tensor that call the function of the same name; tensor.h declares them.
#include "mezzo/index_ops.h"
#include "mezzo/ops.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/product_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/shape_ops.h"
#include "mezzo/sort_ops.h"

namespace mezzo {

#define MEZZO_UNARY(name, cast, ints, save, gradient) \
    Tensor Tensor::name() const { return mezzo::name(*this); }
#include "mezzo/ops.def"
#undef MEZZO_UNARY

// result, name, parameters, what the function gets after x
#define METHOD(result, name, parameters, ...) \
    result Tensor::name parameters const { return mezzo::name(*this __VA_OPT__(, ) __VA_ARGS__); }
// clang-format off
METHOD(Tensor, add, (const Tensor& other), other)
METHOD(Tensor, sub, (const Tensor& other), other)
METHOD(Tensor, mul, (const Tensor& other), other)
METHOD(Tensor, div, (const Tensor& other), other)
METHOD(Tensor, pow, (double exponent), exponent)
METHOD(Tensor, pow, (const Tensor& exponent), exponent)
METHOD(Tensor, maximum, (const Tensor& other), other)
METHOD(Tensor, minimum, (const Tensor& other), other)
METHOD(Tensor, remainder, (Scalar other), other)
METHOD(Tensor, remainder, (const Tensor& other), other)
METHOD(Tensor, atan2, (const Tensor& other), other)
METHOD(Tensor, clamp, (Scalar low, Scalar high), low, high)
METHOD(Tensor, hardtanh, (Scalar low, Scalar high), low, high)
METHOD(Tensor, elu, (double alpha), alpha)
METHOD(Tensor, leaky_relu, (double negative_slope), negative_slope)
METHOD(Tensor, lerp, (const Tensor& end, double weight), end, weight)
METHOD(Tensor, lerp, (const Tensor& end, const Tensor& weight), end, weight)
METHOD(Tensor, addcmul, (const Tensor& a, const Tensor& b, double value), a, b, value)
METHOD(Tensor, addcdiv, (const Tensor& a, const Tensor& b, double value), a, b, value)
METHOD(Tensor, dropout, (double p, bool training), p, training)
METHOD(Tensor, eq, (Scalar other), other)
METHOD(Tensor, eq, (const Tensor& other), other)
METHOD(Tensor, ne, (Scalar other), other)
METHOD(Tensor, ne, (const Tensor& other), other)
METHOD(Tensor, lt, (Scalar other), other)
METHOD(Tensor, lt, (const Tensor& other), other)
METHOD(Tensor, le, (Scalar other), other)
METHOD(Tensor, le, (const Tensor& other), other)
METHOD(Tensor, gt, (Scalar other), other)
METHOD(Tensor, gt, (const Tensor& other), other)
METHOD(Tensor, ge, (Scalar other), other)
METHOD(Tensor, ge, (const Tensor& other), other)
METHOD(Tensor, logical_and, (const Tensor& other), other)
METHOD(Tensor, logical_or, (const Tensor& other), other)
METHOD(Tensor, logical_not, ())
METHOD(Tensor, isfinite, ())
METHOD(Tensor, isnan, ())
METHOD(Tensor, isinf, ())
METHOD(Tensor, masked_fill, (const Tensor& mask, Scalar value), mask, value)
METHOD(Tensor, masked_select, (const Tensor& mask), mask)
METHOD(Tensor, nonzero, ())
METHOD(Tensor, sum, (const Axes& axes, const ReduceOptions& options), axes, options)
METHOD(Tensor, mean, (const Axes& axes, const ReduceOptions& options), axes, options)
METHOD(Tensor, max, (const Axes& axes, const ReduceOptions& options), axes, options)
METHOD(Tensor, min, (const Axes& axes, const ReduceOptions& options), axes, options)
METHOD(Tensor, norm, (const Axes& axes, const ReduceOptions& options), axes, options)
METHOD(Tensor, logsumexp, (const Axes& axes, const ReduceOptions& options), axes, options)
METHOD(Tensor, prod, (const Axes& axes, const ReduceOptions& options), axes, options)
METHOD(Tensor, var, (const Axes& axes, const VarOptions& options), axes, options)
METHOD(Tensor, std, (const Axes& axes, const VarOptions& options), axes, options)
METHOD(Tensor, any, (const Axes& axes, const KeepdimOptions& options), axes, options)
METHOD(Tensor, all, (const Axes& axes, const KeepdimOptions& options), axes, options)
METHOD(Tensor, count_nonzero, (const Axes& axes, const KeepdimOptions& options), axes, options)
METHOD(Tensor, argmax, (KeepdimOptions options), options)
METHOD(Tensor, argmax, (std::int64_t dim, KeepdimOptions options), dim, options)
METHOD(Tensor, argmin, (KeepdimOptions options), options)
METHOD(Tensor, argmin, (std::int64_t dim, KeepdimOptions options), dim, options)
METHOD(Tensor, quantile, (double q), q)
METHOD(Tensor, quantile, (double q, const QuantileOptions& options), q, options)
METHOD(Tensor, cumsum, (std::int64_t dim), dim)
METHOD(Tensor, cumprod, (std::int64_t dim), dim)
METHOD(Tensor, softmax, (std::int64_t dim), dim)
METHOD(Tensor, log_softmax, (std::int64_t dim), dim)
METHOD(Sorted, sort, (std::int64_t dim, SortOptions options), dim, options)
METHOD(Tensor, argsort, (std::int64_t dim, SortOptions options), dim, options)
METHOD(Sorted, topk, (std::int64_t k, std::int64_t dim, TopkOptions options), k, dim, options)
METHOD(Sorted, kthvalue, (std::int64_t k, std::int64_t dim, KeepdimOptions options), k, dim, options)
METHOD(Tensor, matmul, (const Tensor& other), other)
METHOD(Tensor, bmm, (const Tensor& other), other)
METHOD(Tensor, dot, (const Tensor& other), other)
METHOD(Tensor, outer, (const Tensor& other), other)
METHOD(Tensor, index_select, (std::int64_t dim, const Tensor& index), dim, index)
METHOD(Tensor, gather, (std::int64_t dim, const Tensor& index), dim, index)
METHOD(Tensor, scatter_add, (std::int64_t dim, const Tensor& index, const Tensor& src), dim, index, src)
METHOD(Tensor, index, (const std::vector<Index>& entries), entries)
METHOD(Tensor, index_put, (const std::vector<Index>& entries, const Tensor& values), entries, values)
METHOD(Tensor, index_put, (const std::vector<Index>& entries, Scalar value), entries, value)
METHOD(Tensor, index_put, (const std::vector<Index>& entries, const Tensor& values,
       const IndexPutOptions& options),
       entries, values, options)
METHOD(Tensor, scatter, (std::int64_t dim, const Tensor& index, const Tensor& src), dim, index, src)
METHOD(Tensor, scatter, (std::int64_t dim, const Tensor& index, Scalar value), dim, index, value)
METHOD(Tensor, scatter_reduce, (std::int64_t dim, const Tensor& index, const Tensor& src,
       ScatterReduction reduction),
       dim, index, src, reduction)
METHOD(Tensor, scatter_reduce, (std::int64_t dim, const Tensor& index, const Tensor& src,
       ScatterReduction reduction, const ScatterOptions& options),
       dim, index, src, reduction, options)
METHOD(Tensor, index_copy, (std::int64_t dim, const Tensor& index, const Tensor& src), dim, index, src)
METHOD(Tensor, index_add, (std::int64_t dim, const Tensor& index, const Tensor& src, Scalar alpha),
       dim, index, src, alpha)
METHOD(Tensor, index_fill, (std::int64_t dim, const Tensor& index, Scalar value), dim, index, value)
METHOD(Tensor, masked_scatter, (const Tensor& mask, const Tensor& source), mask, source)
METHOD(Tensor, take_along_dim, (const Tensor& index, std::int64_t dim), index, dim)
METHOD(Tensor, take, (const Tensor& index), index)
METHOD(Tensor, tril, (std::int64_t diagonal), diagonal)
METHOD(Tensor, triu, (std::int64_t diagonal), diagonal)
METHOD(Tensor, diag, (std::int64_t diagonal), diagonal)
METHOD(Tensor, flip, (const Axes& dims), dims)
METHOD(Tensor, roll, (std::int64_t shift), shift)
METHOD(Tensor, roll, (const std::vector<std::int64_t>& shifts, const Axes& dims), shifts, dims)
METHOD(Tensor, repeat, (const Shape& counts), counts)
METHOD(Tensor, repeat_interleave, (std::int64_t count, std::int64_t dim), count, dim)
METHOD(std::vector<Tensor>, split, (std::int64_t size, std::int64_t dim), size, dim)
METHOD(std::vector<Tensor>, split, (const std::vector<std::int64_t>& sizes, std::int64_t dim), sizes, dim)
METHOD(std::vector<Tensor>, chunk, (std::int64_t count, std::int64_t dim), count, dim)
METHOD(std::vector<Tensor>, unbind, (std::int64_t dim), dim)
// clang-format on
#undef METHOD

}  // namespace mezzo
