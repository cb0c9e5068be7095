// Access of kernels to tensors of any strides and dtype: in chunks that fit the L1 cache, in row-major order
// of the result, converted to the type that the kernel computes in. A contiguous tensor of that type is read
// without a copy.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/tensor_impl.h"
#include "cpu/elementwise/convert.h"
#include "cpu/elementwise/loops.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {

inline constexpr std::int64_t chunk = 1024;   // elements
inline constexpr std::int64_t grain = 32768;  // elements worth waking a thread for

inline constexpr Dtype dtype_of_compute[compute_count] = {float32, float64, int32, int64};
constexpr Dtype dtype_of(Compute compute) { return dtype_of_compute[int(compute)]; }

// A tensor as [outer, length, inner] around a dimension: lines of `length` elements, `inner` apart.
struct Lines {
    std::int64_t outer = 1, length = 1, inner = 1;
    Lines(const Shape& shape, std::int64_t dim) {
        for (int d = 0; d < shape.size(); ++d) (d < dim ? outer : d > dim ? inner : length) *= shape[d];
    }
    std::int64_t count() const { return outer * inner; }
};

// Calls body(row) for all rows of a matrix.
template <class F> void for_rows(std::int64_t rows, std::int64_t cols, const F& body) {
    parallel_for(rows, grain / 4 / (cols + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) body(row);
    });
}

// Element i of a contiguous float32 or float64 tensor.
inline double real_at(const Tensor& x, std::int64_t i) {
    return x->dtype == float64 ? reinterpret_cast<const double*>(x->bytes())[i]
                               : double(reinterpret_cast<const float*>(x->bytes())[i]);
}
inline void store_real(const Tensor& y, std::int64_t i, double value) {
    if (y->dtype == float64)
        reinterpret_cast<double*>(y->bytes())[i] = value;
    else
        reinterpret_cast<float*>(y->bytes())[i] = float(value);
}

// The type to compute a result in.
constexpr Compute compute_for(Dtype result) {
    if (is_floating(result)) return result == float64 ? Compute::f64 : Compute::f32;
    return result == int64 ? Compute::i64 : Compute::i32;
}

// One chunk of elements of any type.
struct Chunk {
    alignas(64) char bytes[chunk * 8];
    template <class T> T* as() { return reinterpret_cast<T*>(bytes); }
};

// Sizes and element strides. Neighbouring dimensions are merged if one stride leads through both.
struct StridedLayout {
    int dims = 0;
    std::int64_t sizes[max_dims], strides[max_dims];

    StridedLayout() = default;
    // x's layout when broadcast to `shape`: aligned at the last dimension, stride 0 where x has size 1 or no
    // dimension.
    StridedLayout(const Shape& shape, const Shape& x_shape, const Strides& x_strides);
    // Appends an inner dimension.
    void add(std::int64_t size, std::int64_t stride);
    bool dense() const { return dims == 0 || (dims == 1 && strides[0] == 1); }
    bool repeated() const { return dims == 1 && strides[0] == 0; }
};

// Copies elements [begin, begin + n) of a layout to or from contiguous memory; `size` bytes per element.
void gather(const StridedLayout& layout, const char* base, std::size_t size, std::int64_t begin,
            std::int64_t n, char* dst);
void scatter(const StridedLayout& layout, char* base, std::size_t size, std::int64_t begin, std::int64_t n,
             const char* src);

// Calls f with an unsigned integer of the element's size.
template <class F> void with_bits(std::size_t size, const F& f) {
    switch (size) {
        case 1:
            return f(std::uint8_t());
        case 2:
            return f(std::uint16_t());
        case 4:
            return f(std::uint32_t());
        default:
            return f(std::uint64_t());
    }
}

// Copies elements of `size` bytes to another layout of the same shape, in parallel. Strides are in elements,
// 0 where an element of `from` is repeated. Elements of `to` do not overlap each other or those of `from`.
void copy_strided(const Shape& shape, char* to, const Strides& to_strides, const char* from,
                  const Strides& from_strides, std::size_t size);

// A tensor to read, broadcast to a shape, as elements of dtype `as`.
class Source {
public:
    Source(const Tensor& x, const Shape& shape, Dtype as);
    Source(const void* data, Dtype dtype, const StridedLayout& layout, Dtype as);

    // Whether all elements are the same one in memory; value() is that element as `as`.
    bool single() const { return single_; }
    const void* value() const { return value_; }
    // Whether elements may be read without a copy, any number at a time, from at().
    bool direct() const { return direct_; }
    const char* at(std::int64_t begin) const { return base_ + begin * std::int64_t(size_); }
    // Whether at() is the elements of a 16-bit type dtype(), which read() would convert to float32.
    bool narrow() const { return dense_ && is_16bit(dtype_) && as_ == float32; }
    Dtype dtype() const { return dtype_; }
    // Elements [begin, begin + n), n <= chunk: the tensor's own or in the buffer.
    const void* read(std::int64_t begin, std::int64_t n, Chunk& buffer) const {
        return direct_ ? at(begin) : convert_to(begin, n, buffer);
    }
    template <class T> const T* read_as(std::int64_t begin, std::int64_t n, Chunk& buffer) const {
        return static_cast<const T*>(read(begin, n, buffer));
    }

