// Convolutions whose groups have few channels: with vectors of the channels of several groups. A unit of work
// copies the part of the image that some rows of windows read, with zeros around it, to float32 planes. Plane
// s holds, for each channel of the result, channel s of its group. So a step of a product, which is a tap and
// a plane, lies equally far from every window, and neighbouring channels of the result multiply neighbouring
// floats. float32 images of depthwise convolutions are such a plane themselves: at the border, taps outside
// the image are left out. With AVX-512 products read images of 2, 4 or 8 channels in and out themselves, too.
#include "cpu/conv/window_paths.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/round_up.h"
#include "cpu/buffer.h"
#include "cpu/conv/window_band.h"
#include "cpu/conv/window_tables.h"
#include "cpu/elementwise/convert.h"
#include "cpu/gemm/five_loops.h"
#include "cpu/isa/isa_tables.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t planes_bytes = 1 << 18;
constexpr std::int64_t most_channels = 16, widest_vector = 16;
constexpr std::int64_t channels_at_once = 128;  // of all planes, if they are copies
constexpr std::int64_t channels_in_place = 256;
constexpr std::int64_t most_columns = 256;                   // of a strip; a row is one sum of a gradient
constexpr std::int64_t most_rows = 64;                       // of a strip
constexpr std::int64_t most_parts = 16, least_pixels = 512;  // of a weight gradient

// Buffers of each thread. weight and sums belong to the thread that called, the others to each that computes.
thread_local struct { Buffer weight, sums, planes, channels, row, steps; } scratch;

// Pixels of `groups` floats, `stride` apart, each of which is repeated N times, or n times if N is 0.
struct Repeats {
    const float* from;
    std::int64_t stride, groups;
    std::int64_t pixels, pixel, n;  // `pixel` floats from one pixel to the next
    float* to;
};
template <int N> void repeat_each(Repeats r) {
    for (std::int64_t i = 0; i < r.pixels; ++i, r.from += r.pixel)
        for (std::int64_t g = 0; g < r.groups; ++g, r.to += N ? N : r.n) {
            const float value = r.from[g * r.stride];
            for (std::int64_t k = 0; k < (N ? N : r.n); ++k) r.to[k] = value;
        }
}
void repeat(const Repeats& r) {
    switch (r.n) {
        case 1:
            return repeat_each<1>(r);
        case 2:
            return repeat_each<2>(r);
        case 4:
            return repeat_each<4>(r);
        case 8:
            return repeat_each<8>(r);
        default:
            return repeat_each<0>(r);
    }
}

// The first of some neighbouring windows and of their channels. The windows lie in a row, or `down` a column.
struct Position {
    std::int64_t image, row, column, channel;
    bool down;
};

// The windows in blocks of the result's channels and strips of columns. Rows are counted by block, image and
// row.
class Planes {
public:
    // `outputs`: channels of the result in a group. `repeats`: whether the kernel can repeat channels itself.
    Planes(const Windows& windows, std::int64_t groups, std::int64_t outputs, bool repeats)
        : x(windows), planes(x.channels), outputs_(outputs), channels_(groups * outputs) {
        std::int64_t first = 0, last = x.columns;
        const bool wide = repeats && planes == outputs && widest_vector % planes == 0;
        if ((plain() || wide) && x.type == float32 && channels_ % widest_vector == 0)
            find_inside(first, last);
        in_place_ = bottom_ > top_ && 2 * (last - first) > x.columns;
        if (!in_place_) first = 0, last = x.columns;
        const std::int64_t unit = std::lcm(outputs, widest_vector),
                           most = in_place_ ? channels_in_place : channels_at_once / planes;
        block_ = std::min(channels_, std::max<std::int64_t>(1, most / unit) * unit);
        add_strips(0, first, 1);
        add_strips(first, last, most_columns);
        add_strips(last, x.columns, 1);
    }

    std::int64_t blocks() const { return (channels_ + block_ - 1) / block_; }
    std::int64_t rows() const { return x.images * x.rows; }  // of a block
    std::int64_t steps() const { return std::int64_t(x.taps.size()) * planes; }
    // Whether the pixels that a row of windows reads are few enough for a thread's memory.
    bool fit() const {
        return in_place_ || std::all_of(strips_.begin(), strips_.end(), [&](const Strip& strip) {
                   const Windows some = windows_of(strip);
                   return WindowBand(some, planes * block_ * float_size).fits();
               });
    }

