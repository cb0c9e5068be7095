// Convolution kernels: implicit products where they are requested and possible, otherwise products with a
// matrix of windows (im2col), made in chunks of bounded size. No matrix is made if x itself is the matrix.
#include "cuda/conv/conv.h"

#include <algorithm>
#include <utility>

#include "core/memory/storage.h"
#include "core/tensor_impl.h"
#include "cuda/gemm/gemm.h"
#include "cuda/kernels.h"
#include "cuda/runtime/runtime.h"
#include "kernels/self_check.h"
#include "mezzo/cuda.h"
#include "mezzo/error.h"

namespace mezzo::cuda {

namespace {

void swap_axes(Size2d& size) { std::swap(size.height, size.width); }

}  // namespace

ConvSizes::ConvSizes(const Tensor& x, const Tensor& weight, const Tensor& y, const kernels::ConvGeometry& at)
    : images(x.size(0)),
      height(x.size(1)),
      width(x.size(2)),
      channels(x.size(3)),
      result_height(y.size(1)),
      result_width(y.size(2)),
      result_channels(y.size(3)),
      kernel_height(weight.size(1)),
      kernel_width(weight.size(2)),
      geometry(at) {
    constexpr std::int64_t limit = std::int64_t(1) << 30;
    check(std::max({height, width, result_height, result_width, channels, result_channels}) < limit &&
              std::max({height + 2 * geometry.padding.height, width + 2 * geometry.padding.width}) < limit,
          ErrorKind::value, "conv2d: an input of ", x.shape(), " with a padding of ", geometry.padding.height,
          " x ", geometry.padding.width, " and a result of ", y.shape(), "; sizes go to 2^30 - 1");
    // nothing lies between strides beyond the image, or between the taps of a kernel of one
    geometry.stride = {std::min(at.stride.height, limit), std::min(at.stride.width, limit)};
    geometry.dilation = {kernel_height > 1 ? at.dilation.height : 1,
                         kernel_width > 1 ? at.dilation.width : 1};
    if (height != 1 || result_height != 1 || kernel_height != 1 || geometry.padding.height != 0) return;
    std::swap(height, width);
    std::swap(result_height, result_width);
    std::swap(kernel_height, kernel_width);
    for (Size2d* size : {&geometry.stride, &geometry.padding, &geometry.dilation}) swap_axes(*size);
}

ConvSizes::ConvSizes(std::int64_t rows, std::int64_t row_length)
    : images(rows),
      height(1),
      width(1),
      channels(row_length),
      result_height(1),
      result_width(1),
      result_channels(1) {}

namespace {

// Device memory until the end of a call; it is used again in the order of the stream.
class Matrix {
public:
    Matrix(Device device, Dtype dtype, std::int64_t elements)
        : storage_(allocate_storage(static_cast<std::size_t>(elements) * size_of(dtype), device)) {}
    void* data() const { return storage_->data; }

private:
    Ref<Storage> storage_;
};

void* at(const void* p, Dtype dtype, std::int64_t elements) {
    return const_cast<char*>(static_cast<const char*>(p)) + elements * std::int64_t(size_of(dtype));
}
void* at(const Tensor& x, std::int64_t elements) { return at(raw(x), x.dtype(), elements); }

// Distance of rows that begin at multiples of 16 bytes, for which products are fast.
std::int64_t pitch_of(std::int64_t row, Dtype dtype) {
    const std::int64_t whole = 16 / std::int64_t(size_of(dtype));
    return (row + whole - 1) / whole * whole;
}

// Number of rows per chunk, about the same for all chunks: as many as fit, at least one.
std::int64_t chunk_of(std::int64_t rows, std::int64_t row_bytes, std::int64_t limit) {
    const std::int64_t most = std::max<std::int64_t>(limit / std::max<std::int64_t>(row_bytes, 1), 1);
    const std::int64_t chunks = std::max<std::int64_t>((rows + most - 1) / most, 1);
    return std::max<std::int64_t>((rows + chunks - 1) / chunks, 1);
}

Dtype sum_type(const Tensor& a, const Tensor& b, const Tensor& c) {
    return a.dtype() == float64 || b.dtype() == float64 || c.dtype() == float64 ? float64 : float32;
}

// A matrix of windows in chunks of rows of the result.
struct Chunks {
    std::int64_t pitch, rows;  // elements from window to window; rows of the result per chunk

