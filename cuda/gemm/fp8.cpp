// Products of float8 codes, by cuBLASLt where it multiplies them. Otherwise of the codes as bfloat16, or of
// their numbers as float32 if blocks have scales.
#include "cuda/gemm/fp8.h"

#include <algorithm>

#include "core/tensor_impl.h"
#include "cuda/gemm/plans.h"
#include "cuda/kernels.h"
#include "cuda/runtime/runtime.h"
#include "kernels/fp8.h"

namespace mezzo::cuda {
namespace {

// The codes in bfloat16, which holds each of them exactly. With scales of blocks their numbers in float32,
// because bfloat16 may not hold a code times its factor.
Tensor widened(const Tensor& codes, const Tensor& factors, Granularity scales) {
    const bool blocks = scales == Granularity::block32;
    const Tensor wide =
        empty(codes.shape(), {.dtype = blocks ? float32 : bfloat16, .device = codes.device()});
    if (blocks)
        dequantize_blocks(raw(codes), codes.dtype(), raw(factors), codes.numel(),
                          static_cast<float*>(raw(wide)));
    else
        cuda_kernels::cast({&codes, 1}, {}, {&wide, 1});
    return wide;
}

// Three results of the quantizing kernel.
BlockCodes blocks_of(Out out, std::size_t first) {
    if (!out[first].defined()) return {};
    return {raw(out[first]), static_cast<float*>(raw(out[first + 1])), raw(out[first + 2])};
}

void multiply_widened(const Gemm& g, In in) {
    const Tensor wide_a = widened(in[0], in[2], g.scales), wide_b = widened(in[1], in[3], g.scales);
    const Tensor sums = empty({g.m, g.n}, {.device = in[0].device()});
    Gemm plain;
    plain.m = g.m, plain.n = g.n, plain.k = g.k;
    plain.trans_b = true;
    plain.a = raw(wide_a), plain.b = raw(wide_b), plain.c = raw(sums);
    plain.a_type = plain.b_type = wide_a.dtype();
    plain.lda = plain.ldb = g.lda;
    plain.ldc = g.n;
    gemm(plain);
    scale_sums(g, static_cast<const float*>(raw(sums)));
}

// try_gemm() for scales of blocks.
bool try_blocks(Gemm g, const Tensor& a_factors, const Tensor& b_factors) {
    if (outside_library(g) != nullptr) return false;
    const std::int64_t blocks = g.k / kernels::fp8_block;
    const auto room = [&](std::int64_t rows) {
        return empty({tiled_scale_bytes(rows, blocks)}, {.dtype = uint8, .device = a_factors.device()});
    };
    const Tensor a = room(g.m), b = room(g.n);
    tile_scales({raw(a_factors), raw(a), g.m, blocks}, {raw(b_factors), raw(b), g.n, blocks});
    g.a_scale = raw(a), g.b_scale = raw(b);
    return try_gemm(g);
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void fp8_product(In in, const kernels::Fp8Product& at, Out out) {
    set_device(out[0].device().index);
    const Tensor &a = in[0], &b = in[1];
    Gemm g;
    g.m = a.size(0), g.n = b.size(0), g.k = a.size(1);
    if (g.m == 0 || g.n == 0) return;
    g.trans_b = true;
    g.a = raw(a), g.b = raw(b), g.c = raw(out[0]);
    g.a_type = a.dtype(), g.b_type = b.dtype(), g.c_type = out[0].dtype();
    g.lda = g.ldb = std::max(g.k, std::int64_t(1));
    g.ldc = g.n;
    g.a_scale = raw(in[2]), g.b_scale = raw(in[3]);
    g.scales = at.scales;
    if (in.size() > 4 && in[4].defined()) {
        g.bias = raw(in[4]);
        g.bias_type = in[4].dtype();
    }
    if (out.size() > 1) g.pre_activation = raw(out[1]);
    g.activation = at.activation;
    const bool done = at.scales == Granularity::block32 ? try_blocks(g, in[2], in[3]) : try_gemm(g);
    if (!done) multiply_widened(g, in);
}

void quantize(In in, const kernels::Quantize& at, Out out) {
    const Tensor& x = in[0];
    set_device(x.device().index);
    if (x.numel() == 0) return;
    if (at.granularity == Granularity::block32)
        return quantize_blocks(
            {raw(x), x.dtype(), at.dtype, x.size(0), x.size(1), blocks_of(out, 0), blocks_of(out, 3)});
    QuantizeArguments q{};
    q.x = raw(x);
    q.x_type = x.dtype(), q.dtype = at.dtype;
    q.rows = x.size(0), q.cols = x.size(1);
    if (out[0].defined()) q.codes = raw(out[0]);
    if (out.size() > 3 && out[3].defined()) q.transposed = raw(out[3]);
    q.scale = static_cast<float*>(raw(out[1]));
    q.inverse = static_cast<float*>(raw(out[2]));
    q.by_row = at.granularity == Granularity::row, q.exact = at.exact, q.factor = at.factor;
    if (in.size() > 1) q.history = static_cast<const float*>(raw(in[1]));
    if (out.size() > 4) q.own = static_cast<float*>(raw(out[4]));
    quantize_codes(q);
}

constinit const KernelList fp8_list = kernel_list<fp8_product, quantize>;

}  // namespace mezzo::cuda_kernels
