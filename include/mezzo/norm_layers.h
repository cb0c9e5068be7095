// Batch, instance and group normalisation as layers, with PyTorch's names, defaults and initial values.
// Channels are the last dimension.
//
//   const nn::BatchNorm2d norm(64);
//   y = norm(x);  // x [32, 56, 56, 64]
//   y = norm(x, {.relu = true, .residual = y});
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "mezzo/callback.h"
#include "mezzo/image_ops.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// The momentum that makes running statistics the mean over all batches: PyTorch's momentum=None.
inline constexpr double cumulative_average = std::numeric_limits<double>::quiet_NaN();

struct BatchNormLayerOptions {
    double eps = 1e-5;
    double momentum = 0.1;  // share of each batch in the running statistics, or cumulative_average
    bool affine = true;     // false: neither weight nor bias
    bool bias = true;
    bool track_running_stats = true;  // false: the batch's statistics also after eval()
    Device device = cpu_device;
    Dtype dtype = float32;
};

// Ops fused into a call of a batch norm: norm(x, {.relu = true, .residual = r}).
struct BatchNormCall {
    bool relu = false;     // max(y, 0), after the residual is added
    Tensor residual = {};  // like x or undefined: added to the result
};

class BatchNorm;
// Function that computes the result of a batch norm's call.
using BatchNormFunction =
    autograd::Callback<Tensor(const Tensor& x, const BatchNorm& layer, const BatchNormCall& also)>;

// Base class of BatchNorm1d, BatchNorm2d and BatchNorm3d. Calls in training mode write the running
// statistics, so two threads must not train the same layer at once.
class BatchNorm : public Module {
public:
    std::string describe() const override;
    bool is_normalization() const override { return true; }

    Parameter weight;            // [num_features], starts as 1; undefined unless affine
    Parameter bias;              // [num_features], starts as 0; undefined unless affine and with bias
    Buffer running_mean;         // [num_features], starts as 0; these three are undefined unless tracked
    Buffer running_var;          // [num_features], starts as 1
    Buffer num_batches_tracked;  // int64, 0-dim
    std::int64_t num_features;
    double eps, momentum;
    // True after fuse_batch_norms() (mezzo/fusion.h): the tensors above are undefined, because a layer before
    // this one has them in its weight. A call adds the residual and applies the ReLU.
    bool folded = false;
    // Replaces batch_norm() in training calls; set by distributed::convert_sync_batchnorm()
    // (mezzo/distributed/sync_batch_norm.h).
    std::optional<BatchNormFunction> synchronised;
    MEZZO_MODULE(BatchNorm, weight, bias, running_mean, running_var, num_batches_tracked)

protected:
    BatchNorm(const char* module, std::int64_t features, const BatchNormLayerOptions& options);
    Tensor normalised(const Tensor& x, const BatchNormCall& also) const;
};

// batch_norm of features [N, C] or signals [N, L, C].
class BatchNorm1d : public BatchNorm {
public:
    // Error(value) unless num_features is positive, eps not negative, and momentum in [0, 1] or NaN.
    explicit BatchNorm1d(std::int64_t features, const BatchNormLayerOptions& options = {})
        : BatchNorm("BatchNorm1d", features, options) {}
    // Error(shape) for an input of another number of dimensions or channels; otherwise as batch_norm().
    [[nodiscard]] Tensor operator()(const Tensor& x, const BatchNormCall& also = {}) const;
    const char* type_name() const override { return "BatchNorm1d"; }
};

// batch_norm of images [N, H, W, C].
class BatchNorm2d : public BatchNorm {
public:
    // Errors are those of BatchNorm1d.
    explicit BatchNorm2d(std::int64_t features, const BatchNormLayerOptions& options = {})
        : BatchNorm("BatchNorm2d", features, options) {}
    [[nodiscard]] Tensor operator()(const Tensor& x, const BatchNormCall& also = {}) const;
    const char* type_name() const override { return "BatchNorm2d"; }
};

// batch_norm of volumes [N, D, H, W, C].
class BatchNorm3d : public BatchNorm {
public:
    // Errors are those of BatchNorm1d.
    explicit BatchNorm3d(std::int64_t features, const BatchNormLayerOptions& options = {})
        : BatchNorm("BatchNorm3d", features, options) {}
    [[nodiscard]] Tensor operator()(const Tensor& x, const BatchNormCall& also = {}) const;
    const char* type_name() const override { return "BatchNorm3d"; }
};