    // Calls f(position, row of the kernels) for rows [begin, end) of all blocks.
    template <class F> void for_rows(std::int64_t begin, std::int64_t end, const F& f) const {
        for (std::int64_t n = 0; begin < end; begin += n) {
            const Position position{begin / x.rows % x.images, begin % x.rows, 0, begin / rows() * block_,
                                    false};
            const bool border = in_place_ && (position.row < top_ || position.row >= bottom_);
            const std::int64_t last = in_place_ ? bottom_ : x.rows;
            n = border ? 1 : std::min({most_rows, end - begin, last - position.row});
            for (const Strip& strip : strips_)
                in_place_ ? read(strip, position, n, f) : copied(strip, position, n, f);
        }
    }

private:
    static constexpr auto float_size = std::int64_t(sizeof(float));
    static constexpr std::int64_t narrow = 6;  // columns of a strip that is read down

    // Columns of windows. If the image is read itself, the same taps of all of them are inside.
    struct Strip {
        std::int64_t first, columns;
    };

    bool plain() const { return planes == 1 && outputs_ == 1; }

    void add_strips(std::int64_t first, std::int64_t last, std::int64_t most) {
        for (; first < last; first += most) strips_.push_back({first, std::min(most, last - first)});
    }

    // The columns [first, last) and rows [top_, bottom_) of windows whose taps all lie in the image.
    void find_inside(std::int64_t& first, std::int64_t& last) {
        const auto along = [](std::int64_t least, std::int64_t most, std::int64_t size, std::int64_t step,
                              std::int64_t count, std::int64_t& begin, std::int64_t& end) {
            begin = std::clamp<std::int64_t>((std::max<std::int64_t>(-least, 0) + step - 1) / step, 0, count);
            end = most >= size ? begin : std::clamp((size - 1 - most) / step + 1, begin, count);
        };
        const auto [top, bottom] =
            std::minmax_element(x.taps.begin(), x.taps.end(), [](auto& a, auto& b) { return a.h < b.h; });
        const auto [left, right] =
            std::minmax_element(x.taps.begin(), x.taps.end(), [](auto& a, auto& b) { return a.w < b.w; });
        along(top->h, bottom->h, x.height, x.step.height, x.rows, top_, bottom_);
        along(left->w, right->w, x.width, x.step.width, x.columns, first, last);
    }

    Windows windows_of(const Strip& strip) const {
        Windows some = x;
        some.columns = strip.columns;
        for (Tap& tap : some.taps) tap.w += strip.first * x.step.width;
        return some;
    }

    // The windows of a strip and n rows, of which the taps in the image are the same.
    template <class F> void read(const Strip& strip, Position position, std::int64_t n, const F& f) const {
        const std::int64_t h = position.row * x.step.height, w = strip.first * x.step.width;
        DepthwiseStep* const list = scratch.steps.get<DepthwiseStep>(steps());
        std::int64_t count = 0;
        for (std::size_t t = 0; t < x.taps.size(); ++t) {
            const auto [tap_h, tap_w, index] = x.taps[t];
            if (h + tap_h >= 0 && h + tap_h < x.height && w + tap_w >= 0 && w + tap_w < x.width)
                list[count++] = {(tap_h * x.width + tap_w) * x.pixel, std::int64_t(t)};
        }
        const auto* const images = reinterpret_cast<const float*>(x.data);
        const std::int64_t pixel = (position.image * x.height + h) * x.width + w;
        for_strip(strip, position, n,
                  {images + pixel * x.pixel + position.channel, list, x.step.width * x.pixel, count, 0,
                   std::min(block_, channels_ - position.channel), planes},
                  x.step.height * x.width * x.pixel, f);
    }

    // Calls f for n rows of windows, which lie `row` floats apart from `first` on, or for the columns of a
    // strip.
    template <class F> static void for_strip(const Strip& strip, Position position, std::int64_t n,
                                             DepthwiseRow first, std::int64_t row, const F& f) {
        const bool down = strip.columns <= narrow && strip.columns < n;
        const std::int64_t column = first.stride;
        position.column = strip.first, position.down = down;
        first.pixels = down ? n : strip.columns, first.stride = down ? row : column;
        for (std::int64_t i = down ? strip.columns : n; i > 0; --i) {
            f(position, first);
            first.from += down ? column : row;
            ++(down ? position.column : position.row);
        }
    }

