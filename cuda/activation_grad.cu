// The gradient before linear's activation, and its column sums (the bias's gradient), in one pass: the
// incoming gradient and what the activation kept are read once, and the result is not read again.
#include "cuda/reduce.cuh"
#include "ops/functors.h"
#include "ops/kernels.h"

namespace mezzo::cuda {
namespace {

constexpr int warps = 8;

// A block takes 32 packs of neighbouring columns, one per lane, and a part of the rows; sums are of the
// rounded results, as a second pass would find them. parts: [splits, cols].
template <class T, int pack, class F>
__global__ void activation_grad_kernel(const T* g, const T* kept, T* before, Compute<T>* parts,
                                       std::int64_t rows, std::int64_t cols, std::int64_t splits,
                                       F gradient) {
    using C = Compute<T>;
    using Pack = Vec<T, pack>;
    MEZZO_SHARED(C, sums, [warps][32 * pack]);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const std::int64_t tiles = (cols + 32 * pack - 1) / (32 * pack), part = (rows + splits - 1) / splits;
    for (std::int64_t item = blockIdx.x; item < tiles * splits; item += gridDim.x) {
        const std::int64_t split = item % splits, first = item / splits * 32 * pack;
        const std::int64_t column = first + lane * pack, begin = split * part;
        const std::int64_t end = begin + part < rows ? begin + part : rows;
        C total[pack] = {};
        for (std::int64_t row = begin + warp; column < cols && row < end; row += warps) {
            const std::int64_t at = row * cols + column;
            const Pack a = *reinterpret_cast<const Pack*>(g + at),
                       b = *reinterpret_cast<const Pack*>(kept + at);
            Pack result;
            MEZZO_UNROLL
            for (int i = 0; i < pack; ++i) {
                result.v[i] = convert<T>(gradient(convert<C>(a.v[i]), convert<C>(b.v[i])));
                total[i] += convert<C>(result.v[i]);
            }
            *reinterpret_cast<Pack*>(before + at) = result;
        }
        for (int i = 0; i < pack; ++i) sums[warp][lane * pack + i] = total[i];
        __syncthreads();
        for (int i = int(threadIdx.x); i < 32 * pack && first + i < cols; i += 32 * warps) {
            C sum = sums[0][i];
            for (int w = 1; w < warps; ++w) sum += sums[w][i];
            parts[split * cols + first + i] = sum;
        }
        __syncthreads();
    }
}

template <class T, int pack, class F> void run(In in, Out out, const F& gradient) {
    using C = Compute<T>;
    const std::int64_t rows = in[0].shape()[0], cols = in[0].shape()[1];
    const std::int64_t tiles = (cols + 32 * pack - 1) / (32 * pack), most = rows / (warps * 8);
    const std::int64_t wanted = grid_limit(32 * warps) / tiles,
                       splits = std::max<std::int64_t>(1, std::min(wanted, most));
    const auto launch_into = [&](C* parts) {
        launch(activation_grad_kernel<T, pack, F>, grid_for(tiles * splits, 1), 32 * warps, 0,
               static_cast<const T*>(raw(in[0])), static_cast<const T*>(raw(in[1])),
               static_cast<T*>(raw(out[0])), parts, rows, cols, splits, gradient);
    };
    if (splits == 1) return launch_into(static_cast<C*>(raw(out[1])));
    const Scratch parts(out[0].device(), splits * cols * std::int64_t(sizeof(C)));
    launch_into(parts.as<C>());
    reduce(LoadElement<Array<C>>{{parts.as<C>()}}, SumOp<C>{C(1)}, reduce_shape(Shape{splits, cols}, Axes{0}),
           out[1]);
}

template <class T, class F> void run_packed(In in, Out out, const F& gradient) {
    constexpr int pack = 16 / sizeof(T);
    bool whole = in[0].shape()[1] % pack == 0;
    for (const Tensor& x : {in[0], in[1], out[0]})
        whole &= reinterpret_cast<std::uintptr_t>(raw(x)) % 16 == 0;
    if (whole)
        run<T, pack>(in, out, gradient);
    else
        run<T, 1>(in, out, gradient);
}

template <class F> void run_any(In in, Out out, const F& gradient) {
    use_device_of(out[0]);
    switch (out[0].dtype()) {
        case Dtype::float16:
            return run_packed<float16_t>(in, out, gradient);
        case Dtype::bfloat16:
            return run_packed<bfloat16_t>(in, out, gradient);
        case Dtype::float32:
            return run_packed<float>(in, out, gradient);
        default:
            return run_packed<double>(in, out, gradient);
    }
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void activation_grad(In in, const Attrs& at, Out out) {
    if (out[1].numel() == 0) return;
    if (at.activation == Activation::relu)
        run_any(in, out, functors::relu_grad{});
    else if (at.activation == Activation::gelu)
        run_any(in, out, functors::gelu_grad{});
    else
        run_any(in, out, functors::gelu_tanh_grad{});
}

}  // namespace mezzo::cuda_kernels
