// Weight gradients on vectors: products of the transposed gradient with windows, whose steps are the pixels.
// A unit of work packs both for a part of the pixels and a part of the columns. The split of the pixels into
// parts depends on the sizes alone, and the parts' sums are added in order: the number of threads changes no
// bit.
#include "cpu/conv/window_paths.h"

#include <algorithm>

#include "core/round_up.h"
#include "cpu/buffer.h"
#include "cpu/gemm/five_loops.h"
#include "cpu/gemm/prefetch.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t units = 16;               // of work that are wanted
constexpr std::int64_t least_panels = 4;         // of columns in a unit, for which the gradient is packed
constexpr std::int64_t least_pixels = 1024;      // in a part
constexpr std::int64_t sums_floats = 1 << 20;    // of all parts
constexpr std::int64_t packed_floats = 1 << 16;  // of the gradient, packed at once

constexpr std::int64_t rows_in_place = 64, pixels_in_place = 128;

// Buffers of each thread. sums belongs to the thread that called, the others to each that computes.
thread_local struct { Buffer sums, a, b, lines, zeros; } scratch;

// One group's gradient.
class Gradient {
public:
    Gradient(const WindowGradient& gradient, const WindowKernels& of, std::int64_t group_index)
        : kernels(of),
          p(gradient),
          x(gradient.windows),
          group(group_index),
          rows(gradient.group_outputs()),
          columns(x.steps()),
          pixels(x.count()) {
        const std::int64_t panels = parts_of(columns, kernels.nr);
        const std::int64_t most = std::min(pixels / least_pixels, sums_floats / (rows * columns));
        parts = std::clamp<std::int64_t>(most, 1, units);
        strips = std::clamp<std::int64_t>(parts_of(units, parts), 1,
                                          std::max<std::int64_t>(1, panels / least_panels));
        strip = parts_of(panels, strips) * kernels.nr;
        strips = parts_of(columns, strip);
        // Windows that few rows are multiplied with are not worth packing.
        in_place = x.type == float32 && x.channels % kernels.lanes == 0 && rows <= rows_in_place;
        at_once = in_place ? pixels_in_place : std::clamp<std::int64_t>(packed_floats / rows, 64, 256);
    }

    std::int64_t work() const { return rows * columns * pixels; }
    std::int64_t units_of_work() const { return parts * strips; }

    void run() {
        char* const to = p.result + group * rows * columns * std::int64_t(size_of(p.result_type));
        in_result = parts == 1 && p.result_type == float32 && (p.beta == 0 || p.beta == 1) &&
                    columns % kernels.lanes == 0;
        ld = in_result ? columns : round_up(columns, kernels.lanes);
        sums = in_result ? reinterpret_cast<float*>(to) : scratch.sums.get<float>(parts * rows * ld);
        const std::int64_t count = units_of_work();
        parallel_for(count, work() < parallel_work ? count : 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t u = begin; u < end; ++u) compute(u / strips, u % strips);
        });
        if (!in_result) finish(to);
    }

