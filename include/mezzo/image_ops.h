// Ops on images and signals: convolutions, pooling, batch and group normalisation, padding and resizing.
// Images are channels last: [batch, height, width, channels]; a batch of signals is [batch, length,
// channels]. An image in PyTorch's order [batch, channels, height, width] becomes one by x.permute({0, 2, 3,
// 1}). Errors are those of ops.h.
//
//   y = conv2d(x, weight, bias, {.padding = 1});
//   y = max_pool2d(relu(y), {.kernel_size = 2});
//   y = interpolate(y, {224, 224}, {.mode = InterpolateMode::bilinear});
#pragma once

#include <cstdint>
#include <vector>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo {

struct Conv2dOptions {
    Size2d stride = 1;        // > 0
    Size2d padding = 0;       // >= 0: rows and columns of zeros added on each side
    Size2d dilation = 1;      // > 0: distance between kernel elements
    std::int64_t groups = 1;  // divides the channels of the input and of the result
};                            // Error(value) for numbers beyond 2^31 - 1, here and in the other convolutions
// The cross-correlation that deep learning calls convolution (PyTorch's conv2d): x [N, H, W, C], weight
// [O, kernel height, kernel width, C / groups], bias [O] or undefined -> [N, Ho, Wo, O] with
// Ho = (H + 2 padding - dilation (kernel height - 1) - 1) / stride + 1, rounded down; Wo likewise. Dtypes and
// arithmetic are those of matmul().
[[nodiscard]] Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                            const Conv2dOptions& options = {});

struct Conv1dOptions {
    std::int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
};
// x [N, L, C], weight [O, kernel size, C / groups], bias [O] or undefined -> [N, Lo, O].
[[nodiscard]] Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                            const Conv1dOptions& options = {});

struct ConvTranspose2dOptions {
    Size2d stride = 1, padding = 0;
    // rows and columns added at the end of the result; less than stride or dilation
    Size2d output_padding = 0;
    Size2d dilation = 1;
    std::int64_t groups = 1;
};
// Transposed convolution, the gradient of conv2d with respect to its input: x [N, H, W, C], weight [C, kernel
// height, kernel width, O / groups], bias [O] or undefined -> [N, Ho, Wo, O] with Ho = (H - 1) stride - 2
// padding + dilation (kernel height - 1) + output_padding + 1; Wo likewise.
[[nodiscard]] Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                                      const ConvTranspose2dOptions& options = {});

struct MaxPool2dOptions {
    Size2d kernel_size;
    Size2d stride = 0;   // 0: the kernel size
    Size2d padding = 0;  // at most half the extent of a window; padded elements are never the largest
    Size2d dilation = 1;
    bool ceil_mode = false;  // round the size of the result up, if the last window begins inside the image
};
// The largest element of each window: x [N, H, W, C] -> [N, Ho, Wo, C] with Ho = (H + 2 padding - dilation
// (kernel height - 1) - 1) / stride + 1, rounded down; Wo likewise. NaN wins, the last if there are several;
// of equal elements the first gets the gradient. {.kernel_size = 2} halves an image.
[[nodiscard]] Tensor max_pool2d(const Tensor& x, const MaxPool2dOptions& options);

struct AvgPool2dOptions {
    Size2d kernel_size;
    Size2d stride = 0;   // 0: the kernel size
    Size2d padding = 0;  // at most half the kernel size
    bool ceil_mode = false;
    bool count_include_pad = true;  // whether padded zeros count as elements of the mean
};
// The mean of each window: x [N, H, W, C] -> [N, Ho, Wo, C], with the sizes of max_pool2d.
[[nodiscard]] Tensor avg_pool2d(const Tensor& x, const AvgPool2dOptions& options);

// The mean, or the largest element, of output_size windows that cover the image: x [N, H, W, C] -> [N,
// output_size.height, output_size.width, C]. Row i reads rows floor(i H / Ho) to ceil((i + 1) H / Ho) - 1.
[[nodiscard]] Tensor adaptive_avg_pool2d(const Tensor& x, Size2d output_size);
[[nodiscard]] Tensor adaptive_max_pool2d(const Tensor& x, Size2d output_size);

