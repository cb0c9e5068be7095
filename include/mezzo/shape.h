// Shapes and strides: up to eight dimensions, stored inline.
//
//   const Shape shape = {32, 28, 28};
//   const std::int64_t pixels = shape[1] * shape[2], elements = shape.numel();
//   y = zeros(shape).reshape({shape[0], pixels});
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <type_traits>

#include "mezzo/error.h"

#pragma GCC visibility push(default)

namespace mezzo {

inline constexpr int max_dims = 8;

namespace detail {
template <class T>
concept Size = (std::integral<T> || std::is_enum_v<T>)&&std::convertible_to<T, std::int64_t> &&
               !std::same_as<T, bool>;
}

// A list of up to eight integers: sizes, strides or axes. A default-made one is empty (a 0-dim tensor's
// shape), and an integer stands for a list of one: sum(x, 1), zeros(5). A ninth value throws Error(shape). []
// and back() do not check: i is in [0, size()).
class Shape {
public:
    Shape() = default;
    // {2, 3}, or one integer. No std::initializer_list: g++ 12 would take {.keepdim = true} for one.
    template <detail::Size... T>
    requires(sizeof...(T) > 0) Shape(T... values) { (push_back(static_cast<std::int64_t>(values)), ...); }
    Shape(const std::int64_t* values, int count) {
        for (int i = 0; i < count; ++i) push_back(values[i]);
    }
    [[nodiscard]] static Shape filled(int count, std::int64_t value) {
        Shape s;
        for (int i = 0; i < count; ++i) s.push_back(value);
        return s;
    }

    [[nodiscard]] int size() const { return size_; }
    [[nodiscard]] bool empty() const { return size_ == 0; }
    [[nodiscard]] std::int64_t operator[](int i) const { return values_[i]; }
    [[nodiscard]] std::int64_t& operator[](int i) { return values_[i]; }
    [[nodiscard]] const std::int64_t* begin() const { return values_; }
    [[nodiscard]] const std::int64_t* end() const { return values_ + size_; }
    [[nodiscard]] std::int64_t back() const { return values_[size_ - 1]; }
    [[nodiscard]] std::int64_t& back() { return values_[size_ - 1]; }
    void push_back(std::int64_t value) {
        check(size_ < max_dims, ErrorKind::shape, "shape: more than ", max_dims, " dimensions");
        values_[size_++] = value;
    }
    // Insert a value before position `at`, and erase the value at `at`. Throw Error(shape) unless `at` is in
    // [0, size()] for insert(), in [0, size()) for erase().
    void insert(int at, std::int64_t value);
    void erase(int at);
    // The product of all values; 1 when empty. Error(shape) for a negative value or a product beyond 2^63
    // - 1.
    [[nodiscard]] std::int64_t numel() const;
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

std::ostream& operator<<(std::ostream& out, const Shape& shape);  // [2, 3]
namespace detail {
[[nodiscard]] std::string text_of(const Shape& shape);
}

using Strides = Shape;
using Axes = Shape;

// The number of elements, or -1: a size is negative, or the elements, of so many bytes each and with sizes of
// 0 counted as 1, have more than 2^63 - 1 bytes (or bits, where a size is given in those). Whatever passes
// has strides and byte offsets that fit as well.
[[nodiscard]] std::int64_t count_elements(const Shape& shape, std::size_t element_bytes = 1);
// As count_elements(), but throws Error(shape) instead of returning -1; the message contains the op's name.
// All counts of elements or bytes in the library use one of these two functions.
std::int64_t checked_numel(const char* op, const Shape& shape, std::size_t element_bytes = 1);

// Row-major strides, in elements.
[[nodiscard]] Strides contiguous_strides(const Shape& shape);
// NumPy broadcasting of two shapes. Throws Error(shape) if two sizes differ and neither is 1; the message
// contains the op's name.
[[nodiscard]] Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b);
// A dimension index in [-dims, dims) made non-negative; 0-dim tensors accept 0 and -1. Error(shape) for
// others.
[[nodiscard]] int wrap_dim(const char* op, std::int64_t dim, int dims);

// Two numbers for the two axes of an image: {3, 5} is 3 along the height, 5 along the width; 3 is both.
struct Size2d {
    std::int64_t height, width;
    constexpr Size2d(std::integral auto both) : height(std::int64_t(both)), width(std::int64_t(both)) {}
    constexpr Size2d(std::int64_t h, std::int64_t w) : height(h), width(w) {}
    friend constexpr bool operator==(const Size2d&, const Size2d&) = default;
};

}  // namespace mezzo

#pragma GCC visibility pop
