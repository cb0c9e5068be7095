// Registration of module hooks, and the call with hooks around it.
#include "mezzo/module_hooks.h"

#include <algorithm>

#include "core/scoped_value.h"
#include "mezzo/any_module.h"
#include "mezzo/autograd.h"

namespace mezzo::nn {

namespace {

using detail::HookKind;
using detail::ModuleHooks;

// The module around whose call the hooks run at present: with_hooks() of its base classes runs them no more.
thread_local const Module* entered = nullptr;

void run_all(const ModuleHooks& hooks, HookKind kind, const Module* module, Tensors& a, Tensors& b) {
    const std::size_t sizes[] = {a.size(), b.size()};
    for (const auto& hook : hooks) {
        if (hook->kind != kind || !hook->function) continue;
        const auto function = *hook->function;  // the hook may remove itself
        function(module, a, b);
        check(a.size() == sizes[0] && b.size() == sizes[1], ErrorKind::value,
              "module hook: it changed the number of tensors; replace a tensor by assigning to it");
    }
}

// Hooks that run in one backward: two functions that pass tensors on, before and after the call, have the
// gradients of all inputs and of all outputs.
class BackwardHooks {
public:
    explicit BackwardHooks(const ModuleHooks& hooks) : state_(new State(hooks)) {}

    Tensors passed_inputs(const Tensors& inputs) {
        state_->inputs = inputs.size();
        const auto run = [](State& state, Tensors& gradients) {
            run_all(state.hooks, HookKind::backward, nullptr, gradients, state.grad_outputs);
            state.grad_outputs.clear();
        };
        return passed(inputs, run, &state_->tracked_inputs);
    }
    Tensors passed_outputs(const Tensors& outputs) {
        const auto run = [](State& state, Tensors& gradients) {
            Tensors none, inputs(state.inputs);
            run_all(state.hooks, HookKind::backward_pre, nullptr, gradients, none);
            state.grad_outputs = gradients;
            if (!state.tracked_inputs)
                run_all(state.hooks, HookKind::backward, nullptr, inputs, state.grad_outputs);
        };
        return passed(outputs, run, nullptr);
    }

private:
    struct State : mezzo::detail::SharedObject {
        explicit State(const ModuleHooks& h) : hooks(h) {}
        ModuleHooks hooks;
        std::size_t inputs = 0;
        bool tracked_inputs = false;
        Tensors grad_outputs;
    };

    // The tensors with one node behind those that have a history, whose gradients run() may replace.
    Tensors passed(const Tensors& tensors, void (*run)(State&, Tensors&), bool* any) const {
        std::vector<std::size_t> places;
        Tensors chosen, result = tensors;
        for (std::size_t i = 0; i < tensors.size(); ++i)
            if (tensors[i].defined() && tensors[i].requires_grad()) {
                places.push_back(i);
                chosen.push_back(tensors[i]);
            }
        if (any != nullptr) *any = !places.empty();
        if (places.empty()) return result;
        const auto backward = [state = state_, places, run, count = tensors.size()](autograd::Context&,
                                                                                    const Tensors& g) {
            Tensors gradients(count), replaced;
            for (std::size_t k = 0; k < places.size(); ++k) gradients[places[k]] = g[k];
            run(*state.operator->(), gradients);
            for (const std::size_t place : places) replaced.push_back(gradients[place]);
            return replaced;
        };
        const Tensors marked = autograd::apply_function(
            {.name = "module_hook"}, [](autograd::Context&, const Tensors& in) { return in; }, backward,
            chosen);
        for (std::size_t k = 0; k < places.size(); ++k) result[places[k]] = marked[k];
        return result;
    }

