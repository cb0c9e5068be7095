// The names of all kernels. An op's kernel has the op's name in mezzo::cpu_kernels and mezzo::cuda_kernels.
#pragma once

#include "core/backend.h"

#define MEZZO_UNARY(name, cast, ints, keep, gradient) Kernel name;
#define MEZZO_UNARY_SCALAR(name, cast, ints, keep, gradient) Kernel name;
#define MEZZO_BINARY(name, cast, ints, keep, gradient_a, gradient_b) Kernel name;
#define MEZZO_COMPARE(name) Kernel name;

// in and out of each, beyond the table ("like x": the out tensor has been made with the right shape and
// dtype):
//   logical_not isfinite    x -> boolean
//   where                   boolean condition, a, b (any strides, broadcast) -> promoted dtype
//   masked_fill             x, boolean mask (broadcast); at.alpha the value -> like x
//   clamp_grad              g, x; at.alpha, at.beta -> g where alpha <= x <= beta, else 0
//   cast                    x, any strides -> the out dtype, contiguous; serves contiguous() and clone() too
//   copy_into               x (broadcast, any dtype) -> an existing tensor with any strides
//   fill                    () -> out (any strides) = at.alpha
//   sum mean max min norm   x (contiguous), at.axes (ascending) -> reduced; out may be float32 for a 16-bit x
//   argmax                  x (contiguous), at.dim -> int64
//   amax_grad               g, x, y (g and y keep size-1 dims) -> g where x == y, divided by the number of
//                           ties
//   matmul                  a [batch.., m, k], b [batch.., k, n]: 2-D or with equal batch dims; the last two
//                           dims may be transposed by strides; at.has_dtype: result dtype (float32 from 16
//                           bit); at.beta != 0: out = a b + beta * out
//   linear                  x [.., in], weight [out, in], optional bias [out]; at.activation -> y [..,
//                           out], and for gelu, if there is an out[1], the value before the activation; for
//                           relu on CUDA, if out[1] is uint8, its mask (core/activation.h)
//   column_sum              x [rows, cols] -> [cols] in the out dtype (bias gradients)
//   activation_grad         g, kept [rows, cols] of one dtype, a relu mask of kept (CUDA) or undefined;
//                           at.activation (relu: kept is its result, otherwise what it saw) -> gradient
//                           before it, its column sums [cols] (float32; float64 for float64)
//   linear_input_grad       g [rows, out], weight [out, in], kept [rows, in] of one dtype, a relu mask of it
//                           (CUDA) or undefined; at.activation as above -> (g weight) through the activation
//                           and, if there is an out[1], its column sums
//   softmax log_softmax     x (contiguous), at.dim -> out dtype (float32 for a 16-bit x under autocast)
//   (log_)softmax_grad      g, y, at.dim -> the out dtype
//   mse_loss l1_loss smooth_l1_loss bce bce_with_logits
//                           input, target (contiguous, same shape, dtypes may differ); at.reduction 0 none 1
//                           mean 2 sum; at.alpha = beta of smooth_l1 -> float32 (float64 for float64)
//   *_grad of those         g (0-dim or element-wise), input, target -> gradient of input in the out dtype
//   nll_loss                log_p [rows, classes], target int64 [rows], at.index ignored class -> 0-dim or
//                           [rows]
//   nll_loss_grad           g, target; at.shape = [rows, classes] -> gradient of log_p
//   cross_entropy           logits, target; at.index, at.alpha = label smoothing -> loss, and [rows] each: the
//                           largest logit, and the sum of e^(logit - largest)
//   cross_entropy_grad      g, logits, target, largest, sum -> gradient of logits in the out dtype
//   dropout                 x; at.alpha = p, at.seed, at.offset -> y (see core/philox.h)
//   random_uniform random_normal random_int
//                           (); at.seed, at.offset; at.alpha, at.beta low and high, or mean and stddev -> out
//   cat                     any number of inputs (contiguous, of out's dtype); at.dim -> out
//   arange                  () -> out[i] = i
//   layer_norm              x [rows, cols], weight, bias [cols] of any floating dtypes; at.alpha = eps -> y
//                           and, if there are out[1] and out[2], mean and rstd [rows]
//   layer_norm_grad         g, x, weight, mean, rstd -> gradients of x, weight, bias
//   rms_norm                as layer_norm without bias and mean
//   rms_norm_grad           g, x, weight, rstd -> gradients of x, weight
//   dropout_add_layer_norm  weight, x, x_bias or undefined, residual, bias; at.alpha = p, at.seed, at.offset,
//                           at.beta = eps -> y and, if there are more, z = dropout(x + x_bias) + residual,
//                           mean, rstd
//   dropout_add_layer_norm_grad
//                           g, z, weight, mean, rstd; attributes as above -> gradients of x, residual,
//                           weight, bias and, if there is an out[4], x_bias
//   scaled_dot_product_attention
//                           q [batch, query, heads, dim], k, v [batch, key, heads, dim] (any strides but 1 in
//                           dim), mask (boolean view of [batch, heads, query, key], true: may look) or
//                           undefined; at.alpha = dropout_p with at.seed, at.offset (element ((b heads + h)
//                           query + i) key + j), at.beta = scale, at.index = 1: causal -> y like q and, if
//                           there are out[1] and out[2], the largest score of each query, not scaled, -inf
//                           where there is nothing to look at, and the sum of e^(scale (score - largest)):
//                           [batch, heads, query], float32 (float64 for float64)
//   scaled_dot_product_attention_grad
//                           g, q, k, v, y, largest, sum, mask; at as above -> gradients of q, k, v
//   embedding               weight [n, dim], int64 index [...] -> [..., dim]. An index outside: an error on
//                           the CPU, and CUDA gives NaN (0 for integers); the sums below ignore it there
//   embedding_grad          g [..., dim], index [...]; at.shape = [n, dim], at.index = padding_idx -> sums of
//                           the rows of equal index; at.beta != 0: added to out
//   index_select            x, index [count]; at.dim -> like x with at.dim of size count
//   index_select_grad       g, index; at.shape, at.dim -> sums of the slices of equal index
//   gather                  x, index (equal shapes outside at.dim) -> x's elements, shaped like index
//   scatter_add             src, index of one shape, and x (none: 0) -> x with src added at index along
//                           at.dim
#define MEZZO_OTHER_KERNELS                                                                               \
    Kernel logical_not, isfinite, where, masked_fill, clamp_grad, cast, copy_into, fill, sum, mean, max,  \
        min, norm, argmax, amax_grad, matmul, linear, linear_input_grad, column_sum, activation_grad,     \
        softmax, log_softmax, softmax_grad, log_softmax_grad, mse_loss, mse_loss_grad, l1_loss,           \
        l1_loss_grad, smooth_l1_loss, smooth_l1_loss_grad, bce, bce_grad, bce_with_logits,                \
        bce_with_logits_grad, nll_loss, nll_loss_grad, cross_entropy, cross_entropy_grad, dropout,        \
        random_uniform, random_normal, random_int, cat, arange, layer_norm, layer_norm_grad, rms_norm,    \
        rms_norm_grad, dropout_add_layer_norm, dropout_add_layer_norm_grad, scaled_dot_product_attention, \
        scaled_dot_product_attention_grad, embedding, embedding_grad, index_select, index_select_grad,    \
        gather, scatter_add;

namespace mezzo::cpu_kernels {
#include "mezzo/ops.def"
MEZZO_OTHER_KERNELS
}  // namespace mezzo::cpu_kernels

namespace mezzo::cuda_kernels {
#include "mezzo/ops.def"
MEZZO_OTHER_KERNELS
}  // namespace mezzo::cuda_kernels

#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
#undef MEZZO_BINARY
#undef MEZZO_COMPARE
#undef MEZZO_OTHER_KERNELS

// The kernels of an op on every device of this build.
#ifdef MEZZO_HAVE_CUDA
#define MEZZO_KERNELS(name) \
    { mezzo::cpu_kernels::name, mezzo::cuda_kernels::name }
#else
#define MEZZO_KERNELS(name) \
    { mezzo::cpu_kernels::name, nullptr }
#endif
