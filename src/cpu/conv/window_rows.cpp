// Products of windows on vectors. The weight is packed once for all threads; each thread takes blocks of
// pixels, computes the addresses of their windows and multiplies those. Kernels of depth 1 read
// windows of 16-bit numbers from a float32 copy of the part of the image that the block reads. Steps,
// channels and floats of a packed weight are counted in slots of 32 bits, each of which holds `depth`
// channels.
#include "cpu/conv/window_paths.h"

#include <algorithm>

#include "core/round_up.h"
#include "cpu/buffer.h"
#include "cpu/elementwise/convert.h"
#include "cpu/gemm/five_loops.h"
#include "cpu/gemm/packed_weight.h"
#include "cpu/isa/isa_tables.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {

const WindowKernels& window_kernels() {
    const Isa isa = active_isa();
    if (isa >= Isa::avx512 && windows_avx512.mr != 0) return windows_avx512;
    if (isa != Isa::portable && windows_avx2.mr != 0) return windows_avx2;
    return windows_portable;
}

namespace {

// Floats of the packed weight, or one panel: shared by all threads, or of one thread, where it fits L2.
constexpr std::int64_t shared_floats = 1 << 21, own_floats = 1 << 18;
constexpr std::int64_t step_block = 512;        // of a panel, which stays in the L2 cache
constexpr std::int64_t image_floats = 1 << 17;  // that a block of pixels sees
constexpr std::int64_t most_rows = 384, least_rows = 48;
constexpr std::int64_t sum_floats = 2048;  // finished at once, from the L1 cache
constexpr auto float_bytes = std::int64_t(sizeof(float));

// Buffers of each thread. weight and bias belong to the thread that called, the others to each that computes.
thread_local struct { Buffer weight, own_weight, bias, zeros, lines, image, sums; } scratch;

class Product {
public:
    Product(const WindowProduct& product, const WindowKernels& of)
        : kernels(of),
          p(product),
          x(product.windows),
          channels(x.channels / kernels.depth),
          steps(x.steps() / kernels.depth),
          taps(std::int64_t(x.taps.size())),
          columns(product.columns()),
          panels((columns + kernels.nr - 1) / kernels.nr) {}

    void run() {
        if (p.bias) {
            float* const to = scratch.bias.get<float>(p.result.pixel);
            convert(p.bias, p.bias_type, to, float32, p.result.pixel);
            bias = to;
        }
        const Ref<Storage> copy = packed();
        if (copy) all_panels = static_cast<const float*>(panels_of(*copy));
        const std::int64_t panel = steps * kernels.nr;
        const auto strip = [&](std::int64_t floats) {
            return std::clamp<std::int64_t>(floats / panel, 1, panels);
        };
        const std::int64_t own = strip(own_floats), strips = (panels + own - 1) / own;
        for (std::int64_t group = 0; group < p.groups; ++group) {
            if (num_threads() == 1 || strips >= 2 * num_threads())
                each_its_columns(group, own, strips);
            else
                for (std::int64_t j = 0, all = strip(shared_floats); j < panels; j += all)
                    each_its_rows(group, j, std::min(panels, j + all));
        }
    }

private:
    std::int64_t work() const { return x.count() * x.steps() * columns; }

    // The packed copy of a frozen weight: the panels of all groups. Null if there is none.
    Ref<Storage> packed() const {
        if (!p.weight.tensor || p.transposed || x.count() > packed_windows) return {};
        const std::int64_t panel = steps * kernels.nr;
        const PackedLayout layout{&kernels, columns, steps,
                                  std::size_t(p.groups * panels * panel * float_bytes), p.weight.taps};
        return packed_copy(*p.weight.tensor, layout, [&](char* to) {
            pack_panels(0, p.groups * panels, reinterpret_cast<float*>(to));
        });
    }

