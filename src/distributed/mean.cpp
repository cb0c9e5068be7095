#include "distributed/mean.h"

#include "core/tensor_impl.h"
#include "cpu/parallel.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo::distributed {

namespace {

// Sends each rank one piece of all ranks' elements to add, then all-gathers the sums.
void ordered_mean(Collectives& engine, const Tensor& x, Dtype wire, int ranks) {
    const double share = 1.0 / ranks;
    const bool same = x.dtype() == wire;
    const std::int64_t piece = x.numel() / ranks;
    const std::size_t bytes = std::size_t(piece) * size_of(wire);
    const Tensor sent = same ? x : (x * share).to(wire);
    const Tensor received = empty({ranks, piece}, {.dtype = wire});
    engine.all_to_all(raw(sent), raw(received), bytes);
    const Tensor sum = zeros({piece});
    sum.copy_(received.select(0, 0));
    for (int rank = 1; rank < ranks; ++rank) sum.add_(received.select(0, rank).to(float32));
    if (same) sum.mul_(share);
    const Tensor mine = sum.to(wire);
    const Tensor all = same ? x : empty({x.numel()}, {.dtype = wire});
    engine.all_gather(raw(mine), raw(all), bytes);
    if (!same) x.copy_(all);
}

bool is_ordered(Dtype dtype, const MeanOptions& options) {
    return is_16bit(dtype) || (dtype == float32 && (options.ordered || options.wire != float32));
}

Dtype wire_of(Dtype dtype, const MeanOptions& options) { return dtype == float32 ? options.wire : dtype; }

}  // namespace

void mean_(Collectives& engine, const Tensor& x, const MeanOptions& options) {
    const NoGrad plain;
    const cpu::SerialScope alone;  // the library's threads are busy with the backward
    if (is_ordered(x.dtype(), options))
        ordered_mean(engine, x, wire_of(x.dtype(), options), options.ranks);
    else
        engine.all_reduce(raw(x), x.numel(), x.dtype(), ReduceOp::mean);
}

void mean_(DeviceCollectives& engine, const Tensor& x, const MeanOptions& options, const Tensor& scratch) {
    if (is_ordered(x.dtype(), options))
        engine.ordered_mean(raw(x), x.numel(), x.dtype(), wire_of(x.dtype(), options), raw(scratch));
    else
        engine.all_reduce(raw(x), x.numel(), x.dtype(), DeviceReduction::mean);
}

std::int64_t mean_scratch(std::int64_t elements, Dtype dtype, const MeanOptions& options) {
    if (!is_ordered(dtype, options)) return 0;
    return std::int64_t(ordered_mean_scratch(elements, options.ranks, wire_of(dtype, options)));
}

}  // namespace mezzo::distributed
