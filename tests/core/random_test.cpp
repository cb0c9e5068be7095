#include "core/random_offset.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <thread>
#include <vector>

#include "core/philox.h"
#include "cpu/parallel.h"
#include "mezzo/ops.h"
#include "tests/support/kernels.h"

using namespace mezzo;

namespace {

bool equal(const PhiloxWords& words, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    return words.v[0] == a && words.v[1] == b && words.v[2] == c && words.v[3] == d;
}

// Restores the random stream at the end of a case.
struct KeepStream {
    RandomState state = random_state();
    ~KeepStream() { set_random_state(state); }
};

}  // namespace

// The known answers that Random123 ships for philox4x32-10 (kat_vectors).
TEST_CASE("random: Philox4x32-10 gives the published words") {
    CHECK(equal(philox(0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
    const std::uint64_t ones = ~std::uint64_t(0);
    CHECK(equal(philox(ones, ones, ones), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
    CHECK(equal(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e), 0xd16cfe09, 0x94fdcceb,
                0x5001e420, 0x24126ea1));
}

TEST_CASE("random: words to numbers") {
    CHECK(philox_uniform(0) == 0.0f);
    CHECK(philox_uniform(0xffffffff) == 1.0f - 0x1p-24f);
    CHECK(philox_uniform(0x80000000) == 0.5f);
    const PhiloxWords words{{0x00020001, 0x00040003, 0x00060005, 0x00080007}};
    for (int i = 0; i < 8; ++i) CHECK(philox_half(words, i) == std::uint32_t(i) + 1);
}

TEST_CASE("random: uniform words have the moments of a uniform distribution") {
    constexpr int blocks = 1 << 15;
    double sum = 0, squares = 0;
    for (std::uint64_t block = 0; block < blocks; ++block)
        for (const std::uint32_t word : philox(42, block).v) {
            const double u = philox_uniform(word);
            sum += u;
            squares += u * u;
        }
    const double n = 4.0 * blocks, mean = sum / n;
    CHECK(mean == Approx(0.5).margin(5 * 0.2887 / 362));  // five standard errors of n = 131,072
    CHECK(squares / n - mean * mean == Approx(1.0 / 12).margin(0.002));
}

TEST_CASE("random: the stream moves by what is reserved and can be restored") {
    const KeepStream keep;
    manual_seed(7);
    CHECK(random_state().seed == 7);
    CHECK(random_state().offset == 0);
    CHECK(reserve_random(10).offset == 0);
    CHECK(reserve_random(0).offset == 10);
    const RandomState middle = random_state();
    const RandomState first = reserve_random(5);
    CHECK(first.seed == 7);
    CHECK(first.offset == 10);
    CHECK(random_state().offset == 15);
    set_random_state(middle);
    CHECK(reserve_random(5).offset == first.offset);
    manual_seed(8);
    CHECK(random_state().offset == 0);
}

TEST_CASE("random: threads never get the same block") {
    const KeepStream keep;
    manual_seed(1);
    std::vector<std::vector<std::uint64_t>> starts(4);
    std::vector<std::thread> threads;
    for (auto& mine : starts)
        threads.emplace_back([&mine] {
            for (int i = 0; i < 1000; ++i) mine.push_back(reserve_random(3).offset);
        });
    for (std::thread& thread : threads) thread.join();
    std::set<std::uint64_t> all;
    for (const auto& mine : starts) {
        CHECK(std::is_sorted(mine.begin(), mine.end()));
        all.insert(mine.begin(), mine.end());
    }
    CHECK(all.size() == 4000);
    CHECK(*all.rbegin() == 3999 * 3);
    CHECK(random_state().offset == 12000);
}

TEST_CASE("random kernels use the documented words and have the right moments", "[cpu_kernels]") {
    const std::int64_t n = 100003;
    const RandomState stream{99, 1234567};
    const int threads = cpu::num_threads();
    for (int used = 1; used <= 2; ++used) {
        cpu::set_num_threads(used);
        const std::vector<double> uniform =
            test::run(test::cpu_kernel<kernels::RandomUniform>, {}, {.stream = stream}, {n}, float32);
        const std::vector<double> normal =
            test::run(test::cpu_kernel<kernels::RandomNormal>, {}, {.stream = stream}, {n}, float32);
        double mean = 0, variance = 0;
        for (std::size_t i = 0; i < std::size_t(n); ++i) {
            const PhiloxWords words = philox(99, 1234567 + i / 4);
            if (uniform[i] != philox_uniform(words.v[i % 4])) FAIL_CHECK("uniform element " << i);
            const std::size_t pair = i % 4 / 2 * 2;
            const double r = std::sqrt(-2 * std::log(((words.v[pair] >> 8) + 1) * 0x1p-24));
            const double angle = 2 * std::acos(-1.0) * (words.v[pair + 1] >> 8) * 0x1p-24;
            const double expected = r * (i % 2 ? std::sin(angle) : std::cos(angle));
            if (!(std::fabs(normal[i] - expected) < 3e-6)) FAIL_CHECK("normal element " << i);
            mean += normal[i], variance += normal[i] * normal[i];
        }
        CHECK(std::fabs(mean / n) < 0.02);
        CHECK(variance / n == Approx(1).epsilon(0.03));
    }
    cpu::set_num_threads(threads);
    const std::vector<double> integers = test::run(test::cpu_kernel<kernels::RandomInt>, {},
                                                   {.low = -3, .high = 4, .stream = {5, 0}}, {n}, int64);
    std::vector<int> counts(7, 0);
    for (const double v : integers) {
        REQUIRE((v >= -3 && v <= 3));
        ++counts[std::size_t(v + 3)];
    }
    for (const int count : counts) CHECK(std::fabs(count - n / 7.0) < 600);
    for (const Dtype dtype : {float16, bfloat16, float32, float64}) {
        const Tensor x = full({n}, 3, {.dtype = dtype});
        const std::vector<double> y =
            test::run(test::cpu_kernel<kernels::Dropout>, {x}, {.p = 0.25, .stream = {7, 3}}, {n}, dtype);
        for (std::size_t i = 0; i < std::size_t(n); ++i) {
            const bool kept = philox_half(philox(7, 3 + i / 8), int(i % 8)) >= 16384;
            if (y[i] != (kept ? 4 : 0)) FAIL_CHECK(name(dtype) << " element " << i << " is " << y[i]);
        }
        for (const double v :
             test::run(test::cpu_kernel<kernels::Dropout>, {x}, {.p = 1, .stream = {7, 0}}, {n}, dtype))
            REQUIRE(v == 0);
    }
}
