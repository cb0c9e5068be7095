// Functions over all modules or parameters of a module: lists, apply(), freezing, counting, printing.
#include <ostream>

#include "core/tensor_impl.h"
#include "mezzo/module.h"
#include "nn/visiting.h"

namespace mezzo::nn {

namespace {

class ModuleLister : public FieldVisitor {
public:
    void module(const std::string& name, Module& child) override {
        const std::string outer = path_;
        path_ += (path_.empty() ? "" : ".") + name;
        list(child);
        path_ = outer;
    }
    void list(Module& module) {
        const Visiting here(this, module);
        found.emplace_back(path_, &module);
        module.visit_fields(*this);
    }
    std::vector<std::pair<std::string, Module*>> found;

private:
    std::string path_;
};

class Applier : public FieldVisitor {
public:
    explicit Applier(const autograd::Callback<void(Module&)>& f) : f_(f) {}
    void module(const std::string&, Module& child) override {
        {
            const Visiting here(this, child);
            child.visit_fields(*this);
        }
        f_(child);
    }

private:
    const autograd::Callback<void(Module&)>& f_;
};

}  // namespace

thread_local const Visiting* Visiting::innermost = nullptr;

Visiting::Visiting(const void* visitor, const Module& module)
    : visitor_(visitor), module_(&module), outer_(innermost) {
    for (const Visiting* outer = outer_; outer != nullptr; outer = outer->outer_)
        check(outer->visitor_ != visitor || outer->module_ != &module, ErrorKind::value, module.type_name(),
              ": the module contains itself: visit_fields() of it or of a module inside of it passes it on "
              "as a "
              "child; list fields that are values, not references to an outer module");
    innermost = this;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
    ModuleLister lister;
    lister.list(*this);
    return std::move(lister.found);
}

void Module::apply(const autograd::Callback<void(Module&)>& f) { Applier(f).module("", *this); }

void Module::set_fp8(bool on) {
    for (const Tensor& p : parameters()) p->grads().no_fp8 = !on;
}

void Module::freeze() {
    for (const Tensor& p : parameters()) p.set_requires_grad(false);
}

void Module::unfreeze() {
    const StateDict all = named_parameters();
    for (const auto& [name, p] : all)
        check(!is_quantized(p), ErrorKind::dtype, type_name(), ".unfreeze: ", name,
              " is an 8-bit weight of quantize_weights(), which is for inference and has no gradient");
    for (const auto& [name, p] : all) p.set_requires_grad(true);
}

std::int64_t Module::num_parameters(bool only_trainable) const {
    std::int64_t count = 0;
    for (const Tensor& p : parameters())
        if (!only_trainable || p.requires_grad()) count += p.numel();
    return count;
}

std::ostream& operator<<(std::ostream& out, const Module& module) { return out << module.to_string(); }

}  // namespace mezzo::nn
