// Comparisons, predicates and choices: the comparing rows of mezzo/ops.def, where, masked_fill, clamp_grad.
#include "cuda/elementwise/elementwise.cuh"
#include "cuda/kernels.h"
#include "kernels/elementwise.h"
#include "kernels/functors.h"

namespace mezzo::cuda {
namespace {

template <int N, class Make> void map_in(ComputeKind kind, const OperandLayout<N>& l, const Make& make) {
    with_compute_type(kind, [&]<class C>(C zero) { map_general<C>(l, make(zero)); });
}

template <class F> void compare(In in, Out out, const F& f) {
    map_in(compute_kind({in[0].dtype(), in[1].dtype()}), make_layout<3>({out[0], in[0], in[1]}),
           [&](auto) { return f; });
}

struct IsZero {
    template <class C> __device__ bool operator()(C x) const { return x == C(0); }
};
// x - x is 0 for finite x, else NaN.
struct IsFinite {
    template <class C> __device__ bool operator()(C x) const { return x - x == C(0); }
};
struct Select {
    template <class C> __device__ C operator()(C condition, C a, C b) const {
        return condition != C(0) ? a : b;
    }
};
template <class C> struct FillWhere {
    C value;
    __device__ C operator()(C x, C mask) const { return mask != C(0) ? value : x; }
};
// Gradient of clamp: g inside the bounds, else 0. NaN is not inside any bounds.
template <class C> struct Inside {
    C low, high;
    __device__ C operator()(C g, C x) const { return x >= low && x <= high ? g : C(0); }
};

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

#define MEZZO_COMPARE(op) \
    void op(In in, const kernels::op&, Out out) { compare(in, out, functors::op{}); }
#include "mezzo/ops.def"
#undef MEZZO_COMPARE

void logical_not(In in, const kernels::LogicalNot&, Out out) {
    map_in(compute_kind({in[0].dtype()}), make_layout<2>({out[0], in[0]}), [](auto) { return IsZero{}; });
}

void isfinite(In in, const kernels::IsFinite&, Out out) {
    map_in(compute_kind({in[0].dtype()}), make_layout<2>({out[0], in[0]}), [](auto) { return IsFinite{}; });
}

void where(In in, const kernels::Where&, Out out) {
    map_in(compute_kind({out[0].dtype(), in[1].dtype(), in[2].dtype()}),
           make_layout<4>({out[0], in[0], in[1], in[2]}), [](auto) { return Select{}; });
}

void masked_fill(In in, const kernels::MaskedFill& at, Out out) {
    map_in(compute_kind({out[0].dtype(), in[0].dtype()}), make_layout<3>({out[0], in[0], in[1]}),
           [&]<class C>(C) { return FillWhere<C>{scalar_as<C>(at.value)}; });
}

void clamp_grad(In in, const kernels::ClampGrad& at, Out out) {
    map_in(compute_kind({out[0].dtype(), in[0].dtype(), in[1].dtype()}),
           make_layout<3>({out[0], in[0], in[1]}), [&]<class C>(C) {
               return Inside<C>{scalar_as<C>(at.low), scalar_as<C>(at.high)};
           });
}

#define MEZZO_COMPARE(op) op,
constinit const KernelList compare_list = kernel_list<
#include "mezzo/ops.def"
    logical_not, isfinite, where, masked_fill, clamp_grad>;
#undef MEZZO_COMPARE

}  // namespace mezzo::cuda_kernels
