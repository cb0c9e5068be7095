// Look-ups by index, and their gradients, which add up the rows of equal index. Indices are checked before
// anything is written. One thread adds up a row, in the order of the positions, so that any number of threads
// gives the same bits. Values that are written or reduced per element are taken in that order, too.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"
#include "kernels/index.h"

namespace mezzo {
namespace {

using namespace cpu;

// The values of an index tensor, all of them within [0, size).
const std::int64_t* checked(const char* op, const Tensor& index, std::int64_t size) {
    if (index->numel == 0) return nullptr;
    const auto* const values = reinterpret_cast<const std::int64_t*>(index->bytes());
    const auto* const end = values + index->numel;
    std::atomic<bool> outside = false;
    for_chunks(index->numel, [&](std::int64_t begin, std::int64_t n) {
        bool any = false;
        for (std::int64_t i = begin; i < begin + n; ++i)
            any |= std::uint64_t(values[i]) >= std::uint64_t(size);
        if (any) outside = true;
    });
    if (!outside) return values;
    const auto* const bad =
        std::find_if(values, end, [&](std::int64_t i) { return std::uint64_t(i) >= std::uint64_t(size); });
    fail(ErrorKind::value, op, ": index ", *bad, " at position ", bad - values, " is outside [0, ", size,
         "); there are ", size, " rows to choose from");
}

// y[o, j, :] = x[o, index[j], :]
void select_rows(const char* op, const Tensor& x, const Tensor& index, std::int64_t dim, const Tensor& y) {
    const Lines s(x->shape, dim);
    const std::int64_t* const row = checked(op, index, s.length);
    if (y->numel == 0) return;
    const std::int64_t count = index->numel, rows = s.outer * count;
    const auto from = [&](std::int64_t item) { return item / count * s.length + row[item % count]; };
    if (s.inner == 1)
        return with_bits(size_of(x->dtype), [&]<class T>(T) {
            const T* const source = reinterpret_cast<const T*>(x->bytes());
            T* const to = reinterpret_cast<T*>(y->bytes());
            parallel_for(rows, grain / 4, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin; i < end;) {  // a division per row, not per element
                    const std::int64_t first = i % count, n = std::min(end - i, count - first);
                    const T* const line = source + i / count * s.length;
                    for (std::int64_t j = 0; j < n; ++j) to[i + j] = line[row[first + j]];
                    i += n;
                }
            });
        });
    const std::int64_t bytes = s.inner * std::int64_t(size_of(x->dtype));
    parallel_for(rows, grain / (s.inner + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
            std::memcpy(y->bytes() + i * bytes, x->bytes() + from(i) * bytes, std::size_t(bytes));
    });
}

// ---- gradients of look-ups: rows of equal index are added up

struct Occurrence {
    std::int64_t index, position;
};

// The occurrences of indices other than `skip`, by index and then by position: a radix sort with digits of 11
// bits, whose passes keep the order of equal digits.
std::vector<Occurrence> by_index(const std::int64_t* index, std::int64_t count, std::int64_t size,
                                 std::int64_t skip) {
    constexpr int bits = 11;
    std::vector<Occurrence> sorted, other;
    sorted.reserve(std::size_t(count));
    for (std::int64_t i = 0; i < count; ++i)
        if (index[i] != skip) sorted.push_back({index[i], i});
    other.resize(sorted.size());
    std::vector<std::size_t> place(std::size_t(1) << bits);
    for (int shift = 0; shift < 63 && (size - 1) >> shift > 0; shift += bits) {
        const auto digit = [shift](const Occurrence& o) {
            return std::size_t(o.index >> shift) & ((std::size_t(1) << bits) - 1);
        };
        std::fill(place.begin(), place.end(), 0);
        for (const Occurrence& o : sorted) ++place[digit(o)];
        std::size_t next = 0;
        for (std::size_t& p : place) next += std::exchange(p, next);
        for (const Occurrence& o : sorted) other[place[digit(o)]++] = o;
        sorted.swap(other);
    }
    return sorted;
}

