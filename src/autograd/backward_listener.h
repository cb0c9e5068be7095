// Listener to one backward pass. Data parallelism makes one, to reduce each gradient as soon as it is ready.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/internal.h"
#include "mezzo/tensor.h"

namespace mezzo {

struct Node;

// Calls come from the thread that runs the backward.
class BackwardListener {
public:
    virtual ~BackwardListener() = default;
    // The pass begins. Errors of its root gradients have been thrown before.
    virtual void begin() = 0;
    virtual void visiting(const Node& node) = 0;
    // A node has been visited. The next one has this sequence number; 0: there is none.
    virtual void visited(std::uint64_t next) = 0;
    // A gradient is going to be added to the leaf.
    virtual void delivering(const Tensor& leaf) = 0;
    // All gradients are ready, also those of leaves with hooks.
    virtual void end() = 0;
    // The pass has thrown, with this message.
    virtual void failed(std::string_view message) noexcept = 0;
};

// Makes the listener of a backward pass that starts at `outputs`, or null. Called for passes that are neither
// nested in another nor of autograd::grad().
using MakeBackwardListener = std::unique_ptr<BackwardListener>(const Tensors& outputs, bool create_graph);
// Null: no pass has a listener.
MEZZO_INTERNAL inline constinit std::atomic<MakeBackwardListener*> make_backward_listener{nullptr};

}  // namespace mezzo
