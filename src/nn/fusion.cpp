#include "mezzo/fusion.h"

#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "autograd/op_observer.h"
#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo::nn {

namespace {

// The elements of a vector with a value for each channel, in float64; all `missing` if it is undefined.
Tensor channel_values(const char* function, const char* what, const Tensor& x, std::int64_t channels,
                      double missing, Device device) {
    if (!x.defined()) return full({channels}, missing, {.dtype = float64, .device = device});
    check(x.dim() == 1 && x.size(0) == channels, ErrorKind::shape, function, ": ", what, " ", x.shape(),
          " is not [", channels, "], one element for each channel of the result");
    return x.detach().to(float64);
}

// The weight with each channel of the result multiplied by its factor. The channels are the first dimension;
// of a transposed convolution they are the last one in each group of the first.
Tensor scaled(const Tensor& weight, const Tensor& factors, bool transposed) {
    const std::int64_t channels = factors.size(0);
    const Tensor w = weight.detach().to(float64);
    if (weight.numel() == 0) return w;
    if (!transposed) return (w.reshape({channels, -1}) * factors.unsqueeze(1)).reshape(weight.shape());
    const std::int64_t each = weight.size(-1), groups = channels / each;
    return (w.reshape({groups, -1, each}) * factors.reshape({groups, 1, each})).reshape(weight.shape());
}

FusedWeights fused(const char* function, const Tensor& weight, const Tensor& bias, const Tensor& mean,
                   const Tensor& variance, double eps, const Tensor& norm_weight, const Tensor& norm_bias,
                   bool transposed) {
    check(weight.defined() && weight.dim() >= 2, ErrorKind::shape, function, ": weight ",
          weight.defined() ? weight.shape() : Shape(), " has fewer than two dimensions");
    check(!is_quantized(weight), ErrorKind::dtype, function,
          ": the weight is in 8 bit; fuse before quantize_weights(), or a layer of dequantize_weight()");
    check(mean.defined() && variance.defined(), ErrorKind::value, function,
          ": the batch norm has no running statistics; it normalises with those of each batch");
    const NoGrad plain;
    const std::int64_t channels = transposed ? mean.numel() : weight.size(0);
    check(!transposed || (weight.size(-1) > 0 && channels % weight.size(-1) == 0), ErrorKind::shape, function,
          ": running_mean ", mean.shape(), " does not fit a transposed weight ", weight.shape());
    const auto values = [&](const char* what, const Tensor& x, double missing) {
        return channel_values(function, what, x, channels, missing, weight.device());
    };
    // One after the other, so that the first of two errors does not depend on the compiler.
    const Tensor var = values("running_var", variance, 0), center = values("running_mean", mean, 0);
    const Tensor factors = values("the batch norm's weight", norm_weight, 1) * rsqrt(var + eps);
    const Tensor shift = (values("bias", bias, 0) - center) * factors;
    const Tensor moved = shift + values("the batch norm's bias", norm_bias, 0);
    const Tensor& like = bias.defined() ? bias : weight;
    FusedWeights result{Parameter(scaled(weight, factors, transposed).to(weight.dtype())),
                        Parameter(moved.to(like.dtype()))};
    result.weight.set_requires_grad(weight.requires_grad());
    keep_fp8(result.weight, weight);
    result.bias.set_requires_grad(like.requires_grad());
    return result;
}

// A layer that a batch norm may be folded into, and what the pass showed of it.
struct Layer {
    Module* module;
    Parameter *weight, *bias;
    bool transposed;
    int calls = 0;
    Tensor result = {};
    bool read = false;    // by a batch norm
    bool shared = false;  // something else reads the result, too
};
struct Norm {
    BatchNorm* module;
    int calls = 0;
    Layer* before = nullptr;  // whose result it reads
};

// Adds a layer of this very type: a derived one may compute with another weight, as weight_norm() does.
template <class M> bool add_layer(std::vector<Layer>& layers, Module* module, bool transposed) {
    if (typeid(*module) != typeid(M)) return false;
    auto* const layer = static_cast<M*>(module);
    layers.push_back({layer, &layer->weight, &layer->bias, transposed});
    return true;
}

BatchNorm* as_batch_norm(Module* module) {
    const std::type_info& type = typeid(*module);
    const bool exact =
        type == typeid(BatchNorm1d) || type == typeid(BatchNorm2d) || type == typeid(BatchNorm3d);
    return exact ? static_cast<BatchNorm*>(module) : nullptr;
}

bool same_memory(const Tensor& x, const Tensor& y) {
    return x.defined() && y.defined() && x.impl()->storage && x.impl()->storage == y.impl()->storage;
}

// The layers and batch norms of a module, and the hooks and the observer that record one pass.
class Recording final : OpObserver {
public:
    explicit Recording(Module& net) {
        for (const auto& [path, module] : net.named_modules()) add(path, module);
        for (Layer& layer : layers_)
            handles_.push_back(layer.module->register_forward_hook(
                [&layer](const Module&, const Tensors&, Tensors& outputs) {
                    ++layer.calls;
                    layer.result = outputs[0];
                }));
        for (Norm& norm : norms_) {
            handles_.push_back(
                norm.module->register_forward_pre_hook([this, &norm](const Module&, Tensors& inputs) {
                    ++norm.calls;
                    for (Layer& layer : layers_)
                        if (same_memory(layer.result, inputs[0])) {
                            layer.shared = layer.shared || layer.read;
                            layer.read = true;
                            norm.before = &layer;
                        }
                    running_ = &norm;
                }));
            handles_.push_back(norm.module->register_forward_hook(
                [this](const Module&, const Tensors&, Tensors&) { running_ = nullptr; }));
        }
    }
    ~Recording() override {
        for (const RemovableHandle& handle : handles_) handle.remove();
    }

