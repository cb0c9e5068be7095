// Random numbers and dropout. The same seed and offset give the same bits as on the CPU (core/philox.h maps
// elements to bits); random_normal differs by the rounding of its functions.
#include <cmath>

#include "cuda/elementwise/elements.cuh"
#include "cuda/elementwise/random_stream.cuh"
#include "cuda/kernels.h"
#include "kernels/functor_math.h"
#include "kernels/random.h"

namespace mezzo::cuda {
namespace {

constexpr unsigned random_block = 256;

// Uniform values of elements 4 j to 4 j + 3, from the four words of a block.
template <class T> struct Uniform {
    using C = T;
    T low, width, limit;
    __device__ void operator()(const PhiloxWords& words, T (&values)[4]) const {
        for (int i = 0; i < 4; ++i) {
            const T value = low + static_cast<T>(philox_uniform(words.v[i])) * width;
            values[i] = value < limit ? value : limit;
        }
    }
};

// Box and Muller, "A note on the generation of random normal deviates" (1958), in float32: two words, two
// numbers.
template <class T> struct Normal {
    using C = T;
    T mean, deviation;
    __device__ void operator()(const PhiloxWords& words, T (&values)[4]) const {
        for (int i = 0; i < 4; i += 2) {
            const float u = static_cast<float>((words.v[i] >> 8) + 1) * 0x1p-24f;  // in (0, 1]
            const float radius = functors::math::sqrt(-2.0f * functors::math::log(u));
            const float angle = 6.2831853f * philox_uniform(words.v[i + 1]);
            values[i] = mean + deviation * static_cast<T>(radius * functors::math::cos(angle));
            values[i + 1] = mean + deviation * static_cast<T>(radius * functors::math::sin(angle));
        }
    }
};

// low + word * range / 2^32 in integers, for ranges up to 2^64.
struct Integer {
    using C = std::int64_t;
    std::int64_t low;
    std::uint64_t range;
    __device__ void operator()(const PhiloxWords& words, std::int64_t (&values)[4]) const {
        for (int i = 0; i < 4; ++i) {
            const std::uint64_t word = words.v[i];
            const std::uint64_t product = (range >> 32) * word + ((range & 0xffffffffu) * word >> 32);
            values[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + product);
        }
    }
};

template <class F>
__global__ void random_kernel(F f, RandomStream stream, AnyArray<typename F::C> out, std::int64_t n) {
    for (std::int64_t block = first_item(); block * 4 < n; block += item_step()) {
        typename F::C values[4];
        f(stream.block(block), values);
        // No early exit, so that nvcc unrolls the loop and keeps the values in registers.
        for (int i = 0; i < 4; ++i)
            if (block * 4 + i < n) out.store(block * 4 + i, values[i]);
    }
}

template <class F> void fill_random(const F& f, const RandomState& stream, const Tensor& out) {
    use_device_of(out);
    const std::int64_t n = out.numel();
    launch(random_kernel<F>, grid_for((n + 3) / 4, random_block), random_block, 0, f, stream_of(stream),
           any_of<typename F::C>(out), n);
}

// Drops eight elements per thread and round, one Philox block. An element stays if its 16 bits reach the
// threshold.
template <class X, class Y> __global__ void dropout_kernel(X x, Y y, RandomStream stream,
                                                           std::uint32_t threshold, typename X::C scale,
                                                           std::int64_t n) {
    using C = typename X::C;
    for (std::int64_t block = first_item(); block * 8 < n; block += item_step()) {
        const PhiloxWords words = stream.block(block);
        for (int i = 0; i < 8; ++i) {
            if (block * 8 + i >= n) continue;
            const bool keep = philox_half(words, i) >= threshold;
            y.store(block * 8 + i, keep ? x.load(block * 8 + i) * scale : C(0));
        }
    }
}

// The same for eight adjacent elements that move as one access (as two for float32).
template <class T> __global__ void dropout_vector_kernel(const T* x, T* y, RandomStream stream,
                                                         std::uint32_t threshold, float scale,
                                                         std::int64_t blocks) {
    constexpr int width = 16 / sizeof(T);
    using V = Vec<T, width>;
    for (std::int64_t block = first_item(); block < blocks; block += item_step()) {
        const PhiloxWords words = stream.block(block);
        for (int part = 0; part < 8 / width; ++part) {
            V v = reinterpret_cast<const V*>(x)[block * (8 / width) + part];
            for (int i = 0; i < width; ++i) {
                const bool keep = philox_half(words, part * width + i) >= threshold;
                v.v[i] = convert<T>(keep ? convert<float>(v.v[i]) * scale : 0.0f);
            }
            reinterpret_cast<V*>(y)[block * (8 / width) + part] = v;
        }
    }
}

template <class T> bool dropout_vectors(const Tensor& x, const Tensor& y, RandomStream stream,
                                        std::uint32_t threshold, double scale) {
    const auto aligned = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(raw(t)) % 16 == 0; };
    if (x.dtype() != dtype_of<T>() || y.dtype() != dtype_of<T>() || !aligned(x) || !aligned(y)) return false;
    const std::int64_t blocks = x.numel() / 8;
    if (blocks * 8 != x.numel()) return false;
    launch(dropout_vector_kernel<T>, grid_for(blocks, random_block), random_block, 0,
           static_cast<const T*>(raw(x)), static_cast<T*>(raw(y)), stream, threshold,
           static_cast<float>(scale), blocks);
    return true;
}

template <class C> void dropout_any(const Tensor& x, const Tensor& y, RandomStream stream,
                                    std::uint32_t threshold, double scale) {
    launch(dropout_kernel<AnyArray<C>, AnyArray<C>>, grid_for((x.numel() + 7) / 8, random_block),
           random_block, 0, any_of<C>(x), any_of<C>(y), stream, threshold, static_cast<C>(scale), x.numel());
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void random_uniform(In, const kernels::RandomUniform& at, Out out) {
    with_real({out[0].dtype()}, [&]<class C>(C) {
        const C low = static_cast<C>(at.low);
        const C limit = static_cast<C>(kernels::uniform_limit(at, out[0].dtype()));
        fill_random(Uniform<C>{low, static_cast<C>(at.high) - low, limit}, at.stream, out[0]);
    });
}

void random_normal(In, const kernels::RandomNormal& at, Out out) {
    with_real({out[0].dtype()}, [&]<class C>(C) {
        fill_random(Normal<C>{static_cast<C>(at.mean), static_cast<C>(at.stddev)}, at.stream, out[0]);
    });
}

void random_int(In, const kernels::RandomInt& at, Out out) {
    const std::uint64_t range = static_cast<std::uint64_t>(at.high) - static_cast<std::uint64_t>(at.low);
    fill_random(Integer{at.low, range}, at.stream, out[0]);
}

void dropout(In in, const kernels::Dropout& at, Out out) {
    use_device_of(out[0]);
    const Tensor &x = in[0], &y = out[0];
    const RandomStream stream = stream_of(at.stream);
    const auto threshold = static_cast<std::uint32_t>(std::lround(at.p * 65536.0));
    const double scale = at.p < 1 ? 1 / (1 - at.p) : 0;
    if (compute_kind({x.dtype(), y.dtype()}) == ComputeKind::float64)
        return dropout_any<double>(x, y, stream, threshold, scale);
    if (dropout_vectors<float16_t>(x, y, stream, threshold, scale) ||
        dropout_vectors<bfloat16_t>(x, y, stream, threshold, scale) ||
        dropout_vectors<float>(x, y, stream, threshold, scale))
        return;
    dropout_any<float>(x, y, stream, threshold, scale);
}

constinit const KernelList random_list = kernel_list<random_uniform, random_normal, random_int, dropout>;

}  // namespace mezzo::cuda_kernels
