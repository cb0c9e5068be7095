// Images [N, H, W, C] for kernels in which a thread computes some channels of a pixel: as many as 16 bytes
// hold, or one.
#pragma once

#include "cuda/elementwise/elements.cuh"

namespace mezzo::cuda {

constexpr unsigned pixel_block = 256;

// Images whose channels are read and written 16 bytes at a time.
template <class T> struct PixelPacks {
    using C = Compute<T>;
    static constexpr int lanes = 16 / sizeof(T);
    T* p;
    __device__ void load(std::int64_t i, C (&values)[lanes]) const {
        const auto v = *reinterpret_cast<const Vec<T, lanes>*>(p + i);
        for (int k = 0; k < lanes; ++k) values[k] = convert<C>(v.v[k]);
    }
    __device__ void store(std::int64_t i, const C (&values)[lanes]) const {
        Vec<T, lanes> v;
        for (int k = 0; k < lanes; ++k) v.v[k] = convert<T>(values[k]);
        *reinterpret_cast<Vec<T, lanes>*>(p + i) = v;
    }
};

// Images of any floating dtype and any number of channels.
template <class Acc> struct PixelSingles {
    using C = Acc;
    static constexpr int lanes = 1;
    AnyArray<Acc> a;
    __device__ void load(std::int64_t i, C (&values)[1]) const { values[0] = a.load(i); }
    __device__ void store(std::int64_t i, const C (&values)[1]) const { a.store(i, values[0]); }
};

// Sizes of an image over which a kernel iterates, and those of the other image.
struct PixelShape {
    std::int64_t images, height, width, channels, other_height, other_width;
    std::int64_t items;  // per thread: `lanes` channels of a pixel

    // The first channel of pixel (h, w) of the other image n.
    __device__ std::int64_t other(std::int64_t n, std::int64_t h, std::int64_t w) const {
        return ((n * other_height + h) * other_width + w) * channels;
    }
};
inline PixelShape pixel_shape(const Tensor& walked, const Tensor& other, int lanes) {
    const Shape& s = walked.shape();
    return {s[0], s[1], s[2], s[3], other.shape()[1], other.shape()[2], walked.numel() / lanes};
}

struct Pixel {
    std::int64_t n, h, w, c;
};
// Position of item i, with divisions of 32 bit where they are enough.
template <class I> __device__ Pixel split_item(I item, I packs, I width, I height, int lanes) {
    const I pixel = item / packs, row = pixel / width;
    return {std::int64_t(row / height), std::int64_t(row % height), std::int64_t(pixel % width),
            std::int64_t(item % packs) * lanes};
}
template <int lanes> __device__ Pixel pixel_of(const PixelShape& s, std::int64_t item) {
    const std::int64_t packs = s.channels / lanes;
    if (s.items <= 0xffffffff)
        return split_item<std::uint32_t>(std::uint32_t(item), std::uint32_t(packs), std::uint32_t(s.width),
                                         std::uint32_t(s.height), lanes);
    return split_item<std::int64_t>(item, packs, s.width, s.height, lanes);
}

// Calls f(from, to, shape) for a kernel that walks over the items of `to`, with both as PixelPacks where
// channels and addresses allow it, else as PixelSingles. Does nothing if `to` is empty.
template <class F> void with_pixels(const Tensor& from, const Tensor& to, const F& f) {
    use_device_of(to);
    if (to.numel() == 0) return;
    const auto aligned = [](const Tensor& x) { return reinterpret_cast<std::uintptr_t>(raw(x)) % 16 == 0; };
    const auto packed = [&]<class T>(T) {
        using Packs = PixelPacks<T>;
        f(Packs{static_cast<T*>(raw(from))}, Packs{static_cast<T*>(raw(to))},
          pixel_shape(to, from, Packs::lanes));
    };
    const auto single = [&]<class C>(C) {
        f(PixelSingles<C>{any_of<C>(from)}, PixelSingles<C>{any_of<C>(to)}, pixel_shape(to, from, 1));
    };
    const Dtype dtype = from.dtype();
    if (dtype == float64) return single(double());
    if (!aligned(from) || !aligned(to) || from.shape()[3] * std::int64_t(size_of(dtype)) % 16 != 0)
        return single(float());
    if (dtype == float32) return packed(float());
    dtype == float16 ? packed(float16_t()) : packed(bfloat16_t());
}

}  // namespace mezzo::cuda