    // Folds the batch norms whose pairs the pass has found. results: those of the pass.
    std::int64_t fold(const Tensors& results) {
        read(results);
        struct Folded {
            Norm* norm;
            FusedWeights weights;
        };
        std::vector<Folded> all;
        for (Norm& norm : norms_) {
            const Layer* const layer = norm.before;
            if (norm.calls != 1 || !layer || layer->calls != 1 || layer->shared || held(layer->result))
                continue;
            all.push_back({&norm, detail::folded("fuse_batch_norms", *layer->module, *layer->weight,
                                                 *layer->bias, layer->transposed, *norm.module)});
        }
        for (const Folded& one : all) {
            const Layer& layer = *one.norm->before;
            BatchNorm& norm = *one.norm->module;
            *layer.weight = one.weights.weight, *layer.bias = one.weights.bias;
            norm.weight = norm.bias = Parameter();
            norm.running_mean = norm.running_var = norm.num_batches_tracked = Buffer();
            norm.folded = true;
        }
        return std::int64_t(all.size());
    }

private:
    void add(const std::string& path, Module* module) {
        if (module->has_hooks()) return;
        if (add_layer<Linear>(layers_, module, false) || add_layer<Conv1d>(layers_, module, false) ||
            add_layer<Conv2d>(layers_, module, false) || add_layer<Conv3d>(layers_, module, false) ||
            add_layer<ConvTranspose1d>(layers_, module, true) ||
            add_layer<ConvTranspose2d>(layers_, module, true) ||
            add_layer<ConvTranspose3d>(layers_, module, true))
            return;
        BatchNorm* const norm = as_batch_norm(module);
        if (!norm || norm->folded) return;
        check(!norm->training(), ErrorKind::state, "fuse_batch_norms: ", path.empty() ? "the module" : path,
              " is in training mode; call eval() first");
        if (norm->running_mean.defined()) norms_.push_back({norm});
    }

    // Whether the pass has left a handle to a layer's result.
    static bool held(const Tensor& result) { return result.impl()->refs.load() != 1; }

    void read(In given) {
        for (const Tensor& x : given)
            for (Layer& layer : layers_)
                if (same_memory(layer.result, x) && !(running_ && running_->before == &layer))
                    layer.shared = true;
    }

    void computed(const AnyOp& op, In given, const void*, In) override {
        read(given);
        if (op.name() != std::string_view("batch_norm") || !running_ || !running_->before) return;
        Layer& layer = *running_->before;
        layer.shared = layer.shared || same_memory(layer.result, given[3]);  // the residual
    }
    void wrote(const Tensor& x) override { read(In(&x, 1)); }

    std::vector<Layer> layers_;
    std::vector<Norm> norms_;
    std::vector<RemovableHandle> handles_;
    Norm* running_ = nullptr;
};

}  // namespace

namespace detail {

FusedWeights folded(const char* function, const Module& layer, const Tensor& weight, const Tensor& bias,
                    bool transposed, const BatchNorm& bn) {
    for (const Module* const module : {&layer, static_cast<const Module*>(&bn)})
        check(!module->training(), ErrorKind::state, function, ": the ", module->type_name(),
              " is in training mode; call eval() first");
    return fused(function, weight, bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias,
                 transposed);
}

}  // namespace detail

FusedWeights fuse_conv_bn_weights(const Tensor& conv_w, const Tensor& conv_b, const Tensor& bn_rm,
                                  const Tensor& bn_rv, double bn_eps, const Tensor& bn_w, const Tensor& bn_b,
                                  bool transpose) {
    return fused("fuse_conv_bn_weights", conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, transpose);
}

FusedWeights fuse_linear_bn_weights(const Tensor& linear_w, const Tensor& linear_b, const Tensor& bn_rm,
                                    const Tensor& bn_rv, double bn_eps, const Tensor& bn_w,
                                    const Tensor& bn_b) {
    return fused("fuse_linear_bn_weights", linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, false);
}

Linear fuse_linear_bn_eval(const Linear& linear, const BatchNorm& bn) {
    Linear result = clone(linear);
    const FusedWeights w =
        detail::folded("fuse_linear_bn_eval", linear, linear.weight, linear.bias, false, bn);
    result.weight = w.weight, result.bias = w.bias;
    return result;
}

std::int64_t fuse_batch_norms(Module& net, const autograd::Callback<Tensors()>& pass) {
    const NoGrad no_grad;
    Recording recording(net);
    return recording.fold(pass());
}

Tensor conv_bn(const Conv2d& conv, const BatchNorm2d& norm, const Tensor& x, const BatchNormCall& also) {
    const bool one_op = norm.folded && !norm.training() && also.relu &&
                        conv.padding_mode == PadMode::constant && !conv.has_hooks() && !norm.has_hooks();
    if (!one_op) return norm(conv(x), also);
    return conv2d_add_relu(x, conv.weight, conv.bias, also.residual,
                           {conv.stride, conv.padding, conv.dilation, conv.groups});
}

}  // namespace mezzo::nn
