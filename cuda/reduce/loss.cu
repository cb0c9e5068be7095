// Element-wise losses and their gradients: mse, l1, smooth_l1, binary cross entropy with and without logits.
#include "cuda/elementwise/elementwise.cuh"
#include "cuda/kernels.h"
#include "cuda/reduce/reduce.cuh"
#include "kernels/functors.h"
#include "kernels/loss.h"
#include "mezzo/ops.h"

namespace mezzo::cuda {
namespace {

namespace math = functors::math;

// The loss of input x and target t, and its derivative by x divided by `slopes`. `beta` is that of smooth_l1
// and huber.
struct SquaredError {
    static constexpr int slopes = 2;
    template <class C> static __device__ C loss(C x, C t, C) { return (x - t) * (x - t); }
    template <class C> static __device__ C slope(C x, C t, C) { return x - t; }
};
struct AbsoluteError {
    static constexpr int slopes = 1;
    template <class C> static __device__ C loss(C x, C t, C) { return math::abs(x - t); }
    template <class C> static __device__ C slope(C x, C t, C) { return functors::sign{}(x - t); }
};
// d^2 / (2 beta) where |d| < beta, else |d| - beta / 2
struct SmoothError {
    static constexpr int slopes = 1;
    template <class C> static __device__ C loss(C x, C t, C beta) {
        const C d = math::abs(x - t);
        if (d < beta) return C(0.5) * d * (d / beta);
        return d == static_cast<C>(INFINITY) ? d : d - C(0.5) * beta;
    }
    template <class C> static __device__ C slope(C x, C t, C beta) {
        const C d = x - t;
        return math::abs(d) < beta ? d / beta : functors::sign{}(d);
    }
};
// d^2 / 2 where |d| < delta, else delta (|d| - delta / 2)
struct HuberError {
    static constexpr int slopes = 1;
    template <class C> static __device__ C loss(C x, C t, C delta) {
        const C d = math::abs(x - t);
        if (d < delta) return C(0.5) * d * d;
        return d == static_cast<C>(INFINITY) ? d : delta * (d - C(0.5) * delta);
    }
    template <class C> static __device__ C slope(C x, C t, C delta) {
        const C d = x - t;
        return math::abs(d) < delta ? d : delta * functors::sign{}(d);
    }
};
// -(t ln x + (1 - t) ln(1 - x)), logarithms not below -100. Outside [0, 1] both are NaN: the device cannot
// throw.
struct CrossEntropy {
    static constexpr int slopes = 1;
    template <class C> static __device__ C bounded(C logarithm) {
        return logarithm < C(-100) ? C(-100) : logarithm;
    }
    template <class C> static __device__ C loss(C x, C t, C) {
        if (x < C(0) || x > C(1)) return static_cast<C>(NAN);
        return (t - C(1)) * bounded(math::log1p(-x)) - t * bounded(math::log(x));
    }
    template <class C> static __device__ C slope(C x, C t, C) {
        if (x < C(0) || x > C(1)) return static_cast<C>(NAN);
        const C variance = x * (C(1) - x);
        return (x - t) / (variance < C(1e-12) ? C(1e-12) : variance);
    }
};
// The same of x = sigmoid(l), without overflow: (1 - t) max(l, 0) + t max(-l, 0) + ln(1 + e^-|l|), where a
// factor of 0 makes its product 0. The derivative x - t is (1 - t) x - t (1 - x), in which nothing cancels
// where x rounds to 1.
struct LogitCrossEntropy {
    static constexpr int slopes = 1;
    template <class C> static __device__ C loss(C x, C t, C) {
        const C weight = x > C(0) ? C(1) - t : -t;
        return (weight == C(0) ? C(0) : weight * x) + math::log1p(math::exp(-math::abs(x)));
    }
    template <class C> static __device__ C slope(C x, C t, C) {
        const C e = math::exp(-math::abs(x)), likely = C(1) / (C(1) + e), unlikely = e * likely;
        return x > C(0) ? (C(1) - t) * likely - t * unlikely : (C(1) - t) * unlikely - t * likely;
    }
};

template <class F, class C> struct LoadLoss {
    AnyArray<C> input, target;
    C beta;
    __device__ C operator()(std::int64_t offset, std::int64_t) const {
        return F::loss(input.load(offset), target.load(offset), beta);
    }
    template <int n> __device__ void many(std::int64_t first, std::int64_t step, C (&out)[n]) const {
        C targets[n];
        input.load_many(first, step, out);
        target.load_many(first, step, targets);
        MEZZO_UNROLL
        for (int i = 0; i < n; ++i) out[i] = F::loss(out[i], targets[i], beta);
    }
};
template <class F, class C> struct ElementLoss {
    C beta;
    __device__ C operator()(C x, C t) const { return F::loss(x, t, beta); }
};
template <class F, class C> struct ElementSlope {
    C beta, scale;
    __device__ C operator()(C g, C x, C t) const { return C(F::slopes) * (g * scale * F::slope(x, t, beta)); }
};

// beta: of smooth_l1 and huber; the others do not read it.
template <class F, class C> void loss_in(In in, Reduction reduction, C beta, Out out) {
    if (reduction == Reduction::none)
        return map_general<C>(make_layout<3>({out[0], in[0], in[1]}), ElementLoss<F, C>{beta});
    const C divisor = reduction == Reduction::mean ? static_cast<C>(in[0].numel()) : C(1);
    reduce(LoadLoss<F, C>{any_of<C>(in[0]), any_of<C>(in[1]), beta}, SumOp<C>{divisor},
           reduce_all(in[0].numel()), out[0]);
}

template <class F> void loss(In in, Reduction reduction, Out out, double beta = 0) {
    if (compute_kind({in[0].dtype(), in[1].dtype(), out[0].dtype()}) == ComputeKind::float64)
        loss_in<F, double>(in, reduction, beta, out);
    else
        loss_in<F, float>(in, reduction, static_cast<float>(beta), out);
}

template <class F, class C> void grad_in(In in, Reduction reduction, C beta, Out out) {
    const C scale = reduction == Reduction::mean ? C(1) / static_cast<C>(in[1].numel()) : C(1);
    map_general<C>(make_layout<4>({out[0], in[0], in[1], in[2]}), ElementSlope<F, C>{beta, scale});
}

template <class F> void loss_grad(In in, Reduction reduction, Out out, double beta = 0) {
    if (compute_kind({in[0].dtype(), in[1].dtype(), in[2].dtype(), out[0].dtype()}) == ComputeKind::float64)
        grad_in<F, double>(in, reduction, beta, out);
    else
        grad_in<F, float>(in, reduction, static_cast<float>(beta), out);
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void mse_loss(In in, const kernels::MseLoss& at, Out out) { loss<SquaredError>(in, at.reduction, out); }
void mse_loss_grad(In in, const kernels::MseLossGrad& at, Out out) {
    loss_grad<SquaredError>(in, at.reduction, out);
}
void l1_loss(In in, const kernels::L1Loss& at, Out out) { loss<AbsoluteError>(in, at.reduction, out); }
void l1_loss_grad(In in, const kernels::L1LossGrad& at, Out out) {
    loss_grad<AbsoluteError>(in, at.reduction, out);
}
void smooth_l1_loss(In in, const kernels::SmoothL1Loss& at, Out out) {
    loss<SmoothError>(in, at.reduction, out, at.beta);
}
void smooth_l1_loss_grad(In in, const kernels::SmoothL1LossGrad& at, Out out) {
    loss_grad<SmoothError>(in, at.reduction, out, at.beta);
}
void huber_loss(In in, const kernels::HuberLoss& at, Out out) {
    loss<HuberError>(in, at.reduction, out, at.beta);
}
void huber_loss_grad(In in, const kernels::HuberLossGrad& at, Out out) {
    loss_grad<HuberError>(in, at.reduction, out, at.beta);
}
void binary_cross_entropy(In in, const kernels::BinaryCrossEntropy& at, Out out) {
    loss<CrossEntropy>(in, at.reduction, out);
}
void binary_cross_entropy_grad(In in, const kernels::BinaryCrossEntropyGrad& at, Out out) {
    loss_grad<CrossEntropy>(in, at.reduction, out);
}
void binary_cross_entropy_with_logits(In in, const kernels::BinaryCrossEntropyWithLogits& at, Out out) {
    loss<LogitCrossEntropy>(in, at.reduction, out);
}
void binary_cross_entropy_with_logits_grad(In in, const kernels::BinaryCrossEntropyWithLogitsGrad& at,
                                           Out out) {
    loss_grad<LogitCrossEntropy>(in, at.reduction, out);
}

constexpr KernelEntry entries[] = {kernel_entry<mse_loss>(),
                                   kernel_entry<mse_loss_grad>(),
                                   kernel_entry<l1_loss>(),
                                   kernel_entry<l1_loss_grad>(),
                                   kernel_entry<smooth_l1_loss>(),
                                   kernel_entry<smooth_l1_loss_grad>(),
                                   kernel_entry<huber_loss>(),
                                   kernel_entry<huber_loss_grad>(),
                                   kernel_entry<binary_cross_entropy>(),
                                   kernel_entry<binary_cross_entropy_grad>(),
                                   kernel_entry<binary_cross_entropy_with_logits>(),
                                   kernel_entry<binary_cross_entropy_with_logits_grad>()};
constinit const KernelList loss_list = entries;

}  // namespace mezzo::cuda_kernels
