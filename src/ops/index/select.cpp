// Ops with conditions: where, masked_fill, logical_not, isfinite, and the gradient of clamp.
#include "kernels/elementwise.h"
#include "ops/common.h"

#include <algorithm>
#include <cmath>

namespace mezzo {

namespace {

Tensor zero_where(const Tensor& g, const Tensor& mask) { return masked_fill(g, mask, 0); }

const Op<kernels::LogicalNot> logical_not_op{{.name = "logical_not",
                                              .saves = save_none,
                                              .result = ResultDtype::flags,
                                              .strided = true,
                                              .differentiable = false},
                                             nullptr,
                                             [](In in) -> Tensors { return {eq(in[0], 0.0)}; }};

const Op<kernels::IsFinite> isfinite_op{{.name = "isfinite",
                                         .saves = save_none,
                                         .result = ResultDtype::flags,
                                         .strided = true,
                                         .differentiable = false},
                                        nullptr,
                                        [](In in) -> Tensors { return {eq(in[0] - in[0], 0.0)}; }};

const Op<kernels::Where> where_op{
    {.name = "where", .saves = save_first, .result = ResultDtype::requested, .strided = true, .mixed = true},
    [](const Node& c, const Tensors& g) -> Tensors {
        const Tensor condition = c.in(0);
        return {Tensor(), c.needs(1) ? zero_where(g[0], logical_not(condition)) : Tensor(),
                c.needs(2) ? zero_where(g[0], condition) : Tensor()};
    }};

const Op<kernels::MaskedFill> masked_fill_op{
    {.name = "masked_fill", .saves = save_second, .strided = true, .mixed = true},
    [](const Node& c, const Tensors& g) -> Tensors {
        return {zero_where(g[0], c.in(1)), Tensor()};
    }};

const Op<kernels::ClampGrad> clamp_grad_op{
    {.name = "clamp_grad",
     .saves = save_second,
     .result = ResultDtype::promoted,
     .strided = true,
     .mixed = true},
    [](const Node& c, const kernels::ClampGrad& at, const Tensors& g) -> Tensors {
        if (!c.needs(0)) return {Tensor(), Tensor()};
        return {clamp_grad(g[0], c.in(1), at.low, at.high), Tensor()};
    },
    [](In in, const kernels::ClampGrad& at) -> Tensors {
        const Tensor inside = logical_and(ge(in[1], at.low), le(in[1], at.high));
        return {masked_fill(in[0], logical_not(inside), 0)};
    }};

double saturated(double value, Dtype dtype) {
    if (!is_16bit(dtype) || !std::isfinite(value)) return value;
    const double highest = dtype_info(dtype).max;
    return std::clamp(value, -highest, highest);
}

}  // namespace

Tensor logical_not(const Tensor& x) {
    check_defined("logical_not", x);
    return call(logical_not_op, {x}, {}, x.shape());
}

Tensor isfinite(const Tensor& x) {
    check_defined("isfinite", x);
    return call(isfinite_op, {x}, {}, x.shape());
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
    check_boolean("where", "condition", condition);
    check_defined("where", a, any_dtype);
    check_defined("where", b, any_dtype);
    if (is_storage_only(a.dtype()) && a.dtype() == b.dtype())
        return as_dtype(where(condition, as_dtype(a, uint8), as_dtype(b, uint8)), a.dtype());
    check_computes("where", a.dtype());
    check_computes("where", b.dtype());
    const Dtype dtype = promote_operands(a.dtype(), a.dim(), b.dtype(), b.dim());
    const Shape shape =
        broadcast_shapes("where", condition.shape(), broadcast_shapes("where", a.shape(), b.shape()));
    return call(where_op, {condition, a, b}, {}, shape, dtype);
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value) {
    check_defined("masked_fill", x);
    check_boolean("masked_fill", "mask", mask);
    const Shape shape = broadcast_shapes("masked_fill", x.shape(), mask.shape());
    if (shape != x.shape()) return masked_fill(x.expand(shape), mask, value);
    check_value("masked_fill", "value", value, x.dtype());
    if (x.dtype() == int64 && exceeds_double(value)) return where(mask, value, x);
    const double number = kernel_number(element_value(value, x.dtype()), x.dtype());
    return call(masked_fill_op, {x, mask}, {.value = saturated(number, x.dtype())}, x.shape());
}

Tensor clamp_grad(const Tensor& g, const Tensor& x, double low, double high) {
    check_floating("clamp_grad", g);
    check_floating("clamp_grad", x);
    check_same_shape("clamp_grad", g, x);
    return call(clamp_grad_op, {g, x}, {.low = low, .high = high}, x.shape());
}

}  // namespace mezzo
