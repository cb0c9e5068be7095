// instance_norm: group_norm with a group for each channel, and its running statistics. local_response_norm.
#include "autograd/autocast_state.h"
#include "autograd/op_observer.h"
#include "core/thread_state.h"
#include "mezzo/image_ops.h"
#include "ops/norm/norm_common.h"
#include "ops/norm/running_statistics.h"

namespace mezzo {

namespace {

// Updates the running statistics with the means of mean and variance over the samples of x [N, ..., C].
void update_running_by_samples(const RunningStatistics& running, const Tensor& x, double momentum) {
    NoGrad plain;
    NoAutocast no_casts;
    const std::int64_t n = x.size(0), c = x.size(-1), pixels = x.numel() / (n * c);
    const Tensor rows = widened(x).reshape({n, pixels, c}), average = mean(rows, {1}, keep_dims());
    update_running(running, mean(average, {0, 1}), mean(square(rows - average), {0, 1}), double(pixels),
                   momentum);
}

struct LocalResponseNorm {
    static constexpr const char* name = "local_response_norm";
    std::int64_t size = 1;
    LocalResponseNormOptions options = {};
};

const Op<LocalResponseNorm> local_response_norm_op{
    {.cast = CastPolicy::fp32}, nullptr, [](In in, const LocalResponseNorm& at) -> Tensors {
        const Tensor squares = pad(square(in[0]), {{-1, at.size / 2, (at.size - 1) / 2}});
        Tensor sum = squares.slice(-1, 0, in[0].size(-1));
        for (std::int64_t i = 1; i < at.size; ++i) sum = sum + squares.slice(-1, i, i + in[0].size(-1));
        const LocalResponseNormOptions& o = at.options;
        return {in[0] / pow(sum * (o.alpha / double(at.size)) + o.k, o.beta)};
    }};

}  // namespace

Tensor instance_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                     const Tensor& weight, const Tensor& bias, const InstanceNormOptions& options) {
    const char* op = "instance_norm";
    const CompositeOp here(op);
    check_rows(op, x);
    check_eps(op, options.eps);
    check(x.dim() >= 3, ErrorKind::shape, op, ": input ", x.shape(),
          " is not [batch, ..., channels] with a dimension between");
    check(running_mean.defined() == running_var.defined(), ErrorKind::value, op,
          ": one of running_mean and running_var is undefined; pass both or neither");
    const bool tracks = running_mean.defined(), updates = options.use_input_stats && tracks;
    check_running(op, "running_mean", running_mean, x, updates);
    check_running(op, "running_var", running_var, x, updates);
    if (!options.use_input_stats) {
        check(tracks, ErrorKind::value, op,
              ": use_input_stats is false, but there are no running statistics");
        return batch_norm(x, running_mean, running_var, weight, bias,
                          {.training = false, .eps = options.eps});
    }
    const Tensor w = row_vector(op, "weight", weight, x, 1), b = row_vector(op, "bias", bias, x, 0);
    std::int64_t pixels = 1;
    for (int d = 1; d + 1 < x.dim(); ++d) pixels *= x.size(d);
    check(pixels != 1, ErrorKind::value, op, ": input ", x.shape(),
          " has a single value per channel, which has no variance");
    if (x.numel() == 0) return x.clone();
    if (updates) {
        check(options.momentum >= 0 && options.momentum <= 1, ErrorKind::value, op, ": momentum is ",
              options.momentum, "; it must be in [0, 1]");
        if (!thread_state.recomputing)
            update_running_by_samples({running_mean, running_var, {}}, x, options.momentum);
    }
    const NoAutocast keeps_dtype;
    return group_norm(x, x.size(-1), w, b, options.eps);
}

Tensor local_response_norm(const Tensor& x, std::int64_t size, const LocalResponseNormOptions& options) {
    const char* op = "local_response_norm";
    check_floating(op, x);
    check(x.dim() >= 3, ErrorKind::shape, op, ": input ", x.shape(), " has fewer than three dimensions");
    check(size > 0 && size < std::int64_t(1) << 31, ErrorKind::value, op, ": size ", size,
          " is not in [1, 2^31)");
    return call(local_response_norm_op, {x}, {.size = size, .options = options}, x.shape());
}

}  // namespace mezzo
