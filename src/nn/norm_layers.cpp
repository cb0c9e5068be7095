#include "mezzo/norm_layers.h"
#include "mezzo/eval_mode.h"
#include "mezzo/module_scope.h"

#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo::nn {

namespace {

template <class Options> void add_affine(const char* module, Parameter& weight, Parameter& bias,
                                         std::int64_t n, const Options& options) {
    check(options.eps >= 0, ErrorKind::value, module, ": eps ", options.eps, " is negative or not a number");
    if (!options.affine) return;
    const TensorOptions like{.dtype = options.dtype, .device = options.device};
    weight = Parameter(ones({n}, like));
    if (options.bias) bias = Parameter(zeros({n}, like));
}

}  // namespace

BatchNorm::BatchNorm(const char* module, std::int64_t features, const BatchNormLayerOptions& options)
    : num_features(features), eps(options.eps), momentum(options.momentum) {
    check(features > 0, ErrorKind::value, module, ": num_features is ", features, "; it must be positive");
    check(std::isnan(momentum) || (momentum >= 0 && momentum <= 1), ErrorKind::value, module,
          ": momentum is ", momentum, "; it must be in [0, 1], or cumulative_average");
    add_affine(module, weight, bias, features, options);
    if (!options.track_running_stats) return;
    const TensorOptions like{.dtype = options.dtype, .device = options.device};
    running_mean = Buffer(zeros({features}, like));
    running_var = Buffer(ones({features}, like));
    num_batches_tracked = Buffer(zeros({}, {.dtype = int64, .device = options.device}));
}

std::string BatchNorm::describe() const {
    return fmt::format("{}, eps={:g}, momentum={}, affine={}, bias={}, track_running_stats={}{}",
                       num_features, eps, std::isnan(momentum) ? "none" : fmt::format("{:g}", momentum),
                       weight.defined(), bias.defined(), running_mean.defined(),
                       folded         ? ", folded"
                       : synchronised ? ", synchronised"
                                      : "");
}

Tensor BatchNorm::normalised(const Tensor& x, const BatchNormCall& also) const {
    check(x.size(-1) == num_features, ErrorKind::shape, type_name(), ": input ", x.shape(), " has ",
          x.size(-1), " channels in its last dimension, the layer ", num_features,
          "; channels come last: permute() an input that has them second");
    if (folded) {
        check(!training(), ErrorKind::state, type_name(),
              ": in training mode, but fuse_batch_norms() has folded it into the layer before; call eval()");
        const Tensor y = also.residual.defined() ? x + also.residual : x;
        return also.relu ? relu(y) : y;
    }
    if (synchronised && training()) return (*synchronised)(x, *this, also);
    return batch_norm(x, running_mean, running_var, weight, bias,
                      {.training = training(),
                       .momentum = momentum,
                       .eps = eps,
                       .relu = also.relu,
                       .residual = also.residual,
                       .num_batches_tracked = num_batches_tracked});
}

Tensor BatchNorm1d::operator()(const Tensor& x, const BatchNormCall& also) const {
    const ModuleScope here(*this);
    check(x.dim() == 2 || x.dim() == 3, ErrorKind::shape, "BatchNorm1d: input ", x.shape(),
          " is neither [batch, channels] nor [batch, length, channels]");
    return with_hooks([&](const Tensor& in) { return normalised(in, also); }, x);
}

Tensor BatchNorm2d::operator()(const Tensor& x, const BatchNormCall& also) const {
    const ModuleScope here(*this);  // the view that gives rows their shape again is its own
    check(x.dim() == 4, ErrorKind::shape, "BatchNorm2d: input ", x.shape(),
          " is not [batch, height, width, channels]");
    return with_hooks([&](const Tensor& in) { return normalised(in, also); }, x);
}

