// state_dict() and load_state_dict() of optimizers: everything as tensors, so that any tensor file can hold
// it. A state is read and checked whole before anything changes.
#include <bit>
#include <cmath>
#include <cstddef>
#include <exception>
#include <unordered_map>

#include "core/fnv1a.h"
#include "kernels/narrow_state.h"
#include "mezzo/ops.h"
#include "optim/arena.h"
#include "optim/optimizer.h"

namespace mezzo::optim {

namespace {

// The names of the entries.
std::string group_key(std::size_t group, const std::string& name) {
    return "groups." + std::to_string(group) + "." + name;
}
std::string slot_key(std::size_t slot, const std::string& name) {
    return "state." + std::to_string(slot) + "." + name;
}

Tensor number(double value) { return scalar(value, {.dtype = float64}); }

// A copy of a parameter's state or master; of state in Block8s it is uint8 [blocks, 260]. If this process has
// only a shard of it, the copy is a partial tensor in host memory, which is added to `incomplete`.
Tensor copy_of(const OptimizerImpl& optimizer, std::size_t index, const Tensor& kept,
               std::vector<PartialTensor>& incomplete) {
    const Slot& slot = optimizer.slots[index];
    if (!slot.part) return kept.detach().clone();
    const bool blocks = kept.dtype() == uint8;
    const Tensor whole =
        empty(blocks ? blocks_shape(slot.param.numel()) : slot.param.shape(), {.dtype = kept.dtype()});
    slot.kept_state(whole).copy_(kept.detach());
    incomplete.push_back(
        {index, whole, blocks ? std::int64_t(Block8::size) : 1, blocks ? std::int64_t(sizeof(Block8)) : 1});
    return whole;
}

// A slot's state k. If an option that needs it was set after the last update, it is what the next update
// begins with.
Tensor state_of(const OptimizerImpl& optimizer, const Slot& slot, std::size_t k, bool updated) {
    const Group& group = optimizer.groups[slot.group];
    if (slot.state[k].defined() || !updated || (used_state(optimizer, group) >> k & 1) == 0)
        return slot.state[k];
    const StateLayout layout = state_layout(optimizer, state_storage(optimizer, group), slot, k);
    return zeros(layout.shape, {.dtype = layout.dtype, .device = slot.param.device()});
}

}  // namespace

StateDict Optimizer::saved_state() const {
    read_counts(*impl_);
    NoGrad plain;
    StateDict state;
    state.emplace_back("algorithm", number(impl_->kind->code));
    state.emplace_back("groups", number(double(impl_->groups.size())));
    state.emplace_back("applied_steps", number(double(impl_->applied)));
    state.emplace_back("skipped_steps", number(double(impl_->skipped)));
    for (std::size_t g = 0; g < impl_->groups.size(); ++g) {
        const Group& group = impl_->groups[g];
        state.emplace_back(group_key(g, "size"), number(double(group.count)));
        for (std::size_t i = 0; i < group.options.size(); ++i)
            if (impl_->kind->options[i].saved)
                state.emplace_back(group_key(g, impl_->kind->options[i].name), number(group.options[i]));
        state.emplace_back(group_key(g, "initial_lr"), number(group.initial_lr));
    }
    std::vector<float> steps;
    if (impl_->steps.defined()) {
        for (std::size_t k = 0; k < impl_->kind->numbers.size(); ++k)
            state.emplace_back(impl_->kind->numbers[k], impl_->steps.select(1, std::int64_t(k)).clone());
        steps = impl_->steps.select(1, 0).to_vector<float>();
    }
    std::vector<PartialTensor> incomplete;
    for (std::size_t i = 0; i < impl_->slots.size(); ++i) {
        const Slot& slot = impl_->slots[i];
        for (std::size_t k = 0; k < slot.state.size(); ++k)
            if (const Tensor kept = state_of(*impl_, slot, k, i < steps.size() && steps[i] > 0);
                kept.defined())
                state.emplace_back(slot_key(i, impl_->kind->state[k]), copy_of(*impl_, i, kept, incomplete));
        if (has_master(*impl_, slot))
            state.emplace_back(slot_key(i, "master"), copy_of(*impl_, i, master_of(slot), incomplete));
    }
    if (impl_->sharing) impl_->sharing->complete(incomplete);
    return state;
}

namespace {

constexpr double largest_count = 9007199254740992;  // 2^53: up to there a double holds every whole number

bool is_count(double value) { return value >= 0 && value <= largest_count && value == std::floor(value); }

// The entries of a state, and which of them have been read.
class Reader {
public:
    Reader(const char* type, const StateDict& state) : where_(type + std::string(".load_state_dict")) {
        entries_.reserve(state.size());
        for (const auto& [name, value] : state) {
            check(value.defined(), ErrorKind::value, where_, ": ", name, " is undefined");
            check(entries_.emplace(name, Entry{&value}).second, ErrorKind::value, where_, ": ", name,
                  " is there twice");
        }
    }
    const std::string& where() const { return where_; }

