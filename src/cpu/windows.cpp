#include "cpu/windows.h"

#include <algorithm>
#include <cstring>

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

// How many of `count` indices, from `first` on and `step` apart, lie before `end`.
std::int64_t before(std::int64_t end, std::int64_t first, std::int64_t step, std::int64_t count) {
    return std::clamp<std::int64_t>((end - first + step - 1) / step, 0, count);
}

// Calls inside(done, pixel, count) for the windows whose tap lies in the image, with the index of the first
// pixel, and outside(done, count) for the others.
template <class In, class Out> void for_tap(const Windows& x, const Tap& tap, std::int64_t begin,
                                            std::int64_t n, const In& inside, const Out& outside) {
    for_runs(x, begin, n,
             [&](std::int64_t image, std::int64_t row, std::int64_t column, std::int64_t count,
                 std::int64_t done) {
                 const std::int64_t h = row * x.step.height + tap.h, w = column * x.step.width + tap.w;
                 const bool above = h < 0 || h >= x.height;
                 const std::int64_t left = above ? count : before(0, w, x.step.width, count);
                 const std::int64_t right = above ? count : before(x.width, w, x.step.width, count);
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
    for_tap(
        *this, taps[std::size_t(t)], begin, n,
        [&](std::int64_t done, std::int64_t from, std::int64_t number) {
            const char* line = data + from * pixel * size;
            for (std::int64_t i = 0; i < number; ++i, line += stride) lines[done + i] = line;
        },
        [&](std::int64_t done, std::int64_t number) { std::fill_n(lines + done, number, zeros); });
}

Windows::Range Windows::source_pixels(std::int64_t begin, std::int64_t n) const {
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

void Windows::copy(std::int64_t begin, std::int64_t n, char* to) const {
    const auto size = std::int64_t(size_of(type)), stride = step.width * pixel * size;
    const std::int64_t bytes = channels * size, row = steps() * size;
    for (std::size_t t = 0; t < taps.size(); ++t, to += bytes)
        for_tap(
            *this, taps[t], begin, n,
            [&](std::int64_t done, std::int64_t from, std::int64_t number) {
                const char* line = data + from * pixel * size;
                for (std::int64_t i = 0; i < number; ++i, line += stride)
                    std::memcpy(to + (done + i) * row, line, std::size_t(bytes));
            },
            [&](std::int64_t done, std::int64_t number) {
                for (std::int64_t i = 0; i < number; ++i)
                    std::memset(to + (done + i) * row, 0, std::size_t(bytes));
            });
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
