// Running sums and products along one dimension.
#include <algorithm>

#include "cpu/kernels.h"
#include "cpu/reduce/reduction.h"
#include "kernels/scan.h"

namespace mezzo {
namespace {

using namespace cpu;

// Type of the running value for elements T: double, or for integers, which wrap around, uint64.
template <class T> using Kept = std::conditional_t<std::is_same_v<T, std::int64_t>, std::uint64_t, double>;
// `associative`: next(next(x, a), b) is next(x, next(a, b)), but for rounding.
struct Sum {
    static constexpr int start = 0, operands = 1;
    static constexpr bool associative = true;
    template <class A> static A next(A sum, A x, A) { return sum + x; }
};
struct Product {
    static constexpr int start = 1, operands = 1;
    static constexpr bool associative = true;
    template <class A> static A next(A product, A x, A) { return product * x; }
};
struct Linear {
    static constexpr int start = 0, operands = 2;
    static constexpr bool associative = false;
    template <class A> static A next(A h, A a, A b) { return a * h + b; }
};

// Scans a [outer, length, inner] along its length; only Linear reads the second operand. With inner == 1 a
// chunk is a run of the line, otherwise a strip of a row.
template <class Step, class T> class Scan {
public:
    Scan(In in, const Lines& lines, bool reverse, const Tensor& y)
        : lines_(lines),
          reverse_(reverse),
          narrow_(in[0]->dtype != float64),
          a_(in[0], in[0]->shape, dtype_of<T>()),
          b_(in[in.size() - 1], in[0]->shape, dtype_of<T>()),
          y_(y, dtype_of<T>()) {}

    void run() const {
        if (lines_.inner == 1)
            return parallel_for(lines_.outer, grain / 2 / lines_.length + 1,
                                [&](std::int64_t begin, std::int64_t end) {
                                    for (std::int64_t line = begin; line < end; ++line) along(line);
                                });
        const std::int64_t strips = (lines_.inner + chunk - 1) / chunk;
        const std::int64_t work = lines_.length * std::min(lines_.inner, chunk);
        parallel_for(lines_.outer * strips, grain / work + 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t item = begin; item < end; ++item) {
                const std::int64_t first = item % strips * chunk;
                across(item / strips, first, std::min(chunk, lines_.inner - first));
            }
        });
    }

private:
    using A = Kept<T>;

    void along(std::int64_t line) const {
        Chunk buffer_a, buffer_b, buffer_y;
        A kept = A(Step::start);
        for (std::int64_t done = 0; done < lines_.length; done += chunk) {
            const std::int64_t n = std::min(chunk, lines_.length - done);
            const std::int64_t at = line * lines_.length + (reverse_ ? lines_.length - done - n : done);
            const T* const a = a_.template read_as<T>(at, n, buffer_a);
            const T* const b = Step::operands == 1 ? a : b_.template read_as<T>(at, n, buffer_b);
            T* const y = y_.template open_as<T>(at, buffer_y);
            std::int64_t j = 0;
            if constexpr (std::is_same_v<Step, Sum> && std::is_floating_point_v<T>) {
                if (narrow_) kept = real_loops<T>().running_sum[reverse_](y, a, n, kept), j = n;
            } else if constexpr (Step::associative) {
                if (narrow_) j = by_fours(a, n, kept, y);
            }
            for (; j < n; ++j) {
                const std::int64_t i = reverse_ ? n - 1 - j : j;
                kept = Step::next(kept, A(a[i]), A(b[i]));
                y[i] = T(kept);
            }
            y_.finish(at, n, buffer_y);
        }
    }

    // Scans four elements at a time on their own, so that one step in four waits for the one before. Returns
    // how many elements are done.
    std::int64_t by_fours(const T* a, std::int64_t n, A& kept, T* y) const {
        const std::int64_t step = reverse_ ? -1 : 1;
        std::int64_t i = reverse_ ? n - 1 : 0, j = 0;
        for (; j + 4 <= n; j += 4, i += 4 * step) {
            A next[4] = {A(a[i]), A(a[i + step]), A(a[i + 2 * step]), A(a[i + 3 * step])};
            const A first = Step::next(next[0], next[1], A()), last = Step::next(next[2], next[3], A());
            next[1] = first, next[2] = Step::next(first, next[2], A()),
            next[3] = Step::next(first, last, A());
            for (int k = 0; k < 4; ++k) y[i + k * step] = T(Step::next(kept, next[k], A()));
            kept = Step::next(kept, next[3], A());
        }
        return j;
    }

    void across(std::int64_t o, std::int64_t first, std::int64_t width) const {
        Chunk buffer_a, buffer_b, buffer_y;
        A kept[chunk];
        std::fill(kept, kept + width, A(Step::start));
        for (std::int64_t j = 0; j < lines_.length; ++j) {
            const std::int64_t row = o * lines_.length + (reverse_ ? lines_.length - 1 - j : j);
            const std::int64_t at = row * lines_.inner + first;
            const T* const a = a_.template read_as<T>(at, width, buffer_a);
            const T* const b = Step::operands == 1 ? a : b_.template read_as<T>(at, width, buffer_b);
            T* const y = y_.template open_as<T>(at, buffer_y);
            for (std::int64_t i = 0; i < width; ++i) {
                kept[i] = Step::next(kept[i], A(a[i]), A(b[i]));
                y[i] = T(kept[i]);
            }
            y_.finish(at, width, buffer_y);
        }
    }

    Lines lines_;
    bool reverse_;
    bool narrow_;  // a few elements can't leave the range of A
    Source a_, b_;
    Sink y_;
};

template <class Step> void scan(In in, std::int64_t dim, bool reverse, const Tensor& y) {
    if (y->numel == 0) return;
    Dtype dtype = promote(in[0]->dtype, y->dtype);
    for (const Tensor& x : in) dtype = promote(dtype, x->dtype);
    with_reduction_type(dtype,
                        [&]<class T>(T) { Scan<Step, T>(in, Lines(y->shape, dim), reverse, y).run(); });
}

}  // namespace

namespace cpu_kernels {

void cumsum(In in, const kernels::CumSum& at, Out out) { scan<Sum>(in, at.dim, at.reverse, out[0]); }
void cumprod(In in, const kernels::CumProd& at, Out out) { scan<Product>(in, at.dim, at.reverse, out[0]); }
void linear_scan(In in, const kernels::LinearScan& at, Out out) {
    scan<Linear>(in, at.dim, at.reverse, out[0]);
}

constinit const KernelList scan_list = kernel_list<cumsum, cumprod, linear_scan>;

}  // namespace cpu_kernels
}  // namespace mezzo
