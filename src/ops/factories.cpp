// Functions that make new tensors. They run kernels directly: without inputs there is nothing for autocast to
// convert and nothing to record.
#include <utility>
#include <vector>

#include "core/enumerators.h"
#include "core/memory/memory_error.h"
#include "core/philox.h"
#include "core/random_offset.h"
#include "core/tensor_impl.h"
#include "kernels/copy.h"
#include "kernels/dispatch.h"
#include "kernels/random.h"
#include "ops/common.h"

namespace mezzo {
namespace {

constinit const KernelOf<kernels::Fill> fill_kernel{"full"};
constinit const KernelOf<kernels::Arange> arange_kernel;
constinit const KernelOf<kernels::RandomUniform> uniform_kernel{"rand"};
constinit const KernelOf<kernels::RandomNormal> normal_kernel{"randn"};
constinit const KernelOf<kernels::RandomInt> integer_kernel{"randint"};

// A new tensor whose elements the kernel writes.
template <class A> Tensor make(const KernelOf<A>& kernel, const std::type_identity_t<A>& at,
                               const Shape& shape, TensorOptions options) {
    const bool requires_grad = std::exchange(options.requires_grad, false);
    const Tensor result = empty(shape, options);
    if (result.numel() != 0) kernel({}, at, result);
    if (requires_grad) result.set_requires_grad();
    return result;
}

// Four elements share one Philox block.
template <class A> Tensor make_random(const KernelOf<A>& kernel, std::type_identity_t<A> at,
                                      const Shape& shape, TensorOptions options) {
    const bool requires_grad = std::exchange(options.requires_grad, false);
    const Tensor result = empty(shape, options);
    if (result.numel() != 0)
        with_random(static_cast<std::uint64_t>(result.numel() + 3) / 4, [&](const RandomState& stream) {
            at.stream = stream;
            kernel({}, at, result);
        });
    if (requires_grad) result.set_requires_grad();
    return result;
}

void check_floating(const char* op, Dtype dtype) {
    check_computes(op, dtype);
    check(is_floating(dtype), ErrorKind::dtype, op, ": needs a floating dtype, got ", dtype,
          "; use randint for integers");
}

// Throws unless the dtype holds the bounds: integers beyond its range would become others, or infinity.
void check_holds(const char* op, Dtype dtype, std::int64_t low, std::int64_t high) {
    check_dtype(op, dtype);
    check_computes(op, dtype);
    const DtypeInfo& info = dtype_info(dtype);
    const double least = dtype == uint8 || dtype == boolean ? 0 : -info.max - 1;
    check(double(low) >= least && double(high) <= info.max, ErrorKind::value, op, ": ", dtype,
          " cannot hold the integers from ", low, " to ", high);
}

}  // namespace

Tensor full(const Shape& shape, Scalar value, TensorOptions options) {
    check_dtype("full", options.dtype);
    check_value("full", "value", value, options.dtype);
    return make(fill_kernel, {.value = element_value(value, options.dtype)}, shape, options);
}

Tensor zeros(const Shape& shape, TensorOptions options) { return full(shape, 0, options); }
Tensor ones(const Shape& shape, TensorOptions options) { return full(shape, 1, options); }
Tensor scalar(Scalar value, TensorOptions options) { return full({}, value, options); }

Tensor zeros_like(const Tensor& x) { return zeros(x.shape(), {.dtype = x.dtype(), .device = x.device()}); }
Tensor ones_like(const Tensor& x) { return ones(x.shape(), {.dtype = x.dtype(), .device = x.device()}); }

Tensor full_like(const Tensor& x, Scalar value) {
    return full(x.shape(), value, {.dtype = x.dtype(), .device = x.device()});
}
Tensor rand_like(const Tensor& x) { return rand(x.shape(), {.dtype = x.dtype(), .device = x.device()}); }
Tensor randn_like(const Tensor& x) { return randn(x.shape(), {.dtype = x.dtype(), .device = x.device()}); }
Tensor randint_like(const Tensor& x, std::int64_t low, std::int64_t high) {
    return randint(low, high, x.shape(), {.dtype = x.dtype(), .device = x.device()});
}

Tensor arange(std::int64_t end, IntegerOptions options) {
    check(end >= 0, ErrorKind::value, "arange: end is ", end, "; it must not be negative");
    check_dtype("arange", options.dtype);
    check_computes("arange", options.dtype);
    check(options.dtype != boolean, ErrorKind::dtype, "arange: boolean cannot count");
    return make(arange_kernel, {}, {end}, options);
}

Tensor rand(const Shape& shape, TensorOptions options) {
    check_dtype("rand", options.dtype);
    check_floating("rand", options.dtype);
    return make_random(uniform_kernel, {}, shape, options);
}

Tensor randn(const Shape& shape, TensorOptions options) {
    check_dtype("randn", options.dtype);
    check_floating("randn", options.dtype);
    return make_random(normal_kernel, {}, shape, options);
}

// At most 2^32 values, because an element is made from one 32-bit word; bounds within 2^53, which a float64
// result holds exactly.
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, IntegerOptions options) {
    constexpr std::int64_t exact = std::int64_t(1) << 53;
    check(low >= -exact && high <= exact && low < high && high - low <= std::int64_t(1) << 32,
          ErrorKind::value, "randint: cannot draw from [", low, ", ", high,
          "); it needs low < high, at most 2^32 values, and bounds within 2^53");
    check_holds("randint", options.dtype, low, high - 1);
    return make_random(integer_kernel, {.low = low, .high = high}, shape, options);
}

// Fisher-Yates (Durstenfeld's form) on the host with the words of the stream. Scaling a 32-bit word to [0, i]
// by multiplication (Lemire, "Fast random integer generation in an interval", 2019) biases it by less than n
// / 2^32.
Tensor randperm(std::int64_t n, IntegerOptions options) {
    check(n >= 0 && n <= INT32_MAX, ErrorKind::value, "randperm: n is ", n, "; it must be in [0, 2^31)");
    check_holds("randperm", options.dtype, 0, n - 1);
    std::vector<std::int32_t> values = or_memory_error(
        "randperm", [&] { return std::vector<std::int32_t>(static_cast<std::size_t>(n)); }, "for ", n,
        " indices");
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i);
    return with_random(static_cast<std::uint64_t>(n + 3) / 4, [&](const RandomState& start) {
        PhiloxWords words{};
        for (std::size_t used = 0, i = values.size(); i-- > 1; ++used) {
            if (used % 4 == 0) words = philox(start.seed, start.offset + used / 4);
            std::swap(values[i], values[std::uint64_t(words.v[used % 4]) * (i + 1) >> 32]);
        }
        return Tensor::from<std::int32_t>(std::span<const std::int32_t>(values), {n}, options);
    });
}

}  // namespace mezzo
