// Measures the gain of wider vectors in kernels that are chosen by the name of the instruction set:
// attention, norms, element-wise loops, conversions, the update of an optimizer. Runs on one thread, with the
// instruction sets in turn, so that a disturbance affects all of them; the shortest time of a call counts.
// Matrix products choose by measurement instead (cpu/gemm/choice.h), and are only measured within
// attention. Prints microseconds per call, and the time of AVX2 over that of AVX-512.
#include <fmt/format.h>
#include <mezzo/mezzo.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cpu/isa/isa.h"
#include "samples/program.h"

namespace mz = mezzo;
using mz::cpu::Isa;

namespace {

struct Case {
    std::string name;
    std::function<void()> call;
};

// The forward pass of an op with one input, or forward and backward.
Case op_case(const std::string& name, const mz::Tensor& x,
             const std::function<mz::Tensor(const mz::Tensor&)>& op, bool backward) {
    const mz::Tensor input = backward ? x.clone().set_requires_grad() : x;
    if (!backward) return {name, [=] { static_cast<void>(op(input)); }};
    const mz::Tensor gradient = mz::ones_like(op(x));
    return {name + ", with gradient", [=] {
                op(input).backward({.gradient = gradient});
                input.set_grad({});
            }};
}

Case update_case(mz::Dtype dtype) {
    mz::Tensors params;
    for (int i = 0; i < 8; ++i) {
        params.push_back(mz::randn({256, 1024}).to(dtype).set_requires_grad());
        params.back().set_grad(mz::randn({256, 1024}).to(dtype));
    }
    auto adamw = std::make_shared<mz::optim::AdamW>(params);
    return {"AdamW, 2 million parameters", [=] { adamw->step(); }};
}

std::vector<Case> cases(mz::Dtype dtype) {
    const mz::Tensor rows = mz::randn({256, 1024}).to(dtype), heads = mz::randn({2, 4, 128, 64}).to(dtype),
                     images = mz::randn({8, 16, 16, 64}).to(dtype);
    const mz::Tensor scale = mz::ones({1024}), shift = mz::zeros({1024});
    const auto other = dtype == mz::float32 ? mz::bfloat16 : mz::float32;
    std::vector<Case> all;
    for (const bool backward : {false, true}) {
        const auto add = [&](const std::string& name, const mz::Tensor& x,
                             const std::function<mz::Tensor(const mz::Tensor&)>& op) {
            all.push_back(op_case(name, x, op, backward));
        };
        add("attention", heads,
            [](const mz::Tensor& x) { return mz::scaled_dot_product_attention(x, x, x); });
        add("layer_norm", rows, [=](const mz::Tensor& x) { return mz::layer_norm(x, scale, shift); });
        add("softmax", rows, [](const mz::Tensor& x) { return mz::softmax(x); });
        add("gelu", rows, [](const mz::Tensor& x) { return mz::gelu(x); });
        add("relu", rows, [](const mz::Tensor& x) { return mz::relu(x); });
        add("add", rows, [](const mz::Tensor& x) { return x + x; });
        add("dropout", rows, [](const mz::Tensor& x) { return mz::dropout(x, 0.1); });
        add("sum of columns", rows, [](const mz::Tensor& x) { return mz::sum(x, {0}); });
        add("max_pool2d", images, [](const mz::Tensor& x) { return mz::max_pool2d(x, {.kernel_size = 2}); });
        add("conversion", rows, [=](const mz::Tensor& x) { return x.to(other); });
    }
    all.push_back(update_case(dtype));
    return all;
}

double microseconds(const std::function<void()>& call, int calls) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / calls;
}

// Returns the shortest time of a call in each instruction set.
std::vector<double> times_of(const Case& c, const std::vector<Isa>& isas, int rounds) {
    constexpr double round = 500;  // microseconds
    std::vector<double> best(isas.size(), std::numeric_limits<double>::infinity());
    for (int r = 0; r < rounds; ++r)
        for (std::size_t i = 0; i < isas.size(); ++i) {
            mz::cpu::force_isa(isas[i]);
            if (r == 0) c.call();
            const int calls = r == 0 ? 1 : int(std::clamp(round / best[i], 1.0, 1000.0));
            best[i] = std::min(best[i], microseconds(c.call, calls));
        }
    return best;
}

int parse_and_run(int argc, char** argv) {
    int rounds = 30;
    std::string only;
    CLI::App app{"Times kernels in each instruction set that the processor has."};
    app.option_defaults()->always_capture_default();
    app.add_option("--rounds", rounds, "of all instruction sets in turn")
        ->transform(program::in_range(1, 100000));
    app.add_option("--only", only, "cases with this in their name");
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    mz::set_num_threads(1);
    std::vector<Isa> isas;
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512})
        if (isa <= mz::cpu::best_isa()) isas.push_back(isa);
    for (const mz::Dtype dtype : {mz::float32, mz::bfloat16, mz::float16})
        for (const Case& c : cases(dtype)) {
            if (c.name.find(only) == std::string::npos) continue;
            const std::vector<double> us = times_of(c, isas, rounds);
            fmt::print("{:<9} {:<30}", mz::name(dtype), c.name);
            for (std::size_t i = 0; i < isas.size(); ++i) fmt::print(" {} {:9.1f}", name(isas[i]), us[i]);
            fmt::print("{}\n", us.size() > 2 ? fmt::format("  {:.2f}", us[1] / us[2]) : "");
        }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("bench_isa", [&] { return parse_and_run(argc, argv); });
}