    // Length of runs: elements [i * run(), (i + 1) * run()) are neighbours in memory, of dtype `as`, or one
    // repeated element. 0 if there is no such length.
    std::int64_t run() const;
    bool repeats_in_run() const { return single_ || (!direct_ && layout_.strides[layout_.dims - 1] == 0); }
    // Element `begin`, with the rest of its run behind it.
    const void* run_at(std::int64_t begin) const;

private:
    const void* convert_to(std::int64_t begin, std::int64_t n, Chunk& buffer) const;
    void finish();
    // Whether elements [begin, begin + n) are neighbours in memory.
    bool in_run(std::int64_t begin, std::int64_t n) const {
        const int last = layout_.dims - 1;
        return layout_.strides[last] == 1 && begin % layout_.sizes[last] + n <= layout_.sizes[last];
    }
    const char* base_;
    std::size_t size_;  // of an element in memory
    Dtype dtype_, as_;
    bool single_ = false, direct_ = false, dense_ = false;
    StridedLayout layout_;
    alignas(8) char value_[8];
    Tensor copy_;  // of a permuted tensor
};

// A tensor to write, from elements of dtype `from`.
class Sink {
public:
    Sink(const Tensor& y, Dtype from);
    bool direct() const { return direct_; }
    char* at(std::int64_t begin) const { return base_ + begin * std::int64_t(size_); }
    // Memory to compute elements from `begin` on in: the tensor's own or the buffer. finish() with the same
    // arguments then stores them.
    void* open(std::int64_t begin, Chunk& buffer) const { return direct_ ? at(begin) : buffer.bytes; }
    template <class T> T* open_as(std::int64_t begin, Chunk& buffer) const {
        return static_cast<T*>(open(begin, buffer));
    }
    void finish(std::int64_t begin, std::int64_t n, const Chunk& buffer) const {
        if (!direct_) store(begin, n, buffer.bytes);
    }
    // Writes n <= chunk elements of dtype `from`.
    void store(std::int64_t begin, std::int64_t n, const void* values) const;

private:
    char* base_;
    std::size_t size_;
    Dtype dtype_, from_;
    bool direct_, dense_;
    StridedLayout layout_;
};

// Thread-local memory for n elements, which a thread keeps. Memory that is in use at the same time has
// different slots.
template <class T> T* scratch(std::int64_t n, int slot) {
    thread_local std::vector<T> memory[5];
    if (std::int64_t(memory[slot].size()) < n) memory[slot].resize(std::size_t(n));
    return memory[slot].data();
}

// Calls body(begin, n) for chunks that cover [0, total), in parallel.
template <class F> void for_chunks(std::int64_t total, const F& body) {
    parallel_for(total, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; i += chunk) body(i, end - i < chunk ? end - i : chunk);
    });
}

template <class T> const RealLoops<T>& real_loops();
template <> inline const RealLoops<float>& real_loops<float>() { return active_loops().f32; }
template <> inline const RealLoops<double>& real_loops<double>() { return active_loops().f64; }

// ln total, total the sum of e^(x - largest) over x[0, n), n > 0. Near 1 the logarithm is computed from the
// sum without the largest element, which would round the others away.
template <class T> double log_of_exp_sum(const T* x, std::int64_t n, T largest, double total) {
    const double exact = n < 16 ? 1e-8 : 0.5;  // so few are added up in double
    if (!(total - 1 < exact)) return std::log(total);
    const std::int64_t at = std::find(x, x + n, largest) - x;
    const RealLoops<T>& loops = real_loops<T>();
    return std::log1p(loops.exp_sum(nullptr, x, at, largest) +
                      loops.exp_sum(nullptr, x + at + 1, n - at - 1, largest));
}

// The sum of squares. If squares may have left the range of float, it is computed again in double.
template <class T> double sum_of_squares(const T* x, std::int64_t n) {
    const double fast = real_loops<T>().sum_squares(x, n);
    if (sizeof(T) == 8 || (fast > 1e-25 && fast < 1e38)) return fast;
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += double(x[i]) * double(x[i]);
    return sum;
}

// Calls f(T()) with double for float64, else with float.
template <class F> void with_real(Dtype dtype, const F& f) {
    if (dtype == float64)
        f(double());
    else
        f(float());
}

}  // namespace mezzo::cpu
