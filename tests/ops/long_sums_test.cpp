// Sums of many terms: the error of a result does not grow with their number as that of one float32 chain
// does. A chain of ones ends at 2^24; a chain that begins with 1 loses all terms of 2^-25.
#include <catch2/catch.hpp>

#include <cmath>

#include "cpu/gemm/gemm.h"
#include "cpu/isa/isa.h"
#include "mezzo/autograd.h"
#include "mezzo/nn.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

constexpr std::int64_t many = 100'000'000;

// Tensor [n] of `first`, then `rest`, on a device.
Tensor first_and_rest(std::int64_t n, double first, double rest, Device device = cpu_device,
                      Dtype dtype = float32) {
    const TensorOptions like{.dtype = dtype, .device = device};
    return cat({full({1}, first, like), full({n - 1}, rest, like)});
}

struct Isas {
    cpu::Isa before = cpu::active_isa();
    ~Isas() { cpu::force_isa(before); }
    template <class F> void each(const F& body) const {
        for (const cpu::Isa isa :
             {cpu::Isa::portable, cpu::Isa::avx2, cpu::Isa::avx512, cpu::Isa::avx512_bf16}) {
            if (isa > cpu::best_isa()) continue;
            cpu::force_isa(isa);
            CAPTURE(cpu::name(isa));
            body();
        }
    }
};

double relative(const Tensor& y, double wanted) {
    double worst = 0;
    for (const double v : doubles(y)) worst = std::max(worst, std::abs(v - wanted) / std::abs(wanted));
    return worst;
}

}  // namespace

TEST_CASE("sums of 1e8 terms on the CPU", "[ops][long]") {
    const Tensor tenth = full({1}, 0.1).expand({many}), wide = full({1}, 0.1).expand({many / 4, 4});
    const double value = doubles(full({1}, 0.1))[0];
    CHECK(relative(sum(tenth), value * double(many)) < 1e-6);
    CHECK(relative(mean(tenth), value) < 1e-6);
    CHECK(relative(norm(tenth), value * std::sqrt(double(many))) < 1e-6);
    CHECK(relative(sum(wide, {0}), value * double(many / 4)) < 1e-6);
    CHECK(relative(norm(wide, {0}), value * std::sqrt(double(many / 4))) < 1e-6);
}

TEST_CASE("a product over 1e8 steps", "[gemm][long]") {
    const std::vector<bfloat16_t> ones(std::size_t(many), bfloat16_t(1.0f));
    float c = 0;
    cpu::Gemm g{.m = 1, .n = 1, .k = many};
    g.a = g.b = ones.data();
    g.a_type = g.b_type = bfloat16;
    g.lda = many;
    g.ldb = 1;
    g.c = &c;
    g.ldc = 1;
    cpu::gemm(g);
    CHECK(double(c) == double(many));
}

TEST_CASE("products with a long k add in blocks", "[gemm][long]") {
    // One row and column of every kind of product: few rows, few columns, blocked.
    const std::int64_t k = 1 << 19;
    Isas isas;
    for (const Dtype dtype : {float32, bfloat16}) {
        const Tensor x = first_and_rest(k, 1, 0x1p-25, cpu_device, dtype);
        const double wanted = 1 + double(k - 1) * 0x1p-25;
        const std::vector<Tensor> ones = {full({k, 4}, 1, {.dtype = dtype}),
                                          full({k, 9}, 1, {.dtype = dtype})};
        for (const std::int64_t rows : {1, 9})
            for (const Tensor& one : ones)
                for (const bool turned : {false, true}) {
                    const Tensor a = x.unsqueeze(0).expand({rows, k}).contiguous();
                    const Tensor b = turned ? one.t().contiguous().t() : one;
                    isas.each([&] {
                        CAPTURE(rows, one.size(1), turned, name(dtype));
                        const Tensor out = empty({rows, one.size(1)});
                        cpu::Gemm g{.m = rows, .n = one.size(1), .k = k};
                        g.a = raw(a);
                        g.b = raw(b);
                        g.a_type = g.b_type = dtype;
                        g.lda = k;
                        g.ldb = turned ? k : g.n;
                        g.trans_b = turned;
                        g.c = raw(out);
                        g.ldc = g.n;
                        cpu::gemm(g);
                        CHECK(relative(out, wanted) < 1.5e-4);
                    });
                }
    }
}

