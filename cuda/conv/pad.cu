// Padding with a constant, 16 bytes or one element per thread.
#include "kernels/pad.h"

#include "cuda/elementwise/elements.cuh"
#include "cuda/kernels.h"

namespace mezzo::cuda {
namespace {

constexpr unsigned pad_block = 256;

using Bytes16 = Vec<std::uint32_t, 4>;

// The result as lines: inner dimensions that are not padded are joined to the dimension before them, whose
// elements make a line.
struct PadLines {
    int dims;                                                 // those before
    std::int64_t x[max_dims], y[max_dims], before[max_dims];  // of those
    std::int64_t length, from, to;                            // of a line of the result, and where x is in it

    // The line of x that a line of the result holds, or -1.
    __device__ std::int64_t source(std::int64_t line) const {
        std::int64_t result = 0, stride = 1;
        for (int d = dims - 1; d >= 0; --d) {
            const std::int64_t i = line % y[d] - before[d];
            line /= y[d];
            if (i < 0 || i >= x[d]) return -1;
            result += i * stride;
            stride *= x[d];
        }
        return result;
    }
};

PadLines lines_of(const Shape& x, const Shape& y, const Shape& before) {
    PadLines lines{};
    int d = y.size() - 1;
    std::int64_t scale = 1;
    for (; d > 0 && x[d] == y[d]; --d) scale *= y[d];
    lines.dims = d;
    for (int i = 0; i < d; ++i) {
        lines.x[i] = x[i];
        lines.y[i] = y[i];
        lines.before[i] = before[i];
    }
    lines.length = y[d] * scale;
    lines.from = before[d] * scale;
    lines.to = lines.from + x[d] * scale;
    return lines;
}

template <class T> __global__ void pad_kernel(const T* x, T* y, T value, PadLines lines, std::int64_t n) {
    for (std::int64_t i = first_item(); i < n; i += item_step()) {
        const std::int64_t line = i / lines.length, place = i % lines.length;
        const std::int64_t source = place >= lines.from && place < lines.to ? lines.source(line) : -1;
        y[i] = source < 0 ? value : x[source * (lines.to - lines.from) + place - lines.from];
    }
}

// Moves items of type T, each of `count` elements.
template <class T>
void pad_items(const Tensor& x, const Tensor& y, PadLines lines, const void* element, std::int64_t count) {
    T value;
    for (std::size_t i = 0; i < sizeof(T); i += size_of(y.dtype()))
        std::memcpy(reinterpret_cast<char*>(&value) + i, element, size_of(y.dtype()));
    lines.length /= count;
    lines.from /= count;
    lines.to /= count;
    const std::int64_t n = y.numel() / count;
    launch(pad_kernel<T>, grid_for(n, pad_block), pad_block, 0, static_cast<const T*>(raw(x)),
           static_cast<T*>(raw(y)), value, lines, n);
}

bool aligned(const Tensor& x) { return reinterpret_cast<std::uintptr_t>(raw(x)) % sizeof(Bytes16) == 0; }

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace cuda;

void pad(In in, const kernels::Pad& at, Out out) {
    const Tensor &x = in[0], &y = out[0];
    use_device_of(y);
    if (y.numel() == 0) return;
    const PadLines lines = lines_of(x.shape(), y.shape(), at.before);
    char element[8];
    visit_dtype(y.dtype(), [&]<class T>(std::type_identity<T>) {
        T value;
        if constexpr (std::is_same_v<T, bool>)
            value = at.value != 0;
        else if constexpr (std::is_integral_v<T>)
            value = static_cast<T>(scalar_as<std::int64_t>(at.value));
        else
            value = static_cast<T>(at.value);
        std::memcpy(element, &value, sizeof value);
    });
    const std::size_t size = size_of(y.dtype());
    const std::int64_t count = std::int64_t(sizeof(Bytes16) / size);
    if (aligned(x) && aligned(y) && lines.length % count == 0 && lines.from % count == 0 &&
        lines.to % count == 0)
        return pad_items<Bytes16>(x, y, lines, element, count);
    if (size == 8) return pad_items<std::uint64_t>(x, y, lines, element, 1);
    if (size == 4) return pad_items<std::uint32_t>(x, y, lines, element, 1);
    if (size == 2) return pad_items<std::uint16_t>(x, y, lines, element, 1);
    pad_items<std::uint8_t>(x, y, lines, element, 1);
}

constinit const KernelList pad_list = kernel_list<pad>;

}  // namespace mezzo::cuda_kernels