    // Null if there is none.
    const Tensor* find(const std::string& key) {
        const auto at = entries_.find(key);
        if (at == entries_.end()) return nullptr;
        at->second.taken = true;
        return at->second.value;
    }
    double number(const std::string& key) {
        const Tensor* const value = find(key);
        check(value != nullptr, ErrorKind::value, where_, ": ", key, " is missing from ", entries_.size(),
              " entries");
        check(value->numel() == 1, ErrorKind::shape, where_, ": ", key, " has shape ", value->shape(),
              ", one number is needed");
        return value->item<double>();
    }
    double count(const std::string& key) {
        const double value = number(key);
        check(is_count(value), ErrorKind::value, where_, ": ", key, " is ", value,
              "; it must be a whole number in [0, 2^53]");
        return value;
    }
    bool flag(const std::string& key) {
        const double value = number(key);
        check(value == 0 || value == 1, ErrorKind::value, where_, ": ", key, " is ", value,
              "; it must be 0 or 1");
        return value == 1;
    }
    // A tensor that belongs to a parameter, checked to be floating and of the shape; null if there is none.
    // With `blocks` it may also be that of blocks.
    const Tensor* companion(const OptimizerImpl& optimizer, std::size_t slot, const std::string& name,
                            const Shape& shape, bool blocks = false) {
        const std::string key = slot_key(slot, name);
        const Tensor* const value = find(key);
        if (value == nullptr) return nullptr;
        if (blocks && value->dtype() == uint8 && value->shape() == blocks_shape(shape.numel())) return value;
        if (!(value->shape() == shape))
            fail(ErrorKind::shape, where_, ": ", key, " has shape ", value->shape(), ", ",
                 optimizer.describe(slot), " has ", shape);
        check(is_floating(value->dtype()), ErrorKind::dtype, where_, ": ", key, " is ", value->dtype(),
              "; a floating dtype is needed");
        return value;
    }
    void refuse_unknown(const StateDict& state) const {
        std::string names;
        std::size_t count = 0;
        for (const auto& [name, value] : state)
            if (!entries_.at(name).taken && ++count <= 10) names += (names.empty() ? "" : ", ") + name;
        check(count == 0, ErrorKind::value, where_, ": ", count, " unknown entries: ", names,
              count > 10 ? ", …" : "", "; load the state_dict() of an optimizer with the same parameters");
    }

private:
    struct Entry {
        const Tensor* value;
        bool taken = false;
    };
    std::string where_;
    std::unordered_map<std::string_view, Entry> entries_;
};

// The content of a state, checked. Its tensors have not been copied yet.
struct Loaded {
    std::vector<Group> groups;
    double applied = 0, skipped = 0;
    std::vector<std::vector<float>> numbers;        // of OptimizerType::numbers, per parameter
    std::vector<std::vector<const Tensor*>> state;  // of OptimizerType::state, per parameter; null: none
    std::vector<const Tensor*> masters;             // per parameter, null: none
    bool has_masters = false;

