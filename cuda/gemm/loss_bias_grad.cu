// Gradient of mse_loss with respect to the result of a linear layer, and its column sums (the bias's
// gradient).
#include "cuda/kernels.h"
#include "cuda/reduce/gradient_sums.cuh"
#include "kernels/loss.h"

namespace mezzo::cuda {
namespace {

// 2 g scale (input - target), as mse_loss_grad computes it. G: of the target.
template <class T, class G, int pack> struct SquaredErrorGrad {
    using C = Compute<T>;
    const T* input;
    const G* target;
    AnyArray<C> g;  // one value
    C scale;
    std::int64_t cols;
    __device__ void load(std::int64_t row, std::int64_t column, C (&out)[pack]) const {
        const std::int64_t at = row * cols + column;
        const auto x = *reinterpret_cast<const Vec<T, pack>*>(input + at);
        const C factor = g.load(0) * scale;
        MEZZO_UNROLL
        for (int i = 0; i < pack; ++i)
            out[i] = C(2) * (factor * (convert<C>(x.v[i]) - convert<C>(target[at + i])));
    }
};

template <class T, int pack, class Source>
__global__ void loss_bias_grad_kernel(Source source, GradientSums<T> to) {
    write_gradient_and_sums<T, pack>(source, to);
}

struct Pass {
    Tensor input, target, g, gradient, sums;
    bool mean;
};

template <class T, class G, int pack> void run(const Pass& p) {
    using Source = SquaredErrorGrad<T, G, pack>;
    using C = Compute<T>;
    const std::int64_t rows = p.input.shape()[0], cols = p.input.shape()[1];
    const Source source{static_cast<const T*>(raw(p.input)), static_cast<const G*>(raw(p.target)),
                        any_of<C>(p.g), p.mean ? C(1) / C(p.input.numel()) : C(1), cols};
    split_rows<T, pack>(static_cast<T*>(raw(p.gradient)), raw(p.sums), rows, cols,
                        [&](const GradientSums<T>& to, unsigned grid) {
                            launch(loss_bias_grad_kernel<T, pack, Source>, grid, 32 * gradient_warps, 0,
                                   source, to);
                        });
}

template <class T, class G> void run_packed(const Pass& p) {
    constexpr int pack = 16 / sizeof(T);
    bool whole = p.input.shape()[1] % pack == 0;
    for (const Tensor* x : {&p.input, &p.gradient})
        whole &= reinterpret_cast<std::uintptr_t>(raw(*x)) % 16 == 0;
    if (whole)
        run<T, G, pack>(p);
    else
        run<T, G, 1>(p);
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void mse_loss_bias_grad(In in, const kernels::MseLossBiasGrad& at, Out out) {
    if (out[1].numel() == 0) return;
    use_device_of(out[0]);
    const Pass pass{in[0], in[1], in[2], out[0], out[1], at.reduction == Reduction::mean};
    visit_dtype<Dtypes::floating>(out[0].dtype(), [&]<class T>(std::type_identity<T>) {
        if (in[1].dtype() == out[0].dtype())
            run_packed<T, T>(pass);
        else
            run_packed<T, Compute<T>>(pass);
    });
}

constinit const KernelList loss_bias_grad_list = kernel_list<mse_loss_bias_grad>;

}  // namespace mezzo::cuda_kernels
