// Walks over the fields of modules: listing, state, moving, printing.
#include "mezzo/module.h"

#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>
#include <typeindex>
#include <unordered_map>
#include <unordered_set>

#include "core/enumerators.h"
#include "core/gradient/unlisted.h"
#include "core/system/log_line.h"
#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/nn.h"
#include "nn/replace.h"
#include "nn/visiting.h"
#include "nn/weight_state.h"

namespace mezzo::nn {

Parameter::Parameter(const Tensor& value) : Tensor(alias(value.contiguous())) {
    impl()->view = false;  // it owns its elements from here on, and autocast may keep a 16-bit copy of them
    check(is_floating(value.dtype()), ErrorKind::dtype, "Parameter: dtype is ", value.dtype(),
          "; only floating tensors can be trained");
    set_requires_grad(true);
    impl()->grads().unlisted.store(true, std::memory_order_relaxed);
}

Buffer::Buffer(const Tensor& value) : Tensor(alias(value)) { impl()->view = false; }

namespace {

std::string readable(const std::type_info& type) {
    const std::unique_ptr<char, void (*)(void*)> name(
        abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr), std::free);
    return name ? name.get() : type.name();
}

}  // namespace

void detail::note_unlisted(const Module& module, const std::type_info& listed, const char* listed_name) {
    if (std::string_view(module.type_name()) != listed_name) return;
    static std::mutex* const mutex = new std::mutex;  // leaked: modules may be used while the program ends
    static auto* const noted = new std::unordered_set<std::type_index>;
    {
        const std::lock_guard lock(*mutex);
        if (!noted->insert(typeid(module)).second) return;
    }
    log_line("nn: " + readable(typeid(module)) + " derives from " + readable(listed) +
             " and has no MEZZO_MODULE line of its own; fields that it adds are neither trained nor saved");
}

std::string detail::next_field_name(std::string_view& names) {
    const std::size_t end = std::min(names.find(','), names.size());
    std::string_view name = names.substr(0, end);
    names.remove_prefix(std::min(end + 1, names.size()));
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    return std::string(name);
}

