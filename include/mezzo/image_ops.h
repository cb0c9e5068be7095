// Ops on signals, images and volumes: convolutions, pooling, normalisation per channel, padding and resizing.
// Channels are last: signals are [batch, length, channels], images [batch, height, width, channels], volumes
// [batch, depth, height, width, channels]. An image in PyTorch's order [batch, channels, height, width]
// becomes one by x.permute({0, 2, 3, 1}). Errors are those of ops.h.
//
//   y = conv2d(x, weight, bias, {.padding = 1});
//   y = max_pool2d(relu(y), {.kernel_size = 2});
//   y = interpolate(y, {224, 224}, {.mode = InterpolateMode::bilinear});
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <vector>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo {

// Three numbers for the axes of a volume: {1, 3, 5} is 1 along the depth, 3 along the height, 5 along the
// width; 3 is all of them.
struct Size3d {
    std::int64_t depth, height, width;
    constexpr Size3d(std::integral auto all)
        : depth(std::int64_t(all)), height(std::int64_t(all)), width(std::int64_t(all)) {}
    constexpr Size3d(std::int64_t d, std::int64_t h, std::int64_t w) : depth(d), height(h), width(w) {}
    friend constexpr bool operator==(const Size3d&, const Size3d&) = default;
};

namespace detail {
// An option's numbers along the axes of signals, images or volumes.
struct AxisNumbers {
    std::int64_t values[3] = {};
    int count;
    constexpr AxisNumbers(std::int64_t length) : values{length}, count(1) {}
    constexpr AxisNumbers(Size2d size) : values{size.height, size.width}, count(2) {}
    constexpr AxisNumbers(Size3d size) : values{size.depth, size.height, size.width}, count(3) {}
    template <class Size> constexpr Size as() const {
        if constexpr (std::same_as<Size, Size3d>) return {values[0], values[1], values[2]};
        if constexpr (std::same_as<Size, Size2d>) return {values[0], values[1]};
        if constexpr (std::same_as<Size, std::int64_t>) return values[0];
    }
};
}  // namespace detail

// Padding of a convolution whose result is as large as its input: PyTorch's padding="same". The end gets
// one zero more if the total is odd. Error(value) with a stride other than 1. PyTorch's "valid" is 0.
inline constexpr std::int64_t same_padding = std::numeric_limits<std::int64_t>::min();

struct Conv2dOptions {
    Size2d stride = 1;        // > 0
    Size2d padding = 0;       // >= 0: rows and columns of zeros added on each side; or same_padding
    Size2d dilation = 1;      // > 0: distance between kernel elements
    std::int64_t groups = 1;  // divides the channels of the input and of the result
};                            // Error(value) for numbers beyond 2^31 - 1, here and in the other convolutions
// The cross-correlation that deep learning calls convolution (PyTorch's conv2d): x [N, H, W, C], weight
// [O, kernel height, kernel width, C / groups], bias [O] or undefined -> [N, Ho, Wo, O] with
// Ho = (H + 2 padding - dilation (kernel height - 1) - 1) / stride + 1, rounded down; Wo likewise. Dtypes and
// arithmetic are those of matmul().
[[nodiscard]] Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                            const Conv2dOptions& options = {});

// relu(conv2d(x, weight, bias, options) + residual), for inference: one op, rounded once, unless a gradient
// is recorded. The residual is of the result's shape and dtype, or undefined: 0. Error(shape) for another
// shape, Error(dtype) for another dtype. Under Autocast float32 residuals and inputs count as 16-bit ones.
[[nodiscard]] Tensor conv2d_add_relu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                     const Tensor& residual, const Conv2dOptions& options = {});

struct Conv1dOptions {
    std::int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
};
// x [N, L, C], weight [O, kernel size, C / groups], bias [O] or undefined -> [N, Lo, O].
[[nodiscard]] Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                            const Conv1dOptions& options = {});

