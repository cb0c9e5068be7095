// Further reductions, and cumulative sums and products. Shapes and errors are those of ops.h.
//
//   const auto [variance, mean] = var_mean(x, -1, {.keepdim = true});
//   y = (x - mean) / sqrt(variance + 1e-5);
//   const double median = quantile(x, 0.5).item<double>();
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mezzo/ops.h"

#pragma GCC visibility push(default)

namespace mezzo {

// The index of the smallest element, int64: of equal ones the first, NaN counts as the smallest. Without dim
// it is the index into the flattened x, and keepdim leaves as many dimensions as x has. Error(shape) for a
// size of 0.
[[nodiscard]] Tensor argmin(const Tensor& x, KeepdimOptions options = {});
// The index along dim of the smallest element, int64.
[[nodiscard]] Tensor argmin(const Tensor& x, std::int64_t dim, KeepdimOptions options = {});

// The product over axes (all when empty); of nothing it is 1. Integers and booleans give int64. Under
// autocast the result is float32. Its gradient is exact where elements are 0.
[[nodiscard]] Tensor prod(const Tensor& x, const Axes& axes = {}, ReduceOptions options = {});
template <class = void> [[nodiscard]] Tensor prod(const Tensor& x, const ReduceOptions& options) {
    return prod(x, Axes(), options);
}

// sum((x - mean)^2) / max(n - correction, 0) over axes (all when empty), and its root, whose gradient is 0
// where it is 0. Floating only; computed in float32 at least, whatever the mean. If n <= correction the
// divisor is 0, and the result NaN where all deviations are 0, else infinity.
[[nodiscard]] Tensor var(const Tensor& x, const Axes& axes = {}, VarOptions options = {});
template <class = void> [[nodiscard]] Tensor var(const Tensor& x, const VarOptions& options) {
    return var(x, Axes(), options);
}
[[nodiscard]] Tensor std(const Tensor& x, const Axes& axes = {}, VarOptions options = {});
template <class = void> [[nodiscard]] Tensor std(const Tensor& x, const VarOptions& options) {
    return std(x, Axes(), options);
}
struct VarMean {
    Tensor var, mean;
};
[[nodiscard]] VarMean var_mean(const Tensor& x, const Axes& axes = {}, VarOptions options = {});
template <class = void> [[nodiscard]] VarMean var_mean(const Tensor& x, const VarOptions& options) {
    return var_mean(x, Axes(), options);
}
struct StdMean {
    Tensor std, mean;
};
[[nodiscard]] StdMean std_mean(const Tensor& x, const Axes& axes = {}, VarOptions options = {});
template <class = void> [[nodiscard]] StdMean std_mean(const Tensor& x, const VarOptions& options) {
    return std_mean(x, Axes(), options);
}

// Whether any or all elements are not 0, boolean, and how many are, int64. NaN is not 0. Of nothing: false,
// true and 0.
[[nodiscard]] Tensor any(const Tensor& x, const Axes& axes = {}, KeepdimOptions options = {});
template <class = void> [[nodiscard]] Tensor any(const Tensor& x, const KeepdimOptions& options) {
    return any(x, Axes(), options);
}
[[nodiscard]] Tensor all(const Tensor& x, const Axes& axes = {}, KeepdimOptions options = {});
template <class = void> [[nodiscard]] Tensor all(const Tensor& x, const KeepdimOptions& options) {
    return all(x, Axes(), options);
}
[[nodiscard]] Tensor count_nonzero(const Tensor& x, const Axes& axes = {}, KeepdimOptions options = {});
template <class = void> [[nodiscard]] Tensor count_nonzero(const Tensor& x, const KeepdimOptions& options) {
    return count_nonzero(x, Axes(), options);
}

enum class Interpolation : std::uint8_t { linear, lower, higher, nearest, midpoint };
struct QuantileOptions {
    std::optional<std::int64_t> dim = {};  // none: of all elements
    bool keepdim = false;
    Interpolation interpolation = Interpolation::linear;  // between the two elements next to index q (n - 1)
};
// The q-th quantile, q in [0, 1], along one dimension; NaN where an element is NaN. Floating, not empty. With
// several q the result has one more dimension in front.
[[nodiscard]] Tensor quantile(const Tensor& x, double q, const QuantileOptions& options = {});
[[nodiscard]] Tensor quantile(const Tensor& x, const std::vector<double>& q,
                              const QuantileOptions& options = {});

// (sum(|x|^p))^(1/p) over axes (all when empty), PyTorch's linalg.vector_norm: p is any number; 0 counts the
// elements that are not 0, INFINITY and -INFINITY are the largest and smallest magnitude. Floating; under
// autocast the result is float32. The gradient of elements that are 0 is 0. Error(shape) for an infinite or
// negative p of nothing.
[[nodiscard]] Tensor vector_norm(const Tensor& x, double p = 2, const Axes& axes = {},
                                 ReduceOptions options = {});
// The same; norm(x, 1), without axes behind the p, is the Euclidean norm over axis 1.
[[nodiscard]] inline Tensor norm(const Tensor& x, double p, const Axes& axes, ReduceOptions options = {}) {
    return vector_norm(x, p, axes, options);
}

// sum() and mean() of the elements that are not NaN.
[[nodiscard]] Tensor nansum(const Tensor& x, const Axes& axes = {}, ReduceOptions options = {});
[[nodiscard]] Tensor nanmean(const Tensor& x, const Axes& axes = {}, ReduceOptions options = {});

// The sums and products of all elements up to each one along dim. Integers and booleans give int64; under
// autocast the result is float32. The gradient of cumprod is exact where elements are 0. With a dtype, x is
// converted before.
[[nodiscard]] Tensor cumsum(const Tensor& x, std::int64_t dim, std::optional<Dtype> dtype = {});
[[nodiscard]] Tensor cumprod(const Tensor& x, std::int64_t dim, std::optional<Dtype> dtype = {});

// log(sum(exp(x))) of all elements up to each one along dim, computed without leaving the range of the dtype.
// Floating. Takes log2(size) passes.
[[nodiscard]] Tensor logcumsumexp(const Tensor& x, std::int64_t dim);

// softmax() and log_softmax() of x converted to a floating dtype, which autocast does not change; a 16-bit x
// with dtype float32 is read without a converted copy.
[[nodiscard]] Tensor softmax(const Tensor& x, std::int64_t dim, Dtype dtype);
[[nodiscard]] Tensor log_softmax(const Tensor& x, std::int64_t dim, Dtype dtype);
// softmax(-x)
[[nodiscard]] Tensor softmin(const Tensor& x, std::int64_t dim = -1);

enum class BagMode : std::uint8_t { sum, mean, max };
struct EmbeddingBagOptions {
    // int64 or int32 [bags], ascending: where each bag begins in a one-dimensional index. The first is 0.
    Tensor offsets = {};
    BagMode mode = BagMode::mean;
    Tensor per_sample_weights = {};    // like index: factors of the rows, for BagMode::sum
    bool include_last_offset = false;  // offsets has one more element, where the last bag ends
    std::int64_t padding_idx = -1;     // >= 0: this index counts in no bag
};
// The sum, mean or maximum of the rows of weight [n, dim] at the indices of each bag: int64 index [bags,
// length], or [count] with offsets -> [bags, dim]. An empty bag gives 0. The gradient of a maximum goes to
// the first row that has it. 16 bit is computed in float32 and rounded once. BagMode::max with offsets waits
// for the device. Errors of indices are those of embedding(); Error(value) for offsets that do not fit, on
// the CPU.
[[nodiscard]] Tensor embedding_bag(const Tensor& weight, const Tensor& index,
                                   const EmbeddingBagOptions& options = {});

}  // namespace mezzo

#pragma GCC visibility pop
