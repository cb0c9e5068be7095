// Sums, means, norms and extremes. Sums of floats are computed by RealLoops within a block, and in double
// across blocks.
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/reduce/reduction.h"
#include "kernels/matmul.h"
#include "kernels/reduce.h"

namespace mezzo {
namespace {

using namespace cpu;

template <class T> struct SumOf {
    using A = double;
    static A identity() { return 0; }
    static A part(const T* x, std::int64_t n) { return real_loops<T>().sum(x, n); }
    static A join(A a, A b) { return a + b; }
    static void join_row(A* sums, const T* x, std::int64_t n) { real_loops<T>().add_to_double(sums, x, n); }
};
template <> struct SumOf<std::int64_t> {
    using A = std::int64_t;
    static A identity() { return 0; }
    static A part(const std::int64_t* x, std::int64_t n) { return active_loops().sum_i64(x, n); }
    static A join(A a, A b) { return A(std::uint64_t(a) + std::uint64_t(b)); }
    static void join_row(A* sums, const std::int64_t* x, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) sums[i] = join(sums[i], x[i]);
    }
};
template <class T> struct SquaresOf : SumOf<T> {
    using A = double;
    static A part(const T* x, std::int64_t n) { return sum_of_squares(x, n); }
    static void join_row(A* sums, const T* x, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) sums[i] += double(x[i]) * double(x[i]);
    }
};
template <class T, bool largest> struct ExtremeOf {
    using A = T;
    static A identity() {
        using Limits = std::numeric_limits<T>;
        if constexpr (Limits::has_infinity)
            return largest ? -Limits::infinity() : Limits::infinity();
        else
            return largest ? Limits::lowest() : Limits::max();
    }
    static A part(const T* x, std::int64_t n) {
        if constexpr (std::is_floating_point_v<T>) {
            return largest ? real_loops<T>().max(x, n) : real_loops<T>().min(x, n);
        } else {
            A best = x[0];
            for (std::int64_t i = 1; i < n; ++i) best = join(x[i], best);
            return best;
        }
    }
    static A join(A a, A b) { return (largest ? a > b : a < b) || a != a ? a : b; }
    static void join_row(A* sums, const T* x, std::int64_t n) {
        const auto loop = largest ? BinaryOp::maximum : BinaryOp::minimum;
        const Compute compute = std::is_same_v<T, float>    ? Compute::f32
                                : std::is_same_v<T, double> ? Compute::f64
                                                            : Compute::i64;
        active_loops().binary[int(loop)][int(compute)](sums, sums, x, n, Single::none);
    }
};

template <bool largest> void extreme(In in, const Axes& axes, Out out) {
    with_reduction_type(in[0]->dtype, [&]<class T>(T) {
        reduce<ExtremeOf<T, largest>, T>(in[0], axes, out[0], [](T v) { return v; });
    });
}

template <bool largest, class T> void arg_extreme(const Tensor& x, int dim, const Tensor& y) {
    std::int64_t outer = 1, inner = 1;
    for (int d = 0; d < x->shape.size(); ++d)
        if (d != dim) (d < dim ? outer : inner) *= x->shape[d];
    const std::int64_t length = dim < x->shape.size() ? x->shape[dim] : 1;
    auto* const result = reinterpret_cast<std::int64_t*>(y->bytes());
    parallel_for(outer * inner, grain / (length + 1) + 1, [&](std::int64_t first, std::int64_t last) {
        Chunk buffer;
        for (std::int64_t item = first; item < last; ++item) {
            StridedLayout line;
            line.add(length, inner);
            const char* base =
                x->bytes() + (item / inner * length * inner + item % inner) * std::int64_t(size_of(x->dtype));
            const Source source(base, x->dtype, line, dtype_of<T>());
            T best = T();
            std::int64_t index = -1;
            for (std::int64_t i = 0; i < length; i += chunk) {
                const std::int64_t n = length - i < chunk ? length - i : chunk;
                const T* v = source.template read_as<T>(i, n, buffer);
                for (std::int64_t j = 0; j < n && !(best != best); ++j)
                    if (index < 0 || (largest ? v[j] > best : v[j] < best) || v[j] != v[j]) {
                        best = v[j];
                        index = i + j;
                    }
            }
            result[item] = index;
        }
    });
}

