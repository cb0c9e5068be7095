// Master weights of 16-bit parameters: tensors of float32, or split into the parameter and the lower halves.
#include <numeric>

#include "kernels/narrow_state.h"
#include "mezzo/ops.h"
#include "optim/arena.h"
#include "optim/optimizer.h"

namespace mezzo::optim {

bool has_master(const OptimizerImpl& optimizer, const Slot& slot) {
    return optimizer.masters && is_16bit(slot.param.dtype());
}

bool has_split_master(const OptimizerImpl& optimizer, const Slot& slot) {
    return has_master(optimizer, slot) && *optimizer.masters == MasterWeights::split;
}

namespace {

// Whether the parameter was written since it last agreed with its master. A move to another device writes
// nothing.
bool is_written(const Slot& slot) {
    const std::uint64_t now = slot.param.version();
    if (slot.master_version == now) return false;
    const GradMeta* const meta = slot.param->grad_meta;
    return meta == nullptr || meta->moved.to != now || meta->moved.from != slot.master_version;
}

struct SplitMaster {
    Tensor high, low;  // bfloat16, and uint8 [elements, 2]
};

// Splits and joins in host memory: an update of the parameters does it on the device.
SplitMaster split_master(const Tensor& master) {
    const Tensor whole = master.to(cpu_device).contiguous();
    const SplitMaster result{empty(whole.shape(), {.dtype = bfloat16}),
                             empty({whole.numel(), 2}, {.dtype = uint8})};
    const auto* const from = static_cast<const std::uint32_t*>(raw(whole));
    auto *const high = static_cast<std::uint16_t*>(raw(result.high)), *const low =
                                                                          static_cast<std::uint16_t*>(
                                                                              raw(result.low));
    for (std::int64_t i = 0; i < whole.numel(); ++i) {
        const functors::Halves halves = functors::halves_of(from[i]);
        high[i] = halves.high;
        low[i] = halves.low;
    }
    return result;
}

Tensor join_master(const Tensor& high, const Tensor& low) {
    const Tensor upper = high.to(cpu_device).contiguous(), lower = low.to(cpu_device);
    const Tensor master = empty(upper.shape());
    const auto *const a = static_cast<const std::uint16_t*>(raw(upper)),
                      *const b = static_cast<const std::uint16_t*>(raw(lower));
    auto* const to = static_cast<std::uint32_t*>(raw(master));
    for (std::int64_t i = 0; i < master.numel(); ++i) to[i] = functors::joined(a[i], b[i]);
    return master.to(high.device());
}

Tensor own_param(const Slot& slot) { return slot.kept_part(slot.param.detach()); }

Tensor joined_master(const Slot& slot) {
    const Tensor param = own_param(slot);
    return is_written(slot) ? param.to(float32) : join_master(param, slot.low16);
}

// slot.master with the parameter's values where they are not the master rounded to nearest, however ties are
// rounded.
Tensor with_writes(const Slot& slot) {
    const Tensor param = own_param(slot), wide = param.to(float32);
    const Tensor nearest = slot.master.to(param.dtype()).to(float32);
    const Tensor same = le(abs(wide - slot.master), abs(nearest - slot.master));
    // Everything is as far as infinity from a master that rounds to it.
    return where(logical_or(logical_and(same, isfinite(nearest)), eq(wide, nearest)), slot.master, wide);
}

void refresh_split_master(Slot& slot) {
    slot.low16 = slot.low16.to(slot.param.device());
    if (slot.master.defined()) {
        const SplitMaster halves = split_master(is_written(slot) ? with_writes(slot) : slot.master);
        own_param(slot).copy_(halves.high);
        slot.low16.copy_(halves.low);
        slot.master = Tensor();
    } else if (is_written(slot)) {
        slot.low16.zero_();
    }
}

void check_splits(const OptimizerImpl& optimizer, std::size_t slot) {
    check(optimizer.slots[slot].param.dtype() != float16, ErrorKind::dtype, optimizer.type,
          ": the master of a float16 parameter, ", optimizer.describe(slot),
          ", cannot be split: only bfloat16 is the upper half of float32; use MasterWeights::whole");
}

}  // namespace

void check_masters(const OptimizerImpl& optimizer) {
    if (optimizer.masters != MasterWeights::split) return;
    for (std::size_t i = 0; i < optimizer.slots.size(); ++i) check_splits(optimizer, i);
}

Tensor master_of(const Slot& slot) {
    if (slot.master.defined()) return slot.master;
    return slot.low16.defined() ? joined_master(slot) : own_param(slot).to(float32);  // made at the next step
}

void refresh_master(const OptimizerImpl& optimizer, Slot& slot) {
    NoGrad plain;
    if (slot.master.defined()) slot.master = slot.master.to(slot.param.device());
    if (has_split_master(optimizer, slot))
        refresh_split_master(slot);
    else if (is_written(slot))
        slot.master = with_writes(slot);
    slot.master_version = slot.param.version();
}

void make_masters(OptimizerImpl& optimizer, const std::vector<std::size_t>& indices, Device device) {
    NoGrad plain;
    const bool splits = optimizer.masters == MasterWeights::split;
    Arena arena;
    std::vector<Slot*> fresh;
    for (const std::size_t index : indices) {
        Slot& slot = optimizer.slots[index];
        if (!has_master(optimizer, slot) || !(slot.param.device() == device)) continue;
        if (splits) check_splits(optimizer, index);
        Tensor& own = splits ? slot.low16 : slot.master;
        if (own.defined()) continue;
        fresh.push_back(&slot);
        if (splits)
            arena.add(own, {slot.kept_shape().numel(), 2}, uint8);
        else
            arena.add(own, slot.kept_shape(), float32);
    }
    arena.make(device, splits);
    for (Slot* slot : fresh) {
        if (splits && slot->master.defined()) continue;  // refresh_master() splits it
        if (!splits) slot->master.copy_(slot->low16.defined() ? joined_master(*slot) : own_param(*slot));
        if (!splits) slot->low16 = Tensor();
        slot->master_version = slot->param.version();
    }
}

void Optimizer::use_master_weights(MasterWeights storage) {
    refuse_in_update("use_master_weights", *impl_);
    std::vector<std::size_t> all(impl_->slots.size());
    std::iota(all.begin(), all.end(), std::size_t(0));
    if (storage == MasterWeights::split) {
        check(impl_->kind->used != nullptr, ErrorKind::value, impl_->type,
              ".use_master_weights: this optimizer in ops cannot split masters; use MasterWeights::whole");
        for (const std::size_t index : all) check_splits(*impl_, index);
    }
    impl_->masters = storage;
    // Splitting rounds parameters. The next step does it, and gathers them from all processes.
    if (impl_->sharing && storage == MasterWeights::split) return;
    make_masters(*impl_, all, impl_->device());
    for (const std::size_t index : all) {
        Slot& slot = impl_->slots[index];
        make_masters(*impl_, {index}, slot.param.device());  // if it is on another device
        if (has_master(*impl_, slot)) refresh_master(*impl_, slot);
    }
}

Tensors Optimizer::master_parameters() const {
    Tensors result;
    for (const Slot& slot : impl_->slots) {
        if (!has_master(*impl_, slot)) {
            result.push_back(slot.param);
            continue;
        }
        check(!has_split_master(*impl_, slot), ErrorKind::state, impl_->type,
              ".master_parameters: split masters are no tensors; state_dict() has them as float32");
        check(!slot.part, ErrorKind::state, impl_->type,
              ".master_parameters: this rank has a part of each master only, see distributed::shard(); "
              "parameters() have the whole gradients");
        const Tensor gradient = slot.param.grad();
        slot.master.set_requires_grad(true);
        slot.master.set_grad(gradient.defined() && gradient.dtype() == float32 ? gradient : Tensor());
        result.push_back(slot.master);
    }
    return result;
}

}  // namespace mezzo::optim
