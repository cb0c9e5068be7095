// Sums, means, norms and extremes. Sums of floats are computed by RealLoops within a block, and in double
// across blocks.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/reduce/reduction.h"
#include "cpu/reduce/rows.h"
#include "kernels/matmul.h"
#include "kernels/reduce.h"

namespace mezzo {
namespace {

using namespace cpu;

template <class T> struct SumOf {
    using A = double;
    static A identity() { return 0; }
    static A part(const T* x, std::int64_t n) { return real_loops<T>().sum(x, n); }
    static void parts(A* sums, const T* x, std::int64_t rows, std::int64_t n) {
        real_loops<T>().row_sums(sums, x, rows, n);
    }
    static A join(A a, A b) { return a + b; }
    static void join_rows(A* sums, const T* x, std::int64_t rows, std::int64_t stride, std::int64_t n) {
        real_loops<T>().add_to_double(sums, x, rows, stride, n);
    }
    static void parts16(A* sums, const char* x, Dtype dtype, std::int64_t rows, std::int64_t n) {
        active_loops().row_sums16[index_16bit(dtype)](sums, x, rows, n);
    }
    static void join_rows16(A* sums, const char* x, Dtype dtype, std::int64_t rows, std::int64_t stride,
                            std::int64_t n) {
        active_loops().add16_to_double[index_16bit(dtype)](sums, x, rows, stride, n);
    }
};
template <> struct SumOf<std::int64_t> {
    using A = std::int64_t;
    static A identity() { return 0; }
    static A part(const std::int64_t* x, std::int64_t n) { return active_loops().sum_i64(x, n); }
    static A join(A a, A b) { return A(std::uint64_t(a) + std::uint64_t(b)); }
};
// The number of true elements. Eight at a time, whose counts are bytes of a word.
template <> struct SumOf<bool> {
    using A = std::int64_t;
    static A identity() { return 0; }
    static A part(const bool* x, std::int64_t n) {
        A total = 0;
        std::int64_t i = 0;
        while (i + 8 <= n) {
            std::uint64_t counts = 0;
            for (int k = 0; k < 255 && i + 8 <= n; ++k, i += 8) {
                std::uint64_t word;
                std::memcpy(&word, x + i, sizeof word);
                counts += word;
            }
            const std::uint64_t pairs = (counts & 0x00ff00ff00ff00ffu) + (counts >> 8 & 0x00ff00ff00ff00ffu);
            total += A(pairs * 0x0001000100010001u >> 48);
        }
        for (; i < n; ++i) total += x[i];
        return total;
    }
    static A join(A a, A b) { return a + b; }
};
template <class T> struct SquaresOf {
    using A = double;
    static A identity() { return 0; }
    static A join(A a, A b) { return a + b; }
    static A part(const T* x, std::int64_t n) { return sum_of_squares(x, n); }
    static void join_rows(A* sums, const T* x, std::int64_t rows, std::int64_t stride, std::int64_t n) {
        for (; rows > 0; --rows, x += stride)
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
            constexpr std::int64_t width = 128;  // extremes that do not wait for each other
            A bests[width];
            const std::int64_t first = std::min(n, width), rows = n / width;
            std::copy(x, x + first, bests);
            if (rows > 1) join_rows(bests, x + width, rows - 1, width, width);
            A best = *x;
            for (std::int64_t i = 0; i < first; ++i) best = join(bests[i], best);
            for (std::int64_t i = std::max(first, rows * width); i < n; ++i) best = join(x[i], best);
            return best;
        }
    }
    static A join(A a, A b) { return (largest ? a > b : a < b) || a != a ? a : b; }
    static void join_rows(A* sums, const T* x, std::int64_t rows, std::int64_t stride, std::int64_t n) {
        const auto loop = largest ? BinaryOp::maximum : BinaryOp::minimum;
        const Compute compute = std::is_same_v<T, float>    ? Compute::f32
                                : std::is_same_v<T, double> ? Compute::f64
                                                            : Compute::i64;
        for (; rows > 0; --rows, x += stride)
            active_loops().binary[int(loop)][int(compute)](sums, sums, x, n, Single::none);
    }
};

template <bool largest> void extreme(In in, const Axes& axes, Out out) {
    with_reduction_type(in[0]->dtype,
                        [&]<class T>(T) { reduce<ExtremeOf<T, largest>, T>(in[0], axes, out[0]); });
}

// Whether a comes before b: larger (or smaller), or NaN where b is not.
template <bool largest, class T> bool better(T a, T b) {
    return (largest ? a > b : a < b) | ((a != a) & (b == b));
}

// Index of the first of the largest elements, or of the first NaN. Only the chunk that has it is searched.
template <bool largest, class T> std::int64_t index_of_extreme(const T* x, std::int64_t n) {
    if (n < 32) {
        std::int64_t best = 0;
        for (std::int64_t i = 1; i < n; ++i) best = better<largest>(x[i], x[best]) ? i : best;
        return best;
    }
    using R = ExtremeOf<T, largest>;
    std::int64_t chunk_of_best = 0;
    T best = R::part(x, std::min(n, chunk));
    for (std::int64_t i = chunk; i < n && best == best; i += chunk) {
        const T other = R::part(x + i, std::min(n - i, chunk));
        if (better<largest>(other, best)) {
            best = other;
            chunk_of_best = i;
        }
    }
    std::int64_t i = chunk_of_best;
    while (best == best ? x[i] != best : x[i] == x[i]) ++i;
    return i;
}

constexpr std::int64_t segment = 4096;  // elements of a line that are copied at a time

template <bool largest, class T> void arg_extreme(const Tensor& x, int dim, const Tensor& y) {
    const Lines lines(x->shape.size() == 0 ? Shape{1} : x->shape, dim);
    auto* const result = reinterpret_cast<std::int64_t*>(y->bytes());
    const bool in_place = lines.inner == 1 && x->dtype == dtype_of<T>();
    const std::int64_t step = in_place ? lines.length : segment;
    for_blocks(lines, [&](std::int64_t first, std::int64_t count) {
        std::vector<T> best(std::size_t(count), T{});
        for (std::int64_t begin = 0; begin < lines.length; begin += step) {
            const std::int64_t n = std::min(step, lines.length - begin);
            const T* row = Rows<T>(x, lines, first, count, begin, begin + n).read(0);
            for (std::int64_t i = 0; i < count; ++i, row += n) {
                const std::int64_t at = index_of_extreme<largest>(row, n);
                if (begin > 0 && !better<largest>(row[at], best[std::size_t(i)])) continue;
                best[std::size_t(i)] = row[at];
                result[first + i] = begin + at;
            }
        }
    });
}

template <class T> std::int64_t count_equal(const T* x, std::int64_t n, T value) {
    std::int64_t equal = 0;
    for (std::int64_t i = 0; i < n; ++i) equal += x[i] == value;
    return equal;
}

// `part` where x is the largest, else 0. x == largest is false for NaN: if that is the largest, so is the
// gradient of all elements that it was taken of.
template <class T> void write_parts(T* to, const T* x, std::int64_t n, T largest, T part) {
    const T rest = largest == largest ? T(0) : largest;
    for (std::int64_t i = 0; i < n; ++i) to[i] = x[i] == largest ? part : rest;
}

// Divides the gradient of a maximum among the equal elements of its line.
template <class T> void amax_grad_lines(const Tensor& g, const Tensor& x, const Tensor& y, const Lines& lines,
                                        const Tensor& result) {
    const Source gs(g, g->shape, dtype_of<T>()), ys(y, y->shape, dtype_of<T>());
    const std::int64_t length = lines.length;
    for_blocks(lines, [&](std::int64_t first, std::int64_t count) {
        Chunk buffer;
        const auto largest = [&](std::int64_t i) { return *ys.template read_as<T>(first + i, 1, buffer); };
        const auto part = [&](std::int64_t i, std::int64_t ties) {
            return *gs.template read_as<T>(first + i, 1, buffer) / T(ties);
        };
        std::vector<std::int64_t> ties(std::size_t(length > segment ? count : 0), 0);  // of long lines
        for (std::int64_t begin = 0; begin < length && length > segment; begin += segment) {
            const std::int64_t n = std::min(segment, length - begin);
            const T* row = Rows<T>(x, lines, first, count, begin, begin + n).read(0);
            for (std::int64_t i = 0; i < count; ++i, row += n)
                ties[std::size_t(i)] += count_equal(row, n, largest(i));
        }
        for (std::int64_t begin = 0; begin < length; begin += segment) {
            const std::int64_t n = std::min(segment, length - begin);
            const T* row = Rows<T>(x, lines, first, count, begin, begin + n).read(0);
            const Rows<T> to(result, lines, first, count, begin, begin + n);
            T* const values = to.open(1);
            for (std::int64_t i = 0; i < count; ++i, row += n) {
                const T most = largest(i);
                const std::int64_t equal = n == length ? count_equal(row, n, most) : ties[std::size_t(i)];
                write_parts(values + i * n, row, n, most, part(i, equal));
            }
            to.close(values);
        }
    });
}

// g and y have size 1 where a dimension was reduced.
template <class T> void amax_grad(In in, Out out) {
    const Tensor &g = in[0], &x = in[1], &y = in[2];
    const int missing = x->shape.size() - y->shape.size();
    Axes axes;
    for (int d = 0; d < x->shape.size(); ++d)
        if (d < missing || y->shape[d - missing] != x->shape[d]) axes.push_back(d);
    const Groups groups(x->shape, axes);
    int lines_at = -1, reduced = 0;
    for (int i = 0; i < groups.count; ++i)
        if (groups.reduced[i]) lines_at = i, ++reduced;
    if (reduced <= 1) {
        Shape shape{1, 1, 1};
        for (int i = 0; i < groups.count; ++i)
            shape[lines_at < 0 || i < lines_at ? 0 : i == lines_at ? 1 : 2] *= groups.size[i];
        return amax_grad_lines<T>(g, x, y, Lines(shape, 1), out[0]);
    }
    Shape shape, order;  // the dimensions that are reduced last
    for (const bool last : {false, true})
        for (int i = 0; i < groups.count; ++i)
            if (groups.reduced[i] == last) {
                shape.push_back(groups.size[i]);
                order.push_back(groups.stride[i]);
            }
    const Tensor rows = empty(shape, {.dtype = x->dtype}), result = empty(shape, {.dtype = out[0]->dtype});
    copy_strided(shape, rows->bytes(), rows->strides, x->bytes(), order, size_of(x->dtype));
    amax_grad_lines<T>(g, rows, y, Lines({groups.kept, groups.removed}, 1), result);
    copy_strided(shape, out[0]->bytes(), order, result->bytes(), result->strides, size_of(out[0]->dtype));
}

}  // namespace