struct Conv3dOptions {
    Size3d stride = 1, padding = 0, dilation = 1;
    std::int64_t groups = 1;
};
// x [N, D, H, W, C], weight [O, kernel depth, kernel height, kernel width, C / groups], bias [O] or
// undefined -> [N, Do, Ho, Wo, O], by one conv2d that reads the slices of each kernel depth as further
// channels. These are copied for the call and again for the gradient. 16-bit results are rounded once; in
// the gradient of x each position of the kernel's depth is rounded, and their sum once more.
[[nodiscard]] Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                            const Conv3dOptions& options = {});

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

struct ConvTranspose1dOptions {
    std::int64_t stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1;
};
// x [N, L, C], weight [C, kernel size, O / groups], bias [O] or undefined -> [N, Lo, O].
[[nodiscard]] Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                                      const ConvTranspose1dOptions& options = {});

struct ConvTranspose3dOptions {
    Size3d stride = 1, padding = 0, output_padding = 0, dilation = 1;
    std::int64_t groups = 1;
};
// x [N, D, H, W, C], weight [C, kernel depth, kernel height, kernel width, O / groups], bias [O] or
// undefined -> [N, Do, Ho, Wo, O]. Results that several positions of the kernel's depth reach are sums, in
// float32, of 16-bit parts.
[[nodiscard]] Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                                      const ConvTranspose3dOptions& options = {});

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
    bool count_include_pad = true;      // whether padded zeros count as elements of the mean
    std::int64_t divisor_override = 0;  // if not 0, the divisor of every sum
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

// Pooling of volumes: x [N, D, H, W, C] -> [N, Do, Ho, Wo, C].
struct MaxPool3dOptions {
    Size3d kernel_size;
    Size3d stride = 0;  // 0: the kernel size
    Size3d padding = 0;
    Size3d dilation = 1;
    bool ceil_mode = false;
};
[[nodiscard]] Tensor max_pool3d(const Tensor& x, const MaxPool3dOptions& options);
struct AvgPool3dOptions {
    Size3d kernel_size;
    Size3d stride = 0;  // 0: the kernel size
    Size3d padding = 0;
    bool ceil_mode = false;
    bool count_include_pad = true;
    std::int64_t divisor_override = 0;
};
[[nodiscard]] Tensor avg_pool3d(const Tensor& x, const AvgPool3dOptions& options);
[[nodiscard]] Tensor adaptive_avg_pool3d(const Tensor& x, Size3d output_size);
[[nodiscard]] Tensor adaptive_max_pool3d(const Tensor& x, Size3d output_size);

// Max pooling with the index of each largest element in its channel of x: PyTorch's return_indices. The index
// is that of the flattened length, height x width, or depth x height x width.
struct Pooled {
    Tensor values;   // differentiable
    Tensor indices;  // int64
};
[[nodiscard]] Pooled max_pool1d_with_indices(const Tensor& x, const MaxPool1dOptions& options);
[[nodiscard]] Pooled max_pool2d_with_indices(const Tensor& x, const MaxPool2dOptions& options);
[[nodiscard]] Pooled max_pool3d_with_indices(const Tensor& x, const MaxPool3dOptions& options);
[[nodiscard]] Pooled adaptive_max_pool1d_with_indices(const Tensor& x, std::int64_t output_size);
[[nodiscard]] Pooled adaptive_max_pool2d_with_indices(const Tensor& x, Size2d output_size);
[[nodiscard]] Pooled adaptive_max_pool3d_with_indices(const Tensor& x, Size3d output_size);

