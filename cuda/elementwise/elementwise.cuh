// Element-wise kernels: any operation on corresponding elements of up to four inputs, broadcast and strided.
#pragma once

#include <utility>

#include "cuda/elementwise/elements.cuh"

namespace mezzo::cuda {

inline constexpr unsigned elementwise_block = 256;

// Offsets of corresponding elements of N operands; operand 0 is the result. Adjacent dimensions are merged
// where the strides of all operands allow it; the last dimension is the innermost. Strides are in elements, 0
// where an operand is broadcast.
template <int N> struct OperandLayout {
    std::int64_t numel;
    int dims;
    std::int64_t sizes[max_dims], strides[N][max_dims];
    void* data[N];
    Dtype dtype[N];
};

// Appends a dimension. The outermost must be appended first.
template <int N> void push_dim(OperandLayout<N>& l, std::int64_t size, const std::int64_t (&strides)[N]) {
    if (size == 1) return;
    bool mergeable = l.dims > 0;
    for (int k = 0; mergeable && k < N; ++k) mergeable = l.strides[k][l.dims - 1] == strides[k] * size;
    const int d = mergeable ? l.dims - 1 : l.dims++;
    l.sizes[d] = mergeable ? l.sizes[d] * size : size;
    for (int k = 0; k < N; ++k) l.strides[k][d] = strides[k];
}

// The layout of out and inputs whose shapes broadcast to out's, aligned at the last dimension.
template <int N> OperandLayout<N> make_layout(const Tensor (&operands)[N]) {
    const Tensor& out = operands[0];
    use_device_of(out);
    OperandLayout<N> l{};
    l.numel = out.numel();
    for (int k = 0; k < N; ++k) {
        l.data[k] = raw(operands[k]);
        l.dtype[k] = operands[k].dtype();
    }
    for (int d = 0; d < out.dim(); ++d) {
        std::int64_t strides[N];
        for (int k = 0; k < N; ++k) {
            const int own = d - (out.dim() - operands[k].dim());
            const bool broadcast = own < 0 || operands[k].shape()[own] == 1;
            strides[k] = broadcast ? 0 : operands[k].strides()[own];
        }
        push_dim(l, out.shape()[d], strides);
    }
    return l;
}

template <class Index, int N>
__device__ void split_index(const OperandLayout<N>& l, Index rest, std::int64_t (&offset)[N]) {
    for (int d = l.dims - 1; d > 0; --d) {
        const Index size = static_cast<Index>(l.sizes[d]), next = rest / size;
        const std::int64_t index = static_cast<std::int64_t>(rest - next * size);
        for (int k = 0; k < N; ++k) offset[k] += index * l.strides[k][d];
        rest = next;
    }
    for (int k = 0; k < N; ++k) offset[k] += static_cast<std::int64_t>(rest) * l.strides[k][0];
}

// The offset of element i in every operand. 64-bit division is slow and therefore used for huge tensors only.
template <int N>
__device__ void locate(const OperandLayout<N>& l, std::int64_t i, std::int64_t (&offset)[N]) {
    for (int k = 0; k < N; ++k) offset[k] = 0;
    if (l.numel <= 0xffffffff)
        split_index<std::uint32_t>(l, static_cast<std::uint32_t>(i), offset);
    else
        split_index<std::int64_t>(l, i, offset);
}

template <class C, Dtypes subset, int N, class F, int... K>
__device__ auto apply(const OperandLayout<N>& l, const std::int64_t (&offset)[N], const F& f,
                      std::integer_sequence<int, K...>) {
    return f(load_as<C, subset>(l.data[K + 1], l.dtype[K + 1], offset[K + 1])...);
}

// out = f(inputs...) in compute type C, for any strides and dtypes of the subset.
template <class C, Dtypes subset, int N, class F> __global__ void map_kernel(OperandLayout<N> l, F f) {
    for (std::int64_t i = first_item(); i < l.numel; i += item_step()) {
        std::int64_t offset[N];
        locate(l, i, offset);
        store_as<C, subset>(l.data[0], l.dtype[0], offset[0],
                            apply<C, subset>(l, offset, f, std::make_integer_sequence<int, N - 1>()));
    }
}

template <class C, Dtypes subset = Dtypes::computed, int N, class F>
void map_general(const OperandLayout<N>& l, const F& f) {
    launch(map_kernel<C, subset, N, F>, grid_for(l.numel, elementwise_block), elementwise_block, 0, l, f);
}

// The operands of the fast path: contiguous and of one dtype, or a single element (step 0).
template <class T, int N> struct Flat {
    std::int64_t numel;
    T* data[N];
    int step[N];
};

template <class T, int N, class F, int... K>
__device__ T apply_flat(const T (&x)[N], const F& f, std::integer_sequence<int, K...>) {
    return convert<T>(f(convert<Compute<T>>(x[K + 1])...));
}

// Whole vectors of 16 bytes; the first threads of the grid take the last elements one by one.
template <class T, int N, class F> __global__ void map_flat_kernel(Flat<T, N> x, F f) {
    constexpr int width = 16 / sizeof(T);
    using V = Vec<T, width>;
    constexpr auto inputs = std::make_integer_sequence<int, N - 1>();
    const std::int64_t vectors = x.numel / width;
    for (std::int64_t i = first_item(); i < vectors; i += item_step()) {
        V in[N];
        for (int k = 1; k < N; ++k) {
            if (x.step[k] != 0)
                in[k] = reinterpret_cast<const V*>(x.data[k])[i];
            else
                for (int j = 0; j < width; ++j) in[k].v[j] = x.data[k][0];
        }
        for (int j = 0; j < width; ++j) {
            T element[N];
            for (int k = 1; k < N; ++k) element[k] = in[k].v[j];
            in[0].v[j] = apply_flat<T, N>(element, f, inputs);
        }
        reinterpret_cast<V*>(x.data[0])[i] = in[0];
    }
    for (std::int64_t i = vectors * width + first_item(); i < x.numel; i += item_step()) {
        T element[N];
        for (int k = 1; k < N; ++k) element[k] = x.data[k][i * x.step[k]];
        x.data[0][i] = apply_flat<T, N>(element, f, inputs);
    }
}

// Whether all operands have dtype T, are contiguous or single elements, and start at 16-byte boundaries.
template <class T, int N> bool flat(const OperandLayout<N>& l, Flat<T, N>& x) {
    if (l.dims > 1) return false;
    x.numel = l.numel;
    for (int k = 0; k < N; ++k) {
        const std::int64_t stride = l.dims == 0 ? 1 : l.strides[k][0];
        const bool aligned = reinterpret_cast<std::uintptr_t>(l.data[k]) % 16 == 0;
        if (l.dtype[k] != dtype_of<T>() || stride < 0 || stride > 1 || (stride == 1 && !aligned))
            return false;
        if (k == 0 && stride != 1) return false;
        x.data[k] = static_cast<T*>(l.data[k]);
        x.step[k] = static_cast<int>(stride);
    }
    return true;
}

template <class T, int N, class F> bool map_flat(const OperandLayout<N>& l, const F& f) {
    Flat<T, N> x;
    if (!flat(l, x)) return false;
    const std::int64_t vectors = (l.numel * std::int64_t(sizeof(T)) + 15) / 16;
    launch(map_flat_kernel<T, N, F>, grid_for(vectors, elementwise_block), elementwise_block, 0, x, f);
    return true;
}

// The fast path for the three dtypes of training, with f computing in float. False if it does not apply.
template <int N, class F> bool map_flat_any(const OperandLayout<N>& l, const F& f) {
    return map_flat<float>(l, f) || map_flat<float16_t>(l, f) || map_flat<bfloat16_t>(l, f);
}

}  // namespace mezzo::cuda
