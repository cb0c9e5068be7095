// Padded copy of the part of an image that the windows of some of its rows read, so that every tap of every
// window is a pixel of the copy (no im2col).
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/conv/windows.h"

namespace mezzo::cpu {

class WindowBand {
public:
    // There is at least one tap and one window.
    WindowBand(const Windows& windows, std::int64_t pixel_bytes) : x(windows), pixel(pixel_bytes) {
        const auto [top, bottom] =
            std::minmax_element(x.taps.begin(), x.taps.end(), [](auto& a, auto& b) { return a.h < b.h; });
        const auto [left, right] =
            std::minmax_element(x.taps.begin(), x.taps.end(), [](auto& a, auto& b) { return a.w < b.w; });
        top_ = top->h, left_ = left->w;
        height_ = bottom->h - top->h + 1;
        width = (x.columns - 1) * x.step.width + 1 + right->w - left->w;
    }

    // Whether the pixels that one row of windows reads are few enough for a thread's memory. If not, the
    // windows are better copied, and bytes() may overflow: taps can be 2^31 pixels apart.
    bool fits() const {
        return width <= most_bytes / pixel && height_ <= most_bytes && bytes(1) <= most_bytes;
    }
    // Whether some window reads each pixel between the taps of the first and of the last window. Taps that
    // are further apart than there are windows are not considered: they leave pixels out, too.
    bool sees_all_pixels() const {
        const std::int64_t across = width - (x.columns - 1) * x.step.width;
        return x.step == Size2d(1) || (std::int64_t(x.taps.size()) == height_ * across &&
                                       height_ >= x.step.height && across >= x.step.width);
    }
    std::int64_t row_bytes() const { return width * pixel; }
    // Bytes of the copy for the windows of `rows` rows, with the pixels behind them that tiles of 16 windows
    // may read.
    std::int64_t bytes(std::int64_t rows) const {
        return ((rows - 1) * x.step.height + height_) * row_bytes() + 32 * x.step.width * pixel;
    }
    // Number of rows of windows that read at most so many bytes, but at least one.
    std::int64_t rows_in(std::int64_t bytes) const {
        return std::clamp<std::int64_t>((bytes / row_bytes() - height_) / x.step.height + 1, 1, x.rows);
    }
    // Bytes from a window's first pixel to that of its tap.
    std::int64_t offset(const Tap& tap) const { return ((tap.h - top_) * width + tap.w - left_) * pixel; }
    // Bytes from one window to the next in its row, and from row to row.
    std::int64_t step() const { return x.step.width * pixel; }
    std::int64_t row_step() const { return x.step.height * row_bytes(); }

    // Copies the pixels that the windows of rows [first, first + rows) of an image read, and writes zeros
    // behind them. copy_pixels(at, n, to) writes n pixels of the image from element `at` of x.data on.
    template <class F> void copy(std::int64_t image, std::int64_t first, std::int64_t rows, char* to,
                                 const F& copy_pixels) const {
        const std::int64_t before = std::clamp<std::int64_t>(-left_, 0, width),
                           behind = std::clamp<std::int64_t>(x.width - left_, before, width);
        const auto zeros = [&](std::int64_t from, std::int64_t end) {
            std::memset(to + from * pixel, 0, std::size_t((end - from) * pixel));
        };
        for (std::int64_t i = 0; i < (rows - 1) * x.step.height + height_; ++i, to += row_bytes()) {
            const std::int64_t h = first * x.step.height + i + top_;
            if (h < 0 || h >= x.height) {
                zeros(0, width);
                continue;
            }
            zeros(0, before);
            copy_pixels(((image * x.height + h) * x.width + before + left_) * x.pixel, behind - before,
                        to + before * pixel);
            zeros(behind, width);
        }
        zeros(0, 32 * x.step.width);
    }

    std::int64_t width;  // of a row, in pixels

private:
    static constexpr std::int64_t most_bytes = 2 << 20;

    const Windows& x;
    const std::int64_t pixel;
    std::int64_t top_, left_, height_;  // of all taps of a window
};

}  // namespace mezzo::cpu
