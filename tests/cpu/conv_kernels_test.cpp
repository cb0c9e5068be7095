// The CPU's convolution kernels against loops in float64, for every instruction set and dtype.
#include "tests/ops/conv_case.h"

#include <catch2/catch.hpp>

#include "cpu/parallel.h"

using namespace conv_case;

namespace {

// Checks the case in all dtypes.
void check_dtypes(Case t) {
    for (const Dtype dtype : dtypes) {
        t.dtype = dtype;
        check(t);
    }
}

struct Threads {
    explicit Threads(int n) : before(cpu::num_threads()) { cpu::set_num_threads(n); }
    ~Threads() { cpu::set_num_threads(before); }
    int before;
};

// The bytes of y, dx and dw.
std::vector<std::vector<double>> results(const Case& t) {
    const Operands v(t);
    const Result y(t.y_shape(), t.dtype), dx(t.x_shape(), t.dtype), dw(t.w_shape(), float32);
    const Tensor x = tensor(v.x, t.x_shape(), t.dtype, 0), w = tensor(v.w, t.w_shape(), t.dtype, 0),
                 g = tensor(v.g, t.y_shape(), t.dtype, 0);
    const Tensor forward[] = {x, w}, backward[] = {g, w}, by_weight[] = {g, x};
    test::cpu_kernel<kernels::Conv2d>(forward, {t.geometry()}, {&y.y, 1});
    test::cpu_kernel<kernels::Conv2dInputGrad>(backward, {t.geometry()}, {&dx.y, 1});
    test::cpu_kernel<kernels::Conv2dWeightGrad>(by_weight, {t.geometry()}, {&dw.y, 1});
    return {y.values(), dx.values(), dw.values()};
}

}  // namespace

TEST_CASE("conv kernels: geometries", "[conv]") {
    const Case cases[] = {
        {.n = 2, .h = 5, .w = 6, .c = 3, .o = 4, .kernel = 3, .padding = 1, .bias = true},
        {.n = 2, .h = 4, .w = 3, .c = 8, .o = 5, .kernel = 1, .bias = true},
        {.n = 1, .h = 7, .w = 9, .c = 5, .o = 2, .kernel = {5, 3}, .padding = {1, 2}, .beta = 1},
        {.n = 2, .h = 8, .w = 7, .c = 4, .o = 6, .kernel = 3, .stride = 2, .padding = 1, .beta = 0.5},
        {.n = 1, .h = 9, .w = 8, .c = 2, .o = 3, .kernel = {2, 3}, .stride = {3, 2}, .padding = {0, 1}},
        {.n = 2, .h = 6, .w = 6, .c = 7, .o = 1, .kernel = 1, .stride = 2, .bias = true},
        {.n = 1, .h = 5, .w = 5, .c = 3, .o = 2, .kernel = 2, .stride = 4},
        {.n = 1, .h = 9, .w = 9, .c = 2, .o = 3, .kernel = 3, .stride = 2, .padding = 2, .dilation = 2},
        {.n = 2, .h = 6, .w = 5, .c = 6, .o = 4, .kernel = 3, .padding = 1, .groups = 2, .bias = true},
        {.n = 2, .h = 6, .w = 5, .c = 5, .o = 5, .kernel = 3, .padding = 1, .groups = 5, .bias = true},
        {.n = 1, .h = 6, .w = 5, .c = 19, .o = 19, .kernel = 3, .stride = 2, .padding = 1, .groups = 19},
        {.n = 1, .h = 6, .w = 5, .c = 3, .o = 6, .kernel = 3, .padding = 1, .groups = 3, .beta = 2},
        {.n = 3, .h = 4, .w = 4, .c = 3, .o = 7, .kernel = 4},
        {.n = 1, .h = 2, .w = 2, .c = 2, .o = 2, .kernel = 3, .padding = 3},
        {.n = 1, .h = 1, .w = 40, .c = 16, .o = 17, .kernel = {1, 7}, .padding = {0, 3}},
    };
    for_isas([&] {
        for (const Case& t : cases) check_dtypes(t);
    });
}

