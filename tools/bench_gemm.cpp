// Measures the multiply-add peak of a core and the GEMM against it, in one process.
//   bench_gemm [threads [seconds-per-case]]
// Prints medians: GFLOP/s and percent of threads x float32 peak, and the time of small calls.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <vector>

#include "cpu/elementwise/convert.h"
#include "cpu/gemm/gemm.h"
#include "cpu/isa/isa.h"
#include "cpu/parallel.h"
#include "samples/program.h"

using namespace mezzo;

namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double seconds_per_case = 0.15;

// Median time of one call of f.
template <class F> double median_time(const F& f) {
    f();
    std::vector<double> times;
    for (const double end = now() + seconds_per_case; now() < end || times.empty();) {
        int calls = 0;
        const double start = now();
        double stop = start;
        do f(), ++calls, stop = now();
        while (stop - start < 1e-4);
        times.push_back((stop - start) / calls);
    }
    std::nth_element(times.begin(), times.begin() + std::ptrdiff_t(times.size() / 2), times.end());
    return times[times.size() / 2];
}

// Independent chains of multiply-adds on N-float vectors; enough chains to cover the latency.
#define MEZZO_PEAK(NAME, N, TARGET)                                                        \
    __attribute__((target(TARGET))) double NAME() {                                        \
        typedef float V __attribute__((vector_size(N * 4)));                               \
        constexpr int rounds = 20000;                                                      \
        volatile float seed = 0.5f;                                                        \
        double best = 1e9;                                                                 \
        for (int attempt = 0; attempt < 200; ++attempt) {                                  \
            const V x = seed - V{};                                                        \
            V a = x, b = x, c = x, d = x, e = x, f = x, g = x, h = x, i = x, j = x;        \
            const double start = now();                                                    \
            for (int r = 0; r < rounds; ++r) {                                             \
                a = a * x + x, b = b * x + x, c = c * x + x, d = d * x + x, e = e * x + x; \
                f = f * x + x, g = g * x + x, h = h * x + x, i = i * x + x, j = j * x + x; \
                __asm__ volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e));        \
                __asm__ volatile("" : "+x"(f), "+x"(g), "+x"(h), "+x"(i), "+x"(j));        \
            }                                                                              \
            best = std::min(best, now() - start);                                          \
        }                                                                                  \
        return 2.0 * N * 10 * rounds / best * 1e-9;                                        \
    }
MEZZO_PEAK(peak_portable, 4, "sse2")
MEZZO_PEAK(peak_avx2, 8, "avx2,fma")
MEZZO_PEAK(peak_avx512, 16, "avx512f,fma")

double peak() {
    if (cpu::active_isa() >= cpu::Isa::avx512) return peak_avx512();
    return cpu::active_isa() == cpu::Isa::avx2 ? peak_avx2() : peak_portable();
}

struct Matrix {
    std::vector<char> bytes;
    Dtype type;
    Matrix(std::int64_t count, Dtype t) : bytes(static_cast<std::size_t>(count) * size_of(t)), type(t) {
        std::mt19937 random(1);
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& v : values) v = float(random() % 2001) / 1000.0f - 1.0f;
        cpu::convert(values.data(), float32, bytes.data(), t, count);
    }
};

struct Shape {
    std::int64_t m, n, k, batch = 1;
    double work() const { return 2.0 * double(m) * double(n) * double(k) * double(batch); }
};

double gemm_time(const Shape& s, Dtype in, Dtype out, bool ta, bool tb) {
    const auto [m, n, k, batch] = s;
    const Matrix a(batch * m * k, in), b(batch * k * n, in);
    Matrix c(batch * m * n, out);
    const cpu::Gemm g{.m = m,
                      .n = n,
                      .k = k,
                      .trans_a = ta,
                      .trans_b = tb,
                      .a = a.bytes.data(),
                      .a_type = in,
                      .lda = ta ? m : k,
                      .b = b.bytes.data(),
                      .b_type = in,
                      .ldb = tb ? k : n,
                      .c = c.bytes.data(),
                      .c_type = out,
                      .ldc = n,
                      .batch = batch,
                      .stride_a = m * k,
                      .stride_b = k * n,
                      .stride_c = m * n};
    return median_time([&] { cpu::gemm(g); });
}

// Shapes of MLP steps; of a small BERT with 1024 tokens: projections and feed-forward, gradients of their
// weights, attention in 192 heads; small and thin shapes.
const Shape shapes[] = {{512, 1024, 1024}, {256, 1024, 1024}, {1024, 1024, 256}, {1024, 1024, 1024},
                        {768, 768, 8192},  {1024, 384, 384},  {1024, 1536, 384}, {1024, 384, 1536},
                        {384, 384, 1024},  {1536, 384, 1024}, {384, 1536, 1024}, {64, 64, 32, 192},
                        {64, 32, 64, 192}, {128, 128, 64},    {32, 64, 64},      {32, 256, 256},
                        {8, 1024, 1024},   {4, 1024, 1024},   {1, 1024, 1024},   {1024, 1, 1024}};

void run(int threads) {
    cpu::set_num_threads(threads);
    const double core = peak(), all = core * cpu::num_threads();
    std::printf("%s, %d thread(s), peak of one core %.1f GFLOP/s\n", cpu::name(cpu::active_isa()),
                cpu::num_threads(), core);
    std::printf("%-18s %-5s %16s %16s %16s %16s\n", "m x n x k", "op", "float32", "bfloat16", "float16",
                "bf16 -> float32");
    for (const Shape& s : shapes) {
        for (const char* op : {"NN", "NT", "TN", "TT"}) {
            char shape[64];
            std::snprintf(shape, sizeof shape, s.batch > 1 ? "%dx%dx%d (%d)" : "%dx%dx%d", int(s.m), int(s.n),
                          int(s.k), int(s.batch));
            std::printf("%-18s %-5s", shape, op);
            const Dtype in[] = {float32, bfloat16, float16, bfloat16},
                        out[] = {float32, bfloat16, float16, float32};
            for (int i = 0; i < 4; ++i) {
                const double time = gemm_time(s, in[i], out[i], op[0] == 'T', op[1] == 'T');
                const double rate = 1e-9 * s.work() / time;
                if (time < 2e-5)
                    std::printf("  %6.2fus %3.0f %%", time * 1e6, 100 * rate / all);
                else
                    std::printf(" %8.1f %3.0f %%", rate, 100 * rate / all);
            }
            std::printf("\n");
            std::fflush(stdout);
        }
    }
}

int parse_and_run(int argc, char** argv) {
    int threads = 1;
    CLI::App app{"Measures the multiply-add peak of a core, and matrix products against it."};
    app.option_defaults()->always_capture_default();
    app.add_option("threads", threads, "CPU threads")->transform(program::thread_count());
    app.add_option("seconds", seconds_per_case, "of measuring each case")
        ->transform(program::in_range(1e-3, 1e6));
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    run(threads);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("bench_gemm", [&] { return parse_and_run(argc, argv); });
}
