// Element-wise kernels of several tensors: any strides, broadcast, of dtypes that differ.
#pragma once

#include "core/tensor_impl.h"
#include "kernels/kernel.h"

namespace mezzo::kernels {

// x, a, b -> x + value a b.
struct AddCMul {
    static constexpr const char* name = "addcmul";
    double value = 1;
};
// x, a, b -> x + value a / b.
struct AddCDiv {
    static constexpr const char* name = "addcdiv";
    double value = 1;
};
// a, b, weight -> a + weight (b - a), from the nearer end.
struct Lerp {
    static constexpr const char* name = "lerp";
};
// The same of a and b with a number.
struct LerpScalar {
    static constexpr const char* name = "lerp_scalar";
    double weight = 0;
};

// Gates: a sigmoid(b) and silu(a) b.
//   a, b -> y         of two tensors
//   x -> y            of the halves of x along `dim`
struct Glu {
    static constexpr const char* name = "glu";
    int dim = 0;
};
struct SwiGlu {
    static constexpr const char* name = "swiglu";
    int dim = 0;
};
// Their gradients.
//   g, a, b -> da, db
//   g, x -> dx
struct GluGrad {
    static constexpr const char* name = "glu_grad";
    int dim = 0;
};
struct SwiGluGrad {
    static constexpr const char* name = "swiglu_grad";
    int dim = 0;
};

// The first or the second half of x along `dim`, on x's storage and without a history.
inline Tensor half_of(const Tensor& x, int dim, bool second) {
    Shape shape = x.shape();
    shape[dim] /= 2;
    const std::int64_t offset = second ? shape[dim] * x.strides()[dim] : 0;
    return make_tensor(x->storage, shape, x.strides(), x->offset + offset, x.dtype());
}

// The operands of a gate, or of its gradient: two tensors of `list` from `first` on, or halves of one.
struct GateOperands {
    Tensor a, b;
    template <class List> GateOperands(const List& list, std::size_t first, int dim)
        : a(list.size() > first + 1 ? list[first] : half_of(list[first], dim, false)),
          b(list.size() > first + 1 ? list[first + 1] : half_of(list[first], dim, true)) {}
};

}  // namespace mezzo::kernels