namespace cpu_kernels {

void sum(In in, const kernels::Sum& at, Out out) {
    if (in[0]->dtype == boolean && out[0]->dtype == int64)
        return reduce<SumOf<bool>, bool>(in[0], at.axes, out[0]);
    // Integers with a floating result are summed in double.
    const Dtype dtype = is_floating(out[0]->dtype) && !is_floating(in[0]->dtype) ? float64 : in[0]->dtype;
    with_reduction_type(out[0]->dtype == float64 ? float64 : dtype,
                        [&]<class T>(T) { reduce<SumOf<T>, T>(in[0], at.axes, out[0]); });
}

void mean(In in, const kernels::Mean& at, Out out) {
    double count = 1;
    for (const std::int64_t axis : at.axes) count *= double(in[0]->shape[int(axis)]);
    with_real(promote(in[0]->dtype, out[0]->dtype), [&]<class T>(T) {
        reduce<SumOf<T>, T>(in[0], at.axes, out[0],
                            {[](const double& total, double divisor) { return total / divisor; }, count});
    });
}

void norm(In in, const kernels::Norm& at, Out out) {
    with_real(promote(in[0]->dtype, out[0]->dtype), [&]<class T>(T) {
        reduce<SquaresOf<T>, T>(in[0], at.axes, out[0],
                                {[](const double& total, double) { return std::sqrt(total); }});
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
        reduce_columns(reduction<SumOf<T>, T>(), source, 1, x->shape[0], x->shape[1], out[0], {});
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

constinit const KernelList reduce_list =
    kernel_list<sum, mean, max, min, norm, argmax, argmin, amax_grad, column_sum, activation_grad>;

}  // namespace cpu_kernels
}  // namespace mezzo