// Makes the running statistics of all batch norms in `net` the means over the batches of one pass: pass()
// calls `net` with each of them. It runs in training mode and without gradients; momentum and modes are as
// before afterwards, also if pass() throws. For weights that are not those of the training, such as those of
// optim::AveragedModel::copy_to().
void update_bn(Module& net, const autograd::Callback<void()>& pass);

struct InstanceNormLayerOptions {
    double eps = 1e-5;
    double momentum = 0.1;  // share of each batch in the running statistics
    bool affine = false;    // true: weight and bias
    bool bias = true;
    bool track_running_stats = false;  // true: eval() normalises with the running statistics
    Device device = cpu_device;
    Dtype dtype = float32;
};

// Base class of InstanceNorm1d, InstanceNorm2d and InstanceNorm3d.
class InstanceNorm : public Module {
public:
    std::string describe() const override;
    bool is_normalization() const override { return true; }

    Parameter weight;            // [num_features], starts as 1; undefined unless affine
    Parameter bias;              // [num_features], starts as 0; undefined unless affine and with bias
    Buffer running_mean;         // [num_features], starts as 0; these three are undefined unless tracked
    Buffer running_var;          // [num_features], starts as 1
    Buffer num_batches_tracked;  // int64, 0-dim: stays 0, as in PyTorch
    std::int64_t num_features;
    double eps, momentum;
    MEZZO_MODULE(InstanceNorm, weight, bias, running_mean, running_var, num_batches_tracked)

protected:
    InstanceNorm(const char* module, std::int64_t features, const InstanceNormLayerOptions& options);
    Tensor normalised(const Tensor& x, int dims) const;
};

// instance_norm of signals, images and volumes. Error(value) unless num_features is positive, eps not
// negative, and momentum in [0, 1]; Error(shape) for an input of another number of dimensions or channels.
#define MEZZO_INSTANCE_NORM(Class, dims)                                                       \
    class Class : public InstanceNorm {                                                        \
    public:                                                                                    \
        explicit Class(std::int64_t features, const InstanceNormLayerOptions& options = {})    \
            : InstanceNorm(#Class, features, options) {}                                       \
        [[nodiscard]] Tensor operator()(const Tensor& input) const {                           \
            return with_hooks([this](const Tensor& x) { return normalised(x, dims); }, input); \
        }                                                                                      \
        const char* type_name() const override { return #Class; }                              \
    };
MEZZO_INSTANCE_NORM(InstanceNorm1d, 3)
MEZZO_INSTANCE_NORM(InstanceNorm2d, 4)
MEZZO_INSTANCE_NORM(InstanceNorm3d, 5)
#undef MEZZO_INSTANCE_NORM

// local_response_norm over `size` channels.
class LocalResponseNorm : public Module {
public:
    explicit LocalResponseNorm(std::int64_t channels, const LocalResponseNormOptions& norm_options = {})
        : size(channels), options(norm_options) {}
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([this](const Tensor& x) { return local_response_norm(x, size, options); }, input);
    }
    std::string describe() const override;

    std::int64_t size;
    LocalResponseNormOptions options;
    MEZZO_MODULE(LocalResponseNorm)
};

struct GroupNormLayerOptions {
    double eps = 1e-5;
    bool affine = true;  // false: neither weight nor bias
    bool bias = true;
    Device device = cpu_device;
    Dtype dtype = float32;
};

// group_norm over num_groups groups of num_channels channels.
class GroupNorm : public Module {
public:
    // Error(value) unless num_groups is positive and divides num_channels, and eps is not negative.
    GroupNorm(std::int64_t groups, std::int64_t channels, const GroupNormLayerOptions& options = {});
    [[nodiscard]] Tensor operator()(const Tensor& x) const;
    std::string describe() const override;
    bool is_normalization() const override { return true; }

    Parameter weight;  // [num_channels], starts as 1; undefined unless affine
    Parameter bias;    // [num_channels], starts as 0; undefined unless affine and with bias
    std::int64_t num_groups, num_channels;
    double eps;
    MEZZO_MODULE(GroupNorm, weight, bias)
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
