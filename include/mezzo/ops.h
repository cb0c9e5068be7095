// Functions on tensors, by family. All except those that return booleans or indices are differentiable.
// Shapes follow PyTorch.
//
//   y = softmax(matmul(x, weight) + bias, -1);
//   y = where(x > 0, x, 0.1 * x);
//   loss = cross_entropy(net(x), labels, {.label_smoothing = 0.1});
//
// All functions throw
//  - Error(value) for an undefined tensor that may not be undefined, and for scalars and options out of
//    range;
//  - Error(shape) for shapes that do not fit or broadcast, and dimensions that do not exist;
//  - Error(dtype) for dtypes other than stated, and for floating inputs of different dtypes where the
//    function does not promote them;
//  - Error(device) for tensors on different devices;
//  - Error(memory) if there is no memory for the result.
// The comments below state only deviations and details.
#pragma once

#include <cstdint>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo {

// Element-wise functions of the table: y has the broadcast shape of the inputs. float16 with float32 gives
// float32; a 0-dim tensor or a C++ scalar does not raise the dtype of one with dimensions. Integers stay
// integers in the ops that ops.def marks `same`, which throw for booleans; the other ops convert integers to
// float32, or to float64 if another input is float64. Comparisons give booleans; logical ones take any dtype,
// where 0 is false.
#define MEZZO_OF_X (const Tensor& x)
#define MEZZO_OF_A_AND_B (const Tensor& a, const Tensor& b)
#include "mezzo/ops.def"
#undef MEZZO_OF_X
#undef MEZZO_OF_A_AND_B

// Gradients of activations y = f(x): g is the gradient of y.

// g where y > 0, else 0
[[nodiscard]] Tensor relu_grad(const Tensor& g, const Tensor& y);
// g (1 - y^2)
[[nodiscard]] Tensor tanh_grad(const Tensor& g, const Tensor& y);
// g y (1 - y)
[[nodiscard]] Tensor sigmoid_grad(const Tensor& g, const Tensor& y);
// g gelu'(x)
[[nodiscard]] Tensor gelu_grad(const Tensor& g, const Tensor& x);
// g gelu_tanh'(x)
[[nodiscard]] Tensor gelu_tanh_grad(const Tensor& g, const Tensor& x);
// g silu'(x)
[[nodiscard]] Tensor silu_grad(const Tensor& g, const Tensor& x);
// g mish'(x)
[[nodiscard]] Tensor mish_grad(const Tensor& g, const Tensor& x);

