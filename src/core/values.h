// Access to elements of tensors on the host, outside of kernels: item(), to_vector(), from(), printing.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/round_to_odd.h"
#include "core/tensor_impl.h"
#include "core/visit_dtype.h"
#include "mezzo/tensor.h"

namespace mezzo {

// One element as another type. To storage types it rounds once. Real to integral drops the fraction and NaN
// gives 0. Values out of range saturate, and those of 8 bit keep the low bits of the int64, as in to().
template <class To, class From> To convert_value(From value) {
    if constexpr (std::is_same_v<To, From>) {
        return value;
    } else if constexpr (is_storage_type<From>) {
        return convert_value<To>(static_cast<float>(value));
    } else if constexpr (is_storage_type<To>) {
        if constexpr (std::is_integral_v<From> && sizeof(From) > 2)
            return To(round_to_odd(static_cast<std::int64_t>(value)));
        else if constexpr (std::is_same_v<From, double>)
            return To(round_to_odd(value));
        else
            return To(static_cast<float>(value));
    } else if constexpr (std::is_same_v<To, bool>) {
        return value != From(0);
    } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
        if constexpr (sizeof(To) == 1) return static_cast<To>(convert_value<std::int64_t>(value));
        using Limits = std::numeric_limits<To>;
        if (std::isnan(value)) return To(0);
        if (value < From(Limits::min())) return Limits::min();
        if (value >= std::ldexp(From(1), Limits::digits))
            return Limits::max();  // 2^digits is exact, max() may not be
        return static_cast<To>(value);
    } else {
        return static_cast<To>(value);
    }
}

// The elements of a tensor in host memory: the tensor's own memory on the CPU, otherwise a copy of the range
// of the device's storage that the tensor uses.
class HostValues {
public:
    // op: the name of the reader, for errors.
    explicit HostValues(const Tensor& x, const char* op = "to_vector");
    // The element `offset` elements after the tensor's first.
    template <class T> T get(std::int64_t offset) const { return reinterpret_cast<const T*>(first_)[offset]; }
    // All elements in row-major order: the memory above, or a copy that this keeps.
    const void* in_order();

private:
    Tensor keep_;
    std::vector<std::byte> copy_;
    const char* first_ = nullptr;
};

// Calls f(offset in elements) for every element in row-major order.
template <class F> void for_each_offset(const Shape& shape, const Strides& strides, const F& f) {
    if (shape.numel() == 0) return;
    if (shape.empty()) return f(std::int64_t(0));
    const int last = shape.size() - 1;
    Shape index = Shape::filled(last, 0);
    std::int64_t row = 0;
    for (;;) {
        for (std::int64_t i = 0; i < shape[last]; ++i) f(row + i * strides[last]);
        int d = last - 1;
        for (; d >= 0; --d) {
            row += strides[d];
            if (++index[d] < shape[d]) break;
            row -= index[d] * strides[d];
            index[d] = 0;
        }
        if (d < 0) return;
    }
}

}  // namespace mezzo
