// Matrix products of tensors through the strided, batched gemm().
#include <algorithm>

#include "core/rows.h"
#include "core/thread_state.h"
#include "cpu/buffer.h"
#include "cpu/elementwise/convert.h"
#include "cpu/elementwise/strided.h"
#include "cpu/gemm/gemm.h"
#include "cpu/gemm/operand.h"
#include "cpu/gemm/packed_weight.h"
#include "cpu/gemm/repeated_product.h"
#include "cpu/gemm/skinny.h"
#include "cpu/isa/isa_tables.h"
#include "cpu/kernels.h"
#include "kernels/linear_weight_grad.h"
#include "kernels/merged_linear.h"

namespace mezzo {
namespace {

using namespace cpu;

// The last two dimensions in a form that gemm() can read: stored by rows, or by columns (then `transposed`).
struct Matrix {
    Tensor owner;  // x, or a row-major copy of a matrix that gemm() cannot read
    std::int64_t ld = 0;
    bool transposed = false;

    explicit Matrix(const Tensor& x) : owner(x) {
        if (fits()) return;
        owner = empty(x->shape, {.dtype = x->dtype});
        cpu_kernels::cast({&x, 1}, {}, {&owner, 1});
        fits();
    }
    const Shape& shape() const { return owner->shape; }
    std::int64_t rows() const { return shape()[shape().size() - 2]; }
    std::int64_t cols() const { return shape().back(); }
    const char* data() const { return owner->numel ? owner->bytes() : nullptr; }

