// Loops over rows of 16-bit elements, running sums and conversions of float64 on every instruction set, for
// lengths around those of vectors.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/round_to_odd.h"
#include "cpu/elementwise/convert.h"
#include "cpu/elementwise/loops.h"
#include "cpu/isa/isa.h"

using namespace mezzo;
using namespace mezzo::cpu;

namespace {

template <class F> void on_each_set(const F& f) {
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512})
        if (isa <= best_isa()) {
            CAPTURE(name(isa));
            f(loops_of(isa));
        }
}

// Multiples of 1/8 below 2, whose sums are exact.
template <class T> std::vector<T> eighths(std::int64_t n) {
    std::mt19937 bits(3);
    std::vector<T> x;
    for (std::int64_t i = 0; i < n; ++i) x.push_back(T(float(int(bits() % 31) - 15) / 8));
    return x;
}
template <class T> double number(T x) { return double(float(x)); }

template <class T> void check_narrow(Dtype dtype) {
    const int type = index_16bit(dtype);
    const std::vector<T> x = eighths<T>(40000);
    on_each_set([&](const Loops& loops) {
        for (const std::int64_t n : {1, 3, 4, 7, 8, 15, 16, 17, 63, 64, 100, 1024, 1041, 2500}) {
            CAPTURE(n);
            const std::int64_t rows = 11;
            std::vector<double> sums(std::size_t(rows), -1), expected(sums.size(), 0);
            for (std::int64_t i = 0; i < rows * n; ++i)
                expected[std::size_t(i / n)] += number(x[std::size_t(i)]);
            loops.row_sums16[type](sums.data(), x.data(), rows, n);
            CHECK(sums == expected);
            const std::int64_t stride = n + 5;
            std::vector<double> columns(std::size_t(n), 0.5), wanted = columns;
            for (std::int64_t i = 0; i < rows; ++i)
                for (std::int64_t j = 0; j < n; ++j)
                    wanted[std::size_t(j)] += number(x[std::size_t(i * stride + j)]);
            loops.add16_to_double[type](columns.data(), x.data(), rows, stride, n);
            CHECK(columns == wanted);
            std::vector<T> y(static_cast<std::size_t>(n));
            loops.unary16[int(UnaryOp::relu)][type](y.data(), x.data(), n, 0, 0);
            bool equal = true;
            for (std::size_t i = 0; i < y.size(); ++i) equal &= number(y[i]) == std::fmax(number(x[i]), 0.0);
            CHECK(equal);
        }
    });
}

template <class T> void check_running_sums(const RealLoops<T>& loops) {
    const std::vector<T> x = eighths<T>(1100);
    for (const std::int64_t n : {0, 1, 3, 4, 5, 7, 8, 9, 16, 31, 1024, 1033}) {
        CAPTURE(n);
        for (const bool reverse : {false, true}) {
            std::vector<T> y(static_cast<std::size_t>(n)), expected = y;
            double sum = 0.25;
            for (std::int64_t j = 0; j < n; ++j) {
                const auto i = std::size_t(reverse ? n - 1 - j : j);
                sum += double(x[i]);
                expected[i] = T(sum);
            }
            CHECK(loops.running_sum[reverse](y.data(), x.data(), n, 0.25) == sum);
            CHECK(y == expected);
        }
    }
}

}  // namespace

TEST_CASE("sums of 16-bit rows and columns, and relu", "[cpu_loops]") {
    check_narrow<float16_t>(float16);
    check_narrow<bfloat16_t>(bfloat16);
}

TEST_CASE("running sums in both directions", "[cpu_loops]") {
    on_each_set([](const Loops& loops) {
        check_running_sums(loops.f32);
        check_running_sums(loops.f64);
    });
    constexpr double inf = std::numeric_limits<double>::infinity();
    on_each_set([](const Loops& loops) {
        const double x[] = {1, 2, inf, 3, 4, 5, -inf, 6, 7};
        double y[9];
        CHECK(std::isnan(loops.f64.running_sum[0](y, x, 9, 0)));
        CHECK((y[0] == 1 && y[1] == 3 && y[2] == inf && y[5] == inf && std::isnan(y[6]) && std::isnan(y[8])));
    });
}

TEST_CASE("float64 is rounded once to 16 bits, and converted to float32 and back", "[convert]") {
    std::mt19937_64 bits(5);
    std::vector<double> x = {0.0,
                             -0.0,
                             1e300,
                             -1e300,
                             1e-300,
                             1 + 0x1p-8,
                             1 + 0x1p-8 + 0x1p-40,
                             1 + 3 * 0x1p-8 - 0x1p-40,
                             1 + 0x1p-11 + 0x1p-50,
                             65519.999,
                             65520,
                             0x1p-134 + 0x1p-170,
                             std::numeric_limits<double>::infinity()};
    for (int i = 0; i < 3000; ++i)
        x.push_back(std::ldexp(double(std::int64_t(bits())), int(bits() % 220) - 210));
    const auto n = std::int64_t(x.size());
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (isa > best_isa()) continue;
        CAPTURE(name(isa));
        force_isa(isa);
        std::vector<bfloat16_t> b(x.size());
        std::vector<float16_t> h(x.size());
        std::vector<float> f(x.size());
        std::vector<double> d(x.size()), wide(x.size());
        convert(x.data(), float64, b.data(), bfloat16, n);
        convert(x.data(), float64, h.data(), float16, n);
        convert(x.data(), float64, f.data(), float32, n);
        convert(f.data(), float32, d.data(), float64, n);
        convert(h.data(), float16, wide.data(), float64, n);
        int wrong = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const float odd = round_to_odd(x[i]);
            wrong += float(b[i]) != float(bfloat16_t(odd)) || float(h[i]) != float(float16_t(odd));
            wrong += f[i] != float(x[i]) || d[i] != double(f[i]) || wide[i] != double(float(h[i]));
        }
        CHECK(wrong == 0);
    }
    release_isa();
}