Tensor BatchNorm3d::operator()(const Tensor& x, const BatchNormCall& also) const {
    const ModuleScope here(*this);
    check(x.dim() == 5, ErrorKind::shape, "BatchNorm3d: input ", x.shape(),
          " is not [batch, depth, height, width, channels]");
    return with_hooks([&](const Tensor& in) { return normalised(in, also); }, x);
}

void update_bn(Module& net, const autograd::Callback<void()>& pass) {
    // Batch norms whose momentum is cumulative_average for the time of the pass.
    struct Averaging {
        ~Averaging() {
            // In reverse: a norm that occurs twice has its own momentum in the first entry.
            for (auto it = norms.rbegin(); it != norms.rend(); ++it) it->first->momentum = it->second;
        }
        std::vector<std::pair<BatchNorm*, double>> norms;
    } averaging;
    const NoGrad no_grad;
    for (const auto& [path, module] : net.named_modules()) {
        auto* const norm = dynamic_cast<BatchNorm*>(module);
        if (norm == nullptr || !norm->running_mean.defined()) continue;
        norm->running_mean.zero_();
        norm->running_var.copy_(ones_like(norm->running_var));
        norm->num_batches_tracked.zero_();
        averaging.norms.emplace_back(norm, norm->momentum);
        norm->momentum = cumulative_average;
    }
    if (averaging.norms.empty()) return;
    const EvalMode modes(net);  // restores them
    net.train();
    pass();
}

InstanceNorm::InstanceNorm(const char* module, std::int64_t features, const InstanceNormLayerOptions& options)
    : num_features(features), eps(options.eps), momentum(options.momentum) {
    check(features > 0, ErrorKind::value, module, ": num_features is ", features, "; it must be positive");
    check(momentum >= 0 && momentum <= 1, ErrorKind::value, module, ": momentum is ", momentum,
          "; it must be in [0, 1]");
    add_affine(module, weight, bias, features, options);
    if (!options.track_running_stats) return;
    const TensorOptions like{.dtype = options.dtype, .device = options.device};
    running_mean = Buffer(zeros({features}, like));
    running_var = Buffer(ones({features}, like));
    num_batches_tracked = Buffer(zeros({}, {.dtype = int64, .device = options.device}));
}

std::string InstanceNorm::describe() const {
    return fmt::format("{}, eps={:g}, momentum={:g}, affine={}, bias={}, track_running_stats={}",
                       num_features, eps, momentum, weight.defined(), bias.defined(), running_mean.defined());
}

Tensor InstanceNorm::normalised(const Tensor& x, int dims) const {
    const ModuleScope here(*this);
    check(x.dim() == dims && x.size(-1) == num_features, ErrorKind::shape, type_name(), ": input ", x.shape(),
          " does not have ", dims, " dimensions, of which the last has ", num_features,
          " channels; permute() an input that has them second");
    return instance_norm(
        x, running_mean, running_var, weight, bias,
        {.use_input_stats = training() || !running_mean.defined(), .momentum = momentum, .eps = eps});
}

std::string LocalResponseNorm::describe() const {
    return fmt::format("{}, alpha={:g}, beta={:g}, k={:g}", size, options.alpha, options.beta, options.k);
}

GroupNorm::GroupNorm(std::int64_t groups, std::int64_t channels, const GroupNormLayerOptions& options)
    : num_groups(groups), num_channels(channels), eps(options.eps) {
    check(groups > 0 && channels > 0 && channels % groups == 0, ErrorKind::value, "GroupNorm: ", groups,
          " groups do not divide ", channels, " channels");
    add_affine("GroupNorm", weight, bias, channels, options);
}

Tensor GroupNorm::operator()(const Tensor& input) const {
    return with_hooks([this](const Tensor& x) { return group_norm(x, num_groups, weight, bias, eps); },
                      input);
}

std::string GroupNorm::describe() const {
    return fmt::format("{}, {}, eps={:g}, affine={}, bias={}", num_groups, num_channels, eps,
                       weight.defined(), bias.defined());
}

}  // namespace mezzo::nn
