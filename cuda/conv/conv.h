// Convolutions on CUDA: sizes of a problem, and its implementations. As products of matrices they are
//   forward          y [pixels, O] = windows [pixels, K] weight^T [K, O]
//   input gradient   dx, gathered from g [pixels, O] weight [O, K]
//   weight gradient  dw [O, K] = g^T [O, pixels] windows [pixels, K]
// per group, where a row of `windows` has the K = kernel height x kernel width x channels elements of x that
// one pixel of the result reads.
#pragma once

#include <cstdint>

#include "kernels/conv.h"
#include "kernels/kernel.h"

namespace mezzo::cuda {

// Sizes of a convolution. Signals, which are images with one row, count as images with one column, so that
// chunks can consist of rows.
struct ConvSizes {
    std::int64_t images = 0, height = 0, width = 0, channels = 0;           // of x
    std::int64_t result_height = 0, result_width = 0, result_channels = 0;  // of y
    std::int64_t kernel_height = 1, kernel_width = 1;
    kernels::ConvGeometry geometry = {};

    ConvSizes(const Tensor& x, const Tensor& weight, const Tensor& y, const kernels::ConvGeometry& at);
    // Windows that are the rows of a given matrix.
    ConvSizes(std::int64_t rows, std::int64_t row_length);

    std::int64_t taps() const { return kernel_height * kernel_width; }
    std::int64_t group_channels() const { return channels / geometry.groups; }
    std::int64_t group_results() const { return result_channels / geometry.groups; }
    std::int64_t window() const { return taps() * group_channels(); }
    std::int64_t pixels() const { return images * result_height * result_width; }
    // Whether each result reads its own pixel of x only, so that x itself is the matrix of windows.
    bool is_product() const {
        return taps() == 1 && geometry.stride == Size2d(1) && geometry.padding == Size2d(0) &&
               height == result_height && width == result_width;
    }
};

// Tiles of the implicit products: rows x columns of the result. A weight gradient's m128n64 has 64 rows.
enum class ConvTile : std::uint8_t { automatic, m128n128, m128n64, m64n64 };

// Implementation of a convolution. The backend's kernels take the defaults.
struct ConvWay {
    bool implicit;  // without a matrix of windows, where the problem allows it
    std::int64_t matrix_bytes = std::int64_t(32) << 20;  // of a matrix of windows, unless one row has more
    ConvTile tile = ConvTile::automatic;
    int splits = 0;  // parts of a weight gradient's sums; 0: as many as fill a device
};

// Run the kernels of kernels/conv.h. The inputs are contiguous.
void conv_forward(In in, const kernels::Conv2d& at, Out out, const ConvWay& way);
void conv_input_grad(In in, const kernels::Conv2dInputGrad& at, Out out, const ConvWay& way);
void conv_weight_grad(In in, const kernels::Conv2dWeightGrad& at, Out out, const ConvWay& way);

// Products on Tensor Cores that read the images without im2col (cuda/conv/conv_implicit.cu,
// conv_implicit_weight.cu). Return false for problems that they do not support: groups, other than 16-bit
// operands of one dtype, channels that are not whole eights, addresses that are not multiples of 16, 2^30
// elements or more, strides beyond 4.
bool implicit_forward(const ConvSizes& s, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Tensor& y, ConvTile tile);
bool implicit_input_grad(const ConvSizes& s, const Tensor& g, const Tensor& weight, const Tensor& bias,
                         const Tensor& dx, ConvTile tile);
bool implicit_weight_grad(const ConvSizes& s, const Tensor& g, const Tensor& x, double beta, const Tensor& dw,
                          ConvTile tile, int splits);

// Rows of windows (cuda/conv/im2col.cu).

// The windows of one group that rows `first` to first + count - 1 of the result read (row ho of image n is
// row n result_height + ho), `ld` elements apart, with zeros behind each window. x and `to` have the dtype.
void im2col(const ConvSizes& s, Dtype dtype, const void* x, std::int64_t group, std::int64_t first,
            std::int64_t count, void* to, std::int64_t ld);

// The rows of g whose products col2im() reads, for all images of the chunk, and the part of dx that it
// writes.
struct ConvBand {
    std::int64_t image, images;
    std::int64_t first_row, rows;                // of dx
    std::int64_t first_result_row, result_rows;  // of g: every one that reads those rows of dx
};
// Gathers the band of one group's dx from `products` (float32, or float64 for float64), whose rows are `ld`
// elements apart, and adds the bias if it is defined. Each sum is in the order of the taps.
void col2im(const ConvSizes& s, const void* products, Dtype products_type, std::int64_t ld,
            std::int64_t group, const ConvBand& band, const Tensor& bias, const Tensor& dx);

// result = sum of `count` arrays of n elements that lie one behind the other, in order, + beta result.
void sum_parts(const float* parts, std::int64_t n, std::int64_t count, float beta, const Tensor& result);

}  // namespace mezzo::cuda
