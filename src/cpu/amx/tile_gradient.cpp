// Weight gradients on tiles. A step of the product is a pixel, and AMX multiplies steps in pairs: one pixel
// of each of two images. So the elements of two images are paired when they are copied with their padding,
// and 16 neighbouring pixels are a tile of any tap.
#include "cpu/amx/tile_gradient.h"

#include <algorithm>
#include <vector>

#include "core/round_up.h"
#include "cpu/buffer.h"
#include "cpu/conv/window_band.h"
#include "cpu/gemm/five_loops.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t band_bytes = 384 << 10;                   // of a pair of images, copied at once
constexpr std::int64_t gradient_bytes = 1 << 20;                 // of their gradients
constexpr std::int64_t most_parts = 16, part_floats = 1 << 19;   // of the sums that are added at the end
constexpr std::int64_t most_sums = 1 << 20, few_sums = 1 << 16;  // of a gradient
constexpr std::int64_t tile_rows = 16, size = 2, pair_size = 4;  // bytes of an element

// Buffers of each thread. sums belongs to the thread that called, the others to each that computes.
thread_local struct { Buffer sums, band, gradients; } scratch;

// Bytes of the tiles that hold one row of the gradients of `outputs`.
std::int64_t gradient_row(const Windows& x, std::int64_t outputs) {
    return parts_of(x.columns, tile_rows) * parts_of(outputs, tile_rows) * tile_bytes;
}

class Gradient {
public:
    Gradient(const WindowGradient& gradient, const TileProduct& product)
        : p(gradient), tiles(product), x(gradient.windows) {
        for (std::int64_t c = 0; c < x.pixel; c += tile_rows)
            for (std::size_t t = 0; t < x.taps.size(); ++t)
                columns.push_back(
                    {band.offset(x.taps[t]) + c * pair_size, std::int64_t(t) * x.channels + c % x.channels});
    }

    // The split of the pairs of images into parts depends on the sizes alone, and the parts' sums are added
    // in order.
    void run(float* sums, bool accumulate) {
        const std::int64_t pairs = (x.images + 1) / 2, count = p.outputs * ld;
        const std::int64_t parts =
            std::clamp<std::int64_t>(std::min(pairs, part_floats / count), 1, most_parts);
        float* const more = parts > 1 ? scratch.sums.get<float>((parts - 1) * count) : nullptr;
        const std::int64_t strips = std::min(parts_of(num_threads(), parts), parts_of(p.outputs, tile_rows)),
                           units = parts * strips;
        parallel_for(units, grain(units, count * x.count()), [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t u = begin; u < end; ++u) {
                const std::int64_t part = u / strips, s = u % strips, lines = parts_of(p.outputs, tile_rows);
                const std::int64_t first = s * lines / strips * tile_rows,
                                   last = (s + 1) * lines / strips * tile_rows;
                float* const to = (part == 0 ? sums : more + (part - 1) * count) + first * ld;
                for (std::int64_t i = part * pairs / parts; i < (part + 1) * pairs / parts; ++i)
                    add_pair(i, first, last - first, to,
                             i > part * pairs / parts || (part == 0 && accumulate));
            }
        });
        for (std::int64_t part = 0; part + 1 < parts; ++part)
            for (std::int64_t i = 0; i < count; ++i) sums[i] += more[part * count + i];
    }

private:
    // Adds the gradient of outputs [first, first + lines) by a pair of images.
    void add_pair(std::int64_t pair, std::int64_t first, std::int64_t lines, float* to,
                  bool accumulate) const {
        const std::int64_t some = std::min(band.rows_in(band_bytes), gradient_bytes / gradient_row(x, lines));
        for (std::int64_t row = 0; row < x.rows; row += some) {
            add_rows(2 * pair, row, std::min(some, x.rows - row), first, lines, to, accumulate);
            accumulate = true;
        }
    }

    void add_rows(std::int64_t image, std::int64_t row, std::int64_t rows, std::int64_t first,
                  std::int64_t lines, float* to, bool accumulate) const {
        const bool both = image + 1 < x.images;
        char* const seen = scratch.band.get<char>(band.bytes(rows));
        band.copy(image, row, rows, seen, [&](std::int64_t at, std::int64_t n, char* pairs) {
            const char* const from = x.data + at * size;
            tiles.pair(from, both ? from + x.height * x.width * x.pixel * size : nullptr, n * x.pixel, pairs);
        });
        const std::int64_t across = parts_of(x.columns, tile_rows), count = rows * across;
        char* const a = scratch.gradients.get<char>(rows * gradient_row(x, lines));
        std::vector<const char*> pixels;
        for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t j = 0; j < x.columns; j += tile_rows) {
                const char* const from =
                    p.gradient + (((image * x.rows + row + i) * x.columns + j) * p.outputs + first) * size;
                const char* const second = both ? from + x.rows * x.columns * p.outputs * size : nullptr;
                for (std::int64_t o = 0; o < lines; o += tile_rows)
                    tiles.pair_lines(from + o * size, second ? second + o * size : second, p.outputs * size,
                                     std::min(tile_rows, x.columns - j),
                                     a + (o / tile_rows * count + std::int64_t(pixels.size())) * tile_bytes);
                pixels.push_back(seen + i * band.row_step() + j * band.step());
            }
        const std::int64_t outputs = p.group_outputs(),
                           across_group = std::int64_t(columns.size()) / p.groups;
        for (std::int64_t o = 0, n = 0; o < lines; o += n) {
            const std::int64_t group = (first + o) / outputs;
            n = std::min(lines, (group + 1) * outputs - first) - o;
            tiles.add_gradient({a + o / tile_rows * count * tile_bytes, n, count, pixels.data(), band.step(),
                                columns.data() + group * across_group, across_group, to + o * ld, ld,
                                accumulate});
        }
    }

    const WindowGradient& p;
    const TileProduct& tiles;
    const Windows& x;
    const WindowBand band{x, x.pixel* pair_size};
    const std::int64_t ld = x.steps();
    std::vector<TileColumns> columns;  // of each group
};

}  // namespace

bool suits_tiles(const WindowGradient& p, const TileProduct& product) {
    const Windows& x = p.windows;
    const std::int64_t sums = p.outputs * x.steps(), pixels = round_up(x.columns, tile_rows);
    if (!product.add_gradient || x.channels * p.groups != x.pixel || x.type != bfloat16 ||
        p.gradient_type != bfloat16)
        return false;
    if (x.taps.size() < 2 || x.channels % tile_rows != 0 || p.group_outputs() % tile_rows != 0) return false;
    const WindowBand band(x, x.pixel * pair_size);
    // A tile reads pixels behind a row's last window and multiplies them with 0. That turns an infinity or
    // NaN into NaN, so such a pixel must not lie outside of all windows.
    if (!band.fits() || !band.sees_all_pixels() || gradient_row(x, p.outputs) > gradient_bytes) return false;
    // Tiles that are half empty pay only where copies of all windows would be the larger part of the work.
    return x.columns * 5 >= pixels * 4 ? sums <= most_sums : x.columns * 2 >= pixels && sums <= few_sums;
}

void add_window_gradient_on_tiles(const WindowGradient& p, const TileProduct& product, float* sums,
                                  bool accumulate) {
    Gradient(p, product).run(sums, accumulate);
}

}  // namespace mezzo::cpu
