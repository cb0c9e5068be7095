// Tensors made from nothing. They run kernels directly: there is no input, so nothing to cast and no history.
#include <utility>
#include <vector>

#include "core/philox.h"
#include "core/random.h"
#include "core/tensor_impl.h"
#include "ops/kernel_for.h"

namespace mezzo {
namespace {

constexpr Kernels fill_kernels{"full", MEZZO_KERNELS(fill)};
constexpr Kernels arange_kernels{"arange", MEZZO_KERNELS(arange)};
constexpr Kernels uniform_kernels{"rand", MEZZO_KERNELS(random_uniform)};
constexpr Kernels normal_kernels{"randn", MEZZO_KERNELS(random_normal)};
constexpr Kernels integer_kernels{"randint", MEZZO_KERNELS(random_int)};

// A new tensor whose elements the kernel writes.
Tensor make(const Kernels& kernels, const Attrs& at, const Shape& shape, TensorOptions options) {
    const bool requires_grad = std::exchange(options.requires_grad, false);
    const Tensor result = empty(shape, options);
    if (result.numel() != 0) kernels({}, at, result);
    if (requires_grad) result.set_requires_grad();
    return result;
}

// Four elements share one Philox block.
Tensor make_random(const Kernels& kernels, double alpha, double beta, const Shape& shape,
                   TensorOptions options) {
    const bool requires_grad = std::exchange(options.requires_grad, false);
    const Tensor result = empty(shape, options);  // a failure here must leave the stream where it was
    if (result.numel() != 0) {
        const RandomState start = reserve_random(static_cast<std::uint64_t>(result.numel() + 3) / 4);
        const Attrs at{.alpha = alpha, .beta = beta, .seed = start.seed, .offset = start.offset};
        kernels({}, at, result);
    }
    if (requires_grad) result.set_requires_grad();
    return result;
}

void check_floating(const char* op, Dtype dtype) {
    check(is_floating(dtype), ErrorKind::dtype, op, ": needs a floating dtype, got ", dtype,
          "; use randint for integers");
}

}  // namespace

Tensor full(const Shape& shape, double value, TensorOptions options) {
    return make(fill_kernels, {.alpha = value}, shape, options);
}

Tensor zeros(const Shape& shape, TensorOptions options) { return full(shape, 0, options); }
Tensor ones(const Shape& shape, TensorOptions options) { return full(shape, 1, options); }
Tensor scalar(double value, TensorOptions options) { return full({}, value, options); }

Tensor zeros_like(const Tensor& x) { return zeros(x.shape(), {.dtype = x.dtype(), .device = x.device()}); }
Tensor ones_like(const Tensor& x) { return ones(x.shape(), {.dtype = x.dtype(), .device = x.device()}); }

Tensor arange(std::int64_t end, TensorOptions options) {
    check(end >= 0, ErrorKind::value, "arange: end is ", end, "; it must not be negative");
    check(options.dtype != boolean, ErrorKind::dtype, "arange: boolean cannot count");
    return make(arange_kernels, {}, {end}, options);
}

Tensor rand(const Shape& shape, TensorOptions options) {
    check_floating("rand", options.dtype);
    return make_random(uniform_kernels, 0, 1, shape, options);
}

Tensor randn(const Shape& shape, TensorOptions options) {
    check_floating("randn", options.dtype);
    return make_random(normal_kernels, 0, 1, shape, options);
}

// An element is made from one 32-bit word, and its bounds travel as doubles.
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, TensorOptions options) {
    constexpr std::int64_t exact = std::int64_t(1) << 53;
    check(low >= -exact && high <= exact && low < high && high - low <= std::int64_t(1) << 32,
          ErrorKind::value, "randint: cannot draw from [", low, ", ", high,
          "); it needs low < high, at most 2^32 values, and bounds within 2^53");
    return make_random(integer_kernels, static_cast<double>(low), static_cast<double>(high), shape, options);
}

// Fisher-Yates (Durstenfeld's form) on the host with the words of the stream. Scaling a 32-bit word to [0, i]
// by multiplication (Lemire, "Fast random integer generation in an interval", 2019) biases it by less than n
// / 2^32.
Tensor randperm(std::int64_t n, TensorOptions options) {
    check(n >= 0 && n <= INT32_MAX, ErrorKind::value, "randperm: n is ", n, "; it must be in [0, 2^31)");
    std::vector<std::int64_t> values(static_cast<std::size_t>(n));
    const RandomState start = reserve_random(static_cast<std::uint64_t>(n + 3) / 4);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
    PhiloxWords words{};
    for (std::size_t used = 0, i = values.size(); i-- > 1; ++used) {
        if (used % 4 == 0) words = philox(start.seed, start.offset + used / 4);
        std::swap(values[i], values[std::uint64_t(words.v[used % 4]) * (i + 1) >> 32]);
    }
    return Tensor::from<std::int64_t>(std::span<const std::int64_t>(values), {n}, options);
}

}  // namespace mezzo
