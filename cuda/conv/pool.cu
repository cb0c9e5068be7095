// Pooling: a thread computes some channels of one pixel of the result. In gradients a pixel adds up the
// windows that read it, in their order, without atomics.
#include "cuda/conv/pixels.cuh"
#include "cuda/kernels.h"
#include "kernels/pool_geometry.h"

namespace mezzo::cuda {
namespace {

using kernels::PoolAxis;
using kernels::PoolPlaces;
using kernels::PoolReaders;
using kernels::PoolWindow;

// Positions of the maxima in their windows, for `lanes` neighbouring channels; null: not wanted.
struct PlaceArray {
    void* p;
    bool wide;

    template <int lanes> __device__ void load(std::int64_t i, std::uint32_t (&places)[lanes]) const {
        if (wide) {
            for (int k = 0; k < lanes; ++k) places[k] = static_cast<const std::uint32_t*>(p)[i + k];
            return;
        }
        const auto v =
            *reinterpret_cast<const Vec<std::uint8_t, lanes>*>(static_cast<const std::uint8_t*>(p) + i);
        for (int k = 0; k < lanes; ++k) places[k] = v.v[k];
    }
    template <int lanes> __device__ void store(std::int64_t i, const std::uint32_t (&places)[lanes]) const {
        if (wide) {
            for (int k = 0; k < lanes; ++k) static_cast<std::uint32_t*>(p)[i + k] = places[k];
            return;
        }
        Vec<std::uint8_t, lanes> v;
        for (int k = 0; k < lanes; ++k) v.v[k] = std::uint8_t(places[k]);
        *reinterpret_cast<Vec<std::uint8_t, lanes>*>(static_cast<std::uint8_t*>(p) + i) = v;
    }
};

PlaceArray places_in(const Tensor& places) { return {raw(places), places.dim() == 5}; }

template <class A> __global__ void max_pool_kernel(A x, A y, PlaceArray places, PixelShape s,
                                                   PoolWindow window, std::int64_t window_width) {
    using C = typename A::C;
    constexpr int lanes = A::lanes;
    for (std::int64_t item = first_item(); item < s.items; item += item_step()) {
        const Pixel p = pixel_of<lanes>(s, item);
        const PoolPlaces rows = places_of(window.height, s.other_height, s.height, p.h),
                         columns = places_of(window.width, s.other_width, s.width, p.w);
        C best[lanes], v[lanes];
        std::uint32_t place[lanes] = {};
        for (C& b : best) b = C(-INFINITY);
        bool found = false;
        for (std::int64_t r = rows.begin; r < rows.end; ++r)
            for (std::int64_t q = columns.begin; q < columns.end; ++q) {
                x.load(s.other(p.n, rows.first + r * window.height.dilation,
                               columns.first + q * window.width.dilation) +
                           p.c,
                       v);
                for (int k = 0; k < lanes; ++k) {
                    if (found && !(v[k] > best[k]) && v[k] == v[k]) continue;
                    best[k] = v[k];
                    place[k] = std::uint32_t(r * window_width + q);
                }
                found = true;
            }
        y.store(item * lanes, best);
        if (places.p != nullptr) places.store(item * lanes, place);
    }
}

template <class A> __global__ void max_pool_grad_kernel(A g, A dx, PlaceArray places, PixelShape s,
                                                        PoolWindow window, std::int64_t window_width) {
    using C = typename A::C;
    constexpr int lanes = A::lanes;
    for (std::int64_t item = first_item(); item < s.items; item += item_step()) {
        const Pixel p = pixel_of<lanes>(s, item);
        const PoolReaders rows = readers_of(window.height, s.height, s.other_height, p.h),
                          columns = readers_of(window.width, s.width, s.other_width, p.w);
        C total[lanes] = {}, v[lanes];
        std::uint32_t place[lanes];
        for (std::int64_t y = rows.begin; y < rows.end; ++y) {
            const std::int64_t r = place_of(window.height, s.height, s.other_height, y, p.h);
            if (r < 0) continue;
            for (std::int64_t x = columns.begin; x < columns.end; ++x) {
                const std::int64_t q = place_of(window.width, s.width, s.other_width, x, p.w);
                if (q < 0) continue;
                const std::int64_t at = s.other(p.n, y, x) + p.c;
                const auto here = std::uint32_t(r * window_width + q);
                g.load(at, v);
                places.load(at, place);
                for (int k = 0; k < lanes; ++k) total[k] += place[k] == here ? v[k] : C(0);
            }
        }
        dx.store(item * lanes, total);
    }
}

// One channel per thread: each reads another pixel.
template <class C> __global__ void max_pool_gather_kernel(AnyArray<C> u, AnyArray<C> y, PlaceArray places,
                                                          PixelShape s, PoolWindow window,
                                                          std::int64_t window_width) {
    for (std::int64_t item = first_item(); item < s.items; item += item_step()) {
        const Pixel p = pixel_of<1>(s, item);
        const PoolPlaces rows = places_of(window.height, s.other_height, s.height, p.h),
                         columns = places_of(window.width, s.other_width, s.width, p.w);
        std::uint32_t place[1];
        places.load(item, place);
        const std::int64_t r = place[0] / window_width, q = place[0] % window_width;
        const bool inside = rows.begin <= r && r < rows.end && columns.begin <= q && q < columns.end;
        const std::int64_t h = rows.first + r * window.height.dilation,
                           w = columns.first + q * window.width.dilation;
        y.store(item, inside ? u.load(s.other(p.n, h, w) + p.c) : C(0));
    }
}

constexpr std::int64_t chain = 256;  // columns that are added up before they go into a sum

template <class A>
__global__ void avg_pool_kernel(A x, A y, PixelShape s, PoolWindow window, bool with_padding) {
    using C = typename A::C;
    constexpr int lanes = A::lanes;
    for (std::int64_t item = first_item(); item < s.items; item += item_step()) {
        const Pixel p = pixel_of<lanes>(s, item);
        const PoolPlaces rows = places_of(window.height, s.other_height, s.height, p.h),
                         columns = places_of(window.width, s.other_width, s.width, p.w);
        C total[lanes] = {}, v[lanes];
        for (std::int64_t r = rows.begin; r < rows.end; ++r)
            for (std::int64_t q = columns.begin; q < columns.end;) {
                const std::int64_t end = columns.end - q > chain ? q + chain : columns.end;
                C sums[lanes] = {};
                for (; q < end; ++q) {
                    x.load(s.other(p.n, rows.first + r, columns.first + q) + p.c, v);
                    for (int k = 0; k < lanes; ++k) sums[k] += v[k];
                }
                for (int k = 0; k < lanes; ++k) total[k] += sums[k];
            }
        const C count = C(count_of(window.height, s.other_height, rows, with_padding) *
                          count_of(window.width, s.other_width, columns, with_padding));
        for (C& t : total) t /= count;
        y.store(item * lanes, total);
    }
}

// Factor of the gradient of one window along an axis.
template <class C> __device__ C share(const PoolAxis& axis, std::int64_t size, std::int64_t results,
                                      std::int64_t window, bool with_padding) {
    return C(1) / C(count_of(axis, size, places_of(axis, size, results, window), with_padding));
}

template <class A>
__global__ void avg_pool_grad_kernel(A g, A dx, PixelShape s, PoolWindow window, bool with_padding) {
    using C = typename A::C;
    constexpr int lanes = A::lanes;
    for (std::int64_t item = first_item(); item < s.items; item += item_step()) {
        const Pixel p = pixel_of<lanes>(s, item);
        const PoolReaders rows = readers_of(window.height, s.height, s.other_height, p.h),
                          columns = readers_of(window.width, s.width, s.other_width, p.w);
        C total[lanes] = {}, v[lanes];
        for (std::int64_t y = rows.begin; y < rows.end; ++y) {
            const C row_share = share<C>(window.height, s.height, s.other_height, y, with_padding);
            for (std::int64_t x = columns.begin; x < columns.end; ++x) {
                const C weight = row_share * share<C>(window.width, s.width, s.other_width, x, with_padding);
                g.load(s.other(p.n, y, x) + p.c, v);
                for (int k = 0; k < lanes; ++k) total[k] += weight * v[k];
            }
        }
        dx.store(item * lanes, total);
    }
}

// Whether one window is the whole image.
bool whole_image(const PoolWindow& window, const Tensor& x, const Tensor& y) {
    const auto whole = [](const PoolAxis& axis, std::int64_t size, std::int64_t results) {
        return results == 1 && (axis.adaptive || (axis.padding == 0 && axis.kernel == size));
    };
    return whole(window.height, x.shape()[1], y.shape()[1]) &&
           whole(window.width, x.shape()[2], y.shape()[2]);
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace cuda;

void max_pool2d(In in, const kernels::MaxPool2d& at, Out out) {
    const PlaceArray places = out.size() > 1 ? places_in(out[1]) : PlaceArray{nullptr, false};
    with_pixels(in[0], out[0], [&]<class A>(A x, A y, const PixelShape& s) {
        launch(max_pool_kernel<A>, grid_for(s.items, pixel_block), pixel_block, 0, x, y, places, s, at.window,
               places_along(at.window.width, s.other_width, s.width));
    });
}

void max_pool2d_grad(In in, const kernels::MaxPool2dGrad& at, Out out) {
    with_pixels(in[0], out[0], [&]<class A>(A g, A dx, const PixelShape& s) {
        launch(max_pool_grad_kernel<A>, grid_for(s.items, pixel_block), pixel_block, 0, g, dx,
               places_in(in[1]), s, at.window, places_along(at.window.width, s.width, s.other_width));
    });
}

void max_pool2d_gather(In in, const kernels::MaxPool2dGather& at, Out out) {
    const Tensor &u = in[0], &y = out[0];
    use_device_of(y);
    if (y.numel() == 0) return;
    const PixelShape s = pixel_shape(y, u, 1);
    const std::int64_t width = places_along(at.window.width, u.shape()[2], y.shape()[2]);
    with_real({y.dtype()}, [&]<class C>(C) {
        launch(max_pool_gather_kernel<C>, grid_for(s.items, pixel_block), pixel_block, 0, any_of<C>(u),
               any_of<C>(y), places_in(in[1]), s, at.window, width);
    });
}

void avg_pool2d(In in, const kernels::AvgPool2d& at, Out out) {
    // Few threads with many pixels each: the reduction cuts those into parts.
    if (out[0].numel() != 0 && whole_image(at.window, in[0], out[0]))
        return mean(in, {.axes = {1, 2}, .keepdim = true}, out);
    with_pixels(in[0], out[0], [&]<class A>(A x, A y, const PixelShape& s) {
        launch(avg_pool_kernel<A>, grid_for(s.items, pixel_block), pixel_block, 0, x, y, s, at.window,
               at.count_include_pad);
    });
}

void avg_pool2d_grad(In in, const kernels::AvgPool2dGrad& at, Out out) {
    with_pixels(in[0], out[0], [&]<class A>(A g, A dx, const PixelShape& s) {
        launch(avg_pool_grad_kernel<A>, grid_for(s.items, pixel_block), pixel_block, 0, g, dx, s, at.window,
               at.count_include_pad);
    });
}

constinit const KernelList pool_list =
    kernel_list<max_pool2d, max_pool2d_grad, max_pool2d_gather, avg_pool2d, avg_pool2d_grad>;

}  // namespace mezzo::cuda_kernels
