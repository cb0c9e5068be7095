// softmax, log_softmax and their gradients along any dimension. A row is read once from memory for its
// maximum and sum, and once more, from cache, for the result.
#include "cuda/kernels.h"
#include "cuda/reduce/rows.cuh"
#include "kernels/softmax.h"

namespace mezzo::cuda {
namespace {

// y = exp(x - max) / sum, or its logarithm. A row of -inf gives NaN.
template <class Team, class X, class Y> __global__ void softmax_kernel(X x, Y y, Rows r, bool log) {
    using C = typename X::C;
    for (std::int64_t row = Team::first_row(); row < r.rows; row += Team::row_step()) {
        const std::int64_t base = r.base(row);
        const MaxSum<C> stats = max_sum<Team>(x, base, r);
        const C log_sum = log ? log_of_sum<Team>(x, base, r, stats) : C(0), inverse = C(1) / stats.sum;
        for (std::int64_t j = Team::rank(); j < r.cols; j += Team::size()) {
            const C centred = x.load(base + j * r.inner) - stats.max;
            y.store(base + j * r.inner, log ? centred - log_sum : functors::math::exp(centred) * inverse);
        }
    }
}

// softmax: y (g - sum(g y)); log_softmax: g - exp(y) sum(g), as g (1 - exp(y)) - exp(y) (sum(g) - g), in
// which nothing cancels where exp(y) rounds to 1.
template <class Team, class G, class Y, class X>
__global__ void softmax_grad_kernel(G g, Y y, X out, Rows r, bool log) {
    using C = typename X::C;
    for (std::int64_t row = Team::first_row(); row < r.rows; row += Team::row_step()) {
        const std::int64_t base = r.base(row);
        BlockedSum<C> own;
        for (std::int64_t j = Team::rank(); j < r.cols; j += Team::size()) {
            const C gradient = g.load(base + j * r.inner);
            own.add(log ? gradient : gradient * y.load(base + j * r.inner));
        }
        const C sum = Team::reduce(own.get(), C(0), Sum());
        for (std::int64_t j = Team::rank(); j < r.cols; j += Team::size()) {
            const C gradient = g.load(base + j * r.inner), value = y.load(base + j * r.inner);
            C result = value * (gradient - sum);
            if (log)
                result =
                    -gradient * functors::math::expm1(value) - functors::math::exp(value) * (sum - gradient);
            out.store(base + j * r.inner, result);
        }
    }
}

template <class X, class Y> void run_softmax(const X& x, const Y& y, const Rows& r, bool log) {
    with_team(r, [&](auto team, unsigned grid, unsigned block) {
        launch(softmax_kernel<decltype(team), X, Y>, grid, block, 0, x, y, r, log);
    });
}

template <class T> void softmax_of(const Tensor& x, const Tensor& y, const Rows& r, bool log) {
    if (y.dtype() == x.dtype()) return run_softmax(array_of<T>(x), array_of<T>(y), r, log);
    run_softmax(array_of<T>(x), any_of<Compute<T>>(y), r, log);
}

void softmax_forward(In in, std::int64_t dim, Out out, bool log) {
    use_device_of(out[0]);
    const Rows r = rows_along(in[0].shape(), dim);
    if (in[0].dtype() == float64) return run_softmax(any_of<double>(in[0]), any_of<double>(out[0]), r, log);
    visit_dtype<Dtypes::up_to_32bit>(
        in[0].dtype(), [&]<class T>(std::type_identity<T>) { softmax_of<T>(in[0], out[0], r, log); });
}

template <class G, class Y, class X>
void run_grad(const G& g, const Y& y, const X& out, const Rows& r, bool log) {
    with_team(r, [&](auto team, unsigned grid, unsigned block) {
        launch(softmax_grad_kernel<decltype(team), G, Y, X>, grid, block, 0, g, y, out, r, log);
    });
}

// g and y have the same dtype, the usual case; out may have another one, that of a 16-bit input.
template <class T> void grad_of(In in, const Tensor& out, const Rows& r, bool log) {
    if (out.dtype() == in[0].dtype())
        return run_grad(array_of<T>(in[0]), array_of<T>(in[1]), array_of<T>(out), r, log);
    run_grad(array_of<T>(in[0]), array_of<T>(in[1]), any_of<Compute<T>>(out), r, log);
}

void softmax_backward(In in, std::int64_t dim, Out out, bool log) {
    use_device_of(out[0]);
    const Rows r = rows_along(in[1].shape(), dim);
    const Dtype g = in[0].dtype(), y = in[1].dtype(), x = out[0].dtype();
    if (compute_kind({g, y, x}) == ComputeKind::float64)
        return run_grad(any_of<double>(in[0]), any_of<double>(in[1]), any_of<double>(out[0]), r, log);
    if (g == y)
        return visit_dtype<Dtypes::up_to_32bit>(
            g, [&]<class T>(std::type_identity<T>) { grad_of<T>(in, out[0], r, log); });
    run_grad(any_of<float>(in[0]), any_of<float>(in[1]), any_of<float>(out[0]), r, log);
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void softmax(In in, const kernels::Softmax& at, Out out) { softmax_forward(in, at.dim, out, false); }
void log_softmax(In in, const kernels::LogSoftmax& at, Out out) { softmax_forward(in, at.dim, out, true); }
void softmax_grad(In in, const kernels::SoftmaxGrad& at, Out out) {
    softmax_backward(in, at.dim, out, false);
}
void log_softmax_grad(In in, const kernels::LogSoftmaxGrad& at, Out out) {
    softmax_backward(in, at.dim, out, true);
}

constinit const KernelList softmax_list = kernel_list<softmax, log_softmax, softmax_grad, log_softmax_grad>;

}  // namespace mezzo::cuda_kernels