// y[o, index[j], :] = or += the sum of g[o, j, :]. A call computes columns [first, first + width) of some
// rows.
template <class T> class RowSums {
public:
    RowSums(const Tensor& g, const Tensor& y, const Lines& s, std::int64_t count, bool add_to_y,
            std::vector<Occurrence> sorted)
        : g_(g), y_(y), s_(s), count_(count), add_to_y_(add_to_y), sorted_(std::move(sorted)) {}

    // Computes rows [begin, end) of slice o. Without add_to_y, rows that no index names become 0.
    void run(std::int64_t o, std::int64_t begin, std::int64_t end, std::int64_t first,
             std::int64_t width) const {
        auto next = std::lower_bound(sorted_.begin(), sorted_.end(), begin,
                                     [](const Occurrence& a, std::int64_t row) { return a.index < row; });
        for (std::int64_t row = begin; row < end;) {
            const std::int64_t touched =
                next == sorted_.end() || next->index > end ? end : std::int64_t(next->index);
            if (!add_to_y_) clear(o, row, touched, first, width);
            row = touched;
            if (row == end) return;
            const auto last =
                std::find_if(next, sorted_.end(), [row](const Occurrence& a) { return a.index != row; });
            sum(o, row, &*next, last - next, first, width);
            next = last;
            ++row;
        }
    }

private:
    char* place(const Tensor& x, std::int64_t row, std::int64_t first) const {
        return x->bytes() + (row * s_.inner + first) * std::int64_t(size_of(x->dtype));
    }
    void clear(std::int64_t o, std::int64_t begin, std::int64_t end, std::int64_t first,
               std::int64_t width) const {
        const bool whole = width == s_.inner;
        const std::int64_t bytes = width * std::int64_t(size_of(y_->dtype));
        if (whole)
            std::memset(place(y_, o * s_.length + begin, 0), 0, std::size_t((end - begin) * bytes));
        else
            for (std::int64_t row = begin; row < end; ++row)
                std::memset(place(y_, o * s_.length + row, first), 0, std::size_t(bytes));
    }
    // Blocks of 256 rows are summed on their own, so that the rounding of a long sum does not grow with it.
    void sum(std::int64_t o, std::int64_t row, const Occurrence* from, std::int64_t n, std::int64_t first,
             std::int64_t width) const {
        char* const to = place(y_, o * s_.length + row, first);
        const bool direct = y_->dtype == dtype_of<T>();
        T* const total = direct ? reinterpret_cast<T*>(to) : scratch<T>(width, 0);
        if (add_to_y_ && !direct) convert(to, y_->dtype, total, dtype_of<T>(), width);
        bool empty = !add_to_y_;
        for (std::int64_t i = 0; i < n; i += block) {
            const std::int64_t in_block = n - i < block ? n - i : block;
            const bool apart = !empty && in_block > 1;
            T* const part = apart ? scratch<T>(width, 1) : total;
            for (std::int64_t j = 0; j < in_block; ++j) {
                const char* const g = place(g_, o * count_ + from[i + j].position, first);
                if (j == 0 && (empty || apart))
                    convert(g, g_->dtype, part, dtype_of<T>(), width);
                else
                    add(part, read(g, width), width);
            }
            if (apart) add(total, part, width);
            empty = false;
        }
        if (!direct) convert(total, dtype_of<T>(), to, y_->dtype, width);
    }
    const T* read(const char* g, std::int64_t width) const {
        if (g_->dtype == dtype_of<T>()) return reinterpret_cast<const T*>(g);
        T* const values = scratch<T>(width, 2);
        convert(g, g_->dtype, values, dtype_of<T>(), width);
        return values;
    }
    static void add(T* to, const T* x, std::int64_t n) {
        active_loops().binary[int(BinaryOp::add)][int(compute_for(dtype_of<T>()))](to, to, x, n,
                                                                                   Single::none);
    }

    static constexpr std::int64_t block = 256;
    const Tensor &g_, &y_;
    Lines s_;
    std::int64_t count_;
    bool add_to_y_;
    std::vector<Occurrence> sorted_;
};

