// A step as a graph of device work: captured once, replayed with what the host decides anew each time. Code
// whose kernels take values from the host, or that keeps books on the host, asks StepGraph::capturing() and
// says what a replay has to refresh, to check and to do. What it says outlives the capture: it holds by
// reference count whatever it will need.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/captured_gradients.h"
#include "core/step_memory.h"
#include "mezzo/tensor.h"

namespace mezzo {

class StepGraph {
public:
    // `branches`: whether the graph may have parallel branches (core/branch.h). So must the traced run.
    StepGraph(Device device, MemoryPlan plan, bool branches);
    ~StepGraph();
    StepGraph(const StepGraph&) = delete;
    StepGraph& operator=(const StepGraph&) = delete;

    // The graph that this thread is capturing, or null.
    static StepGraph* capturing() { return current; }

    // Captures the step and runs what it captured. A step that throws has the work before that run too, as
    // without a capture; such a graph is of no further use.
    void capture(const std::function<void()>& step);
    // Whether the host is where it was when the step was captured: otherwise it has to be captured anew.
    // Launches nothing.
    bool fits() const;
    void replay();
    const MemoryPlan& plan() const { return plan_; }
    Device device() const { return device_; }
    std::size_t forks() const { return forks_; }  // how often the graph has two branches

    // While capturing:
    // The device address of a number that is computed before each replay.
    const double* number(std::function<double()> value);
    // The same as a float64 tensor of shape {}.
    Tensor number_tensor(std::function<double()> value);
    // The device address of the random state that this run starts from; offsets are taken relative to
    // start().
    const RandomState* random() const;
    RandomState start() const { return start_; }
    // Asked before each replay.
    void require(std::function<bool()> condition) { conditions_.push_back(std::move(condition)); }
    // Done after each replay, not after the capture.
    void after_replay(std::function<void()> action) { actions_.push_back(std::move(action)); }
    // For the slots of gradients (core/gradient_slot.h).
    CapturedGradients& gradients() { return gradients_; }
    // Whether a tensor's memory is the step's own.
    bool owns(const Tensor& x) const;
    // Throws unless the state continues the stream of the step.
    void check_random_state(RandomState state) const;

private:
    struct Arguments;
    void launch(RandomState start);

    static constinit inline thread_local StepGraph* current = nullptr;
    const Device device_;
    const Backend& backend_;
    const MemoryPlan plan_;
    const bool branches_;
    std::size_t forks_ = 0;
    Ref<Storage> arguments_, arena_;
    HeldBlocks held_;
    void* graph_ = nullptr;
    RandomState start_;
    std::uint64_t drawn_ = 0;  // Philox blocks per run
    std::vector<std::function<double()>> numbers_;
    std::vector<std::function<bool()>> conditions_;
    std::vector<std::function<void()>> actions_;
    CapturedGradients gradients_{*this};
};

// Throws Error(state) in the name of op if this thread is capturing on the device: "op: a captured step
// cannot <what>".
void refuse_in_capture(const char* op, Device device, const char* what);
// The same for any device.
void refuse_in_capture(const char* op, const char* what);

}  // namespace mezzo
