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

// x's strides in a tensor of a shape that x is broadcast to.
Strides broadcast_strides(const Tensor& x, const Shape& shape) {
    Strides strides = Shape::filled(shape.size(), 0);
    const int missing = shape.size() - x->shape.size();
    for (int d = missing; d < shape.size(); ++d)
        if (x->shape[d - missing] != 1) strides[d] = x->strides[d - missing];
    return strides;
}

void assign(const Tensor& x, const Tensor& y) {
    if (y->numel == 0) return;
    if (x->dtype == y->dtype)
        return copy_strided(y->shape, y->bytes(), y->strides, x->bytes(), broadcast_strides(x, y->shape),
                            size_of(y->dtype));
    if (x->contiguous && y->contiguous && x->shape == y->shape)
        return parallel_for(y->numel, grain, [&](std::int64_t begin, std::int64_t end) {
            convert(x->bytes() + begin * std::int64_t(size_of(x->dtype)), x->dtype,
                    y->bytes() + begin * std::int64_t(size_of(y->dtype)), y->dtype, end - begin);
        });
    const Source source(x, y->shape, x->dtype);
    const Sink sink(y, x->dtype);
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

// Each input is copied into its part of y: of short rows some at a time, because the inputs share their cache
// lines.
void cat(In in, const kernels::Cat& at, Out out) {
    const Tensor& y = out[0];
    if (y->numel == 0) return;
    constexpr std::int64_t short_row = 256, together = 128;
    const auto size = std::int64_t(size_of(y->dtype)), row = y->strides[0], step = y->strides[int(at.dim)];
    const auto copy = [&](std::int64_t first, std::int64_t rows) {
        std::int64_t start = first * row;
        for (const Tensor& x : in) {
            if (x->numel == 0) continue;
            Shape shape = x->shape;
            if (at.dim > 0) shape[0] = rows;
            copy_strided(shape, y->bytes() + start * size, y->strides,
                         x->bytes() + first * x->strides[0] * size, x->strides, std::size_t(size));
            start += x->shape[int(at.dim)] * step;
        }
    };
    const std::int64_t rows = y->shape[0];
    if (at.dim == 0 || row > short_row || rows < 2 * together) return copy(0, rows);
    const std::int64_t block = std::max(together, grain / row);
    parallel_for((rows + block - 1) / block, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin * block; i < std::min(rows, end * block); i += block)
            copy(i, std::min(block, rows - i));
    });
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

constinit const KernelList copy_list = kernel_list<cast, copy_into, fill, cat, arange>;

}  // namespace cpu_kernels
}  // namespace mezzo
