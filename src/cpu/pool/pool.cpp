// Pooling. A row of the result is one call of the loops in pool_kernel.h. In gradients each pixel adds up the
// windows that read it, in their order, so that any number of threads gives the same bits.
#include "kernels/pool.h"

#include <cstring>

#include "cpu/conv/window_sums.h"
#include "cpu/elementwise/loop_tables.h"
#include "cpu/kernels.h"
#include "kernels/pool_geometry.h"

namespace mezzo {
namespace cpu {

const PoolLoops& active_pool_loops() {
    return loops_for<PoolLoops, pool_portable, pool_avx2, pool_avx512>(active_isa());
}

}  // namespace cpu

namespace {

using namespace cpu;
using kernels::PoolAxis;
using kernels::PoolWindow;

// The pixels that each window reads.
template <class R>
AxisRuns<R> windows(const PoolAxis& axis, std::int64_t size, std::int64_t results, bool with_padding) {
    AxisRuns<R> all;
    for (std::int64_t i = 0; i < results; ++i) {
        const kernels::PoolPlaces places = kernels::places_of(axis, size, results, i);
        all.runs.push_back({places.first + places.begin, places.first + places.end, nullptr});
        all.divisors.push_back(R(kernels::count_of(axis, size, places, with_padding)));
    }
    return all;
}

// The windows that read each pixel; their weights are what they divide by.
template <class R>
AxisRuns<R> readers(const PoolAxis& axis, std::int64_t size, std::int64_t results, bool with_padding) {
    AxisRuns<R> all;
    for (std::int64_t i = 0; i < results; ++i) {
        const kernels::PoolPlaces places = kernels::places_of(axis, size, results, i);
        all.weights.push_back(R(1) / R(kernels::count_of(axis, size, places, with_padding)));
    }
    for (std::int64_t i = 0; i < size; ++i) {
        const kernels::PoolReaders run = kernels::readers_of(axis, size, results, i);
        all.runs.push_back({run.begin, run.end, all.weights.data() + run.begin});
    }
    return all;
}

// x [N, H, W, C] and y [N, Ho, Wo, C] of one pooling, whichever of them is the result.
template <class T> MaxRow<T> max_row_of(const PoolWindow& window, const Tensor& x, const Tensor& y) {
    MaxRow<T> row{};
    row.channels = x->shape[3];
    row.height = window.height;
    row.width = window.width;
    row.image_height = x->shape[1];
    row.image_width = x->shape[2];
    row.result_height = y->shape[1];
    row.result_width = y->shape[2];
    row.window_width = places_along(window.width, row.image_width, row.result_width);
    return row;
}

bool wide(const Tensor& places) { return places->shape.size() == 5; }

template <class T>
void gather_places(const PoolWindow& window, const Tensor& u, const Tensor& places, const Tensor& y) {
    const MaxRow<T> row = max_row_of<T>(window, u, y);
    const T* const from = reinterpret_cast<const T*>(u->bytes());
    T* const to = reinterpret_cast<T*>(y->bytes());
    const auto* const narrow = reinterpret_cast<const std::uint8_t*>(places->bytes());
    const bool is_wide = wide(places);
    for_image_rows(
        y, row.result_width * row.channels,
        [&](std::int64_t n, std::int64_t i, std::int64_t first, std::int64_t last) {
            const kernels::PoolPlaces rows =
                kernels::places_of(window.height, row.image_height, row.result_height, i);
            for (std::int64_t j = 0; j < row.result_width; ++j) {
                const kernels::PoolPlaces columns =
                    kernels::places_of(window.width, row.image_width, row.result_width, j);
                const std::int64_t pixel =
                    ((n * row.result_height + i) * row.result_width + j) * row.channels;
                for (std::int64_t c = first; c < last; ++c) {
                    std::uint32_t place = narrow[pixel + c];
                    if (is_wide) std::memcpy(&place, narrow + (pixel + c) * 4, sizeof place);
                    const std::int64_t r = place / row.window_width, s = place % row.window_width;
                    const bool inside =
                        rows.begin <= r && r < rows.end && columns.begin <= s && s < columns.end;
                    const std::int64_t h = rows.first + r * window.height.dilation,
                                       w = columns.first + s * window.width.dilation;
                    to[pixel + c] =
                        inside ? from[((n * row.image_height + h) * row.image_width + w) * row.channels + c]
                               : T(0.0F);
                }
            }
        });
}

}  // namespace

namespace cpu_kernels {

void max_pool2d(In in, const kernels::MaxPool2d& at, Out out) {
    const Tensor &x = in[0], &y = out[0];
    if (y->numel == 0) return;
    with_pixel_type(x->dtype, [&]<class T, class R>(T, R) {
        const MaxRow<T> all = max_row_of<T>(at.window, x, y);
        const std::int64_t size = all.result_width * all.channels,
                           image = all.image_height * all.image_width * all.channels;
        const std::int64_t overlap =
            places_along(at.window.height, all.image_height, all.result_height) * all.window_width;
        for_image_rows(
            y, size * overlap, [&](std::int64_t n, std::int64_t i, std::int64_t first, std::int64_t last) {
                MaxRow<T> row = all;
                const std::int64_t begin = (n * all.result_height + i) * size;
                row.to = reinterpret_cast<T*>(y->bytes()) + begin;
                row.from = reinterpret_cast<const T*>(x->bytes()) + n * image;
                row.wide_places = out.size() > 1 && wide(out[1]);
                row.places = out.size() > 1 ? out[1]->bytes() + begin * (row.wide_places ? 4 : 1) : nullptr;
                row.first = first;
                row.last = last;
                row.row = i;
                pool_table<T>().max(row);
            });
    });
}

void max_pool2d_grad(In in, const kernels::MaxPool2dGrad& at, Out out) {
    const Tensor &g = in[0], &places = in[1], &dx = out[0];
    if (dx->numel == 0) return;
    with_pixel_type(g->dtype, [&]<class T, class R>(T, R) {
        const MaxRow<T> all = max_row_of<T>(at.window, dx, g);
        const std::int64_t size = all.image_width * all.channels,
                           image = all.result_height * all.result_width * all.channels;
        for_image_rows(dx, size, [&](std::int64_t n, std::int64_t i, std::int64_t first, std::int64_t last) {
            MaxRow<T> row = all;
            row.to = reinterpret_cast<T*>(dx->bytes()) + (n * all.image_height + i) * size;
            row.from = reinterpret_cast<const T*>(g->bytes()) + n * image;
            row.wide_places = wide(places);
            row.places = places->bytes() + n * image * (row.wide_places ? 4 : 1);
            row.first = first;
            row.last = last;
            row.row = i;
            pool_table<T>().max_grad(row);
        });
    });
}

void max_pool2d_gather(In in, const kernels::MaxPool2dGather& at, Out out) {
    if (out[0]->numel == 0) return;
    with_pixel_type(in[0]->dtype,
                    [&]<class T, class R>(T, R) { gather_places<T>(at.window, in[0], in[1], out[0]); });
}

void avg_pool2d(In in, const kernels::AvgPool2d& at, Out out) {
    const Shape &x = in[0]->shape, &y = out[0]->shape;
    if (out[0]->numel == 0) return;
    with_pixel_type(in[0]->dtype, [&]<class T, class R>(T, R) {
        sum_windows<T, R>(in[0], out[0], windows<R>(at.window.height, x[1], y[1], at.count_include_pad),
                          windows<R>(at.window.width, x[2], y[2], at.count_include_pad));
    });
}

void avg_pool2d_grad(In in, const kernels::AvgPool2dGrad& at, Out out) {
    const Shape &g = in[0]->shape, &x = out[0]->shape;
    if (out[0]->numel == 0) return;
    with_pixel_type(in[0]->dtype, [&]<class T, class R>(T, R) {
        sum_windows<T, R>(in[0], out[0], readers<R>(at.window.height, x[1], g[1], at.count_include_pad),
                          readers<R>(at.window.width, x[2], g[2], at.count_include_pad));
    });
}

constinit const KernelList pool_list =
    kernel_list<max_pool2d, max_pool2d_grad, max_pool2d_gather, avg_pool2d, avg_pool2d_grad>;

}  // namespace cpu_kernels
}  // namespace mezzo
