// Input gradients of few channels. A product of windows has a column per channel of its result, and three
// columns are a small part of a vector or tile. So the taps in a row of the kernel become channels: the
// product is the input gradient of a kernel of one column, and gives for each pixel of g what it adds to the
// neighbouring pixels of each row of dx:
//
//   row[h, j, s, :] = sum over r of g[i, j, :] weight[:, r, s, :]       i * stride - padding + r = h
//   dx[h, w, :] = bias + sum over s of row[h, j, s, :]                  j * stride - padding + s = w
//
// Bands of rows of dx depend on the sizes alone, and the terms of a pixel are added in a fixed order.
#include "cpu/conv/tap_sums.h"

#include <algorithm>
#include <utility>

#include "core/round_up.h"
#include "cpu/buffer.h"
#include "cpu/conv/window_product.h"
#include "cpu/conv/window_tables.h"
#include "cpu/elementwise/convert.h"
#include "cpu/gemm/five_loops.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t term_floats = 1 << 18;  // of the terms of a band
constexpr std::int64_t most_floats = 1 << 19;  // of those of `stride` rows
constexpr std::int64_t rows_at_once = 8;       // of dx, added up by a thread

// Buffers of each thread. sums belongs to each that computes, the others to the thread that called.
thread_local struct { Buffer bias, terms, sums; } scratch;

class TapSums {
public:
    TapSums(const Tensor& gradient, const Tensor& w, const kernels::ConvGeometry& geometry,
            const Tensor& result)
        : g(gradient), weight(w), at(geometry), dx(result) {}

    // Whether a row of sums is mostly pixels of dx, and the terms fit a thread's memory.
    bool fits() const { return across <= 2 * width + 64 && columns * line <= most_floats / at.stride.height; }

    void run(const Tensor& added) {
        if (added.defined()) {
            float* const to = scratch.bias.get<float>(channels);
            convert(added->bytes(), added->dtype, to, float32, channels);
            bias = to;
        }
        const std::int64_t all = dx->shape[0], stride = at.stride.height;
        const std::int64_t rows = term_floats / (columns * line);
        const std::int64_t images = std::clamp<std::int64_t>(rows / height, 1, all);
        const std::int64_t some = std::min(height, std::max<std::int64_t>(1, rows / stride) * stride);
        for (std::int64_t image = 0; image < all; image += images)
            for (std::int64_t row = 0; row < height; row += some)
                compute({image, std::min(images, all - image), row, std::min(some, height - row)});
    }

private:
    // Rows of some images. `first` is a multiple of the stride.
    struct Band {
        std::int64_t image, images, first, rows;
    };

    void compute(const Band& band) const {
        const std::int64_t count = band.images * band.rows;
        float* const terms = scratch.terms.get<float>(count * columns * line);
        multiply(band, terms);
        const std::int64_t units = parts_of(count, rows_at_once);
        parallel_for(units, grain(units, 8 * count * columns * line),
                     [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t u = begin; u < end; ++u) {
                             const std::int64_t row = u * rows_at_once;
                             add(band, terms, row, std::min(rows_at_once, count - row));
                         }
                     });
    }

    void multiply(const Band& band, float* terms) const {
        const kernels::ConvGeometry tall{
            {at.stride.height, 1}, {at.padding.height, 0}, {at.dilation.height, 1}, 1};
        std::vector<Phase> phases = phases_of_gradient(tall, {kernel.height, 1}, {band.rows, columns});
        if (std::erase_if(phases, [](const Phase& phase) { return phase.windows.taps.empty(); }) > 0)
            std::fill_n(terms, band.images * band.rows * columns * line, 0.0f);
        for (Phase& phase : phases) {
            WindowProduct p;
            p.windows = std::move(phase.windows);
            for (Tap& tap : p.windows.taps) tap.h += band.first / at.stride.height;
            set_source(p.windows, band);
            p.weight = {weight->bytes(), weight->dtype, weight->shape[0], kernel.height, line};
            p.transposed = true;
            p.result = {reinterpret_cast<char*>(terms), float32, band.rows, columns, line, phase.begin,
                        {at.stride.height, 1}};
            multiply_windows(p);
        }
    }

    void set_source(Windows& x, const Band& band) const {
        const Shape& shape = g->shape;
        x.type = g->dtype;
        x.images = band.images, x.height = shape[1], x.width = columns, x.pixel = x.channels = shape[3];
        x.data = g->bytes() + band.image * x.height * x.width * x.pixel * std::int64_t(size_of(x.type));
    }

    // Adds up and stores n rows of the band from row `begin` on. Pixels whose terms overlap are added in
    // turns, because a load that reads a part of a recent store waits for it.
    void add(const Band& band, const float* terms, std::int64_t begin, std::int64_t n) const {
        const std::int64_t row = across * channels, step = at.stride.width * channels;
        float* const sums = scratch.sums.get<float>(n * row);
        if (bias)
            for (float* to = sums; to != sums + n * row; to += channels) std::copy_n(bias, channels, to);
        else
            std::fill_n(sums, n * row, 0.0f);
        const std::int64_t turns = std::min(parts_of(kernel.width, at.stride.width), columns);
        for (std::int64_t q = 0; q < turns; ++q)
            for (std::int64_t i = 0; i < n; ++i)
                kernels.add_rows(terms + ((begin + i) * columns + q) * line, turns * line,
                                 sums + i * row + q * step, turns * step, parts_of(columns - q, turns), line);
        const auto size = std::int64_t(size_of(dx->dtype));
        for (std::int64_t i = 0; i < n; ++i) {
            const std::int64_t image = band.image + (begin + i) / band.rows,
                               h = band.first + (begin + i) % band.rows;
            convert(sums + i * row + at.padding.width * channels, float32,
                    dx->bytes() + (image * height + h) * width * channels * size, dx->dtype,
                    width * channels);
        }
    }

    const Tensor &g, &weight;
    const kernels::ConvGeometry& at;
    const Tensor& dx;
    const WindowKernels& kernels = window_kernels();
    const Size2d kernel{weight->shape[1], weight->shape[2]};
    const std::int64_t columns = g->shape[2];
    const std::int64_t height = dx->shape[1], width = dx->shape[2], channels = dx->shape[3];
    const std::int64_t line = kernel.width * channels;  // floats of a row of the kernel
    // Pixels of a row of sums: those of dx, and those to its sides that windows reach.
    const std::int64_t across =
        std::max(at.padding.width + width, (columns - 1) * at.stride.width + kernel.width);
    const float* bias = nullptr;
};

}  // namespace

bool has_few_channels(const Tensor& g, const Tensor& weight, const kernels::ConvGeometry& at,
                      const Tensor& dx) {
    return at.groups == 1 && at.dilation.width == 1 && weight->shape[2] > 1 &&
           2 * dx->shape[3] <= window_kernels().lanes && g->numel > 0 && weight->numel > 0 &&
           dx->dtype != float64 && g->dtype != float64 && TapSums(g, weight, at, dx).fits();
}

void add_taps(const Tensor& g, const Tensor& weight, const Tensor& bias, const kernels::ConvGeometry& at,
              const Tensor& dx) {
    TapSums(g, weight, at, dx).run(bias);
}

}  // namespace mezzo::cpu
