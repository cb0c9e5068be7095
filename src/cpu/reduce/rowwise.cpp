// softmax, log_softmax and their gradients along any dimension, computed in float32 (float64 for float64).
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"
#include "kernels/softmax.h"

namespace mezzo {
namespace {

using namespace cpu;

constexpr int operands = 3;

// Thread-local memory for n elements; operands in use at the same time have different slots.
template <class T> T* scratch(std::int64_t n, int slot) {
    thread_local std::vector<T> memory[2 * operands];
    if (std::int64_t(memory[slot].size()) < n) memory[slot].resize(std::size_t(n));
    return memory[slot].data();
}

// Lines that are computed together: one whose elements are adjacent in memory, or up to `most` lines next to
// each other, so that reading and writing touches each cache line of a tensor once.
class Block {
public:
    static constexpr std::int64_t most = 16;

    Block(const Lines& lines, std::int64_t first, std::int64_t count)
        : lines_(lines),
          first_(first),
          count_(count),
          // Elements next to each other in a tensor are in different sets of the cache here.
          pitch_(lines.length + (lines.inner == 1 ? 0 : most)) {}

    std::int64_t count() const { return count_; }
    std::int64_t pitch() const { return pitch_; }  // from line to line in the memory that follows

    // The lines of x as T, without a copy if they are one contiguous line of it.
    template <class T> const T* read(const Tensor& x, int slot) const {
        const char* const from = bytes(x);
        const bool converts = x->dtype != dtype_of<T>();
        if (lines_.inner == 1 && !converts) return reinterpret_cast<const T*>(from);
        T* const to = scratch<T>(count_ * pitch_, slot);
        if (lines_.inner == 1) {
            convert(from, x->dtype, to, dtype_of<T>(), lines_.length);
        } else if (!converts) {
            transpose(reinterpret_cast<const T*>(from), lines_.inner, 1, to, 1, pitch_);
        } else {
            T* const rows = scratch<T>(count_ * lines_.length, slot + operands);
            for (std::int64_t i = 0; i < lines_.length; ++i)
                convert(from + i * row_bytes(x), x->dtype, rows + i * count_, dtype_of<T>(), count_);
            transpose<T>(rows, count_, 1, to, 1, pitch_);
        }
        return to;
    }
    // The memory to compute the lines of y in; write() then stores them.
    template <class T> T* open(const Tensor& y) const {
        if (lines_.inner == 1 && y->dtype == dtype_of<T>()) return reinterpret_cast<T*>(bytes(y));
        return scratch<T>(count_ * pitch_, 2);
    }
    template <class T> void write(const Tensor& y, const T* from) const {
        char* const to = bytes(y);
        const bool converts = y->dtype != dtype_of<T>();
        if (lines_.inner == 1) {
            if (converts) convert(from, dtype_of<T>(), to, y->dtype, lines_.length);
        } else if (!converts) {
            transpose(from, 1, pitch_, reinterpret_cast<T*>(to), lines_.inner, 1);
        } else {
            T* const rows = scratch<T>(count_ * lines_.length, 2 + operands);
            transpose<T>(from, 1, pitch_, rows, count_, 1);
            for (std::int64_t i = 0; i < lines_.length; ++i)
                convert(rows + i * count_, dtype_of<T>(), to + i * row_bytes(y), y->dtype, count_);
        }
    }

private:
    char* bytes(const Tensor& x) const { return x->bytes() + first_ * std::int64_t(size_of(x->dtype)); }
    std::int64_t row_bytes(const Tensor& x) const { return lines_.inner * std::int64_t(size_of(x->dtype)); }

    // Copies element i of line j from i * a + j * b to i * c + j * d.
    template <class T> void transpose(const T* from, std::int64_t a, std::int64_t b, T* to, std::int64_t c,
                                      std::int64_t d) const {
        if (count_ == most) {
            for (std::int64_t i = 0; i < lines_.length; ++i)
                for (std::int64_t j = 0; j < most; ++j) to[i * c + j * d] = from[i * a + j * b];
        } else {
            for (std::int64_t j = 0; j < count_; ++j)
                for (std::int64_t i = 0; i < lines_.length; ++i) to[i * c + j * d] = from[i * a + j * b];
        }
    }

    const Lines& lines_;
    std::int64_t first_, count_, pitch_;  // first_: its first element in the tensors
};

template <class F> void for_blocks(const Lines& lines, const F& body) {
    if (lines.length == 0 || lines.inner == 0) return;
    const std::int64_t in_row = (lines.inner + Block::most - 1) / Block::most;  // blocks next to each other
    const std::int64_t elements = lines.length * std::min(lines.inner, Block::most);
    parallel_for(lines.outer * in_row, grain / 4 / elements + 1, [&](std::int64_t begin, std::int64_t end) {
        std::int64_t outer = begin / in_row, at = begin % in_row * Block::most;
        for (std::int64_t index = begin; index < end; ++index) {
            body(Block(lines, outer * lines.length * lines.inner + at,
                       std::min(Block::most, lines.inner - at)));
            at += Block::most;
            if (at >= lines.inner) at = 0, ++outer;
        }
    });
}

template <class T> constexpr Compute compute = std::is_same_v<T, double> ? Compute::f64 : Compute::f32;

template <class T> void softmax_line(const T* from, T* to, std::int64_t n, bool logarithm) {
    const Loops& all = active_loops();
    const RealLoops<T>& loops = real_loops<T>();
    const T largest = loops.max(from, n);
    if (logarithm) {
        // (x - max) - ln sum: max is subtracted first, because max + ln sum would round the logarithm away.
        const double total = loops.exp_sum(nullptr, from, n, largest);
        const double log_sum = log_of_exp_sum(from, n, largest, total);
        all.unary[int(UnaryOp::add_scalar)][int(compute<T>)](to, from, n, -double(largest), 0);
        all.unary[int(UnaryOp::add_scalar)][int(compute<T>)](to, to, n, -log_sum, 0);
    } else {
        const double total = loops.exp_sum(to, from, n, largest);
        all.unary[int(UnaryOp::mul_scalar)][int(compute<T>)](to, to, n, 1 / total, 0);
    }
}

template <class T> void softmax(const Tensor& x, std::int64_t dim, const Tensor& y, bool logarithm) {
    const Lines lines(x->shape, dim);
    for_blocks(lines, [&](const Block& block) {
        const T* const from = block.read<T>(x, 0);
        T* const to = block.open<T>(y);
        for (std::int64_t j = 0; j < block.count(); ++j)
            softmax_line(from + j * block.pitch(), to + j * block.pitch(), lines.length, logarithm);
        block.write(y, to);
    });
}

// softmax: y (g - sum(g y)); log_softmax: g - e^y sum(g).
template <class T> void softmax_grad(In in, std::int64_t dim, const Tensor& result, bool logarithm) {
    const Lines lines(in[1]->shape, dim);
    const RealLoops<T>& loops = real_loops<T>();
    for_blocks(lines, [&](const Block& block) {
        const T *const gradients = block.read<T>(in[0], 0), *const values = block.read<T>(in[1], 1);
        T* const to = block.open<T>(result);
        for (std::int64_t j = 0, at = 0; j < block.count(); ++j, at += block.pitch()) {
            const T *const g = gradients + at, *const y = values + at;
            if (logarithm)
                loops.log_softmax_grad(to + at, g, y, lines.length, loops.sum(g, lines.length));
            else
                loops.softmax_grad(to + at, g, y, lines.length, T(loops.dot(g, y, lines.length)));
        }
        block.write(result, to);
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
