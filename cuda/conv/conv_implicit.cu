// Convolutions, and their gradients with respect to the input, on Tensor Cores without a matrix of windows.
// Both are sums over the taps of pixels times weights: [pixels, taps x source channels] times [taps x source
// channels, result channels]. A thread computes the address of each 16 bytes from the pixel and the tap.
//
// The input gradient reads g with the taps mirrored. With a stride, the pixels of dx fall into phases: those
// of one phase are read by the same taps. Each phase is a product of its own in the same launch.
//
// Operations: 2 pixels window O. Memory: the source once per 128 (64) result channels, mostly from the L2
// cache, the weight once per tile of rows, the result once. Shared memory per block: 80 KiB (128 x 128), 60
// KiB (128 x 64), 40 KiB (64 x 64).
#include <algorithm>
#include <numeric>

#include "cuda/conv/conv_implicit.cuh"

namespace mezzo::cuda {
namespace {

constexpr int max_phases = 16;

// One axis of a phase. Pixel i of the phase is pixel first + i step of the result. Tap t of the phase is
// tap_first + t tap_step of the kernel, and reads the source at source_first + i source_step + t tap_reach.
struct PhaseAxis {
    int count, first, step;
    int taps, tap_first, tap_step;
    int source_first, source_step, tap_reach;
};

struct Phase {
    PhaseAxis h, w;
    FastDivide image_pixels, row_pixels, row_taps;
    int pixels, factors;  // factors of a sum
    std::int64_t first_tile;
};

struct ImplicitProduct {
    const void *source, *weight, *bias;
    void* result;
    Dtype bias_type;
    int source_height, source_width, result_height, result_width, result_channels;
    FastDivide source_channels;
    int kernel_width, taps;  // of the whole kernel
    int phases;
    std::int64_t tiles;
    Phase phase[max_phases];
};

// The rows of a tile: pixels, as the source pixel that tap 0 reads.
template <class T, class A> struct PixelRows {
    const ImplicitProduct& p;
    const Phase& f;
    int h[A::passes], w[A::passes], offset[A::passes];

    __device__ PixelRows(const ImplicitProduct& product, const Phase& phase, int first)
        : p(product), f(phase) {
        MEZZO_UNROLL
        for (int pass = 0; pass < A::passes; ++pass) {
            const int row = first + A::own_line(pass);
            const int pixel = row < f.pixels ? row : 0;  // rows behind the last are not stored
            const int image = f.image_pixels(pixel), rest = pixel - image * f.image_pixels.size();
            const int i = f.row_pixels(rest), j = rest - i * f.row_pixels.size();
            h[pass] = f.h.source_first + i * f.h.source_step;
            w[pass] = f.w.source_first + j * f.w.source_step;
            offset[pass] =
                ((image * p.source_height + h[pass]) * p.source_width + w[pass]) * p.source_channels.size();
        }
    }
    __device__ void fetch(int step, T* to) const {
        const int k = step * conv_depth + A::column();
        const int tap = p.source_channels(k), channel = k - tap * p.source_channels.size();
        const int r = f.row_taps(tap), s = tap - r * f.row_taps.size();
        const int down = r * f.h.tap_reach, right = s * f.w.tap_reach;
        const int reach = (down * p.source_width + right) * p.source_channels.size() + channel;
        MEZZO_UNROLL
        for (int pass = 0; pass < A::passes; ++pass) {
            const bool there = k < f.factors &&
                               static_cast<unsigned>(h[pass] + down) < unsigned(p.source_height) &&
                               static_cast<unsigned>(w[pass] + right) < unsigned(p.source_width);
            const T* const source = static_cast<const T*>(p.source);
            A::copy(to, pass, there ? source + (offset[pass] + reach) : source, there);
        }
    }
};

// Columns of the forward pass: rows of the weight [O, taps, C], which hold the factors in their order.
template <class T, class B> struct WeightRows {
    const ImplicitProduct& p;
    const Phase& f;
    int first;

    __device__ void fetch(int step, T* to) const {
        const int k = step * conv_depth + B::column();
        MEZZO_UNROLL
        for (int pass = 0; pass < B::passes; ++pass) {
            const int o = first + B::own_line(pass);
            const bool there = o < p.result_channels && k < f.factors;
            const T* const weight = static_cast<const T*>(p.weight);
            B::copy(to, pass, there ? weight + (o * f.factors + k) : weight, there);
        }
    }
};

// Columns of the input gradient: the factor (tap, o) of all channels lies in one line of the weight.
template <class T, class B> struct WeightColumns {
    const ImplicitProduct& p;
    const Phase& f;
    int first;

    __device__ void fetch(int step, T* to) const {
        const int c = first + B::column();
        MEZZO_UNROLL
        for (int pass = 0; pass < B::passes; ++pass) {
            const int k = step * conv_depth + B::own_line(pass);
            const int n = p.source_channels(k), o = k - n * p.source_channels.size();
            const int r = f.row_taps(n), s = n - r * f.row_taps.size();
            const int tap =
                (f.h.tap_first + r * f.h.tap_step) * p.kernel_width + f.w.tap_first + s * f.w.tap_step;
            const bool there = c < p.result_channels && k < f.factors;
            const T* const weight = static_cast<const T*>(p.weight);
            B::copy(to, pass, there ? weight + ((o * p.taps + tap) * p.result_channels + c) : weight, there);
        }
    }
};

// Adds the bias, rounds, and stores a tile through shared memory, so that rows are written in whole.
template <class T, class Tile, int rows, int columns>
__device__ void store_tile(const ImplicitProduct& p, const Phase& f, const typename Tile::Sums& sums,
                           T* shared, int first_row, int first_column) {
    constexpr int pitch = columns + 8, pieces = columns / 8;
    MEZZO_UNROLL
    for (int j = 0; j < Tile::column_tiles; ++j) {
        const int column = Tile::column(j);
        float bias[2] = {};
        if (p.bias != nullptr && first_column + column < p.result_channels)
            for (int n = 0; n < 2; ++n)
                bias[n] = load_as<float, Dtypes::floating>(p.bias, p.bias_type, first_column + column + n);
        MEZZO_UNROLL
        for (int i = 0; i < Tile::row_tiles; ++i) {
            MEZZO_UNROLL
            for (int e = 0; e < 4; e += 2)
                *reinterpret_cast<Vec<T, 2>*>(shared + Tile::row(i, e) * pitch + column) = {
                    {from_float<T>(sums[i][j][e] + bias[0]), from_float<T>(sums[i][j][e + 1] + bias[1])}};
        }
    }
    __syncthreads();
    for (int n = static_cast<int>(threadIdx.x); n < rows * pieces; n += static_cast<int>(conv_threads)) {
        const int row = n / pieces, column = n % pieces * 8, pixel = first_row + row;
        if (pixel >= f.pixels || first_column + column >= p.result_channels) continue;
        const int image = f.image_pixels(pixel), rest = pixel - image * f.image_pixels.size();
        const int i = f.row_pixels(rest), j = rest - i * f.row_pixels.size();
        const int at =
            (image * p.result_height + f.h.first + i * f.h.step) * p.result_width + f.w.first + j * f.w.step;
        *reinterpret_cast<Vec<T, 8>*>(static_cast<T*>(p.result) + at * p.result_channels + first_column +
                                      column) =
            *reinterpret_cast<const Vec<T, 8>*>(shared + row * pitch + column);
    }
}

template <class T, int rows, int columns, LineDirection b_lines> struct ImplicitTile {
    using Tile = ConvProductTile<T, rows, columns, LineDirection::along, b_lines>;
    static constexpr std::size_t result_bytes = rows * (columns + 8) * sizeof(T);
    static std::size_t shared_bytes() { return std::max(Tile::stages_bytes(), result_bytes); }
};

template <class T, int rows, int columns, LineDirection b_lines>
__global__ void __launch_bounds__(conv_threads) implicit_kernel(MEZZO_GRID_CONSTANT const ImplicitProduct p) {
    using Tile = typename ImplicitTile<T, rows, columns, b_lines>::Tile;
    using Columns = std::conditional_t<b_lines == LineDirection::along, WeightRows<T, typename Tile::B>,
                                       WeightColumns<T, typename Tile::B>>;
    MEZZO_DYN_SHARED(T, shared);
    const int column_tiles = (p.result_channels + columns - 1) / columns;
    for (std::int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        int number = 0;
        while (number + 1 < p.phases && index >= p.phase[number + 1].first_tile) ++number;
        const Phase& f = p.phase[number];
        const int tile = static_cast<int>(index - f.first_tile);
        const int first_row = tile / column_tiles * rows, first_column = tile % column_tiles * columns;
        const PixelRows<T, typename Tile::A> a(p, f, first_row);
        const Columns b{p, f, first_column};
        typename Tile::Sums sums;
        Tile::multiply(
            sums, shared, (f.factors + conv_depth - 1) / conv_depth,
            [&](int step, T* to) { a.fetch(step, to); }, [&](int step, T* to) { b.fetch(step, to); });
        store_tile<T, Tile, rows, columns>(p, f, sums, shared, first_row, first_column);
    }
}

template <class T, int rows, int columns, LineDirection b_lines> void run(ImplicitProduct p) {
    p.tiles = 0;
    for (int i = 0; i < p.phases; ++i) {
        p.phase[i].first_tile = p.tiles;
        p.tiles += tiles_of(p.phase[i].pixels, rows) * tiles_of(p.result_channels, columns);
    }
    launch(implicit_kernel<T, rows, columns, b_lines>, grid_for(p.tiles, 1), conv_threads,
           ImplicitTile<T, rows, columns, b_lines>::shared_bytes(), p);
}

// Wide tiles where they fill the device: each element that they load takes part in more products.
ConvTile chosen(const ImplicitProduct& p, ConvTile tile) {
    if (tile != ConvTile::automatic) return tile;
    const int columns = p.result_channels <= 64 ? 64 : 128;
    std::int64_t tiles = 0;
    for (int i = 0; i < p.phases; ++i)
        tiles += tiles_of(p.phase[i].pixels, 128) * tiles_of(p.result_channels, columns);
    if (tiles < conv_full_device) return ConvTile::m64n64;
    return columns == 64 ? ConvTile::m128n64 : ConvTile::m128n128;
}

template <class T, LineDirection b_lines> void run_tile(const ImplicitProduct& p, ConvTile tile) {
    switch (chosen(p, tile)) {
        case ConvTile::m128n64:
            return run<T, 128, 64, b_lines>(p);
        case ConvTile::m64n64:
            return run<T, 64, 64, b_lines>(p);
        default:
            return run<T, 128, 128, b_lines>(p);
    }
}

template <LineDirection b_lines> void run_dtype(const ImplicitProduct& p, Dtype dtype, ConvTile tile) {
    dtype == float16 ? run_tile<float16_t, b_lines>(p, tile) : run_tile<bfloat16_t, b_lines>(p, tile);
}

Phase phase_of(std::int64_t images, const PhaseAxis& h, const PhaseAxis& w, std::int64_t source_channels) {
    const std::int64_t image = std::int64_t(h.count) * w.count;
    return {h,
            w,
            FastDivide(image),
            FastDivide(w.count),
            FastDivide(w.taps > 0 ? w.taps : 1),
            int(images * image),
            int(h.taps * w.taps * source_channels),
            0};
}

PhaseAxis forward_axis(std::int64_t result, std::int64_t taps, std::int64_t stride, std::int64_t padding,
                       std::int64_t dilation) {
    return {int(result), 0, 1, int(taps), 0, 1, -int(padding), int(stride), int(dilation)};
}

// The pixels of dx whose distance from the first tap's first pixel is `phase` modulo the stride. The taps t
// with t dilation = phase modulo the stride read them, if there are any.
PhaseAxis gradient_axis(int phase, std::int64_t size, std::int64_t taps, std::int64_t stride_,
                        std::int64_t padding_, std::int64_t dilation_) {
    const int stride = int(stride_), padding = int(padding_), dilation = int(dilation_);
    PhaseAxis a = {};
    a.first = ((phase - padding) % stride + stride) % stride;
    a.step = stride;
    a.count = a.first < size ? int((size - a.first + stride - 1) / stride) : 0;
    const int common = std::gcd(stride, dilation);
    a.tap_step = stride / common;
    a.tap_reach = -dilation / common;
    while (a.tap_first < taps && (phase - a.tap_first * dilation) % stride != 0) ++a.tap_first;
    a.taps = a.tap_first < taps ? int((taps - a.tap_first + a.tap_step - 1) / a.tap_step) : 0;
    a.source_first = a.taps > 0 ? (a.first + padding - a.tap_first * dilation) / stride : 0;
    a.source_step = 1;
    return a;
}

}  // namespace

bool implicit_forward(const ConvSizes& s, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Tensor& y, ConvTile tile) {
    if (!implicit_takes(s, x, weight) || y.dtype() != x.dtype() || !conv_aligned(y)) return false;
    const kernels::ConvGeometry& at = s.geometry;
    ImplicitProduct p = {};
    p.source = raw(x), p.weight = raw(weight), p.result = raw(y);
    if (bias.defined()) p.bias = raw(bias), p.bias_type = bias.dtype();
    p.source_height = int(s.height), p.source_width = int(s.width);
    p.result_height = int(s.result_height), p.result_width = int(s.result_width);
    p.result_channels = int(s.result_channels);
    p.source_channels = FastDivide(s.channels);
    p.kernel_width = int(s.kernel_width), p.taps = int(s.taps());
    p.phases = 1;
    p.phase[0] = phase_of(
        s.images,
        forward_axis(s.result_height, s.kernel_height, at.stride.height, at.padding.height,
                     at.dilation.height),
        forward_axis(s.result_width, s.kernel_width, at.stride.width, at.padding.width, at.dilation.width),
        s.channels);
    run_dtype<LineDirection::along>(p, x.dtype(), tile);
    return true;
}

bool implicit_input_grad(const ConvSizes& s, const Tensor& g, const Tensor& weight, const Tensor& bias,
                         const Tensor& dx, ConvTile tile) {
    const kernels::ConvGeometry& at = s.geometry;
    if (!implicit_takes(s, g, weight) || dx.dtype() != g.dtype() || !conv_aligned(dx)) return false;
    if (at.stride.height > 4 || at.stride.width > 4) return false;
    ImplicitProduct p = {};
    p.source = raw(g), p.weight = raw(weight), p.result = raw(dx);
    if (bias.defined()) p.bias = raw(bias), p.bias_type = bias.dtype();
    p.source_height = int(s.result_height), p.source_width = int(s.result_width);
    p.result_height = int(s.height), p.result_width = int(s.width);
    p.result_channels = int(s.channels);
    p.source_channels = FastDivide(s.result_channels);
    p.kernel_width = int(s.kernel_width), p.taps = int(s.taps());
    for (int i = 0; i < at.stride.height; ++i) {
        const PhaseAxis h = gradient_axis(i, s.height, s.kernel_height, at.stride.height, at.padding.height,
                                          at.dilation.height);
        for (int j = 0; j < at.stride.width; ++j) {
            const PhaseAxis w = gradient_axis(j, s.width, s.kernel_width, at.stride.width, at.padding.width,
                                              at.dilation.width);
            if (h.count > 0 && w.count > 0) p.phase[p.phases++] = phase_of(s.images, h, w, s.result_channels);
        }
    }
    run_dtype<LineDirection::across>(p, g.dtype(), tile);
    return true;
}

}  // namespace mezzo::cuda
