// matmul and linear: batches and strides folded into as few GEMM calls as possible.
#include "kernels/merged_linear.h"

#include <utility>

#include "core/rows.h"
#include "cuda/gemm/gemm.h"
#include "cuda/kernels.h"
#include "cuda/runtime/runtime.h"
#include "kernels/linear_weight_grad.h"

namespace mezzo::cuda {
namespace {

// The last two dimensions of a tensor as a GEMM operand.
struct Matrix {
    Tensor tensor;  // keeps a contiguous copy alive
    std::int64_t rows, cols, ld;
    bool transposed;
};

// One of the two strides must be 1 and the other long enough; a stride of a dimension of size 1 does not
// count.
bool as_matrix(const Tensor& x, Matrix& m) {
    const int d = x.dim();
    const std::int64_t rows = x.shape()[d - 2], cols = x.shape()[d - 1];
    const std::int64_t row_stride = x.strides()[d - 2], col_stride = x.strides()[d - 1];
    const auto fits = [](std::int64_t size, std::int64_t stride, std::int64_t length) {
        return size <= 1 || stride >= length;
    };
    const auto ld = [](std::int64_t size, std::int64_t stride, std::int64_t length) {
        const std::int64_t least = length > 0 ? length : 1;
        return size <= 1 || stride < least ? least : stride;
    };
    m = {x, rows, cols, ld(rows, row_stride, cols), false};
    if ((cols <= 1 || col_stride == 1) && fits(rows, row_stride, cols)) return true;
    m.ld = ld(cols, col_stride, rows);
    m.transposed = true;
    return (rows <= 1 || row_stride == 1) && fits(cols, col_stride, rows);
}

Matrix matrix(const Tensor& x) {
    Matrix m;
    if (as_matrix(x, m)) return m;
    const Tensor copy = empty(x.shape(), {.dtype = x.dtype(), .device = x.device()});
    const Tensor in[] = {x}, out[] = {copy};
    cuda_kernels::cast(in, {}, out);
    as_matrix(copy, m);
    return m;
}

void* element(const Tensor& x, std::int64_t offset) {
    return static_cast<char*>(raw(x)) + offset * std::int64_t(size_of(x.dtype()));
}

// The batch dimensions of the three operands. Adjacent dimensions are merged where one stride per operand
// covers both, so that one GEMM call covers the last one.
struct Batches {
    int dims = 0;
    std::int64_t sizes[max_dims], a[max_dims], b[max_dims], c[max_dims];

