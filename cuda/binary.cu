// Element-wise functions of two tensors: the binary rows of mezzo/ops.def.
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"
#include "kernels/elementwise.h"
#include "kernels/functors.h"

namespace mezzo::cuda {
namespace {

constexpr bool same = true, real = false;  // the `ints` column: whether integers are computed in

template <bool integers, class F> void binary(In in, Out out, const F& f) {
    const Layout<3> l = make_layout<3>({out[0], in[0], in[1]});
    switch (compute_kind({out[0].dtype(), in[0].dtype(), in[1].dtype()})) {
        case ComputeKind::float64:
            return map_general<double>(l, f);
        case ComputeKind::integer:
            if constexpr (integers) return map_general<std::int64_t>(l, f);
            [[fallthrough]];
        case ComputeKind::float32:
            if (!map_flat_any(l, f)) map_general<float>(l, f);
    }
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

#define MEZZO_BINARY(op, cast, ints, keep, gradient_a, gradient_b) \
    void op(In in, const kernels::op&, Out out) { binary<ints>(in, out, functors::op{}); }
#include "mezzo/ops.def"
#undef MEZZO_BINARY

#define MEZZO_BINARY(op, cast, ints, keep, gradient_a, gradient_b) kernel_entry<op>(),
constexpr KernelEntry entries[] = {
#include "mezzo/ops.def"
};
#undef MEZZO_BINARY
constinit const KernelList binary_list = entries;

}  // namespace mezzo::cuda_kernels
