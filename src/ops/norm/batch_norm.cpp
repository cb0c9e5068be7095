// batch_norm: the op, its gradient, and the updates of running statistics.
#include "kernels/batch_norm.h"
#include "core/thread_state.h"

#include <cmath>

#include "autograd/autocast_state.h"
#include "mezzo/image_ops.h"
#include "ops/gemm/products.h"
#include "ops/norm/norm_common.h"
#include "ops/norm/running_statistics.h"

namespace mezzo {

namespace {

enum BatchNormInput {
    x_input,
    weight_input,
    bias_input,
    residual_input,
    running_mean_input,
    running_var_input,
    batches_input,
    input_count
};

struct Statistics {
    Tensor mean, variance;
};

// Mean and biased variance of each column, from squared differences.
Statistics batch_statistics(const Tensor& x) {
    const Tensor average = mean(x, {0});
    return {average, mean(square(x - average), {0})};
}

Tensors batch_norm_decomposition(In in, const kernels::BatchNorm& at) {
    const Tensor x = in[x_input];
    const Statistics s =
        at.batch_statistics ? batch_statistics(x) : Statistics{in[running_mean_input], in[running_var_input]};
    Tensor y = (x - s.mean) * rsqrt(s.variance + at.eps) * in[weight_input] + in[bias_input];
    if (in[residual_input].defined()) y = y + in[residual_input];
    return {at.relu ? relu(y) : y};
}

// 1 where a bit is set, otherwise 0: bits [(n + 7) / 8] -> int32 [n]. Bit k of a byte b is
// floor(b / 2^k) - 2 floor(b / 2^(k + 1)).
Tensor unpacked(const Tensor& bits, std::int64_t n) {
    const Tensor bytes = cast(bits, float32);
    Tensors shifted;
    for (int k = 0; k <= 8; ++k) shifted.push_back(cast(bytes * std::ldexp(1.0, -k), int32));
    const Tensor floors = stack(shifted, 1);
    const Tensor each = floors.slice(1, 0, 8) - floors.slice(1, 1, 9) * 2;
    return each.reshape({-1}).slice(0, 0, n);
}

enum BatchNormGradInput { g_in, x_in, weight_in, bits_in, mean_in, rstd_in };

// With the batch's statistics the inputs mean and rstd are functions of x. They are not read here then, so
// that the derivative of this function by x is complete.
Tensors batch_norm_grad_decomposition(In in, const kernels::BatchNormGrad& at) {
    Tensor g = in[g_in];
    const Tensor x = in[x_in];
    if (in[bits_in].defined())
        g = masked_fill(g, logical_not(unpacked(in[bits_in], g.numel())).reshape(g.shape()), 0);
    Tensor average = in[mean_in], rstd = in[rstd_in];
    if (at.batch_statistics) {
        const Statistics s = batch_statistics(x);
        average = s.mean;
        rstd = rsqrt(s.variance + at.eps);
    }
    const Tensor normal = (x - average) * rstd, scale = in[weight_in] * rstd;
    const Tensor dx =
        at.batch_statistics ? scale * (g - mean(g, {0}) - normal * mean(g * normal, {0})) : scale * g;
    return {dx, g, sum(g * normal, {0}), sum(g, {0})};
}

const Op<kernels::BatchNormGrad> batch_norm_grad_op{
    {.name = "batch_norm_grad", .mixed = true, .first_float32_result = 2},
    nullptr,
    batch_norm_grad_decomposition};

Tensors batch_norm_vjp(const Node& c, const kernels::BatchNorm& at, const Tensors& g) {
    const Shape &vector = c.inputs[weight_input].shape, &image = c.inputs[x_input].shape;
    const bool masked_residual = at.relu && c.needs(residual_input);
    const Shape shapes[] = {image, masked_residual ? image : Shape{0}, vector, vector};
    // Bits and statistics are functions of x, whose part in the gradient the op itself accounts for.
    const Tensor bits = at.relu ? c.out(1).detach() : Tensor();
    const Tensors grads =
        call(batch_norm_grad_op,
             Tensors{g[0], c.in(x_input), c.in(weight_input), bits, c.out(2).detach(), c.out(3).detach()},
             {.batch_statistics = at.batch_statistics, .eps = at.eps}, shapes, c.grad_dtype(x_input));
    Tensors result(input_count);
    result[x_input] = grads[0];
    result[weight_input] = grads[2];
    result[bias_input] = grads[3];
    if (c.needs(residual_input)) result[residual_input] = at.relu ? grads[1] : g[0];
    return result;
}

const Op<kernels::BatchNorm> batch_norm_op{{.name = "batch_norm",
                                            .saves = save_first | save_second | save_statistics,
                                            .mixed = true,
                                            .first_float32_result = 2,
                                            .bits_result = 1},
                                           batch_norm_vjp,
                                           batch_norm_decomposition};

void check_counter(const Tensor& counter) {
    check(counter.dtype() == int64 && counter.dim() == 0, ErrorKind::dtype,
          "batch_norm: num_batches_tracked is ", counter.dtype(), " ", counter.shape(),
          ", but must be one int64; make it with scalar(0, {.dtype = int64})");
}

void check_batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                      const BatchNormOptions& options) {
    const char* op = "batch_norm";
    check_rows(op, x);
    check_eps(op, options.eps);
    check(running_mean.defined() == running_var.defined(), ErrorKind::value,
          "batch_norm: one of running_mean and running_var is undefined; pass both or neither");
    const bool updated = options.training && running_mean.defined();
    check_running(op, "running_mean", running_mean, x, updated);
    check_running(op, "running_var", running_var, x, updated);
    const Tensor& residual = options.residual;
    if (residual.defined()) {
        check_same_shape(op, x, residual);
        check(residual.dtype() == x.dtype(), ErrorKind::dtype, "batch_norm: input is ", x.dtype(),
              ", the residual ", residual.dtype(), "; convert one with to()");
    }
    if (!updated) return;
    const bool cumulative = std::isnan(options.momentum);
    check(cumulative || (options.momentum >= 0 && options.momentum <= 1), ErrorKind::value,
          "batch_norm: momentum is ", options.momentum,
          "; it must be in [0, 1], or NaN for the mean over all batches");
    check(!cumulative || options.num_batches_tracked.defined(), ErrorKind::value,
          "batch_norm: momentum NaN needs num_batches_tracked");
    if (options.num_batches_tracked.defined()) check_counter(options.num_batches_tracked);
}

// Updates the running statistics as the kernel does, for calls that run the decomposition.
void update_running_by_batch(const Tensors& in, const kernels::BatchNorm& at) {
    NoGrad plain;
    NoAutocast no_casts;
    const Tensor x = widened(in[x_input]);
    const Statistics s = batch_statistics(x);
    update_running({in[running_mean_input], in[running_var_input], in[batches_input]}, s.mean, s.variance,
                   double(x.size(0)), at.momentum);
}

// Counts an in-place write of a kernel in the tensor's version.
void note_written(const Tensor& x) {
    if (x.defined() && x->storage) x->storage->version.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

void update_running(const RunningStatistics& running, const Tensor& mean, const Tensor& variance, double n,
                    double momentum) {
    NoGrad plain;
    NoAutocast no_casts;
    const Tensor& batches = running.batches;
    if (n == 0) {
        if (batches.defined()) batches.add_(ones({}, {.dtype = int64, .device = batches.device()}));
        return;
    }
    const Tensor share = std::isnan(momentum) ? 1.0 / (cast(batches, float32) + 1.0)
                                              : scalar(momentum, {.device = mean.device()});
    const auto next = [&](const Tensor& before, const Tensor& batch) {
        return (widened(before) * (1.0 - share) + batch * share).to(before.dtype());
    };
    const Tensor next_mean = next(running.mean, mean),
                 next_variance = next(running.variance, variance * (n / (n - 1)));
    const Tensor finite = logical_and(isfinite(next_mean), isfinite(next_variance)),
                 all_finite = eq(sum(logical_not(finite)), 0.0);
    if (batches.defined()) batches.add_(cast(all_finite, int64));
    running.mean.copy_(where(all_finite, next_mean, running.mean));
    running.variance.copy_(where(all_finite, next_variance, running.variance));
}

Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, const BatchNormOptions& options) {
    check_batch_norm(x, running_mean, running_var, options);
    const Tensor w = row_vector("batch_norm", "weight", weight, x, 1),
                 b = row_vector("batch_norm", "bias", bias, x, 0), rows = matrix_of(x);
    const bool tracks = running_mean.defined();
    const kernels::BatchNorm at{
        .batch_statistics = options.training || !tracks,
        .update = options.training && tracks && !thread_state.recomputing && rows.size(0) > 0,
        .relu = options.relu,
        .momentum = options.momentum,
        .eps = options.eps};
    check(!at.batch_statistics || rows.size(0) != 1, ErrorKind::value, "batch_norm: input ", x.shape(),
          " has a single value per channel, which has no variance; training needs several");
    const Tensors in{rows,
                     w,
                     b,
                     options.residual.defined() ? matrix_of(options.residual) : Tensor(),
                     running_mean,
                     running_var,
                     at.update ? options.num_batches_tracked : Tensor()};
    const Shape per_channel{x.size(-1)},
        shapes[] = {rows.shape(), {at.relu ? (x.numel() + 7) / 8 : 0}, per_channel, per_channel};
    const std::size_t results = recording(x, w, b, options.residual) ? 4 : 1;
    const Tensor y = call(batch_norm_op, in, at, std::span(shapes, results))[0];
    if (options.training && tracks && !thread_state.recomputing && rows.size(0) == 0)
        update_running({running_mean, running_var, options.num_batches_tracked}, {}, {}, 0, options.momentum);
    if (at.update && (thread_state.prefer_decomposition || !batch_norm_op.kernel(x.device().type()))) {
        update_running_by_batch(in, at);
    } else if (at.update) {
        for (int i = running_mean_input; i <= batches_input; ++i) note_written(in[std::size_t(i)]);
    }
    return y.reshape(x.shape());
}

}  // namespace mezzo