TEST_CASE("the gradients of a small layer over a million rows", "[nn][long]") {
    const std::int64_t rows = 1'000'000;
    const Tensor x = full({1, 4}, 0.1).expand({rows, 4});
    nn::Linear layer(4, 4);
    sum(layer(x) * 0.1).backward();
    CHECK(relative(layer.weight.grad(), 0.01 * double(rows)) < 6e-5);
    CHECK(relative(layer.bias.grad(), 0.1 * double(rows)) < 1e-5);
}

TEST_CASE("long rows: statistics, softmax, losses", "[ops][long]") {
    for (const Device device : devices()) {
        CAPTURE(name(device.type()));
        const std::int64_t n = 1 << 17;
        const Tensor x = first_and_rest(n, 1, 0x1p-25, device);
        const double wanted = 1 + double(n - 1) * 0x1p-25;
        CHECK(relative(sum(x), wanted) < 5e-5);
        CHECK(relative(sum(x.unsqueeze(1).expand({n, 2}).contiguous(), {0}), wanted) < 5e-5);
        const Tensor row = log(x).unsqueeze(0);
        CHECK(relative(softmax(row).select(1, 0), 1 / wanted) < 5e-5);
        const Tensor target = zeros({1}, {.dtype = int64, .device = device});
        CHECK(doubles(cross_entropy(row, target))[0] == Approx(std::log(wanted)).epsilon(0.03));
        CHECK(relative(mse_loss(sqrt(x), zeros_like(x), {.reduction = Reduction::sum}), wanted) < 5e-5);
    }
}

// Kernels in which few threads share a column, so that each adds many terms.
TEST_CASE("long columns", "[ops][long]") {
    for (const Device device : devices()) {
        CAPTURE(name(device.type()));
        const std::int64_t n = 1 << 15;
        const Tensor x = first_and_rest(n, 1, 0x1p-25, device).unsqueeze(1).expand({n, 65}).contiguous();
        const double wanted = 1 + double(n - 1) * 0x1p-25;
        CHECK(relative(sum(x, {0}), wanted) < 2e-5);
        const Tensor y = log(x).set_requires_grad(), weights = softmax(y, 0);
        CHECK(relative(weights.select(0, 0), 1 / wanted) < 5e-5);
        // The gradient of sum(x log_softmax(y)) with respect to the first of y is x - sum(x) p = 1 - 1; with
        // respect to the others it is smaller.
        const Tensor g = autograd::grad({sum(log_softmax(y, 0) * x)}, {y})[0];
        double worst = 0;
        for (const double v : doubles(g)) worst = std::max(worst, std::abs(v));
        CHECK(worst < 5e-5);
    }
}

TEST_CASE("many rows added to one index", "[ops][long]") {
    for (const Device device : devices()) {
        CAPTURE(name(device.type()));
        {  // a thread per column
            const Tensor x = first_and_rest(1 << 12, 1, 0x1p-25, device).unsqueeze(1).expand({1 << 12, 1024});
            const Tensor to = zeros({1, 1024}, {.device = device});
            const Tensor index = zeros({1 << 12, 1024}, {.dtype = int64, .device = device});
            const double wanted = 1 + double((1 << 12) - 1) * 0x1p-25;
            CHECK(relative(scatter_add(to, 0, index, x), wanted) < 2e-5);
        }
        const std::int64_t n = device == cpu_device ? 1 << 18 : 1 << 14;
        const Tensor x = first_and_rest(n, 1, 0x1p-25, device).unsqueeze(1);
        const double wanted = 1 + double(n - 1) * 0x1p-25;
        const Tensor to = zeros({1, 1}, {.device = device});
        CHECK(relative(scatter_add(to, 0, zeros({n, 1}, {.dtype = int64, .device = device}), x), wanted) <
              1e-4);
        const Tensor table = zeros({1, 1}, {.device = device}).set_requires_grad();
        sum(embedding(table, zeros({n}, {.dtype = int64, .device = device})) * x).backward();
        CHECK(relative(table.grad(), wanted) < 1e-4);
    }
}
