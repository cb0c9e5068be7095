// Observers of a thread's ops and gradients: range traces, anomaly detection, profilers. Without observers an
// op reads one thread-local variable.
#pragma once

#include <string_view>
#include <utility>

#include "autograd/op.h"
#include "core/internal.h"
#include "core/thread_state.h"

namespace mezzo {

namespace nn {
class Module;
}

// Observes the thread that constructs it, until it is destroyed on that thread. Ops that an observer runs are
// not observed. Exceptions that it throws pass through the observed op or backward.
class MEZZO_INTERNAL OpObserver {
public:
    OpObserver();
    virtual ~OpObserver();
    OpObserver(const OpObserver&) = delete;
    OpObserver& operator=(const OpObserver&) = delete;

    // An op has run, and has been recorded. In a backward only called for ops that a checkpoint runs again.
    virtual void called(const AnyOp&, In /*given*/, In /*results*/) {}
    // A view has been recorded.
    virtual void viewed(const Tensor& /*given*/, const Tensor& /*view*/) {}
    // An op or a view has been computed, with attributes `at` of the op's own struct. Also called if nothing
    // is recorded: under NoGrad, and for integers. An op that another op runs inside of itself is reported
    // before that one.
    virtual void computed(const AnyOp&, In /*given*/, const void* /*at*/, In /*results*/) {}
    // Elements of a tensor have been written in place.
    virtual void wrote(const Tensor&) {}
    virtual void backward_begins(const Tensors& /*outputs*/) {}
    // The gradients of a node's results are complete, and those of its inputs will be computed next.
    virtual void visiting(const Node&) {}
    // The gradient of input i of a node, as it is passed on or has been added to a leaf.
    virtual void gradient(const Node&, int /*i*/, const Tensor& /*value*/) {}
    // A gradient of a value inside of the op below (a pre-activation or a bias), which the visited node has
    // computed (Node::send_inner).
    virtual void fused_gradient(const Node& /*below*/, const Tensor& /*value*/) {}
    // Two gradients of a node's result have been added; `value` is the sum.
    virtual void sum(const Node&, const Tensor& /*value*/) {}

    // Begin and end of timed ranges, for profilers: ops (also those of backward and those inside of another
    // op), visited nodes, and ranges of insight::RecordFunction. They nest, and each that has begun ends,
    // also if it throws. An observer that is constructed in between gets the ends of ranges that began before
    // it. None of these may throw.
    virtual void op_begins(const AnyOp&, In /*given*/) noexcept {}
    // An op that has thrown may have no results here, or results without values.
    virtual void op_ends(const AnyOp&, In /*given*/, In /*results*/) noexcept {}
    virtual void node_begins(const Node&) noexcept {}
    virtual void node_ends() noexcept {}
    virtual void range_begins(std::string_view /*name*/) noexcept {}
    virtual void range_ends() noexcept {}
    // Scopes of nn::ModuleScope, while somebody wants the scopes (src/nn/running_modules.h).
    virtual void module_begins(const nn::Module&) noexcept {}
    virtual void module_ends() noexcept {}

private:
    friend struct Observers;
    OpObserver* outer_;
};

// The observers of this thread. notify() calls f for each of them.
struct Observers {
    // Disables observers on this thread while it lives.
    struct [[nodiscard]] Unwatched {
        OpObserver* const all = std::exchange(thread_state.observers, nullptr);
        Unwatched() = default;
        ~Unwatched() { thread_state.observers = all; }
        Unwatched(const Unwatched&) = delete;
        Unwatched& operator=(const Unwatched&) = delete;
    };
    template <class F> static void notify(const F& f) {
        if (thread_state.observers == nullptr) [[likely]]
            return;
        const Unwatched unwatched;
        for (OpObserver* one = unwatched.all; one != nullptr; one = one->outer_) f(*one);
    }
};

// Names the public function whose ops run while the scope lives, for observers. Only the outermost scope
// counts. Without observers it reads one thread-local variable.
class [[nodiscard]] CompositeOp {
public:
    explicit CompositeOp(const char* name)
        : outermost_(thread_state.observers != nullptr && thread_state.composite_op == nullptr) {
        if (outermost_) thread_state.composite_op = name;
    }
    ~CompositeOp() {
        if (outermost_) thread_state.composite_op = nullptr;
    }
    CompositeOp(const CompositeOp&) = delete;
    CompositeOp& operator=(const CompositeOp&) = delete;

private:
    const bool outermost_;
};

void tell_called(const AnyOp& op, In given, const void* at, In results);
void tell_wrote(const Tensor& x);

// Notifies the observers that an op runs while the scope lives.
class [[nodiscard]] WatchedOp {
public:
    // The tensors outlive the scope. `results` is read at its end.
    WatchedOp(const AnyOp& op, In given, const Tensors& results) : op_(op), given_(given), results_(results) {
        Observers::notify([&](OpObserver& one) { one.op_begins(op_, given_); });
    }
    ~WatchedOp() {
        Observers::notify([&](OpObserver& one) { one.op_ends(op_, given_, results_); });
    }
    WatchedOp(const WatchedOp&) = delete;
    WatchedOp& operator=(const WatchedOp&) = delete;

private:
    const AnyOp& op_;
    const In given_;
    const Tensors& results_;
};

// The same for the visit of a node.
class [[nodiscard]] WatchedNode {
public:
    explicit WatchedNode(const Node& node) {
        Observers::notify([&](OpObserver& one) { one.node_begins(node); });
    }
    ~WatchedNode() {
        Observers::notify([&](OpObserver& one) { one.node_ends(); });
    }
    WatchedNode(const WatchedNode&) = delete;
    WatchedNode& operator=(const WatchedNode&) = delete;
};

// Reports the gradients that a vjp has added to leaves itself (Node::accumulator). `result`: the gradients
// that it returned.
void tell_accumulated(const Node& node, const Tensors& result);

}  // namespace mezzo