    // Panels [first, first + n) of all groups, by all threads.
    void pack_panels(std::int64_t first, std::int64_t n, float* to) const {
        parallel_for(n, work() < parallel_work ? n : 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t u = begin; u < end; ++u)
                pack_panel((first + u) / panels, (first + u) % panels, to + u * steps * kernels.nr);
        });
    }

    // Panel `first` of a group's weight and those behind it in the packed copy. Null if there is no copy.
    const float* packed_panels(std::int64_t group, std::int64_t first) const {
        return all_panels ? all_panels + (group * panels + first) * steps * kernels.nr : nullptr;
    }

    // Each thread packs a part of the weight that stays in its L2 cache, for all pixels.
    void each_its_columns(std::int64_t group, std::int64_t own, std::int64_t strips) {
        parallel_for(strips, work() < parallel_work ? strips : 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t u = begin; u < end; ++u) {
                const std::int64_t first = u * own, last = std::min(panels, first + own);
                const float* b = packed_panels(group, first);
                if (!b) {
                    float* const to = scratch.own_weight.get<float>(own * steps * kernels.nr);
                    for (std::int64_t j = first; j < last; ++j)
                        pack_panel(group, j, to + (j - first) * steps * kernels.nr);
                    b = to;
                }
                for (std::int64_t i = 0, block = block_rows(1); i < x.count(); i += block)
                    compute_block(group, first, last, b, i, std::min(block, x.count() - i));
            }
        });
    }

    // Panels [first, last) of the weight are packed for all threads, which take blocks of pixels.
    void each_its_rows(std::int64_t group, std::int64_t first, std::int64_t last) {
        const float* b = packed_panels(group, first);
        if (!b) {
            float* const to = scratch.weight.get<float>((last - first) * steps * kernels.nr);
            pack_panels(group * panels + first, last - first, to);
            b = to;
        }
        // As many blocks for each thread, of about the same number of rows. Many are handed out several at a
        // time (parallel.h).
        const std::int64_t block = block_rows(num_threads()), unit = 2 * kernels.mr,
                           units = (x.count() + unit - 1) / unit, least = (x.count() + block - 1) / block,
                           together = std::max<std::int64_t>(least / (num_threads() * 8), 1),
                           blocks = std::min(units, round_up(least, num_threads() * together));
        const auto edge = [&](std::int64_t u) { return std::min(u * units / blocks * unit, x.count()); };
        parallel_for(blocks, grain(blocks, work()), [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t u = begin; u < end; ++u)
                compute_block(group, first, last, b, edge(u), edge(u + 1) - edge(u));
        });
    }

    std::int64_t ld_lines(std::int64_t rows) const { return rows + 2 * kernels.mr; }

    // Rows of a block: few enough for its part of the image to stay in the L2 cache, and for all threads to
    // have work.
    std::int64_t block_rows(std::int64_t threads) const {
        const std::int64_t seen = std::max<std::int64_t>(
            1, std::min(x.step.height, x.height) * std::min(x.step.width, x.width) * x.pixel);
        const std::int64_t fair = x.count() / (threads * 4);
        const std::int64_t rows = std::clamp(std::min(image_floats / seen, fair), least_rows, most_rows);
        return round_up(rows, 2 * kernels.mr);
    }

    void pack_panel(std::int64_t group, std::int64_t panel, float* to) const {
        const std::int64_t j = panel * kernels.nr, width = std::min<std::int64_t>(kernels.nr, columns - j);
        const ConvWeight& w = p.weight;
        const auto size = std::int64_t(size_of(w.type));
        const auto operand = [&](std::int64_t element, bool along_k) {
            return Operand{w.data + element * size, w.type, w.row(), along_k};
        };
        if (!p.transposed)
            return kernels.pack(operand((group * columns + j) * w.row(), true), width, x.steps(), to);
        for (const Tap& tap : x.taps) {
            kernels.pack(operand(group * x.channels * w.row() + tap.index * w.inputs + j, false), width,
                         x.channels, to);
            to += channels * kernels.nr;
        }
    }

    void compute_block(std::int64_t group, std::int64_t first, std::int64_t last, const float* b,
                       std::int64_t begin, std::int64_t rows) const {
        const std::int64_t j = first * kernels.nr, width = std::min(last * kernels.nr, columns) - j;
        const char** const lines = scratch.lines.get<const char*>(taps * ld_lines(rows));
        float* const zeros = scratch.zeros.get<float>(channels);
        std::fill_n(zeros, channels, 0.0f);
        find_lines(group, begin, rows, reinterpret_cast<const char*>(zeros), lines);
        const bool whole = p.result.dense() && p.result.type == float32 && width % kernels.lanes == 0;
        const bool in_registers = whole && kernels.depth == 1;
        const bool plain = whole && !in_registers && !bias && !p.residual && p.activation == Activation::none;
        float* const sums =
            plain ? nullptr : scratch.sums.get<float>(round_up(rows, kernels.mr) * kernels.nr);
        for (std::int64_t q = 0; q < width; q += kernels.nr) {
            WindowTile tile{};
            tile.lines = reinterpret_cast<const float* const*>(lines), tile.ld_lines = ld_lines(rows);
            tile.zeros = zeros;
            tile.rows = rows, tile.columns = std::min<std::int64_t>(kernels.nr, width - q);
            tile.t = sums, tile.ldt = kernels.nr;
            tile.result = reinterpret_cast<char*>(sums);
            const std::int64_t at = group * columns + j + q;
            if (p.result.dense()) {
                const auto size = std::int64_t(size_of(p.result.type));
                tile.result = p.result.data + (begin * p.result.pixel + at) * size;
                tile.ld_result = p.result.pixel * size;
                if (p.residual) tile.added = p.residual + (tile.result - p.result.data);
            }
            if (plain) tile.t = reinterpret_cast<float*>(tile.result), tile.ldt = p.result.pixel;
            tile.finish = in_registers, tile.relu = p.activation == Activation::relu;
            tile.bias = bias ? bias + at : nullptr;
            multiply(tile, b + q * steps, [&](const WindowTile& part, std::int64_t first_row) {
                kernels.multiply(part);
                if (!plain && !in_registers) finish(at, begin + first_row, part.rows, part.columns, part.t);
            });
        }
    }

    // All steps, as many at once as step_block. For the last of them calls last(part of the tile, its first
    // row) instead of the kernel, for a few rows at a time, whose sums are then in the L1 cache.
    template <class F> void multiply(WindowTile& tile, const float* b, const F& last) const {
        const float* const* const lines = tile.lines;
        const std::int64_t some = std::clamp<std::int64_t>(step_block / std::max<std::int64_t>(1, channels),
                                                           1, std::max<std::int64_t>(1, taps));
        const std::int64_t parts = (channels + step_block - 1) / step_block,
                           part = (channels + parts - 1) / parts;
        std::int64_t t = 0;
        do {
            tile.taps = std::min(some, taps - t);
            tile.lines = lines + t * tile.ld_lines;
            for (std::int64_t c = 0; c < channels; c += part) {
                tile.first = c, tile.steps = std::min(part, channels - c);
                tile.b = b + (t * channels + c) * kernels.nr;
                tile.accumulate = t > 0 || c > 0;
                set_ahead(tile);
                if (t + tile.taps == taps && c + tile.steps == channels) {
                    by_rows(tile, last);
                    continue;
                }
                WindowTile sums = tile;
                sums.result = reinterpret_cast<char*>(tile.t), sums.ld_result = tile.ldt * float_bytes;
                sums.added = nullptr, sums.finish = false;
                kernels.multiply(sums);
            }
            t += tile.taps;
        } while (t < taps);
    }

    // Chunks of steps of a tile, each of which prefetches.
    static std::int64_t chunks(const WindowTile& tile) {
        return tile.taps * ((tile.steps + window_steps - 1) / window_steps);
    }
    // Lets a tile of a packed copy, which comes from memory, prefetch as many steps of the weight as it has:
    // those that follow.
    void set_ahead(WindowTile& tile) const {
        const std::int64_t floats = tile.taps * tile.steps * kernels.nr;
        const std::int64_t turns = tile.rows / kernels.mr * chunks(tile);
        tile.ahead = reinterpret_cast<const char*>(tile.b + floats);
        tile.pace = all_panels && turns > 0 ? (floats * float_bytes / 64 + turns - 1) / turns : 0;
    }

    template <class F> void by_rows(const WindowTile& tile, const F& f) const {
        if (tile.finish || (reinterpret_cast<char*>(tile.t) == tile.result && p.result.dense()))
            return f(tile, 0);
        const std::int64_t unit = 2 * kernels.mr, some = sum_floats / kernels.nr / unit * unit;
        for (std::int64_t i = 0; i < tile.rows; i += some) {
            WindowTile part = tile;
            part.lines += i, part.rows = std::min(some, tile.rows - i);
            part.result += i * tile.ld_result;
            if (part.added) part.added += i * tile.ld_result;
            part.ahead += i / kernels.mr * tile.pace * chunks(tile) * 64;
            if (tile.accumulate) part.t += i * tile.ldt;  // otherwise all rows take the same memory in turn
            f(part, i);
        }
    }

    void find_lines(std::int64_t group, std::int64_t begin, std::int64_t rows, const char* none,
                    const char** lines) const {
        Windows seen = x;
        if (kernels.depth == 1 && x.type != float32) {
            const auto [first, end] = x.source_pixels(begin, rows);
            float* const image = scratch.image.get<float>((end - first) * x.pixel);
            convert(x.data + first * x.pixel * 2, x.type, image, float32, (end - first) * x.pixel);
            seen.data = reinterpret_cast<const char*>(image), seen.type = float32, seen.origin = first;
        }
        seen.data += group * x.channels * std::int64_t(size_of(seen.type));
        for (std::int64_t t = 0; t < taps; ++t, lines += ld_lines(rows)) {
            seen.find(t, begin, rows, none, lines);
            std::fill(lines + rows, lines + ld_lines(rows), none);
        }
    }

    // Writes sums [rows, width] to column `at` of the pixels, one run of neighbours at a time.
    void finish(std::int64_t at, std::int64_t begin, std::int64_t rows, std::int64_t width,
                const float* sums) const {
        Epilogue e{};
        e.ldt = kernels.nr, e.columns = width, e.c_type = p.result.type;
        e.bias = bias ? bias + at : nullptr;
        e.alpha = 1, e.beta = p.residual ? 1 : 0;
        e.activation = p.activation;
        const auto size = std::int64_t(size_of(p.result.type));
        const auto write = [&](std::int64_t element, std::int64_t pixel, std::int64_t n, std::int64_t done) {
            e.t = sums + done * kernels.nr;
            e.rows = n, e.ldc = pixel;
            e.c = p.result.data + (element + at) * size;
            if (p.residual) e.added = p.residual + (element + at) * size;
            epilogue(e);
        };
        if (p.result.dense()) return write(begin * p.result.pixel, p.result.pixel, rows, 0);
        for (std::int64_t done = 0; done < rows;) {
            const std::int64_t i = begin + done, column = i % x.columns,
                               n = std::min(rows - done, x.columns - column);
            write(p.result.element(i / x.columns / x.rows, i / x.columns % x.rows, column),
                  p.result.step.width * p.result.pixel, n, done);
            done += n;
        }
    }

    const WindowKernels& kernels;
    void (*const epilogue)(const Epilogue&) = gemm_kernels(std::min(active_isa(), Isa::avx512)).epilogue;
    const WindowProduct& p;
    const Windows& x;
    const std::int64_t channels, steps, taps, columns, panels;
    const float *bias = nullptr, *all_panels = nullptr;
};

}  // namespace

void multiply_windows_in_place(const WindowProduct& p, const WindowKernels& kernels) {
    Product(p, kernels).run();
}

}  // namespace mezzo::cpu
