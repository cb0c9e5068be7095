// Order along a dimension, running sums and running products, as the CPU's sort.cpp and scan.cpp compute
// them. A line that is scanned has one thread. Short lines are sorted by counting, in one launch; long ones
// by a bitonic network of keys and positions.
#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/reduce/reduce.cuh"
#include "cuda/visit_dtype.cuh"
#include "kernels/moments.h"
#include "kernels/scan.h"
#include "kernels/sort.h"

namespace mezzo::cuda {
namespace {

constexpr unsigned order_block = 256;
constexpr std::int64_t longest_counted = 2048;  // of a line: counting reads it once per element

// A tensor as [outer, length, inner] around a dimension.
struct Lines {
    std::int64_t outer, length, inner;
    std::int64_t count() const { return outer * inner; }
};
Lines lines_of(const Shape& shape, std::int64_t dim) {
    Lines lines{1, 1, 1};
    for (int d = 0; d < shape.size(); ++d)
        (d < dim ? lines.outer : d > dim ? lines.inner : lines.length) *= shape[d];
    return lines;
}

// ---- keys: unsigned integers in the order of the elements

__device__ std::uint64_t key_of(double x) {
    if (x != x) return ~std::uint64_t(0);
    const double plain = x == 0.0 ? 0.0 : x;  // -0 equals 0
    std::uint64_t bits;
    memcpy(&bits, &plain, sizeof bits);
    return bits >> 63 ? ~bits : bits | std::uint64_t(1) << 63;
}
__device__ std::uint64_t key_of(std::int64_t x) { return std::uint64_t(x) ^ std::uint64_t(1) << 63; }

// Elements of any dtype as keys: floating ones exactly as double, others as int64.
struct Keys {
    const void* data;
    Dtype dtype;
    bool floating, descending;
    __device__ std::uint64_t operator()(std::int64_t i) const {
        const std::uint64_t key = floating ? key_of(load_as<double>(data, dtype, i))
                                           : key_of(load_as<std::int64_t>(data, dtype, i));
        return descending ? ~key : key;
    }
};
Keys keys_of(const Tensor& x, bool descending) {
    return {raw(x), x.dtype(), is_floating(x.dtype()), descending};
}

std::int64_t* integers(const Tensor& x) { return static_cast<std::int64_t*>(raw(x)); }

// Sorts by counting: an element's position is the number of elements before it in the order.
__global__ void count_kernel(Keys keys, Lines lines, std::int64_t k, std::int64_t* y) {
    const std::int64_t n = lines.outer * lines.length * lines.inner;
    for (std::int64_t i = first_item(); i < n; i += item_step()) {
        const std::int64_t q = i % lines.inner, row = i / lines.inner, o = row / lines.length,
                           j = row % lines.length;
        const std::uint64_t own = keys(i);
        std::int64_t place = 0;
        for (std::int64_t m = 0; m < lines.length; ++m) {
            const std::uint64_t other = keys((o * lines.length + m) * lines.inner + q);
            place += other < own || (other == own && m < j);
        }
        if (place < k) y[(o * k + place) * lines.inner + q] = j;
    }
}

// Pairs of each line, filled up with the last of all to a power of two.
struct Pairs {
    std::uint64_t* key;
    std::int64_t* position;
    std::int64_t padded, total;
};

__global__ void fill_kernel(Keys keys, Lines lines, Pairs pairs) {
    for (std::int64_t i = first_item(); i < pairs.total; i += item_step()) {
        const std::int64_t line = i / pairs.padded, j = i % pairs.padded;
        const bool real = j < lines.length;
        const std::int64_t at = (line / lines.inner * lines.length + j) * lines.inner + line % lines.inner;
        pairs.key[i] = real ? keys(at) : ~std::uint64_t(0);
        pairs.position[i] = j;  // behind equal keys of elements
    }
}

// One step of the network: pairs `stride` apart are put in order within runs of `size`.
__global__ void exchange_kernel(Pairs pairs, std::int64_t size, std::int64_t stride) {
    for (std::int64_t t = first_item(); t < pairs.total / 2; t += item_step()) {
        const std::int64_t low = t & (stride - 1), i = 2 * (t - low) + low, j = i + stride;
        const bool ascending = ((i & (pairs.padded - 1)) & size) == 0;
        const std::uint64_t a = pairs.key[i], b = pairs.key[j];
        const std::int64_t p = pairs.position[i], q = pairs.position[j];
        const bool after = a > b || (a == b && p > q);
        if (after != ascending) continue;
        pairs.key[i] = b;
        pairs.key[j] = a;
        pairs.position[i] = q;
        pairs.position[j] = p;
    }
}

__global__ void store_kernel(Pairs pairs, Lines lines, std::int64_t k, std::int64_t* y) {
    const std::int64_t n = lines.outer * k * lines.inner;
    for (std::int64_t i = first_item(); i < n; i += item_step()) {
        const std::int64_t q = i % lines.inner, row = i / lines.inner, line = row / k * lines.inner + q;
        y[i] = pairs.position[line * pairs.padded + row % k];
    }
}

void sort_long_lines(const Keys& keys, const Lines& lines, std::int64_t k, const Tensor& y) {
    std::int64_t padded = 1;
    while (padded < lines.length) padded *= 2;
    const Tensor memory = empty({2, lines.count(), padded}, {.dtype = int64, .device = y.device()});
    const Pairs pairs{reinterpret_cast<std::uint64_t*>(raw(memory)),
                      integers(memory) + lines.count() * padded, padded, lines.count() * padded};
    launch(fill_kernel, grid_for(pairs.total, order_block), order_block, 0, keys, lines, pairs);
    for (std::int64_t size = 2; size <= padded; size *= 2)
        for (std::int64_t stride = size / 2; stride > 0; stride /= 2)
            launch(exchange_kernel, grid_for(pairs.total / 2, order_block), order_block, 0, pairs, size,
                   stride);
    launch(store_kernel, grid_for(y.numel(), order_block), order_block, 0, pairs, lines, k, integers(y));
}

void order(const Tensor& x, std::int64_t dim, bool descending, std::int64_t k, const Tensor& y) {
    if (y.numel() == 0) return;
    use_device_of(y);
    const Lines lines = lines_of(x.shape(), dim);
    const Keys keys = keys_of(x, descending);
    if (lines.length > longest_counted) return sort_long_lines(keys, lines, k, y);
    launch(count_kernel, grid_for(x.numel(), order_block), order_block, 0, keys, lines, k, integers(y));
}

__global__ void search_kernel(Keys sorted, Keys values, std::int64_t n, std::int64_t m, bool shared,
                              bool right, std::int64_t* y, std::int64_t count) {
    for (std::int64_t i = first_item(); i < count; i += item_step()) {
        const std::int64_t row = shared ? 0 : i / m * n;
        const std::uint64_t key = values(i);
        std::int64_t low = 0, high = n;
        while (low < high) {
            const std::int64_t middle = (low + high) / 2;
            const std::uint64_t other = sorted(row + middle);
            if (other < key || (right && other == key))
                low = middle + 1;
            else
                high = middle;
        }
        y[i] = low;
    }
}

// ---- running sums and products

enum class Running : std::uint8_t { sum, product, linear };

// A: double, or for integers, which wrap around, uint64_t.
template <class A> __global__ void scan_kernel(const void* a, Dtype a_dtype, const void* b, Dtype b_dtype,
                                               void* y, Dtype y_dtype, Lines lines, Running running,
                                               bool reverse) {
    for (std::int64_t line = first_item(); line < lines.outer * lines.inner; line += item_step()) {
        const std::int64_t start = line / lines.inner * lines.length * lines.inner + line % lines.inner;
        using E = std::conditional_t<std::is_integral_v<A>, std::int64_t, A>;
        A kept = running == Running::product ? A(1) : A(0);
        for (std::int64_t j = 0; j < lines.length; ++j) {
            const std::int64_t i = start + (reverse ? lines.length - 1 - j : j) * lines.inner;
            const A x = A(load_as<E>(a, a_dtype, i));
            if (running == Running::sum) kept = kept + x;
            if (running == Running::product) kept = kept * x;
            if (running == Running::linear) kept = x * kept + A(load_as<E>(b, b_dtype, i));
            store_as<E>(y, y_dtype, i, E(kept));
        }
    }
}

void scan(In in, std::int64_t dim, bool reverse, Running running, const Tensor& y) {
    if (y.numel() == 0) return;
    use_device_of(y);
    const Lines lines = lines_of(y.shape(), dim);
    const Tensor &a = in[0], &b = in[in.size() - 1];
    const auto run = [&]<class A>(A) {
        launch(scan_kernel<A>, grid_for(lines.count(), order_block), order_block, 0, raw(a), a.dtype(),
               raw(b), b.dtype(), raw(y), y.dtype(), lines, running, reverse);
    };
    if (is_floating(a.dtype()) || is_floating(y.dtype()))
        run(0.0);
    else
        run(std::uint64_t(0));
}

template <class C> struct ProductOp {
    using Acc = std::conditional_t<std::is_integral_v<C>, C, double>;
    using Result = Acc;
    __device__ Acc identity() const { return Acc(1); }
    __device__ Acc lift(C value, std::int64_t) const { return Acc(value); }
    __device__ Acc combine(Acc a, Acc b) const {
        if constexpr (std::is_integral_v<C>)
            return Acc(std::uint64_t(a) * std::uint64_t(b));
        else
            return a * b;
    }
    __device__ Acc finish(Acc acc) const { return acc; }
};

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void argsort(In in, const kernels::ArgSort& at, Out out) {
    order(in[0], at.dim, at.descending, in[0].shape()[int(at.dim)], out[0]);
}
void topk(In in, const kernels::TopK& at, Out out) { order(in[0], at.dim, at.largest, at.k, out[0]); }

void searchsorted(In in, const kernels::SearchSorted& at, Out out) {
    const Tensor &sorted = in[0], &values = in[1];
    if (values.numel() == 0) return;
    use_device_of(values);
    const std::int64_t m = values.dim() > 0 ? values.shape().back() : 1;
    launch(search_kernel, grid_for(values.numel(), order_block), order_block, 0, keys_of(sorted, false),
           keys_of(values, false), sorted.shape().back(), m, sorted.dim() == 1, at.right, integers(out[0]),
           values.numel());
}

void cumsum(In in, const kernels::CumSum& at, Out out) { scan(in, at.dim, at.reverse, Running::sum, out[0]); }
void cumprod(In in, const kernels::CumProd& at, Out out) {
    scan(in, at.dim, at.reverse, Running::product, out[0]);
}
void linear_scan(In in, const kernels::LinearScan& at, Out out) {
    scan(in, at.dim, at.reverse, Running::linear, out[0]);
}

void prod(In in, const kernels::Prod& at, Out out) {
    reduce_elements(in[0], reduce_shape(in[0].shape(), at.axes), out[0],
                    []<class C>(C) { return ProductOp<C>{}; });
}

constinit const KernelList order_list =
    kernel_list<argsort, topk, searchsorted, cumsum, cumprod, linear_scan, prod>;

}  // namespace mezzo::cuda_kernels
