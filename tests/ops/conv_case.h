// Compares a convolution and its gradients, computed by the CPU's kernels, with loops in float64.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/tensor_impl.h"
#include "cpu/isa/isa.h"
#include "kernels/conv.h"
#include "mezzo/error.h"
#include "tests/support/kernels.h"

namespace conv_case {

using namespace mezzo;

struct Case {
    std::int64_t n = 1, h = 1, w = 1, c = 1, o = 1;
    Size2d kernel = 1, stride = 1, padding = 0, dilation = 1;
    std::int64_t groups = 1;
    Dtype dtype = float32;
    bool bias = false;
    double beta = 0;
    Dtype weight_grad = float32;  // with float64 operands: float64

    static std::int64_t size(std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                             std::int64_t dilation) {
        return (in + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
    }
    std::int64_t ho() const { return size(h, kernel.height, stride.height, padding.height, dilation.height); }
    std::int64_t wo() const { return size(w, kernel.width, stride.width, padding.width, dilation.width); }
    bool possible() const {
        return h + 2 * padding.height >= dilation.height * (kernel.height - 1) + 1 &&
               w + 2 * padding.width >= dilation.width * (kernel.width - 1) + 1;
    }
    kernels::ConvGeometry geometry() const { return {stride, padding, dilation, groups}; }
    Shape x_shape() const { return {n, h, w, c}; }
    Shape y_shape() const { return {n, ho(), wo(), o}; }
    Shape w_shape() const { return {o, kernel.height, kernel.width, c / groups}; }
    std::string text() const {
        std::string s = "x";
        for (const std::int64_t i : {n, h, w, c}) s += " " + std::to_string(i);
        s += ", weight";
        for (const std::int64_t i : {o, kernel.height, kernel.width}) s += " " + std::to_string(i);
        for (const Size2d& i : {stride, padding, dilation})
            s += ", " + std::to_string(i.height) + " " + std::to_string(i.width);
        return s + ", groups " + std::to_string(groups) + ", dtype " + std::to_string(int(dtype)) +
               ", beta " + std::to_string(beta);
    }
};

// Calls f(index in y, index in w, index in x) for every product of the convolution.
template <class F> void for_products(const Case& t, const F& f) {
    const std::int64_t cg = t.c / t.groups, og = t.o / t.groups;
    for (std::int64_t n = 0; n < t.n; ++n)
        for (std::int64_t i = 0; i < t.ho(); ++i)
            for (std::int64_t j = 0; j < t.wo(); ++j)
                for (std::int64_t r = 0; r < t.kernel.height; ++r)
                    for (std::int64_t s = 0; s < t.kernel.width; ++s) {
                        const std::int64_t h = i * t.stride.height - t.padding.height + r * t.dilation.height,
                                           w = j * t.stride.width - t.padding.width + s * t.dilation.width;
                        if (h < 0 || h >= t.h || w < 0 || w >= t.w) continue;
                        for (std::int64_t o = 0; o < t.o; ++o)
                            for (std::int64_t c = 0; c < cg; ++c)
                                f(((n * t.ho() + i) * t.wo() + j) * t.o + o,
                                  ((o * t.kernel.height + r) * t.kernel.width + s) * cg + c,
                                  ((n * t.h + h) * t.w + w) * t.c + o / og * cg + c);
                    }
}

// Sums, and the sums of the magnitudes of their terms.
struct Sums {
    std::vector<double> sum, size;
    explicit Sums(std::size_t n) : sum(n), size(n) {}
    void add(std::int64_t i, double x) {
        sum[std::size_t(i)] += x;
        size[std::size_t(i)] += std::fabs(x);
    }
};

inline std::vector<double> random(std::size_t n, unsigned seed, Dtype dtype) {
    std::mt19937 bits(seed);
    std::vector<double> values(n);
    for (double& v : values) v = double(bits() % 4001) / 2000.0 - 1.0;
    return Tensor::from<double>(values, {std::int64_t(n)}, {.dtype = dtype}).to_vector<double>();
}

// A tensor whose memory begins `shift` elements behind an aligned address.
inline Tensor tensor(const std::vector<double>& values, const Shape& shape, Dtype dtype, std::int64_t shift) {
    std::vector<double> all(std::size_t(shift), std::numeric_limits<double>::quiet_NaN());
    all.insert(all.end(), values.begin(), values.end());
    const Tensor whole = Tensor::from<double>(all, {std::int64_t(all.size())}, {.dtype = dtype});
    return make_tensor(whole->storage, shape, contiguous_strides(shape), shift, dtype);
}

// A result filled with NaN between guards; values() checks the guards.
struct Result {
    Tensor whole, y;
    static constexpr std::int64_t front = 3;

