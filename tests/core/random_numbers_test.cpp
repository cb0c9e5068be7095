// The guarantees of docs/guide/numerics.md about random numbers: some are the same bits for every device,
// instruction set and number of threads; the others differ within bounds.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/isa/isa.h"
#include "mezzo/device.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

constexpr std::int64_t n = 10007;  // no multiple of anything

struct KeepSettings {
    RandomState state = random_state();
    int threads = num_threads();
    ~KeepSettings() {
        set_random_state(state);
        set_num_threads(threads);
        cpu::release_isa();
    }
};

std::vector<double> drawn(Tensor (*draw)(Device), Device device) {
    manual_seed(2024);
    return doubles(draw(device));
}

// Calls visit(numbers) for every device, instruction set and two numbers of threads.
template <class F> void everywhere(Tensor (*draw)(Device), const F& visit) {
    const KeepSettings keep;
    for (const int threads : {1, 3}) {
        set_num_threads(threads);
        for (const cpu::Isa isa : cpu::all_isas) {
            if (isa > cpu::best_isa()) continue;
            cpu::force_isa(isa);
            INFO(cpu::name(isa) << ", " << threads << " threads");
            visit(drawn(draw, cpu_device));
        }
        cpu::release_isa();
        for (const Device device : devices()) visit(drawn(draw, device));
    }
}

}  // namespace

TEST_CASE(
    "random numbers: uniform ones, integers, permutations and dropout masks are the same bits everywhere") {
    Tensor (*const draws[])(Device) = {
        [](Device d) { return rand({n}, {.device = d}); },
        [](Device d) { return rand({n}, {.dtype = float64, .device = d}); },
        [](Device d) { return rand({n}, {.dtype = float16, .device = d}); },
        [](Device d) { return rand({n}, {.dtype = bfloat16, .device = d}); },
        [](Device d) { return randint(-5, std::int64_t(1) << 31, {n}, {.device = d}); },
        [](Device d) { return randperm(n, {.device = d}); },
        [](Device d) { return dropout(ones({n}, {.device = d}), 0.3); },
        [](Device d) { return dropout(ones({n}, {.dtype = float16, .device = d}), 0.3); },
    };
    for (Tensor (*const draw)(Device) : draws) {
        const std::vector<double> expected = drawn(draw, cpu_device);
        everywhere(draw, [&](const std::vector<double>& got) {
            REQUIRE(got.size() == expected.size());
            CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(double)) == 0);
        });
    }
}

TEST_CASE("random numbers: normal ones and other bounds are the same up to rounding") {
    struct {
        Tensor (*draw)(Device);
        double most;
    } const cases[] = {
        {[](Device d) { return randn({n}, {.device = d}); }, 2e-6},
        {[](Device d) { return randn({n}, {.dtype = float64, .device = d}); }, 2e-6},  // computed in float32
        {[](Device d) {
             Tensor x = empty({n}, {.device = d});
             return x.uniform_(-0.3, 0.7);
         },
         6e-8},
    };
    for (const auto& [draw, allowed] : cases) {
        const double most = allowed;  // clang 14: a lambda cannot capture a structured binding
        const std::vector<double> expected = drawn(draw, cpu_device);
        everywhere(draw, [&](const std::vector<double>& got) {
            double worst = 0;
            for (std::size_t i = 0; i < got.size(); ++i)
                worst = std::fmax(worst, std::fabs(got[i] - expected[i]));
            CHECK(worst <= most);
        });
    }
}

TEST_CASE("random numbers: another seed gives other ones, and the bounds are kept") {
    const KeepSettings keep;
    for (const Device device : devices()) {
        manual_seed(1);
        const std::vector<double> first = doubles(rand({n}, {.device = device}));
        manual_seed(2);
        CHECK(doubles(rand({n}, {.device = device})) != first);
        for (const double x : first) REQUIRE((x >= 0 && x < 1));
    }
}

TEST_CASE("random numbers: rounding to the dtype never gives the upper bound") {
    const KeepSettings keep;
    const auto largest = [](const Tensor& x) { return max(x.to(float64)).item<double>(); };
    for (const Device device : devices()) {
        manual_seed(3);
        const Shape many{1 << 16};
        CHECK(largest(rand(many, {.dtype = float16, .device = device})) == 1 - 0x1p-11);
        CHECK(largest(rand(many, {.dtype = bfloat16, .device = device})) == 1 - 0x1p-8);
        CHECK(largest(empty(many, {.device = device}).uniform_(1, 1 + 0x1p-22)) == 1 + 0x1p-23);
        CHECK(largest(empty(many, {.dtype = float16, .device = device}).uniform_(-1, 0)) < 0);
        CHECK(largest(empty(many, {.dtype = bfloat16, .device = device}).uniform_(-2, -1)) == -1 - 0x1p-7);
        CHECK(largest(empty(many, {.device = device}).uniform_(2, 2)) == 2);
    }
}

TEST_CASE("random numbers: uniform_ refuses bounds, and distances of them, beyond the dtype") {
    const double inf = std::numeric_limits<double>::infinity();
    struct {
        Dtype dtype;
        double low, high;
        bool fits;
    } const cases[] = {
        {float32, -3e38, 3e38, false},  {float32, -1e38, 1e38, true},
        {float32, 0, inf, false},       {float64, -1.7e308, 1.7e308, false},
        {float64, -3e38, 3e38, true},   {float64, -inf, 0, false},
        {float16, 0, 1e5, false},       {float16, -65504, 65504, true},
        {bfloat16, -3e38, 3e38, false},
    };
    for (const auto& [dtype, low, high, fits] : cases) {
        INFO(dtype << " from " << low << " to " << high);
        manual_seed(1);
        const Tensor x = zeros({64}, {.dtype = dtype});
        if (fits) {
            x.uniform_(low, high);
            CHECK(min(x).item<double>() < low / 2);
            CHECK(max(x).item<double>() > high / 2);
            CHECK(max(x).item<double>() <= high);
        } else {
            CHECK_THROWS_WITH(x.uniform_(low, high),
                              Catch::Contains("uniform_: low ") && Catch::Contains("range of"));
            CHECK(max(abs(x)).item<double>() == 0);
        }
    }
    CHECK_THROWS_WITH(zeros({2}).uniform_(1, 0), Catch::Contains("uniform_: low 1 is not <= high 0"));
}
