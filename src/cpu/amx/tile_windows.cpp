// Products of windows on tiles. A tile is 16 rows of 64 bytes any distance apart, so 16 neighbouring windows
// need no copy: for every tap they are 16 neighbouring pixels. These must exist where the window leaves the
// image, and have whole tiles of channels. So some rows of the image at a time are copied with their padding
// to memory that stays in the L2 cache.
#include "cpu/amx/tile_windows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/round_up.h"
#include "cpu/buffer.h"
#include "cpu/conv/window_band.h"
#include "cpu/elementwise/convert.h"
#include "cpu/gemm/five_loops.h"
#include "cpu/gemm/packed_weight.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t band_bytes = 256 << 10;     // of an image, copied at once
constexpr std::int64_t weight_bytes = 1280 << 10;  // of a packed weight: what stays in the L2 cache
constexpr std::int64_t least_channels = 16;        // of which whole tiles are made
constexpr std::int64_t tile_rows = 16, size = 2;   // bytes of an element

// Buffers of each thread. weight and bias belong to the thread that called, band to each that computes.
thread_local struct { Buffer weight, bias, band; } scratch;

// Windows of few channels with one tap per row of the kernel: the taps of a row are neighbours in the source.
// The band then has a pixel per window instead of one per pixel of the source (Product::spread_row).
// Returns x if it has enough channels, or taps apart from each other.
Windows joined(const Windows& x) {
    const std::int64_t taps = std::int64_t(x.taps.size());
    if (x.channels >= least_channels || x.channels != x.pixel || taps < 2) return x;
    std::int64_t across = 1;
    while (across < taps && x.taps[std::size_t(across)].h == x.taps[0].h) ++across;
    Windows rows = x;
    rows.taps.clear();
    for (std::int64_t t = 0; t < taps; ++t) {
        const Tap &tap = x.taps[std::size_t(t)], &first = x.taps[std::size_t(t / across * across)];
        if (tap.h != first.h || tap.w != x.taps[0].w + t % across || tap.index != first.index + t % across)
            return x;
        if (t % across == 0) rows.taps.push_back({tap.h, 0, tap.index});
    }
    rows.channels *= across, rows.pixel = 1;
    rows.width = x.columns, rows.step.width = 1;
    return rows;
}

class Product {
public:
    Product(const WindowProduct& product, const TileProduct& tile_product, std::int64_t group_index)
        : p(product), tiles(tile_product), x(joined(product.windows)), group(group_index) {}

    void run() {
        Ref<Storage> packed;
        if (p.weight.tensor && p.groups == 1 && !p.transposed)
            packed =
                packed_for_tiles(*p.weight.tensor, tiles, std::int64_t(x.taps.size()), x.channels, x.count());
        packed ? void(weight = static_cast<const char*>(panels_of(*packed))) : pack_weight();
        for (const Tap& tap : x.taps)
            for (std::int64_t c = 0; c < channels; c += tile_steps)
                offsets.push_back(band.offset(tap) + c * size);
        if (p.bias) {
            float* const to = scratch.bias.get<float>(p.result.pixel);
            convert(p.bias, p.bias_type, to, float32, p.result.pixel);
            bias = to + group * p.columns();
        }
        const std::int64_t wanted = 4 * num_threads();
        const std::int64_t some =
            std::min(band.rows_in(band_bytes), (x.images * x.rows + wanted - 1) / wanted);
        const std::int64_t bands = (x.rows + some - 1) / some, work = x.count() * x.steps() * p.columns();
        parallel_for(x.images * bands, grain(x.images * bands, work),
                     [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t u = begin; u < end; ++u) {
                             const std::int64_t first = u % bands * some;
                             compute(u / bands, first, std::min(some, x.rows - first));
                         }
                     });
    }