// The elements of x at their indices in a result of zeros: what max pooling with the same options leaves
// of its input. The size of the result is output_size, or, if that is 0, (size - 1) stride - 2 padding +
// kernel_size; Error(value) where the two differ by stride or more. Elements with the same index, as
// overlapping windows give them, are equal; all of them get the gradient. Error(value) for an index
// outside of the result on the CPU; on CUDA such an element is left out.
struct MaxUnpool1dOptions {
    std::int64_t kernel_size, stride = 0, padding = 0;
    std::int64_t output_size = 0;
};
[[nodiscard]] Tensor max_unpool1d(const Tensor& x, const Tensor& indices, const MaxUnpool1dOptions& options);
struct MaxUnpool2dOptions {
    Size2d kernel_size, stride = 0, padding = 0;
    Size2d output_size = 0;
};
[[nodiscard]] Tensor max_unpool2d(const Tensor& x, const Tensor& indices, const MaxUnpool2dOptions& options);
struct MaxUnpool3dOptions {
    Size3d kernel_size, stride = 0, padding = 0;
    Size3d output_size = 0;
};
[[nodiscard]] Tensor max_unpool3d(const Tensor& x, const Tensor& indices, const MaxUnpool3dOptions& options);

struct UnfoldOptions {
    Size2d kernel_size, dilation = 1, padding = 0, stride = 1;
};
// The pixels that each window reads, in one row (im2col): x [N, H, W, C] -> [N, Ho Wo, kernel height *
// kernel width * C], channels last within a window, so that a weight of conv2d as [O, -1] multiplies it.
// reshape({N, Ho Wo, kernel height * kernel width, C}).permute({0, 3, 2, 1}) puts it into PyTorch's order
// [N, C, kernel height * kernel width, Ho Wo].
[[nodiscard]] Tensor unfold(const Tensor& x, const UnfoldOptions& options);
// The transpose of unfold: the sum, for each pixel, of what windows have of it (col2im): x [N, windows,
// kernel height * kernel width * C] -> [N, output_size.height, output_size.width, C].
[[nodiscard]] Tensor fold(const Tensor& x, Size2d output_size, const UnfoldOptions& options);

// Moves channels to pixels: x [..., H, W, C r^2] -> [..., H r, W r, C], the channel c r^2 + i r + j to row i,
// column j of a block of pixels (Shi et al., arXiv 1609.05158); pixel_unshuffle is its inverse.
[[nodiscard]] Tensor pixel_shuffle(const Tensor& x, std::int64_t upscale_factor);
[[nodiscard]] Tensor pixel_unshuffle(const Tensor& x, std::int64_t downscale_factor);
// Channel j of group i becomes channel j groups + i: x [..., C] (Zhang et al., arXiv 1707.01083).
[[nodiscard]] Tensor channel_shuffle(const Tensor& x, std::int64_t groups);

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

struct InstanceNormOptions {
    bool use_input_stats = true;  // false: normalise with the running statistics, as after eval()
    double momentum = 0.1;        // share of the batch in the running statistics, in [0, 1]
    double eps = 1e-5;
};
// Normalises each channel of each sample by itself (Ulyanov et al., arXiv 1607.08022): x [N, ..., C],
// weight and bias [C] or undefined (1 and 0). If use_input_stats, the means over the samples are written
// to running_mean and running_var, [C] or undefined, as batch_norm() does, unless they are not finite. The
// result has the dtype of x, also under autocast. Error(value) for the statistics of a single value.
[[nodiscard]] Tensor instance_norm(const Tensor& x, const Tensor& running_mean = {},
                                   const Tensor& running_var = {}, const Tensor& weight = {},
                                   const Tensor& bias = {}, const InstanceNormOptions& options = {});

struct LocalResponseNormOptions {
    double alpha = 1e-4, beta = 0.75, k = 1;
};
// x / (k + alpha m)^beta, where m is the mean of the squares of `size` channels around each one, zeros beyond
// the ends counted: x [N, ..., C]. Under autocast it is computed in float32, which is the result's dtype.
[[nodiscard]] Tensor local_response_norm(const Tensor& x, std::int64_t size,
                                         const LocalResponseNormOptions& options = {});

