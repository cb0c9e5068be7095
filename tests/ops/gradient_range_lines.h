// Functions that gradient_range_test runs over the full range of the 16-bit dtypes, and those that it leaves
// out. tools/check_tree.py compares the first words of the names with the public headers.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "mezzo/attention_ops.h"
#include "mezzo/autocast.h"
#include "mezzo/image_ops.h"
#include "mezzo/index_ops.h"
#include "mezzo/loss_ops.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/product_ops.h"
#include "mezzo/recurrent_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/shape_ops.h"
#include "mezzo/sort_ops.h"
#include "tests/support/grad_check.h"
#include "tests/support/support.h"

namespace mezzo::test {

struct Line {
    const char* name;
    Function* function;
    int inputs = 1;
    double low = -1e300, high = 1e300;  // of the second input: results of tanh and sigmoid are in [-1, 1]
};

#define OF_ONE(name, ...)                      \
    {                                          \
        name, [](In x) { return __VA_ARGS__; } \
    }
#define OF_TWO(name, ...)                         \
    {                                             \
        name, [](In x) { return __VA_ARGS__; }, 2 \
    }
#define UNARY(name) OF_ONE(#name, name(x[0]))
#define BINARY(name) OF_TWO(#name, name(x[0], x[1]))

inline Tensor pairs(In x) { return stack({x[0], x[1]}, 1); }
// Rows of four: the two inputs and two constants.
inline Tensor fours(In x) { return stack({x[0], x[1], full_like(x[0], 0.5), full_like(x[0], -1)}, 1); }
inline Tensor image(In x) { return pairs(x).reshape({-1, 1, 2, 1}); }      // [N, H, W, C]
inline Tensor volume(In x) { return pairs(x).reshape({-1, 2, 1, 1, 1}); }  // [N, D, H, W, C]
inline Tensor like(In x, const std::vector<double>& values, const Shape& shape) {
    return tensor_of(values, shape, x[0].dtype(), x[0].device());
}
// `index` for every row, as an index tensor.
inline Tensor places(In x, std::int64_t index) {
    return full({x[0].size(0), 1}, double(index), {.dtype = int64, .device = x[0].device()});
}
inline Tensor all_places(In x) { return arange(x[0].size(0)).to(x[0].device()); }
inline Tensor packed(In x) {
    const auto filled = [&](double value) { return full_like(x[0], value); };
    return stack({x[0], filled(1), x[1], filled(0.5), filled(-1), filled(0.25)}, 1).reshape({-1, 2, 3, 1, 1});
}

// Matrices [N, 2, 3] whose first element is x[0].
inline Tensor affine(In x) {
    const auto filled = [&](double value) { return full_like(x[0], value); };
    return stack({x[0], filled(0.5), filled(1), filled(0), filled(1), filled(0)}, 1).reshape({-1, 2, 3});
}

inline Tensor two(In x, double a, double b) { return tensor_of({a, b}, {2}, float32, x[0].device()); }
inline Tensor classes(In x) { return zeros({x[0].size(0)}, {.dtype = int64, .device = x[0].device()}); }
inline Tensor refused_by_autocast(In x) {
    const amp::Autocast plain({.enabled = false});
    return binary_cross_entropy(x[1], (x[0] > 0.0).to(x[1].dtype()), {.reduction = Reduction::none});
}

// clang-format off
inline std::vector<Line> elementwise_lines() {
    return {
#define MEZZO_UNARY(name, cast, ints, save, gradient) UNARY(name),
#include "mezzo/ops.def"
#undef MEZZO_UNARY
        OF_ONE("add_scalar", x[0] + 1.5),
        OF_ONE("rsub_scalar", 1.5 - x[0]),
        OF_ONE("mul_scalar", x[0] * 2.5),
        OF_ONE("div_scalar", x[0] / 2.5),
        OF_ONE("rdiv_scalar", 2.5 / x[0]),
        OF_ONE("rdiv_scalar of 1000", 1000.0 / x[0]),
        OF_ONE("rdiv_scalar of 1e-4", 1e-4 / x[0]),
        OF_ONE("pow_scalar", pow(x[0], 2.5)),
        OF_ONE("pow_scalar to 3", pow(x[0], 3)),
        OF_ONE("pow_scalar to -2", pow(x[0], -2)),
        OF_ONE("pow_scalar to 1/2", pow(x[0], 0.5)),
        OF_ONE("clamp", clamp(x[0], -0.5, 100)),
        OF_ONE("hardtanh", hardtanh(x[0], -0.5, 100)),
        OF_ONE("elu", elu(x[0], 1.5)),
        OF_ONE("leaky_relu", leaky_relu(x[0], 0.2)),
        BINARY(remainder),
        BINARY(atan2),
        BINARY(mish_grad),
        BINARY(add),
        BINARY(sub),
        BINARY(mul),
        BINARY(div),
        BINARY(pow),
        BINARY(maximum),
        BINARY(minimum),
        BINARY(relu_grad),
        BINARY(gelu_grad),
        BINARY(gelu_tanh_grad),
        BINARY(silu_grad),
        {"tanh_grad", [](In x) { return tanh_grad(x[0], x[1]); }, 2, -1, 1},
        {"sigmoid_grad", [](In x) { return sigmoid_grad(x[0], x[1]); }, 2, 0, 1},
        OF_TWO("clamp_grad", clamp_grad(x[0], x[1], -0.5, 100)),
    };
}

inline std::vector<Line> formulas() {
    return {
        UNARY(exp2),
        UNARY(log2),
        UNARY(log10),
        UNARY(tan),
        UNARY(asin),
        UNARY(acos),
        UNARY(atan),
        UNARY(sinh),
        UNARY(cosh),
        UNARY(asinh),
        UNARY(acosh),
        UNARY(atanh),
        UNARY(erfc),
        UNARY(erfinv),
        UNARY(lgamma),
        UNARY(digamma),
        UNARY(selu),
        UNARY(celu),
        UNARY(relu6),
        UNARY(hardsigmoid),
        UNARY(hardswish),
        UNARY(hardshrink),
        UNARY(softshrink),
        UNARY(logsigmoid),
        UNARY(nan_to_num),
        OF_ONE("threshold", threshold(x[0], 0.5, 2)),
        OF_TWO("prelu", prelu(x[0].unsqueeze(1), like(x, {0.25}, {1})).squeeze(1) + 0.0 * x[1]),
        BINARY(fmod),
        BINARY(logaddexp),
        BINARY(hypot),
        BINARY(xlogy),
        OF_TWO("vector_norm", vector_norm(pairs(x), 3, {1})),
        OF_TWO("vector_norm of 1", vector_norm(pairs(x), 1, {1})),
        OF_TWO("nansum", nansum(pairs(x), {1})),
        OF_TWO("nanmean", nanmean(pairs(x), {1})),
        OF_TWO("median", median(pairs(x), 1).values),
        OF_TWO("cummax", cummax(pairs(x), 1).values.select(1, 1)),
        OF_TWO("cummin", cummin(pairs(x), 1).values.select(1, 1)),
        OF_TWO("mode", mode(pairs(x)).values),
        OF_TWO("logcumsumexp", logcumsumexp(pairs(x), 1).select(1, 1)),
        OF_TWO("tensordot", tensordot(pairs(x), like(x, {2, -0.5}, {2}), 1)),
        OF_ONE("kron", kron(x[0], like(x, {2.5}, {1}))),
        OF_TWO("cdist", cdist(pairs(x).unsqueeze(1), like(x, {1, -0.5}, {1, 2})).reshape({-1})),
        OF_TWO("cdist of p 3", cdist(pairs(x).unsqueeze(1), like(x, {1, -0.5}, {1, 2}), 3).reshape({-1})),
        OF_TWO("diff", diff(pairs(x), 1, 1).squeeze(1)),
    };
}

inline std::vector<Line> reductions_and_losses() {
    return {
        OF_TWO("norm", norm(pairs(x), {1})),
        OF_TWO("max", max(pairs(x), {1})),
        OF_TWO("mean", mean(pairs(x), {1})),
        OF_TWO("min", min(pairs(x), {1})),
        OF_TWO("sum", sum(pairs(x), {1})),
        OF_TWO("logsumexp", logsumexp(pairs(x), {1})),
        OF_TWO("quantile", quantile(pairs(x), 0.25, {.dim = 1})),
        OF_TWO("cumsum", cumsum(pairs(x), 1).select(1, 1)),
        // Beyond these bounds a gate or its complement is below float32's range.
        {"glu", [](In x) { return glu(pairs(x)).squeeze(1); }, 2, -80, 80},
        {"swiglu", [](In x) { return swiglu(x[0], x[1]); }, 2, -1e4, 1e4},
        {"swiglu of halves", [](In x) { return swiglu(pairs(x)).squeeze(1); }, 2, -1e4, 1e4},
        OF_TWO("lerp", lerp(x[0], x[1], 0.3)),
        OF_TWO("lerp of tensors", lerp(x[0], x[1], full_like(x[0], 0.75))),
        OF_TWO("addcmul", addcmul(full_like(x[0], 1), x[0], x[1], 0.5)),
        OF_TWO("addcdiv", addcdiv(full_like(x[0], 1), x[0], x[1], -2)),
        OF_TWO("where", where(gt(x[0], 0.0), x[0], x[1])),
        OF_TWO("masked_fill", masked_fill(x[0], gt(x[1], 0.0), 2)),
        OF_TWO("softmin", softmin(pairs(x), 1).select(1, 0)),
        OF_TWO("softmax", softmax(pairs(x)).select(1, 0)),
        OF_TWO("log_softmax", log_softmax(pairs(x)).select(1, 0)),
        OF_TWO("mse_loss", mse_loss(x[0], x[1], {.reduction = Reduction::none})),
        OF_TWO("l1_loss", l1_loss(x[0], x[1], {.reduction = Reduction::none})),
        OF_TWO("smooth_l1_loss", smooth_l1_loss(x[0], x[1], {.beta = 3, .reduction = Reduction::none})),
        OF_TWO("huber_loss", huber_loss(x[0], x[1], {.delta = 1e-3, .reduction = Reduction::none})),
        OF_TWO("huber_loss of 300", huber_loss(x[0], x[1], {.delta = 300, .reduction = Reduction::none})),
        {"binary_cross_entropy", refused_by_autocast, 2, 0, 1},
        {"binary_cross_entropy_with_logits",
         [](In x) { return binary_cross_entropy_with_logits(x[0], x[1], {.reduction = Reduction::none}); }, 2,
         0, 1},
        {"kl_div", [](In x) { return kl_div(x[0], x[1], {.reduction = Reduction::none}); }, 2, 0},
        OF_TWO("cross_entropy", cross_entropy(pairs(x), classes(x), {.reduction = Reduction::none})),
        OF_TWO("cross_entropy with weights",
               cross_entropy(pairs(x), classes(x), {.reduction = Reduction::none, .weight = two(x, 2, 3)})),
        OF_TWO("cross_entropy of probabilities",
               cross_entropy(pairs(x), two(x, 0.75, 0.25).expand(pairs(x).shape()),
                             {.reduction = Reduction::none})),
        OF_TWO("nll_loss", nll_loss(pairs(x), classes(x), {.reduction = Reduction::none})),
        OF_TWO("hinge_embedding_loss", hinge_embedding_loss(x[0], 2.0 * (x[1] > 0.0).to(float32) - 1.0,
                                                            {.reduction = Reduction::none})),
        {"binary_cross_entropy_with_logits of pos_weight",
         [](In x) {
             const Tensor weight = full({1}, 3, {.device = x[0].device()});
             return binary_cross_entropy_with_logits(
                 x[0], x[1], {.reduction = Reduction::none, .pos_weight = weight});
         },
         2, 0, 1},
        OF_TWO("margin_ranking_loss", margin_ranking_loss(x[0], x[1], ones({1}, {.device = x[0].device()}),
                                                          {.margin = 0.5, .reduction = Reduction::none})),
        OF_TWO("soft_margin_loss", soft_margin_loss(x[0], 2.0 * (x[1] > 0.0).to(float32) - 1.0,
                                                    {.reduction = Reduction::none})),
        OF_TWO("multi_margin_loss", multi_margin_loss(pairs(x), classes(x), {.reduction = Reduction::none})),
        OF_TWO("multilabel_margin_loss",
               multilabel_margin_loss(pairs(x), stack({classes(x), classes(x) - 1}, 1),
                                      {.reduction = Reduction::none})),
        OF_TWO("multilabel_soft_margin_loss",
               multilabel_soft_margin_loss(pairs(x), two(x, 0.75, 0.25).expand(pairs(x).shape()),
                                           {.reduction = Reduction::none})),
        OF_TWO("gaussian_nll_loss",
               gaussian_nll_loss(x[0], x[1], full_like(x[0], 0.25), {.reduction = Reduction::none})),
        OF_ONE("poisson_nll_loss", poisson_nll_loss(x[0], full_like(x[0], 2), {.reduction = Reduction::none})),
        OF_TWO("triplet_margin_with_distance_loss",
               triplet_margin_with_distance_loss(zeros({1}, {.device = x[0].device()}), x[0].unsqueeze(1),
                                                 x[1].unsqueeze(1), {.reduction = Reduction::none})),
        OF_TWO("triplet_margin_loss",
               triplet_margin_loss(zeros({1}, {.device = x[0].device()}), x[0].unsqueeze(1),
                                   x[1].unsqueeze(1), {.reduction = Reduction::none})),
    };
}

// Products have a constant factor or term, so that the gradient of each input has one term.
inline std::vector<Line> products_and_norms() {
    return {
        OF_ONE("cast", cast(x[0], float32)),
        OF_TWO("cat", cat({x[0].unsqueeze(1), x[1].unsqueeze(1)}, 1).select(1, 1)),
        OF_TWO("stack", pairs(x).select(1, 1)),
        OF_TWO("sum_to", sum_to(stack({x[0], x[1]}), {1, x[0].size(0)}).squeeze(0)),
        OF_TWO("prod", prod(pairs(x), {1})),
        OF_TWO("cumprod", cumprod(pairs(x), 1).select(1, 1)),
        OF_TWO("var", var(pairs(x), {1})),
        OF_TWO("var of four", var(fours(x), {1}, {.correction = 0})),
        OF_TWO("std", mezzo::std(pairs(x), {1})),
        OF_TWO("var_mean", var_mean(pairs(x), {1}).var),
        OF_TWO("std_mean", std_mean(pairs(x), {1}).std),
        OF_TWO("matmul", matmul(stack({x[0], full_like(x[0], 1)}, 1).unsqueeze(1),
                                stack({x[1], full_like(x[0], 0.5)}, 1).unsqueeze(2)).reshape({-1})),
        OF_TWO("bmm", bmm(x[0].reshape({-1, 1, 1}), x[1].reshape({-1, 1, 1})).reshape({-1})),
        OF_TWO("linear", linear(pairs(x), like(x, {2, -0.5}, {1, 2}), like(x, {0.25}, {1})).squeeze(1)),
        OF_ONE("linear with gelu",
               linear(x[0].unsqueeze(1), like(x, {2}, {1, 1}), {}, LinearActivation::gelu).squeeze(1)),
        OF_TWO("addmm", addmm(x[0].unsqueeze(1), stack({x[1], full_like(x[0], 1)}, 1), like(x, {3, 0.25}, {2, 1}),
                              {.beta = 0.5, .alpha = 0.125}).squeeze(1)),
        OF_TWO("baddbmm", baddbmm(x[0].reshape({-1, 1, 1}), x[1].reshape({-1, 1, 1}),
                                  full_like(x[0], 3).reshape({-1, 1, 1}), {.beta = 0.5, .alpha = 0.125})
                              .reshape({-1})),
        OF_TWO("einsum", einsum("ni,i->n", {pairs(x), like(x, {2, -0.5}, {2})})),
        OF_ONE("outer", outer(x[0], like(x, {2.5}, {1})).squeeze(1)),
        OF_TWO("bilinear", bilinear(x[0].unsqueeze(1), x[1].unsqueeze(1), like(x, {0.5}, {1, 1, 1})).squeeze(1)),
        OF_TWO("cosine_similarity", cosine_similarity(pairs(x), like(x, {1, -0.5}, {1, 2}))),
        OF_TWO("pairwise_distance", pairwise_distance(x[0].unsqueeze(1), x[1].unsqueeze(1))),
        OF_TWO("pairwise_distance of p 3", pairwise_distance(pairs(x), like(x, {1, -0.5}, {2}), {.p = 3})),
        OF_TWO("pairwise_distance of p 1", pairwise_distance(pairs(x), like(x, {1, -0.5}, {2}), {.p = 1})),
        OF_TWO("normalize", normalize(pairs(x)).select(1, 0)),
        OF_TWO("normalize of p 3", normalize(pairs(x), 3).select(1, 0)),
        OF_TWO("normalize of p 1", normalize(pairs(x), 1).select(1, 0)),
        OF_TWO("cosine_embedding_loss",
               cosine_embedding_loss(pairs(x), like(x, {1, -0.5}, {1, 2}).expand(pairs(x).shape()),
                                     ones({x[0].size(0)}, {.device = x[0].device()}),
                                     {.reduction = Reduction::none})),
        OF_TWO("layer_norm", layer_norm(fours(x)).select(1, 0)),
        OF_TWO("layer_norm with weights",
               layer_norm(fours(x), like(x, {2, 1, 1, 3}, {4}), like(x, {1, 0, 0, 0}, {4})).select(1, 0)),
        OF_TWO("rms_norm", rms_norm(fours(x)).select(1, 0)),
        OF_TWO("dropout_add_layer_norm",
               dropout_add_layer_norm(fours(x), {}, full_like(fours(x), 0.25), like(x, {2, 1, 1, 3}, {4}),
                                      like(x, {1, 0, 0, 0}, {4})).select(1, 0)),
        OF_TWO("batch_norm", batch_norm(fours(x).t(), {}, {}).select(0, 0)),
        OF_TWO("group_norm", group_norm(fours(x), 1).select(1, 0)),
        // The rounding error of the result is relative to the values, here those of the second input.
        {"scaled_dot_product_attention",
         [](In x) {
             const Tensor key = like(x, {1, -1}, {1, 1, 2, 1}).expand({x[0].size(0), 1, 2, 1});
             const Tensor value = stack({x[1], full_like(x[0], 0.25)}, 1).reshape({-1, 1, 2, 1});
             return scaled_dot_product_attention(x[0].reshape({-1, 1, 1, 1}), key, value, {.scale = 1})
                 .reshape({-1});
         }, 2, -1, 1},
        {"packed_attention",
         [](In x) { return packed_attention(packed(x), {.scale = 1}).select(1, 0).reshape({-1}); }, 2, -1, 1},
        OF_TWO("rotary_embedding",
               rotary_embedding(pairs(x).reshape({-1, 1, 1, 2}), like(x, {0.75}, {1, 1}),
                                like(x, {0.5}, {1, 1}))
                   .reshape({-1, 2}).select(1, 0)),
        OF_TWO("merged_linear", merged_linear(pairs(x), {like(x, {2, -0.5}, {1, 2}), like(x, {1, 3}, {1, 2})})
                                   .select(1, 0)),
        OF_TWO("recurrent", recurrent(RecurrentCell::rnn_tanh, x[0].reshape({1, -1, 1}), like(x, {0.5}, {1, 1}),
                                      {.h0 = x[1].unsqueeze(1)}).states.reshape({-1})),
        OF_TWO("recurrent, an LSTM", recurrent(RecurrentCell::lstm, fours(x).unsqueeze(0),
                                               like(x, {0.5, 0.5, 0.5, 0.5}, {4, 1})).states.reshape({-1})),
        OF_TWO("recurrent, a GRU", recurrent(RecurrentCell::gru, fours(x).slice(1, 0, 3).unsqueeze(0),
                                             like(x, {0.5, 0.5, 0.5}, {3, 1})).states.reshape({-1})),
        OF_TWO("conv2d", conv2d(image(x), like(x, {2, -0.5}, {1, 1, 2, 1}), like(x, {0.25}, {1})).reshape({-1})),
        OF_TWO("conv1d", conv1d(pairs(x).unsqueeze(2), like(x, {2, -0.5}, {1, 2, 1})).reshape({-1})),
        OF_TWO("conv3d", conv3d(volume(x), like(x, {2, -0.5}, {1, 2, 1, 1, 1}), like(x, {0.25}, {1})).reshape({-1})),
        OF_ONE("conv_transpose1d", conv_transpose1d(x[0].reshape({-1, 1, 1}), like(x, {2}, {1, 1, 1}),
                                                    like(x, {0.25}, {1})).reshape({-1})),
        OF_ONE("conv_transpose3d", conv_transpose3d(x[0].reshape({-1, 1, 1, 1, 1}), like(x, {2}, {1, 1, 1, 1, 1}),
                                                    like(x, {0.25}, {1})).reshape({-1})),
        OF_TWO("instance_norm", instance_norm(fours(x).unsqueeze(2)).select(1, 0).squeeze(1)),
        OF_TWO("local_response_norm", local_response_norm(fours(x).unsqueeze(1), 3).select(2, 1).squeeze(1)),
        OF_ONE("conv_transpose2d", conv_transpose2d(x[0].reshape({-1, 1, 1, 1}), like(x, {2}, {1, 1, 1, 1}),
                                                    like(x, {0.25}, {1})).reshape({-1})),
    };
}

inline std::vector<Line> pools_and_arrangements() {
    return {
        OF_TWO("max_pool2d", max_pool2d(image(x), {.kernel_size = {1, 2}}).reshape({-1})),
        OF_TWO("avg_pool2d", avg_pool2d(image(x), {.kernel_size = {1, 2}}).reshape({-1})),
        OF_TWO("adaptive_avg_pool2d", adaptive_avg_pool2d(image(x), 1).reshape({-1})),
        OF_TWO("adaptive_max_pool2d", adaptive_max_pool2d(image(x), 1).reshape({-1})),
        OF_TWO("max_pool1d", max_pool1d(pairs(x).unsqueeze(2), {.kernel_size = 2}).reshape({-1})),
        OF_TWO("avg_pool1d", avg_pool1d(pairs(x).unsqueeze(2), {.kernel_size = 2}).reshape({-1})),
        OF_TWO("adaptive_avg_pool1d", adaptive_avg_pool1d(pairs(x).unsqueeze(2), 1).reshape({-1})),
        OF_TWO("adaptive_max_pool1d", adaptive_max_pool1d(pairs(x).unsqueeze(2), 1).reshape({-1})),
        OF_TWO("max_pool3d", max_pool3d(volume(x), {.kernel_size = {2, 1, 1}}).reshape({-1})),
        OF_TWO("avg_pool3d", avg_pool3d(volume(x), {.kernel_size = {2, 1, 1}}).reshape({-1})),
        OF_TWO("avg_pool3d with a divisor",
               avg_pool3d(volume(x), {.kernel_size = {2, 1, 1}, .divisor_override = 3}).reshape({-1})),
        OF_TWO("adaptive_avg_pool3d", adaptive_avg_pool3d(volume(x), 1).reshape({-1})),
        OF_TWO("adaptive_max_pool3d", adaptive_max_pool3d(volume(x), 1).reshape({-1})),
        OF_TWO("max_pool1d_with_indices",
               max_pool1d_with_indices(pairs(x).unsqueeze(2), {.kernel_size = 2}).values.reshape({-1})),
        OF_TWO("max_pool2d_with_indices",
               max_pool2d_with_indices(image(x), {.kernel_size = {1, 2}}).values.reshape({-1})),
        OF_TWO("max_pool3d_with_indices",
               max_pool3d_with_indices(volume(x), {.kernel_size = {2, 1, 1}}).values.reshape({-1})),
        OF_TWO("adaptive_max_pool1d_with_indices",
               adaptive_max_pool1d_with_indices(pairs(x).unsqueeze(2), 1).values.reshape({-1})),
        OF_TWO("adaptive_max_pool2d_with_indices",
               adaptive_max_pool2d_with_indices(image(x), 1).values.reshape({-1})),
        OF_TWO("adaptive_max_pool3d_with_indices",
               adaptive_max_pool3d_with_indices(volume(x), 1).values.reshape({-1})),
        OF_ONE("max_unpool1d", max_unpool1d(x[0].reshape({-1, 1, 1}), places(x, 1).unsqueeze(2), {.kernel_size = 2})
                                   .select(1, 1).reshape({-1})),
        OF_ONE("max_unpool2d", max_unpool2d(x[0].reshape({-1, 1, 1, 1}), places(x, 1).reshape({-1, 1, 1, 1}),
                                            {.kernel_size = {1, 2}}).select(2, 1).reshape({-1})),
        OF_ONE("max_unpool3d", max_unpool3d(x[0].reshape({-1, 1, 1, 1, 1}), places(x, 1).reshape({-1, 1, 1, 1, 1}),
                                            {.kernel_size = {1, 1, 2}}).select(3, 1).reshape({-1})),
        OF_TWO("unfold", unfold(image(x), {.kernel_size = {1, 2}}).reshape({-1, 2}).select(1, 1)),
        OF_TWO("fold", fold(pairs(x).unsqueeze(2), {1, 1}, {.kernel_size = 1, .padding = {0, 1}, .stride = {1, 2}})
                           .reshape({-1})),
        OF_TWO("pixel_shuffle", pixel_shuffle(fours(x).reshape({-1, 1, 1, 4}), 2).reshape({-1, 4}).select(1, 1)),
        OF_TWO("pixel_unshuffle", pixel_unshuffle(fours(x).reshape({-1, 2, 2, 1}), 2).reshape({-1, 4}).select(1, 1)),
        OF_TWO("channel_shuffle", channel_shuffle(fours(x).reshape({-1, 1, 4}), 2).reshape({-1, 4}).select(1, 2)),
        OF_ONE("dropout1d", dropout1d(x[0].reshape({-1, 1, 1}), 0.5, false).reshape({-1})),
        OF_TWO("grid_sample", grid_sample(image(x), like(x, {0.25, 0}, {1, 1, 1, 2}).expand({x[0].size(0), 1, 1, 2}))
                                  .reshape({-1})),
        OF_ONE("affine_grid", affine_grid(affine(x), {x[0].size(0), 1, 2, 1}).select(2, 1).reshape({-1, 2})
                                  .select(1, 0)),
        OF_TWO("pad", pad(pairs(x), {{1, 1, 1}}, PadMode::circular).select(1, 0)),
        OF_TWO("interpolate",
               interpolate(image(x), {1, 3}, {.mode = InterpolateMode::bilinear})
                   .reshape({-1, 3}).select(1, 1)),
        OF_ONE("embedding", embedding(x[0].unsqueeze(1), all_places(x)).squeeze(1)),
        OF_ONE("embedding_bag", embedding_bag(x[0].unsqueeze(1), all_places(x).unsqueeze(1)).squeeze(1)),
        OF_ONE("index_select", index_select(x[0], 0, all_places(x))),
        OF_TWO("gather", gather(pairs(x), 1, places(x, 1)).squeeze(1)),
        OF_TWO("scatter_add", scatter_add(x[0].unsqueeze(1), 1, places(x, 0), x[1].unsqueeze(1)).squeeze(1)),
        OF_TWO("index", index(pairs(x), {Slice(), all_places(x).slice(0, 1, 2)}).squeeze(1)),
        OF_TWO("index_put", index_put(pairs(x), {Slice(), 0}, x[1]).select(1, 0)),
        OF_TWO("index_put that adds", index_put(x[0], {all_places(x)}, x[1], {.accumulate = true})),
        OF_TWO("scatter", scatter(x[0].unsqueeze(1), 1, places(x, 0), x[1].unsqueeze(1)).squeeze(1)),
        OF_TWO("scatter_reduce",
               scatter_reduce(x[0].unsqueeze(1), 1, places(x, 0), x[1].unsqueeze(1), ScatterReduction::amax)
                   .squeeze(1)),
        OF_TWO("scatter_reduce to the mean",
               scatter_reduce(x[0].unsqueeze(1), 1, places(x, 0), x[1].unsqueeze(1), ScatterReduction::mean)
                   .squeeze(1)),
        OF_TWO("scatter_reduce to the product",
               scatter_reduce(x[0].unsqueeze(1), 1, places(x, 0), x[1].unsqueeze(1), ScatterReduction::prod)
                   .squeeze(1)),
        OF_TWO("index_reduce", index_reduce(x[0], 0, all_places(x), x[1], ScatterReduction::amin)),
        OF_TWO("index_copy", index_copy(x[0], 0, all_places(x), x[1])),
        OF_TWO("index_add", index_add(x[0], 0, all_places(x), x[1], 0.5)),
        OF_TWO("index_fill", index_fill(pairs(x), 1, all_places(x).slice(0, 0, 1), 0).select(1, 1)),
        OF_TWO("masked_scatter", masked_scatter(x[0], gt(x[0], 0.0) | le(x[0], 0.0), x[1])),
        OF_TWO("take_along_dim", take_along_dim(pairs(x), places(x, 1), 1).squeeze(1)),
        OF_ONE("take", take(x[0], all_places(x))),
        OF_TWO("put", put(x[0], all_places(x), x[1])),
        OF_TWO("sort", sort(pairs(x)).values.select(1, 1)),
        OF_TWO("topk", topk(pairs(x), 1).values.squeeze(1)),
        OF_TWO("kthvalue", kthvalue(pairs(x), 1).values),
        OF_TWO("tril", tril(pairs(x).unsqueeze(1), 1).reshape({-1, 2}).select(1, 1)),
        OF_TWO("triu", triu(pairs(x).unsqueeze(1), 1).reshape({-1, 2}).select(1, 1)),
        OF_TWO("flip", flip(pairs(x), 1).select(1, 0)),
        OF_TWO("roll", roll(pairs(x), {1}, {1}).select(1, 0)),
        OF_ONE("repeat", repeat(x[0].unsqueeze(1), {1, 3}).select(1, 2)),
        OF_ONE("repeat_interleave", repeat_interleave(x[0].unsqueeze(1), 3, 1).select(1, 2)),
        OF_TWO("split", split(pairs(x), 1, 1)[1].squeeze(1)),
        OF_TWO("chunk", chunk(pairs(x), 2, 1)[1].squeeze(1)),
        OF_TWO("unbind", unbind(pairs(x), 1)[1]),
        OF_ONE("masked_select", masked_select(x[0], eq(x[0], x[0]))),
    };
}
// clang-format on

inline const std::vector<Line>& lines() {
    static const std::vector<Line> all = [] {
        std::vector<Line> list;
        for (const auto& part : {elementwise_lines(), formulas(), reductions_and_losses(),
                                 products_and_norms(), pools_and_arrangements()})
            list.insert(list.end(), part.begin(), part.end());
        return list;
    }();
    return all;
}

// Public functions of tensors that are not run, and why.
inline const std::map<std::string, const char*>& left_out() {
    static const char no_gradient[] = "its result has no gradient";
    static const char own_test[] = "a sample would need a row for each other one: op_test, and long sums";
    static const char alignments[] = "its gradient is a kernel of float32: ctc_loss_test";
    static const char random[] = "its result is random, without a gradient or x or x / (1 - p)";
    static const char not_an_op[] = "computes nothing but what functions of this list do";
    static const std::map<std::string, const char*> all = {
        {"all", no_gradient},
        {"alpha_dropout", random},
        {"any", no_gradient},
        {"apply_function", not_an_op},
        {"argmax", no_gradient},
        {"argmin", no_gradient},
        {"argsort", no_gradient},
        {"arrived", no_gradient},
        {"bernoulli", random},
        {"bincount", no_gradient},
        {"channels_second", not_an_op},
        {"checkpoint", not_an_op},
        {"clip_grad_norm_", no_gradient},
        {"conv2d_add_relu", not_an_op},
        {"conv_bn", not_an_op},
        {"count_nonzero", no_gradient},
        {"ctc_loss", alignments},
        {"diag", own_test},
        {"dot", own_test},
        {"dropout", random},
        {"dropout2d", random},
        {"dropout3d", random},
        {"empty_like", no_gradient},
        {"eq", no_gradient},
        {"floor_divide", no_gradient},
        {"feature_alpha_dropout", random},
        {"full_like", no_gradient},
        {"ge", no_gradient},
        {"grad", not_an_op},
        {"gt", no_gradient},
        {"isclose", no_gradient},
        {"isfinite", no_gradient},
        {"isin", no_gradient},
        {"isinf", no_gradient},
        {"isnan", no_gradient},
        {"le", no_gradient},
        {"logical_and", no_gradient},
        {"logical_not", no_gradient},
        {"logical_or", no_gradient},
        {"logical_xor", no_gradient},
        {"lt", no_gradient},
        {"masked_tokens", no_gradient},
        {"meshgrid", not_an_op},
        {"multinomial", no_gradient},
        {"ne", no_gradient},
        {"nonzero", no_gradient},
        {"normal", random},
        {"one_hot", no_gradient},
        {"ones_like", no_gradient},
        {"padded_for", not_an_op},
        {"dequantize_weight", not_an_op},
        {"quantize", not_an_op},
        {"weight_scale", not_an_op},
        {"rand_like", no_gradient},
        {"randint_like", no_gradient},
        {"randn_like", no_gradient},
        {"run_hooked", not_an_op},
        {"run_model", not_an_op},
        {"searchsorted", no_gradient},
        {"trace", own_test},
        {"unique", no_gradient},
        {"zeros_like", no_gradient},
    };
    return all;
}

}  // namespace mezzo::test
