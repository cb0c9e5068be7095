// State of optimizers in less than 32 bits: which it is, and conversions between its formats.
#include "kernels/narrow_state.h"

#include <algorithm>

#include "mezzo/ops.h"
#include "optim/optimizer.h"

namespace mezzo::optim {

namespace {

constexpr std::int64_t least_narrow = 4096;  // elements

// Whether a parameter's state is wide by default. Rows of embeddings get few gradients, which 8 bit represent
// badly (arXiv 2110.02861, section 2.3); vectors are biases and the weights of norms.
bool is_sensitive(const Tensor& param) {
    return param.numel() < least_narrow || param.dim() < 2 ||
           (param->grad_meta != nullptr && param->grad_meta->embedding);
}

bool has_signs(const OptimizerImpl& optimizer, std::size_t k) {
    return (optimizer.kind->signed_state >> k & 1) != 0;
}

// The numbers of blocks that hold a tensor of this shape.
Tensor widened(const Tensor& blocks, const Shape& shape, bool with_sign) {
    const Tensor from = blocks.to(cpu_device).contiguous(), to = empty(shape);
    const auto* const block = static_cast<const Block8*>(raw(from));
    auto* const numbers = static_cast<float*>(raw(to));
    for (std::int64_t i = 0; i < to.numel(); i += Block8::size) {
        const std::int64_t n = std::min<std::int64_t>(to.numel() - i, Block8::size);
        (with_sign ? functors::read_block<true> : functors::read_block<false>)(numbers + i,
                                                                               block[i / Block8::size], n);
    }
    return to.to(blocks.device());
}

Tensor narrowed(const Tensor& numbers, bool with_sign) {
    const Tensor from = numbers.to(cpu_device).to(float32).contiguous(),
                 to = empty(blocks_shape(numbers.numel()), {.dtype = uint8});
    const auto* const number = static_cast<const float*>(raw(from));
    auto* const blocks = static_cast<Block8*>(raw(to));
    for (std::int64_t i = 0; i < from.numel(); i += Block8::size) {
        const std::int64_t n = std::min<std::int64_t>(from.numel() - i, Block8::size);
        (with_sign ? functors::write_block<true> : functors::write_block<false>)(blocks[i / Block8::size],
                                                                                 number + i, n);
    }
    return to.to(numbers.device());
}

}  // namespace

Shape blocks_shape(std::int64_t numel) { return {block8_count(numel), std::int64_t(sizeof(Block8))}; }

StateStorage state_storage(const OptimizerImpl& optimizer, const Group& group) {
    return optimizer.kind->storage != nullptr ? optimizer.kind->storage(step_args(optimizer, group))
                                              : StateStorage{};
}

StateLayout state_layout(const OptimizerImpl& optimizer, const StateStorage& storage, const Slot& slot,
                         std::size_t k) {
    const StateFormat format = k < max_optimizer_state ? storage.format[k] : StateFormat::wide;
    const bool narrow = format != StateFormat::wide && slot.param.dtype() != float64 &&
                        (storage.sensitive || !is_sensitive(slot.param));
    if (!narrow) return {StateFormat::wide, state_shape(optimizer, slot, k), state_dtype(slot)};
    if (format == StateFormat::bf16) return {format, slot.kept_shape(), bfloat16};
    return {format, blocks_shape(slot.kept_shape().numel()), uint8};
}

Tensor converted_state(const OptimizerImpl& optimizer, const Slot& slot, const Tensor& state,
                       const StateLayout& layout, std::size_t k) {
    const NoGrad plain;
    if (state.dtype() == layout.dtype) return state;
    const bool with_sign = has_signs(optimizer, k);
    if (layout.dtype == uint8) return narrowed(state, with_sign);
    const Tensor numbers =
        state.dtype() == uint8 ? widened(state, state_shape(optimizer, slot, k), with_sign) : state;
    return numbers.to(layout.dtype);
}

}  // namespace mezzo::optim
