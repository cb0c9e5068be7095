// softmax, log_softmax and their gradients along any dimension, computed in float32 (float64 for float64).
#include <cmath>
#include <vector>

#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"
#include "kernels/softmax.h"

namespace mezzo {
namespace {

using namespace cpu;

// Thread-local memory for n elements; lines in use at the same time have different slots.
template <class T> T* scratch(std::int64_t n, int slot) {
    thread_local std::vector<T> memory[3];
    if (std::int64_t(memory[slot].size()) < n) memory[slot].resize(std::size_t(n));
    return memory[slot].data();
}

// One line of x as contiguous T, without a copy if it is that already.
template <class T> const T* read_line(const Tensor& x, const Lines& lines, std::int64_t line, int slot) {
    const std::int64_t first = line / lines.inner * lines.length * lines.inner + line % lines.inner;
    const char* base = x->bytes() + first * std::int64_t(size_of(x->dtype));
    if (lines.inner == 1 && x->dtype == dtype_of<T>()) return reinterpret_cast<const T*>(base);
    T* const values = scratch<T>(lines.length, slot);
    if (lines.inner == 1) {
        convert(base, x->dtype, values, dtype_of<T>(), lines.length);
        return values;
    }
    StridedLayout layout;
    layout.add(lines.length, lines.inner);
    const Source source(base, x->dtype, layout, dtype_of<T>());
    Chunk buffer;
    for (std::int64_t i = 0; i < lines.length; i += chunk) {
        const std::int64_t n = lines.length - i < chunk ? lines.length - i : chunk;
        std::memcpy(values + i, source.read(i, n, buffer), std::size_t(n) * sizeof(T));
    }
    return values;
}

// The memory to compute one line of y in; write_line() then stores it.
template <class T> T* open_line(const Tensor& y, const Lines& lines, std::int64_t line) {
    if (lines.inner == 1 && y->dtype == dtype_of<T>())
        return reinterpret_cast<T*>(y->bytes()) + line * lines.length;
    return scratch<T>(lines.length, 2);
}

template <class T> void write_line(const Tensor& y, const Lines& lines, std::int64_t line, const T* values) {
    if (lines.inner == 1 && y->dtype == dtype_of<T>()) return;
    const auto size = std::int64_t(size_of(y->dtype));
    char* base = y->bytes() + (line / lines.inner * lines.length * lines.inner + line % lines.inner) * size;
    if (lines.inner == 1) {
        convert(values, dtype_of<T>(), base, y->dtype, lines.length);
        return;
    }
    StridedLayout layout;
    layout.add(lines.length, lines.inner);
    Chunk buffer;
    for (std::int64_t i = 0; i < lines.length; i += chunk) {
        const std::int64_t n = lines.length - i < chunk ? lines.length - i : chunk;
        convert(values + i, dtype_of<T>(), buffer.bytes, y->dtype, n);
        scatter(layout, base, size_of(y->dtype), i, n, buffer.bytes);
    }
}

template <class F> void for_lines(const Lines& lines, const F& body) {
    if (lines.length == 0) return;
    parallel_for(lines.count(), grain / 4 / lines.length + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t line = begin; line < end; ++line) body(line);
    });
}

template <class T> constexpr Compute compute = std::is_same_v<T, double> ? Compute::f64 : Compute::f32;

template <class T> void softmax(const Tensor& x, std::int64_t dim, const Tensor& y, bool logarithm) {
    const Lines lines(x->shape, dim);
    const Loops& all = active_loops();
    const RealLoops<T>& loops = real_loops<T>();
    for_lines(lines, [&](std::int64_t line) {
        const T* from = read_line<T>(x, lines, line, 0);
        T* to = open_line<T>(y, lines, line);
        const T largest = loops.max(from, lines.length);
        if (logarithm) {
            // (x - max) - ln sum: max is subtracted first, because max + ln sum would round the logarithm
            // away.
            const double total = loops.exp_sum(nullptr, from, lines.length, largest);
            const double log_sum = log_of_exp_sum(from, lines.length, largest, total);
            all.unary[int(UnaryOp::add_scalar)][int(compute<T>)](to, from, lines.length, -double(largest), 0);
            all.unary[int(UnaryOp::add_scalar)][int(compute<T>)](to, to, lines.length, -log_sum, 0);
        } else {
            const double total = loops.exp_sum(to, from, lines.length, largest);
            all.unary[int(UnaryOp::mul_scalar)][int(compute<T>)](to, to, lines.length, 1 / total, 0);
        }
        write_line(y, lines, line, to);
    });
}

// softmax: y (g - sum(g y)); log_softmax: g - e^y sum(g).
template <class T> void softmax_grad(In in, std::int64_t dim, const Tensor& result, bool logarithm) {
    const Lines lines(in[1]->shape, dim);
    const RealLoops<T>& loops = real_loops<T>();
    for_lines(lines, [&](std::int64_t line) {
        const T* g = read_line<T>(in[0], lines, line, 0);
        const T* y = read_line<T>(in[1], lines, line, 1);
        T* to = open_line<T>(result, lines, line);
        if (logarithm)
            loops.log_softmax_grad(to, g, y, lines.length, loops.sum(g, lines.length));
        else
            loops.softmax_grad(to, g, y, lines.length, T(loops.dot(g, y, lines.length)));
        write_line(result, lines, line, to);
    });
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

constexpr KernelEntry entries[] = {kernel_entry<softmax>(), kernel_entry<log_softmax>(),
                                   kernel_entry<softmax_grad>(), kernel_entry<log_softmax_grad>()};
constinit const KernelList rowwise_list = entries;

}  // namespace cpu_kernels
}  // namespace mezzo