// Sums rows by index. Most rows of a large table are only cleared, which memset does at the speed of memory.
// A small table is divided among the threads by columns, too.
void sum_rows(const char* op, In in, std::int64_t dim, std::int64_t skip, bool add_to_y, const Tensor& y) {
    const Tensor &g = in[0], &index = in[1];
    const Lines s(y->shape, dim);
    const std::int64_t* const row = checked(op, index, s.length);
    if (y->numel == 0) return;
    const std::int64_t strips = s.length < 64 && s.inner >= 128 ? s.inner / 64 : 1,
                       width = (s.inner + strips - 1) / strips;
    with_real(promote(g->dtype, y->dtype), [&]<class T>(T) {
        const RowSums<T> sums(g, y, s, index->numel, add_to_y, by_index(row, index->numel, s.length, skip));
        const std::int64_t work = strips > 1 ? width * index->numel / s.length : width;
        parallel_for(s.outer * strips * s.length, grain / (work + 1) + 1,
                     [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t i = begin; i < end;) {
                             const std::int64_t slice = i / s.length, first = slice % strips * width;
                             const std::int64_t until = std::min(end, (slice + 1) * s.length);
                             if (first < s.inner)
                                 sums.run(slice / strips, i - slice * s.length, until - slice * s.length,
                                          first, std::min(width, s.inner - first));
                             i = until;
                         }
                     });
    });
}

// ---- an index for every element

// y = x (or 0) with src[o, j, i] added to element [o, index[o, j, i], i], in the order of j; if index has one
// dimension, to element [o, index[j], i]. Sums are of type T, in y itself if it has that type.
template <class T> class ScatterSum {
public:
    ScatterSum(const Tensor& src, const Tensor& index, const Tensor& x, const Lines& s, std::int64_t count,
               const Tensor& y)
        : src_(src),
          x_(x),
          y_(y),
          index_(index->numel ? reinterpret_cast<const std::int64_t*>(index->bytes()) : nullptr),
          s_(s),
          count_(count),
          one_index_(index->numel == count) {}

    void run() const {
        const std::int64_t width = std::min<std::int64_t>(s_.inner, 64),
                           strips = (s_.inner + width - 1) / width;
        // Few strips are filled in parallel before; of many, each thread fills its own, for its cache.
        constexpr std::int64_t few = 16;
        const bool filled = in_place() && s_.outer * strips < few;
        if (filled)
            for_chunks(y_->numel, [&](std::int64_t at, std::int64_t n) {
                start(at, n, reinterpret_cast<T*>(bytes_at(y_, at)));
            });
        parallel_for(s_.outer * strips, grain / 4 / ((count_ + s_.length) * width + 1) + 1,
                     [&](std::int64_t begin, std::int64_t end) {
                         Tensor own;
                         if (!in_place()) own = empty({s_.length * width}, {.dtype = dtype_of<T>()});
                         T* const memory = in_place() ? nullptr : reinterpret_cast<T*>(own->bytes());
                         for (std::int64_t item = begin; item < end; ++item) {
                             const std::int64_t first = item % strips * width;
                             run_strip(item / strips, first, std::min(width, s_.inner - first), filled,
                                       memory);
                         }
                     });
    }

private:
    bool in_place() const { return y_->dtype == dtype_of<T>(); }
    // Elements [at, at + n) of x, or 0.
    void start(std::int64_t at, std::int64_t n, T* to) const {
        if (x_.defined())
            convert(bytes_at(x_, at), x_->dtype, to, dtype_of<T>(), n);
        else
            std::fill(to, to + n, T(0));
    }
    // Columns [first, first + width) of slice o. own: memory for them, unless y itself is used.
    void run_strip(std::int64_t o, std::int64_t first, std::int64_t width, bool filled, T* own) const {
        T* const total =
            in_place() ? reinterpret_cast<T*>(y_->bytes()) + o * s_.length * s_.inner + first : own;
        const std::int64_t step = in_place() ? s_.inner : width;
        if (!filled)
            for_lines(o * s_.length, s_.length, first, width,
                      [&](std::int64_t line, std::int64_t at, std::int64_t n) {
                          start(at, n, total + line * step);
                      });
        Chunk buffer;
        for_lines(o * count_, count_, first, width, [&](std::int64_t line, std::int64_t at, std::int64_t n) {
            const T* values = reinterpret_cast<const T*>(bytes_at(src_, at));
            if (src_->dtype != dtype_of<T>()) {
                convert(values, src_->dtype, buffer.bytes, dtype_of<T>(), n);
                values = buffer.as<T>();
            }
            if (one_index_ && step > 1) {
                T* const to = total + index_[line] * step;
                for (std::int64_t i = 0; i < n; ++i) to[i] += values[i];
                return;
            }
            const std::int64_t* const row = index_ + (one_index_ ? line : at);
            if (step == 1)
                for (std::int64_t i = 0; i < n; ++i) total[row[i]] += values[i];
            else
                for (std::int64_t i = 0; i < n; ++i) total[row[i] * step + i] += values[i];
        });
        if (!in_place())
            for_lines(o * s_.length, s_.length, first, width,
                      [&](std::int64_t line, std::int64_t at, std::int64_t n) {
                          convert(total + line * step, dtype_of<T>(), bytes_at(y_, at), y_->dtype, n);
                      });
    }
    // Calls body(line, first element, elements) for `count` lines of a strip. The lines of a single column
    // are one line, in chunks.
    template <class F> void for_lines(std::int64_t begin, std::int64_t count, std::int64_t first,
                                      std::int64_t width, const F& body) const {
        if (s_.inner == 1)
            for (std::int64_t i = 0; i < count; i += chunk) body(i, begin + i, std::min(chunk, count - i));
        else
            for (std::int64_t i = 0; i < count; ++i) body(i, (begin + i) * s_.inner + first, width);
    }
    static char* bytes_at(const Tensor& x, std::int64_t element) {
        return x->bytes() + element * std::int64_t(size_of(x->dtype));
    }

    const Tensor &src_, &x_, &y_;
    const std::int64_t* index_;
    Lines s_;
    std::int64_t count_;
    bool one_index_;
};