namespace {

std::string joined(const std::string& prefix, const std::string& name) {
    return prefix.empty() ? name : prefix + "." + name;
}

// Marks the table of an embedding. It may have been made as the weight of another layer, to which it is tied.
void mark_table(const Module& owner, const Tensor& parameter) {
    const bool table = dynamic_cast<const Embedding*>(&owner) != nullptr ||
                       dynamic_cast<const EmbeddingBag*>(&owner) != nullptr;
    if (!table || parameter->grad_meta == nullptr) return;  // without it, it is not trained
    // Threads may list a module that they share.
    const std::atomic_ref<bool> mark(parameter->grad_meta->embedding);
    if (!mark.load(std::memory_order_relaxed)) mark.store(true, std::memory_order_relaxed);
}

// Lists defined parameters or buffers with their full names, each tensor once; in the form of files if asked.
// other_names has the further names of tensors that are listed, if they have one form under both names.
class Lister : public FieldVisitor {
public:
    struct What {
        bool parameters = true, buffers = true, as_saved = false;
        bool lasting = true;  // for training or saving, so that no parameter in it is a forgotten field
        bool scales = false;  // of 8-bit weights, too
        bool other_names = false;
    };
    Lister(const Module& root, std::string prefix, What what)
        : owner_(&root), prefix_(std::move(prefix)), what_(what) {}
    void parameter(const std::string& name, Parameter& p) override {
        if (!what_.parameters) return;
        add(name, p);
        if (what_.scales && is_quantized(p)) add(name + "_scale", p->grad_meta->scale);
        if (!what_.lasting || !p.defined()) return;
        mark_listed(p);
        mark_table(*owner_, p);
    }
    void buffer(const std::string& name, Buffer& b) override {
        if (what_.buffers) add(name, b);
    }
    void module(const std::string& name, Module& child) override {
        const Visiting here(this, child);
        std::string outer = joined(prefix_, name);
        const Module* inner = &child;
        std::swap(prefix_, outer);
        std::swap(owner_, inner);
        child.visit_fields(*this);
        std::swap(owner_, inner);
        std::swap(prefix_, outer);
    }
    StateDict found;
    NamePositions other_names;

private:
    void add(const std::string& name, const Tensor& t) {
        if (!t.defined()) return;
        const auto [first, unknown] = known_.try_emplace(t.impl(), found.size());
        if (!unknown && !what_.other_names) return;
        const Tensor form = what_.as_saved ? owner_->as_saved(name, t.detach()) : t;
        if (unknown) {
            found.emplace_back(joined(prefix_, name), form);
        } else if (found[first->second].second.strides() == form.strides()) {
            other_names.emplace_back(joined(prefix_, name), first->second);
        }
    }
    const Module* owner_;
    std::string prefix_;
    std::unordered_map<const TensorImpl*, std::size_t> known_;
    What what_;
};

// Listing changes nothing; visit_fields() is not const because other visitors do.
StateDict list(const Module& module, const std::string& prefix, Lister::What what) {
    Lister lister(module, prefix, what);
    const_cast<Module&>(module).visit_fields(lister);
    return std::move(lister.found);
}

// Text of the mismatch between an entry of a state and a module's own tensor. If the latter is not
// contiguous, it is the weight of a convolution, permuted to PyTorch's order.
std::string mismatch(const Tensor& given, const Tensor& own) {
    if (!given.defined()) return " (undefined)";
    return " (" + mezzo::detail::text_of(given.shape()) + ", not " + mezzo::detail::text_of(own.shape()) +
           (own.is_contiguous() ? ")" : ", PyTorch's order: of convolutions OIHW)");
}

class TrainSwitch : public FieldVisitor {
public:
    explicit TrainSwitch(bool on) : on_(on) {}
    void parameter(const std::string&, Parameter& p) override {
        if (!on_ || !p.defined()) return;
        drop(p);
        if (p->grad_meta == nullptr) return;
        drop(p->grad_meta->copy16.value);
        drop_frozen16(*p->grad_meta);
    }
    void module(const std::string&, Module& child) override {
        static constexpr char all_levels = 0;
        const Visiting here(&all_levels, child);
        child.train(on_);
    }

private:
    // Frees the packed copy that an InferenceMode has made of a tensor.
    static void drop(const Tensor& x) {
        if (x.defined() && x->storage) drop_packed(*x->storage);
    }
    bool on_;
};

class Printer : public FieldVisitor {
public:
    explicit Printer(int depth) : depth_(depth) {}
    void module(const std::string& name, Module& child) override {
        text += "\n" + std::string(std::size_t(2 * depth_ + 2), ' ') + "(" + name +
                "): " + print(child, depth_ + 1);
    }
    static std::string print(Module& module, int depth) {
        static constexpr char all_levels = 0;
        const Visiting here(&all_levels, module);
        Printer children(depth);
        module.visit_fields(children);
        std::string result = std::string(module.type_name()) + "(" + module.describe();
        if (!children.text.empty()) result += children.text + "\n" + std::string(std::size_t(2 * depth), ' ');
        return result + ")";
    }
    std::string text;

private:
    int depth_;
};

}  // namespace

Tensors Module::parameters() const {
    Tensors result;
    for (auto& [name, parameter] : list(*this, "", {.buffers = false})) result.push_back(parameter);
    return result;
}

StateDict Module::named_parameters(const std::string& prefix) const {
    return list(*this, prefix, {.buffers = false});
}
StateDict Module::named_buffers(const std::string& prefix) const {
    return list(*this, prefix, {.parameters = false});
}

StateDict Module::state_dict() const { return list(*this, "", {.as_saved = true, .scales = true}); }