    template <class F>
    void copied(const Strip& strip, Position position, std::int64_t rows, const F& f) const {
        const std::int64_t channels = std::min(block_, channels_ - position.channel);
        const Windows some = windows_of(strip);
        const WindowBand band(some, channels * float_size);
        const std::int64_t most = band.rows_in(planes_bytes / planes), plane = band.bytes(most) / float_size;
        float* const copies = scratch.planes.get<float>(planes * plane);
        DepthwiseStep* const list = scratch.steps.get<DepthwiseStep>(steps());
        for (std::int64_t t = 0; t < std::int64_t(x.taps.size()); ++t)
            for (std::int64_t s = 0; s < planes; ++s)
                list[t * planes + s] = {s * plane + band.offset(some.taps[std::size_t(t)]) / float_size,
                                        t * planes + s};
        for (std::int64_t n = 0; rows > 0; rows -= n, position.row += n) {
            n = std::min(most, rows);
            for (std::int64_t s = 0; s < planes; ++s)
                copy(band, position, n, s, channels, copies + s * plane);
            for_strip(strip, position, n, {copies, list, band.step() / float_size, steps(), 0, channels, 1},
                      band.row_step() / float_size, f);
        }
    }

    // Copies plane s of the rows of windows from `position` on.
    void copy(const WindowBand& band, const Position& position, std::int64_t rows, std::int64_t s,
              std::int64_t channels, float* to) const {
        const auto size = std::int64_t(size_of(x.type));
        const std::int64_t groups = channels / outputs_, read = groups * planes;  // channels of a pixel
        const std::int64_t first = position.channel / outputs_ * planes;
        band.copy(position.image, position.row, rows, reinterpret_cast<char*>(to),
                  [&](std::int64_t at, std::int64_t pixels, char* result) {
                      const char* const from = x.data + (at + first) * size;
                      auto* const floats = reinterpret_cast<float*>(result);
                      if (plain()) return convert_pixels(from, pixels, read, floats);
                      Repeats r{reinterpret_cast<const float*>(from) + s,
                                planes,
                                groups,
                                pixels,
                                x.pixel,
                                outputs_,
                                floats};
                      if (x.type != float32) {
                          float* const converted = scratch.channels.get<float>(pixels * read);
                          convert_pixels(from, pixels, read, converted);
                          r.from = converted + s, r.pixel = read;
                      }
                      repeat(r);
                  });
    }
    // The first `channels` of each pixel.
    void convert_pixels(const char* from, std::int64_t pixels, std::int64_t channels, float* to) const {
        const bool together = channels == x.pixel;
        const std::int64_t n = together ? pixels * channels : channels;
        for (std::int64_t i = 0; i < (together ? 1 : pixels); ++i, to += n)
            convert(from + i * x.pixel * std::int64_t(size_of(x.type)), x.type, to, float32, n);
    }

    const Windows& x;
    const std::int64_t planes, outputs_, channels_;
    std::int64_t block_ = 0;
    std::int64_t top_ = 0, bottom_ = 0;
    // Whether the images are read themselves: most columns are inside. Taps outside are left out.
    bool in_place_ = false;
    std::vector<Strip> strips_;
};

Planes planes_of(const WindowProduct& p) {
    return {p.windows, p.groups, p.columns(), window_kernels().lanes == widest_vector};
}
Planes planes_of(const WindowGradient& p) { return {p.windows, p.groups, p.group_outputs(), false}; }

bool suits(const Windows& x, std::int64_t groups, std::int64_t outputs, Dtype result) {
    return groups > 1 && x.channels > 0 && x.channels <= most_channels && outputs > 0 &&
           outputs < widest_vector && result != float64 && x.count() > 0 && !x.taps.empty();
}

// Rows of ld floats, one per step, and the bias.
const float* weight_by_steps(const WindowProduct& p, std::int64_t ld) {
    const ConvWeight& w = p.weight;
    const std::int64_t planes = p.windows.channels, columns = p.columns(), channels = p.groups * columns;
    const std::int64_t given = w.outputs * w.row(), steps = p.windows.steps();
    float* const from = scratch.weight.get<float>(given + (steps + 1) * ld);
    float* to = from + given;
    convert(w.data, w.type, from, float32, given);
    std::fill_n(to, (steps + 1) * ld, 0.0f);
    for (const Tap& tap : p.windows.taps)
        for (std::int64_t s = 0; s < planes; ++s, to += ld)
            for (std::int64_t c = 0; c < channels; ++c) {
                const std::int64_t output = p.transposed ? c / columns * planes + s : c,
                                   input = p.transposed ? c % columns : s;
                to[c] = from[(output * w.taps + tap.index) * w.inputs + input];
            }
    if (p.bias) convert(p.bias, p.bias_type, to, float32, channels);
    return from + given;
}

}  // namespace

bool has_small_groups(const WindowProduct& p) {
    return !p.residual && p.activation == Activation::none &&
           suits(p.windows, p.groups, p.columns(), p.result.type) && planes_of(p).fit();
}
bool has_small_groups(const WindowGradient& p) {
    return suits(p.windows, p.groups, p.group_outputs(), p.result_type) && planes_of(p).fit();
}

