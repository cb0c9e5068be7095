// A step as a graph of device work: captured once, and replayed with the numbers that the host computes anew
// each time. Code whose kernels take values from the host, or that changes state on the host, calls
// StepGraph::capturing() and registers functions that a replay calls: numbers, conditions and actions. These
// functions outlive the capture, so they hold everything that they need by reference count.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/captured_gradients.h"
#include "core/internal.h"
#include "core/step_memory.h"
#include "mezzo/tensor.h"

namespace mezzo {

class StepGraph {
public:
    StepGraph(Device device, MemoryPlan plan);
    ~StepGraph();
    StepGraph(const StepGraph&) = delete;
    StepGraph& operator=(const StepGraph&) = delete;

    // The graph that this thread is capturing, or null.
    static StepGraph* capturing() { return current; }

    // Captures the step and launches the graph once. If the step throws, the work before that is launched,
    // too, as it would have run without a capture; the graph must not be replayed then.
    void capture(const std::function<void()>& step);
    // Whether all conditions of the capture still hold (require(), gradients()); otherwise the step has to be
    // captured anew. Launches nothing.
    bool fits() const;
    void replay();
    const MemoryPlan& plan() const { return plan_; }
    Device device() const { return device_; }

    // While capturing:
    // The device address of a number that is computed before each replay.
    const double* number(std::function<double()> value);
    // The same as a float64 tensor of shape {}.
    Tensor number_tensor(std::function<double()> value);
    // The device address of the random state from which a run starts. Kernels add to it the offset relative
    // to start() that they had in the capture.
    const RandomState* random() const;
    RandomState start() const { return start_; }
    // Registers a condition without which the graph must not be replayed.
    void require(std::function<bool()> condition) { conditions_.push_back(std::move(condition)); }
    // Registers an action that follows each replay, but not the capture.
    void after_replay(std::function<void()> action) { actions_.push_back(std::move(action)); }
    // Registers an action that follows each launch, also the one at the end of the capture. Nothing is being
    // captured when it runs.
    void after_launch(std::function<void()> action) { launched_.push_back(std::move(action)); }
    // Records of the gradient slots (core/gradient_slot.h).
    CapturedGradients& gradients() { return gradients_; }
    // Whether a tensor's memory was allocated by the captured step.
    bool owns(const Tensor& x) const;
    // Throws unless the state continues the stream of the step.
    void check_random_state(RandomState state) const;

private:
    struct Arguments;
    void launch(RandomState start);

    MEZZO_INTERNAL static constinit inline thread_local StepGraph* current = nullptr;
    const Device device_;
    const Backend& backend_;
    const MemoryPlan plan_;
    Ref<Storage> arguments_, arena_;
    HeldBlocks held_;
    void* graph_ = nullptr;
    RandomState start_;
    std::uint64_t drawn_ = 0;  // Philox blocks per run
    std::vector<std::function<double()>> numbers_;
    std::vector<std::function<bool()>> conditions_;
    std::vector<std::function<void()>> actions_, launched_;
    CapturedGradients gradients_{*this};
};

// Throws Error(state) in the name of op if this thread is capturing on the device: "op: a captured step
// cannot <what>".
MEZZO_INTERNAL void refuse_in_capture(const char* op, Device device, const char* what);
// The same for any device.
MEZZO_INTERNAL void refuse_in_capture(const char* op, const char* what);

}  // namespace mezzo