private:
    // Packs op(B): the steps of each tap in turn, filled up with zeros to whole tiles.
    void pack_weight() {
        const ConvWeight& w = p.weight;
        const std::int64_t n = p.columns(), tap_tiles = channels / tile_steps;
        const std::int64_t panel = std::int64_t(x.taps.size()) * tap_tiles * 2 * tile_bytes;
        char* to = scratch.weight.get<char>(round_up(n, panel_lines) / panel_lines * panel);
        weight = to;
        const char* const from = w.data + group * p.group_outputs() * w.row() * size;
        for (const Tap& tap : x.taps) {
            const Operand of_tap{from + tap.index * w.inputs * size, bfloat16, w.row(), !p.transposed};
            tiles.pack_b({of_tap, n, x.channels, 0, tap_tiles, to, panel});
            to += tap_tiles * 2 * tile_bytes;
        }
    }

    // Copies what the windows of a row read in row `row` of all images.
    void spread_row(std::int64_t row, char* to) const {
        const Windows& source = p.windows;
        const std::int64_t pixel = source.pixel * size, step = source.step.width * pixel;
        const std::int64_t left = source.taps[0].w * pixel, end = source.width * pixel,
                           used = x.channels * size;
        const char* const from = source.data + row * end;
        const auto inside = [&](std::int64_t j) {
            return j * step + left >= 0 && j * step + left + used <= end;
        };
        for (std::int64_t j = 0; j < x.columns; ++j, to += channels * size) {
            const std::int64_t begin = j * step + left, first = std::clamp<std::int64_t>(begin, 0, end),
                               last = std::clamp<std::int64_t>(begin + used, first, end);
            if (!inside(j)) {
                std::memset(to, 0, std::size_t(channels * size));
                std::memcpy(to + (first - begin), from + first, std::size_t(last - first));
                continue;
            }
            const std::int64_t n = std::min(x.columns - j, (end - used - begin) / step + 1);
            tiles.copy_pieces(from + begin, step, x.channels, n, to);
            j += n - 1, to += (n - 1) * channels * size;
        }
    }

    void copy_pixels(std::int64_t at, std::int64_t n, char* to) const {
        const char* from = x.data + group * x.channels * size + at;
        if (x.channels == channels && x.pixel == channels)
            return void(std::memcpy(to, from, std::size_t(n * channels * size)));
        const auto copy = [&](std::int64_t used, std::int64_t unused) __attribute__((always_inline)) {
            for (; n > 0; --n, from += x.pixel * size, to += channels * size) {
                std::memcpy(to, from, std::size_t(used));
                std::memset(to + used, 0, std::size_t(unused));
            }
        };
        // Calls for so few bytes, unless the compiler knows their number, would take longer than the copy.
        if (x.channels == least_channels)
            copy(least_channels * size, (tile_steps - least_channels) * size);
        else
            copy(x.channels * size, (channels - x.channels) * size);
    }

    void compute(std::int64_t image, std::int64_t first, std::int64_t rows) const {
        char* const seen = scratch.band.get<char>(band.bytes(rows));
        band.copy(image, first, rows, seen, [&](std::int64_t at, std::int64_t n, char* to) {
            x.channels > x.pixel ? spread_row(at / x.columns, to) : copy_pixels(at * size, n, to);
        });
        const bool short_rows = x.columns <= tile_rows && p.result.dense();  // two of them make a run
        std::vector<TileRun> runs;
        for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t j = 0; j < x.columns; j += panel_lines) {
                const char* const from = seen + i * band.row_step() + j * band.step();
                TileRun run{from, from + tile_rows * band.step(), tile_rows,
                            std::min(panel_lines, x.columns - j), p.result.element(image, first + i, j)};
                if (short_rows && i + 1 < rows) {
                    ++i;
                    run.second = from + band.row_step();
                    run.split = x.columns, run.rows = 2 * x.columns;
                }
                runs.push_back(run);
            }
        Gemm g{.n = p.columns()};
        g.c = p.result.data + group * g.n * std::int64_t(size_of(p.result.type)), g.c_type = p.result.type;
        g.ldc = p.result.step.width * p.result.pixel;
        g.activation = p.activation;
        if (p.residual) g.added = p.residual + (static_cast<char*>(g.c) - p.result.data), g.beta = 1;
        tiles.multiply_windows({g, bias, runs.data(), std::int64_t(runs.size()), band.step(), offsets.data(),
                                std::int64_t(offsets.size()), weight});
    }

    const WindowProduct& p;
    const TileProduct& tiles;
    const Windows x;
    const std::int64_t group;
    const std::int64_t channels = round_up(x.channels, tile_steps);  // of a copied pixel
    const WindowBand band{x, channels* size};
    std::vector<std::int64_t> offsets;
    const char* weight = nullptr;
    const float* bias = nullptr;
};

}  // namespace

bool suits_tiles(const WindowProduct& p, const TileProduct& product) {
    if (!product.multiply_windows || p.windows.channels > p.windows.pixel || p.windows.type != bfloat16 ||
        p.weight.type != bfloat16)
        return false;
    const Windows x = joined(p.windows);
    const bool few = x.channels < least_channels && x.channels == p.windows.channels;
    // A kernel of one tap needs no padded copy: its windows are the image itself, or with a stride so few of
    // the pixels that copying those is less work than copying the image's rows. Only the strided result of a
    // gradient by the input makes the copy worthwhile.
    if (x.taps.empty() || few || (p.windows.taps.size() == 1 && p.result.dense())) return false;
    const std::int64_t k = std::int64_t(x.taps.size()) * round_up(x.channels, tile_steps);
    const bool fills_tiles = x.columns <= tile_rows ? x.columns >= tile_rows / 2
                                                    : round_up(x.columns, tile_rows) * 4 <= x.columns * 5;
    const WindowBand band(x, round_up(x.channels, tile_steps) * size);
    return fills_tiles && band.fits() && k * round_up(p.columns(), panel_lines) * size <= weight_bytes;
}

void multiply_windows_on_tiles(const WindowProduct& p, const TileProduct& product) {
    for (std::int64_t group = 0; group < p.groups; ++group) Product(p, product, group).run();
}

}  // namespace mezzo::cpu