// Dropout of whole channels of a sample, with probability p; the others are multiplied by 1 / (1 - p). x is a
// batch of signals, images or volumes; x itself when not training or p == 0.
[[nodiscard]] Tensor dropout1d(const Tensor& x, double p = 0.5, bool training = true);
[[nodiscard]] Tensor dropout2d(const Tensor& x, double p = 0.5, bool training = true);
[[nodiscard]] Tensor dropout3d(const Tensor& x, double p = 0.5, bool training = true);
// Dropout that keeps mean and variance of SELU's results (Klambauer et al., arXiv 1706.02515), for any shape:
// of single elements, and of whole channels of a sample, x [N, ..., C].
[[nodiscard]] Tensor alpha_dropout(const Tensor& x, double p = 0.5, bool training = true);
[[nodiscard]] Tensor feature_alpha_dropout(const Tensor& x, double p = 0.5, bool training = true);

enum class PadMode : std::uint8_t { constant, reflect, replicate, circular };
// Numbers of elements added before the first and after the last element of one dimension; negative numbers
// crop.
struct Padding {
    std::int64_t dim, before, after;
};
// x, of any dtype that is not for storage only, with elements added to some dimensions: `value` with
// PadMode::constant, else x continued as in PyTorch's modes of these names. Error(value) where reflect would
// add as many elements as the dimension has, or circular more, and for a dimension that is listed twice.
[[nodiscard]] Tensor pad(const Tensor& x, const std::vector<Padding>& padding,
                         PadMode mode = PadMode::constant, Scalar value = 0);

enum class InterpolateMode : std::uint8_t {
    nearest,
    bilinear,
    bicubic,
    linear,
    trilinear,
    area,
    nearest_exact
};
// Factors between sizes: 2 for all axes, {1.5, 2} one for each.
struct ScaleFactor {
    constexpr ScaleFactor() = default;  // none
    constexpr ScaleFactor(double all) : values{all}, count(1) {}
    constexpr ScaleFactor(double first, double second) : values{first, second}, count(2) {}
    constexpr ScaleFactor(double first, double second, double third)
        : values{first, second, third}, count(3) {}
    double values[3] = {};
    int count = 0;
};
struct InterpolateOptions {
    InterpolateMode mode = InterpolateMode::nearest;
    bool align_corners = false;  // linear, bilinear, bicubic and trilinear only
    ScaleFactor scale_factor = {};
    // Whether coordinates follow from the sizes of x and result; otherwise from scale_factor, if it is given.
    bool recompute_scale_factor = false;
};
// Signals, images or volumes resized along all axes between batch and channels, with PyTorch's modes and
// coordinates. size has a number for each axis, or one for all. Modes other than nearest, area and
// nearest_exact are for the number of axes that their names say; linear ones take the centres of pixels, or
// the corners with align_corners. area is an adaptive mean.
[[nodiscard]] Tensor interpolate(const Tensor& x, const Shape& size, const InterpolateOptions& options = {});
// The same by options.scale_factor; sizes are rounded down.
[[nodiscard]] Tensor interpolate(const Tensor& x, const InterpolateOptions& options);

struct GridSampleOptions {
    InterpolateMode mode = InterpolateMode::bilinear;  // or nearest, or, of images, bicubic
    PadMode padding_mode = PadMode::constant;  // zeros; replicate is PyTorch's border, reflect its reflection
    bool align_corners = false;
};
// The elements of x at positions: x [N, H, W, C], grid [N, Ho, Wo, 2] -> [N, Ho, Wo, C]; of volumes x [N,
// D, H, W, C], grid [N, Do, Ho, Wo, 3] -> [N, Do, Ho, Wo, C]. A position is (x, y) or (x, y, z), where -1
// and 1 are the borders of the first and last pixel, or their centres with align_corners (Jaderberg et
// al., arXiv 1506.02025); NaN counts as -1. Differentiable in x and, but for nearest, in grid.
[[nodiscard]] Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options = {});
// Positions for grid_sample, as many as a result of `size` has, transformed by theta: [N, 2, 3] with a size
// [N, H, W, C] -> [N, H, W, 2], or [N, 3, 4] with [N, D, H, W, C] -> [N, D, H, W, 3].
[[nodiscard]] Tensor affine_grid(const Tensor& theta, const Shape& size, bool align_corners = false);

}  // namespace mezzo

#pragma GCC visibility pop
