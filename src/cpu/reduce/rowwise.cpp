// softmax, log_softmax and their gradients along any dimension, computed in float32 (float64 for float64).

#include "cpu/kernels.h"
#include "cpu/reduce/rows.h"
#include "kernels/softmax.h"

namespace mezzo {
namespace {

using namespace cpu;

template <class T> constexpr Compute compute = std::is_same_v<T, double> ? Compute::f64 : Compute::f32;

// Elements of a block of lines: converted copies of contiguous lines stay in the L1 cache.
template <class T> std::int64_t elements_of_block(const Lines& lines, const Tensor& x) {
    return lines.inner == 1 && x->dtype != dtype_of<T>() ? 2048 : 16384;
}

// (x - max) - ln sum: max is subtracted first, because max + ln sum would round the logarithm away.
template <class T> void log_softmax_row(T* to, const T* from, std::int64_t n) {
    const RealLoops<T>& loops = real_loops<T>();
    const UnaryLoop add = active_loops().unary[int(UnaryOp::add_scalar)][int(compute<T>)];
    const T largest = loops.max(from, n);
    const double log_sum = log_of_exp_sum(from, n, largest, loops.exp_sum(nullptr, from, n, largest));
    add(to, from, n, -double(largest), 0);
    add(to, to, n, -log_sum, 0);
}

template <class T> T* data(const Tensor& x) { return reinterpret_cast<T*>(x->bytes()); }

// Whether lines are computed where they are, as columns: enough for vectors, and x is of type T.
template <class T> bool in_columns(const Lines& lines, const Tensor& x) {
    return lines.inner >= 8 && x->dtype == dtype_of<T>();
}

// Calls f(first element of the first line, lines) for a few neighbouring lines of an inner dimension.
template <class F> void for_columns(const Lines& lines, const F& f) {
    if (lines.length == 0 || lines.count() == 0) return;
    constexpr std::int64_t least = 16, parts = 8;  // columns; parts that threads can share
    const std::int64_t width = std::clamp(lines.count() / parts / least * least, least, softmax_width);
    const std::int64_t strips = (lines.inner + width - 1) / width;
    parallel_for(lines.outer * strips, grain / 4 / (width * lines.length) + 1,
                 [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                         const std::int64_t first = i % strips * width;
                         f(i / strips * lines.length * lines.inner + first,
                           std::min(width, lines.inner - first));
                     }
                 });
}

template <class T> void softmax(const Tensor& x, std::int64_t dim, const Tensor& y, bool logarithm) {
    const Lines lines(x->shape, dim);
    if (!logarithm && in_columns<T>(lines, x) && in_columns<T>(lines, y))
        return for_columns(lines, [&](std::int64_t at, std::int64_t n) {
            real_loops<T>().softmax_columns(data<T>(y) + at, data<T>(x) + at, lines.length, lines.inner, n);
        });
    for_blocks(
        lines,
        [&](std::int64_t first, std::int64_t count) {
            const Rows<T> result(y, lines, first, count);
            const T* const from = Rows<T>(x, lines, first, count).read(0);
            T* const to = result.open(1);
            if (logarithm)
                for (std::int64_t i = 0; i < count; ++i)
                    log_softmax_row(to + i * lines.length, from + i * lines.length, lines.length);
            else
                real_loops<T>().softmax(to, from, count, lines.length);
            result.close(to);
        },
        elements_of_block<T>(lines, x));
}

// softmax: y (g - sum(g y)); log_softmax: g - e^y sum(g).
template <class T> void softmax_grad(In in, std::int64_t dim, const Tensor& result, bool logarithm) {
    const Lines lines(in[1]->shape, dim);
    const RealLoops<T>& loops = real_loops<T>();
    const std::int64_t n = lines.length;
    if (!logarithm && in_columns<T>(lines, in[0]) && in_columns<T>(lines, in[1]) &&
        in_columns<T>(lines, result))
        return for_columns(lines, [&](std::int64_t at, std::int64_t width) {
            loops.softmax_grad_columns(data<T>(result) + at, data<T>(in[0]) + at, data<T>(in[1]) + at, n,
                                       lines.inner, width);
        });
    for_blocks(
        lines,
        [&](std::int64_t first, std::int64_t count) {
            const Rows<T> rows(result, lines, first, count);
            const T* const g = Rows<T>(in[0], lines, first, count).read(0);
            const T* const y = Rows<T>(in[1], lines, first, count).read(1);
            T* const to = rows.open(2);
            if (logarithm)
                for (std::int64_t i = 0; i < count; ++i)
                    loops.log_softmax_grad(to + i * n, g + i * n, y + i * n, n, loops.sum(g + i * n, n));
            else
                loops.softmax_grad(to, g, y, count, n);
            rows.close(to);
        },
        elements_of_block<T>(lines, in[1]));
}

}  // namespace

namespace cpu_kernels {

void softmax(In in, const kernels::Softmax& at, Out out) {
    with_real(promote(in[0]->dtype, out[0]->dtype),
              [&]<class T>(T) { mezzo::softmax<T>(in[0], at.dim, out[0], false); });
}
void log_softmax(In in, const kernels::LogSoftmax& at, Out out) {
    with_real(promote(in[0]->dtype, out[0]->dtype),
              [&]<class T>(T) { mezzo::softmax<T>(in[0], at.dim, out[0], true); });
}
void softmax_grad(In in, const kernels::SoftmaxGrad& at, Out out) {
    with_real(promote(in[1]->dtype, out[0]->dtype),
              [&]<class T>(T) { mezzo::softmax_grad<T>(in, at.dim, out[0], false); });
}
void log_softmax_grad(In in, const kernels::LogSoftmaxGrad& at, Out out) {
    with_real(promote(in[1]->dtype, out[0]->dtype),
              [&]<class T>(T) { mezzo::softmax_grad<T>(in, at.dim, out[0], true); });
}

constinit const KernelList rowwise_list = kernel_list<softmax, log_softmax, softmax_grad, log_softmax_grad>;

}  // namespace cpu_kernels
}  // namespace mezzo
