#include "core/values.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/backend.h"
#include "core/memory/staging.h"
#include "core/step_recorder.h"
#include "core/storage_codes.h"

namespace mezzo {

HostValues::HostValues(const Tensor& x, const char* op) : keep_(x) {
    const Device device = x.device();  // throws for an undefined tensor
    if (x.numel() == 0) return;
    const Backend& source = backend_of(op, device);
    if (device.type() == DeviceType::cpu) {
        source.synchronize(device.index);
        first_ = x->bytes();
        return;
    }
    refuse_in_capture(op, device, "read values on the host");
    std::int64_t span = 1;
    for (int i = 0; i < x.dim(); ++i) span += (x->shape[i] - 1) * x->strides[i];
    const std::size_t bytes = static_cast<std::size_t>(span) * size_of(x.dtype());
    copy_.resize(bytes);
    source.copy_out(device.index, copy_.data(), x->bytes(), bytes);
    first_ = reinterpret_cast<const char*>(copy_.data());
}

namespace {

// Room on the host for all elements of x. An expanded view may have more of them than fit into memory.
template <class T> std::vector<T> room_for(const Tensor& x, std::size_t of_each = 1) {
    try {
        return std::vector<T>(static_cast<std::size_t>(x.numel()) * of_each);
    } catch (const std::exception&) {  // bad_alloc or length_error
        fail(ErrorKind::memory, "to_vector: no memory for the ", x.numel(), " elements of shape ", x.shape());
    }
}

// A function of its own, which to_vector() and from() share: there is one for every two types.
template <class To, class From>
[[gnu::noinline]] void convert_all(const From* from, std::int64_t count, To* to) {
    std::transform(from, from + count, to, [](From value) { return convert_value<To>(value); });
}

template <class T> constexpr bool is_code() {
    if constexpr (detail::Element<T>)
        return is_storage_only(dtype_of<T>());
    else
        return false;
}

// The elements whose codes begin at `codes`. Those of T's own dtype keep their bits.
template <class T> void decode(Dtype dtype, const std::uint8_t* codes, std::vector<T>& result) {
    if constexpr (is_code<T>())
        if (dtype == dtype_of<T>()) {
            if (!result.empty()) std::memcpy(result.data(), codes, result.size());
            return;
        }
    const float* const value = values_of_codes(dtype);
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = convert_value<T>(value[codes[i]]);
}

// The elements as elements of another dtype. Codes are converted to float32 first.
template <class T> std::vector<std::byte> converted(std::span<const T> values, Dtype dtype) {
    if constexpr (is_code<T>()) {
        std::vector<float> wide(values.size());
        decode(dtype_of<T>(), reinterpret_cast<const std::uint8_t*>(values.data()), wide);
        return converted(std::span<const float>(wide), dtype);
    } else {
        std::vector<std::byte> result(values.size() * size_of(dtype));
        visit_dtype<Dtypes::all>(dtype, [&]<class To>(std::type_identity<To>) {
            convert_all(values.data(), std::int64_t(values.size()), reinterpret_cast<To*>(result.data()));
        });
        return result;
    }
}

}  // namespace

const void* HostValues::in_order() {
    if (keep_.is_contiguous()) return first_;
    const std::size_t size = size_of(keep_.dtype());
    std::vector<std::byte> ordered = room_for<std::byte>(keep_, size);
    std::byte* next = ordered.data();
    for_each_offset(keep_.shape(), keep_.strides(), [&](std::int64_t offset) {
        std::memcpy(next, first_ + offset * static_cast<std::int64_t>(size), size);
        next += size;
    });
    copy_ = std::move(ordered);
    return copy_.data();
}

template <detail::HostNumber T> T Tensor::item() const {
    check(numel() == 1, ErrorKind::shape, "item: needs one element, got shape ", shape(),
          "; use to_vector() or index first");
    const HostValues values(*this, "item");
    if (is_storage_only(dtype())) {
        const auto code = values.get<std::uint8_t>(0);
        std::vector<T> one(1);
        decode(dtype(), &code, one);
        return one[0];
    }
    return visit_dtype(
        dtype(), [&](auto type) { return convert_value<T>(values.get<typename decltype(type)::type>(0)); });
}

template <detail::HostNumber T> std::vector<T> Tensor::to_vector() const {
    std::vector<T> result = room_for<T>(*this);
    HostValues values(*this);
    const void* const all = values.in_order();
    if (is_storage_only(dtype())) {
        decode(dtype(), static_cast<const std::uint8_t*>(all), result);
        return result;
    }
    visit_dtype(dtype(), [&](auto type) {
        const auto* const from = static_cast<const typename decltype(type)::type*>(all);
        if constexpr (std::is_same_v<T, bool>)  // a vector of bits
            for (std::size_t i = 0; i < result.size(); ++i) result[i] = convert_value<bool>(from[i]);
        else
            convert_all(from, numel(), result.data());
    });
    return result;
}

template <detail::Element T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape, TensorOptions options) {
    const bool requires_grad = std::exchange(options.requires_grad, false);
    const Tensor result = empty(shape, options);
    check(static_cast<std::int64_t>(values.size()) == result.numel(), ErrorKind::shape, "from: shape ", shape,
          " needs ", result.numel(), " values, got ", values.size());
    if (result.numel() != 0) {
        refuse_in_capture("from", options.device, "take values from the host; pass them as an input");
        const void* first = values.data();
        std::vector<std::byte> other;
        if (options.dtype != dtype_of<T>()) {
            other = converted(values, options.dtype);
            first = other.data();
        }
        copy_from_host(options.device, raw(result), first, values.size() * size_of(options.dtype));
    }
    if (requires_grad) result.set_requires_grad();
    return result;
}

