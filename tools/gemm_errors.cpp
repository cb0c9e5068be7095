// Prints the errors of matrix products against float64 as a Markdown table, for docs/guide/numerics.md: every
// kind of kernel this processor has, several distributions of operands. 64 x 64 results in float32; an
// element's error is counted in 2^-24 of the sum of the magnitudes of its terms.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include "cpu/gemm/gemm.h"
#include "cpu/isa/isa.h"
#include "cpu/isa/isa_tables.h"
#include "mezzo/matmul_precision.h"
#include "samples/program.h"

using namespace mezzo;

namespace {

constexpr std::int64_t size = 64;
double widest = 50;  // exponent of the distribution "all exponents"

struct Distribution {
    const char* name;
    std::function<double(std::mt19937_64&)> draw;
};

double normal(std::mt19937_64& random) { return std::normal_distribution<double>()(random); }
double uniform(std::mt19937_64& random) { return std::uniform_real_distribution<double>()(random); }
double sign(std::mt19937_64& random) { return random() & 1 ? 1 : -1; }

const std::vector<Distribution>& distributions() {
    static const std::vector<Distribution> list = {
        {"normal", normal},
        {"uniform in [0, 1)", uniform},
        {"+-e^(2 normal)", [](std::mt19937_64& r) { return sign(r) * std::exp(2 * normal(r)); }},
        // Exponents whose products neither overflow nor vanish: of float16's range, or of float32's.
        {"all exponents",
         [](std::mt19937_64& r) { return sign(r) * std::exp2((2 * uniform(r) - 1) * widest); }},
    };
    return list;
}

template <class T> std::vector<T> draw(const Distribution& d, std::int64_t count, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<T> values(static_cast<std::size_t>(count));
    for (T& v : values) v = T(float(d.draw(random)));
    return values;
}

struct Errors {
    double rms = 0, largest = 0;
};

template <class T> Errors errors(cpu::Isa isa, Dtype type, const Distribution& d, std::int64_t k) {
    const std::vector<T> a = draw<T>(d, size * k, 1), b = draw<T>(d, k * size, 2);
    std::vector<float> c(size * size);
    cpu::gemm({.m = size,
               .n = size,
               .k = k,
               .a = a.data(),
               .a_type = type,
               .lda = k,
               .b = b.data(),
               .b_type = type,
               .ldb = size,
               .c = c.data(),
               .ldc = size},
              cpu::gemm_kernels(isa));
    Errors e;
    for (std::int64_t i = 0; i < size; ++i)
        for (std::int64_t j = 0; j < size; ++j) {
            double sum = 0, magnitude = 0;
            for (std::int64_t p = 0; p < k; ++p) {
                const double term =
                    double(float(a[std::size_t(i * k + p)])) * double(float(b[std::size_t(p * size + j)]));
                sum += term, magnitude += std::fabs(term);
            }
            const double error = std::fabs(double(c[std::size_t(i * size + j)]) - sum) / magnitude * 0x1p24;
            e.rms += error * error / double(size * size);
            e.largest = std::max(e.largest, error);
        }
    e.rms = std::sqrt(e.rms);
    return e;
}

template <class T>
void print_row(const char* what, cpu::Isa isa, Dtype type, Float32MatmulPrecision precision) {
    const cpu::GemmKernels& kernels = cpu::gemm_kernels(isa);
    const bool there = isa <= cpu::best_isa() && (isa != cpu::Isa::amx || kernels.tiles) &&
                       (isa != cpu::Isa::avx512_bf16 || kernels.depth == 2);
    if (!there) return;
    set_float32_matmul_precision(precision);
    widest = type == float16 ? 14 : 50;  // tiles are not used for float32 of 2^56 and more
    std::printf("| %s |", what);
    for (const Distribution& d : distributions())
        for (const std::int64_t k : {256, 4096}) {
            const Errors e = errors<T>(isa, type, d, k);
            std::printf(" %.*f (%.*f) |", e.rms < 10 ? 2 : 0, e.rms, e.largest < 10 ? 1 : 0, e.largest);
        }
    std::printf("\n");
}

void print_table() {
    std::printf("| operands, arithmetic |");
    for (const Distribution& d : distributions()) std::printf(" %s, k = 256 | k = 4096 |", d.name);
    std::printf("\n| --- |");
    for (std::size_t i = 0; i < 2 * distributions().size(); ++i) std::printf(" --- |");
    std::printf("\n");
    constexpr auto highest = Float32MatmulPrecision::highest;
    print_row<float>("float32, vectors", cpu::Isa::avx512, float32, highest);
    print_row<float>("float32 `high`, tiles", cpu::Isa::amx, float32, Float32MatmulPrecision::high);
    print_row<float>("float32 `medium`, tiles", cpu::Isa::amx, float32, Float32MatmulPrecision::medium);
    print_row<float16_t>("float16, vectors", cpu::Isa::avx512, float16, highest);
    print_row<float16_t>("float16, tiles", cpu::Isa::amx, float16, highest);
    print_row<bfloat16_t>("bfloat16, vectors", cpu::Isa::avx512, bfloat16, highest);
    print_row<bfloat16_t>("bfloat16, pairs", cpu::Isa::avx512_bf16, bfloat16, highest);
    print_row<bfloat16_t>("bfloat16, tiles", cpu::Isa::amx, bfloat16, highest);
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("gemm_errors", [&] {
        CLI::App app{"Prints the errors of matrix products against float64."};
        if (const int code = program::parse(app, argc, argv); code >= 0) return code;
        print_table();
        return 0;
    });
}