private:
    // Addresses of k windows, for the taps of some columns: those of tap `tap` are at at[(tap - first) * k].
    struct WindowAddresses {
        const char** at;
        std::int64_t first;
    };

    void compute(std::int64_t part, std::int64_t s) const {
        const std::int64_t begin = part * pixels / parts, end = (part + 1) * pixels / parts;
        const std::int64_t first = s * strip, width = std::min(strip, columns - first);
        auto& own = scratch;
        float* const a = own.a.get<float>(round_up(rows, kernels.mr) * at_once);
        float* const b = own.b.get<float>(kernels.nr * at_once);
        float* const t = sums + part * rows * ld;
        for (std::int64_t i = begin; i < end; i += at_once) {
            const std::int64_t k = std::min(at_once, end - i);
            const WindowAddresses lines = find_lines(first, width, i, k);
            const auto size = std::int64_t(size_of(p.gradient_type));
            kernels.pack_a(
                {p.gradient + (i * p.outputs + group * rows) * size, p.gradient_type, p.outputs, false}, rows,
                k, a);
            Prefetch ahead;
            if (i + k < end) {
                add(ahead, next_pixels(p.gradient + group * rows * size, size, p.outputs, rows, i + k, k));
                if (pixel_by_pixel())
                    add(ahead,
                        next_pixels(x.data, std::int64_t(size_of(x.type)), x.pixel, x.channels, i + k, k));
                set_pace(ahead, parts_of(rows, kernels.mr) * parts_of(width, kernels.nr) * k);
            }
            for (std::int64_t j = first; j < first + width; j += kernels.nr) {
                const std::int64_t some = std::min<std::int64_t>(kernels.nr, first + width - j);
                const bool more = i > begin || (in_result && p.beta != 0);
                if (in_place) {
                    multiply_in_place(lines, j, some, k, a, t + j, more, ahead);
                    continue;
                }
                pack_panel(lines, j, some, k, b);
                kernels.tile(a, k, {b, kernels.nr, 0}, k, rows, some, t + j, ld, more, ahead);
            }
        }
    }

    void multiply_in_place(const WindowAddresses& lines, std::int64_t j, std::int64_t width, std::int64_t k,
                           const float* a, float* t, bool add, Prefetch& ahead) const {
        constexpr int most = 16;  // vectors of a panel
        const float* const* of_vector[most];
        std::int64_t firsts[most];
        for (std::int64_t v = 0; v * kernels.lanes < width; ++v) {
            const std::int64_t column = j + v * kernels.lanes, tap = column / x.channels;
            of_vector[v] = reinterpret_cast<const float* const*>(lines.at + (tap - lines.first) * k);
            firsts[v] = column % x.channels;
        }
        kernels.tile_in_place(a, of_vector, firsts, k, rows, width, t, ld, add, ahead);
    }

    // Whether window i sits at pixel i of the image.
    bool pixel_by_pixel() const { return x.step == Size2d(1) && x.rows == x.height && x.columns == x.width; }

    // `count` elements of each of `k` pixels from pixel `begin` on.
    static Prefetch::Region next_pixels(const char* data, std::int64_t size, std::int64_t pixel,
                                        std::int64_t count, std::int64_t begin, std::int64_t k) {
        return region_of(data + begin * pixel * size, pixel * size, k, count * size);
    }

    WindowAddresses find_lines(std::int64_t column, std::int64_t width, std::int64_t begin,
                               std::int64_t k) const {
        const std::int64_t first = column / x.channels, last = (column + width - 1) / x.channels;
        const char** const lines = scratch.lines.get<const char*>((last - first + 1) * k);
        const std::int64_t size = x.channels * std::int64_t(size_of(x.type));
        char* const zeros = scratch.zeros.get<char>(size);
        std::fill_n(zeros, size, char(0));
        Windows of_group = x;
        of_group.data += group * size;
        for (std::int64_t tap = first; tap <= last; ++tap)
            of_group.find(tap, begin, k, zeros, lines + (tap - first) * k);
        return {lines, first};
    }

    // Columns [j, j + width) of k windows; those that the last vector lacks are zero.
    void pack_panel(const WindowAddresses& lines, std::int64_t j, std::int64_t width, std::int64_t k,
                    float* b) const {
        if (width % kernels.lanes != 0) std::fill_n(b, k * kernels.nr, 0.0f);
        for (std::int64_t done = 0; done < width;) {
            const std::int64_t tap = (j + done) / x.channels, channel = (j + done) % x.channels;
            const std::int64_t n = std::min(width - done, x.channels - channel);
            kernels.pack_lines(lines.at + (tap - lines.first) * k, x.type, channel, n, k, b + done);
            done += n;
        }
    }

    // result = beta * result + the sums of all parts, in order.
    void finish(char* to) const {
        const auto size = std::int64_t(size_of(p.result_type));
        parallel_for(rows, grain(rows, parts * rows * columns), [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t part = 1; part < parts; ++part) {
                const float* const more = sums + part * rows * ld;
                for (std::int64_t i = begin * ld; i < end * ld; ++i) sums[i] += more[i];
            }
            Epilogue e{};
            e.t = sums + begin * ld, e.ldt = ld;
            e.rows = end - begin, e.columns = columns;
            e.c = to + begin * columns * size, e.ldc = columns, e.c_type = p.result_type;
            e.alpha = 1, e.beta = float(p.beta);
            gemm_kernels(std::min(active_isa(), Isa::avx512)).epilogue(e);
        });
    }

    const WindowKernels& kernels;
    const WindowGradient& p;
    const Windows& x;
    const std::int64_t group, rows, columns, pixels;
    std::int64_t strips = 0, strip = 0;   // of columns
    std::int64_t parts = 0, at_once = 0;  // of pixels
    bool in_result = false, in_place = false;
    float* sums = nullptr;
    std::int64_t ld = 0;
};

}  // namespace

void add_window_gradient_by_vectors(const WindowGradient& p, const WindowKernels& kernels) {
    // Threads take whole groups, unless a group has more units of work than there are groups.
    const Gradient any(p, kernels, 0);
    const bool apart = p.groups >= any.units_of_work();
    parallel_for(p.groups, apart ? grain(p.groups, p.groups * any.work()) : p.groups,
                 [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t group = begin; group < end; ++group) Gradient(p, kernels, group).run();
                 });
}

}  // namespace mezzo::cpu