    Chunks(const ConvSizes& s, Dtype dtype, std::int64_t limit)
        : pitch(pitch_of(s.window(), dtype)), rows(s.images * s.result_height) {
        if (s.is_product())
            pitch = s.window();
        else
            rows = chunk_of(rows, s.result_width * pitch * std::int64_t(size_of(dtype)), limit);
    }
};

// One group's weight with rows `pitch` apart, the elements behind each row zero. `copy` owns the memory.
const void* pitched_weight(const ConvSizes& s, const Tensor& weight, std::int64_t group, std::int64_t pitch,
                           const Matrix* copy) {
    const void* const own = at(weight, group * s.group_results() * s.window());
    if (copy == nullptr) return own;
    im2col(ConvSizes(s.group_results(), s.window()), weight.dtype(), own, 0, 0, s.group_results(),
           copy->data(), pitch);
    return copy->data();
}

void forward_by_windows(const ConvSizes& s, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& y, std::int64_t limit) {
    const bool in_place = s.is_product();
    const Chunks chunks(s, x.dtype(), limit);
    const bool padded = chunks.pitch != s.window();
    const std::int64_t rows = s.images * s.result_height;
    const Matrix columns(x.device(), x.dtype(), in_place ? 0 : chunks.rows * s.result_width * chunks.pitch);
    const Matrix copy(x.device(), weight.dtype(), padded ? s.group_results() * chunks.pitch : 0);
    Gemm g;
    g.n = s.group_results();
    g.k = chunks.pitch;
    g.trans_b = true;
    g.a_type = x.dtype(), g.b_type = weight.dtype(), g.c_type = y.dtype();
    g.lda = in_place ? s.channels : chunks.pitch;
    g.ldb = chunks.pitch, g.ldc = s.result_channels;
    if (bias.defined()) g.bias_type = bias.dtype();
    for (std::int64_t group = 0; group < s.geometry.groups; ++group) {
        const std::int64_t first_result = group * s.group_results();
        g.b = pitched_weight(s, weight, group, chunks.pitch, padded ? &copy : nullptr);
        if (bias.defined()) g.bias = at(bias, first_result);
        for (std::int64_t first = 0; first < rows; first += chunks.rows) {
            const std::int64_t count = std::min(chunks.rows, rows - first);
            g.m = count * s.result_width;
            g.a = in_place ? at(x, group * s.group_channels()) : columns.data();
            g.c = at(y, first * s.result_width * s.result_channels + first_result);
            if (!in_place) im2col(s, x.dtype(), raw(x), group, first, count, columns.data(), chunks.pitch);
            gemm(g);
        }
    }
}

// Chunks of dx: whole images, or some rows of one image where its products are more than the limit.
class Bands {
public:
    Bands(const ConvSizes& s, std::int64_t row_bytes, std::int64_t limit) : s_(s) {
        const std::int64_t image_bytes = s.result_height * row_bytes;
        images_ = chunk_of(s.images, image_bytes, limit);
        rows_ = s.height;
        if (image_bytes <= limit) return;
        const std::int64_t most = limit / std::max<std::int64_t>(row_bytes, 1), reach = reach_of(s);
        rows_ = std::clamp<std::int64_t>((most - 2) * s.geometry.stride.height - reach, 1, s.height);
    }
    // The most rows of g that a band reads.
    std::int64_t most_rows() const {
        if (rows_ == s_.height) return images_ * s_.result_height;
        const std::int64_t rows = (rows_ - 1 + reach_of(s_)) / s_.geometry.stride.height + 1;
        return images_ * std::min(rows, s_.result_height);
    }
    template <class Use> void each(const Use& use) const {
        for (std::int64_t image = 0; image < s_.images; image += images_)
            for (std::int64_t row = 0; row < s_.height; row += rows_) use(band(image, row));
    }

private:
    // Rows of x from the first to the last tap.
    static std::int64_t reach_of(const ConvSizes& s) {
        return (s.kernel_height - 1) * s.geometry.dilation.height;
    }
    ConvBand band(std::int64_t image, std::int64_t row) const {
        const std::int64_t stride = s_.geometry.stride.height, padding = s_.geometry.padding.height;
        ConvBand b{image, std::min(images_, s_.images - image), row, std::min(rows_, s_.height - row), 0, 0};
        const std::int64_t first = std::max<std::int64_t>(row + padding - reach_of(s_), 0);
        const std::int64_t end = std::min((row + b.rows - 1 + padding) / stride + 1, s_.result_height);
        if (rows_ == s_.height) {  // several images have no rows between them that are left out
            b.result_rows = s_.result_height;
        } else {
            b.first_result_row = (first + stride - 1) / stride;
            b.result_rows = std::max<std::int64_t>(end - b.first_result_row, 0);
        }
        return b;
    }