void multiply_small_groups(const WindowProduct& p) {
    constexpr std::int64_t line = 64, large = std::int64_t(32) << 20;  // bytes that no cache holds
    const WindowKernels& kernels = window_kernels();
    const Planes planes = planes_of(p);
    const std::int64_t ld = round_up(p.result.pixel, kernels.lanes), rows = planes.blocks() * planes.rows(),
                       pixel = p.result.pixel;
    const std::int64_t results = p.windows.images * p.result.height * p.result.width * pixel;
    const auto size = std::int64_t(size_of(p.result.type));
    const float* const weight = weight_by_steps(p, ld);
    const bool direct = p.result.type == float32;
    const bool stream = direct && kernels.lanes * size == line && pixel % kernels.lanes == 0 &&
                        reinterpret_cast<std::uintptr_t>(p.result.data) % line == 0 &&
                        results * size >= large;
    const auto compute = [&](const Position& position, const DepthwiseRow& row) {
        char* to =
            p.result.data +
            (p.result.element(position.image, position.row, position.column) + position.channel) * size;
        const std::int64_t step =
            (position.down ? p.result.step.height * p.result.width : p.result.step.width) * pixel;
        float* const sums =
            direct ? reinterpret_cast<float*>(to) : scratch.row.get<float>(row.pixels * row.channels);
        const float* const w = weight + position.channel;
        kernels.depthwise({row, w, w + planes.steps() * ld, ld, sums, direct ? step : row.channels, stream});
        if (direct) return;
        if (step == row.channels) return convert(sums, float32, to, p.result.type, row.pixels * step);
        for (std::int64_t i = 0; i < row.pixels; ++i, to += step * size)
            convert(sums + i * row.channels, float32, to, p.result.type, row.channels);
    };
    parallel_for(rows, grain(rows, 8 * p.windows.count() * pixel * planes.steps()),
                 [&](std::int64_t begin, std::int64_t end) { planes.for_rows(begin, end, compute); });
}

// The split of the rows into parts depends on the sizes alone, and the parts' sums are added in order.
void add_small_group_gradient(const WindowGradient& p) {
    const WindowKernels& kernels = window_kernels();
    const Windows& x = p.windows;
    const Planes planes = planes_of(p);
    const std::int64_t ld = round_up(p.outputs, kernels.lanes), steps = planes.steps(), rows = planes.rows();
    const std::int64_t parts =
        std::min(rows, std::clamp<std::int64_t>(x.count() / least_pixels, 1, most_parts));
    float* const sums = scratch.sums.get<float>(parts * steps * ld + steps * p.outputs);
    std::fill_n(sums, parts * steps * ld, 0.0f);
    const auto size = std::int64_t(size_of(p.gradient_type));
    const auto add_row = [&](const Position& position, const DepthwiseRow& row, float* to) {
        const std::int64_t step = (position.down ? x.columns : 1) * p.outputs;
        const char* g =
            p.gradient +
            (((position.image * x.rows + position.row) * x.columns + position.column) * p.outputs +
             position.channel) *
                size;
        if (p.gradient_type == float32)
            return kernels.depthwise_gradient({row, reinterpret_cast<const float*>(g), step, to, ld});
        float* const copy = scratch.row.get<float>(row.pixels * row.channels);
        for (std::int64_t i = 0; i < row.pixels; ++i, g += step * size)
            convert(g, p.gradient_type, copy + i * row.channels, float32, row.channels);
        kernels.depthwise_gradient({row, copy, row.channels, to, ld});
    };
    const std::int64_t units = planes.blocks() * parts;
    parallel_for(
        units, grain(units, 8 * x.count() * p.outputs * steps), [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t u = begin; u < end; ++u) {
                const std::int64_t block = u / parts * rows, part = u % parts;
                planes.for_rows(block + part * rows / parts, block + (part + 1) * rows / parts,
                                [&](const Position& position, const DepthwiseRow& row) {
                                    add_row(position, row, sums + part * steps * ld + position.channel);
                                });
            }
        });
    float* const total = sums + parts * steps * ld;  // [outputs, steps]
    for (std::int64_t c = 0; c < p.outputs; ++c)
        for (std::int64_t t = 0; t < steps; ++t) {
            float sum = 0;
            for (std::int64_t part = 0; part < parts; ++part) sum += sums[(part * steps + t) * ld + c];
            total[c * steps + t] = sum;
        }
    Gemm g{.m = 1, .n = p.outputs * steps, .beta = float(p.beta)};
    g.c = p.result, g.c_type = p.result_type, g.ldc = g.n;
    finish_sums(gemm_kernels(active_isa()), g, total, g.n);
}

}  // namespace mezzo::cpu
