// Who follows a backward pass: it learns in which order the leaves that it watches become final, before the first of
// them does, and then when each is. Without an observer a backward does nothing of this.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "autograd/row.h"
#include "core/gradient_watcher.h"

namespace mezzo {

// What an observer is told when a backward begins.
struct BackwardPlan {
    // The watched leaves to which edges of the graph lead, in the order in which they become final.
    std::vector<std::uint32_t> order = {};
    // How many nodes of the graph may deliver a gradient to any leaf (NodeFunction::opaque).
    std::size_t opaque = 0;
    bool create_graph = false;
    // Whether no other observer takes part. Otherwise nothing that has to happen in the same order everywhere may happen before end(): which observer's
    // leaves become final first depends on the order in which the graph was built.
    bool alone = true;
};

// It is the watcher of its leaves' slots: whoever meets a watched leaf finds it there. Calls come from the thread that
// runs the backward, for one backward at a time. Backward passes inside of a running one, and autograd::grad(), are not
// observed.
class BackwardObserver : public GradientWatcher {
public:
    BackwardObserver() { alive.fetch_add(1, std::memory_order_relaxed); }
    ~BackwardObserver() override { alive.fetch_sub(1, std::memory_order_relaxed); }

    // begin() and end() of one backward come by rising numbers; then to those that only opaque nodes have reached.
    virtual std::uint64_t number() const = 0;
    // A backward that reaches leaves of this observer begins; if only opaque nodes reach any, with the first delivery.
    virtual void begin(const BackwardPlan& plan) = 0;
    // No edge will bring more to this leaf. Called for each leaf in the plan's order.
    virtual void finished(std::uint32_t place) = 0;
    // Opaque node `number`, counted from 0 in the order of visits, is going to run, and delivers to leaves until
    // opaque_finished(number). A node that gets no gradient does not run; it is finished all the same.
    virtual void opaque_begins(std::size_t number) = 0;
    virtual void opaque_finished(std::size_t number) = 0;
    // All gradients are there, those of leaves with hooks, too.
    virtual void end() = 0;
    // The backward has thrown instead. What the exception says is empty where that is unknown.
    virtual void abandon(std::string_view words) noexcept = 0;

    static bool any() { return alive.load(std::memory_order_relaxed) != 0; }

private:
    static constinit inline std::atomic<int> alive{0};
};

// A backward as its observers follow it.
class BackwardWatch {
public:
    // outputs: where the gradients start.
    BackwardWatch(const Tensors& outputs, bool create_graph);
    ~BackwardWatch();
    BackwardWatch(const BackwardWatch&) = delete;
    BackwardWatch& operator=(const BackwardWatch&) = delete;

    // Tells the observers that the backward begins.
    void begin();
    void visiting(const Node& node);
    // The next node that will be visited has this sequence number; 0: there is none.
    void next(std::uint64_t sequence);
    // A gradient is going to be added to the leaf.
    void delivering(const Tensor& leaf);
    void end();
    // The backward has thrown, and this is what the exception says. The destructor tells the observers where nothing is known of it.
    void abandon(std::string_view words) noexcept;

private:
    // A leaf becomes final, or an opaque node is finished, once every node from `sequence` on has been visited.
    struct Event {
        std::uint64_t sequence;
        std::size_t met;                       // when the walk met it, for an order among leaves of one node
        BackwardObserver* observer = nullptr;  // null: the opaque node
        std::uint32_t place = 0;
    };
    void walk(const Tensors& outputs);
    void add_observer(BackwardObserver* observer);
    void sort_observers(std::size_t from);
    std::size_t number_of(std::uint64_t sequence) const;  // of an opaque node

    bool create_graph_, over_ = false;
    std::vector<Event> events_;          // by falling sequence
    std::vector<std::uint64_t> opaque_;  // sequences of opaque nodes, falling
    std::size_t planned_ = 0;            // observers that edges of the graph reach
    std::size_t passed_ = 0, running_ = ~std::size_t(0);
    std::vector<Ref<GradientWatcher>> observers_;  // all are BackwardObservers
};

}  // namespace mezzo
