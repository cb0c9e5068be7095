// Resizing of images: a thread computes some channels of one pixel of the result. In the gradient a pixel
// adds up the results that read it, in their order, without atomics.
#include "cuda/conv/pixels.cuh"
#include "cuda/kernels.h"
#include "kernels/resize_geometry.h"

namespace mezzo::cuda {
namespace {

using kernels::Between;

template <class A> __global__ void interpolate_kernel(A x, A y, PixelShape s, kernels::Interpolate at) {
    using C = typename A::C;
    constexpr int lanes = A::lanes;
    for (std::int64_t item = first_item(); item < s.items; item += item_step()) {
        const Pixel p = pixel_of<lanes>(s, item);
        const auto rows = kernels::read_pixels<C>(at, s.other_height, s.height, p.h),
                   columns = kernels::read_pixels<C>(at, s.other_width, s.width, p.w);
        C total[lanes], v[lanes];
        x.load(s.other(p.n, rows.pixel, columns.pixel) + p.c, total);
        if (at.bilinear) {
            const auto along_row = [&](std::int64_t row, C(&values)[lanes]) {
                x.load(s.other(p.n, row, columns.pixel) + p.c, values);
                if (columns.next == columns.pixel) return;
                C right[lanes];
                x.load(s.other(p.n, row, columns.next) + p.c, right);
                for (int k = 0; k < lanes; ++k)
                    values[k] = values[k] * (C(1) - columns.weight) + right[k] * columns.weight;
            };
            along_row(rows.pixel, total);
            if (rows.next != rows.pixel) {
                along_row(rows.next, v);
                for (int k = 0; k < lanes; ++k)
                    total[k] = total[k] * (C(1) - rows.weight) + v[k] * rows.weight;
            }
        }
        y.store(item * lanes, total);
    }
}

// The first result that reads the pixel or one after it; `results` if there is none. Results read pixels in
// order, and the estimate is below.
template <class C> __device__ std::int64_t first_reader(const kernels::InterpolateGrad& at, std::int64_t size,
                                                        std::int64_t results, std::int64_t pixel) {
    const std::int64_t estimate = at.align_corners && size > 1 ? (pixel - 1) * (results - 1) / (size - 1) - 1
                                                               : (pixel - 1) * results / size - 2;
    std::int64_t i = estimate > 0 ? estimate : 0;
    while (i < results && kernels::read_pixels<C>(at, size, results, i).next < pixel) ++i;
    return i;
}

// Weight of the pixel in the result at `between`.
template <class C> __device__ C weight_of(const Between<C>& between, std::int64_t pixel) {
    return between.pixel == pixel ? C(1) - between.weight : between.weight;
}

template <class A>
__global__ void interpolate_grad_kernel(A g, A dx, PixelShape s, kernels::InterpolateGrad at) {
    using C = typename A::C;
    constexpr int lanes = A::lanes;
    for (std::int64_t item = first_item(); item < s.items; item += item_step()) {
        const Pixel p = pixel_of<lanes>(s, item);
        const std::int64_t top = first_reader<C>(at, s.height, s.other_height, p.h),
                           left = first_reader<C>(at, s.width, s.other_width, p.w);
        C total[lanes] = {}, v[lanes];
        for (std::int64_t y = top; y < s.other_height; ++y) {
            const auto row = kernels::read_pixels<C>(at, s.height, s.other_height, y);
            if (row.pixel > p.h) break;
            for (std::int64_t x = left; x < s.other_width; ++x) {
                const auto column = kernels::read_pixels<C>(at, s.width, s.other_width, x);
                if (column.pixel > p.w) break;
                const C weight = weight_of(row, p.h) * weight_of(column, p.w);
                g.load(s.other(p.n, y, x) + p.c, v);
                for (int k = 0; k < lanes; ++k) total[k] += weight * v[k];
            }
        }
        dx.store(item * lanes, total);
    }
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace cuda;

void interpolate(In in, const kernels::Interpolate& at, Out out) {
    with_pixels(in[0], out[0], [&]<class A>(A x, A y, const PixelShape& s) {
        launch(interpolate_kernel<A>, grid_for(s.items, pixel_block), pixel_block, 0, x, y, s, at);
    });
}

void interpolate_grad(In in, const kernels::InterpolateGrad& at, Out out) {
    with_pixels(in[0], out[0], [&]<class A>(A g, A dx, const PixelShape& s) {
        launch(interpolate_grad_kernel<A>, grid_for(s.items, pixel_block), pixel_block, 0, g, dx, s, at);
    });
}

constinit const KernelList interpolate_list = kernel_list<interpolate, interpolate_grad>;

}  // namespace mezzo::cuda_kernels