    mezzo::detail::SharedHandle<State> state_;
};

bool any_of_backward(const ModuleHooks& hooks) {
    for (const auto& hook : hooks)
        if (hook->function && (hook->kind == HookKind::backward || hook->kind == HookKind::backward_pre))
            return true;
    return false;
}

}  // namespace

namespace detail {

HookList& HookList::operator=(const HookList& other) & {
    HookList copied(other);
    std::swap(hooks_, copied.hooks_);
    return *this;
}

ModuleHooks* HookList::copy(const ModuleHooks& hooks) { return new ModuleHooks(hooks); }

void HookList::clear() { delete std::exchange(hooks_, nullptr); }

bool HookList::any_active() const {
    return std::any_of(hooks_->begin(), hooks_->end(), [](const auto& hook) { return bool(hook->function); });
}

void HookList::add(const mezzo::detail::SharedHandle<ModuleHook>& hook) {
    if (hooks_ == nullptr) hooks_ = new ModuleHooks;
    std::erase_if(*hooks_, [](const auto& one) { return !one->function; });
    hooks_->push_back(hook);
}

Tensors run_hooked(const HookedCall& call, Tensors (*run)(const void*, const Tensor*)) {
    Tensors inputs;
    for (int i = 0; i < call.count; ++i) inputs.push_back(*call.inputs[i]);
    if (entered == &call.module && !call.reenters) return run(call.forward, inputs.data());
    const ModuleHooks hooks = call.module.hooks_.all();  // a hook may register hooks
    Tensors none;
    run_all(hooks, HookKind::forward_pre, &call.module, inputs, none);
    std::optional<BackwardHooks> backward;
    if (grad_enabled() && any_of_backward(hooks)) {
        backward.emplace(hooks);
        inputs = backward->passed_inputs(inputs);
    }
    Tensors outputs;
    {
        const ScopedValue here(entered, &call.module);
        outputs = run(call.forward, inputs.data());
    }
    run_all(hooks, HookKind::forward, &call.module, inputs, outputs);
    return backward ? backward->passed_outputs(outputs) : outputs;
}

Tensor run_hooked(const HookedCall& call, Tensor (*run)(const void*, const Tensor*)) {
    struct One {
        const void* forward;
        Tensor (*run)(const void*, const Tensor*);
    };
    const One one{call.forward, run};
    HookedCall of_one = call;
    of_one.forward = &one;
    return run_hooked(of_one, [](const void* forward, const Tensor* inputs) {
        const One& f = *static_cast<const One*>(forward);
        return Tensors{f.run(f.forward, inputs)};
    })[0];
}

}  // namespace detail

Tensor AnyModule::call_with_hooks(const Tensor& x) const {
    const Tensor* const inputs[] = {&x};
    return detail::run_hooked({module(), inputs, 1, this, true}, [](const void* self, const Tensor* in) {
        return static_cast<const AnyModule*>(self)->holder_->call(in[0]);
    });
}

RemovableHandle Module::add_hook(HookKind kind, detail::ModuleHook::Function function) {
    const mezzo::detail::SharedHandle hook(new detail::ModuleHook(kind, std::move(function)));
    hooks_.add(hook);
    return RemovableHandle(hook);
}

RemovableHandle Module::register_forward_pre_hook(ForwardPreHook hook) {
    return add_hook(HookKind::forward_pre,
                    [hook](const Module* module, Tensors& inputs, Tensors&) { hook(*module, inputs); });
}

RemovableHandle Module::register_forward_hook(ForwardHook hook) {
    return add_hook(HookKind::forward, [hook](const Module* module, Tensors& inputs, Tensors& outputs) {
        hook(*module, inputs, outputs);
    });
}

RemovableHandle Module::register_full_backward_pre_hook(BackwardPreHook hook) {
    return add_hook(HookKind::backward_pre,
                    [hook](const Module*, Tensors& gradients, Tensors&) { hook(gradients); });
}

RemovableHandle Module::register_full_backward_hook(BackwardHook hook) {
    return add_hook(HookKind::backward,
                    [hook](const Module*, Tensors& inputs, Tensors& outputs) { hook(inputs, outputs); });
}

}  // namespace mezzo::nn
