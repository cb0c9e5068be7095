// Shapes and strides: up to eight dimensions, stored inline.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "mezzo/error.h"

namespace mezzo {

inline constexpr int max_dims = 8;

// A list of up to eight integers: sizes, strides or axes. A default-made one is empty (a 0-dim tensor's
// shape).
class Shape {
public:
    Shape() = default;
    Shape(std::initializer_list<std::int64_t> values) {
        for (std::int64_t v : values) push_back(v);
    }
    Shape(const std::int64_t* values, int count) {
        for (int i = 0; i < count; ++i) push_back(values[i]);
    }
    static Shape filled(int count, std::int64_t value) {
        Shape s;
        for (int i = 0; i < count; ++i) s.push_back(value);
        return s;
    }

    int size() const { return size_; }
    bool empty() const { return size_ == 0; }
    std::int64_t operator[](int i) const { return values_[i]; }
    std::int64_t& operator[](int i) { return values_[i]; }
    const std::int64_t* begin() const { return values_; }
    const std::int64_t* end() const { return values_ + size_; }
    std::int64_t back() const { return values_[size_ - 1]; }
    std::int64_t& back() { return values_[size_ - 1]; }
    void push_back(std::int64_t value) {
        check(size_ < max_dims, ErrorKind::shape, "shape: more than ", max_dims, " dimensions");
        values_[size_++] = value;
    }
    void insert(int at, std::int64_t value);
    void erase(int at);
    // The product of all values; 1 when empty.
    std::int64_t numel() const {
        std::int64_t n = 1;
        for (std::int64_t v : *this) n *= v;
        return n;
    }
    friend bool operator==(const Shape& a, const Shape& b) {
        if (a.size_ != b.size_) return false;
        for (int i = 0; i < a.size_; ++i)
            if (a.values_[i] != b.values_[i]) return false;
        return true;
    }

private:
    std::int64_t values_[max_dims];
    std::int32_t size_ = 0;
};

using Strides = Shape;
using Axes = Shape;

// Row-major strides, in elements.
Strides contiguous_strides(const Shape& shape);
// NumPy broadcasting of two shapes; the op's name goes into the error.
Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b);
// A dimension index in [-dims, dims) made non-negative; 0-dim tensors accept 0 and -1.
int wrap_dim(const char* op, std::int64_t dim, int dims);

}  // namespace mezzo
