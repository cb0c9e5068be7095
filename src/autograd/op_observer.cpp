#include "autograd/op_observer.h"

#include "autograd/engine.h"

namespace mezzo {

OpObserver::OpObserver() : outer_(std::exchange(thread_state.observers, this)) {}

OpObserver::~OpObserver() {
    for (OpObserver** place = &thread_state.observers; *place != nullptr; place = &(*place)->outer_)
        if (*place == this) {
            *place = outer_;
            return;
        }
}

void tell_called(const AnyOp& op, In given, const void* at, In results) {
    if (thread_state.engine != nullptr && !thread_state.recomputing) return;
    Observers::notify([&](OpObserver& one) {
        one.called(op, given, results);
        one.computed(op, given, at, results);
    });
}

void tell_wrote(const Tensor& x) {
    Observers::notify([&](OpObserver& one) { one.wrote(x); });
}

void tell_accumulated(const Node& node, const Tensors& result) {
    for (std::size_t i = 0; i < node.edges.size(); ++i) {
        const Tensor& leaf = node.edges[i].leaf;
        if (!leaf.defined() || (i < result.size() && result[i].defined())) continue;
        const Tensor total = leaf->grad_meta->gradient.read();
        if (total.defined()) Observers::notify([&](OpObserver& one) { one.gradient(node, int(i), total); });
    }
}

}  // namespace mezzo
