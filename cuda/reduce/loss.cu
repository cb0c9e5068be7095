// Element-wise losses and their gradients: mse, l1, smooth_l1, binary cross entropy with and without logits.
#include "cuda/elementwise/elementwise.cuh"
#include "cuda/kernels.h"
#include "cuda/reduce/reduce.cuh"
#include "kernels/functor_loss.h"
#include "kernels/loss.h"
#include "mezzo/ops.h"

namespace mezzo::cuda {

using functors::AbsoluteError;
using functors::HuberError;
using functors::LogitError;
using functors::SmoothError;
using functors::SquaredError;

// NaN outside of [0, 1], because the device cannot throw.
struct BinaryError : functors::BinaryError {
    template <class C> static __device__ C loss(C x, C t, C) {
        return x < C(0) || x > C(1) ? static_cast<C>(NAN) : functors::BinaryError::loss(x, t, C(0));
    }
    template <class C> static __device__ C slope(C x, C t, C) {
        return x < C(0) || x > C(1) ? static_cast<C>(NAN) : functors::BinaryError::slope(x, t, C(0));
    }
};

namespace {

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

template <class F, class C> void loss_in(In in, Reduction reduction, C beta, Out out) {
    if (reduction == Reduction::none)
        return map_general<C>(make_layout<3>({out[0], in[0], in[1]}), ElementLoss<F, C>{beta});
    const C divisor = reduction == Reduction::mean ? static_cast<C>(in[0].numel()) : C(1);
    reduce(LoadLoss<F, C>{any_of<C>(in[0]), any_of<C>(in[1]), beta}, SumOp<C>{divisor},
           reduce_all(in[0].numel()), out[0]);
}

template <class F, class C> void grad_in(In in, Reduction reduction, C beta, Out out) {
    const C scale = reduction == Reduction::mean ? C(1) / static_cast<C>(in[1].numel()) : C(1);
    map_general<C>(make_layout<4>({out[0], in[0], in[1], in[2]}), ElementSlope<F, C>{beta, scale});
}

}  // namespace

// Both have external linkage: nvcc hides no symbols of templates whose arguments are local to a file.
template <class F, class A> void loss(In in, const A& at, Out out) {
    with_real({in[0].dtype(), in[1].dtype(), out[0].dtype()},
              [&]<class C>(C) { loss_in<F, C>(in, at.reduction, static_cast<C>(beta_of(at)), out); });
}
template <class F, class A> void loss_grad(In in, const A& at, Out out) {
    with_real({in[0].dtype(), in[1].dtype(), in[2].dtype(), out[0].dtype()},
              [&]<class C>(C) { grad_in<F, C>(in, at.reduction, static_cast<C>(beta_of(at)), out); });
}

}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;
using namespace mezzo::kernels;

constinit const KernelList loss_list =
    kernel_list<loss<SquaredError, MseLoss>, loss_grad<SquaredError, MseLossGrad>,
                loss<AbsoluteError, L1Loss>, loss_grad<AbsoluteError, L1LossGrad>,
                loss<SmoothError, SmoothL1Loss>, loss_grad<SmoothError, SmoothL1LossGrad>,
                loss<HuberError, HuberLoss>, loss_grad<HuberError, HuberLossGrad>,
                loss<BinaryError, BinaryCrossEntropy>, loss_grad<BinaryError, BinaryCrossEntropyGrad>,
                loss<LogitError, BinaryCrossEntropyWithLogits>,
                loss_grad<LogitError, BinaryCrossEntropyWithLogitsGrad>>;

}  // namespace mezzo::cuda_kernels
