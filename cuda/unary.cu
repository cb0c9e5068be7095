// Element-wise functions of one tensor: the unary and scalar rows of mezzo/ops.def.
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"
#include "kernels/elementwise.h"
#include "kernels/functors.h"

namespace mezzo::cuda {
namespace {

// What the `ints` column says of integers: computed in as they are, or never seen by the kernel's functor.
constexpr bool same = true, real = false;

// make(C{}) gives the functor for compute type C.
template <bool integers, class Make> void unary(In in, Out out, const Make& make) {
    const Layout<2> l = make_layout<2>({out[0], in[0]});
    switch (compute_kind({out[0].dtype(), in[0].dtype()})) {
        case ComputeKind::float64:
            return map_general<double>(l, make(0.0));
        case ComputeKind::integer:
            if constexpr (integers) return map_general<std::int64_t>(l, make(std::int64_t(0)));
            [[fallthrough]];
        case ComputeKind::float32:
            if (!map_flat_any(l, make(0.0f))) map_general<float>(l, make(0.0f));
    }
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

#define MEZZO_UNARY(op, cast, ints, keep, gradient)                \
    void op(In in, const kernels::op&, Out out) {                  \
        unary<ints>(in, out, [](auto) { return functors::op{}; }); \
    }
#define MEZZO_UNARY_SCALAR(op, cast, ints, keep, gradient)                         \
    void op(In in, const kernels::op& at, Out out) {                               \
        unary<ints>(in, out, [&]<class C>(C) {                                     \
            return functors::op<C>{scalar_as<C>(at.alpha), scalar_as<C>(at.beta)}; \
        });                                                                        \
    }
#include "mezzo/ops.def"
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR

#define MEZZO_UNARY(op, cast, ints, keep, gradient) kernel_entry<op>(),
#define MEZZO_UNARY_SCALAR(op, cast, ints, keep, gradient) kernel_entry<op>(),
constexpr KernelEntry entries[] = {
#include "mezzo/ops.def"
};
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
constinit const KernelList unary_list = entries;

}  // namespace mezzo::cuda_kernels
