// Batch norms folded into the layers before them, for inference: their running statistics, weights and biases
// become part of the convolution's or linear layer's weight and bias.
//
//   net.eval();
//   nn::fuse_batch_norms(net, [&] { return Tensors{net(x)}; });
//   y = net(x);  // the same values up to rounding, in fewer ops
#pragma once

#include <cstdint>

#include "mezzo/callback.h"
#include "mezzo/conv_layers.h"
#include "mezzo/nn.h"
#include "mezzo/norm_layers.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

struct FusedWeights {
    Parameter weight, bias;
};
// Weight and bias of a layer that computes batch_norm(layer(x)) with running statistics:
//   weight = w bn_w / sqrt(bn_rv + bn_eps),   bias = (b - bn_rm) bn_w / sqrt(bn_rv + bn_eps) + bn_b
// per channel of the result. w is the weight of a convolution, [out, kernel sizes, in / groups], of a
// transposed one, [in, kernel sizes, out / groups], with `transpose`, or of a linear layer, [out, in]. b,
// bn_w and bn_b may be undefined (0, 1, 0). Computed in float64 and rounded once to the dtype of w, and of b
// if it is defined. Error(value) for undefined statistics, Error(shape) for tensors that are not [out].
[[nodiscard]] FusedWeights fuse_conv_bn_weights(const Tensor& conv_w, const Tensor& conv_b,
                                                const Tensor& bn_rm, const Tensor& bn_rv, double bn_eps,
                                                const Tensor& bn_w, const Tensor& bn_b,
                                                bool transpose = false);
[[nodiscard]] FusedWeights fuse_linear_bn_weights(const Tensor& linear_w, const Tensor& linear_b,
                                                  const Tensor& bn_rm, const Tensor& bn_rv, double bn_eps,
                                                  const Tensor& bn_w, const Tensor& bn_b);

namespace detail {
// The weights of a layer with a batch norm folded in. Error(state) if one of the two is in training mode.
FusedWeights folded(const char* function, const Module& layer, const Tensor& weight, const Tensor& bias,
                    bool transposed, const BatchNorm& bn);
}  // namespace detail

// A copy of a convolution, transposed or not, that computes bn(conv(x)). Both must be in eval mode, otherwise
// Error(state); otherwise errors are those of fuse_conv_bn_weights().
template <class Conv>
requires requires(const Conv& c) { c.kernel_size, c.groups; }
[[nodiscard]] Conv fuse_conv_bn_eval(const Conv& conv, const BatchNorm& bn) {
    constexpr bool transposed = requires { conv.output_padding; };
    Conv fused = clone(conv);
    const FusedWeights w = detail::folded("fuse_conv_bn_eval", conv, conv.weight, conv.bias, transposed, bn);
    fused.weight = w.weight, fused.bias = w.bias;
    return fused;
}
// The same for a linear layer.
[[nodiscard]] Linear fuse_linear_bn_eval(const Linear& linear, const BatchNorm& bn);

// Folds batch norms of `net`, which is in eval mode, into the Conv1d to Conv3d, ConvTranspose1d to
// ConvTranspose3d and Linear layers whose results they read, and returns their number. pass() calls `net`
// once with an example and returns all results of the call. It runs without gradients and shows which layer a
// batch norm follows. A batch norm stays as it is if the layer before it, or itself, runs twice, has hooks or
// is of a derived class (nn::weight_norm()), if another op reads the layer's result, if pass() returns that
// result, or if it has no running statistics. Values that the host reads from a layer's result are not seen.
// Layers get new parameters, so copies of `net` made before stay as they are (copies of Sequential,
// ModuleList and ModuleDict share their modules). Batch norms lose theirs, so files of the model no longer
// fit: load them first. From then on their calls throw Error(state) in training mode. Nothing is folded if
// pass() throws. Error(state) for a layer or batch norm in training mode.
std::int64_t fuse_batch_norms(Module& net, const autograd::Callback<Tensors()>& pass);

// norm(conv(x), also). If `norm` has been folded into `conv`, also.relu is set and no gradient is recorded,
// this is one op, which adds the bias and the residual and applies the ReLU before it rounds. Models call it
// so that fuse_batch_norms() saves passes over their activations.
[[nodiscard]] Tensor conv_bn(const Conv2d& conv, const BatchNorm2d& norm, const Tensor& x,
                             const BatchNormCall& also = {});

}  // namespace mezzo::nn

#pragma GCC visibility pop
