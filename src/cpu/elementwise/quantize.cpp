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

std::uint32_t largest_of(const float* x, std::int64_t n) {
    return std::max(magnitude(real_loops<float>().max(x, n)), magnitude(real_loops<float>().min(x, n)));
}
std::uint32_t largest_of(const Elements& elements, std::int64_t begin, std::int64_t end) {
    Chunk buffer;
    std::uint32_t top = 0;
    for (std::int64_t i = begin; i < end; i += chunk) {
        const std::int64_t n = std::min(end - i, chunk);
        top = std::max(top, largest_of(elements.read(i, n, buffer), n));
    }
    return top;
}

// y = x scale, NaN where x is not finite; `top` is its largest magnitude.
void multiply(float* y, const float* x, std::int64_t n, float scale, std::uint32_t top) {
    if (top < magnitude(INFINITY))
        active_loops().unary[int(UnaryOp::mul_scalar)][int(Compute::f32)](y, x, n, double(scale), 0);
    else
        std::transform(x, x + n, y, [scale](float v) { return v * (std::isfinite(v) ? scale : 0.0f); });
}

void write_codes(float* y, std::int64_t n, Dtype dtype, char* codes) {
    const double largest = dtype_info(dtype).max;
    active_loops().unary[int(UnaryOp::clamp)][int(Compute::f32)](y, y, n, -largest, largest);
    convert(y, float32, codes, dtype, n);
}

// Codes of elements [begin, end) with one scale.
void write_codes(const Elements& elements, std::int64_t begin, std::int64_t end, float scale,
                 std::uint32_t top, Dtype dtype, char* codes) {
    Chunk buffer, scaled;
    for (std::int64_t i = begin; i < end; i += chunk) {
        const std::int64_t n = std::min(end - i, chunk);
        multiply(scaled.as<float>(), elements.read(i, n, buffer), n, scale, top);
        write_codes(scaled.as<float>(), n, dtype, codes + i);
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

// Results of quantize() for a matrix.
struct Results {
    char* codes;
    float *scale, *inverse;
};

// Codes of rows [first, last), each with a scale. Short rows are converted several at a time.
void quantize_rows(const Elements& elements, const kernels::Quantize& at, std::int64_t first,
                   std::int64_t last, std::int64_t cols, const Results& to) {
    if (cols > chunk) {
        for (std::int64_t row = first; row < last; ++row) {
            const std::int64_t begin = row * cols, end = begin + cols;
            const std::uint32_t top = largest_of(elements, begin, end);
            const float scale = store_scale(at, top, 0, to.scale + row, to.inverse + row);
            write_codes(elements, begin, end, scale, top, at.dtype, to.codes);
        }
        return;
    }
    Chunk buffer, scaled;
    float* const y = scaled.as<float>();
    const std::int64_t together = chunk / cols;
    for (std::int64_t row = first; row < last; row += together) {
        const std::int64_t count = std::min(last - row, together);
        const float* const x = elements.read(row * cols, count * cols, buffer);
        for (std::int64_t r = 0; r < count; ++r) {
            const std::uint32_t top = largest_of(x + r * cols, cols);
            const float scale = store_scale(at, top, 0, to.scale + row + r, to.inverse + row + r);
            multiply(y + r * cols, x + r * cols, cols, scale, top);
        }
        write_codes(y, count * cols, at.dtype, to.codes + row * cols);
    }
}

void quantize(In in, const kernels::Quantize& at, Out out) {
    const std::int64_t rows = in[0].size(0), cols = in[0].size(1);
    const Elements elements{in[0]->bytes(), in[0].dtype()};
    const Results to{out[0]->bytes(), static_cast<float*>(raw(out[1])), static_cast<float*>(raw(out[2]))};
    if (at.granularity == Granularity::row)
        return parallel_for(rows, grain / cols + 1, [&](std::int64_t first, std::int64_t last) {
            quantize_rows(elements, at, first, last, cols, to);
        });
    std::atomic<std::uint32_t> top = 0;
    parallel_for(rows * cols, grain, [&](std::int64_t begin, std::int64_t end) {
        const std::uint32_t own = largest_of(elements, begin, end);
        std::uint32_t seen = top.load();
        while (seen < own && !top.compare_exchange_weak(seen, own)) {
        }
    });
    const float history = in.size() > 1 ? *static_cast<const float*>(raw(in[1])) : 0;
    const float s = store_scale(at, top, history, to.scale, to.inverse);
    if (out.size() > 4) *static_cast<float*>(raw(out[4])) = std::bit_cast<float>(top.load());
    parallel_for(rows * cols, grain, [&](std::int64_t begin, std::int64_t end) {
        write_codes(elements, begin, end, s, top, at.dtype, to.codes);
    });
}

}  // namespace

namespace cpu_kernels {

constinit const KernelList quantize_list = kernel_list<quantize>;

}  // namespace cpu_kernels
}  // namespace mezzo
