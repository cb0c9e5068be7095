// The methods of ops.def and methods.def: each calls the function of its name.
#include "mezzo/ops.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/product_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/shape_ops.h"
#include "mezzo/sort_ops.h"

namespace mezzo {

#define MEZZO_UNARY(name, cast, ints, save, gradient) \
    Tensor Tensor::name() const { return mezzo::name(*this); }
#include "mezzo/ops.def"
#undef MEZZO_UNARY

#define MEZZO_DEFAULT(...)
#define MEZZO_METHOD(result, name, parameters, ...) \
    result Tensor::name parameters const { return mezzo::name(*this __VA_OPT__(, ) __VA_ARGS__); }
#include "mezzo/methods.def"
#undef MEZZO_METHOD
#undef MEZZO_DEFAULT

}  // namespace mezzo
