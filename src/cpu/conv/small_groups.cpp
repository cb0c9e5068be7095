#include "cpu/conv/small_groups.h"

#include <algorithm>

#include "cpu/buffer.h"
#include "cpu/conv/window_tables.h"
#include "cpu/elementwise/convert.h"
#include "cpu/gemm/five_loops.h"
#include "cpu/isa/isa_tables.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t block_floats = 1 << 14;               // of results computed at once
constexpr std::int64_t most_parts = 16, least_pixels = 512;  // of a weight gradient

// Buffers of each thread. weight and bias belong to the thread that called, the others to each that computes.
struct Scratch {
    Buffer weight, bias, lines, zeros, sums, parts;
};
Scratch& scratch() {
    thread_local Scratch s;
    return s;
}

std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

// Addresses of the taps of n windows, each with all channels: lines[t * n + i].
const char** find_lines(const Windows& x, std::int64_t begin, std::int64_t n) {
    const auto taps = std::int64_t(x.taps.size());
    const char** const lines = scratch().lines.get<const char*>(std::max<std::int64_t>(1, taps * n));
    const std::int64_t size = x.pixel * std::int64_t(size_of(x.type));
    char* const zeros = scratch().zeros.get<char>(size);
    std::fill_n(zeros, size, char(0));
    for (std::int64_t t = 0; t < taps; ++t) x.find(t, begin, n, zeros, lines + t * n);
    return lines;
}

std::int64_t block_pixels(std::int64_t channels) {
    return std::clamp<std::int64_t>(block_floats / channels, 1, 256);
}

// The weight as [taps of the windows, channels] in float32.
const float* weight_by_taps(const WindowProduct& p, std::int64_t ld) {
    const std::int64_t channels = p.groups, taps = p.weight.taps;
    float* const given =
        scratch().weight.get<float>(channels * taps + std::int64_t(p.windows.taps.size()) * ld);
    float* const sorted = given + channels * taps;
    convert(p.weight.data, p.weight.type, given, float32, channels * taps);
    std::fill_n(sorted, std::int64_t(p.windows.taps.size()) * ld, 0.0f);
    float* to = sorted;
    for (const Tap& tap : p.windows.taps) {
        for (std::int64_t c = 0; c < channels; ++c) to[c] = given[c * taps + tap.index];
        to += ld;
    }
    return sorted;
}

// Writes the sums of windows [begin, begin + n), one run of neighbours at a time.
void finish(const WindowProduct& p, const float* bias, std::int64_t begin, std::int64_t n, const float* t,
            std::int64_t ldt) {
    const Windows& x = p.windows;
    Epilogue e{};
    e.ldt = ldt, e.columns = p.groups, e.c_type = p.result.type;
    e.ldc = p.result.step.width * p.result.pixel;
    e.bias = bias, e.alpha = 1;
    const auto epilogue = gemm_kernels(std::min(active_isa(), Isa::avx512)).epilogue;
    for (std::int64_t done = 0; done < n;) {
        const std::int64_t i = begin + done, column = i % x.columns;
        e.t = t + done * ldt;
        e.rows = std::min(n - done, x.columns - column);
        e.c = p.result.data + p.result.element(i / x.columns / x.rows, i / x.columns % x.rows, column) *
                                  std::int64_t(size_of(p.result.type));
        epilogue(e);
        done += e.rows;
    }
}

}  // namespace

bool is_depthwise(const WindowProduct& p) {
    return p.groups > 1 && p.windows.channels == 1 && p.columns() == 1 && p.result.type != float64;
}
bool is_depthwise(const WindowGradient& p) {
    return p.groups > 1 && p.windows.channels == 1 && p.group_outputs() == 1 && p.result_type != float64 &&
           p.windows.count() > 0;
}

void multiply_depthwise(const WindowProduct& p) {
    const WindowKernels& kernels = window_kernels();
    const Windows& x = p.windows;
    const std::int64_t channels = p.groups, ld = round_up(channels, kernels.lanes);
    const float* const weight = weight_by_taps(p, ld);
    const float* bias = nullptr;
    if (p.bias) {
        float* const to = scratch().bias.get<float>(channels);
        convert(p.bias, p.bias_type, to, float32, channels);
        bias = to;
    }
    const std::int64_t block = block_pixels(channels), blocks = (x.count() + block - 1) / block;
    const auto taps = std::int64_t(x.taps.size());
    parallel_for(
        blocks, grain(blocks, 8 * x.count() * channels * taps), [&](std::int64_t begin, std::int64_t end) {
            float* const t = scratch().sums.get<float>(block * ld);
            for (std::int64_t u = begin; u < end; ++u) {
                const std::int64_t first = u * block, n = std::min(block, x.count() - first);
                kernels.depthwise({find_lines(x, first, n), n, x.type, taps, n, channels, weight, ld, t, ld});
                finish(p, bias, first, n, t, ld);
            }
        });
}

// The split of the pixels into parts depends on the sizes alone, and the parts' sums are added in order.
void add_depthwise_gradient(const WindowGradient& p) {
    const WindowKernels& kernels = window_kernels();
    const Windows& x = p.windows;
    const std::int64_t channels = p.groups, ld = round_up(channels, kernels.lanes), pixels = x.count();
    const std::int64_t block = block_pixels(channels);
    const auto taps = std::int64_t(x.taps.size());
    const std::int64_t parts = std::clamp<std::int64_t>(pixels / least_pixels, 1, most_parts);
    float* const sums = scratch().parts.get<float>(parts * taps * ld + taps * channels);
    std::fill_n(sums, parts * taps * ld, 0.0f);
    const auto size = std::int64_t(size_of(p.gradient_type));
    parallel_for(parts, grain(parts, 8 * pixels * channels * taps),
                 [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t part = begin; part < end; ++part)
                         for (std::int64_t i = part * pixels / parts, last = (part + 1) * pixels / parts;
                              i < last; i += block) {
                             const std::int64_t n = std::min(block, last - i);
                             kernels.depthwise_gradient({find_lines(x, i, n), n, x.type, taps, n, channels,
                                                         p.gradient + i * channels * size, p.gradient_type,
                                                         channels, sums + part * taps * ld, ld});
                         }
                 });
    float* const total = sums + parts * taps * ld;  // [channels, taps]
    for (std::int64_t c = 0; c < channels; ++c)
        for (std::int64_t t = 0; t < taps; ++t) {
            float sum = 0;
            for (std::int64_t part = 0; part < parts; ++part) sum += sums[(part * taps + t) * ld + c];
            total[c * taps + t] = sum;
        }
    Gemm g{.m = 1, .n = channels * taps, .beta = float(p.beta)};
    g.c = p.result, g.c_type = p.result_type, g.ldc = g.n;
    finish_sums(gemm_kernels(active_isa()), g, total, g.n);
}

}  // namespace mezzo::cpu
