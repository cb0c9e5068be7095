// Resizing of images. A row of the result is one call of a loop.
#include <cstring>
#include <vector>

#include "cpu/conv/window_sums.h"
#include "cpu/kernels.h"
#include "kernels/resize_geometry.h"

namespace mezzo {
namespace {

using namespace cpu;

// Pixels that each result reads along an axis: one or two, with their weights.
struct Reading {
    std::vector<std::int64_t> begin;
    std::vector<int> count;
    std::vector<double> weights;  // two per result
};

template <class At> Reading reading(std::int64_t size, std::int64_t results, const At& at) {
    Reading all;
    for (std::int64_t i = 0; i < results; ++i) {
        const auto between = kernels::read_pixels<double>(at, size, results, i);
        all.begin.push_back(between.pixel);
        all.count.push_back(between.next > between.pixel ? 2 : 1);
        all.weights.push_back(1 - between.weight);
        all.weights.push_back(between.weight);
    }
    return all;
}

template <class R> AxisRuns<R> forward_runs(const Reading& reading) {
    AxisRuns<R> all;
    all.weights.assign(reading.weights.begin(), reading.weights.end());
    for (std::size_t i = 0; i < reading.begin.size(); ++i)
        all.runs.push_back(
            {reading.begin[i], reading.begin[i] + reading.count[i], all.weights.data() + 2 * i});
    return all;
}

// The results that read each pixel: neighbours, because results read neighbouring pixels in order.
template <class R> AxisRuns<R> backward_runs(const Reading& reading, std::int64_t size) {
    const auto results = std::int64_t(reading.begin.size());
    AxisRuns<R> all;
    all.weights.reserve(std::size_t(2 * results));  // runs point into it
    std::int64_t first = 0;
    for (std::int64_t pixel = 0; pixel < size; ++pixel) {
        const auto last_of = [&](std::int64_t i) {
            return reading.begin[std::size_t(i)] + reading.count[std::size_t(i)] - 1;
        };
        while (first < results && last_of(first) < pixel) ++first;
        std::int64_t end = first;
        const R* const weights = all.weights.data() + all.weights.size();
        for (; end < results && reading.begin[std::size_t(end)] <= pixel; ++end)
            all.weights.push_back(
                R(reading.weights[std::size_t(2 * end + (pixel - reading.begin[std::size_t(end)]))]));
        all.runs.push_back({first, end, weights});
    }
    return all;
}

// Resizes by copying the nearest pixels.
void copy_pixels(const Tensor& x, const Tensor& y, const Reading& rows, const Reading& columns) {
    const std::int64_t height = y->shape[1], width = y->shape[2], from_width = x->shape[2];
    const std::size_t pixel = std::size_t(y->shape[3]) * size_of(y->dtype);
    const std::int64_t bytes = std::int64_t(pixel);
    for_image_rows(
        y, width * y->shape[3], [&](std::int64_t n, std::int64_t row, std::int64_t first, std::int64_t last) {
            const auto size = std::int64_t(size_of(y->dtype));
            char* const to = y->bytes() + (n * height + row) * width * bytes + first * size;
            const char* const from = x->bytes() +
                                     (n * x->shape[1] + rows.begin[std::size_t(row)]) * from_width * bytes +
                                     first * size;
            for (std::int64_t i = 0; i < width; ++i)
                std::memcpy(to + i * bytes, from + columns.begin[std::size_t(i)] * bytes,
                            std::size_t((last - first) * size));
        });
}

}  // namespace

namespace cpu_kernels {

void interpolate(In in, const kernels::Interpolate& at, Out out) {
    const Tensor &x = in[0], &y = out[0];
    if (y->numel == 0) return;
    const Reading rows = reading(x->shape[1], y->shape[1], at),
                  columns = reading(x->shape[2], y->shape[2], at);
    if (!at.bilinear) return copy_pixels(x, y, rows, columns);
    with_pixel_type(x->dtype, [&]<class T, class R>(T, R) {
        sum_windows<T, R>(x, y, forward_runs<R>(rows), forward_runs<R>(columns));
    });
}

void interpolate_grad(In in, const kernels::InterpolateGrad& at, Out out) {
    const Tensor &g = in[0], &dx = out[0];
    if (dx->numel == 0) return;
    const std::int64_t height = dx->shape[1], width = dx->shape[2];
    const Reading rows = reading(height, g->shape[1], at), columns = reading(width, g->shape[2], at);
    with_pixel_type(g->dtype, [&]<class T, class R>(T, R) {
        sum_windows<T, R>(g, dx, backward_runs<R>(rows, height), backward_runs<R>(columns, width));
    });
}

constinit const KernelList interpolate_list = kernel_list<interpolate, interpolate_grad>;

}  // namespace cpu_kernels
}  // namespace mezzo