    float steps(std::size_t slot) const { return numbers.front()[slot]; }
};

// A flag that a state lacks is false: the state was saved by a version without that flag.
double read_option(const OptionInfo& info, const std::string& key, Reader& reader) {
    if (!info.flag) return reader.number(key);
    return reader.find(key) != nullptr && reader.flag(key) ? 1 : 0;
}

// Earlier versions wrote the options of SGD, Adam and AdamW for optimizers of each of these types.
void skip_options_of_other_types(std::size_t group, Reader& reader) {
    for (const char* const name :
         {"momentum", "dampening", "nesterov", "beta1", "beta2", "eps", "weight_decay"})
        static_cast<void>(reader.find(group_key(group, name)));
}

void read_groups(const OptimizerImpl& optimizer, Reader& reader, Loaded& loaded) {
    const OptimizerType& kind = *optimizer.kind;
    check(reader.number("algorithm") == kind.code, ErrorKind::value, reader.where(),
          ": the state is that of another type of optimizer");
    const double groups = reader.number("groups");
    check(groups == double(optimizer.groups.size()), ErrorKind::value, reader.where(), ": the state has ",
          groups, " groups, this optimizer ", optimizer.groups.size());
    loaded.groups = optimizer.groups;
    for (std::size_t g = 0; g < loaded.groups.size(); ++g) {
        Group& group = loaded.groups[g];
        const double size = reader.number(group_key(g, "size"));
        check(size == double(group.count), ErrorKind::value, reader.where(), ": group ", g, " has ", size,
              " parameters there and ", group.count, " here");
        for (std::size_t i = 0; i < group.options.size(); ++i)
            if (kind.options[i].saved)
                group.options[i] = read_option(kind.options[i], group_key(g, kind.options[i].name), reader);
        skip_options_of_other_types(g, reader);
        check_options(reader.where() + ": groups." + std::to_string(g), kind, group.options);
        group.initial_lr = reader.number(group_key(g, "initial_lr"));
        check_rate(reader.where() + ": the initial_lr of groups." + std::to_string(g), group.initial_lr);
    }
}

// One of OptimizerType::numbers. The first, "steps", must be a count; the others must be finite.
void read_numbers(const OptimizerImpl& optimizer, std::size_t k, Reader& reader, Loaded& loaded) {
    const std::string& name = optimizer.kind->numbers[k];
    const Tensor* const numbers = reader.find(name);
    if (numbers == nullptr) {
        check(loaded.applied == 0, ErrorKind::value, reader.where(), ": ", name,
              " is missing, and applied_steps is ", loaded.applied);
        return;
    }
    const std::size_t slots = optimizer.slots.size();
    check(numbers->shape() == Shape{std::int64_t(slots)}, ErrorKind::shape, reader.where(), ": ", name,
          " has shape ", numbers->shape(), " for ", slots, " parameters");
    const std::vector<double> values = numbers->to(float64).to_vector<double>();
    for (std::size_t i = 0; i < slots; ++i) {
        if (k == 0 ? !is_count(values[i]) : !std::isfinite(values[i]))
            fail(ErrorKind::value, reader.where(), ": ", name, " holds ", values[i], " for ",
                 optimizer.describe(i), "; it must be ", k == 0 ? "a whole number in [0, 2^53]" : "finite");
        loaded.numbers[k][i] = float(values[i]);
    }
}

void read_counts(const OptimizerImpl& optimizer, Reader& reader, Loaded& loaded) {
    loaded.applied = reader.count("applied_steps");
    loaded.skipped = reader.count("skipped_steps");
    const OptimizerType& kind = *optimizer.kind;
    loaded.numbers.assign(kind.numbers.size(), std::vector<float>(optimizer.slots.size(), 0));
    for (std::size_t k = 0; k < kind.numbers.size(); ++k) read_numbers(optimizer, k, reader, loaded);
}

// State that an update has written must be there.
void read_state(const OptimizerImpl& optimizer, const Group& group, std::size_t slot, Reader& reader,
                Loaded& loaded) {
    const unsigned needed = loaded.steps(slot) > 0 ? used_state(optimizer, group) : 0;
    for (std::size_t k = 0; k < optimizer.kind->state.size(); ++k) {
        const std::string& name = optimizer.kind->state[k];
        const Slot& own = optimizer.slots[slot];
        const Shape shape = own.part ? own.param.shape() : state_shape(optimizer, own, k);
        loaded.state[k].push_back(
            reader.companion(optimizer, slot, name, shape, optimizer.kind->storage != nullptr));
        if (loaded.state[k].back() == nullptr && (needed >> k & 1) != 0)
            fail(ErrorKind::value, reader.where(), ": ", slot_key(slot, name), " is missing, and ",
                 optimizer.describe(slot), " has taken ", loaded.steps(slot), " steps");
    }
}

void read_master(const OptimizerImpl& optimizer, std::size_t slot, Reader& reader, Loaded& loaded) {
    const Tensor& param = optimizer.slots[slot].param;
    const Tensor* const master = reader.companion(optimizer, slot, "master", param.shape());
    const Dtype dtype = param.dtype();
    if (master != nullptr && !is_16bit(dtype))
        fail(ErrorKind::dtype, reader.where(), ": ", slot_key(slot, "master"),
             " is the float32 master of a 16-bit parameter, and ", optimizer.describe(slot), " is ", dtype,
             "; convert the model before, as it was when the state was saved");
    loaded.masters.push_back(master);
    loaded.has_masters = loaded.has_masters || master != nullptr;
}

void read_companions(const OptimizerImpl& optimizer, Reader& reader, Loaded& loaded) {
    loaded.state.resize(optimizer.kind->state.size());
    for (const Group& group : loaded.groups)
        for (std::size_t i = group.first; i < group.first + group.count; ++i) {
            read_state(optimizer, group, i, reader, loaded);
            read_master(optimizer, i, reader, loaded);
        }
    if (!loaded.has_masters) return;
    for (std::size_t i = 0; i < loaded.masters.size(); ++i)
        if (loaded.masters[i] == nullptr && loaded.steps(i) > 0 && is_16bit(optimizer.slots[i].param.dtype()))
            fail(ErrorKind::value, reader.where(), ": ", slot_key(i, "master"),
                 " is missing, and other parameters have one");
}

// Copies the state's tensors, each kind in one allocation like those that a step makes. target(slot) is the
// tensor to assign, layout(slot) its layout, and convert(slot, tensor) the tensor in that layout.
template <class Target, class Layout, class Convert>
void copy_companions(std::vector<Slot>& slots, const std::vector<const Tensor*>& sources, Device device,
                     const Target& target, const Layout& layout, const Convert& convert) {
    Arena arena;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        target(slots[i]) = Tensor();
        if (sources[i] == nullptr) continue;
        const StateLayout own = layout(slots[i]);
        arena.add(target(slots[i]), own.shape, own.dtype);
    }
    arena.make(device, false);
    for (std::size_t i = 0; i < slots.size(); ++i)
        if (sources[i] != nullptr)
            target(slots[i]).copy_(convert(slots[i], slots[i].kept_state(sources[i]->detach())));
}

void copy_state(const OptimizerImpl& own, std::vector<Slot>& slots, const Loaded& loaded, std::size_t k) {
    const auto layout = [&](const Slot& slot) {
        return state_layout(own, state_storage(own, loaded.groups[slot.group]), slot, k);
    };
    copy_companions(
        slots, loaded.state[k], own.device(), [k](Slot& s) -> Tensor& { return s.state[k]; }, layout,
        [&](const Slot& slot, const Tensor& state) {
            return converted_state(own, slot, state, layout(slot), k);
        });
}

void copy_masters(std::vector<Slot>& slots, const Loaded& loaded, Device device) {
    copy_companions(
        slots, loaded.masters, device, [](Slot& s) -> Tensor& { return s.master; },
        [](const Slot& s) {
            return StateLayout{StateFormat::wide, s.kept_shape(), float32};
        },
        [](const Slot&, const Tensor& master) { return master; });
}

Tensor steps_tensor(const Loaded& loaded, Device device) {
    const std::size_t slots = loaded.numbers.front().size(), numbers = loaded.numbers.size();
    std::vector<float> values;
    for (std::size_t i = 0; i < slots; ++i)
        for (std::size_t k = 0; k < numbers; ++k) values.push_back(loaded.numbers[k][i]);
    return Tensor::from<float>(values, {std::int64_t(slots), std::int64_t(numbers)}).to(device);
}

Tensor state_tensor(const Loaded& loaded, Device device) {
    StepState counts{};
    counts.grad_multiplier = 1;
    counts.applied = float(loaded.applied);
    counts.skipped = float(loaded.skipped);
    const std::span<const float> values(reinterpret_cast<const float*>(&counts),
                                        sizeof counts / sizeof(float));
    return Tensor::from<float>(values, {std::int64_t(values.size())}).to(device);
}

Loaded read(const OptimizerImpl& optimizer, const StateDict& state) {
    Reader reader(optimizer.type, state);
    Loaded loaded;
    read_groups(optimizer, reader, loaded);
    read_counts(optimizer, reader, loaded);
    read_companions(optimizer, reader, loaded);
    reader.refuse_unknown(state);
    return loaded;
}

// The new content of an optimizer, complete before it replaces the old.
struct Replacement {
    std::vector<Group> groups;
    std::vector<Slot> slots;
    Tensor steps, state;
    std::int64_t applied = 0, skipped = 0;
    bool has_masters = false;
};

Replacement replacement(const OptimizerImpl& own, const StateDict& state) {
    Loaded loaded = read(own, state);
    const Device device = own.device();
    Replacement result;
    result.slots = own.slots;
    std::vector<Slot>& slots = result.slots;
    // Masters that the state lacks are made from the parameters: split ones at the next step.
    for (std::size_t i = 0; i < slots.size(); ++i) {
        slots[i].low16 = Tensor();
        if (loaded.masters[i] == nullptr && has_master(own, slots[i]) && !has_split_master(own, slots[i]))
            loaded.masters[i] = &own.slots[i].param;
    }
    for (std::size_t k = 0; k < loaded.state.size(); ++k) copy_state(own, slots, loaded, k);
    copy_masters(slots, loaded, device);
    // Makes refresh_master() compare at the next step: elements of a master that round to the parameter's
    // value stay, the others take the parameter's value.
    for (Slot& slot : slots) slot.master_version = ~std::uint64_t(0);
    result.steps = steps_tensor(loaded, device);
    result.state = state_tensor(loaded, device);
    result.applied = std::int64_t(loaded.applied);
    result.skipped = std::int64_t(loaded.skipped);
    result.has_masters = loaded.has_masters;
    result.groups = std::move(loaded.groups);
    return result;
}

// Hash of all numbers of a state, and of the names and sizes of its tensors.
std::uint64_t digest_of(const StateDict& state) {
    Fnv1a digest;
    for (const auto& [name, value] : state) {
        digest.add(name);
        digest.add(std::uint64_t(value.numel()));
        if (value.numel() == 1) digest.add(std::bit_cast<std::uint64_t>(value.item<double>()));
    }
    return digest.value();
}

// The replacement for an optimizer that is sharded over processes: throws on all of them if it fails on one.
Replacement agreed_replacement(const OptimizerImpl& own, const StateDict& state) {
    Replacement result;
    std::exception_ptr error;
    std::uint64_t digest = 0;
    try {
        result = replacement(own, state);
        digest = digest_of(state);
    } catch (...) {
        error = std::current_exception();
    }
    own.sharing->agree_to_load(own.type + std::string(".load_state_dict"), error, digest);
    return result;
}

}  // namespace

void Optimizer::restore_state(const StateDict& state) {
    NoGrad plain;
    OptimizerImpl& own = *impl_;
    refuse_in_update("load_state_dict", own);
    Replacement loaded = own.sharing ? agreed_replacement(own, state) : replacement(own, state);
    own.groups = std::move(loaded.groups);
    own.slots = std::move(loaded.slots);
    own.steps = std::move(loaded.steps);
    own.state = std::move(loaded.state);
    if (loaded.has_masters && !own.masters) own.masters = MasterWeights::whole;
    own.applied = loaded.applied;
    own.skipped = loaded.skipped;
    own.counts_on_device = false;
}

}  // namespace mezzo::optim
