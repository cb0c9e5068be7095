// Copies of modules that share nothing with their originals.
#include <unordered_map>
#include <unordered_set>

#include "core/gradient/leaf_state.h"
#include "core/tensor_impl.h"
#include "mezzo/any_module.h"
#include "mezzo/autograd.h"
#include "nn/replace.h"
#include "nn/visiting.h"

namespace mezzo::nn {

AnyModule AnyModule::own_copy(detail::OwnCopies& made) const {
    for (const auto& [from, copy] : made.made)
        if (from == &module() || &copy.module() == &module()) return copy;
    AnyModule copy(holder_->copy());
    made.made.emplace_back(&module(), copy);
    return copy;
}

namespace {

// Replaces child modules by copies. Runs before OwnTensors, which then visits the copies.
class OwnModules : public FieldVisitor {
public:
    void module(const std::string&, Module& child) override {
        const Visiting here(this, child);
        child.own_copies(made_);
        child.visit_fields(*this);
    }

private:
    detail::OwnCopies made_;
};

// Replaces tensors by copies. A tensor in two fields gets the same copy in both.
class OwnTensors : public FieldVisitor {
public:
    void parameter(const std::string&, Parameter& p) override {
        if (!p.defined()) return;
        const bool trained = p.requires_grad();
        own(p, [&] {
            Parameter copy;
            static_cast<Tensor&>(copy) = p.detach().clone();
            if (is_quantized(p)) {
                copy->grads().scale = p->grad_meta->scale.clone();
                copy->grads().row_dtype = p->grad_meta->row_dtype;
            } else {
                copy = Parameter(copy);
            }
            copy.set_requires_grad(trained);
            keep_fp8(copy, p);
            if (const Ref<LeafState> state = LeafState::of(p)) copy->grads().state = state->copy();
            copy->grads().embedding = p->grads().embedding;
            return copy;
        });
    }
    void buffer(const std::string&, Buffer& b) override {
        if (b.defined()) own(b, [&] { return Buffer(b.detach().clone()); });
    }
    void module(const std::string&, Module& child) override { child.visit_fields(*this); }

    // Makes the copies of tensors that were contiguous in memory contiguous.
    void place() const {
        for (const Tensors& group : groups_side_by_side(originals_)) {
            Tensors copies;
            for (const Tensor& x : group) copies.push_back(own_.at(x.impl()));
            place_side_by_side(copies);
        }
    }

private:
    template <class T, class Copy> void own(T& tensor, const Copy& copy) {
        if (copies_.contains(tensor.impl())) return;
        const auto known = own_.find(tensor.impl());
        if (known != own_.end()) {
            tensor = static_cast<const T&>(known->second);
            return;
        }
        const T made = copy();
        originals_.push_back(tensor);  // which also keeps its address from being used again
        own_.emplace(tensor.impl(), made);
        copies_.insert(made.impl());
        tensor = made;
    }
    Tensors originals_;
    std::unordered_map<const TensorImpl*, Tensor> own_;
    std::unordered_set<const TensorImpl*> copies_;
};

}  // namespace

void detail::make_own(Module& copy) {
    const NoGrad plain;
    OwnModules().module("", copy);
    copy.apply([](Module& module) { module.hooks_.clear(); });
    OwnTensors tensors;
    tensors.module("", copy);
    tensors.place();
}

}  // namespace mezzo::nn
