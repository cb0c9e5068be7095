// Reductions over any dimensions in a fixed order. Partial results are those of fixed blocks of the input and
// are combined in order, so that any number of threads gives the same bits. A class R describes a reduction
// of elements T with partial results of type R::A:
//   A identity(); A part(const T* x, n > 0); A join(A, A);
// and optionally
//   void join_rows(A* sums, const T* x, rows, stride, n): joins elements [i * stride, i * stride + n) of x to
//   the n sums, for each i < rows
//   void parts(A* results, const T* x, rows, n): part() of each row, in one call
// and for T = float two functions that read elements of a 16-bit dtype
//   void parts16(A* results, const char* x, Dtype, rows, n)
//   void join_rows16(A* sums, const char* x, Dtype, rows, stride, n)
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/elementwise/strided.h"

namespace mezzo::cpu {

inline constexpr std::int64_t reduction_block = 65536;  // elements per partial result

// A reduction as functions, so that the loops below exist once per pair of types.
template <class T, class A> struct Reduction {
    A identity;
    A (*part)(const T* x, std::int64_t n);
    void (*join)(A* sums, const A* others, std::int64_t n);  // sums[i] = join(sums[i], others[i])
    void (*join_rows)(A* sums, const T* x, std::int64_t rows, std::int64_t stride, std::int64_t n) = nullptr;
    void (*parts)(A* results, const T* x, std::int64_t rows, std::int64_t n) = nullptr;
    void (*parts16)(A* results, const char* x, Dtype dtype, std::int64_t rows, std::int64_t n) = nullptr;
    void (*join_rows16)(A* sums, const char* x, Dtype dtype, std::int64_t rows, std::int64_t stride,
                        std::int64_t n) = nullptr;
};
template <class R, class T> Reduction<T, typename R::A> reduction() {
    using A = typename R::A;
    Reduction<T, A> all{R::identity(), R::part, [](A* sums, const A* others, std::int64_t n) {
                            for (std::int64_t i = 0; i < n; ++i) sums[i] = R::join(sums[i], others[i]);
                        }};
    if constexpr (requires { &R::join_rows; }) {
        all.join_rows = R::join_rows;
    } else {
        all.join_rows = [](A* sums, const T* x, std::int64_t rows, std::int64_t stride, std::int64_t n) {
            for (; rows > 0; --rows, x += stride)
                for (std::int64_t i = 0; i < n; ++i) sums[i] = R::join(sums[i], A(x[i]));
        };
    }
    if constexpr (requires { &R::parts; }) all.parts = R::parts;
    if constexpr (std::is_same_v<T, float> && requires { &R::parts16; }) {
        all.parts16 = R::parts16;
        all.join_rows16 = R::join_rows16;
    }
    return all;
}

// Converts the last A to the result's value; without a function it is that value.
template <class A> struct Finish {
    double (*value)(const A& last, double option) = nullptr;
    double option = 0;
};

// Stores finish(values[i]) as elements of y.
template <class A>
void write(const Tensor& y, std::int64_t begin, std::int64_t n, const A* values, const Finish<A>& finish) {
    if constexpr (std::is_arithmetic_v<A>) {
        if (finish.value == nullptr) return Sink(y, mezzo::dtype_of<A>()).store(begin, n, values);
    }
    const Sink sink(y, float64);
    Chunk buffer;
    for (std::int64_t i = 0; i < n; i += chunk) {
        const std::int64_t count = n - i < chunk ? n - i : chunk;
        for (std::int64_t j = 0; j < count; ++j)
            buffer.as<double>()[j] = finish.value(values[i + j], finish.option);
        sink.store(begin + i, count, buffer.bytes);
    }
}

// y[i] = the reduction of elements [i * length, (i + 1) * length) of x.
template <class T, class A> void reduce_rows(const Reduction<T, A>& r, const Source& x, std::int64_t rows,
                                             std::int64_t length, const Tensor& y, const Finish<A>& finish) {
    const std::int64_t parts =
        length <= reduction_block ? 1 : (length + reduction_block - 1) / reduction_block;
    std::vector<A> results(std::size_t(rows * parts), r.identity);
    parallel_for(rows * parts,
                 length == 0 ? rows + 1 : grain / (length < reduction_block ? length : reduction_block) + 1,
                 [&](std::int64_t first, std::int64_t last) {
                     const bool narrow = r.parts16 && x.narrow();
                     if (parts == 1 && length > 0) {
                         A* const to = results.data() + first;
                         const char* const from = x.at(first * length);
                         if (narrow) return r.parts16(to, from, x.dtype(), last - first, length);
                         if (r.parts && x.direct())
                             return r.parts(to, reinterpret_cast<const T*>(from), last - first, length);
                     }
                     Chunk buffer;
                     for (std::int64_t item = first; item < last; ++item) {
                         const std::int64_t row = item / parts, from = item % parts * reduction_block;
                         const std::int64_t to =
                             from + reduction_block < length ? from + reduction_block : length;
                         A& result = results[std::size_t(item)];
                         if (narrow) {
                             if (to > from)
                                 r.parts16(&result, x.at(row * length + from), x.dtype(), 1, to - from);
                             continue;
                         }
                         if (x.direct()) {
                             const T* p = reinterpret_cast<const T*>(x.at(row * length + from));
                             if (to > from) result = r.part(p, to - from);
                             continue;
                         }
                         for (std::int64_t i = from; i < to; i += chunk) {
                             const std::int64_t n = to - i < chunk ? to - i : chunk;
                             const A next = r.part(x.template read_as<T>(row * length + i, n, buffer), n);
                             r.join(&result, &next, 1);
                         }
                     }
                 });
    if (parts > 1)
        for (std::int64_t row = 0; row < rows; ++row) {
            A total = r.identity;
            for (std::int64_t i = 0; i < parts; ++i)
                r.join(&total, &results[std::size_t(row * parts + i)], 1);
            results[std::size_t(row)] = total;
        }
    write(y, 0, rows, results.data(), finish);
}

// Joins `rows` runs of n elements of x, which begin at element `begin` and lie `stride` apart, to sums.
template <class T, class A> void join_rows(const Reduction<T, A>& r, const Source& x, std::int64_t begin,
                                           std::int64_t rows, std::int64_t stride, std::int64_t n, A* sums) {
    if (x.direct()) return r.join_rows(sums, reinterpret_cast<const T*>(x.at(begin)), rows, stride, n);
    if (r.join_rows16 && x.narrow()) return r.join_rows16(sums, x.at(begin), x.dtype(), rows, stride, n);
    Chunk buffer;
    const std::int64_t together = n == stride ? std::max<std::int64_t>(1, chunk / n) : 1;  // rows in a chunk
    for (std::int64_t i = 0; i < rows; i += together)
        for (std::int64_t j = 0; j < n; j += chunk) {
            const std::int64_t height = std::min(together, rows - i), width = std::min(chunk, n - j);
            const T* const p =
                x.template read_as<T>(begin + i * stride + j, (height - 1) * stride + width, buffer);
            r.join_rows(sums + j, p, height, stride, width);
        }
}

// Reduces `rows` rows of x of `cols` elements, from element `begin` on, into sums[cols]. If rows are short,
// `fold` of them are treated as one long row, whose parts are combined at the end.
template <class T, class A> void fold_rows(const Reduction<T, A>& r, const Source& x, std::int64_t begin,
                                           std::int64_t rows, std::int64_t cols, A* sums) {
    A folded[256];
    const std::int64_t fold = cols <= 32 ? 256 / cols : 1;
    if (fold < 2 || rows < 2 * fold) return join_rows(r, x, begin, rows, cols, cols, sums);
    const std::int64_t width = fold * cols;
    for (std::int64_t j = 0; j < width; ++j) folded[j] = r.identity;
    join_rows(r, x, begin, rows / fold, width, width, folded);
    const std::int64_t rest = rows % fold * cols;
    if (rest > 0) join_rows(r, x, begin + rows * cols - rest, 1, rest, rest, folded);
    for (std::int64_t i = 0; i < fold; ++i) r.join(sums, folded + i * cols, cols);
}

// y[o, j] = the reduction over i of x[o, i, j]: of blocks of rows and strips of columns, of fixed sizes.
template <class T, class A> void reduce_columns(const Reduction<T, A>& r, const Source& x, std::int64_t outer,
                                                std::int64_t rows, std::int64_t cols, const Tensor& y,
                                                const Finish<A>& finish) {
    constexpr std::int64_t widest = 4096;  // columns of a strip
    if (outer == 0 || cols == 0) return;
    const std::int64_t width = cols < 2 * widest ? cols : widest, strips = (cols + width - 1) / width;
    // At least 64 rows per block keep the partial results small next to x.
    const std::int64_t height = reduction_block / cols > 64 ? reduction_block / cols : 64;
    const std::int64_t blocks = rows <= height ? 1 : (rows + height - 1) / height;
    const std::int64_t step = blocks == 1 ? rows : height;
    std::vector<A> parts(blocks == 1 ? 0 : std::size_t(outer * blocks * cols), r.identity);
    const auto reduce_block = [&](std::int64_t o, std::int64_t block, std::int64_t first, A* sums) {
        const std::int64_t begin = block * step, count = begin + step < rows ? step : rows - begin,
                           n = std::min(width, cols - first), at = (o * rows + begin) * cols + first;
        if (strips == 1)
            fold_rows(r, x, at, count, cols, sums);
        else
            join_rows(r, x, at, count, cols, n, sums);
    };
    if (blocks == 1 && strips == 1) {  // several outer indices, so that results are stored together
        const std::int64_t together = std::max<std::int64_t>(1, chunk / cols);
        return parallel_for((outer + together - 1) / together, grain / (rows * cols * together + 1) + 1,
                            [&](std::int64_t begin, std::int64_t end) {
                                for (std::int64_t o = begin * together; o < end * together; o += together) {
                                    const std::int64_t count = std::min(together, outer - o);
                                    A* const totals = scratch<A>(count * cols, 0);
                                    std::fill_n(totals, count * cols, r.identity);
                                    for (std::int64_t i = 0; i < count; ++i)
                                        reduce_block(o + i, 0, 0, totals + i * cols);
                                    write(y, o * cols, count * cols, totals, finish);
                                }
                            });
    }
    const auto for_strips = [&](std::int64_t count, std::int64_t work, const auto& body) {
        parallel_for(count * strips, grain / (work * width + 1) + 1,
                     [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t item = begin; item < end; ++item)
                             body(item / strips, item % strips * width);
                     });
    };
    if (blocks > 1)
        for_strips(outer * blocks, step, [&](std::int64_t item, std::int64_t first) {
            reduce_block(item / blocks, item % blocks, first, parts.data() + item * cols + first);
        });
    for_strips(outer, blocks == 1 ? rows : blocks, [&](std::int64_t o, std::int64_t first) {
        const std::int64_t n = std::min(width, cols - first);
        A* total = parts.data() + o * blocks * cols + first;
        if (blocks == 1) {
            total = scratch<A>(n, 0);
            std::fill_n(total, n, r.identity);
            reduce_block(o, 0, first, total);
        }
        for (std::int64_t b = 1; b < blocks; ++b) r.join(total, total + b * cols, n);
        write(y, o * cols + first, n, total, finish);
    });
}

