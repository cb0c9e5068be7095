// Initialisers of parameters, as in torch.nn.init. Each function writes the tensor in place, without
// recording history, with random numbers from the stream of manual_seed(), and returns it. All throw
// Error(value) for an undefined tensor and Error(dtype) for one that is not floating. A tensor without
// elements is not changed.
//
//   nn::Linear layer(784, 128);
//   nn::init::kaiming_normal_(layer.weight, {.nonlinearity = nn::init::Nonlinearity::relu});
//   nn::init::zeros_(layer.bias);
#pragma once

#include <cstdint>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::nn::init {

// Fan-in and fan-out: the number of inputs that an output of a layer reads, and of outputs that read an
// input.
struct Fans {
    std::int64_t in, out;
};
// Fans of a weight in mezzo's layout: [out, in] of Linear, [out, kernel sizes .., in / groups] of
// convolutions, [in, kernel sizes .., out / groups] of transposed ones. fan_in = kernel size * size(-1) and
// fan_out = kernel size * size(0), with the product of the kernel sizes; these are PyTorch's numbers, also
// for transposed convolutions and groups. Wrong for a weight in PyTorch's order, with the kernel last. Throws
// Error(shape) for less than two dimensions.
[[nodiscard]] Fans calculate_fans(const Tensor& weight);

enum class FanMode : std::uint8_t { fan_in, fan_out };
enum class Nonlinearity : std::uint8_t { linear, sigmoid, tanh, relu, leaky_relu, selu };
// The factor that keeps the variance through the activation: 1, 1, 5/3, sqrt(2), sqrt(2 / (1 + slope^2)),
// 3/4. Only leaky_relu reads the slope. Error(value) for a slope that is not finite.
[[nodiscard]] double calculate_gain(Nonlinearity nonlinearity, double slope = 0.01);

struct KaimingOptions {
    double a = 0;                    // negative slope, read for leaky_relu only
    FanMode mode = FanMode::fan_in;  // fan_out keeps the variance of gradients
    Nonlinearity nonlinearity = Nonlinearity::leaky_relu;
};
// He et al., arXiv 1502.01852: standard deviation gain / sqrt(fan). Of ResNet's convolutions:
// kaiming_normal_(conv.weight, {.mode = FanMode::fan_out, .nonlinearity = Nonlinearity::relu}).
const Tensor& kaiming_uniform_(const Tensor& weight, const KaimingOptions& options = {});
const Tensor& kaiming_normal_(const Tensor& weight, const KaimingOptions& options = {});

// Glorot and Bengio, AISTATS 2010: standard deviation gain sqrt(2 / (fan_in + fan_out)). Error(value) for a
// negative gain.
const Tensor& xavier_uniform_(const Tensor& weight, double gain = 1);
const Tensor& xavier_normal_(const Tensor& weight, double gain = 1);

struct TruncNormalOptions {
    double mean = 0, std = 1;
    double low = -2, high = 2;  // values, not multiples of std; may be infinite
};
// The normal distribution truncated to [low, high]. Computed on the host. Error(value) unless std > 0, low <
// high, and a share of at least 1e-300 of the distribution lies in between.
const Tensor& trunc_normal_(const Tensor& x, const TruncNormalOptions& options = {});

// A matrix [size(0), product of the other sizes] whose rows, or columns if there are fewer, are orthogonal
// and have the length gain (Saxe et al., arXiv 1312.6120). Error(shape) for less than two dimensions.
const Tensor& orthogonal_(const Tensor& weight, double gain = 1);

const Tensor& constant_(const Tensor& x, Scalar value);
const Tensor& zeros_(const Tensor& x);
const Tensor& ones_(const Tensor& x);
const Tensor& uniform_(const Tensor& x, double low = 0, double high = 1);
const Tensor& normal_(const Tensor& x, double mean = 0, double std = 1);

}  // namespace mezzo::nn::init

#pragma GCC visibility pop
