// The exhaustive search over the stand-in for cuBLASLt, which has algorithms that it does not propose.
#include <catch2/catch.hpp>

#include "mezzo/error.h"
#include "tests/emulation/tuned.h"
#include "tools/exhaustive_search.h"

namespace {

using namespace mezzo;
using emulation::fake_lt;
using test::Product;
using test::Tuned;

// Seconds of the emulated clock.
SearchOptions options(double seconds = 100) {
    return {.seconds = seconds, .now = [] { return emulation::options.clock_ms / 1e3; }};
}

}  // namespace

TEST_CASE("search: finds what the library does not propose", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(4, 3, 5);
    fake_lt.hidden_ms = {7, -1, 2, 6, -1};
    const Product x;
    const SearchResult r = search_algorithms(x.g, options());
    REQUIRE(r.heuristic_us == 4000);
    REQUIRE(r.autotuned_us == 3000);
    REQUIRE(r.best_us == 2000);
    REQUIRE(r.best == "algorithm 5");
    REQUIRE(r.configurations == 5);
    REQUIRE(r.tried == 5);
    REQUIRE(r.accepted == 3 + 3);  // the proposals, too
    REQUIRE(r.complete);
}

TEST_CASE("search: mezzo's own choice may be the best", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(4, 3, 5);
    fake_lt.hidden_ms = {7, 8};
    const Product x;
    const SearchResult r = search_algorithms(x.g, options());
    REQUIRE(r.best_us == r.autotuned_us);
    REQUIRE(r.best == "algorithm 1");
    fake_lt.hidden_ms.clear();
    cuda::clear_gemm_plans();
    const SearchResult none = search_algorithms(x.g, options());
    REQUIRE(none.best_us == 3000);
    REQUIRE(none.configurations == 0);
    REQUIRE(none.complete);
}

TEST_CASE("search: an algorithm that drops terms is no best", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(4, 4, 4);
    fake_lt.hidden_ms = {1, 3};
    fake_lt.hidden_dropping = 0;
    const Product x;
    SearchResult r = search_algorithms(x.g, options());
    REQUIRE(r.best_us == 3000);
    REQUIRE(r.wrong == 1);
    fake_lt.dropping_last = 1;  // also the library's first proposal
    cuda::clear_gemm_plans();
    Tuned::times(2, 5, 4);
    r = search_algorithms(x.g, options());
    REQUIRE(r.heuristic_us == 5000);
    REQUIRE(r.autotuned_us == 4000);
    REQUIRE(r.best_us == 3000);
}

TEST_CASE("search: every family has its share of the time", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(9, 9, 9);
    fake_lt.hidden_ms.assign(1000, 8);  // odd numbers are the second family's
    fake_lt.hidden_ms[1] = 6;           // its first
    fake_lt.hidden_ms[0] = -1;          // so that no neighbour of a proposal is accepted
    const Product x;
    // 3 runs of 9 ms for each of 3 proposals, 3 runs of 8 ms for each configuration: 919 ms in two halves
    const SearchResult r = search_algorithms(x.g, options(1));
    REQUIRE(r.best_us == 6000);
    REQUIRE_FALSE(r.complete);
    REQUIRE(r.configurations == 1000);
    REQUIRE(r.tried >= 39);
    REQUIRE(r.tried <= 42);
}

TEST_CASE("search: the order visits every configuration once", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(9, 9, 9);
    const std::size_t count =
        GENERATE(std::size_t(2), std::size_t(3), std::size_t(20), std::size_t(24), std::size_t(257));
    fake_lt.hidden_ms.assign(count, 8);
    const std::size_t fast = GENERATE_COPY(std::size_t(0), count / 2, count - 1);
    fake_lt.hidden_ms[fast] = 1;
    const Product x;
    const SearchResult r = search_algorithms(x.g, options(1e6));
    REQUIRE(r.best == "algorithm " + std::to_string(3 + fast));
    REQUIRE(r.accepted == 3 + count);
    REQUIRE(std::size_t(fake_lt.configurations) == count);
}

TEST_CASE("search: from neighbour to neighbour", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(9, 9, 8);
    fake_lt.hidden_ms = {7, 6, 5, 6, 1};  // the way from neighbour to neighbour ends at 5 ms
    for (int i = 0; i < 995; ++i) fake_lt.hidden_ms.push_back(20);
    const Product x;
    SearchResult r = search_algorithms(x.g, options(0.25));
    REQUIRE(r.best == "algorithm 5");
    REQUIRE(r.best_us == 5000);
    REQUIRE(r.tried < 10);
    cuda::clear_gemm_plans();
    r = search_algorithms(x.g, options(1e6));
    REQUIRE(r.best == "algorithm 7");
    REQUIRE(r.accepted == 1003);  // each once
    cuda::clear_gemm_plans();
    r = search_algorithms(x.g, options(0));  // no time: mezzo's own choices
    REQUIRE(r.accepted == 0);
    REQUIRE(r.best == "algorithm 2");
}

TEST_CASE("search: without a right algorithm there is no time", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    fake_lt.no_algorithm = true;
    const Product x;
    const SearchResult r = search_algorithms(x.g, options());
    REQUIRE(r.heuristic_us == 0);
    REQUIRE(r.autotuned_us == 0);
    REQUIRE(r.best_us == 0);
    cuda::Gemm mixed = x.g;
    mixed.a_type = float16;
    REQUIRE_THROWS_AS(search_algorithms(mixed, options()), Error);
}

TEST_CASE("search: epilogues and own kernels are part of the times", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(4, 4, 4);
    emulation::options.launch_ms = 0.25;
    fake_lt.fused_ms = 1;  // an own kernel is faster
    fake_lt.hidden_ms = {2};
    Product x;
    x.with_bias(Activation::relu);
    const SearchResult r = search_algorithms(x.g, options());
    REQUIRE(r.heuristic_us == 5250);  // fused
    REQUIRE(r.autotuned_us == 4500);  // product and own kernel
    REQUIRE(r.best_us == 2500);
}