// Divides the gradient of a maximum among the equal elements. `position` is the index in y of each element's
// maximum: the offsets of y, broadcast to x's shape.
template <class T> void amax_grad(In in, Out out) {
    const Tensor &g = in[0], &x = in[1], &y = in[2];
    std::vector<std::int64_t> ties(std::size_t(y->numel), 0), positions(std::size_t(y->numel));
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = std::int64_t(i);
    StridedLayout layout(x->shape, y->shape, contiguous_strides(y->shape));
    const Source position(positions.data(), int64, layout, int64);
    const Source xs(x, x->shape, dtype_of<T>()), ys(y, x->shape, dtype_of<T>()),
        gs(g, x->shape, dtype_of<T>());
    const Sink sink(out[0], dtype_of<T>());
    const auto tie = [](T a, T b) {
        return a == b;
    };  // false for NaN: if the maximum is NaN, so is the gradient of all elements that it was taken of
    Chunk px, py, pg, pp;
    for (const bool counting : {true, false})
        for (std::int64_t i = 0; i < x->numel; i += chunk) {
            const std::int64_t n = x->numel - i < chunk ? x->numel - i : chunk;
            const T *vx = xs.template read_as<T>(i, n, px), *vy = ys.template read_as<T>(i, n, py);
            const std::int64_t* at = position.read_as<std::int64_t>(i, n, pp);
            if (counting) {
                for (std::int64_t j = 0; j < n; ++j) ties[std::size_t(at[j])] += tie(vx[j], vy[j]);
                continue;
            }
            const T* vg = gs.template read_as<T>(i, n, pg);
            T* result = sink.template open_as<T>(i, px);
            for (std::int64_t j = 0; j < n; ++j)
                result[j] = tie(vx[j], vy[j]) ? vg[j] / T(ties[std::size_t(at[j])])
                            : vy[j] != vy[j]  ? vy[j]
                                              : T(0);
            sink.finish(i, n, px);
        }
}

}  // namespace

namespace cpu_kernels {

// Result of a total of floats.
struct Quotient {
    double divisor = 1;
    double operator()(double total) const { return total / divisor; }
};

void sum(In in, const kernels::Sum& at, Out out) {
    // Integers with a floating result are summed in double.
    const Dtype dtype = is_floating(out[0]->dtype) && !is_floating(in[0]->dtype) ? float64 : in[0]->dtype;
    with_reduction_type(out[0]->dtype == float64 ? float64 : dtype, [&]<class T>(T) {
        if constexpr (std::is_floating_point_v<T>)
            reduce<SumOf<T>, T>(in[0], at.axes, out[0], Quotient());
        else
            reduce<SumOf<T>, T>(in[0], at.axes, out[0], [](T total) { return total; });
    });
}

void mean(In in, const kernels::Mean& at, Out out) {
    double count = 1;
    for (const std::int64_t axis : at.axes) count *= double(in[0]->shape[int(axis)]);
    with_real(promote(in[0]->dtype, out[0]->dtype),
              [&]<class T>(T) { reduce<SumOf<T>, T>(in[0], at.axes, out[0], Quotient{count}); });
}

void norm(In in, const kernels::Norm& at, Out out) {
    with_real(promote(in[0]->dtype, out[0]->dtype), [&]<class T>(T) {
        reduce<SquaresOf<T>, T>(in[0], at.axes, out[0], [](double total) { return std::sqrt(total); });
    });
}

void max(In in, const kernels::Max& at, Out out) { extreme<true>(in, at.axes, out); }
void min(In in, const kernels::Min& at, Out out) { extreme<false>(in, at.axes, out); }

// Index of the first of equal extremes; a NaN wins.
void argmax(In in, const kernels::ArgMax& at, Out out) {
    with_reduction_type(in[0]->dtype, [&]<class T>(T) { arg_extreme<true, T>(in[0], int(at.dim), out[0]); });
}
void argmin(In in, const kernels::ArgMin& at, Out out) {
    with_reduction_type(in[0]->dtype, [&]<class T>(T) { arg_extreme<false, T>(in[0], int(at.dim), out[0]); });
}

void amax_grad(In in, const kernels::AmaxGrad&, Out out) {
    with_real(out[0]->dtype, [&]<class T>(T) { mezzo::amax_grad<T>(in, out); });
}

void column_sum(In in, const kernels::ColumnSum&, Out out) {
    const Tensor& x = in[0];
    if (out[0]->numel == 0) return;
    with_real(promote(x->dtype, out[0]->dtype), [&]<class T>(T) {
        const Source source(x, x->shape, dtype_of<T>());
        reduce_columns<SumOf<T>, T>(source, 1, x->shape[0], x->shape[1], out[0],
                                    [](double total) { return total; });
    });
}

// Two passes over memory: the gradient before the activation, then its column sums.
void activation_grad(In in, const kernels::ActivationGrad& at, Out out) {
    const In given = in.first(2);
    const Out result = out.first(1);
    if (at.activation == Activation::relu)
        relu_grad(given, {}, result);
    else if (at.activation == Activation::gelu)
        gelu_grad(given, {}, result);
    else
        gelu_tanh_grad(given, {}, result);
    if (out.size() > 1) column_sum(out.first(1), {}, out.subspan(1));
}

constexpr KernelEntry entries[] = {kernel_entry<sum>(),        kernel_entry<mean>(),
                                   kernel_entry<max>(),        kernel_entry<min>(),
                                   kernel_entry<norm>(),       kernel_entry<argmax>(),
                                   kernel_entry<argmin>(),     kernel_entry<amax_grad>(),
                                   kernel_entry<column_sum>(), kernel_entry<activation_grad>()};
constinit const KernelList reduce_list = entries;

}  // namespace cpu_kernels
}  // namespace mezzo
