// Matrix products.
#include "kernels/matmul.h"
#include "core/rows.h"
#include "kernels/dispatch.h"
#include "ops/gemm/products.h"

#include <algorithm>

namespace mezzo {

namespace {

const KernelOf<kernels::MatMul> matmul_kernel;

Tensor transposed(const Tensor& x) { return x.transpose(-2, -1); }

Tensor left_grad(const Node& c, const Tensor& g) { return product_grad(c, 0, g, transposed(c.in(1))); }
Tensor right_grad(const Node& c, const Tensor& g) { return product_grad(c, 1, transposed(c.in(0)), g); }

Tensors matmul_vjp(const Node& c, const Tensors& g) {
    Tensors grads(2);
    if (c.needs(0)) grads[0] = left_grad(c, g[0]);
    if (c.needs(1)) grads[1] = right_grad(c, g[0]);
    return grads;
}

// a [batch.., m, k], b [batch.., k, n], with equal batch dimensions.
const Op<kernels::MatMul> matmul_op{
    {.name = "matmul", .cast = CastPolicy::low, .strided = true}, matmul_vjp, [](In in) -> Tensors {
        return {sum(in[0].unsqueeze(-1) * in[1].unsqueeze(-3), {-2})};
    }};

Tensor product(const Tensor& a, const Tensor& b, std::optional<Dtype> dtype = {}) {
    Shape shape = a.shape();
    shape.back() = b.size(-1);
    return call(matmul_op, {gemm_ready(a), gemm_ready(b)}, {}, shape, dtype);
}

// x expanded so that its leading dimensions are `batch`.
Tensor with_batch(const Tensor& x, const Shape& batch) {
    Shape shape = batch;
    shape.push_back(x.size(-2));
    shape.push_back(x.size(-1));
    return x.expand(shape);
}

Shape batch_of(const Tensor& x) { return Shape(x.shape().begin(), x.dim() - 2); }

Tensor matrix_product(const Tensor& a, const Tensor& b) {
    if (a.dim() == 2 && b.dim() == 2) return product(a, b);
    if (b.dim() == 2) {  // [.., m, k] x [k, n] is one product of all rows
        Shape shape = a.shape();
        shape.back() = b.size(1);
        const std::int64_t k = a.size(-1);
        return product(a.reshape({k ? a.numel() / k : batch_of(a).numel() * a.size(-2), k}), b)
            .reshape(shape);
    }
    const Shape batch = broadcast_shapes("matmul", batch_of(a), batch_of(b));
    return product(with_batch(a, batch), with_batch(b, batch));
}

}  // namespace

Tensor gemm_ready(const Tensor& x) {
    const std::int64_t rows = x.size(-2), cols = x.size(-1);
    const std::int64_t row_stride = x.strides()[x.dim() - 2], col_stride = x.strides()[x.dim() - 1];
    const bool by_rows = col_stride == 1 && row_stride >= std::max<std::int64_t>(1, cols);
    const bool by_cols = row_stride == 1 && col_stride >= std::max<std::int64_t>(1, rows);
    return by_rows || by_cols ? x : x.contiguous();
}

void check_factors(const char* op, const Tensor& a, const Tensor& b) {
    check_floating(op, a, "the first operand");
    check_floating(op, b, "the second operand");
    const Dtype da = autocast_dtype(CastPolicy::low, a), db = autocast_dtype(CastPolicy::low, b);
    check(da == db, ErrorKind::dtype, op, ": operands are ", da, " and ", db,
          "; convert one with to(), or open an Autocast scope (which leaves float64 alone)");
}

Tensor product_as(const Tensor& a, const Tensor& b, Dtype wanted) {
    const Dtype dtype = promote(a.dtype(), b.dtype());
    const bool to_float = is_16bit(dtype) && !(wanted == dtype);
    return product(cast(a, dtype), cast(b, dtype), to_float ? std::optional(float32) : std::nullopt);
}

void add_product(const Tensor& a, const Tensor& b, const Tensor& total) {
    const Tensor operands[] = {gemm_ready(a), gemm_ready(b)};
    matmul_kernel(operands, {.beta = 1}, as_rows(total));
    total->storage->version.fetch_add(1, std::memory_order_relaxed);
}

Tensor matrix_of(const Tensor& x) { return x.dim() == 2 ? x : x.reshape({rows_of(x.shape()), x.size(-1)}); }

Tensor product_grad(const Node& c, int i, const Tensor& a, const Tensor& b) {
    const bool fits = a.dim() == 2 && b.dim() == 2 && a.dtype() == b.dtype() && a.dtype() != float64;
    if (fits)
        if (const Tensor grad = c.accumulator(i); grad.defined()) {
            add_product(a, b, grad);
            return {};
        }
    if (fits && c.grad_dtype(i) == float32)
        if (const Tensor waiting = c.take_accumulated(i, true); waiting.defined()) {
            add_product(a, b, waiting);
            return waiting;
        }
    return product_as(a, b, c.grad_dtype(i));
}

Tensor matmul(const Tensor& a, const Tensor& b) {
    check_factors("matmul", a, b);
    check(a.dim() > 0 && b.dim() > 0, ErrorKind::shape, "matmul: a 0-dim operand, ", a.shape(), " and ",
          b.shape(), "; multiply with * instead");
    const std::int64_t inner = b.dim() == 1 ? b.size(0) : b.size(-2);
    check(a.size(-1) == inner, ErrorKind::shape, "matmul: inner sizes differ, ", a.shape(), " and ",
          b.shape());
    const Tensor left = a.dim() == 1 ? a.unsqueeze(0) : a, right = b.dim() == 1 ? b.unsqueeze(1) : b;
    Tensor y = matrix_product(left, right);
    if (b.dim() == 1) y = y.squeeze(-1);
    if (a.dim() == 1) y = y.squeeze(b.dim() == 1 ? -1 : -2);
    return y;
}

}  // namespace mezzo