// x^exponent
[[nodiscard]] Tensor pow(const Tensor& x, double exponent);
// x limited to [low, high]; NaN stays NaN. The gradient is 0 outside and exactly at a finite bound, as in
// PyTorch 2.15. Integral results are integers inside [low, high]: clamp(x, 0.5, 2.5) is 1 or 2. Error(value)
// unless low <= high, and for integral dtypes that have no number in [low, high].
[[nodiscard]] Tensor clamp(const Tensor& x, Scalar low, Scalar high);
// g where low <= x <= high, else 0: the gradient of clamp. Both floating and of one shape.
[[nodiscard]] Tensor clamp_grad(const Tensor& g, const Tensor& x, double low, double high);
// x limited to [low, high] like clamp(), with its errors. The gradient is 0 at infinite bounds, too, and
// passes where x is NaN.
[[nodiscard]] Tensor hardtanh(const Tensor& x, Scalar low = -1, Scalar high = 1);
// x > 0 ? x : alpha (e^x - 1) (Clevert et al., arXiv 1511.07289).
[[nodiscard]] Tensor elu(const Tensor& x, double alpha = 1);
// x > 0 ? x : slope x
[[nodiscard]] Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
// a - b floor(a / b), which has the sign of b. Error(value) for an integral a and b = 0; integral tensors
// give 0 where b is 0.
[[nodiscard]] Tensor remainder(const Tensor& a, Scalar b);
// Numbers next to tensors are Scalars (dtype.h). Floating tensors round them to their dtype. Comparisons of
// integral tensors are exact. Arithmetic, full(), fill_(), where(), masked_fill() and pad() throw
// Error(value) for a whole number that an integral dtype does not hold, and for int64 also for a floating
// number from 2^53 on, which may have been rounded before: pass an std::int64_t.
[[nodiscard]] Tensor eq(const Tensor& a, Scalar b);
[[nodiscard]] Tensor ne(const Tensor& a, Scalar b);
[[nodiscard]] Tensor lt(const Tensor& a, Scalar b);
[[nodiscard]] Tensor le(const Tensor& a, Scalar b);
[[nodiscard]] Tensor gt(const Tensor& a, Scalar b);
[[nodiscard]] Tensor ge(const Tensor& a, Scalar b);
[[nodiscard]] Tensor logical_not(const Tensor& x);
// Whether x is neither infinite nor NaN, boolean.
[[nodiscard]] Tensor isfinite(const Tensor& x);
// a where the boolean condition holds, else b; all three broadcast. The dtypes of a and b are promoted; those
// for storage must be equal.
[[nodiscard]] Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
// where() with numbers: a number has the dtype that it would have in a + b: that of the tensor, but float32
// for a fraction with an integral tensor; two numbers give float32.
[[nodiscard]] Tensor where(const Tensor& condition, const Tensor& a, Scalar b);
[[nodiscard]] Tensor where(const Tensor& condition, Scalar a, const Tensor& b);
[[nodiscard]] Tensor where(const Tensor& condition, Scalar a, Scalar b);
// x with value where the boolean mask holds; both broadcast. A value beyond the range of a 16-bit x becomes
// that dtype's lowest or highest finite number, so that masks such as -1e9 mean the same in every dtype.
[[nodiscard]] Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value);