TEST_CASE("conv kernels: no images, no channels, no pixels", "[conv]") {
    for_isas([] {
        check_dtypes({.n = 0, .h = 3, .w = 3, .c = 2, .o = 3, .kernel = 3, .padding = 1, .bias = true});
        check_dtypes({.n = 0, .h = 3, .w = 3, .c = 2, .o = 3, .kernel = 3, .beta = 2});
        check_dtypes({.n = 2, .h = 3, .w = 3, .c = 0, .o = 3, .kernel = 3, .bias = true});
        check_dtypes({.n = 2, .h = 3, .w = 3, .c = 2, .o = 0, .kernel = 3});
        check_dtypes({.n = 2, .h = 0, .w = 0, .c = 2, .o = 3, .kernel = 1});
        check_dtypes({.n = 2, .h = 0, .w = 2, .c = 2, .o = 3, .kernel = 1, .padding = 1});
    });
}

TEST_CASE("conv kernels: all small sizes", "[conv]") {
    for_isas([] {
        for (std::int64_t h = 1; h <= 9; ++h)
            for (std::int64_t w = 1; w <= 9; ++w)
                for (const std::int64_t stride : {1, 2}) {
                    Case t{
                        .n = 1, .h = h, .w = w, .c = 3, .o = 5, .kernel = 3, .stride = stride, .padding = 1};
                    check(t);
                    t.kernel = {2, 1}, t.padding = 0;
                    if (t.possible()) check(t);
                }
    });
}

TEST_CASE("conv kernels: rows that end a panel at every place", "[conv]") {
    for_isas([] {
        for (std::int64_t w = 1; w <= 33; ++w)
            for (const Dtype dtype : {float32, float16, bfloat16})
                check({.n = 1,
                       .h = 2,
                       .w = w,
                       .c = 32,
                       .o = 16,
                       .kernel = {1, 3},
                       .padding = {0, 1},
                       .dtype = dtype});
    });
}

TEST_CASE("conv kernels: channels around vectors, pairs and tiles", "[conv]") {
    for_isas([] {
        for (const std::int64_t c : {1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96})
            for (const std::int64_t o : {1, 9, 33, 64, 96})
                for (const Dtype dtype : {float32, bfloat16, float16}) {
                    check(
                        {.n = 1, .h = 4, .w = 5, .c = c, .o = o, .kernel = 3, .padding = 1, .dtype = dtype});
                    if (c % 32 == 0)
                        check({.n = 2,
                               .h = 3,
                               .w = 4,
                               .c = c,
                               .o = o,
                               .kernel = 1,
                               .stride = 2,
                               .dtype = dtype,
                               .bias = true});
                }
    });
}

TEST_CASE("conv kernels: few channels", "[conv]") {
    const Case geometries[] = {
        {.n = 3, .h = 6, .w = 17, .kernel = 3, .padding = 1, .bias = true},
        {.n = 2, .h = 11, .w = 18, .kernel = {5, 4}, .stride = {2, 3}, .padding = {2, 0}},
        {.n = 2, .h = 9, .w = 30, .kernel = {2, 11}, .stride = {3, 4}, .padding = {1, 5}, .bias = true},
        {.n = 1, .h = 12, .w = 12, .kernel = 4, .stride = 4},
        {.n = 1, .h = 7, .w = 20, .kernel = {3, 2}, .padding = {3, 4}, .dilation = {2, 1}, .beta = 1},
        {.n = 1, .h = 1, .w = 40, .kernel = {1, 9}, .stride = {1, 2}, .padding = {0, 4}},
        {.n = 1, .h = 5, .w = 1, .kernel = {3, 2}, .padding = 2},
    };
    for_isas([&] {
        for (Case t : geometries)
            for (const auto& [c, o] : {std::pair(1, 33), {3, 16}, {8, 3}}) {
                t.c = c, t.o = o;
                check_dtypes(t);
            }
        // More rows of terms than are added up at once, of one image and of several.
        for (const Dtype dtype : {float32, bfloat16}) {
            const Case wide{.n = 1, .h = 77, .w = 601, .c = 3, .o = 5, .kernel = 3, .stride = {2, 1}};
            for (Case t : {wide, Case{.n = 90, .h = 20, .w = 22, .c = 2, .o = 4, .kernel = 4}}) {
                t.padding = 1, t.dtype = dtype, t.bias = true;
                check(t);
            }
        }
    });
}

