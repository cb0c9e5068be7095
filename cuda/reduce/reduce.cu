// Sums: sum, mean, norm, column_sum.
#include "cuda/gemm/column_sum.h"
#include "cuda/kernels.h"
#include "cuda/reduce/reduce.cuh"
#include "kernels/functors.h"
#include "kernels/reduce.h"

namespace mezzo::cuda {
namespace {

// sqrt(sum of squares), in double because squares leave the range of float.
template <class C> struct NormOp {
    using Acc = double;
    using Result = C;
    __device__ double identity() const { return 0; }
    __device__ double lift(C value, std::int64_t) const {
        return static_cast<double>(value) * static_cast<double>(value);
    }
    __device__ double combine(double a, double b) const { return a + b; }
    __device__ C finish(double acc) const { return static_cast<C>(functors::math::sqrt(acc)); }
};

void sum_elements(const Tensor& x, const ReduceShape& s, std::int64_t divisor, const Tensor& out) {
    reduce_elements(x, s, out, [&]<class C>(C) { return SumOp<C>{static_cast<C>(divisor)}; });
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void sum(In in, const kernels::Sum& at, Out out) {
    sum_elements(in[0], reduce_shape(in[0].shape(), at.axes), 1, out[0]);
}

void mean(In in, const kernels::Mean& at, Out out) {
    const ReduceShape s = reduce_shape(in[0].shape(), at.axes);
    sum_elements(in[0], s, s.reduced.count, out[0]);
}

void norm(In in, const kernels::Norm& at, Out out) {
    reduce_floating(in[0], reduce_shape(in[0].shape(), at.axes), out[0],
                    []<class C>(C) { return NormOp<C>{}; });
}

void column_sum(In in, const kernels::ColumnSum&, Out out) {
    use_device_of(out[0]);
    const Tensor &x = in[0], &y = out[0];
    if (is_floating(x.dtype()))
        return sum_columns(raw(x), x.dtype(), x.shape()[0], x.shape()[1], raw(y), y.dtype());
    sum_elements(x, reduce_shape(x.shape(), Axes{0}), 1, y);
}

constinit const KernelList reduce_list = kernel_list<sum, mean, norm, column_sum>;

}  // namespace mezzo::cuda_kernels
