#include "mezzo/shape.h"

#include <algorithm>

namespace mezzo {

void Shape::insert(int at, std::int64_t value) {
    check(at >= 0 && at <= size_, ErrorKind::shape, "shape: cannot insert at position ", at, " of ", *this);
    push_back(value);  // checks the room
    std::rotate(values_ + at, values_ + size_ - 1, values_ + size_);
}

void Shape::erase(int at) {
    check(at >= 0 && at < size_, ErrorKind::shape, "shape: no dimension ", at, " to erase in ", *this);
    std::copy(values_ + at + 1, values_ + size_, values_ + at);
    --size_;
}

std::int64_t count_elements(const Shape& shape, std::size_t element_bytes) {
    const auto element = static_cast<std::int64_t>(element_bytes);
    std::int64_t bytes = element;
    bool empty = false, good = true;
    for (const std::int64_t size : shape) {
        empty = empty || size == 0;
        good = good && size >= 0 && !__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes);
    }
    if (!good) return -1;
    return empty ? 0 : bytes / element;
}

std::int64_t checked_numel(const char* op, const Shape& shape, std::size_t element_bytes) {
    const std::int64_t numel = count_elements(shape, element_bytes);
    if (numel >= 0) [[likely]]
        return numel;
    for (const std::int64_t size : shape)
        check(size >= 0, ErrorKind::shape, op, ": negative size in shape ", shape);
    check(element_bytes == 1, ErrorKind::shape, op, ": shape ", shape, " of ", element_bytes,
          "-byte elements is beyond 2^63 bytes");
    fail(ErrorKind::shape, op, ": shape ", shape, " has more than 2^63 elements");
}

std::int64_t Shape::numel() const { return checked_numel("shape", *this); }

Strides contiguous_strides(const Shape& shape) {
    Strides strides = shape;
    std::int64_t step = 1;
    for (int i = shape.size() - 1; i >= 0; --i) {
        strides[i] = step;
        step *= std::max<std::int64_t>(shape[i], 1);
    }
    return strides;
}

Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b) {
    const Shape& longer = a.size() >= b.size() ? a : b;
    const Shape& shorter = a.size() >= b.size() ? b : a;
    Shape result = longer;
    const int lead = longer.size() - shorter.size();
    for (int i = 0; i < shorter.size(); ++i) {
        const std::int64_t x = longer[lead + i], y = shorter[i];
        check(x == y || x == 1 || y == 1, ErrorKind::shape, op, ": shapes ", a, " and ", b,
              " do not broadcast: sizes ", x, " and ", y, " differ in dimension ", lead + i,
              "; sizes must be equal or 1, counted from the last dimension");
        result[lead + i] = x == 1 ? y : x;
    }
    return result;
}

int wrap_dim(const char* op, std::int64_t dim, int dims) {
    const std::int64_t range = std::max(dims, 1);
    check(dim >= -range && dim < range, ErrorKind::shape, op, ": dimension ", dim, " is out of range for ",
          dims, " dimensions; expected ", -range, " to ", range - 1);
    return static_cast<int>(dim < 0 ? dim + range : dim);
}

}  // namespace mezzo