// The same with the dtype to add up in; y has at least one element.
void scatter_sum(const Tensor& src, const Tensor& index, const Tensor& x, std::int64_t dim, const Tensor& y) {
    const Lines s(y->shape, dim);
    const std::int64_t count = src->numel / std::max<std::int64_t>(1, s.outer * s.inner);
    if (!is_floating(y->dtype)) return ScatterSum<std::int64_t>(src, index, x, s, count, y).run();
    constexpr std::int64_t longest_chain = 1024;  // of float32 additions
    with_real(count > longest_chain ? float64 : y->dtype,
              [&]<class T>(T) { ScatterSum<T>(src, index, x, s, count, y).run(); });
}

// ---- writes of an index per element

// The elements of one slice of src, and the slice of y that they go to.
struct SliceWrite {
    const std::int64_t* row;
    const char* from;
    char* to;
    std::int64_t size, inner;  // elements of src, and those of a row

    // e = combine(e, src[j, i]) for the element e = y[row[j, i], i], in the order of j.
    template <class T, class F> void run(const F& combine) const {
        const T* const values = reinterpret_cast<const T*>(from);
        for (std::int64_t at = 0; at < size; at += inner)
            for (std::int64_t i = 0; i < inner; ++i) {
                T& e = reinterpret_cast<T*>(to)[row[at + i] * inner + i];
                e = combine(e, values[at + i]);
            }
    }
};

// y = x with the slices of src written by f.
template <class F> void write_slices(const char* op, In in, std::int64_t dim, const Tensor& y, const F& f) {
    const Tensor& src = in[0];
    const Lines s(y->shape, dim);
    const std::int64_t* const row = checked(op, in[1], s.length);
    if (y->numel == 0) return;
    const auto bytes = std::int64_t(size_of(y->dtype));
    std::memcpy(y->bytes(), in[2]->bytes(), std::size_t(y->numel * bytes));
    const std::int64_t size = src->numel / s.outer;
    if (size == 0) return;
    parallel_for(s.outer, grain / 4 / size + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t o = begin; o < end; ++o)
            f(SliceWrite{row + o * size, src->bytes() + o * size * bytes,
                         y->bytes() + o * s.length * s.inner * bytes, size, s.inner});
    });
}

