// Reductions that choose: max, min, argmax, and the gradient of max and min.
#include "cuda/elementwise/elementwise.cuh"
#include "cuda/kernels.h"
#include "cuda/reduce/reduce.cuh"
#include "kernels/reduce.h"

namespace mezzo::cuda {
namespace {

template <class C> __device__ C lowest() {
    if constexpr (std::is_integral_v<C>)
        return sizeof(C) == 8 ? static_cast<C>(-0x7fffffffffffffff - 1) : static_cast<C>(-0x7fffffff - 1);
    else
        return -static_cast<C>(INFINITY);
}

// The largest value, or the smallest: flip() reverses the order of values, so that one kernel serves max and
// min. NaN wins.
template <class C> struct ExtremeOp {
    using Acc = C;
    using Result = C;
    bool smallest;
    __device__ C flip(C value) const {  // reverses the order; for integers ~x, which cannot overflow
        if (!smallest) return value;
        if constexpr (std::is_integral_v<C>)
            return ~value;
        else
            return -value;
    }
    __device__ C identity() const { return lowest<C>(); }
    __device__ C lift(C value, std::int64_t) const { return flip(value); }
    __device__ C combine(C a, C b) const { return a > b || a != a ? a : b; }
    __device__ C finish(C acc) const { return flip(acc); }
};

template <class C> struct ValueAt {
    C value;
    std::int64_t index;
};

// The first position of the largest value, of the first NaN if there is one.
template <class C> struct ArgmaxOp {
    using Acc = ValueAt<C>;
    using Result = std::int64_t;
    __device__ Acc identity() const { return {lowest<C>(), 0x7fffffffffffffff}; }
    __device__ Acc lift(C value, std::int64_t position) const { return {value, position}; }
    __device__ Acc combine(const Acc& a, const Acc& b) const {
        const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
        if (a_nan != b_nan) return a_nan ? a : b;
        if (a_nan || a.value == b.value) return a.index < b.index ? a : b;
        return a.value > b.value ? a : b;
    }
    __device__ std::int64_t finish(const Acc& acc) const { return acc.index; }
};

template <class C> __device__ bool chosen(C x, C y) { return x == y; }

// 1 where x equals its output y, which means that it was chosen.
template <class C> struct LoadTie {
    AnyArray<C> x, y;
    __device__ std::int64_t operator()(std::int64_t offset, std::int64_t output) const {
        return chosen(x.load(offset), y.load(output));
    }
};

template <class C> struct ShareGradient {
    // NaN, which nothing equals, makes the gradient NaN throughout.
    __device__ C operator()(C g, C x, C y, C ties) const {
        if (y != y) return y;
        return chosen(x, y) ? g / ties : C(0);
    }
};

// axes of x along which y has size 1; y has x's number of dimensions.
Axes reduced_axes(const Shape& x, const Shape& y) {
    Axes axes;
    for (int d = 0; d < x.size(); ++d)
        if (y[d] == 1 && x[d] != 1) axes.push_back(d);
    return axes;
}

template <class C> void share_gradient(In in, const Tensor& out) {
    const Tensor &g = in[0], &x = in[1], &y = in[2];
    const Tensor ties = empty(y.shape(), {.dtype = float64, .device = y.device()});
    const ReduceShape s = reduce_shape(x.shape(), reduced_axes(x.shape(), y.shape()));
    reduce(LoadTie<C>{any_of<C>(x), any_of<C>(y)}, SumOp<std::int64_t>{1}, s, ties);
    map_general<C>(make_layout<5>({out, g, x, y, ties}), ShareGradient<C>{});
}

void extreme(In in, const Axes& axes, Out out, bool smallest) {
    reduce_elements(in[0], reduce_shape(in[0].shape(), axes), out[0],
                    [&]<class C>(C) { return ExtremeOp<C>{smallest}; });
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void max(In in, const kernels::Max& at, Out out) { extreme(in, at.axes, out, false); }
void min(In in, const kernels::Min& at, Out out) { extreme(in, at.axes, out, true); }

void argmax(In in, const kernels::ArgMax& at, Out out) {
    reduce_elements(in[0], reduce_shape(in[0].shape(), Axes{at.dim}), out[0],
                    []<class C>(C) { return ArgmaxOp<C>{}; });
}

void amax_grad(In in, const kernels::AmaxGrad&, Out out) {
    with_real({in[0].dtype(), in[1].dtype(), out[0].dtype()},
              [&]<class C>(C) { share_gradient<C>(in, out[0]); });
}

constinit const KernelList extremes_list = kernel_list<max, min, argmax, amax_grad>;

}  // namespace mezzo::cuda_kernels