TEST_CASE("conv kernels: groups of few channels", "[conv]") {
    for_isas([] {
        for (const std::int64_t c : {1, 2, 3, 16})
            for (const std::int64_t o : {1, 2, 4, 5, 8, 15})
                for (const std::int64_t groups : {2, 9})
                    for (const Dtype dtype : {float32, bfloat16, float16}) {
                        Case t{.n = 2,
                               .h = 4,
                               .w = 9,
                               .c = c * groups,
                               .o = o * groups,
                               .kernel = 3,
                               .padding = 1};
                        t.groups = groups, t.dtype = dtype, t.bias = c == 1, t.beta = o == 4 ? 0.5 : 0;
                        check(t);
                        t.stride = 2, t.kernel = {1, 2}, t.padding = {0, 2}, t.dilation = {1, 3};
                        if (groups == 9) check(t);
                    }
        for (const Dtype dtype : {float32, bfloat16}) {
            // Rows of two strips, more rows than a thread copies, and taps apart from each other.
            check({.n = 1,
                   .h = 1,
                   .w = 300,
                   .c = 6,
                   .o = 6,
                   .kernel = {1, 4},
                   .padding = {0, 3},
                   .groups = 3,
                   .dtype = dtype});
            check({.n = 1,
                   .h = 70,
                   .w = 30,
                   .c = 40,
                   .o = 40,
                   .kernel = 3,
                   .padding = 1,
                   .groups = 40,
                   .dtype = dtype});
            // Pixels inside, whose taps are the image's own, and borders of several widths.
            for (const std::int64_t padding : {0, 1, 2, 5})
                for (const std::int64_t stride : {1, 2, 3})
                    check({.n = 2,
                           .h = 11,
                           .w = 105,
                           .c = 16,
                           .o = 16,
                           .kernel = {3, 2},
                           .stride = {1, stride},
                           .padding = padding,
                           .dilation = {2, 3},
                           .groups = 16,
                           .dtype = dtype});
            check({.n = 1,
                   .h = 3,
                   .w = 290,
                   .c = 16,
                   .o = 16,
                   .kernel = {4, 2},
                   .padding = {3, 0},
                   .groups = 16,
                   .dtype = dtype});
            check({.n = 2,
                   .h = 9,
                   .w = 11,
                   .c = 4,
                   .o = 4,
                   .kernel = 3,
                   .padding = 4,
                   .dilation = 4,
                   .groups = 2,
                   .dtype = dtype});
        }
    });
}

TEST_CASE("conv kernels: groups in vectors of the image itself", "[conv]") {
    for_isas([] {
        for (const Dtype dtype : {float32, bfloat16}) {
            // Vectors of several whole groups.
            for (const std::int64_t groups : {4, 8, 16})
                for (const std::int64_t stride : {1, 2})
                    check({.n = 2,
                           .h = 12,
                           .w = 21,
                           .c = 32,
                           .o = 32,
                           .kernel = {3, 5},
                           .stride = stride,
                           .padding = {1, 2},
                           .groups = groups,
                           .dtype = dtype,
                           .bias = true});
            // Two blocks of channels, and more rows at both sides than are read at once.
            for (const std::int64_t stride : {1, 2})
                check({.n = 1,
                       .h = 70,
                       .w = 9,
                       .c = 272,
                       .o = 272,
                       .kernel = {5, 3},
                       .stride = stride,
                       .padding = {2, 1},
                       .groups = 272,
                       .dtype = dtype,
                       .bias = true});
        }
    });
}

TEST_CASE("conv kernels: depthwise results that no cache holds", "[conv]") {
    for_isas([] {
        const Shape shape{1, 725, 724, 16};
        const Tensor x = ones(shape), w = ones({16, 3, 3, 1}), y = empty(shape);
        const kernels::ConvGeometry geometry{.stride = 1, .padding = 1, .dilation = 1, .groups = 16};
        const Tensor forward[] = {x, w};
        test::cpu_kernel<kernels::Conv2d>(forward, {geometry}, {&y, 1});
        const auto* const values = reinterpret_cast<const float*>(y->bytes());
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < y->numel; ++i) {
            const std::int64_t row = i / 16 / 724, column = i / 16 % 724;
            const float taps = float((2 + (row > 0 && row < 724)) * (2 + (column > 0 && column < 723)));
            wrong += values[i] != taps;
        }
        CHECK(wrong == 0);
    });
}

