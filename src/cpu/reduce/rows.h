// Lines along any dimension as contiguous rows, in blocks that fit the cache, for kernels that need a whole
// line at a time.
#pragma once

#include <algorithm>
#include <vector>

#include "cpu/elementwise/strided.h"

namespace mezzo::cpu {

// Thread-local memory for n elements; blocks in use at the same time have different slots.
template <class T> T* scratch(std::int64_t n, int slot) {
    thread_local std::vector<T> memory[4];
    if (std::int64_t(memory[slot].size()) < n) memory[slot].resize(std::size_t(n));
    return memory[slot].data();
}

// Lines [first, first + count), which are neighbours in memory, as rows of T.
template <class T> class Rows {
public:
    Rows(const Tensor& x, const Lines& lines, std::int64_t first, std::int64_t count)
        : base_(x->bytes() + (first / lines.inner * lines.length * lines.inner + first % lines.inner) *
                                 std::int64_t(size_of(x->dtype))),
          dtype_(x->dtype),
          shape_{count, lines.length},
          strides_{lines.inner == 1 ? lines.length : 1, lines.inner} {}

    // In place where the rows are contiguous T already.
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
    bool contiguous() const { return strides_[1] == 1; }
    bool direct() const { return contiguous() && dtype_ == mezzo::dtype_of<T>(); }
    T* memory(int slot) const { return scratch<T>(shape_.numel(), slot); }
    char* raw() const { return reinterpret_cast<char*>(scratch<double>(shape_.numel(), 3)); }

    char* base_;
    Dtype dtype_;
    Shape shape_;
    Strides strides_;
};

// Calls body(first, count) for blocks of lines that are neighbours.
template <class F> void for_blocks(const Lines& lines, const F& body) {
    if (lines.length == 0 || lines.count() == 0) return;
    constexpr std::int64_t elements = 16384;  // in a block, but at least 8 lines
    const std::int64_t most = std::max<std::int64_t>(8, elements / lines.length);
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
