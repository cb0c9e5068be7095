// Look-ups by index, their gradients (sums of rows with one index) and scatter_add, without atomics: results
// are the same bits every time. A look-up with an index outside of the range gives NaN (0 for integers);
// sums ignore such an index.
#include "cuda/kernels.h"
#include "cuda/reduce/reduce.cuh"
#include "kernels/index.h"

namespace mezzo::cuda {
namespace {

constexpr unsigned index_block = 256;

// A tensor as [outer, size, inner] around a dimension.
struct Slices {
    std::int64_t outer, size, inner;
};
Slices slices_of(const Shape& shape, std::int64_t dim) {
    Slices s{1, 1, 1};
    for (int d = 0; d < shape.size(); ++d) (d < dim ? s.outer : d > dim ? s.inner : s.size) *= shape[d];
    return s;
}

// ---- look-ups

// y[o, j, i] = x[o, index[j], i], or with an index per element x[o, index[o, j, i], i]; `outside` for an
// index out of range.
template <class A> __global__ void look_up_kernel(A x, const std::int64_t* index, A y, Slices s,
                                                  std::int64_t count, bool each, typename A::C outside) {
    const std::int64_t n = s.outer * count * s.inner;
    for (std::int64_t i = first_item(); i < n; i += item_step()) {
        const std::int64_t line = i / s.inner, row = index[each ? i : line % count];
        const bool inside = row >= 0 && row < s.size;
        y.store(i, inside ? x.load((line / count * s.size + row) * s.inner + i % s.inner) : outside);
    }
}

// Whole rows, 16 bytes at a time; s.inner counts those.
template <class T> __global__ void select_vectors_kernel(const T* x, const std::int64_t* index, T* y,
                                                         Slices s, std::int64_t count) {
    using V = Vec<T, 16 / sizeof(T)>;
    const std::int64_t n = s.outer * count * s.inner;
    for (std::int64_t i = first_item(); i < n; i += item_step()) {
        const std::int64_t line = i / s.inner, row = index[line % count];
        V v;
        for (T& element : v.v) element = from_float<T>(NAN);
        if (row >= 0 && row < s.size)
            v = reinterpret_cast<const V*>(x)[(line / count * s.size + row) * s.inner + i % s.inner];
        reinterpret_cast<V*>(y)[i] = v;
    }
}

const std::int64_t* indices(const Tensor& index) { return static_cast<const std::int64_t*>(raw(index)); }
bool aligned(const Tensor& x, std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(raw(x)) % bytes == 0;
}

template <class T> bool select_vectors(const Tensor& x, const Tensor& index, const Tensor& y, Slices s) {
    constexpr std::int64_t width = 16 / sizeof(T);
    if (x.dtype() != dtype_of<T>() || s.inner % width != 0 || !aligned(x, 16) || !aligned(y, 16))
        return false;
    s.inner /= width;
    launch(select_vectors_kernel<T>, grid_for(y.numel() / width, index_block), index_block, 0,
           static_cast<const T*>(raw(x)), indices(index), static_cast<T*>(raw(y)), s, index.numel());
    return true;
}

void look_up(const Tensor& x, const Tensor& index, const Tensor& y, const Slices& s, std::int64_t count,
             bool each) {
    // Dtypes for storage are moved as bytes.
    const Dtype dtype = is_storage_only(x.dtype()) ? uint8 : x.dtype();
    const auto run = [&]<class C>(C outside) {
        launch(look_up_kernel<AnyArray<C>>, grid_for(y.numel(), index_block), index_block, 0,
               AnyArray<C>{raw(x), dtype}, indices(index), AnyArray<C>{raw(y), dtype}, s, count, each,
               outside);
    };
    switch (compute_kind({dtype})) {
        case ComputeKind::float32:
            return run(float(NAN));
        case ComputeKind::float64:
            return run(double(NAN));
        case ComputeKind::integer:  // the byte 0xff is NaN in all float8 dtypes
            return run(std::int64_t(has_exponent(x.dtype()) ? 0xff : 0));
    }
}

void select(const Tensor& x, const Tensor& index, std::int64_t dim, const Tensor& y) {
    use_device_of(y);
    if (y.numel() == 0) return;
    const Slices s = slices_of(x.shape(), dim);
    if (select_vectors<float>(x, index, y, s) || select_vectors<float16_t>(x, index, y, s) ||
        select_vectors<bfloat16_t>(x, index, y, s))
        return;
    look_up(x, index, y, s, index.numel(), false);
}

// ---- sums of rows with one index

// A sum of rows of `width` adjacent elements by index. The slices of g [count, width] and of y [size, width]
// follow each other in memory; or, where a row is one element, `stride` slices are interleaved.
struct RowSums {
    const std::int64_t* index;
    std::int64_t slices, count, size, width, stride;
    bool own_index;     // index is shaped like g instead of [count]
    std::int64_t skip;  // rows with this index are left out
    bool add;           // to what y holds, instead of overwriting it
    std::int64_t block_rows = 1, segments = 1;