[[nodiscard]] Tensor operator+(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor operator-(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor operator*(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor operator/(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor operator+(const Tensor& a, Scalar b);
[[nodiscard]] Tensor operator-(const Tensor& a, Scalar b);
[[nodiscard]] Tensor operator*(const Tensor& a, Scalar b);
[[nodiscard]] Tensor operator/(const Tensor& a, double b);
[[nodiscard]] Tensor operator+(Scalar a, const Tensor& b);
[[nodiscard]] Tensor operator-(Scalar a, const Tensor& b);
[[nodiscard]] Tensor operator*(Scalar a, const Tensor& b);
[[nodiscard]] Tensor operator/(double a, const Tensor& b);
[[nodiscard]] Tensor operator-(const Tensor& x);
// Comparisons, element by element: booleans. A Tensor cannot be the condition of an if; use all_close(a, b),
// or all(a == b).item<bool>(), which waits for the device.
[[nodiscard]] Tensor operator==(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor operator!=(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor operator<(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor operator<=(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor operator>(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor operator>=(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor operator==(const Tensor& a, Scalar b);
[[nodiscard]] Tensor operator!=(const Tensor& a, Scalar b);
[[nodiscard]] Tensor operator<(const Tensor& a, Scalar b);
[[nodiscard]] Tensor operator<=(const Tensor& a, Scalar b);
[[nodiscard]] Tensor operator>(const Tensor& a, Scalar b);
[[nodiscard]] Tensor operator>=(const Tensor& a, Scalar b);
[[nodiscard]] Tensor operator==(Scalar a, const Tensor& b);
[[nodiscard]] Tensor operator!=(Scalar a, const Tensor& b);
[[nodiscard]] Tensor operator<(Scalar a, const Tensor& b);
[[nodiscard]] Tensor operator<=(Scalar a, const Tensor& b);
[[nodiscard]] Tensor operator>(Scalar a, const Tensor& b);
[[nodiscard]] Tensor operator>=(Scalar a, const Tensor& b);
// logical_not(x)
[[nodiscard]] Tensor operator!(const Tensor& x);
// logical_and() and logical_or() of booleans; Error(dtype) for other dtypes (PyTorch's & is bitwise there).
// && is not overloaded, because it could not skip the right operand.
[[nodiscard]] Tensor operator&(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor operator|(const Tensor& a, const Tensor& b);

// x in another dtype; x itself when the dtype is already right.
[[nodiscard]] Tensor cast(const Tensor& x, Dtype dtype);
// Joins tensors along an existing dimension; their other sizes are equal, and the dtypes are promoted.
// Error(value) for an empty list, here and in stack().
[[nodiscard]] Tensor cat(const Tensors& tensors, std::int64_t dim = 0);
// Joins tensors of one shape along a new dimension; the dtypes are promoted.
[[nodiscard]] Tensor stack(const Tensors& tensors, std::int64_t dim = 0);

// Reductions over axes (all when empty); keepdim keeps the reduced dimensions with size 1. Error(shape) for
// an axis that is listed twice. The result has the dtype of x, except where stated. Axes may be left out
// before options: sum(x, {.keepdim = true}) reduces all. (That overload is a template so that {} means no
// axes.) Integers and booleans give int64. The sum of nothing is 0.
[[nodiscard]] Tensor sum(const Tensor& x, const Axes& axes = {}, ReduceOptions options = {});
template <class = void> [[nodiscard]] Tensor sum(const Tensor& x, const ReduceOptions& options) {
    return sum(x, Axes(), options);
}
// Floating only.
[[nodiscard]] Tensor mean(const Tensor& x, const Axes& axes = {}, ReduceOptions options = {});
template <class = void> [[nodiscard]] Tensor mean(const Tensor& x, const ReduceOptions& options) {
    return mean(x, Axes(), options);
}
// The largest element: NaN wins, its gradient is NaN; ties share the gradient. Error(shape) for an
// axis of size 0, Error(dtype) for booleans.
[[nodiscard]] Tensor max(const Tensor& x, const Axes& axes = {}, ReduceOptions options = {});
template <class = void> [[nodiscard]] Tensor max(const Tensor& x, const ReduceOptions& options) {
    return max(x, Axes(), options);
}
// The smallest element, with the same rules.
[[nodiscard]] Tensor min(const Tensor& x, const Axes& axes = {}, ReduceOptions options = {});
template <class = void> [[nodiscard]] Tensor min(const Tensor& x, const ReduceOptions& options) {
    return min(x, Axes(), options);
}
// The Euclidean norm, sqrt(sum(x^2)), accumulated in float32 (float64 for float64); its gradient at 0 is 0.
// Floating only.
[[nodiscard]] Tensor norm(const Tensor& x, const Axes& axes = {}, ReduceOptions options = {});
template <class = void> [[nodiscard]] Tensor norm(const Tensor& x, const ReduceOptions& options) {
    return norm(x, Axes(), options);
}
// ln(sum(exp(x))), computed without leaving the range of the dtype; -infinity for nothing and where all x are
// -infinity, with the gradient 0. Floating only; under autocast the result is float32.
[[nodiscard]] Tensor logsumexp(const Tensor& x, const Axes& axes = {}, ReduceOptions options = {});
template <class = void> [[nodiscard]] Tensor logsumexp(const Tensor& x, const ReduceOptions& options) {
    return logsumexp(x, Axes(), options);
}
// The index of the largest element, int64: of equal ones the first, NaN counts as the largest. Without dim it
// is the index into the flattened x, and keepdim leaves as many dimensions as x has. Error(shape) for a size
// of 0.
[[nodiscard]] Tensor argmax(const Tensor& x, KeepdimOptions options = {});
// The index along dim of the largest element, int64.
[[nodiscard]] Tensor argmax(const Tensor& x, std::int64_t dim, KeepdimOptions options = {});
// Sums x over the dimensions that broadcasting `shape` to x's shape had added or stretched. Error(shape)
// where it does not broadcast to that.
[[nodiscard]] Tensor sum_to(const Tensor& x, const Shape& shape);

// Matrix products: 1-D, 2-D and batched (leading dimensions broadcast) operands as in numpy.matmul. Both are
// floating and, after autocast, of one dtype, which is the result's. 16-bit operands multiply exactly and
// accumulate in float32; the result is rounded once.
[[nodiscard]] Tensor matmul(const Tensor& a, const Tensor& b);

enum class LinearActivation : std::uint8_t { none, relu, gelu, gelu_tanh };
// activation(x W^T + b): x [..., in], weight [out, in], bias [out] or undefined; result [..., out]. Dtypes
// and arithmetic are those of matmul().
[[nodiscard]] Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                            LinearActivation activation = LinearActivation::none);

// exp(x) / sum(exp(x)) along one dimension, and its logarithm. Floating; under autocast the result is
// float32.
[[nodiscard]] Tensor softmax(const Tensor& x, std::int64_t dim = -1);
// log(softmax(x)), accurate also where softmax(x) is close to 0.
[[nodiscard]] Tensor log_softmax(const Tensor& x, std::int64_t dim = -1);

// Rows of the last dimension, normalised with statistics in float32 (float64 for float64): x [..., n], weight
// and bias [n] or undefined (1 and 0), all floating; eps >= 0. Under autocast the result is float32.
// (x - mean) / sqrt(variance + eps) * weight + bias, with the biased variance (Ba et al., arXiv 1607.06450).
[[nodiscard]] Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {},
                                double eps = 1e-5);
// x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, arXiv 1910.07467).
[[nodiscard]] Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-5);

struct DropoutAddLayerNormOptions {
    double p = 0;          // of the dropout, in [0, 1)
    double eps = 1e-5;     // of the layer norm
    bool training = true;  // false: no dropout
};
// layer_norm(residual + dropout(x + x_bias), weight, bias): what ends both halves of a Transformer layer, in
// one pass over memory. x and residual [..., n], in 16 bit or float32 each; x_bias [n] or undefined; weight,
// bias [n]. The sum stays in float32. The result has the wider dtype of x and residual, float32 under
// autocast.
[[nodiscard]] Tensor dropout_add_layer_norm(const Tensor& x, const Tensor& x_bias, const Tensor& residual,
                                            const Tensor& weight, const Tensor& bias,
                                            const DropoutAddLayerNormOptions& options = {});

struct AttentionOptions {
    // Broadcasts to [batch, heads, query, key]. Boolean: true where a query attends to a key; floating: added
    // to the scores, where -inf masks a key. Undefined: every query attends to every key.
    Tensor mask = {};
    bool causal = false;   // the last query attends to all keys, each earlier one to one key less
    double dropout_p = 0;  // of the weights, in [0, 1)
    bool training = true;  // false: no dropout
    double scale = 0;      // of the scores, not negative; 0: 1 / sqrt(dim)
};
// softmax(scale q k^T + mask) v per batch and head (Vaswani et al., arXiv 1706.03762): q [batch, heads,
// query, dim], k [batch, heads, key, dim], v [batch, heads, key, dim_v]; result [batch, heads, query, dim_v].
// k and v may have fewer heads, of which q has a multiple: then head h of q reads their head h / (heads of q
// / heads of k), PyTorch's enable_gqa (grouped-query attention; Ainslie et al., arXiv 2305.13245). For a
// query that attends to no key the result is 0, and so are its contributions to all gradients. With a boolean
// mask or none and dim_v == dim the scores are never stored as a whole; the result is then laid out as
// [batch, query, heads, dim], so that permute({0, 2, 1, 3}).reshape() to [batch, query, heads * dim] copies
// nothing.
[[nodiscard]] Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const AttentionOptions& options = {});

// Look-ups by index, int64 or int32. An index outside the table throws Error(value) on the CPU. On CUDA,
// where a check would wait for the device, the result is NaN (0 for integers), and sums ignore it. Sums
// over equal indices are added in a fixed order: the same bits every time. Rows of weight [n, dim] for
// every index: index [...] -> [..., dim]. The gradient of weight is dense and summed in a fixed order; row
// padding_idx (if >= 0) gets none.
[[nodiscard]] Tensor embedding(const Tensor& weight, const Tensor& index, std::int64_t padding_idx = -1);
// The slices of x along dim at each index: [n] -> like x with size n at dim. Any dtype. 0-dim tensors count
// as [1] here, in gather() and in scatter_add(), and the result has as many dimensions as x.
[[nodiscard]] Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);
// y[.., j, ..] = x[.., index[.., j, ..], ..], j along dim: an index per element. index has as many dimensions
// as x, none but dim larger than x's; y has its shape. Any dtype.
[[nodiscard]] Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);
// A copy of x with src[.., j, ..] added to element [.., index[.., j, ..], ..] for every index. src has x's
// dtype; index is nowhere larger than src, nor, but for dim, than x. 16-bit sums are accumulated in float32
// and rounded once.
[[nodiscard]] Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);

// Losses of input and target, both floating and of one shape; the result is 0-dim, or has that shape with
// Reduction::none. Under autocast they compute and return float32.
enum class Reduction : std::uint8_t { none, mean, sum };
struct LossOptions {
    Reduction reduction = Reduction::mean;
};
// (input - target)^2.
[[nodiscard]] Tensor mse_loss(const Tensor& input, const Tensor& target, LossOptions options = {});
// |input - target|.
[[nodiscard]] Tensor l1_loss(const Tensor& input, const Tensor& target, LossOptions options = {});
struct SmoothL1Options {
    double beta = 1;  // > 0: |d| < beta is quadratic
    Reduction reduction = Reduction::mean;
};
[[nodiscard]] Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, SmoothL1Options options = {});
struct CrossEntropyOptions {
    // targets of this class add neither loss nor gradient nor weight to the mean
    std::int64_t ignore_index = -100;
    double label_smoothing = 0;  // in [0, 1]
    Reduction reduction = Reduction::mean;
    Tensor weight = {};  // [classes], floating, a constant: the loss of a row is multiplied by its class's
};
// -log softmax(logits)[target], with label_smoothing mixed with the mean over all classes; logits [...,
// classes], target int64 [...] of classes, or floating [..., classes] of probabilities, which weight all
// classes (ignore_index does not apply). 0-dim, or [...] with Reduction::none. The mean over indices is
// divided by the sum of the targets' weights, that over probabilities by the number of rows. An invalid class
// index throws Error(value) on the CPU; on CUDA, where a check would wait for the device, the loss is NaN.
[[nodiscard]] Tensor cross_entropy(const Tensor& logits, const Tensor& target,
                                   CrossEntropyOptions options = {});
struct NllOptions {
    std::int64_t ignore_index = -100;
    Reduction reduction = Reduction::mean;
    Tensor weight = {};
};
// -log_probabilities[target]: [..., classes], target int64 [...]. Shapes and errors are those of
// cross_entropy.
[[nodiscard]] Tensor nll_loss(const Tensor& log_probabilities, const Tensor& target, NllOptions options = {});
struct BceOptions {
    Reduction reduction = Reduction::mean;
    Tensor weight = {};  // floating, broadcasts to input: multiplies the loss of each element
};
// Binary cross-entropy of probabilities in [0, 1]; logarithms are clamped to >= -100. An element outside
// throws Error(value) on the CPU; on CUDA, where a check would wait for the device, its loss and gradient are
// NaN. NaN stays NaN on both. Refused inside Autocast unless input is a float32 that no cast produced.
[[nodiscard]] Tensor binary_cross_entropy(const Tensor& input, const Tensor& target, BceOptions options = {});
struct BceWithLogitsOptions {
    Reduction reduction = Reduction::mean;
    Tensor weight = {};  // as in BceOptions
    Tensor pos_weight =
        {};  // floating, broadcasts to logits: multiplies the part of the loss that has target
};
// binary_cross_entropy(sigmoid(logits), target), computed without leaving the range of the dtype.
[[nodiscard]] Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target,
                                                      BceWithLogitsOptions options = {});

// x, floating, with each element zeroed with probability p in [0, 1] and the others multiplied by 1 / (1 -
// p); x itself when not training or p == 0. The mask is never stored: the gradient generates it again from
// the seed.
[[nodiscard]] Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);

}  // namespace mezzo

#pragma GCC visibility pop
