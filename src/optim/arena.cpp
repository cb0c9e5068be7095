#include "optim/arena.h"

#include "core/tensor_impl.h"
#include "mezzo/ops.h"

namespace mezzo::optim {

namespace {

constexpr std::size_t alignment = 256;

std::size_t padded_bytes(const Shape& shape, Dtype dtype) {
    const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
    return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

void Arena::make(Device device, bool zeroed) {
    if (wanted_.empty()) return;
    std::size_t bytes = 0;
    for (const Wanted& w : wanted_) bytes += padded_bytes(w.shape, w.dtype);
    const Tensor whole = empty({std::int64_t(bytes / sizeof(float))}, {.device = device});
    if (zeroed && bytes != 0) whole.zero_();
    std::size_t offset = 0;
    for (const auto& [target, shape, dtype] : wanted_) {
        const Ref<Storage> part =
            part_of(whole->storage, offset, static_cast<std::size_t>(shape.numel()) * size_of(dtype));
        *target = make_tensor(part, shape, contiguous_strides(shape), 0, dtype);
        (*target)->view = false;
        offset += padded_bytes(shape, dtype);
    }
    wanted_.clear();
}

}  // namespace mezzo::optim
