// Gradient with respect to the input of a linear layer's activation, and its column sums (the bias's
// gradient).
#include "cuda/elementwise/elements.cuh"
#include "cuda/gemm/column_sum.h"
#include "cuda/gemm/gemm.h"
#include "cuda/kernels.h"
#include "cuda/reduce/gradient_sums.cuh"
#include "kernels/functors.h"
#include "kernels/gemm_plan.h"
#include "kernels/matmul.h"

namespace mezzo::cuda {
namespace {

// The tensor that the activation saved: `pack` adjacent elements of a row.
template <class T, int pack> struct Values {
    const T* p;
    std::int64_t cols;
    __device__ void load(std::int64_t row, std::int64_t column, Compute<T> (&out)[pack]) const {
        const auto values = *reinterpret_cast<const Vec<T, pack>*>(p + row * cols + column);
        MEZZO_UNROLL
        for (int i = 0; i < pack; ++i) out[i] = convert<Compute<T>>(values.v[i]);
    }
};

// A ReLU mask, read instead of relu's result: 1 where the result is positive, else 0. 8 is a multiple of
// `pack`.
template <class T, int pack> struct Bits {
    const std::uint8_t* p;
    std::int64_t ld;
    __device__ void load(std::int64_t row, std::int64_t column, Compute<T> (&out)[pack]) const {
        const unsigned byte = unsigned(p[(row * ld + column) / 8]) >> (column % 8);
        MEZZO_UNROLL
        for (int i = 0; i < pack; ++i) out[i] = Compute<T>(byte >> i & 1u);
    }
};

// Gradient through the activation: g times the derivative at the saved tensor. g may be the memory of the
// result.
template <class T, int pack, class Kept, class F> struct ThroughActivation {
    const T* g;
    Kept saved;
    std::int64_t cols;
    F gradient;
    __device__ void load(std::int64_t row, std::int64_t column, Compute<T> (&out)[pack]) const {
        const auto a = *reinterpret_cast<const Vec<T, pack>*>(g + row * cols + column);
        Compute<T> b[pack];
        saved.load(row, column, b);
        MEZZO_UNROLL
        for (int i = 0; i < pack; ++i) out[i] = gradient(convert<Compute<T>>(a.v[i]), b[i]);
    }
};

template <class T, int pack, class Source>
__global__ void activation_grad_kernel(Source source, GradientSums<T> to) {
    write_gradient_and_sums<T, pack>(source, to);
}

// Operands of one pass. `before` gets g times the activation's derivative, which is read from the mask if
// there is one and otherwise computed from the saved tensor; `sums` gets the column sums of `before`, unless
// null.
struct Pass {
    const void *g, *saved, *mask;
    void *before, *sums;
    std::int64_t rows, cols;
};

template <class T, int pack, class Kept, class F>
void run(const Pass& p, const Kept& saved, const F& gradient) {
    using Source = ThroughActivation<T, pack, Kept, F>;
    const Source source{static_cast<const T*>(p.g), saved, p.cols, gradient};
    split_rows<T, pack>(
        static_cast<T*>(p.before), p.sums, p.rows, p.cols, [&](const GradientSums<T>& to, unsigned grid) {
            launch(activation_grad_kernel<T, pack, Source>, grid, 32 * gradient_warps, 0, source, to);
        });
}

template <class T, int pack> void run_activation(const Pass& p, Activation activation) {
    const Values<T, pack> values{static_cast<const T*>(p.saved), p.cols};
    if (activation == Activation::relu && p.mask != nullptr)
        run<T, pack>(p, Bits<T, pack>{static_cast<const std::uint8_t*>(p.mask), relu_mask_ld(p.cols)},
                     functors::relu_grad{});
    else if (activation == Activation::relu)
        run<T, pack>(p, values, functors::relu_grad{});
    else if (activation == Activation::gelu)
        run<T, pack>(p, values, functors::gelu_grad{});
    else
        run<T, pack>(p, values, functors::gelu_tanh_grad{});
}

template <class T> void run_packed(const Pass& p, Activation activation) {
    constexpr int pack = 16 / sizeof(T);
    bool whole = p.cols % pack == 0;
    for (const void* x : {p.g, p.mask != nullptr ? p.g : p.saved, static_cast<const void*>(p.before)})
        whole &= reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
    if (whole)
        run_activation<T, pack>(p, activation);
    else
        run_activation<T, 1>(p, activation);
}

}  // namespace

void gemm_activation_grad(const Gemm& g) {
    const Pass pass{g.c, g.saved, g.mask, g.c, g.bias_grad, g.m, g.n};
    visit_dtype<Dtypes::floating>(g.c_type,
                                  [&]<class T>(std::type_identity<T>) { run_packed<T>(pass, g.activation); });
}

void gemm_bias_grad(const Gemm& g) {
    sum_columns(g.c, g.c_type, g.m, g.n, g.bias_grad, gemm_plan::bias_grad_type(g.c_type));
}

void gemm_a_sums(const Gemm& g) {
    sum_columns(g.a, g.a_type, g.k, g.m, g.a_sums, gemm_plan::bias_grad_type(g.c_type));
}

}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void activation_grad(In in, const kernels::ActivationGrad& at, Out out) {
    if (out[1].numel() == 0) return;
    use_device_of(out[0]);
    const void* const mask = in.size() > 2 && in[2].defined() ? raw(in[2]) : nullptr;
    const Pass pass{raw(in[0]),       raw(in[1]),      mask, raw(out[0]), raw(out[1]),
                    in[0].shape()[0], in[0].shape()[1]};
    visit_dtype<Dtypes::floating>(
        out[0].dtype(), [&]<class T>(std::type_identity<T>) { run_packed<T>(pass, at.activation); });
}

constinit const KernelList activation_grad_list = kernel_list<activation_grad>;

}  // namespace mezzo::cuda_kernels
