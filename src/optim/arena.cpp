#include "optim/arena.h"

#include "core/tensor_impl.h"

namespace mezzo::optim {

namespace {

constexpr std::size_t alignment = 256;

std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

std::size_t bytes_of(const Shape& shape, Dtype dtype) {
    return static_cast<std::size_t>(shape.numel()) * size_of(dtype);
}

}  // namespace

void Arena::make(Device device, bool zeroed) {
    if (wanted_.empty()) return;
    std::size_t bytes = 0;
    for (const Wanted& w : wanted_)
        bytes = (w.adjoining ? bytes : aligned(bytes)) + bytes_of(w.shape, w.dtype);
    const Tensor whole = empty({std::int64_t(aligned(bytes) / sizeof(float))}, {.device = device});
    if (zeroed && bytes != 0) whole.zero_();
    std::size_t offset = 0;
    for (const auto& [target, shape, dtype, adjoining] : wanted_) {
        if (!adjoining) offset = aligned(offset);
        const Ref<Storage> part = part_of(whole->storage, offset, bytes_of(shape, dtype));
        *target = make_tensor(part, shape, contiguous_strides(shape), 0, dtype);
        (*target)->view = false;
        offset += bytes_of(shape, dtype);
    }
    wanted_.clear();
}

}  // namespace mezzo::optim