// The dimensions of a reduction in memory order: neighbours that are both reduced or both not reduced are
// merged, those of size 1 left out.
struct Groups {
    int count = 0;
    std::int64_t size[max_dims], stride[max_dims];
    bool reduced[max_dims];
    std::int64_t kept = 1, removed = 1;

    Groups(const Shape& shape, const Axes& axes) {
        const Strides strides = contiguous_strides(shape);
        for (int d = 0, a = 0; d < shape.size(); ++d) {
            const bool is_reduced = a < axes.size() && axes[a] == d;
            a += is_reduced;
            (is_reduced ? removed : kept) *= shape[d];
            if (shape[d] == 1) continue;
            if (count == 0 || reduced[count - 1] != is_reduced) {
                reduced[count] = is_reduced;
                size[count++] = 1;
            }
            size[count - 1] *= shape[d];
            stride[count - 1] = strides[d];
        }
    }
};

template <class T, class A> void reduce(const Reduction<T, A>& r, const Tensor& x, const Axes& axes,
                                        const Tensor& y, const Finish<A>& finish) {
    if (y->numel == 0) return;
    const Groups groups(x->shape, axes);
    const int n = groups.count;
    const Source source(x, x->shape, mezzo::dtype_of<T>());
    if (groups.removed == 0 || n == 0 || (n == 1 && groups.reduced[0]) || (n == 2 && groups.reduced[1]))
        return reduce_rows(r, source, groups.kept, groups.removed, y, finish);
    if (n <= 3 && !groups.reduced[n - 1] && (n < 2 || groups.reduced[n - 2])) {
        const std::int64_t outer = n == 3 ? groups.size[0] : 1, rows = n == 1 ? 1 : groups.size[n - 2];
        return reduce_columns(r, source, outer, rows, groups.size[n - 1], y, finish);
    }
    StridedLayout permuted;  // dimensions that are not reduced first
    for (const bool reduced : {false, true})
        for (int i = 0; i < n; ++i)
            if (groups.reduced[i] == reduced) permuted.add(groups.size[i], groups.stride[i]);
    reduce_rows(r, Source(x->bytes(), x->dtype, permuted, mezzo::dtype_of<T>()), groups.kept, groups.removed,
                y, finish);
}

template <class R, class T>
void reduce(const Tensor& x, const Axes& axes, const Tensor& y, const Finish<typename R::A>& finish = {}) {
    reduce<T, typename R::A>(reduction<R, T>(), x, axes, y, finish);
}

// Calls f(T()) with the type in which elements of `dtype` are reduced.
template <class F> void with_reduction_type(Dtype dtype, const F& f) {
    if (dtype == float64)
        f(double());
    else if (is_floating(dtype))
        f(float());
    else
        f(std::int64_t());
}

}  // namespace mezzo::cpu