    void push(std::int64_t size, std::int64_t stride_a, std::int64_t stride_b, std::int64_t stride_c) {
        if (size == 1) return;
        const int last = dims - 1;
        const bool merges = dims > 0 && a[last] == stride_a * size && b[last] == stride_b * size &&
                            c[last] == stride_c * size;
        const int d = merges ? last : dims++;
        sizes[d] = merges ? sizes[d] * size : size;
        a[d] = stride_a;
        b[d] = stride_b;
        c[d] = stride_c;
    }
};

// The stride of x along dimension d of a result with `dims` dimensions: 0 where x lacks the dimension or is
// broadcast.
std::int64_t batch_stride(const Tensor& x, int d, int dims) {
    const int own = d - (dims - x.dim());
    return own < 0 || x.shape()[own] == 1 ? 0 : x.strides()[own];
}

void run_batches(Gemm g, const Batches& batches, const Tensor& a, const Tensor& b, const Tensor& c) {
    const int outer = batches.dims - 1;  // the last dimension is GEMM's own batch
    if (outer >= 0) {
        g.batch = batches.sizes[outer];
        g.stride_a = batches.a[outer];
        g.stride_b = batches.b[outer];
        g.stride_c = batches.c[outer];
    }
    std::int64_t calls = 1;
    for (int d = 0; d < outer; ++d) calls *= batches.sizes[d];
    for (std::int64_t call = 0; call < calls; ++call) {
        std::int64_t rest = call, at_a = 0, at_b = 0, at_c = 0;
        for (int d = outer - 1; d >= 0; --d) {
            const std::int64_t index = rest % batches.sizes[d];
            rest /= batches.sizes[d];
            at_a += index * batches.a[d];
            at_b += index * batches.b[d];
            at_c += index * batches.c[d];
        }
        g.a = element(a, at_a);
        g.b = element(b, at_b);
        g.c = element(c, at_c);
        gemm(g);
    }
}

Gemm gemm_of(const Matrix& a, const Matrix& b, const Tensor& c) {
    Gemm g;
    g.m = a.rows;
    g.n = b.cols;
    g.k = a.cols;
    g.trans_a = a.transposed;
    g.trans_b = b.transposed;
    g.a = raw(a.tensor);
    g.a_type = a.tensor.dtype();
    g.lda = a.ld;
    g.b = raw(b.tensor);
    g.b_type = b.tensor.dtype();
    g.ldb = b.ld;
    g.c = raw(c);
    g.c_type = c.dtype();
    g.ldc = g.n > 0 ? g.n : 1;
    return g;
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void matmul(In in, const kernels::MatMul& at, Out out) {
    set_device(out[0].device().index);
    const Matrix a = matrix(in[0]), b = matrix(in[1]);
    Gemm g = gemm_of(a, b, out[0]);
    g.beta = static_cast<float>(at.beta);
    if (out[0].numel() == 0) return;
    const int dims = out[0].dim();
    Batches batches;
    for (int d = 0; d < dims - 2; ++d)
        batches.push(out[0].shape()[d], batch_stride(a.tensor, d, dims), batch_stride(b.tensor, d, dims),
                     batch_stride(out[0], d, dims));
    // consecutive matrices that are multiplied by the same right-hand side are one tall matrix
    if (batches.dims == 1 && !a.transposed && batches.b[0] == 0 && batches.a[0] == g.m * g.lda &&
        batches.c[0] == g.m * g.ldc) {
        g.m *= batches.sizes[0];
        return gemm(g);
    }
    run_batches(g, batches, a.tensor, b.tensor, out[0]);
}

void linear(In in, const kernels::Linear& at, Out out) {
    set_device(out[0].device().index);
    const Matrix x = matrix(as_rows(in[0])), weight = matrix(in[1]);
    Gemm g = gemm_of(x, weight, out[0]);
    g.n = weight.rows;
    g.trans_b = !weight.transposed;
    g.ldc = row_stride(out[0]);
    if (in.size() > 2 && in[2].defined()) {
        g.bias = raw(in[2]);
        g.bias_type = in[2].dtype();
    }
    if (out.size() > 1) (out[1].dtype() == uint8 ? g.mask : g.pre_activation) = raw(out[1]);
    g.activation = at.activation;
    if (out[0].numel() > 0) gemm(g);
}

void linear_input_grad(In in, const kernels::LinearInputGrad& at, Out out) {
    set_device(out[0].device().index);
    const Matrix gradient = matrix(in[0]), weight = matrix(in[1]);
    Gemm g = gemm_of(gradient, weight, out[0]);
    g.activation = at.activation;
    g.saved = raw(in[2]);
    if (in.size() > 3 && in[3].defined()) g.mask = raw(in[3]);
    if (out.size() > 1) g.bias_grad = raw(out[1]);
    if (g.n > 0) gemm(g);
}

void linear_weight_grad(In in, const kernels::LinearWeightGrad& at, Out out) {
    set_device(out[0].device().index);
    Matrix gradient = matrix(in[0]);
    std::swap(gradient.rows, gradient.cols);
    gradient.transposed = !gradient.transposed;
    Gemm g = gemm_of(gradient, matrix(in[1]), out[0]);
    g.beta = static_cast<float>(at.beta);
    g.a_sums = raw(out[1]);
    if (g.m > 0) gemm(g);
}

void merged_linear(In in, const kernels::MergedLinear& at, Out out) {
    kernels::run_merged_linear(in, at, out, linear);
}

constinit const KernelList matmul_list =
    kernel_list<matmul, linear, merged_linear, linear_input_grad, linear_weight_grad>;

}  // namespace mezzo::cuda_kernels