TEST_CASE("conv kernels: windows longer than a block of steps", "[conv]") {
    for_isas([] {
        for (const Dtype dtype : dtypes) {
            check({.n = 1, .h = 4, .w = 5, .c = 320, .o = 17, .kernel = 3, .padding = 1, .dtype = dtype});
            check({.n = 1, .h = 4, .w = 3, .c = 9, .o = 320, .kernel = 3, .padding = 1, .dtype = dtype});
            check({.n = 1, .h = 4, .w = 3, .c = 2080, .o = 9, .kernel = {2, 1}, .dtype = dtype});
        }
    });
}

TEST_CASE("conv kernels: more pixels than a block", "[conv]") {
    for_isas([] {
        for (const Dtype dtype : {float32, bfloat16})
            check({.n = 3,
                   .h = 31,
                   .w = 33,
                   .c = 8,
                   .o = 9,
                   .kernel = 3,
                   .padding = 1,
                   .dtype = dtype,
                   .beta = 1});
    });
}

TEST_CASE("conv kernels: windows of many chunks", "[conv]") {
    for_isas([] {
        for (const Dtype dtype : {float32, bfloat16})
            for (const Dtype weight_grad : {float32, bfloat16})
                check({.n = 15,
                       .h = 32,
                       .w = 33,
                       .c = 16,
                       .o = 5,
                       .kernel = 3,
                       .padding = 1,
                       .dtype = dtype,
                       .beta = 1,
                       .weight_grad = weight_grad});
    });
}

TEST_CASE("conv kernels: numbers of images around pairs of them", "[conv]") {
    for_isas([] {
        for (const std::int64_t n : {2, 3, 4, 8, 9, 11})
            for (const std::int64_t c : {8, 9, 16, 40}) {
                Case t{.n = n, .h = 6, .w = 5, .c = c, .o = 7, .kernel = 3, .padding = 1, .dtype = bfloat16};
                t.beta = c == 9 ? 0.5 : 0;
                check(t);
                t.o = 70, t.stride = 2, t.weight_grad = bfloat16;
                check(t);
                t.c *= 2, t.groups = 2, t.kernel = {1, 3}, t.padding = {0, 2}, t.dilation = {1, 2};
                check(t);
            }
        // More products than are paired at once.
        for (const Dtype weight_grad : {float32, bfloat16}) {
            const Case t{.n = 11,
                         .h = 64,
                         .w = 65,
                         .c = 24,
                         .o = 9,
                         .kernel = 3,
                         .padding = 1,
                         .dtype = bfloat16,
                         .beta = 1,
                         .weight_grad = weight_grad};
            check_weight_grad(t, Operands(t));
        }
    });
}

TEST_CASE("conv kernels: a weight gradient in 16 bit is rounded once", "[conv]") {
    for_isas([] {
        for (const Dtype dtype : {float16, bfloat16})
            for (const double beta : {0.0, 1.0, -0.5})
                check({.n = 3,
                       .h = 40,
                       .w = 40,
                       .c = 4,
                       .o = 9,
                       .kernel = 3,
                       .padding = 1,
                       .dtype = dtype,
                       .beta = beta,
                       .weight_grad = dtype});
    });
}

TEST_CASE("conv kernels: strided operands", "[conv]") {
    const Case t{.n = 2, .h = 4, .w = 5, .c = 3, .o = 4, .kernel = 3, .padding = 1};
    const Operands v(t);
    const Tensor x = tensor(v.x, t.x_shape(), float32, 0), w = tensor(v.w, t.w_shape(), float32, 0);
    // [N, C, H, W] in memory, seen as [N, H, W, C]
    const Tensor planar = Tensor::from<double>(v.x, {2, 3, 4, 5});
    const Tensor view = make_tensor(planar->storage, t.x_shape(), {60, 5, 1, 20}, 0, float32);
    view->contiguous = false;
    test::cpu_kernel<kernels::CopyInto>({&x, 1}, {}, {&view, 1});
    const Tensor dense[] = {x, w}, strided[] = {view, w};
    const Result a(t.y_shape(), float32), b(t.y_shape(), float32);
    test::cpu_kernel<kernels::Conv2d>(dense, {t.geometry()}, {&a.y, 1});
    test::cpu_kernel<kernels::Conv2d>(strided, {t.geometry()}, {&b.y, 1});
    CHECK(a.values() == b.values());
}