std::pair<StateDict, NamePositions> list_state(const Module& module) {
    Lister lister(module, "", {.as_saved = true, .scales = true, .other_names = true});
    const_cast<Module&>(module).visit_fields(lister);
    return {std::move(lister.found), std::move(lister.other_names)};
}

Tensor Module::as_saved(std::string_view, const Tensor& tensor) const { return tensor; }

void Module::load_state_dict(const StateDict& state, bool strict) {
    const OwnState own(*this);
    std::string missing, unexpected, other_shape;
    std::vector<std::size_t> targets;
    std::vector<bool> given(own.size() + 1);
    for (const auto& [name, value] : state) {
        targets.push_back(own.find(name));
        given[targets.back()] = true;
    }
    const StateScales scales(state, targets, own);
    std::vector<WeightCopy> copies;
    for (std::size_t i = 0; i < state.size(); ++i) {
        const auto& [name, value] = state[i];
        if (scales.is_scale(i)) continue;
        if (targets[i] == own.size() || own.is_scale(targets[i])) {
            unexpected += " " + name;
            continue;
        }
        const StateWeight to = own.weight(targets[i]);
        if (!value.defined() || !(value.shape() == to.value.shape())) {
            other_shape += " " + name + mismatch(value, to.value);
            continue;
        }
        copies.push_back({targets[i], name, {value, scales.of(i)}});
        if (lacks_scale(to, copies.back().from)) missing += " " + name + "_scale";
    }
    std::size_t found = 0;
    for (std::size_t t = 0; t < own.size(); ++t) {
        if (given[t]) {
            ++found;
        } else if (!own.is_scale(t)) {
            missing += " " + own.entries()[t].first;
        }
    }
    if (!strict) missing = unexpected = "";
    check(missing.empty() && unexpected.empty() && other_shape.empty(), ErrorKind::value, type_name(),
          ".load_state_dict: of ", own.size(), " names ", found,
          " are there; missing:", missing.empty() ? " none" : missing,
          "; unexpected:", unexpected.empty() ? " none" : unexpected,
          "; of another shape:", other_shape.empty() ? " none" : other_shape);
    check_copies("load_state_dict", own, copies);
    copy_weights(own, copies);
}

namespace {

// Scales of 8-bit weights keep their dtype.
template <class Target> void convert_all(const Module& module, Target target, bool floating_only) {
    NoGrad plain;
    Tensors tensors;
    for (const auto& [name, tensor] : list(module, "", {.lasting = false, .scales = !floating_only}))
        if (!floating_only || is_floating(tensor.dtype())) tensors.push_back(tensor);
    keep_side_by_side(tensors, [&] {
        for (const Tensor& tensor : tensors) {
            const Tensor gradient = tensor.grad();
            replace_elements(tensor, tensor.to(target));
            if (!gradient.defined()) continue;
            GradientSlot& slot = tensor->grad_meta->gradient;
            slot.put({gradient.to(target), slot.scale_state()});
        }
    });
}

}  // namespace

void Module::to(Device device) { convert_all(*this, device, false); }

void Module::to(Dtype dtype) {
    check_dtype("Module.to", dtype);
    check(is_floating(dtype), ErrorKind::dtype, type_name(), ".to: ", dtype, " is no floating dtype");
    convert_all(*this, dtype, true);
    for (const auto& [name, tensor] : list(*this, "", {.lasting = false}))
        if (is_quantized(tensor)) tensor->grad_meta->row_dtype = dtype;
}

void Module::train(bool on) {
    training_ = on;
    TrainSwitch children(on);
    visit_fields(children);
}

void Module::zero_grad(bool set_to_none) {
    NoGrad plain;
    for (const Tensor& p : parameters()) {
        if (set_to_none) {
            p.set_grad({});
        } else {
            if (const Tensor gradient = p->grads().gradient.overwrite(); gradient.defined()) gradient.zero_();
        }
    }
}

std::string Module::to_string() const { return Printer::print(const_cast<Module&>(*this), 0); }

}  // namespace mezzo::nn
