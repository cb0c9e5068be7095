// Lines along any dimension as contiguous rows, in blocks that fit the cache, for kernels that need a whole
// line at a time.
#pragma once

#include <algorithm>

#include "cpu/elementwise/strided.h"

namespace mezzo::cpu {

// Elements [begin, end) of each of the lines [first, first + count), which are neighbours in memory, as rows
// of T.
template <class T> class Rows {
public:
    Rows(const Tensor& x, const Lines& lines, std::int64_t first, std::int64_t count, std::int64_t begin,
         std::int64_t end)
        : base_(x->bytes() +
                ((first / lines.inner * lines.length + begin) * lines.inner + first % lines.inner) *
                    std::int64_t(size_of(x->dtype))),
          dtype_(x->dtype),
          shape_{count, end - begin},
          strides_{lines.inner == 1 ? lines.length : 1, lines.inner} {}
    // Whole lines.
    Rows(const Tensor& x, const Lines& lines, std::int64_t first, std::int64_t count)
        : Rows(x, lines, first, count, 0, lines.length) {}

    // Returns the rows themselves if they are contiguous and of type T, else a copy in scratch memory.
    const T* read(int slot) const {
        if (direct()) return reinterpret_cast<const T*>(base_);
        const char* from = base_;
        if (!contiguous()) {
            char* const rows = dtype_ == mezzo::dtype_of<T>() ? reinterpret_cast<char*>(memory(slot)) : raw();
            copy_strided(shape_, rows, contiguous_strides(shape_), from, strides_, size_of(dtype_));
            from = rows;
        }
        if (dtype_ != mezzo::dtype_of<T>())
            convert(from, dtype_, memory(slot), mezzo::dtype_of<T>(), shape_.numel());
        return memory(slot);
    }
    // The memory to compute the rows in; close() then stores them.
    T* open(int slot) const { return direct() ? reinterpret_cast<T*>(base_) : memory(slot); }
    void close(const T* values) const {
        if (direct()) return;
        const char* from = reinterpret_cast<const char*>(values);
        if (dtype_ != mezzo::dtype_of<T>()) {
            char* const to = contiguous() ? base_ : raw();
            convert(values, mezzo::dtype_of<T>(), to, dtype_, shape_.numel());
            from = to;
        }
        if (!contiguous())
            copy_strided(shape_, base_, strides_, from, contiguous_strides(shape_), size_of(dtype_));
    }

private:
    bool contiguous() const { return strides_[1] == 1 && (strides_[0] == shape_[1] || shape_[0] == 1); }
    bool direct() const { return contiguous() && dtype_ == mezzo::dtype_of<T>(); }
    T* memory(int slot) const { return scratch<T>(shape_.numel(), slot); }
    char* raw() const { return reinterpret_cast<char*>(scratch<double>(shape_.numel(), 3)); }

    char* base_;
    Dtype dtype_;
    Shape shape_;
    Strides strides_;
};

// Calls body(first, count) for blocks of lines that are neighbours, of about `elements` elements.
template <class F> void for_blocks(const Lines& lines, const F& body, std::int64_t elements = 16384) {
    if (lines.length == 0 || lines.count() == 0) return;
    // Up to eight lines whose elements are not neighbours share what is read with them from memory, unless
    // they are so long that the copies would take much memory.
    constexpr std::int64_t longest = std::int64_t(1) << 20;
    const std::int64_t least = lines.inner == 1 ? 1 : std::clamp<std::int64_t>(longest / lines.length, 1, 8);
    const std::int64_t most = std::max(least, elements / lines.length);
    const std::int64_t neighbours = lines.inner == 1 ? lines.outer : lines.inner;
    const std::int64_t height = std::min(most, neighbours), blocks = (neighbours + height - 1) / height;
    parallel_for(lines.count() / neighbours * blocks, grain / 4 / (height * lines.length) + 1,
                 [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t block = begin; block < end; ++block) {
                         const std::int64_t first = block % blocks * height;
                         body(block / blocks * neighbours + first, std::min(height, neighbours - first));
                     }
                 });
}

}  // namespace mezzo::cpu
