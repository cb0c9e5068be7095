#include "cuda/self_check/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/tensor_impl.h"
#include "core/visit_dtype.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/error.h"

namespace mezzo::cuda {
namespace {

Tensor tensor_of(const Shape& shape, Dtype dtype) {
    return empty(shape, {.dtype = dtype, .device = Device(DeviceType::cuda, current_device())});
}

std::size_t bytes_of(const Tensor& x) { return std::size_t(x.numel()) * size_of(x.dtype()); }

std::vector<char> bytes_in(const Tensor& x) {
    std::vector<char> bytes(bytes_of(x));
    copy_to_host(bytes.data(), raw(x), bytes.size());
    return bytes;
}

}  // namespace

std::vector<double> values_of(const Tensor& x) {
    const std::vector<char> bytes = bytes_in(x);
    std::vector<double> values(std::size_t(x.numel()));
    visit_dtype<Dtypes::floating>(x.dtype(), [&]<class T>(std::type_identity<T>) {
        for (std::size_t i = 0; i < values.size(); ++i) {
            T element;
            std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
            if constexpr (is_storage_type<T>)
                values[i] = double(static_cast<float>(element));
            else
                values[i] = double(element);
        }
    });
    return values;
}

Tensor input_of(const Shape& shape, Dtype dtype, std::uint32_t seed) {
    const Tensor x = tensor_of(shape, dtype);
    visit_dtype<Dtypes::floating>(dtype, [&]<class T>(std::type_identity<T>) {
        std::vector<T> values(std::size_t(x.numel()));
        std::uint32_t state = seed * 2654435761u + 1;
        for (T& value : values) {
            state = state * 1664525u + 1013904223u;
            value = static_cast<T>(float(std::int32_t(state)) * 0x1p-31f);
        }
        copy_to_device(raw(x), values.data(), bytes_of(x));
    });
    return x;
}

Tensor result_of(const Shape& shape, Dtype dtype) {
    const Tensor x = tensor_of(shape, dtype);
    const std::vector<char> bytes(bytes_of(x), char(0xFF));
    copy_to_device(raw(x), bytes.data(), bytes.size());
    return x;
}

Tensor copy_of(const Tensor& x) {
    const Tensor copy = tensor_of(x.shape(), x.dtype());
    copy_on_device(raw(copy), raw(x), bytes_of(x));
    return copy;
}

void require_close(const char* what, const Tensor& fast, const Tensor& plain, double tolerance) {
    const std::vector<double> found = values_of(fast), expected = values_of(plain);
    double largest = 0;
    for (const double value : expected) largest = std::max(largest, std::fabs(value));
    check(std::isfinite(largest) && largest > 0, ErrorKind::value, what, ": the plain path gives ", largest);
    for (std::size_t i = 0; i < expected.size(); ++i)
        check(std::fabs(found[i] - expected[i]) <= tolerance * largest, ErrorKind::value, what, ": element ",
              i, " of ", expected.size(), " is ", found[i], ", the plain path gives ", expected[i],
              " and allows a difference of ", tolerance * largest);
}

void require_equal(const char* what, const Tensor& fast, const Tensor& plain) {
    const std::vector<char> found = bytes_in(fast), expected = bytes_in(plain);
    for (std::size_t i = 0; i < expected.size(); ++i)
        check(found[i] == expected[i], ErrorKind::value, what, ": byte ", i, " of ", expected.size(), " is ",
              int(static_cast<unsigned char>(found[i])), ", the plain path gives ",
              int(static_cast<unsigned char>(expected[i])));
}

void require_taken(const char* what, bool taken) {
    check(taken, ErrorKind::value, what, ": its self-check did not run the fast path");
}

double rounding_of(Dtype dtype) { return std::ldexp(1.0, -dtype_info(dtype).significand_bits); }

}  // namespace mezzo::cuda