// One loop for all kinds: what it waits for is memory.
template <class T> void reduce_slice(const SliceWrite& slice, kernels::ScatterReduce::Kind kind) {
    using enum kernels::ScatterReduce::Kind;
    slice.run<T>([kind](T a, T b) {
        if (kind == prod) {
            if constexpr (std::is_same_v<T, std::int64_t>) return T(std::uint64_t(a) * std::uint64_t(b));
            return T(a * b);
        }
        return b != b || (kind == amax ? b > a : b < a) ? b : a;
    });
}

}  // namespace

namespace cpu_kernels {

void embedding(In in, const kernels::Embedding&, Out out) {
    select_rows("embedding", in[0], in[1], 0, out[0]);
}
void index_select(In in, const kernels::IndexSelect& at, Out out) {
    select_rows("index_select", in[0], in[1], at.dim, out[0]);
}
void embedding_grad(In in, const kernels::EmbeddingGrad& at, Out out) {
    sum_rows("embedding_grad", in, 0, at.padding_idx, at.accumulate, out[0]);
}
void index_select_grad(In in, const kernels::IndexSelectGrad& at, Out out) {
    const Lines s(out[0]->shape, at.dim);
    constexpr std::int64_t short_row = 16, small_table = 1 << 16;  // elements
    if (s.inner >= short_row || (s.inner > 1 && s.length * s.inner > small_table))
        return sum_rows("index_select_grad", in, at.dim, -1, false, out[0]);
    checked("index_select_grad", in[1], s.length);
    if (out[0]->numel > 0) scatter_sum(in[0], in[1], Tensor(), at.dim, out[0]);
}

void gather(In in, const kernels::Gather& at, Out out) {
    const Tensor &x = in[0], &y = out[0];
    const Lines s(x->shape, at.dim);
    const std::int64_t* const index = checked("gather", in[1], s.length);
    if (y->numel == 0) return;
    const std::int64_t count = y->shape[int(at.dim)];
    with_bits(size_of(x->dtype), [&]<class T>(T) {
        const T* const from = reinterpret_cast<const T*>(x->bytes());
        T* const to = reinterpret_cast<T*>(y->bytes());
        parallel_for(s.outer * count, grain / 4 / s.inner + 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t j = begin; j < end;) {  // a division per slice, not per element
                const T* const slice = from + j / count * s.length * s.inner;
                const std::int64_t until = std::min(end, (j / count + 1) * count);
                if (s.inner == 1)
                    for (; j < until; ++j) to[j] = slice[index[j]];
                else
                    for (; j < until; ++j)
                        for (std::int64_t i = j * s.inner, column = 0; column < s.inner; ++i, ++column)
                            to[i] = slice[index[i] * s.inner + column];
            }
        });
    });
}

void scatter_add(In in, const kernels::ScatterAdd& at, Out out) {
    checked("scatter_add", in[1], out[0]->shape[int(at.dim)]);
    if (out[0]->numel > 0) scatter_sum(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), at.dim, out[0]);
}

void scatter(In in, const kernels::Scatter& at, Out out) {
    write_slices("scatter", in, at.dim, out[0], [size = size_of(out[0]->dtype)](const SliceWrite& slice) {
        with_bits(size, [&]<class T>(T) { slice.run<T>([](T, T value) { return value; }); });
    });
}

void scatter_reduce(In in, const kernels::ScatterReduce& at, Out out) {
    const Dtype dtype = out[0]->dtype;
    write_slices("scatter_reduce", in, at.dim, out[0], [&](const SliceWrite& slice) {
        if (dtype == int64) return reduce_slice<std::int64_t>(slice, at.kind);
        with_real(dtype, [&]<class T>(T) { reduce_slice<T>(slice, at.kind); });
    });
}

constinit const KernelList index_list =
    kernel_list<embedding, embedding_grad, index_select, index_select_grad, gather, scatter_add, scatter,
                scatter_reduce>;

}  // namespace cpu_kernels
}  // namespace mezzo
