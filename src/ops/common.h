// Helpers of public ops: checks, dtypes and shapes.
#pragma once

#include "autograd/op.h"
#include "core/storage_codes.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo {

// For functions that move or convert elements and compute nothing.
inline constexpr bool any_dtype = true;
// Throws Error(value) if x is undefined, and Error(dtype) if its dtype is for storage only, unless any_dtype.
void check_defined(const char* op, const Tensor& x, bool takes_any_dtype = false);
// `what` is the operand's name in the error.
void check_floating(const char* op, const Tensor& x, const char* what = "input");
// Throws Error(value) if an integral dtype cannot hold `value` without its fraction. `what` is its name in
// the error. Other dtypes hold every number, if need be as infinity.
void check_value(const char* op, const char* what, Scalar value, Dtype dtype);
// Whether `value` is an integer that a double may not hold. For int64 it becomes a 0-dim tensor, because
// kernels take numbers as doubles.
inline bool exceeds_double(Scalar value) {
    return value.is_integer() && (value.to<std::int64_t>() >= std::int64_t(1) << 53 ||
                                  value.to<std::int64_t>() <= -(std::int64_t(1) << 53));
}
// `value` as an attribute for kernels of the dtype. It is rounded to float32 here if a double does not hold
// it exactly, so that kernels that compute in float32 do not round it a second time.
inline double kernel_number(Scalar value, Dtype dtype) {
    return exceeds_double(value) && dtype != float64 ? double(value.to<float>()) : value.to<double>();
}
// `value` as an element of the dtype: a fraction is true.
inline Scalar element_value(Scalar value, Dtype dtype) {
    return dtype == boolean ? Scalar(value.to<double>() != 0) : value;
}
// `value` as an error text shows it.
inline detail::Item item(Scalar value) {
    if (value.is_integer()) return static_cast<long long>(value.to<std::int64_t>());
    return value.to<double>();
}
void check_same_shape(const char* op, const Tensor& a, const Tensor& b);
// Throws Error(dtype) unless b, named `what` in the error, is defined and has the dtype of a.
void check_same_dtype(const char* op, const Tensor& a, const char* what, const Tensor& b);
// Throws Error(dtype) unless mask is boolean; `what` is its name in the error.
void check_boolean(const char* op, const char* what, const Tensor& mask);

// The dtype of two operands together. A 0-dim tensor changes the dtype of one with dimensions only if its own
// is of a higher category: boolean < integral < floating.
Dtype promote_operands(Dtype a, int a_dims, Dtype b, int b_dims);

// x in float32 if it is 16 bit, as decompositions compute; otherwise x itself.
inline Tensor widened(const Tensor& x) { return is_16bit(x.dtype()) ? cast(x, float32) : x; }

// The bytes of x as elements of another dtype of their size, in the same memory.
inline Tensor as_dtype(const Tensor& x, Dtype dtype) {
    return make_tensor(x->storage, x->shape, x->strides, x->offset, dtype);
}

// y, or a copy of it if y uses the memory of x. Writes to a result must not reach the input unless the
// function is a view.
Tensor in_own_memory(const Tensor& y, const Tensor& x);

// Whether an op called now with x, y, … would be recorded.
template <class... T> bool recording(const T&... x) { return grad_enabled() && (tracked(x) || ...); }

// The axes wrapped and sorted, or all axes if the list is empty. Throws Error(shape) for an axis that is
// listed twice.
Axes normal_axes(const char* op, const Axes& axes, int dims);
// The shape after a reduction over `axes`.
Shape reduced_shape(const Shape& shape, const Axes& axes, bool keepdim);
// The reduced tensor with size-1 dimensions where the reduction had axes.
Tensor with_kept_dims(const Tensor& reduced, const Shape& full, const Axes& axes);

// The number of values in `shape` along `axes`.
std::int64_t count_along(const Shape& shape, const Axes& axes);
// The number of rows of a tensor [..., n].
std::int64_t rows_of(const Shape& shape);

inline ReduceOptions keep_dims() { return {.keepdim = true}; }

// Makes `view`, a tensor on x's storage, the result of op, and records op if x requires grad.
Tensor recorded_view(const AnyOp& op, const Tensor& x, const AttributesRef& at, const Tensor& view);

}  // namespace mezzo
