// Observer of backward passes. It gets the order in which the gradients of its leaves become ready, before
// the first of them does, and then a call when each is ready. Without observers a backward pass has no
// listener.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "autograd/backward_listener.h"
#include "autograd/op.h"
#include "core/gradient/gradient_hook.h"
#include "mezzo/tensor.h"

namespace mezzo::distributed {

// Argument of BackwardObserver::begin().
struct BackwardPlan {
    // The observer's leaves to which edges of the graph lead, in the order in which their gradients become
    // ready.
    std::vector<std::uint32_t> order = {};
    // Number of nodes of the graph that may deliver a gradient to any leaf (NodeFunction::opaque).
    std::size_t opaque = 0;
    bool create_graph = false;
    // Whether this is the only observer of the backward. Otherwise operations that need the same order on all
    // ranks must wait until end(): the order in which the leaves of different observers become ready depends
    // on the order in which the graph was built.
    bool alone = true;
};

// Observer of backward passes that reach its leaves. It is set as the hook of their gradient slots, where the
// engine finds it. Calls come from the thread that runs the backward, for one backward at a time. Backward
// passes inside of a running one, and autograd::grad(), are not observed.
class BackwardObserver : public GradientHook {
public:
    BackwardObserver();
    ~BackwardObserver() override;
    bool reduces() const override { return true; }

    // begin() and end() are called in ascending order of number(); end() of observers that only opaque nodes
    // have reached comes last.
    virtual std::uint64_t number() const = 0;
    // A backward that reaches leaves of this observer begins. If only opaque nodes reach them, it is called
    // at the first delivery.
    virtual void begin(const BackwardPlan& plan) = 0;
    // No edge will deliver more to this leaf. Called for each leaf in the plan's order.
    virtual void finished(std::uint32_t place) = 0;
    // Opaque node `number`, counted from 0 in the order of visits, is going to run, and delivers to leaves
    // until opaque_finished(number). A node without a gradient does not run; opaque_finished() is called all
    // the same.
    virtual void opaque_begins(std::size_t number) = 0;
    virtual void opaque_finished(std::size_t number) = 0;
    // All gradients are ready, also those of leaves with hooks.
    virtual void end() = 0;
    // The backward has thrown. `words` is the message of the exception; empty if it is unknown.
    virtual void abandon(std::string_view words) noexcept = 0;
};

// Notifies the observers of one backward pass.
class ReadinessTracker final : public BackwardListener {
public:
    // outputs: where the gradients start.
    ReadinessTracker(const Tensors& outputs, bool create_graph);
    // If the pass has begun and neither end() nor failed() has been called, notifies the observers of an
    // error without a message.
    ~ReadinessTracker() override;
    ReadinessTracker(const ReadinessTracker&) = delete;
    ReadinessTracker& operator=(const ReadinessTracker&) = delete;

    void begin() override;
    void visiting(const Node& node) override;
    void visited(std::uint64_t next) override;
    void delivering(const Tensor& leaf) override;
    void end() override;
    void failed(std::string_view message) noexcept override;

private:
    // A leaf becomes ready, or an opaque node is finished, when every node with at least `sequence` has been
    // visited.
    struct Event {
        std::uint64_t sequence;
        std::size_t met;                       // order in the walk, for leaves of one node
        BackwardObserver* observer = nullptr;  // null: the opaque node
        std::uint32_t place = 0;
    };
    void walk(const Tensors& outputs);
    void add_observer(BackwardObserver* observer);
    void sort_observers(std::size_t from);
    std::size_t number_of(std::uint64_t sequence) const;  // of an opaque node

    bool create_graph_, begun_ = false, over_ = false;
    std::vector<Event> events_;          // by falling sequence
    std::vector<std::uint64_t> opaque_;  // sequences of opaque nodes, falling
    std::size_t planned_ = 0;            // observers that edges of the graph reach
    std::size_t passed_ = 0, running_ = ~std::size_t(0);
    std::vector<Ref<GradientHook>> observers_;  // all are BackwardObservers
};

}  // namespace mezzo::distributed