// Pooling of signals: x [N, L, C] -> [N, Lo, C].
struct MaxPool1dOptions {
    std::int64_t kernel_size;
    std::int64_t stride = 0;  // 0: the kernel size
    std::int64_t padding = 0;
    std::int64_t dilation = 1;
    bool ceil_mode = false;
};
[[nodiscard]] Tensor max_pool1d(const Tensor& x, const MaxPool1dOptions& options);
struct AvgPool1dOptions {
    std::int64_t kernel_size;
    std::int64_t stride = 0;  // 0: the kernel size
    std::int64_t padding = 0;
    bool ceil_mode = false;
    bool count_include_pad = true;
};
[[nodiscard]] Tensor avg_pool1d(const Tensor& x, const AvgPool1dOptions& options);
[[nodiscard]] Tensor adaptive_avg_pool1d(const Tensor& x, std::int64_t output_size);
[[nodiscard]] Tensor adaptive_max_pool1d(const Tensor& x, std::int64_t output_size);

struct BatchNormOptions {
    bool training = true;   // normalise with the batch's statistics, and update the running ones
    double momentum = 0.1;  // share of the batch in the running statistics; NaN: their mean over all batches
    double eps = 1e-5;      // added to the variance
    bool relu = false;      // max(y, 0), after the residual is added
    Tensor residual = {};   // like x or undefined: added to the result
    // int64, 0-dim, or undefined: counts the updates; needed for momentum NaN.
    Tensor num_batches_tracked = {};
};
// (x - mean) / sqrt(variance + eps) * weight + bias per channel (Ioffe and Szegedy, arXiv 1502.03167): x
// [..., C]; running_mean, running_var, weight, bias [C] or undefined (then: no running statistics; 1; 0).
// Mean and biased variance are those of the batch if training, or if there are no running statistics.
// Training updates the running ones in place: running = (1 - momentum) running + momentum batch, with the
// unbiased variance. A batch whose statistics are not finite, also after conversion to the dtype of the
// running ones, does not update them, so that a float16 overflow, whose step GradScaler skips, does not spoil
// them; nor does the recomputation of a checkpoint. Statistics are computed in float32 (float64 for float64).
// The result has the dtype of x; weight, bias and running statistics may have another floating one.
// Error(value) for the statistics of a single value per channel.
[[nodiscard]] Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                                const Tensor& weight = {}, const Tensor& bias = {},
                                const BatchNormOptions& options = {});

// Normalises each sample's groups of neighbouring channels (Wu and He, arXiv 1803.08494): x [N, ..., C],
// groups divides C, weight and bias [C] or undefined (1 and 0). Under autocast the result is float32.
[[nodiscard]] Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight = {},
                                const Tensor& bias = {}, double eps = 1e-5);

enum class PadMode : std::uint8_t { constant, reflect, replicate, circular };
// Numbers of elements added before the first and after the last element of one dimension; negative numbers
// crop.
struct Padding {
    std::int64_t dim, before, after;
};
// x, of any dtype, with elements added to some of its dimensions: `value` with PadMode::constant, otherwise x
// continued as in PyTorch's modes of these names. Error(value) where reflect would add as many elements as
// the dimension has, or circular more, and for a dimension that is listed twice.
[[nodiscard]] Tensor pad(const Tensor& x, const std::vector<Padding>& padding,
                         PadMode mode = PadMode::constant, Scalar value = 0);

enum class InterpolateMode : std::uint8_t { nearest, bilinear };
struct InterpolateOptions {
    InterpolateMode mode = InterpolateMode::nearest;
    bool align_corners = false;  // bilinear only
};
// x [N, H, W, C] resized to [N, size.height, size.width, C], with PyTorch's coordinates: bilinear takes the
// centres of pixels, or the corners of the image with align_corners.
[[nodiscard]] Tensor interpolate(const Tensor& x, Size2d size, InterpolateOptions options = {});

}  // namespace mezzo

#pragma GCC visibility pop
