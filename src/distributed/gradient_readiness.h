// Tracks when each gradient of a backward pass is ready for reduction.
#pragma once

#include <cstdint>
#include <vector>

#include "distributed/backward_observer.h"

namespace mezzo::distributed {

// A gradient is ready after every graph edge to its leaf, and the last opaque node (checkpointed segment)
// that adds to it, has run. The leaves that an opaque node reaches are not known before it runs; they are
// assumed to be those of the previous backward. If the previous backward had a different number of opaque
// nodes, or did not reach the leaf, the gradient counts as ready after the last opaque node.
class Arrivals {
public:
    explicit Arrivals(std::size_t leaves);

    void begin(const BackwardPlan& plan);
    // Leaves that nothing reaches in this backward.
    std::vector<std::uint32_t> unreached() const;
    // Both return the leaves whose gradients have become ready by this event.
    std::vector<std::uint32_t> finished(std::uint32_t place);
    std::vector<std::uint32_t> opaque_finished(std::size_t number);
    void opaque_begins(std::size_t number) { running_ = number; }
    void delivered(std::uint32_t place);
    void end();

    bool opaque() const { return opaque_ != 0; }
    bool was_reached(std::uint32_t place) const { return reached_[place] || deliveries_[place] != 0; }
    // All leaves: first in the order in which their gradients became ready, as far as it is known; then the
    // leaves that were not reached, the last of the module first.
    std::vector<std::uint32_t> order() const;

private:
    static constexpr std::size_t none = ~std::size_t(0);
    void set_expected();

    std::size_t opaque_ = 0, opaque_before_ = 0;  // how many opaque nodes
    std::size_t running_ = none;                  // the opaque node that is running
    std::vector<std::uint32_t> plan_;             // leaves that edges reach, in order
    std::vector<bool> reached_;                   // by edges
    std::vector<bool> open_;                      // edges may bring more
    std::vector<std::size_t> expected_;           // the opaque node to wait for
    std::vector<std::size_t> last_opaque_, last_opaque_before_;
    std::vector<std::uint64_t> deliveries_;  // number of the last delivery; 0: none
    std::uint64_t delivery_ = 0;
};

}  // namespace mezzo::distributed