    const ConvSizes& s_;
    std::int64_t images_, rows_;
};

void input_grad_by_windows(const ConvSizes& s, const Tensor& g_in, const Tensor& weight, const Tensor& bias,
                           const Tensor& dx, std::int64_t limit) {
    const bool in_place = s.is_product();
    const Dtype sums = sum_type(g_in, weight, dx);
    const std::int64_t pitch = pitch_of(s.window(), sums),
                       row = s.result_width * pitch * std::int64_t(size_of(sums));
    const Bands bands(s, row, limit);
    const Matrix products(dx.device(), sums, in_place ? 0 : bands.most_rows() * s.result_width * pitch);
    Gemm g;
    g.n = s.window();
    g.k = s.group_results();
    g.a_type = g_in.dtype(), g.b_type = weight.dtype(), g.c_type = in_place ? dx.dtype() : sums;
    g.lda = s.result_channels, g.ldb = s.window(), g.ldc = in_place ? s.channels : pitch;
    if (bias.defined()) g.bias_type = bias.dtype();
    for (std::int64_t group = 0; group < s.geometry.groups; ++group) {
        const std::int64_t first_result = group * s.group_results();
        g.b = at(weight, first_result * s.window());
        if (in_place) {
            g.m = s.pixels();
            g.a = at(g_in, first_result);
            g.c = at(dx, group * s.group_channels());
            if (bias.defined()) g.bias = at(bias, group * s.group_channels());
            gemm(g);
            continue;
        }
        g.c = products.data();
        bands.each([&](const ConvBand& band) {
            const std::int64_t first_row = band.image * s.result_height + band.first_result_row;
            g.m = band.images * band.result_rows * s.result_width;
            g.a = at(g_in, first_row * s.result_width * s.result_channels + first_result);
            gemm(g);
            col2im(s, products.data(), sums, pitch, group, band, bias, dx);
        });
    }
}

void weight_grad_by_windows(const ConvSizes& s, const Tensor& g_in, const Tensor& x, double beta,
                            const Tensor& dw, std::int64_t limit) {
    const bool in_place = s.is_product();
    const Chunks chunks(s, x.dtype(), limit);
    const std::int64_t rows = s.images * s.result_height;
    // the sum over several chunks is rounded once
    const Dtype sums = sum_type(g_in, x, dw);
    const bool rounds = chunks.rows < rows && dw.dtype() != sums;  // then sums are float32
    const Matrix columns(x.device(), x.dtype(), in_place ? 0 : chunks.rows * s.result_width * chunks.pitch);
    const std::int64_t size = s.group_results() * s.window();
    const Matrix wide(x.device(), sums, rounds ? dw.numel() : 0);
    Gemm g;
    g.m = s.group_results();
    g.n = s.window();
    g.trans_a = true;
    g.a_type = g_in.dtype(), g.b_type = x.dtype(), g.c_type = rounds ? sums : dw.dtype();
    g.lda = s.result_channels, g.ldb = in_place ? s.channels : chunks.pitch, g.ldc = s.window();
    for (std::int64_t group = 0; group < s.geometry.groups; ++group) {
        g.c = rounds ? at(wide.data(), sums, group * size) : at(dw, group * size);
        g.beta = rounds ? 0 : static_cast<float>(beta);
        std::int64_t first = 0;
        do {  // once without pixels, too: beta
            const std::int64_t count = std::min(chunks.rows, rows - first);
            g.k = count * s.result_width;
            g.a = at(g_in, first * s.result_width * s.result_channels + group * s.group_results());
            g.b = in_place ? at(x, group * s.group_channels()) : columns.data();
            if (!in_place) im2col(s, x.dtype(), raw(x), group, first, count, columns.data(), chunks.pitch);
            gemm(g);
            g.beta = 1;
            first += chunks.rows;
        } while (first < rows);
    }
    if (rounds)
        sum_parts(static_cast<const float*>(wide.data()), dw.numel(), 1, static_cast<float>(beta), dw);
}

void use_device_of(const Tensor& x) {
    if (x.device().index != current_device()) set_device(x.device().index);
}

}  // namespace

void conv_forward(In in, const kernels::Conv2d& at, Out out, const ConvWay& way) {
    if (out[0].numel() == 0) return;
    use_device_of(out[0]);
    const Tensor bias = in.size() > 2 ? in[2] : Tensor();
    const ConvSizes s(in[0], in[1], out[0], at.geometry);
    if (way.implicit && implicit_forward(s, in[0], in[1], bias, out[0], way.tile)) return;
    forward_by_windows(s, in[0], in[1], bias, out[0], way.matrix_bytes);
}

void conv_input_grad(In in, const kernels::Conv2dInputGrad& at, Out out, const ConvWay& way) {
    if (out[0].numel() == 0) return;
    use_device_of(out[0]);
    const Tensor bias = in.size() > 2 ? in[2] : Tensor();
    const ConvSizes s(out[0], in[1], in[0], at.geometry);
    if (way.implicit && implicit_input_grad(s, in[0], in[1], bias, out[0], way.tile)) return;
    input_grad_by_windows(s, in[0], in[1], bias, out[0], way.matrix_bytes);
}

void conv_weight_grad(In in, const kernels::Conv2dWeightGrad& at, Out out, const ConvWay& way) {
    if (out[0].numel() == 0) return;
    use_device_of(out[0]);
    const ConvSizes s(in[1], out[0], in[0], at.geometry);
    if (way.implicit && implicit_weight_grad(s, in[0], in[1], at.beta, out[0], way.tile, way.splits)) return;
    weight_grad_by_windows(s, in[0], in[1], at.beta, out[0], way.matrix_bytes);
}

}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

namespace {

bool uses_implicit(FastPathId path, const Tensor& operand, const kernels::ConvGeometry& geometry) {
    return is_16bit(operand.dtype()) && geometry.groups == 1 &&
           uses_fast_path(cuda::implicit_convolution(), path, operand.device(), operand.dtype());
}

}  // namespace

void conv2d(In in, const kernels::Conv2d& at, Out out) {
    cuda::conv_forward(in, at, out,
                       {.implicit = uses_implicit(FastPathId::implicit_convolution, in[0], at.geometry)});
}

void conv2d_input_grad(In in, const kernels::Conv2dInputGrad& at, Out out) {
    cuda::conv_input_grad(
        in, at, out,
        {.implicit = uses_implicit(FastPathId::implicit_convolution_input_grad, in[0], at.geometry)});
}

void conv2d_weight_grad(In in, const kernels::Conv2dWeightGrad& at, Out out) {
    cuda::conv_weight_grad(
        in, at, out,
        {.implicit = uses_implicit(FastPathId::implicit_convolution_weight_grad, in[0], at.geometry)});
}

constinit const KernelList conv_list = kernel_list<conv2d, conv2d_input_grad, conv2d_weight_grad>;

}  // namespace mezzo::cuda_kernels