TEST_CASE("conv kernels: infinities and NaN stay where they are", "[conv]") {
    // An infinity or NaN in group 0, whose channels do not fill a vector or a tile.
    constexpr std::int64_t size = 8;
    for_isas([] {
        for (const Dtype dtype : dtypes)
            for (const std::int64_t groups : {1, 2})
                for (const std::int64_t c : {3, 8, 16, 24, 32}) {
                    const Case t{.n = 1,
                                 .h = size,
                                 .w = size,
                                 .c = c * groups,
                                 .o = 16 * groups,
                                 .kernel = 3,
                                 .padding = 1,
                                 .groups = groups,
                                 .dtype = dtype};
                    Operands v(t);
                    v.x[std::size_t((3 * size + 4) * c * groups + 2)] =
                        std::numeric_limits<double>::infinity();
                    v.x[std::size_t((6 * size + 6) * c * groups + c - 1)] =
                        std::numeric_limits<double>::quiet_NaN();
                    const Result y(t.y_shape(), dtype);
                    const Tensor in[] = {tensor(v.x, t.x_shape(), dtype, 0),
                                         tensor(v.w, t.w_shape(), dtype, 0)};
                    test::cpu_kernel<kernels::Conv2d>(in, {t.geometry()}, {&y.y, 1});
                    const std::vector<double> got = y.values();
                    for (std::int64_t i = 0; i < size; ++i)
                        for (std::int64_t j = 0; j < size; ++j)
                            for (std::int64_t o = 0; o < t.o; ++o) {
                                const bool near = (std::abs(i - 3) <= 1 && std::abs(j - 4) <= 1) ||
                                                  (std::abs(i - 6) <= 1 && std::abs(j - 6) <= 1);
                                const double value = got[std::size_t((i * size + j) * t.o + o)];
                                if (std::isfinite(value) == (near && o < 16))
                                    FAIL(t.text() << ", pixel " << i << " " << j << ", channel " << o
                                                  << " is " << value);
                            }
                }
    });
}

TEST_CASE("conv kernels: the number of threads changes no bit", "[conv]") {
    const Case cases[] = {
        {.n = 2, .h = 17, .w = 19, .c = 24, .o = 40, .kernel = 3, .padding = 1},
        {.n = 2, .h = 16, .w = 16, .c = 64, .o = 64, .kernel = 3, .stride = 2, .padding = 1},
        {.n = 2, .h = 32, .w = 32, .c = 64, .o = 64, .kernel = 1},
        {.n = 1, .h = 4, .w = 4, .c = 256, .o = 128, .kernel = 3, .padding = 1},
        {.n = 15, .h = 32, .w = 33, .c = 16, .o = 5, .kernel = 3, .padding = 1},
        {.n = 11, .h = 64, .w = 65, .c = 16, .o = 5, .kernel = 3, .padding = 1},
        {.n = 2, .h = 12, .w = 12, .c = 64, .o = 64, .kernel = 3, .padding = 1, .groups = 64},
        {.n = 2, .h = 12, .w = 12, .c = 32, .o = 64, .kernel = 3, .padding = 1, .groups = 2},
        {.n = 2, .h = 31, .w = 32, .c = 48, .o = 48, .kernel = 3, .padding = 1, .groups = 12},
        {.n = 1, .h = 3, .w = 3, .c = 3, .o = 2, .kernel = 3, .padding = 1},
        {.n = 2, .h = 40, .w = 45, .c = 3, .o = 20, .kernel = 5, .stride = 2, .padding = 2},
        {.n = 2, .h = 31, .w = 32, .c = 64, .o = 64, .kernel = 3, .padding = 1, .groups = 8},
    };
    for_isas([&] {
        for (Case t : cases)
            for (const Dtype dtype : {float32, bfloat16, float16}) {
                t.dtype = dtype;
                INFO(t.text());
                const auto one = [&] {
                    const Threads threads(1);
                    return results(t);
                }();
                for (const int n : {2, 3, 7}) {
                    const Threads threads(n);
                    if (results(t) != one) FAIL(n << " threads");
                }
            }
    });
}
