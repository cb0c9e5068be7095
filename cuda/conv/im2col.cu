// Windows of images as rows of a matrix (im2col), the gather that is their transpose (col2im), and sums of
// partial results. All three move each of their elements once, so that memory bandwidth bounds them.
#include "cuda/conv/conv.h"
#include "cuda/elementwise/elements.cuh"
#include "cuda/fast_divide.cuh"

namespace mezzo::cuda {
namespace {

constexpr unsigned block = 256;

// Limit of the indices of one launch, so that FastDivide can divide them.
constexpr std::int64_t most_items = std::int64_t(1) << 30;

// Geometry of one group's windows, in vectors of some width.
struct Windows {
    int height, width;  // of x
    int stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
    std::int64_t pixel;  // elements from pixel to pixel of x
    int vectors;         // that a window has
    FastDivide tap, kernel_width, image_rows;

    Windows(const ConvSizes& s, std::int64_t width_of_vector)
        : height(int(s.height)),
          width(int(s.width)),
          stride_h(int(s.geometry.stride.height)),
          stride_w(int(s.geometry.stride.width)),
          padding_h(int(s.geometry.padding.height)),
          padding_w(int(s.geometry.padding.width)),
          dilation_h(int(s.geometry.dilation.height)),
          dilation_w(int(s.geometry.dilation.width)),
          pixel(s.channels),
          vectors(int(s.window() / width_of_vector)),
          tap(s.group_channels() / width_of_vector),
          kernel_width(s.kernel_width),
          image_rows(std::max<std::int64_t>(s.result_height, 1)) {}
};

// Rows of the result from row `first_row` of image `first_image` on, as lines of `line` vectors each.
template <class T, int width> __global__ void im2col_kernel(Windows w, const T* x, std::int64_t first_image,
                                                            int first_row, int items, T* to, FastDivide row,
                                                            FastDivide line) {
    using Vector = Vec<T, width>;
    for (std::int64_t n = first_item(); n < items; n += item_step()) {
        const int i = static_cast<int>(n), of_row = row(i), in_row = i - of_row * row.size();
        const int pixel = line(in_row), column = in_row - pixel * line.size();
        const int tap = w.tap(column), channel = (column - tap * w.tap.size()) * width;
        const int r = w.kernel_width(tap), s = tap - r * w.kernel_width.size();
        const int result_row = first_row + of_row, image = w.image_rows(result_row);
        const int h =
            (result_row - image * w.image_rows.size()) * w.stride_h - w.padding_h + r * w.dilation_h;
        const int v = pixel * w.stride_w - w.padding_w + s * w.dilation_w;
        Vector value = {};
        if (column < w.vectors && h >= 0 && h < w.height && v >= 0 && v < w.width)
            value = *reinterpret_cast<const Vector*>(
                x + (((first_image + image) * w.height + h) * w.width + v) * w.pixel + channel);
        reinterpret_cast<Vector*>(to)[i] = value;
    }
}

bool is_aligned(const void* p, std::int64_t bytes) {
    return reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(bytes) == 0;
}

template <class T, int width> void run_im2col(const ConvSizes& s, const T* x, std::int64_t first,
                                              std::int64_t count, T* to, std::int64_t ld) {
    const std::int64_t row = s.result_width * (ld / width);
    check(row <= most_items, ErrorKind::value, "conv2d: the windows of one row of the result, ",
          s.result_width, " x ", s.window(), " elements, are too many");
    const std::int64_t step = most_items / row;
    for (std::int64_t done = 0; done < count; done += step) {
        const std::int64_t rows = step < count - done ? step : count - done, at = first + done;
        launch(im2col_kernel<T, width>, grid_for(rows * row, block), block, 0, Windows(s, width), x,
               at / s.result_height, int(at % s.result_height), int(rows * row),
               to + done * s.result_width * ld, FastDivide(row), FastDivide(ld / width));
    }
}

// dx of one pixel and vector of channels: the products of the taps that it was read by, in their order.
template <class P, class T, int width>
__global__ void col2im_kernel(Windows w, ConvBand band, int taps, int g_width, FastDivide stride_h,
                              FastDivide stride_w, const P* products, std::int64_t ld, AnyArray<P> bias,
                              T* dx, std::int64_t items) {
    const int vectors = w.tap.size();
    for (std::int64_t i = first_item(); i < items; i += item_step()) {
        const std::int64_t pixel = i / vectors, row = pixel / w.width, image = row / band.rows;
        const int channel = static_cast<int>(i - pixel * vectors) * width;
        const int h = static_cast<int>(band.first_row + row - image * band.rows),
                  v = static_cast<int>(pixel - row * w.width);
        P sum[width] = {};
        for (int tap = 0; tap < taps; ++tap) {
            const int r = w.kernel_width(tap), s = tap - r * w.kernel_width.size();
            const int from_h = h + w.padding_h - r * w.dilation_h,
                      from_v = v + w.padding_w - s * w.dilation_w;
            if (from_h < 0 || from_v < 0) continue;
            const int to_h = stride_h(from_h), to_v = stride_w(from_v);
            if (to_h * w.stride_h != from_h || to_v * w.stride_w != from_v || to_v >= g_width) continue;
            const std::int64_t g_row = to_h - band.first_result_row;
            if (g_row < 0 || g_row >= band.result_rows) continue;
            const std::int64_t line = (image * band.result_rows + g_row) * g_width + to_v;
            const auto part = *reinterpret_cast<const Vec<P, width>*>(products + line * ld +
                                                                      tap * vectors * width + channel);
            for (int n = 0; n < width; ++n) sum[n] += part.v[n];
        }
        Vec<T, width> result;
        for (int n = 0; n < width; ++n)
            result.v[n] = convert<T>(bias.p == nullptr ? sum[n] : sum[n] + bias.load(channel + n));
        *reinterpret_cast<Vec<T, width>*>(
            dx + (((band.image + image) * w.height + h) * w.width + v) * w.pixel + channel) = result;
    }
}

template <class P, class T, int width> void run_col2im(const ConvSizes& s, const void* products,
                                                       std::int64_t ld, const ConvBand& band,
                                                       AnyArray<P> bias, T* dx) {
    const Windows windows(s, width);
    const std::int64_t items = band.images * band.rows * s.width * (s.group_channels() / width);
    launch(col2im_kernel<P, T, width>, grid_for(items, block), block, 0, windows, band, int(s.taps()),
           int(s.result_width), FastDivide(s.geometry.stride.height), FastDivide(s.geometry.stride.width),
           static_cast<const P*>(products), ld, bias, dx, items);
}

__global__ void sum_parts_kernel(const float* parts, std::int64_t n, std::int64_t count, float beta,
                                 AnyArray<float> result) {
    for (std::int64_t i = first_item(); i < n; i += item_step()) {
        float sum = 0;
        for (std::int64_t part = 0; part < count; ++part) sum += parts[part * n + i];
        if (beta != 0) sum += beta * result.load(i);
        result.store(i, sum);
    }
}

}  // namespace

void im2col(const ConvSizes& s, Dtype dtype, const void* x, std::int64_t group, std::int64_t first,
            std::int64_t count, void* to, std::int64_t ld) {
    if (count == 0 || ld == 0 || s.result_width == 0) return;
    visit_dtype<Dtypes::floating>(dtype, [&]<class T>(std::type_identity<T>) {
        constexpr int width = 16 / sizeof(T);
        const T* const from = static_cast<const T*>(x) + group * s.group_channels();
        const bool whole = s.group_channels() % width == 0 && s.channels % width == 0 && ld % width == 0 &&
                           is_aligned(from, 16) && is_aligned(to, 16);
        if (whole)
            run_im2col<T, width>(s, from, first, count, static_cast<T*>(to), ld);
        else
            run_im2col<T, 1>(s, from, first, count, static_cast<T*>(to), ld);
    });
}

void col2im(const ConvSizes& s, const void* products, Dtype products_type, std::int64_t ld,
            std::int64_t group, const ConvBand& band, const Tensor& bias, const Tensor& dx) {
    const std::int64_t first = group * s.group_channels();
    const auto bias_of = [&]<class P>(std::type_identity<P>) {
        if (!bias.defined()) return AnyArray<P>{nullptr, float32};
        return AnyArray<P>{static_cast<char*>(raw(bias)) + first * std::int64_t(size_of(bias.dtype())),
                           bias.dtype()};
    };
    if (products_type == float64)  // then all operands are
        return run_col2im<double, double, 1>(s, products, ld, band, bias_of(std::type_identity<double>()),
                                             static_cast<double*>(raw(dx)) + first);
    const AnyArray<float> narrow = bias_of(std::type_identity<float>());
    visit_dtype<Dtypes::up_to_32bit>(dx.dtype(), [&]<class T>(std::type_identity<T>) {
        constexpr int width = 4;
        T* const to = static_cast<T*>(raw(dx)) + first;
        const bool whole = s.group_channels() % width == 0 && s.channels % width == 0 && ld % width == 0 &&
                           is_aligned(to, width * sizeof(T)) && is_aligned(products, 16);
        whole ? run_col2im<float, T, width>(s, products, ld, band, narrow, to)
              : run_col2im<float, T, 1>(s, products, ld, band, narrow, to);
    });
}

void sum_parts(const float* parts, std::int64_t n, std::int64_t count, float beta, const Tensor& result) {
    launch(sum_parts_kernel, grid_for(n, block), block, 0, parts, n, count, beta, any_of<float>(result));
}

}  // namespace mezzo::cuda
