// Conversions, copies and fills.
#include "kernels/copy.h"
#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"

namespace mezzo {
namespace {

using namespace cpu;

// A number as one element of `dtype`.
struct Element {
    alignas(8) char bytes[8];
    Element(Scalar value, Dtype dtype) {
        const double real = value.to<double>();
        const std::int64_t whole = value.is_integer() ? value.to<std::int64_t>() : 0;
        if (value.is_integer())
            convert(&whole, int64, bytes, dtype, 1);
        else
            convert(&real, float64, bytes, dtype, 1);
    }
};

// A 2-D transpose in square tiles: y[i, j] = x[j, i]. A tile is first copied to a small buffer, each line of
// x in one go: lines a power of two apart share few sets of the cache, and would evict each other between
// reads.
template <class T>
void transpose(const T* x, std::int64_t x_stride, T* y, std::int64_t rows, std::int64_t cols) {
    constexpr std::int64_t tile = 32;
    const std::int64_t tiles = (rows + tile - 1) / tile;
    parallel_for(
        tiles, (grain + tile * cols) / (tile * cols + 1), [&](std::int64_t first, std::int64_t last) {
            T buffer[tile][tile];
            for (std::int64_t i0 = first * tile; i0 < last * tile && i0 < rows; i0 += tile) {
                const std::int64_t height = i0 + tile < rows ? tile : rows - i0;
                for (std::int64_t j0 = 0; j0 < cols; j0 += tile) {
                    const std::int64_t width = j0 + tile < cols ? tile : cols - j0;
                    for (std::int64_t j = 0; j < width; ++j)
                        std::memcpy(buffer[j], x + (j0 + j) * x_stride + i0, std::size_t(height) * sizeof(T));
                    for (std::int64_t i = 0; i < height; ++i)
                        for (std::int64_t j = 0; j < width; ++j) y[(i0 + i) * cols + j0 + j] = buffer[j][i];
                }
            }
        });
}

// Copies with transpose() if x and y have one dtype of 2 or 4 bytes and x is stored column by column; returns
// whether it did.
bool transposed_copy(const Tensor& x, const Tensor& y) {
    if (x->dtype != y->dtype || x->shape.size() != 2 || !y->contiguous || !(x->shape == y->shape))
        return false;
    const std::int64_t rows = x->shape[0], cols = x->shape[1];
    if (x->strides[0] != 1 || rows < 16 || cols < 16) return false;
    if (size_of(x->dtype) == 4)
        transpose(reinterpret_cast<const std::uint32_t*>(x->bytes()), x->strides[1],
                  reinterpret_cast<std::uint32_t*>(y->bytes()), rows, cols);
    else if (size_of(x->dtype) == 2)
        transpose(reinterpret_cast<const std::uint16_t*>(x->bytes()), x->strides[1],
                  reinterpret_cast<std::uint16_t*>(y->bytes()), rows, cols);
    else
        return false;
    return true;
}

void assign(const Tensor& x, const Tensor& y) {
    if (y->numel == 0 || transposed_copy(x, y)) return;
    if (x->contiguous && y->contiguous && x->shape == y->shape) {
        const char* const from = x->bytes();
        char* const to = y->bytes();
        const auto from_size = std::int64_t(size_of(x->dtype)), to_size = std::int64_t(size_of(y->dtype));
        parallel_for(y->numel, grain, [&](std::int64_t begin, std::int64_t end) {
            if (x->dtype == y->dtype)
                std::memcpy(to + begin * to_size, from + begin * from_size,
                            std::size_t((end - begin) * to_size));
            else
                convert(from + begin * from_size, x->dtype, to + begin * to_size, y->dtype, end - begin);
        });
        return;
    }
    const Source source(x, y->shape, y->dtype);
    const Sink sink(y, y->dtype);
    for_chunks(y->numel, [&](std::int64_t begin, std::int64_t n) {
        Chunk buffer;
        sink.store(begin, n, source.read(begin, n, buffer));
    });
}

}  // namespace

namespace cpu_kernels {

void cast(In in, const kernels::Cast&, Out out) { assign(in[0], out[0]); }

// x may be another view of out's memory; then all of it is read before anything is written.
void copy_into(In in, const kernels::CopyInto&, Out out) {
    const Tensor &x = in[0], &y = out[0];
    if (x->storage != y->storage || !x->storage) return assign(x, y);
    const Tensor copy = empty(y->shape, {.dtype = y->dtype});
    assign(x, copy);
    assign(copy, y);
}

void fill(In, const kernels::Fill& at, Out out) {
    const Tensor& y = out[0];
    const Element element(at.value, y->dtype);
    StridedLayout repeat;
    repeat.dims = 1;
    repeat.sizes[0] = y->numel;
    repeat.strides[0] = 0;
    const Source source(element.bytes, y->dtype, repeat, y->dtype);
    const Sink sink(y, y->dtype);
    Chunk buffer;  // all chunks have the same values
    const void* values = source.read(0, y->numel < chunk ? y->numel : chunk, buffer);
    for_chunks(y->numel, [&](std::int64_t begin, std::int64_t n) { sink.store(begin, n, values); });
}

// Each input contributes a run of size(dim) * inner contiguous elements per index of the dimensions before
// dim.
void cat(In in, const kernels::Cat& at, Out out) {
    const Tensor& y = out[0];
    std::int64_t outer = 1, inner = 1;
    for (int d = 0; d < y->shape.size(); ++d)
        if (d != at.dim) (d < at.dim ? outer : inner) *= y->shape[d];
    const std::int64_t row = y->shape[int(at.dim)] * inner;
    const std::size_t size = size_of(y->dtype);
    std::int64_t column = 0;
    for (const Tensor& x : in) {
        const std::int64_t run = x->shape[int(at.dim)] * inner;
        if (run == 0 || outer == 0) continue;
        const char* const from = x->bytes();
        char* const to = y->bytes() + column * std::int64_t(size);
        parallel_for(outer, (grain + run) / run, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i)
                convert(from + i * run * std::int64_t(size_of(x->dtype)), x->dtype,
                        to + i * row * std::int64_t(size), y->dtype, run);
        });
        column += run;
    }
}

void arange(In, const kernels::Arange&, Out out) {
    const Tensor& y = out[0];
    const Dtype dtype = is_floating(y->dtype) ? float64 : int64;
    const Sink sink(y, dtype);
    for_chunks(y->numel, [&](std::int64_t begin, std::int64_t n) {
        Chunk buffer;
        if (dtype == float64)
            for (std::int64_t i = 0; i < n; ++i) buffer.as<double>()[i] = double(begin + i);
        else
            for (std::int64_t i = 0; i < n; ++i) buffer.as<std::int64_t>()[i] = begin + i;
        sink.store(begin, n, buffer.bytes);
    });
}

constexpr KernelEntry entries[] = {kernel_entry<cast>(), kernel_entry<copy_into>(), kernel_entry<fill>(),
                                   kernel_entry<cat>(), kernel_entry<arange>()};
constinit const KernelList copy_list = entries;

}  // namespace cpu_kernels
}  // namespace mezzo
