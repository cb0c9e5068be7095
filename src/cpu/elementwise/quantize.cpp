// Float8 codes of a matrix, and their scales: its largest magnitude, then its codes, each in one pass. All
// steps round as the ops of quantized_for() do.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"
#include "kernels/fp8.h"

namespace mezzo {
namespace {

using namespace cpu;

struct Elements {
    const char* x;
    Dtype dtype;
    // Elements [begin, begin + n), n <= chunk, in float32.
    const float* read(std::int64_t begin, std::int64_t n, Chunk& buffer) const {
        const char* const from = x + begin * std::int64_t(size_of(dtype));
        if (dtype == float32) return reinterpret_cast<const float*>(from);
        convert(from, dtype, buffer.bytes, float32, n);
        return buffer.as<float>();
    }
};

// Magnitudes as integers, which have the same order; NaN is the largest.
std::uint32_t magnitude(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu; }

std::uint32_t largest_of(const Elements& elements, std::int64_t begin, std::int64_t end) {
    Chunk buffer;
    std::uint32_t top = 0;
    for (std::int64_t i = begin; i < end; i += chunk) {
        const std::int64_t n = std::min(end - i, chunk);
        const float* const x = elements.read(i, n, buffer);
        top = std::max(
            {top, magnitude(real_loops<float>().max(x, n)), magnitude(real_loops<float>().min(x, n))});
    }
    return top;
}

// Codes of elements [begin, end).
void write_codes(const Elements& elements, std::int64_t begin, std::int64_t end, float scale, bool all_finite,
                 Dtype dtype, char* codes) {
    const double largest = dtype_info(dtype).max;
    const Loops& loops = active_loops();
    const int f32 = int(Compute::f32);
    Chunk buffer, scaled;
    float* const y = scaled.as<float>();
    for (std::int64_t i = begin; i < end; i += chunk) {
        const std::int64_t n = std::min(end - i, chunk);
        const float* const x = elements.read(i, n, buffer);
        if (all_finite)
            loops.unary[int(UnaryOp::mul_scalar)][f32](y, x, n, double(scale), 0);
        else  // NaN of infinities
            std::transform(x, x + n, y, [scale](float v) { return v * (std::isfinite(v) ? scale : 0.0f); });
        loops.unary[int(UnaryOp::clamp)][f32](y, y, n, -largest, largest);
        convert(y, float32, codes + i, dtype, n);
    }
}

// The scale of the codes up to the magnitude `own` or, if that is above 0, `history`; and its inverse.
float store_scale(const kernels::Quantize& at, std::uint32_t own, float history, float* scale,
                  float* inverse) {
    const float top = history > 0 ? history : std::bit_cast<float>(own);
    *scale = kernels::fp8_scale(top, float(dtype_info(at.dtype).max), at.exact, at.factor);
    *inverse = 1 / *scale;
    return *scale;
}

void quantize(In in, const kernels::Quantize& at, Out out) {
    const std::int64_t rows = in[0].size(0), cols = in[0].size(1);
    const Elements elements{in[0]->bytes(), in[0].dtype()};
    char* const codes = out[0]->bytes();
    auto* const scale = static_cast<float*>(raw(out[1]));
    auto* const inverse = static_cast<float*>(raw(out[2]));
    const std::uint32_t infinity = magnitude(INFINITY);
    if (at.by_row)
        return parallel_for(rows, grain / cols + 1, [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t row = first; row < last; ++row) {
                const std::int64_t begin = row * cols, end = begin + cols;
                const std::uint32_t top = largest_of(elements, begin, end);
                const float s = store_scale(at, top, 0, scale + row, inverse + row);
                write_codes(elements, begin, end, s, top < infinity, at.dtype, codes);
            }
        });
    std::atomic<std::uint32_t> top = 0;
    parallel_for(rows * cols, grain, [&](std::int64_t begin, std::int64_t end) {
        const std::uint32_t own = largest_of(elements, begin, end);
        std::uint32_t seen = top.load();
        while (seen < own && !top.compare_exchange_weak(seen, own)) {
        }
    });
    const float history = in.size() > 1 ? *static_cast<const float*>(raw(in[1])) : 0;
    const float s = store_scale(at, top, history, scale, inverse);
    if (out.size() > 4) *static_cast<float*>(raw(out[4])) = std::bit_cast<float>(top.load());
    parallel_for(rows * cols, grain, [&](std::int64_t begin, std::int64_t end) {
        write_codes(elements, begin, end, s, top < infinity, at.dtype, codes);
    });
}

}  // namespace

namespace cpu_kernels {

constexpr KernelEntry entries[] = {kernel_entry<quantize>()};
constinit const KernelList quantize_list = entries;

}  // namespace cpu_kernels
}  // namespace mezzo
