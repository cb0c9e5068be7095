// Bias and activation on a GEMM's result, for epilogues that the GEMM library cannot fuse.
#include <algorithm>

#include "cuda/elementwise/approximate.cuh"
#include "cuda/elementwise/packs.cuh"
#include "cuda/gemm/device.cuh"
#include "cuda/gemm/gemm.h"

namespace mezzo::cuda {
namespace {

constexpr int warps = 8;
constexpr std::int64_t largest_grid = 65535;  // of the second and third dimension

// Arguments of the kernel for a product. Results may overwrite the input.
template <class T> struct Pass {
    std::int64_t m, n, ld, batch, stride;
    const T* input;
    T *result, *before;  // before: may be null
    const void* bias;    // may be null
    Dtype bias_type;
    Activation activation;
};

template <class T> __device__ Compute<T> activated(Activation activation, Compute<T> x) {
    if constexpr (is_storage_type<T>) {
        if (activation == Activation::gelu) return gelu_approximate(x);
        if (activation == Activation::gelu_tanh) return gelu_tanh_approximate(x);
    }
    return activate(activation, x);
}

// `pack` adjacent elements of the bias.
template <int pack, class C, class T>
__device__ void load_bias(const Pass<T>& p, std::int64_t column, C (&bias)[pack]) {
    visit_on_device<Dtypes::floating>(p.bias_type, [&]<class B>(std::type_identity<B>) {
        MEZZO_UNROLL
        for (int i = 0; i < pack; ++i) bias[i] = convert<C>(static_cast<const B*>(p.bias)[column + i]);
    });
}

// Adds the bias, stores that if it is wanted, and the activation's result.
template <Activation activation, class T, int pack>
__device__ void finish(const Pass<T>& p, std::int64_t at, const Compute<T> (&bias)[pack]) {
    using Pack = Vec<T, pack>;
    Pack x = *reinterpret_cast<const Pack*>(p.input + at);
    Compute<T> value[pack];
    MEZZO_UNROLL
    for (int i = 0; i < pack; ++i) value[i] = convert<Compute<T>>(x.v[i]);
    if (p.bias != nullptr) {
        MEZZO_UNROLL
        for (int i = 0; i < pack; ++i) value[i] += bias[i];
    }
    if (p.before != nullptr) {
        MEZZO_UNROLL
        for (int i = 0; i < pack; ++i) x.v[i] = convert<T>(value[i]);
        store_vec(p.before + at, x);
    }
    MEZZO_UNROLL
    for (int i = 0; i < pack; ++i) x.v[i] = convert<T>(activated<T>(activation, value[i]));
    store_vec(p.result + at, x);
}

// A warp takes 32 packs of adjacent columns of one row after another, so that nothing is divided and each
// thread keeps its part of the bias. A block has 8 rows; the grid's y and z are more rows and the batch.
template <Activation activation, class T, int pack> __device__ void run_pass(const Pass<T>& p) {
    for (std::int64_t first = std::int64_t(blockIdx.x) * 32 * pack; first < p.n;
         first += std::int64_t(gridDim.x) * 32 * pack) {
        const std::int64_t column = first + std::int64_t(threadIdx.x % 32) * pack;
        if (column >= p.n) continue;
        Compute<T> bias[pack] = {};
        if (p.bias != nullptr) load_bias(p, column, bias);
        for (std::int64_t item = blockIdx.z; item < p.batch; item += gridDim.z)
            for (std::int64_t row = std::int64_t(blockIdx.y) * warps + threadIdx.x / 32; row < p.m;
                 row += std::int64_t(gridDim.y) * warps)
                finish<activation>(p, item * p.stride + row * p.ld + column, bias);
    }
}

template <class T, int pack> __global__ void epilogue_kernel(const MEZZO_GRID_CONSTANT Pass<T> p) {
    switch (p.activation) {
        case Activation::none:
            return run_pass<Activation::none, T, pack>(p);
        case Activation::relu:
            return run_pass<Activation::relu, T, pack>(p);
        case Activation::gelu:
            return run_pass<Activation::gelu, T, pack>(p);
        case Activation::gelu_tanh:
            return run_pass<Activation::gelu_tanh, T, pack>(p);
    }
}

// Whether all that the kernel reads and writes consists of whole packs of so many elements.
template <class T> bool in_packs(const Pass<T>& p, std::int64_t pack) {
    bool whole = p.n % pack == 0 && p.ld % pack == 0 && (p.batch == 1 || p.stride % pack == 0);
    const T* const all[] = {p.input, p.result, p.before};
    for (const T* x : all)
        whole &= reinterpret_cast<std::uintptr_t>(x) % (static_cast<std::size_t>(pack) * sizeof(T)) == 0;
    return whole;
}

template <class T, int pack> void run(const Pass<T>& p) {
    const std::int64_t tiles = (p.n + 32 * pack - 1) / (32 * pack), rows = (p.m + warps - 1) / warps;
    const std::int64_t columns = std::min<std::int64_t>(tiles, grid_limit(32 * warps));
    const std::int64_t wanted = std::max<std::int64_t>(1, grid_limit(32 * warps) / columns);
    const std::int64_t down = std::min({rows, wanted, largest_grid});
    const std::int64_t deep = std::min({p.batch, std::max<std::int64_t>(1, wanted / down), largest_grid});
    launch(epilogue_kernel<T, pack>,
           {static_cast<unsigned>(columns), static_cast<unsigned>(down), static_cast<unsigned>(deep)},
           32 * warps, 0, p);
}

template <class T> void run(const Gemm& g, const void* input) {
    const Pass<T> p{g.m,
                    g.n,
                    g.ldc,
                    g.batch,
                    g.stride_c,
                    static_cast<const T*>(input),
                    static_cast<T*>(g.c),
                    static_cast<T*>(g.pre_activation),
                    g.bias,
                    g.bias_type,
                    g.activation};
    constexpr int wide = 16 / sizeof(T), narrow = 8 / sizeof(T);
    if (in_packs(p, wide))
        run<T, wide>(p);
    else if (in_packs(p, narrow))
        run<T, narrow>(p);
    else
        run<T, 1>(p);
}

}  // namespace

void gemm_epilogue(const Gemm& g, const void* input) {
    visit_dtype<Dtypes::floating>(g.c_type, [&]<class T>(std::type_identity<T>) { run<T>(g, input); });
}

}  // namespace mezzo::cuda
