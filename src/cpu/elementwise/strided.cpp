#include "cpu/elementwise/strided.h"

#include <cstring>
#include <limits>

namespace mezzo::cpu {
namespace {

// Calls f(offset, step, count, done) for each run along the innermost dimension: where it begins in memory,
// the stride of its elements, how many there are, and how many came before.
template <class F>
void for_runs(const StridedLayout& layout, std::int64_t begin, std::int64_t n, const F& f) {
    if (layout.dims == 0) return f(std::int64_t(0), std::int64_t(1), n, std::int64_t(0));
    const int last = layout.dims - 1;
    std::int64_t index[max_dims], offset = 0, rest = begin;
    for (int d = last; d >= 0; --d) {
        index[d] = rest % layout.sizes[d];
        rest /= layout.sizes[d];
        offset += index[d] * layout.strides[d];
    }
    for (std::int64_t done = 0; done < n;) {
        const std::int64_t left = layout.sizes[last] - index[last];
        const std::int64_t count = n - done < left ? n - done : left;
        f(offset, layout.strides[last], count, done);
        done += count;
        index[last] += count;
        offset += count * layout.strides[last];
        for (int d = last; d > 0 && index[d] == layout.sizes[d]; --d) {
            offset += layout.strides[d - 1] - index[d] * layout.strides[d];
            index[d] = 0;
            ++index[d - 1];
        }
    }
}

template <class T>
void gather_as(const StridedLayout& layout, const T* base, std::int64_t begin, std::int64_t n, T* dst) {
    for_runs(layout, begin, n,
             [&](std::int64_t offset, std::int64_t step, std::int64_t count, std::int64_t done) {
                 const T* const from = base + offset;
                 T* const to = dst + done;
                 if (step == 1 && count >= 16)
                     std::memcpy(to, from, std::size_t(count) * sizeof(T));
                 else
                     for (std::int64_t i = 0; i < count; ++i) to[i] = from[i * step];
             });
}

template <class T>
void scatter_as(const StridedLayout& layout, T* base, std::int64_t begin, std::int64_t n, const T* src) {
    for_runs(layout, begin, n,
             [&](std::int64_t offset, std::int64_t step, std::int64_t count, std::int64_t done) {
                 T* const to = base + offset;
                 const T* const from = src + done;
                 if (step == 1 && count >= 16)
                     std::memcpy(to, from, std::size_t(count) * sizeof(T));
                 else
                     for (std::int64_t i = 0; i < count; ++i) to[i * step] = from[i];
             });
}

// Whether elements next to each other in memory are far apart in the order of reading: then a copy, which is
// made in blocks, is faster than reading element by element.
bool permuted(const StridedLayout& layout) {
    bool neighbours = false;
    for (int d = 0; d < layout.dims; ++d) {
        if (layout.strides[d] == 0) return false;
        neighbours |= layout.strides[d] == 1;
    }
    return neighbours && layout.strides[layout.dims - 1] != 1;
}

}  // namespace

void StridedLayout::add(std::int64_t size, std::int64_t stride) {
    if (size == 1) return;
    if (dims > 0 && strides[dims - 1] == stride * size) {
        sizes[dims - 1] *= size;
        strides[dims - 1] = stride;
        return;
    }
    sizes[dims] = size;
    strides[dims++] = stride;
}

StridedLayout::StridedLayout(const Shape& shape, const Shape& x_shape, const Strides& x_strides) {
    const int missing = shape.size() - x_shape.size();
    for (int d = 0; d < shape.size(); ++d) {
        const bool repeats = d < missing || x_shape[d - missing] == 1;
        add(shape[d], repeats ? 0 : x_strides[d - missing]);
    }
}

void gather(const StridedLayout& layout, const char* base, std::size_t size, std::int64_t begin,
            std::int64_t n, char* dst) {
    with_bits(size, [&]<class T>(T) {
        gather_as(layout, reinterpret_cast<const T*>(base), begin, n, reinterpret_cast<T*>(dst));
    });
}

void scatter(const StridedLayout& layout, char* base, std::size_t size, std::int64_t begin, std::int64_t n,
             const char* src) {
    with_bits(size, [&]<class T>(T) {
        scatter_as(layout, reinterpret_cast<T*>(base), begin, n, reinterpret_cast<const T*>(src));
    });
}

Source::Source(const Tensor& x, const Shape& shape, Dtype as)
    : base_(x->storage ? x->bytes() : nullptr), size_(size_of(x->dtype)), dtype_(x->dtype), as_(as) {
    if (x->contiguous && x->numel != 1 && x->shape == shape) {
        dense_ = true;
        direct_ = dtype_ == as_;
        return;
    }
    layout_ = StridedLayout(shape, x->shape, x->strides);
    if (x->shape == shape && x->numel >= 4 * chunk && permuted(layout_)) {
        copy_ = empty(shape, {.dtype = dtype_});
        copy_strided(shape, copy_->bytes(), copy_->strides, base_, x->strides, size_);
        base_ = copy_->bytes();
        layout_ = StridedLayout(shape, shape, copy_->strides);
    }
    finish();
}

Source::Source(const void* data, Dtype dtype, const StridedLayout& layout, Dtype as)
    : base_(static_cast<const char*>(data)), size_(size_of(dtype)), dtype_(dtype), as_(as), layout_(layout) {
    finish();
}

// A layout of one element has no dimensions left and is dense: it is read without a copy.
void Source::finish() {
    dense_ = layout_.dense();
    direct_ = dense_ && dtype_ == as_;
    single_ = layout_.repeated();
    for (int d = 0; d < layout_.dims; ++d)
        if (layout_.sizes[d] == 0) single_ = false;  // nothing to read
    if (single_) convert(base_, dtype_, value_, as_, 1);
}

std::int64_t Source::run() const {
    if (direct_ || single_) return std::numeric_limits<std::int64_t>::max();
    if (dense_ || dtype_ != as_ || layout_.strides[layout_.dims - 1] > 1) return 0;
    return layout_.sizes[layout_.dims - 1];
}

const void* Source::run_at(std::int64_t begin) const {
    if (single_) return value_;
    if (direct_) return at(begin);
    std::int64_t offset = 0;
    for (int d = layout_.dims - 1; d >= 0; begin /= layout_.sizes[d--])
        offset += begin % layout_.sizes[d] * layout_.strides[d];
    return at(offset);
}

const void* Source::convert_to(std::int64_t begin, std::int64_t n, Chunk& buffer) const {
    if (single_) {
        with_bits(size_of(as_), [&]<class T>(T value) {
            std::memcpy(&value, value_, sizeof(T));
            for (std::int64_t i = 0; i < n; ++i) buffer.as<T>()[i] = value;
        });
    } else if (dense_) {
        convert(at(begin), dtype_, buffer.bytes, as_, n);
    } else if (in_run(begin, n)) {
        const void* const from = run_at(begin);
        if (dtype_ == as_) return from;
        convert(from, dtype_, buffer.bytes, as_, n);
    } else if (dtype_ == as_) {
        gather(layout_, base_, size_, begin, n, buffer.bytes);
    } else {
        Chunk raw;
        gather(layout_, base_, size_, begin, n, raw.bytes);
        convert(raw.bytes, dtype_, buffer.bytes, as_, n);
    }
    return buffer.bytes;
}

Sink::Sink(const Tensor& y, Dtype from)
    : base_(y->storage ? y->bytes() : nullptr), size_(size_of(y->dtype)), dtype_(y->dtype), from_(from) {
    dense_ = y->contiguous;
    if (!dense_) layout_ = StridedLayout(y->shape, y->shape, y->strides);
    direct_ = dense_ && dtype_ == from_;
}

void Sink::store(std::int64_t begin, std::int64_t n, const void* values) const {
    if (dense_ && dtype_ == from_) {
        std::memcpy(at(begin), values, std::size_t(n) * size_);
    } else if (dense_) {
        convert(values, from_, at(begin), dtype_, n);
    } else if (dtype_ == from_) {
        scatter(layout_, base_, size_, begin, n, static_cast<const char*>(values));
    } else {
        Chunk raw;
        convert(values, from_, raw.bytes, dtype_, n);
        scatter(layout_, base_, size_, begin, n, raw.bytes);
    }
}

}  // namespace mezzo::cpu
