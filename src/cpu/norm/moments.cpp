// Products, variances and standard deviations, in double, and the product of two vectors.
#include <cmath>
#include <numeric>

#include "cpu/kernels.h"
#include "cpu/reduce/reduction.h"
#include "kernels/moments.h"

namespace mezzo {
namespace {

using namespace cpu;

template <class T> struct ProductOf {
    using A = std::conditional_t<std::is_same_v<T, std::int64_t>, std::int64_t, double>;
    static A identity() { return 1; }
    static A join(A a, A b) {
        if constexpr (std::is_same_v<A, double>)
            return a * b;
        else
            return A(std::uint64_t(a) * std::uint64_t(b));
    }
    static A part(const T* x, std::int64_t n) {
        if constexpr (std::is_same_v<A, double>) return real_loops<T>().product(x, n);
        A product = 1;
        for (std::int64_t i = 0; i < n; ++i) product = join(product, A(x[i]));
        return product;
    }
};

// The count, the mean and the sum of squared distances from it. They are combined as in Chan, Golub and
// LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979), so that a
// large mean takes no digits from the variance.
struct Moments {
    double count, mean, squares;
};
template <class T> struct MomentsOf {
    using A = Moments;
    static A identity() { return {0, 0, 0}; }
    static A join(A a, A b) {
        if (a.count == 0) return b;
        if (b.count == 0) return a;
        const double count = a.count + b.count, d = b.mean - a.mean;
        return {count, a.mean + d * (b.count / count),
                a.squares + b.squares + d * d * (a.count * b.count / count)};
    }
    static A part(const T* x, std::int64_t n) {
        double sum = double(real_loops<T>().sum(x, n));
        if (!::std::isfinite(sum)) sum = ::std::accumulate(x, x + n, 0.0);  // it may have left float's range
        const double mean = sum / double(n);
        constexpr int lanes = 8;  // sums that do not wait for each other
        double squares[lanes] = {}, rest[lanes] = {};
        const auto add = [&](std::int64_t i, int lane) {
            const double d = double(x[i]) - mean;
            rest[lane] += d;
            squares[lane] += d * d;
        };
        std::int64_t i = 0;
        for (; i + lanes <= n; i += lanes)
            for (int lane = 0; lane < lanes; ++lane) add(i + lane, lane);
        for (; i < n; ++i) add(i, 0);
        double total = 0, off = 0;
        for (int lane = 0; lane < lanes; ++lane) {
            total += squares[lane];
            off += rest[lane];
        }
        return {double(n), mean + off / double(n), total - off * off / double(n)};  // the mean was rounded
    }
    static void join_rows(A* moments, const T* x, std::int64_t rows, std::int64_t stride, std::int64_t n) {
        for (; rows > 0; --rows, x += stride)
            for (std::int64_t i = 0; i < n; ++i) {
                A& m = moments[i];
                const double d = double(x[i]) - m.mean;
                m.count += 1;
                m.mean += d / m.count;
                m.squares += d * (double(x[i]) - m.mean);
            }
    }
};

double variance(const Moments& m, double correction) {
    return m.squares / (m.count > correction ? m.count - correction : 0);
}
double deviation(const Moments& m, double correction) { return std::sqrt(variance(m, correction)); }

}  // namespace

namespace cpu_kernels {

void prod(In in, const kernels::Prod& at, Out out) {
    // Integers with a floating result are multiplied in double.
    const Dtype dtype = is_floating(out[0]->dtype) && !is_floating(in[0]->dtype) ? float64 : in[0]->dtype;
    with_reduction_type(out[0]->dtype == float64 ? float64 : dtype,
                        [&]<class T>(T) { reduce<ProductOf<T>, T>(in[0], at.axes, out[0]); });
}

void var(In in, const kernels::Var& at, Out out) {
    with_real(promote(in[0]->dtype, out[0]->dtype), [&]<class T>(T) {
        reduce<MomentsOf<T>, T>(in[0], at.axes, out[0], {variance, at.correction});
    });
}

void std(In in, const kernels::Std& at, Out out) {
    with_real(promote(in[0]->dtype, out[0]->dtype), [&]<class T>(T) {
        reduce<MomentsOf<T>, T>(in[0], at.axes, out[0], {deviation, at.correction});
    });
}

void dot(In in, const kernels::Dot&, Out out) {
    with_real(in[0]->dtype, [&]<class T>(T) {
        const Source a(in[0], in[0]->shape, dtype_of<T>()), b(in[1], in[1]->shape, dtype_of<T>());
        const std::int64_t n = in[0]->numel, parts = (n + reduction_block - 1) / reduction_block;
        std::vector<double> sums(std::size_t(parts), 0.0);
        parallel_for(parts, 1, [&](std::int64_t first, std::int64_t last) {
            Chunk buffer_a, buffer_b;
            for (std::int64_t i = first * reduction_block; i < last * reduction_block && i < n; i += chunk) {
                const std::int64_t count = n - i < chunk ? n - i : chunk;
                const T* const x = a.template read_as<T>(i, count, buffer_a);
                sums[std::size_t(i / reduction_block)] +=
                    double(real_loops<T>().dot(x, b.template read_as<T>(i, count, buffer_b), count));
            }
        });
        double total = 0;
        for (const double sum : sums) total += sum;
        write(out[0], 0, 1, &total, {});
    });
}

constinit const KernelList moments_list = kernel_list<prod, var, std, dot>;

}  // namespace cpu_kernels
}  // namespace mezzo
