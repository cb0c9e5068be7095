// Gradient hooks: those of leaves are stored in their GradMeta, those of results in their node.
#include <algorithm>

#include "autograd/extra.h"

namespace mezzo {

namespace {
std::atomic<int> next_hook{1};

void erase_hook(Hooks& hooks, int id) {
    std::erase_if(hooks, [id](const Hook& h) { return h.id == id; });
}
}  // namespace

NodeExtra& extra_of(Node& node) {
    if (!node.extra) node.extra = new NodeExtra;
    return *node.extra;
}

Tensor run_hooks(const Hooks& hooks, std::uint32_t output, Tensor gradient) {
    const Hooks snapshot = hooks;  // a hook may add or remove hooks
    for (const Hook& hook : snapshot) {
        if (hook.output != output) continue;
        Tensor replaced = hook.function(gradient);
        if (!replaced.defined()) continue;
        check(replaced.shape() == gradient.shape() && replaced.dtype() == gradient.dtype(), ErrorKind::shape,
              "hook: returned ", replaced.dtype(), " ", replaced.shape(), " for a gradient of ",
              gradient.dtype(), " ", gradient.shape());
        gradient = std::move(replaced);
    }
    return gradient;
}

namespace autograd {

int add_hook(const Tensor& tensor, GradHook hook) {
    check(tensor.defined() && tracked(tensor), ErrorKind::state,
          "add_hook: the tensor does not require grad");
    GradMeta& meta = *tensor->grad_meta;
    const int id = next_hook.fetch_add(1);
    if (meta.node) {
        extra_of(*meta.node).hooks.push_back({id, meta.output, std::move(hook)});
        return id;
    }
    if (!meta.hooks) {
        meta.hooks = new Hooks;
        meta.free_hooks = [](void* p) { delete static_cast<Hooks*>(p); };
    }
    static_cast<Hooks*>(meta.hooks)->push_back({id, 0, std::move(hook)});
    return id;
}

void remove_hook(const Tensor& tensor, int hook) {
    if (!tensor.defined() || !tensor->grad_meta) return;
    GradMeta& meta = *tensor->grad_meta;
    if (meta.node && meta.node->extra) erase_hook(meta.node->extra->hooks, hook);
    if (meta.hooks) erase_hook(*static_cast<Hooks*>(meta.hooks), hook);
}

}  // namespace autograd
}  // namespace mezzo
