#include "mezzo/distributed/sync_batch_norm.h"

#include "autograd/autocast_state.h"
#include "core/step_recorder.h"
#include "core/tensor_impl.h"
#include "core/thread_state.h"
#include "distributed/call_record.h"
#include "mezzo/autograd.h"
#include "mezzo/norm_layers.h"
#include "mezzo/ops.h"
#include "mezzo/reduce_ops.h"
#include "ops/norm/running_statistics.h"

namespace mezzo::distributed {

namespace {

// Mean and variance per channel over the rows of all ranks.
struct Moments {
    Tensor mean, variance;  // float32, or float64 for float64; the variance is the biased one
    double count = 0;       // values
};

Tensor widened(const Tensor& x) { return is_16bit(x.dtype()) ? x.to(float32) : x; }

// Returns [2, C] in host memory: the mean, and the sum of squared differences from it; zeros if there are no
// rows.
Tensor own_moments(const Tensor& rows) {
    const std::int64_t n = rows.size(0);
    if (n == 0) return zeros({2, rows.size(1)}, {.dtype = float64});
    const VarMean of = var_mean(widened(rows), {0}, {.correction = 0});
    return stack({of.mean, of.var * double(n)}, 0).to(float64).to(cpu_device);
}

// Combines the moments of each rank, in the order of the ranks (Chan, Golub and LeVeque 1979).
Tensor combined(const Tensor& each, const std::vector<Record>& counts, double total) {
    Tensor mean = zeros_like(each[0][0]), squares = zeros_like(mean);
    for (std::size_t r = 0; r < counts.size(); ++r)
        mean.add_(each[std::int64_t(r)][0] * (double(counts[r].elements) / total));
    for (std::size_t r = 0; r < counts.size(); ++r) {
        const Tensor of = each[std::int64_t(r)];
        squares.add_(of[1] + square(of[0] - mean) * double(counts[r].elements));
    }
    return stack({mean, squares * (1 / total)}, 0);
}

Moments moments_of_all(const Tensor& rows, GroupImpl& group) {
    const NoGrad plain;
    const NoAutocast as_they_are;
    const std::int64_t channels = rows.size(1);
    const Tensor mine = own_moments(rows),
                 each = empty({group.place().size, 2, channels}, {.dtype = float64});
    std::vector<Record> all;
    group.run([&](Collectives& engine) {
        all = agree(engine, group,
                    {.call = Call::moments,
                     .dtype = rows.dtype(),
                     .elements = rows.size(0),
                     .shape = std::uint64_t(channels)});
        engine.all_gather(raw(mine), raw(each), std::size_t(mine.numel()) * sizeof(double));
    });
    Moments result;
    for (const Record& record : all) result.count += double(record.elements);
    check(result.count > 1, ErrorKind::value, "SyncBatchNorm: all ranks together have ", result.count,
          " values per channel; a variance needs at least two");
    const Dtype dtype = rows.dtype() == float64 ? float64 : float32;
    const Tensor both = combined(each, all, result.count).to(dtype).to(rows.device());
    result.mean = both[0];
    result.variance = both[1];
    return result;
}

// Returns the sum over all ranks, with the same bits on each.
Tensor sum_of_all(const Tensor& x, GroupImpl& group) {
    const Tensor host = x.to(cpu_device).contiguous();
    group.run([&](Collectives& engine) {
        agree(engine, group,
              {.call = Call::moments_grad,
               .dtype = host.dtype(),
               .elements = host.numel(),
               .shape = std::uint64_t(host.numel())});
        engine.all_reduce(raw(host), host.numel(), host.dtype(), ReduceOp::sum);
    });
    return host.to(x.device());
}

// Returns the rows, and adds the gradient of mean and variance, which the normalisation takes for constants.
// Both depend on every row of every rank: the gradient g becomes g - mean(g) - x_hat mean(g x_hat), where
// x_hat are the normalised rows and the means are over all ranks.
Tensor with_moments_gradient(const Tensor& rows, const Moments& of, double eps, const Group& group) {
    const auto forward = [&](autograd::Context& context, const Tensors& in) {
        context.saved = {in[0], of.mean, rsqrt(of.variance + eps)};
        context.scalars[0] = of.count;
        return Tensors{in[0].detach()};
    };
    const auto backward = [group](autograd::Context& context, const Tensors& gradients) {
        check(!grad_enabled(), ErrorKind::state,
              "SyncBatchNorm: second derivatives across ranks are not recorded; use batch norms that are not "
              "synchronised, or no create_graph");
        const NoAutocast as_they_are;
        const Tensor g = widened(gradients[0]);
        const Tensor normal = (widened(context.saved[0]) - context.saved[1]) * context.saved[2];
        const Tensor sums = sum_of_all(stack({sum(g, {0}), sum(g * normal, {0})}, 0), group.impl()) *
                            (1 / context.scalars[0]);
        return Tensors{(g - sums[0] - normal * sums[1]).to(gradients[0].dtype())};
    };
    return autograd::apply_function({.name = "SyncBatchNorm"}, forward, backward, {rows})[0];
}

void update_running_of(const nn::BatchNorm& layer, const Moments& of) {
    if (!layer.running_mean.defined() || thread_state.recomputing) return;
    update_running({layer.running_mean, layer.running_var, layer.num_batches_tracked}, of.mean, of.variance,
                   of.count, layer.momentum);
}

Tensor synchronised(const Tensor& x, const nn::BatchNorm& layer, const nn::BatchNormCall& also,
                    const Group& group) {
    refuse_in_capture("SyncBatchNorm", "exchange statistics between processes");
    const std::int64_t channels = x.size(-1);
    const Tensor rows = x.reshape({x.numel() / channels, channels});
    const Moments of = moments_of_all(rows.detach(), group.impl());
    const Tensor coupled = with_moments_gradient(rows, of, layer.eps, group).reshape(x.shape());
    const Tensor y =
        batch_norm(coupled, of.mean, of.variance, layer.weight, layer.bias,
                   {.training = false, .eps = layer.eps, .relu = also.relu, .residual = also.residual});
    update_running_of(layer, of);
    return y;
}

}  // namespace

int convert_sync_batchnorm(nn::Module& module, const Group& group) {
    int count = 0;
    for (const auto& [path, inner] : module.named_modules()) {
        auto* const layer = dynamic_cast<nn::BatchNorm*>(inner);
        if (layer == nullptr) continue;
        ++count;
        if (group.size() > 1)
            layer->synchronised = [group](const Tensor& x, const nn::BatchNorm& self,
                                          const nn::BatchNormCall& also) {
                return synchronised(x, self, also, group);
            };
    }
    return count;
}

}  // namespace mezzo::distributed
