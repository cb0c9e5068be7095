#include "optim/shard_sync.h"

#include "optim/optimizer.h"

namespace mezzo::optim {

namespace {

void* behind(void* elements, std::int64_t count, Dtype dtype) {
    return static_cast<char*>(elements) + count * std::int64_t(size_of(dtype));
}

}  // namespace

std::vector<ParamRef> own_parts(const OptimizerImpl& optimizer, const GradientList& plan) {
    std::vector<ParamRef> parts = plan.refs;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const Slot& slot = optimizer.slots[plan.indices[i]];
        ParamRef& ref = parts[i];
        ref.numel = slot.part->count;
        ref.first = slot.part->begin;
        ref.grad = behind(ref.grad, slot.part->begin, ref.grad_dtype);
        if (has_master(optimizer, slot) && !has_split_master(optimizer, slot)) {
            ref.copy16 = behind(ref.copy16, slot.part->begin, ref.copy16_dtype);
        } else {
            ref.param = behind(ref.param, slot.part->begin, ref.dtype);
            ref.copy16 = nullptr;
        }
    }
    return parts;
}

void complete_update(const OptimizerImpl& optimizer, const GradientList& plan) {
    const NoGrad plain;
    std::vector<PartialTensor> parameters;
    for (const std::size_t index : plan.indices)
        parameters.push_back({index, optimizer.slots[index].param.detach()});
    optimizer.sharing->complete(parameters);
    for (const PartialTensor& parameter : parameters) {
        const Slot& slot = optimizer.slots[parameter.slot];
        const Copy16& copy16 = slot.param->grads().copy16;
        if (!has_master(optimizer, slot) && is_16bit(copy16.wanted)) copy16.value.copy_(parameter.tensor);
    }
}

}  // namespace mezzo::optim
