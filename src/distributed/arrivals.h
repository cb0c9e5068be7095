// When the gradients of one backward are final.
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/observer.h"

namespace mezzo::distributed {

// A gradient is final when the last edge and the last opaque node that bring parts of it are done. Which opaque nodes (checkpointed segments) do is
// not known before they run: it is assumed to be as in the backward before. Where that had another number of them, and for parameters that nobody
// reached in it, it is the last one.
class Arrivals {
public:
    explicit Arrivals(std::size_t leaves);

    void begin(const BackwardPlan& plan);
    // Leaves that nothing will reach in this backward.
    std::vector<std::uint32_t> unreached() const;
    // Both return the leaves that have become final by it.
    std::vector<std::uint32_t> finished(std::uint32_t place);
    std::vector<std::uint32_t> opaque_finished(std::size_t number);
    void opaque_begins(std::size_t number) { running_ = number; }
    void delivered(std::uint32_t place);
    void end();

    bool opaque() const { return opaque_ != 0; }
    bool was_reached(std::uint32_t place) const { return reached_[place] || deliveries_[place] != 0; }
    // All leaves: in the order in which they became final, as far as it is known; then those that were not reached, the last
    // ones of the module first.
    std::vector<std::uint32_t> order() const;

private:
    static constexpr std::size_t none = ~std::size_t(0);
    void set_expected();

    std::size_t opaque_ = 0, opaque_before_ = 0;  // numbers of opaque nodes
    std::size_t running_ = none;                  // the opaque node that is running
    std::vector<std::uint32_t> plan_;             // order of those that edges reach
    std::vector<bool> reached_;                   // by edges
    std::vector<bool> open_;                      // edges may bring more
    std::vector<std::size_t> expected_;           // the opaque node that is awaited
    std::vector<std::size_t> last_opaque_, last_opaque_before_;
    std::vector<std::uint64_t> deliveries_;  // the number of the last delivery; 0: none
    std::uint64_t delivery_ = 0;
};

}  // namespace mezzo::distributed