    Result(const Shape& shape, Dtype dtype, const std::vector<double>& old = {}) {
        std::vector<double> all(std::size_t(shape.numel() + 2 * front), -97.5);
        for (std::int64_t i = 0; i < shape.numel(); ++i)
            all[std::size_t(front + i)] =
                old.empty() ? std::numeric_limits<double>::quiet_NaN() : old[std::size_t(i)];
        whole = Tensor::from<double>(all, {std::int64_t(all.size())}, {.dtype = dtype});
        y = make_tensor(whole->storage, shape, contiguous_strides(shape), front, dtype);
    }
    std::vector<double> values() const {
        std::vector<double> all = whole.to_vector<double>();
        for (std::size_t i = 0; i < std::size_t(front); ++i)
            if (all[i] != -97.5 || all[all.size() - 1 - i] != -97.5) FAIL("the kernel wrote outside");
        return {all.begin() + front, all.end() - front};
    }
};

// Compares within the bound on the rounding of a float32 (float64) sum, plus one rounding to the result's
// dtype.
inline void compare(const std::string& what, const std::vector<double>& got, const Sums& want, double terms,
                    Dtype arithmetic, Dtype dtype) {
    const double unit = arithmetic == float64 ? 0x1p-53 : 0x1p-24, store = dtype_info(dtype).epsilon / 2;
    REQUIRE(got.size() == want.sum.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double bound = unit * (terms + 4) * want.size[i] + store * std::fabs(want.sum[i]) * 1.01 +
                             (dtype == float16 ? 0x1p-24 : 1e-30);
        if (!(std::fabs(got[i] - want.sum[i]) <= bound))
            FAIL(what << ": element " << i << " is " << got[i] << " instead of " << want.sum[i]);
    }
}

struct Operands {
    std::vector<double> x, w, g, b, old;
    explicit Operands(const Case& t)
        : x(random(std::size_t(t.x_shape().numel()), 1, t.dtype)),
          w(random(std::size_t(t.w_shape().numel()), 2, t.dtype)),
          g(random(std::size_t(t.y_shape().numel()), 3, t.dtype)),
          b(random(std::size_t(t.o), 4, t.dtype)),
          old(random(std::size_t(t.w_shape().numel()), 5, t.weight_grad)) {}
};

inline void check_forward(const Case& t, const Operands& v) {
    Sums want(v.g.size());
    if (t.bias)
        for (std::size_t i = 0; i < v.g.size(); ++i) want.add(std::int64_t(i), v.b[i % v.b.size()]);
    for_products(t, [&](std::int64_t y, std::int64_t w, std::int64_t x) {
        want.add(y, v.x[std::size_t(x)] * v.w[std::size_t(w)]);
    });
    const Result y(t.y_shape(), t.dtype);
    const Tensor in[] = {tensor(v.x, t.x_shape(), t.dtype, 1), tensor(v.w, t.w_shape(), t.dtype, 3),
                         t.bias ? tensor(v.b, {t.o}, t.dtype, 1) : Tensor()};
    test::cpu_kernel<kernels::Conv2d>(in, {.geometry = t.geometry()}, {&y.y, 1});
    const double terms = double(t.kernel.height * t.kernel.width * (t.c / t.groups) + 1);
    compare("conv2d", y.values(), want, terms, t.dtype, t.dtype);
}

inline void check_input_grad(const Case& t, const Operands& v) {
    Sums want(v.x.size());
    const std::vector<double> bias = random(t.bias ? std::size_t(t.c) : 0, 6, t.dtype);
    for (std::size_t i = 0; i < (t.bias ? v.x.size() : 0); ++i)
        want.add(std::int64_t(i), bias[i % bias.size()]);
    for_products(t, [&](std::int64_t y, std::int64_t w, std::int64_t x) {
        want.add(x, v.g[std::size_t(y)] * v.w[std::size_t(w)]);
    });
    const Result dx(t.x_shape(), t.dtype);
    const Tensor in[] = {tensor(v.g, t.y_shape(), t.dtype, 1), tensor(v.w, t.w_shape(), t.dtype, 3),
                         t.bias ? tensor(bias, {t.c}, t.dtype, 1) : Tensor()};
    test::cpu_kernel<kernels::Conv2dInputGrad>(in, {.geometry = t.geometry()}, {&dx.y, 1});
    const double terms = double(t.kernel.height * t.kernel.width * (t.o / t.groups) + 1);
    compare("conv2d_input_grad", dx.values(), want, terms, t.dtype, t.dtype);
}

inline void check_weight_grad(const Case& t, const Operands& v) {
    Sums want(v.w.size());
    if (t.beta != 0)
        for (std::size_t i = 0; i < v.w.size(); ++i) want.add(std::int64_t(i), t.beta * v.old[i]);
    for_products(t, [&](std::int64_t y, std::int64_t w, std::int64_t x) {
        want.add(w, v.g[std::size_t(y)] * v.x[std::size_t(x)]);
    });
    const Dtype dtype = t.dtype == float64 ? float64 : t.weight_grad;
    const Result dw(t.w_shape(), dtype, t.beta != 0 ? v.old : std::vector<double>());
    const Tensor in[] = {tensor(v.g, t.y_shape(), t.dtype, 1), tensor(v.x, t.x_shape(), t.dtype, 3)};
    test::cpu_kernel<kernels::Conv2dWeightGrad>(
        in, {.geometry = t.geometry(), .kernel_size = t.kernel, .beta = t.beta}, {&dw.y, 1});
    compare("conv2d_weight_grad", dw.values(), want, double(t.n * t.ho() * t.wo() + 1), t.dtype, dtype);
}

inline void check(const Case& t) {
    INFO(t.text());
    const Operands values(t);
    check_forward(t, values);
    check_input_grad(t, values);
    check_weight_grad(t, values);
}

// Calls f for every instruction set that the processor has.
template <class F> void for_isas(const F& f) {
    struct Release {
        ~Release() { cpu::release_isa(); }
    } release;
    for (const cpu::Isa isa : cpu::all_isas) {
        if (isa > cpu::best_isa()) continue;
        cpu::force_isa(isa);
        INFO(cpu::name(isa));
        f();
    }
}

inline constexpr Dtype dtypes[] = {float16, bfloat16, float32, float64};

}  // namespace conv_case
