// Gradients of convolutions with respect to the weight on Tensor Cores, without a matrix of windows: g^T [O,
// pixels] times the windows of x [pixels, taps x C]. Both operands lie across, so that ldmatrix transposes
// them.
//
// There are few tiles and many pixels. So the pixels are split into parts, a number that depends on the sizes
// only; each part's sums go to memory of their own, and a second kernel adds them in order.
//
// Operations: 2 pixels window O. Memory: g once per 128 (64) columns of the weight, x once per 128 (64)
// result channels and tap, mostly from the L2 cache; 8 bytes per part and element of the weight. Shared
// memory per block: 68 KiB (128 x 128), 52 KiB (64 x 128), 36 KiB (64 x 64).
#pragma once

#include "cuda/conv/conv_implicit.cuh"

namespace mezzo::cuda::weight_product {

// One axis: pixel i of the result reads pixel i stride + tap dilation - padding of x.
struct WindowAxis {
    int size, stride, padding, dilation;
};

struct WeightProduct {
    const void *g, *x;
    float* parts;  // [parts][result channels][window], or null: the one part is the result
    AnyArray<float> result;
    float beta;
    WindowAxis h, w;
    FastDivide image_pixels, row_pixels, channels, kernel_width;
    int pixels, result_channels, window;
    int steps, part_steps;  // of 32 pixels, in all and per part
    std::int64_t tiles;
};

// The pixel that a thread's piece of a line belongs to; past the end where there is none.
template <class Operand> __device__ int pixel_of(int step, int pass) {
    return step * conv_depth + Operand::own_line(pass);
}

// Rows: result channels `first` and on of g.
template <class T, class A> struct GradientColumns {
    const WeightProduct& p;
    int first;

    __device__ void fetch(int step, T* to) const {
        const int o = first + A::column();
        MEZZO_UNROLL
        for (int pass = 0; pass < A::passes; ++pass) {
            const int pixel = pixel_of<A>(step, pass);
            const bool there = pixel < p.pixels && o < p.result_channels;
            const T* const g = static_cast<const T*>(p.g);
            A::copy(to, pass, there ? g + (pixel * p.result_channels + o) : g, there);
        }
    }
};

// Columns: elements `first` and on of the windows. A thread's piece belongs to one tap.
template <class T, class B> struct WindowColumns {
    const WeightProduct& p;
    int channel, down, right;
    bool inside;  // of the window

    __device__ WindowColumns(const WeightProduct& product, int first) : p(product) {
        const int column = first + B::column(), tap = p.channels(column);
        const int r = p.kernel_width(tap), s = tap - r * p.kernel_width.size();
        channel = column - tap * p.channels.size();
        down = r * p.h.dilation - p.h.padding;
        right = s * p.w.dilation - p.w.padding;
        inside = column < p.window;
    }
    __device__ void fetch(int step, T* to) const {
        MEZZO_UNROLL
        for (int pass = 0; pass < B::passes; ++pass) {
            const int pixel = pixel_of<B>(step, pass);
            const int image = p.image_pixels(pixel), rest = pixel - image * p.image_pixels.size();
            const int i = p.row_pixels(rest), j = rest - i * p.row_pixels.size();
            const int h = i * p.h.stride + down, w = j * p.w.stride + right;
            const bool there = inside && pixel < p.pixels &&
                               static_cast<unsigned>(h) < static_cast<unsigned>(p.h.size) &&
                               static_cast<unsigned>(w) < static_cast<unsigned>(p.w.size);
            const T* const x = static_cast<const T*>(p.x);
            const int at = ((image * p.h.size + h) * p.w.size + w) * p.channels.size() + channel;
            B::copy(to, pass, there ? x + at : x, there);
        }
    }
};

template <class Tile> __device__ void store_sums(const WeightProduct& p, const typename Tile::Sums& sums,
                                                 std::int64_t part, int first_row, int first_column) {
    MEZZO_UNROLL
    for (int i = 0; i < Tile::row_tiles; ++i) {
        MEZZO_UNROLL
        for (int e = 0; e < 4; e += 2) {
            const int row = first_row + Tile::row(i, e);
            if (row >= p.result_channels) continue;
            MEZZO_UNROLL
            for (int j = 0; j < Tile::column_tiles; ++j) {
                const int column = first_column + Tile::column(j);
                if (column >= p.window) continue;
                const int at = row * p.window + column;
                if (p.parts != nullptr) {
                    float* const to = p.parts + part * p.result_channels * p.window + at;
                    *reinterpret_cast<Vec<float, 2>*>(to) = {{sums[i][j][e], sums[i][j][e + 1]}};
                    continue;
                }
                for (int n = 0; n < 2; ++n) {
                    const float old = p.beta != 0 ? p.beta * p.result.load(at + n) : 0.0f;
                    p.result.store(at + n, sums[i][j][e + n] + old);
                }
            }
        }
    }
}

template <class T, int rows, int columns> using WeightTile =
    ConvProductTile<T, rows, columns, LineDirection::across, LineDirection::across>;

template <class T, int rows, int columns> __global__ void __launch_bounds__(conv_threads)
    implicit_weight_kernel(WeightProduct p) {
    using Tile = WeightTile<T, rows, columns>;
    MEZZO_DYN_SHARED(T, shared);
    const int row_tiles = (p.result_channels + rows - 1) / rows,
              column_tiles = (p.window + columns - 1) / columns;
    for (std::int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        const int part = static_cast<int>(index / (row_tiles * column_tiles)),
                  tile = static_cast<int>(index % (row_tiles * column_tiles));
        const int first_row = tile / column_tiles * rows, first_column = tile % column_tiles * columns;
        const int first_step = part * p.part_steps, left = p.steps - first_step;
        const GradientColumns<T, typename Tile::A> a{p, first_row};
        const WindowColumns<T, typename Tile::B> b(p, first_column);
        typename Tile::Sums sums;
        Tile::multiply(
            sums, shared, left < p.part_steps ? left : p.part_steps,
            [&](int step, T* to) { a.fetch(first_step + step, to); },
            [&](int step, T* to) { b.fetch(first_step + step, to); });
        store_sums<Tile>(p, sums, part, first_row, first_column);
    }
}

template <class T, int rows, int columns> void run(WeightProduct p, std::int64_t parts) {
    p.tiles = parts * tiles_of(p.result_channels, rows) * tiles_of(p.window, columns);
    launch(implicit_weight_kernel<T, rows, columns>, grid_for(p.tiles, 1), conv_threads,
           WeightTile<T, rows, columns>::stages_bytes(), p);
}

// Compiled by one source per dtype, since each takes half a minute.
template <class T> void run_tile(const WeightProduct& p, ConvTile tile, std::int64_t parts) {
    switch (tile) {
        case ConvTile::m128n64:
            return run<T, 64, 128>(p, parts);
        case ConvTile::m64n64:
            return run<T, 64, 64>(p, parts);
        default:
            return run<T, 128, 128>(p, parts);
    }
}

}  // namespace mezzo::cuda::weight_product