Tensor Tensor::from(std::initializer_list<float> values) {
    return from(values, {static_cast<std::int64_t>(values.size())});
}

Tensor Tensor::from(std::initializer_list<float> values, const Shape& shape) {
    return from<float>(std::span<const float>(values.begin(), values.size()), shape);
}

template <detail::Element T> const T* Tensor::data() const {
    check(device().type() == DeviceType::cpu, ErrorKind::device, "data: the elements are on ", device(),
          "; use to(cpu_device) or to_vector()");
    check(dtype() == dtype_of<T>(), ErrorKind::dtype, "data: the tensor holds ", dtype(), ", asked for ",
          dtype_of<T>());
    return reinterpret_cast<const T*>(impl_->bytes());
}

#define MEZZO_INSTANTIATE(T)                                                          \
    template T Tensor::item<T>() const;                                               \
    template std::vector<T> Tensor::to_vector<T>() const;                             \
    template Tensor Tensor::from<T>(std::span<const T>, const Shape&, TensorOptions); \
    template const T* Tensor::data<T>() const;
#define MEZZO_DTYPE(name, T, ...) MEZZO_INSTANTIATE(T)
#include "mezzo/dtypes.def"
#undef MEZZO_DTYPE
#undef MEZZO_INSTANTIATE

// The other types of detail::HostNumber. std::int64_t is long or long long, and is an element type already.
using OtherLong = std::conditional_t<std::is_same_v<std::int64_t, long>, long long, long>;
#define MEZZO_INSTANTIATE(T)            \
    template T Tensor::item<T>() const; \
    template std::vector<T> Tensor::to_vector<T>() const;
MEZZO_INSTANTIATE(OtherLong)
MEZZO_INSTANTIATE(unsigned long)
MEZZO_INSTANTIATE(unsigned long long)
MEZZO_INSTANTIATE(unsigned)
MEZZO_INSTANTIATE(short)
MEZZO_INSTANTIATE(unsigned short)
MEZZO_INSTANTIATE(char)
#undef MEZZO_INSTANTIATE

namespace {

bool close(double a, double b, double rtol, double atol) {
    if (a == b) return true;  // infinities too
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    return std::isfinite(a) && std::isfinite(b) && std::fabs(a - b) <= atol + rtol * std::fabs(b);
}

// The difference is taken before anything is rounded to double.
bool close(std::int64_t a, std::int64_t b, double rtol, double atol) {
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    return static_cast<double>(a > b ? x - y : y - x) <= atol + rtol * std::fabs(static_cast<double>(b));
}

template <class T> bool all_close_as(const Tensor& a, const Tensor& b, double rtol, double atol) {
    const std::vector<T> x = a.to_vector<T>(), y = b.to_vector<T>();
    for (std::size_t i = 0; i < x.size(); ++i)
        if (!close(x[i], y[i], rtol, atol)) return false;
    return true;
}

}  // namespace

bool all_close(const Tensor& a, const Tensor& b, double rtol, double atol) {
    check(a.shape() == b.shape(), ErrorKind::shape, "all_close: shapes ", a.shape(), " and ", b.shape(),
          " differ");
    const bool integral = !has_exponent(a.dtype()) && !has_exponent(b.dtype());
    return integral ? all_close_as<std::int64_t>(a, b, rtol, atol) : all_close_as<double>(a, b, rtol, atol);
}

}  // namespace mezzo
