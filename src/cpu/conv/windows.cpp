#include "cpu/conv/windows.h"

#include <algorithm>
#include <cstring>

#include "cpu/conv/window_tables.h"

namespace mezzo::cpu {

namespace {

// Calls f(image, row, column, count, done) for the runs of windows [begin, begin + n) that share a row.
template <class F> void for_runs(const Windows& x, std::int64_t begin, std::int64_t n, const F& f) {
    std::int64_t column = begin % x.columns, row = begin / x.columns % x.rows;
    std::int64_t image = begin / x.columns / x.rows;
    for (std::int64_t done = 0; done < n; column = 0) {
        const std::int64_t count = std::min(n - done, x.columns - column);
        f(image, row, column, count, done);
        done += count;
        if (++row == x.rows) row = 0, ++image;
    }
}

// Number of the `count` indices, from `first` on and `step` apart, that lie before `end`.
std::int64_t before(std::int64_t end, std::int64_t first, std::int64_t step, std::int64_t count) {
    const std::int64_t steps = step == 1 ? end - first : (end - first + step - 1) / step;
    return std::clamp<std::int64_t>(steps, 0, count);
}

// Calls inside(done, pixel, count) for the windows for which `tap` and the next `more` pixels to its right
// lie in the image, with the index of the first pixel, and outside(done, count) for the others.
template <class In, class Out> void for_tap(const Windows& x, const Tap& tap, std::int64_t more,
                                            std::int64_t begin, std::int64_t n, const In& inside,
                                            const Out& outside) {
    for_runs(x, begin, n,
             [&](std::int64_t image, std::int64_t row, std::int64_t column, std::int64_t count,
                 std::int64_t done) {
                 const std::int64_t h = row * x.step.height + tap.h, w = column * x.step.width + tap.w;
                 const bool above = h < 0 || h >= x.height;
                 const std::int64_t left = above ? count : before(0, w, x.step.width, count);
                 const std::int64_t right =
                     above ? count : std::max(left, before(x.width - more, w, x.step.width, count));
                 if (left > 0) outside(done, left);
                 if (right > left)
                     inside(done + left,
                            (image * x.height + h) * x.width + w + left * x.step.width - x.origin,
                            right - left);
                 if (right < count) outside(done + right, count - right);
             });
}

}  // namespace

void Windows::find(std::int64_t t, std::int64_t begin, std::int64_t n, const char* zeros,
                   const char** lines) const {
    const std::int64_t size = std::int64_t(size_of(type)), stride = step.width * pixel * size;
    const auto find_in_row = window_kernels().find;
    for_tap(
        *this, taps[std::size_t(t)], 0, begin, n,
        [&](std::int64_t done, std::int64_t from, std::int64_t number) {
            find_in_row(data + from * pixel * size, stride, number, lines + done);
        },
        [&](std::int64_t done, std::int64_t number) { std::fill_n(lines + done, number, zeros); });
}

Windows::PixelRange Windows::source_pixels(std::int64_t begin, std::int64_t n) const {
    if (taps.empty() || height == 0) return {0, 0};
    std::int64_t top = taps[0].h, bottom = taps[0].h;
    for (const Tap& tap : taps) top = std::min(top, tap.h), bottom = std::max(bottom, tap.h);
    const auto row = [&](std::int64_t window, std::int64_t h) {
        const std::int64_t image = window / columns / rows, i = window / columns % rows;
        return image * height + std::clamp<std::int64_t>(i * step.height + h, 0, height - 1);
    };
    const std::int64_t first = row(begin, top), last = std::max(first, row(begin + n - 1, bottom));
    return {first * width, (last + 1) * width};
}

namespace {

// Copies n pieces that lie `stride` bytes apart to positions `row` bytes apart; N is their size, or 0.
template <std::size_t N> void copy_pieces(const char* from, std::int64_t stride, char* to, std::int64_t row,
                                          std::int64_t n, std::size_t bytes) {
    for (std::int64_t i = 0; i < n; ++i, from += stride, to += row) std::memcpy(to, from, N ? N : bytes);
}

// The compiler copies pieces of a known size in a few instructions; a call would take longer than the work.
auto copy_for(std::size_t bytes) {
    switch (bytes) {
        case 6:
            return copy_pieces<6>;
        case 12:
            return copy_pieces<12>;
        case 16:
            return copy_pieces<16>;
        case 18:
            return copy_pieces<18>;
        case 32:
            return copy_pieces<32>;
        case 36:
            return copy_pieces<36>;
        case 64:
            return copy_pieces<64>;
        case 96:
            return copy_pieces<96>;
        case 128:
            return copy_pieces<128>;
        case 192:
            return copy_pieces<192>;
        case 256:
            return copy_pieces<256>;
        case 384:
            return copy_pieces<384>;
        default:
            return copy_pieces<0>;
    }
}

// Number of taps from t on that read neighbouring pixels whose channels follow each other in memory.
std::size_t run_of_taps(const Windows& x, std::size_t t) {
    std::size_t n = 1;
    if (x.pixel != x.channels) return n;
    for (; t + n < x.taps.size(); ++n)
        if (x.taps[t + n].h != x.taps[t].h || x.taps[t + n].w != x.taps[t].w + std::int64_t(n)) break;
    return n;
}

// Copies `count` taps from t on of windows [begin, begin + n) to pieces `row` bytes apart.
void copy_taps(const Windows& x, std::size_t t, std::size_t count, std::int64_t begin, std::int64_t n,
               char* to, std::int64_t row) {
    const auto size = std::int64_t(size_of(x.type)), stride = x.step.width * x.pixel * size;
    const auto tap_bytes = std::size_t(x.channels * size), bytes = count * tap_bytes;
    const auto copy_some = copy_for(bytes);
    for_tap(
        x, x.taps[t], std::int64_t(count) - 1, begin, n,
        [&](std::int64_t done, std::int64_t from, std::int64_t number) {
            copy_some(x.data + from * x.pixel * size, stride, to + done * row, row, number, bytes);
        },
        [&](std::int64_t done, std::int64_t number) {
            char* at = to + done * row;
            if (count > 1)
                for (std::size_t i = 0; i < count; ++i, at += tap_bytes)
                    copy_taps(x, t + i, 1, begin + done, number, at, row);
            else
                for (std::int64_t i = 0; i < number; ++i, at += row) std::memset(at, 0, bytes);
        });
}

}  // namespace

void Windows::copy(std::int64_t begin, std::int64_t n, char* to) const {
    if (channels == 0) return;
    const auto size = std::int64_t(size_of(type));
    for (std::size_t t = 0, run = 0; t < taps.size(); t += run) {
        run = run_of_taps(*this, t);
        copy_taps(*this, t, run, begin, n, to, steps() * size);
        to += std::int64_t(run) * channels * size;
    }
}

Windows windows_of_input(const kernels::ConvGeometry& geometry, Size2d kernel_size) {
    Windows x;
    x.step = geometry.stride;
    for (std::int64_t r = 0; r < kernel_size.height; ++r)
        for (std::int64_t s = 0; s < kernel_size.width; ++s)
            x.taps.push_back({r * geometry.dilation.height - geometry.padding.height,
                              s * geometry.dilation.width - geometry.padding.width,
                              r * kernel_size.width + s});
    return x;
}

std::vector<Phase> phases_of_gradient(const kernels::ConvGeometry& geometry, Size2d kernel_size,
                                      Size2d image) {
    const auto [stride, padding, dilation, groups] = geometry;
    std::vector<Phase> phases;
    for (std::int64_t i = 0; i < std::min(stride.height, image.height); ++i)
        for (std::int64_t j = 0; j < std::min(stride.width, image.width); ++j) {
            Phase phase{{i, j}, {}};
            phase.windows.rows = (image.height - i + stride.height - 1) / stride.height;
            phase.windows.columns = (image.width - j + stride.width - 1) / stride.width;
            for (std::int64_t r = 0; r < kernel_size.height; ++r)
                for (std::int64_t s = 0; s < kernel_size.width; ++s) {
                    const std::int64_t h = i + padding.height - r * dilation.height,
                                       w = j + padding.width - s * dilation.width;
                    if (h % stride.height == 0 && w % stride.width == 0)
                        phase.windows.taps.push_back(
                            {h / stride.height, w / stride.width, r * kernel_size.width + s});
                }
            phases.push_back(std::move(phase));
        }
    return phases;
}

}  // namespace mezzo::cpu