    // The layout of the dimensions in front, broadcast to the batch dimensions of the result.
    StridedLayout batch(const Shape& batch_shape) const {
        const int dims = shape().size() - 2;
        return {batch_shape, Shape(shape().begin(), dims), Strides(owner->strides.begin(), dims)};
    }

private:
    bool fits() {
        const std::int64_t row_step = owner->strides[shape().size() - 2], col_step = owner->strides.back();
        transposed = false;
        if ((col_step == 1 || cols() <= 1) && (row_step >= cols() || rows() <= 1)) {
            ld = row_step > cols() ? row_step : cols();
            return true;
        }
        transposed = true;
        ld = col_step > rows() ? col_step : rows();
        return (row_step == 1 || rows() <= 1) && (col_step >= rows() || cols() <= 1);
    }
};

// The product of a and b.
Gemm gemm_of(const Matrix& a, const Matrix& b, const Tensor& c) {
    Gemm g{.m = a.rows(), .n = b.cols(), .k = a.cols()};
    g.a = a.data();
    g.a_type = a.owner->dtype;
    g.lda = a.ld;
    g.trans_a = a.transposed;
    g.b = b.data();
    g.b_type = b.owner->dtype;
    g.ldb = b.ld;
    g.trans_b = b.transposed;
    g.c = c->numel ? c->bytes() : nullptr;
    g.c_type = c->dtype;
    g.ldc = g.n;
    return g;
}

const char* advance(const void* p, std::int64_t elements, Dtype dtype) {
    if (p == nullptr) return nullptr;  // no elements
    return static_cast<const char*>(p) + elements * std::int64_t(size_of(dtype));
}

// Whether a single stride leads from each batch item to the next.
bool regular(const StridedLayout& layout) { return layout.dims <= 1; }
std::int64_t stride(const StridedLayout& layout) { return layout.dims == 1 ? layout.strides[0] : 0; }

// Element offset of batch item i.
std::int64_t offset(const StridedLayout& layout, std::int64_t i) {
    std::int64_t result = 0;
    for (int d = layout.dims - 1; d >= 0; --d) {
        result += i % layout.sizes[d] * layout.strides[d];
        i /= layout.sizes[d];
    }
    return result;
}

}  // namespace

void cpu::RepeatedProduct::operator()(const Tensor& a, const Tensor& b, double beta, const Tensor& y) {
    const Matrix left(a), right(b);
    Gemm g = gemm_of(left, right, y);
    g.beta = float(beta);
    if (++calls_ == 2 && (kernels_ = packing_kernels(g)) != nullptr) {
        packed_ = empty({packed_b(*kernels_, g)}, {.dtype = float32});
        pack_b(*kernels_, g, reinterpret_cast<float*>(packed_->bytes()));
    }
    if (kernels_ == nullptr) return gemm(g);
    g.b_packed = reinterpret_cast<const float*>(packed_->bytes());
    gemm(g, *kernels_);
}

namespace cpu_kernels {

void matmul(In in, const kernels::MatMul& at, Out out) {
    const Tensor& y = out[0];
    if (y->numel == 0) return;
    const Matrix a(in[0]), b(in[1]);
    const Shape batch_shape(y->shape.begin(), y->shape.size() - 2);
    const StridedLayout batch_a = a.batch(batch_shape), batch_b = b.batch(batch_shape);
    Gemm g = gemm_of(a, b, y);
    g.beta = float(at.beta);
    const std::int64_t count = batch_shape.numel();
    if (regular(batch_a) && regular(batch_b)) {
        g.stride_a = stride(batch_a);
        g.stride_b = stride(batch_b);
        g.stride_c = g.m * g.n;
        if (g.stride_b == 0 && !g.trans_a && g.stride_a == g.m * g.lda)
            g.m *= count;  // one tall product
        else
            g.batch = count;
        return gemm(g);
    }
    for (std::int64_t i = 0; i < count; ++i) {
        Gemm item = g;
        item.a = advance(g.a, offset(batch_a, i), g.a_type);
        item.b = advance(g.b, offset(batch_b, i), g.b_type);
        item.c = y->bytes() + i * g.m * g.n * std::int64_t(size_of(y->dtype));
        gemm(item);
    }
}

void linear(In in, const kernels::Linear& at, Out out) {
    const Tensor& y = out[0];
    if (y->numel == 0) return;
    const Matrix x(as_rows(in[0])), weight(in[1]);
    Gemm g = gemm_of(x, weight, y);
    g.n = weight.rows();
    g.trans_b = !g.trans_b;
    g.ldc = row_stride(y);
    g.activation = static_cast<decltype(g.activation)>(at.activation);
    Tensor bias;
    if (in.size() > 2 && in[2].defined()) {
        bias = in[2];
        if (!bias->contiguous) {
            bias = empty(in[2]->shape, {.dtype = in[2]->dtype});
            cast({&in[2], 1}, {}, {&bias, 1});
        }
        g.bias = bias->bytes();
        g.bias_type = bias->dtype;
    }
    if (out.size() > 1) g.pre_activation = out[1]->bytes();
    Ref<Storage> packed;  // held while gemm() reads it
    if (thread_state.pack_weights) {
        packed = packed_weight(in[1], g.m);
        if (packed)
            g.b_panels = panels_of(*packed);
        else
            packed = read_packed_tiles(in[1], g);
    }
    gemm(g);
}

namespace {

constexpr std::int64_t most_code_rows = 8;  // of x, for which codes are expanded row by row

// Expands rows [begin, begin + count) of a weight to the dtype of `to`.
void expand_codes(const Tensor& codes, const Tensor& scale, std::int64_t begin, std::int64_t count,
                  const Tensor& to) {
    const GemmKernels& kernels = gemm_kernels(active_isa());
    const std::int64_t k = codes->shape[1], groups = scale->shape[1], ldt = round_up(k, code_steps);
    const std::int64_t parts = groups > 1 ? k / code_steps : 1, each = parts / groups;
    const float factor = codes->dtype == float8_e4m3fn ? 256 : 1;  // CodeProduct::scale
    parallel_for(count, 1 + (1 << 15) / k, [&](std::int64_t first, std::int64_t last) {
        thread_local Buffer scratch;
        float* const row = scratch.get<float>(ldt + parts + groups);
        float *const scales = row + ldt, *const given = scales + parts;
        for (std::int64_t i = first; i < last; ++i) {
            convert(advance(scale->bytes(), (begin + i) * groups, scale->dtype), scale->dtype, given, float32,
                    groups);
            for (std::int64_t q = 0; q < groups; ++q) std::fill_n(scales + q * each, each, given[q] * factor);
            const void* const from = codes->bytes() + (begin + i) * k;
            kernels.code_values({nullptr, 0, 0, from, codes->dtype, scales, parts, k, 1, row, ldt});
            convert(row, float32, to->bytes() + i * k * std::int64_t(size_of(to->dtype)), to->dtype, k);
        }
    });
}

}  // namespace

void quantized_linear(In in, const kernels::QuantizedLinear& at, Out out) {
    const Tensor &codes = in[1], &scale = in[2], &y = out[0];
    if (y->numel == 0) return;
    const Matrix x(as_rows(in[0]));
    const std::int64_t n = codes->shape[0], k = codes->shape[1];
    Gemm g = gemm_of(x, x, y);
    g.n = n, g.trans_b = true, g.ldb = k, g.ldc = n;
    g.activation = at.activation;
    if (in.size() > 3) g.bias = in[3]->bytes(), g.bias_type = in[3]->dtype;
    if (g.m <= most_code_rows) {
        g.b = codes->bytes(), g.b_type = codes->dtype;
        return multiply_codes(gemm_kernels(active_isa()), g, {scale->bytes(), scale->dtype, scale->shape[1]});
    }
    // Elements that are expanded at once: those of a thread stay in its L2 cache.
    const std::int64_t block = std::min<std::int64_t>(cpu::num_threads(), 8) << 18;
    const std::int64_t rows = std::min(n, std::max<std::int64_t>(64, block / k));
    const Tensor expanded = empty({rows, k}, {.dtype = g.a_type});
    g.b = expanded->bytes(), g.b_type = g.a_type;
    for (std::int64_t j = 0; j < n; j += rows) {
        Gemm part = g;
        part.n = std::min(rows, n - j);
        expand_codes(codes, scale, j, part.n, expanded);
        part.c = const_cast<char*>(advance(g.c, j, g.c_type));
        part.bias = advance(g.bias, j, g.bias_type);
        gemm(part);
    }
}

void merged_linear(In in, const kernels::MergedLinear& at, Out out) {
    kernels::run_merged_linear(in, at, out, linear);
}

void linear_input_grad(In in, const kernels::LinearInputGrad& at, Out out) {
    const Tensor &before = out[0], &saved = in[2];
    const Matrix gradient(in[0]), weight(in[1]);
    Gemm g = gemm_of(gradient, weight, before);
    g.activation = at.activation;
    if (!saved->contiguous || saved->dtype != g.c_type || !takes_saved(g)) {
        matmul(in.first(2), {}, out.first(1));
        const Tensor given[] = {before, saved};
        return activation_grad(given, {.activation = at.activation}, out);
    }
    g.saved = saved->bytes();
    gemm(g);
    if (out.size() > 1) column_sum(out.first(1), {}, out.subspan(1));
}

// Computes the column sums while op(A) is packed, if it is packed.
void linear_weight_grad(In in, const kernels::LinearWeightGrad& at, Out out) {
    const Matrix gradient(in[0]), x(in[1]);
    Gemm g = gemm_of(gradient, x, out[0]);
    g.m = gradient.cols();
    g.k = gradient.rows();
    g.trans_a = !g.trans_a;
    g.beta = float(at.beta);
    if (!makes_a_sums(g)) {
        gemm(g);
        return column_sum(in.first(1), {}, out.subspan(1));
    }
    thread_local Buffer scratch;
    g.a_sums = scratch.get<double>(g.m);
    std::fill_n(g.a_sums, g.m, 0.0);
    gemm(g);
    std::copy_n(g.a_sums, g.m, reinterpret_cast<float*>(out[1]->bytes()));
}

constinit const KernelList matmul_list =
    kernel_list<matmul, linear, merged_linear, linear_input_grad, linear_weight_grad, quantized_linear>;

}  // namespace cpu_kernels
}  // namespace mezzo
