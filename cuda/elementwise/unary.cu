// Element-wise functions of one tensor: the unary and scalar rows of mezzo/ops.def.
#include "cuda/elementwise/elementwise.cuh"
#include "cuda/kernels.h"
#include "kernels/elementwise.h"
#include "kernels/functors.h"

namespace mezzo::cuda {
namespace {

// Values of the `ints` column: are integers computed as integers? If not, they are converted to float32
// first.
constexpr bool same = true, real = false;

enum class UnaryOp : std::uint8_t {
#define MEZZO_UNARY(name, cast, ints, save, gradient) name,
#define MEZZO_UNARY_SCALAR(name, cast, ints, save, gradient) name,
#include "mezzo/ops.def"
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
};
#define MEZZO_UNARY(name, cast, ints, save, gradient) \
    constexpr UnaryOp number_of(functors::name) { return UnaryOp::name; }
#define MEZZO_UNARY_SCALAR(name, cast, ints, save, gradient) \
    template <class C> constexpr UnaryOp number_of(functors::name<C>) { return UnaryOp::name; }
#include "mezzo/ops.def"
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR

// Any unary op in compute type C, chosen when the kernel runs. So the types in which no model is trained have
// one kernel for all ops instead of one per op.
template <class C> struct AnyUnary {
    UnaryOp op;
    C scalars[2];  // the functor's members

    template <class F> explicit AnyUnary(const F& f) : op(number_of(f)), scalars{} {
        static_assert(std::is_empty_v<F> || sizeof(F) <= sizeof scalars);
        if constexpr (!std::is_empty_v<F>) std::memcpy(scalars, &f, sizeof f);
    }
    template <class F> __device__ C apply(C x) const {
        F f;
        if constexpr (!std::is_empty_v<F>) std::memcpy(&f, scalars, sizeof f);
        return f(x);
    }
    __device__ C operator()(C x) const {
        switch (op) {
#define MEZZO_UNARY(name, cast, ints, save, gradient)                                  \
    case UnaryOp::name:                                                                \
        if constexpr (ints || !std::is_integral_v<C>) return apply<functors::name>(x); \
        break;
#define MEZZO_UNARY_SCALAR(name, cast, ints, save, gradient)                              \
    case UnaryOp::name:                                                                   \
        if constexpr (ints || !std::is_integral_v<C>) return apply<functors::name<C>>(x); \
        break;
#include "mezzo/ops.def"
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
        }
        return x;
    }
};

// make(C{}) gives the functor for compute type C.
template <bool integers, class Make> void unary(In in, Out out, const Make& make) {
    const OperandLayout<2> l = make_layout<2>({out[0], in[0]});
    switch (compute_kind({out[0].dtype(), in[0].dtype()})) {
        case ComputeKind::float64:
            return map_general<double>(l, AnyUnary<double>(make(0.0)));
        case ComputeKind::integer:
            if constexpr (integers)
                return map_general<std::int64_t>(l, AnyUnary<std::int64_t>(make(std::int64_t(0))));
            [[fallthrough]];
        case ComputeKind::float32:
            if (!map_flat_any(l, make(0.0f))) map_general<float>(l, make(0.0f));
    }
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

#define MEZZO_UNARY(op, cast, ints, save, gradient)                \
    void op(In in, const kernels::op&, Out out) {                  \
        unary<ints>(in, out, [](auto) { return functors::op{}; }); \
    }
#define MEZZO_UNARY_SCALAR(op, cast, ints, save, gradient)                         \
    void op(In in, const kernels::op& at, Out out) {                               \
        unary<ints>(in, out, [&]<class C>(C) {                                     \
            return functors::op<C>{scalar_as<C>(at.alpha), scalar_as<C>(at.beta)}; \
        });                                                                        \
    }
#include "mezzo/ops.def"
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR

#define MEZZO_UNARY(op, cast, ints, save, gradient) kernel_entry<op>(),
#define MEZZO_UNARY_SCALAR(op, cast, ints, save, gradient) kernel_entry<op>(),
constexpr KernelEntry entries[] = {
#include "mezzo/ops.def"
};
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
constinit const KernelList unary_list = entries;

}  // namespace mezzo::cuda_kernels
