// Tensors that an optimizer owns for each parameter: moments, and the 16-bit copies that it writes for
// autocast. The tensors that a step lacks are allocated together (optim/arena.h).
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/memory/flat_view.h"
#include "kernels/narrow_state.h"
#include "mezzo/ops.h"
#include "optim/arena.h"
#include "optim/optimizer.h"

namespace mezzo::optim {

Shape Slot::kept_shape() const { return part ? Shape{part->count} : param.shape(); }

Tensor Slot::kept_part(const Tensor& whole) const {
    return part ? whole.reshape({-1}).slice(0, part->begin, part->begin + part->count) : whole;
}

Tensor Slot::kept_rows(const Tensor& whole, std::int64_t elements) const {
    if (!part) return whole;
    const std::int64_t rows = (part->count + elements - 1) / elements;
    return whole.slice(0, part->begin / elements, part->begin / elements + rows);
}

Tensor Slot::kept_state(const Tensor& whole) const {
    return whole.dtype() == uint8 ? kept_rows(whole, Block8::size) : kept_part(whole);
}

Dtype state_dtype(const Slot& slot) { return slot.param.dtype() == float64 ? float64 : float32; }

Shape state_shape(const OptimizerImpl& optimizer, const Slot& slot, std::size_t k) {
    const OptimizerType& kind = *optimizer.kind;
    return kind.state_shape ? (*kind.state_shape)(kind.state[k], slot.param.shape()) : slot.kept_shape();
}

namespace {

// Makes a tensor of zeros if there is none yet, otherwise moves it to the device.
void make_or_move(Tensor& tensor, const Shape& shape, Dtype dtype, Device device) {
    if (tensor.defined() && tensor.device() == device) return;
    NoGrad plain;
    tensor = tensor.defined() ? tensor.to(device) : zeros(shape, {.dtype = dtype, .device = device});
}

}  // namespace

void prepare_state(OptimizerImpl& optimizer) {
    const Device device = optimizer.device();
    const auto numbers = std::int64_t(optimizer.kind->numbers.size());
    make_or_move(optimizer.steps, {std::int64_t(optimizer.slots.size()), numbers}, float32, device);
    make_or_move(optimizer.state, {std::int64_t(sizeof(StepState) / sizeof(float))}, float32, device);
}

StepArgs step_args(const OptimizerImpl& optimizer, const Group& group) {
    StepArgs args{.optimizer = optimizer.kind->row};
    std::copy(group.options.begin(), group.options.end(), args.options);
    return args;
}

unsigned used_state(const OptimizerImpl& optimizer, const Group& group) {
    return optimizer.kind->used != nullptr ? optimizer.kind->used(step_args(optimizer, group)) : ~0u;
}

namespace {

bool is_alone(const Tensor& copy) { return copy->refs.load() == 1 && copy->storage->refs.load() == 1; }

// The 16-bit copy that autocast reads. If the device may skip the step, the copy has to be current before,
// because a skipped step does not write it.
Tensor* writable_copy16(const Slot& slot, bool conditional) {
    Copy16& copy16 = slot.param->grads().copy16;
    if (!is_16bit(copy16.wanted)) return nullptr;
    const bool fits = copy16.value.defined() && copy16.value.dtype() == copy16.wanted &&
                      copy16.value.device() == slot.param.device();
    const bool current = fits && copy16.version == slot.param.version();
    // A copy that a graph has saved is not overwritten.
    if (fits && is_alone(copy16.value)) {
        // It keeps its memory, which may adjoin that of another copy.
        if (!current && conditional) copy16.value.copy_(slot.param.detach());
        return &copy16.value;
    }
    if (!conditional) copy16.version = ~std::uint64_t(0);  // holds nothing until the update has run
    copy16.value = conditional
                       ? slot.param.detach().to(copy16.wanted)
                       : empty(slot.param.shape(), {.dtype = copy16.wanted, .device = slot.param.device()});
    return &copy16.value;
}

void make_state(OptimizerImpl& optimizer, const GradientList& list, std::size_t k) {
    Arena arena;
    for (std::size_t i = 0; i < list.refs.size(); ++i) {
        Slot& slot = optimizer.slots[list.indices[i]];
        if (slot.state[k].defined()) continue;
        const Group& group = optimizer.groups[slot.group];
        if ((used_state(optimizer, group) >> k & 1) == 0) continue;
        const StateLayout layout = state_layout(optimizer, state_storage(optimizer, group), slot, k);
        arena.add(slot.state[k], layout.shape, layout.dtype);
    }
    arena.make(list.device, true);
}

struct Placed {
    Slot* slot;
    bool adjoining;  // its copy follows that of the slot before
};

// The slots in their order, but each directly followed by those whose parameters lie directly behind its own.
std::vector<Placed> with_neighbours(const std::vector<Slot*>& slots) {
    std::unordered_map<const void*, Slot*> beginning;
    for (Slot* slot : slots) beginning.emplace(raw(slot->param), slot);
    const auto next = [&](const Slot* slot) -> Slot* {
        const auto bytes = slot->param.numel() * std::int64_t(size_of(slot->param.dtype()));
        const auto found = beginning.find(slot->param->bytes() + bytes);
        const bool fits =
            found != beginning.end() && directly_behind(slot->param, found->second->param) &&
            slot->param->grad_meta->copy16.wanted == found->second->param->grad_meta->copy16.wanted;
        return fits ? found->second : nullptr;
    };
    std::unordered_set<const Slot*> behind;
    for (const Slot* slot : slots) behind.insert(next(slot));
    std::vector<Placed> placed;
    for (Slot* slot : slots) {
        if (behind.contains(slot)) continue;
        for (Slot* s = slot; s != nullptr; s = next(s)) placed.push_back({s, s != slot});
    }
    return placed;
}

// Whether autocast reads the slot's parameter in a copy that the optimizer writes.
bool has_copy16(const OptimizerImpl& optimizer, const Slot& slot) {
    return !has_master(optimizer, slot) && is_16bit(slot.param->grads().copy16.wanted);
}

// Releases copies that a graph has saved. Returns whether any copy is missing.
bool lacks_copies16(OptimizerImpl& optimizer, const GradientList& list) {
    bool lacks = false;
    for (const std::size_t index : list.indices) {
        const Slot& slot = optimizer.slots[index];
        if (!has_copy16(optimizer, slot)) continue;
        Tensor& copy = slot.param->grads().copy16.value;
        if (copy.defined() && !is_alone(copy)) copy = {};
        lacks = lacks || !copy.defined();
    }
    return lacks;
}

// Drops the copies of slots [begin, end) if one of them is missing.
void drop_unless_all(const Placed* begin, const Placed* end) {
    const auto copy = [](const Placed& p) -> Copy16& { return p.slot->param->grad_meta->copy16; };
    if (std::all_of(begin, end, [&](const Placed& p) { return copy(p).value.defined(); })) return;
    for (const Placed* p = begin; p != end; ++p) {
        copy(*p).value = {};
        copy(*p).version = ~std::uint64_t(0);  // holds nothing yet
    }
}

// Makes the 16-bit copies that are missing. Parameters that are contiguous in memory
// (core/memory/flat_view.h) get contiguous copies, so that a product that reads the parameters as one reads
// the copies as one, too. If one of them is missing, all of them are made anew.
void make_copies16(OptimizerImpl& optimizer, const std::vector<std::size_t>& indices, Device device,
                   bool conditional) {
    std::vector<Slot*> slots, fresh;
    for (const std::size_t index : indices)
        if (Slot& slot = optimizer.slots[index]; has_copy16(optimizer, slot)) slots.push_back(&slot);
    const std::vector<Placed> placed = with_neighbours(slots);
    for (std::size_t i = 0, end; i < placed.size(); i = end) {
        for (end = i + 1; end < placed.size() && placed[end].adjoining;) ++end;
        drop_unless_all(&placed[i], placed.data() + end);
    }
    Arena arena;
    for (const auto& [slot, adjoining] : placed) {
        Copy16& copy16 = slot->param->grad_meta->copy16;
        if (copy16.value.defined()) continue;
        fresh.push_back(slot);
        arena.add(copy16.value, slot->param.shape(), copy16.wanted, adjoining);
    }
    arena.make(device, false);
    if (!conditional) return;
    for (Slot* slot : fresh) {
        Copy16& copy16 = slot->param->grad_meta->copy16;
        copy16.value.copy_(slot->param.detach());
        copy16.version = slot->param.version();
    }
}

// Use of state by the updates of a group.
struct StateUse {
    unsigned used = 0;  // used_state()
    StateStorage storage;
};

void fill_state(OptimizerImpl& optimizer, const StateUse& use, std::size_t index, ParamRef& ref) {
    Slot& slot = optimizer.slots[index];
    for (std::size_t k = 0; k < slot.state.size(); ++k) {
        if ((use.used >> k & 1) == 0) continue;
        const StateLayout layout = state_layout(optimizer, use.storage, slot, k);
        Tensor& state = slot.state[k];
        make_or_move(state, layout.shape, layout.dtype, slot.param.device());
        if (state.dtype() != layout.dtype) state = converted_state(optimizer, slot, state, layout, k);
        if (optimizer.user != nullptr) continue;
        ref.state[k] = raw(state);
        ref.format[k] = layout.format;
    }
}

// Fills `ref` for the kernels.
void fill_ref(OptimizerImpl& optimizer, const StateUse& use, std::size_t index, bool conditional,
              ParamRef& ref) {
    Slot& slot = optimizer.slots[index];
    if (!slot.param.is_contiguous())
        fail(ErrorKind::value, optimizer.type, ": ", optimizer.describe(index), " is not contiguous");
    if (has_master(optimizer, slot)) refresh_master(optimizer, slot);
    if (has_split_master(optimizer, slot)) {
        ref.low16 = raw(slot.low16);
    } else if (has_master(optimizer, slot)) {
        ref.param = raw(slot.master);
        ref.dtype = float32;
        ref.copy16 = raw(slot.param);
        ref.copy16_dtype = slot.param.dtype();
    } else if (Tensor* const copy16 = writable_copy16(slot, conditional)) {
        ref.copy16 = raw(*copy16);
        ref.copy16_dtype = copy16->dtype();
    }
    fill_state(optimizer, use, index, ref);
    ref.number = std::uint32_t(index);
    ref.step = static_cast<float*>(raw(optimizer.steps)) + index * optimizer.kind->numbers.size();
}

}  // namespace

void make_missing_copies16(OptimizerImpl& optimizer) {
    std::vector<std::size_t> indices;
    bool lacks = false;
    for (std::size_t i = 0; i < optimizer.slots.size(); ++i) {
        const Slot& slot = optimizer.slots[i];
        if (slot.param.numel() == 0 || !tracked(slot.param) || !has_copy16(optimizer, slot)) continue;
        indices.push_back(i);
        lacks = lacks || !slot.param->grad_meta->copy16.value.defined();
    }
    if (lacks) make_copies16(optimizer, indices, optimizer.device(), false);
}

void prepare_update(OptimizerImpl& optimizer, GradientList& list, bool conditional) {
    prepare_state(optimizer);
    std::size_t at = 0;
    for (std::size_t g = 0; g < optimizer.groups.size(); ++g) {
        const Group& group = optimizer.groups[g];
        for (; at < list.refs.size() && list.indices[at] < group.first + group.count; ++at)
            list.refs[at].group = static_cast<std::uint32_t>(g);
    }
    NoGrad plain;
    make_masters(optimizer, list.indices, list.device);
    for (std::size_t k = 0; k < optimizer.kind->state.size(); ++k) make_state(optimizer, list, k);
    if (lacks_copies16(optimizer, list)) make_copies16(optimizer, list.indices, list.device, conditional);
    std::size_t group = optimizer.groups.size();
    StateUse use;
    for (std::size_t i = 0; i < list.refs.size(); ++i) {  // in the order of the groups
        if (list.refs[i].group != group) {
            group = list.refs[i].group;
            const Group& own = optimizer.groups[group];
            use = {used_state(optimizer, own), state_storage(optimizer, own)};
        }
        fill_ref(optimizer, use, list.indices[i], conditional, list.refs[i]);
    }
}

}  // namespace mezzo::optim