    __device__ std::int64_t base(std::int64_t slice, std::int64_t length) const {
        return slice / stride * length * stride * width + slice % stride;
    }
    __device__ std::int64_t index_at(std::int64_t slice, std::int64_t j) const {
        return index[own_index ? base(slice, count) + j * stride : j];
    }
    __host__ __device__ std::int64_t chunks() const { return (size + block_rows - 1) / block_rows; }
    __host__ __device__ std::int64_t results() const { return slices * size * width; }
};

// Arrays that are read and written `lanes` adjacent elements at a time.
template <class T> struct Packs {
    using C = float;
    static constexpr int lanes = 4;
    T* p;
    static Packs at(T* memory) { return {memory}; }
    __device__ void load(std::int64_t i, float (&values)[lanes]) const {
        const auto v = *reinterpret_cast<const Vec<T, lanes>*>(p + i);
        for (int k = 0; k < lanes; ++k) values[k] = to_float(v.v[k]);
    }
    __device__ void store(std::int64_t i, const float (&values)[lanes]) const {
        Vec<T, lanes> v;
        for (int k = 0; k < lanes; ++k) v.v[k] = from_float<T>(values[k]);
        *reinterpret_cast<Vec<T, lanes>*>(p + i) = v;
    }
};
template <class A> struct Singles {
    using C = typename A::C;
    static constexpr int lanes = 1;
    A a;
    static Singles at(C* memory) { return {A{memory}}; }
    __device__ void load(std::int64_t i, C (&values)[1]) const { values[0] = a.load(i); }
    __device__ void store(std::int64_t i, const C (&values)[1]) const { a.store(i, values[0]); }
};

constexpr int list_capacity = 2048;

// Positions in the index list at which the rows of a block occur, in order.
struct List {
    std::int64_t* position;
    int* row;  // within the block
    int count;
};

// Appends the indices j .. j + 255 below `end` that name one of the rows [first, first + rows).
__device__ inline void append(List& list, int* warp_counts, const RowSums& s, std::int64_t slice,
                              std::int64_t j, std::int64_t end, std::int64_t first, std::int64_t rows) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row = -1;
    if (j + threadIdx.x < end) {
        const std::int64_t index = s.index_at(slice, j + threadIdx.x);
        if (index != s.skip && index >= first && index < first + rows) row = static_cast<int>(index - first);
    }
    const unsigned found = __ballot_sync(0xffffffffu, row >= 0);
    if (lane == 0) warp_counts[warp] = __popc(found);
    __syncthreads();
    int place = list.count;
    for (unsigned w = 0; w < index_block / 32; ++w) {
        if (w < warp) place += warp_counts[w];
        list.count += warp_counts[w];
    }
    if (row >= 0) {
        place += __popc(found & ((1u << lane) - 1));
        list.position[place] = j + threadIdx.x;
        list.row[place] = row;
    }
    __syncthreads();
}

// Sums one row with one warp: `lanes` columns per thread, four rows of g in flight. With `add`, y is not
// touched where there is nothing to add.
template <class G, class Y> __device__ void sum_row(const G& g, const Y& y, const List& list, int row,
                                                    std::int64_t from, std::int64_t step, std::int64_t to,
                                                    bool inside, bool add) {
    using C = typename Y::C;
    constexpr int lanes = Y::lanes, flight = 4;
    const int lane = int(threadIdx.x) % 32;
    C sum[lanes] = {};
    bool any = false;
    for (int begin = 0; begin < list.count; begin += 32) {
        const bool mine = begin + lane < list.count && list.row[begin + lane] == row;
        unsigned found = __ballot_sync(0xffffffffu, mine);
        any = any || found != 0;
        while (found != 0) {
            C value[flight][lanes] = {};
            for (int f = 0; f < flight; ++f) {
                if (found == 0) continue;
                const std::int64_t j = list.position[begin + __ffs(static_cast<int>(found)) - 1];
                found &= found - 1;
                if (inside) g.load(from + j * step, value[f]);
            }
            for (int f = 0; f < flight; ++f)
                for (int k = 0; k < lanes; ++k) sum[k] += value[f][k];
        }
    }
    if (!inside || (add && !any)) return;
    if (add) {  // last, so that the terms of the list are summed up separately
        C before[lanes];
        y.load(to, before);
        for (int k = 0; k < lanes; ++k) sum[k] += before[k];
    }
    y.store(to, sum);
}

// A block owns some rows of y. It reads a segment of the index list, collects the occurrences of its rows in
// shared memory, and its warps sum up one row each. Bytes moved: y written once, named rows of g read once,
// and the index list (from the L2 cache) once per block. The results of segment i follow those of segment i -
// 1.
template <class G, class Y> __global__ void sum_rows_kernel(G g, Y y, RowSums s) {
    constexpr int lanes = Y::lanes;
    MEZZO_SHARED(std::int64_t, position, [list_capacity]);
    MEZZO_SHARED(int, rows_of, [list_capacity]);
    MEZZO_SHARED(int, warp_counts, [index_block / 32]);
    const std::int64_t chunks = s.chunks(), length = (s.count + s.segments - 1) / s.segments;
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    for (std::int64_t item = blockIdx.x; item < s.slices * chunks * s.segments; item += gridDim.x) {
        const std::int64_t segment = item % s.segments, slice = item / s.segments / chunks;
        const std::int64_t first = item / s.segments % chunks * s.block_rows;
        const std::int64_t rows = first + s.block_rows < s.size ? s.block_rows : s.size - first;
        const std::int64_t end = (segment + 1) * length < s.count ? (segment + 1) * length : s.count;
        const std::int64_t to = segment * s.results() + s.base(slice, s.size);
        const std::int64_t tiles = (s.width + 32 * lanes - 1) / (32 * lanes);
        std::int64_t j = segment * length;
        bool add = s.add;
        do {
            List list{position, rows_of, 0};
            for (; j < end && list.count + int(index_block) <= list_capacity; j += index_block)
                append(list, warp_counts, s, slice, j, end, first, rows);
            for (std::int64_t work = warp; work < rows * tiles; work += index_block / 32) {
                const std::int64_t row = work / tiles, column = (work % tiles * 32 + lane) * lanes;
                const std::int64_t step = s.stride * s.width;
                sum_row(g, y, list, int(row), s.base(slice, s.count) + column, step,
                        to + (first + row) * step + column, column < s.width, add);
            }
            add = true;
            __syncthreads();  // the list has been read
        } while (j < end);
    }
}

// The results of all segments, followed by y itself when it is added to.
template <class C> struct LoadPart {
    const C* parts;
    AnyArray<C> y;
    std::int64_t total;  // of all segments
    __device__ C operator()(std::int64_t offset, std::int64_t) const {
        return offset < total ? parts[offset] : y.load(offset - total);
    }
};

// Chooses the number of rows per block so that the blocks fill the device. If there are too few rows for
// that, cuts the index list into segments, whose results take no more memory than g.
void divide(RowSums& s) {
    const std::int64_t wanted = grid_limit(index_block), all = s.slices * s.size;
    s.block_rows = (all + wanted - 1) / wanted;
    s.block_rows = s.block_rows < 1 ? 1 : s.block_rows > 256 ? 256 : s.block_rows;
    const std::int64_t limits[] = {wanted / (s.slices * s.chunks()), s.count / s.size, s.count / 64};
    s.segments = limits[0];
    for (const std::int64_t limit : limits) s.segments = limit < s.segments ? limit : s.segments;
    if (s.segments < 1) s.segments = 1;
}

// Parts: how the results of segments are written.
template <class Parts, class G, class Y> void sum_rows(const G& g, const Y& y, RowSums s, const Tensor& out) {
    using C = typename Y::C;
    divide(s);
    const unsigned grid = grid_for(s.slices * s.chunks() * s.segments, 1);
    if (s.segments == 1) return launch(sum_rows_kernel<G, Y>, grid, index_block, 0, g, y, s);
    const Scratch parts(out.device(), s.segments * s.results() * std::int64_t(sizeof(C)));
    RowSums apart = s;
    apart.add = false;
    launch(sum_rows_kernel<G, Parts>, grid, index_block, 0, g, Parts::at(parts.as<C>()), apart);
    const Shape shape{s.segments + (s.add ? 1 : 0), s.results()};
    reduce(LoadPart<C>{parts.as<C>(), any_of<C>(out), s.segments * s.results()}, SumOp<C>{1},
           reduce_shape(shape, Axes{0}), out);
}

template <class T> bool sum_packs(const Tensor& g, const Tensor& y, const RowSums& s) {
    const std::size_t bytes = Packs<T>::lanes * sizeof(T);
    if (g.dtype() != dtype_of<T>() || y.dtype() != dtype_of<T>() || s.width % Packs<T>::lanes != 0 ||
        !aligned(g, bytes) || !aligned(y, bytes))
        return false;
    sum_rows<Packs<float>>(Packs<T>{static_cast<T*>(raw(g))}, Packs<T>{static_cast<T*>(raw(y))}, s, y);
    return true;
}

template <class C> void sum_singles(const Tensor& g, const Tensor& y, const RowSums& s) {
    sum_rows<Singles<Array<C>>>(Singles<AnyArray<C>>{any_of<C>(g)}, Singles<AnyArray<C>>{any_of<C>(y)}, s, y);
}

void sum_selected(const Tensor& g, const Tensor& index, std::int64_t dim, std::int64_t skip, bool add,
                  const Tensor& y) {
    use_device_of(y);
    if (y.numel() == 0) return;
    const Slices s = slices_of(y.shape(), dim);
    const RowSums sums{indices(index), s.outer, index.numel(), s.size, s.inner, 1, false, skip, add};
    if (compute_kind({g.dtype(), y.dtype()}) == ComputeKind::float64) return sum_singles<double>(g, y, sums);
    if (sum_packs<float>(g, y, sums) || sum_packs<float16_t>(g, y, sums) || sum_packs<bfloat16_t>(g, y, sums))
        return;
    sum_singles<float>(g, y, sums);
}

// ---- scatter_add

// A thread adds what falls into one column [size] of y, in order.
template <class C> __global__ void scatter_columns_kernel(AnyArray<C> src, const std::int64_t* index,
                                                          AnyArray<C> y, Slices s, std::int64_t count) {
    for (std::int64_t column = first_item(); column < s.outer * s.inner; column += item_step()) {
        const std::int64_t o = column / s.inner, i = column % s.inner;
        for (std::int64_t j = o * count; j < (o + 1) * count; ++j) {
            const std::int64_t row = index[j * s.inner + i];
            if (row < 0 || row >= s.size) continue;
            const std::int64_t to = (o * s.size + row) * s.inner + i;
            y.store(to, y.load(to) + src.load(j * s.inner + i));
        }
    }
}

// y += src at index. If the columns are few and long, several blocks work on a column, each on some of the
// elements of y.
template <class C>
void scatter_into(const Tensor& src, const Tensor& index, const Slices& s, const Tensor& y) {
    const std::int64_t columns = s.outer * s.inner, count = columns == 0 ? 0 : src.numel() / columns;
    if (count == 0) return;
    if (columns >= 1024 || count <= 64)
        return launch(scatter_columns_kernel<C>, grid_for(columns, index_block), index_block, 0,
                      any_of<C>(src), indices(index), any_of<C>(y), s, count);
    sum_singles<C>(src, y, {indices(index), columns, count, s.size, 1, s.inner, true, -1, true});
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void embedding(In in, const kernels::Embedding&, Out out) { select(in[0], in[1], 0, out[0]); }
void index_select(In in, const kernels::IndexSelect& at, Out out) { select(in[0], in[1], at.dim, out[0]); }
void embedding_grad(In in, const kernels::EmbeddingGrad& at, Out out) {
    sum_selected(in[0], in[1], 0, at.padding_idx, at.accumulate, out[0]);
}
void index_select_grad(In in, const kernels::IndexSelectGrad& at, Out out) {
    sum_selected(in[0], in[1], at.dim, -1, false, out[0]);
}

void gather(In in, const kernels::Gather& at, Out out) {
    use_device_of(out[0]);
    if (out[0].numel() == 0) return;
    look_up(in[0], in[1], out[0], slices_of(in[0].shape(), at.dim), out[0].shape()[int(at.dim)], true);
}

// 16-bit sums stay in float32 until all terms are added, floating sums that may have many terms in float64.
void scatter_add(In in, const kernels::ScatterAdd& at, Out out) {
    use_device_of(out[0]);
    const Tensor& y = out[0];
    if (y.numel() == 0) return;
    const Slices s = slices_of(y.shape(), at.dim);
    const std::int64_t count = in[0].numel() / (s.outer * s.inner);
    Dtype wide = is_16bit(y.dtype()) ? float32 : y.dtype();
    if (is_floating(wide) && count > 1024) wide = float64;
    const Tensor sum = wide == y.dtype() ? y : empty(y.shape(), {.dtype = wide, .device = y.device()});
    if (in.size() > 2)
        cast(in.subspan(2, 1), {}, Out(&sum, 1));
    else
        fill({}, {}, Out(&sum, 1));
    with_compute_type(compute_kind({wide}), [&]<class C>(C) { scatter_into<C>(in[0], in[1], s, sum); });
    if (sum.impl() != y.impl()) cast(In(&sum, 1), {}, out);
}

constinit const KernelList index_list =
    kernel_list<embedding, embedding_grad, index_select, index_select_grad, gather, scatter_add>;

}  // namespace mezzo::cuda_kernels
