// Element-wise functions of two tensors: the binary rows of mezzo/ops.def.
#include "cuda/elementwise/elementwise.cuh"
#include "cuda/kernels.h"
#include "kernels/elementwise.h"
#include "kernels/functors.h"

namespace mezzo::cuda {
namespace {

constexpr bool same = true, real = false;  // values of the `ints` column: are integers computed as integers?

enum class BinaryOp : std::uint8_t {
#define MEZZO_BINARY(name, cast, ints, save, gradient_a, gradient_b) name,
#include "mezzo/ops.def"
#undef MEZZO_BINARY
};
#define MEZZO_BINARY(name, cast, ints, save, gradient_a, gradient_b) \
    constexpr BinaryOp number_of(functors::name) { return BinaryOp::name; }
#include "mezzo/ops.def"
#undef MEZZO_BINARY

// Any binary op in compute type C, chosen when the kernel runs. So the types in which no model is trained
// have one kernel for all ops instead of one per op.
template <class C> struct AnyBinary {
    BinaryOp op;
    __device__ C operator()(C a, C b) const {
        switch (op) {
#define MEZZO_BINARY(name, cast, ints, save, gradient_a, gradient_b)                 \
    case BinaryOp::name:                                                             \
        if constexpr (ints || !std::is_integral_v<C>) return functors::name{}(a, b); \
        break;
#include "mezzo/ops.def"
#undef MEZZO_BINARY
        }
        return a;
    }
};

template <bool integers, class F> void binary(In in, Out out, const F& f) {
    const OperandLayout<3> l = make_layout<3>({out[0], in[0], in[1]});
    switch (compute_kind({out[0].dtype(), in[0].dtype(), in[1].dtype()})) {
        case ComputeKind::float64:
            return map_general<double>(l, AnyBinary<double>{number_of(f)});
        case ComputeKind::integer:
            if constexpr (integers)
                return map_general<std::int64_t>(l, AnyBinary<std::int64_t>{number_of(f)});
            [[fallthrough]];
        case ComputeKind::float32:
            if (!map_flat_any(l, f)) map_general<float>(l, f);
    }
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

#define MEZZO_BINARY(op, cast, ints, save, gradient_a, gradient_b) \
    void op(In in, const kernels::op&, Out out) { binary<ints>(in, out, functors::op{}); }
#include "mezzo/ops.def"
#undef MEZZO_BINARY

#define MEZZO_BINARY(op, cast, ints, save, gradient_a, gradient_b) kernel_entry<op>(),
constexpr KernelEntry entries[] = {
#include "mezzo/ops.def"
};
#undef MEZZO_BINARY
constinit const KernelList binary_list = entries;

}  // namespace mezzo::cuda_kernels
