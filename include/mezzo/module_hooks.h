// Hooks of modules: functions that run before and after a module's call, and in its backward. Module has the
// functions that register them. In a call of a class derived from a layer they run once: around the whole if
// its operator() passes its work to with_hooks(), or Sequential or AnyModule calls it, else around the
// layer's own call within. A hook that holds a handle to its module, such as a copy of the Sequential around
// it, keeps it alive until remove().
//
//   const nn::RemovableHandle handle = net[0].register_forward_hook(
//       [](const nn::Module&, const Tensors&, Tensors& outputs) { outputs[0] = outputs[0] * 2; });
//   y = net(x);
//   handle.remove();
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "mezzo/callback.h"
#include "mezzo/shared.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

class Module;

// The inputs are the tensors of the call, the outputs its result: one tensor, or several of a recurrent
// layer. A hook replaces a tensor by assigning to it; it must not change their number.
using ForwardPreHook = autograd::Callback<void(const Module&, Tensors& inputs)>;
using ForwardHook = autograd::Callback<void(const Module&, const Tensors& inputs, Tensors& outputs)>;
// Gradients of the call's outputs and inputs. That of a tensor without history is undefined, that of a
// tensor that does not contribute is 0. A replaced gradient has the same shape. The module is not passed: it
// may be gone when backward runs.
using BackwardPreHook = autograd::Callback<void(Tensors& grad_outputs)>;
using BackwardHook = autograd::Callback<void(Tensors& grad_inputs, const Tensors& grad_outputs)>;

namespace detail {

enum class HookKind : std::uint8_t { forward_pre, forward, backward_pre, backward };

struct ModuleHook : mezzo::detail::SharedObject {
    using Function = autograd::Callback<void(const Module*, Tensors&, Tensors&)>;
    ModuleHook(HookKind k, Function f) : kind(k), function(std::move(f)) {}
    const HookKind kind;
    std::optional<Function> function;  // empty after removal
};
using ModuleHooks = std::vector<mezzo::detail::SharedHandle<ModuleHook>>;

// The hooks of a module: a pointer that is null before the first one.
class HookList {
public:
    HookList() = default;
    HookList(const HookList& other) : hooks_(other.hooks_ == nullptr ? nullptr : copy(*other.hooks_)) {}
    HookList& operator=(const HookList& other) &;
    ~HookList() {
        if (hooks_ != nullptr) [[unlikely]]
            clear();
    }
    [[nodiscard]] bool none() const { return hooks_ == nullptr; }
    [[nodiscard]] bool any_active() const;  // whether one of the hooks has not been removed
    [[nodiscard]] const ModuleHooks& all() const { return *hooks_; }
    void add(const mezzo::detail::SharedHandle<ModuleHook>& hook);
    void clear();

private:
    static ModuleHooks* copy(const ModuleHooks& hooks);
    ModuleHooks* hooks_ = nullptr;
};

}  // namespace detail

// Removes a hook. It may outlive the module; without a call of remove() the hook stays.
class RemovableHandle {
public:
    explicit RemovableHandle(const mezzo::detail::SharedHandle<detail::ModuleHook>& hook) : hook_(hook) {}
    // Removes the hook from its module and all copies of it, also while the hook runs. Does nothing the
    // second time. Not while another thread calls one of these modules.
    void remove() const { hook_->function.reset(); }

private:
    mezzo::detail::SharedHandle<detail::ModuleHook> hook_;
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
