// A step as a graph of device work: recorded once, replayed with what the host decides anew each time. Code
// whose kernels take values from the host, or that keeps books on the host, asks StepGraph::recording() and
// says what a replay has to refresh, to check and to do.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

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

    // The graph this thread is recording, or null.
    static StepGraph* recording() { return current; }

    // Records the step and runs what it recorded. A step that throws has the work before that run too, as
    // without a capture; such a graph is of no further use.
    void record(const std::function<void()>& step);
    // Whether the host is where it was when the graph was recorded: otherwise it has to be recorded anew.
    bool fits() const;
    void replay();
    const MemoryPlan& plan() const { return plan_; }
    Device device() const { return device_; }
    std::size_t forks() const { return forks_; }  // how often the graph has two branches
    std::uint64_t id() const { return id_; }      // different for every graph; not 0

    // While recording:
    // The device address of a number that is computed before each replay.
    const double* number(std::function<double()> value);
    // The device address of the random state that this run starts from; offsets are taken relative to
    // start().
    const RandomState* random() const;
    RandomState start() const { return start_; }
    // Asked before each replay.
    void require(std::function<bool()> condition) { conditions_.push_back(std::move(condition)); }
    // Done after each replay, not after the recording.
    void after_replay(std::function<void()> action) { actions_.push_back(std::move(action)); }
    // A leaf's gradient is about to be read or written, or was dropped. If it comes from before the step,
    // replays need it to be as it is now.
    void gradient_used(const Tensor& leaf);
    void gradient_dropped(const Tensor& leaf) { own_gradients_.insert(leaf.impl()); }
    // What the step did to the scale's part in a gradient (core/scale_parts.h). `known`: these are all parts
    // it has now, whatever it had before the step.
    void note_scale_parts(TensorImpl& leaf, bool known, std::uint8_t parts);
    // Replays need the gradient not to have all of these parts here.
    void require_not_scale_parts(TensorImpl& leaf, std::uint8_t parts);
    // A tensor with gradient bookkeeping has been destroyed: it was the step's own.
    void leaf_gone(TensorImpl* leaf) noexcept;
    // Whether a tensor's memory is the step's own.
    bool owns(const Tensor& x) const;
    // Throws unless the state continues the stream of the step.
    void check_random_state(RandomState state) const;

private:
    struct Arguments;
    void launch(RandomState start);
    void restore_gradients();
    void require_gradients();
    void follow_scale_parts();

    static constinit inline thread_local StepGraph* current = nullptr;
    const std::uint64_t id_;
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
    // While recording: leaves met, and those of them whose gradient at the first meeting came from before the
    // step. No references, which would make gradients live longer than without a capture.
    struct FirstMeeting {
        TensorImpl* leaf;
        const void* gradient;
    };
    std::unordered_set<TensorImpl*> own_gradients_;
    std::vector<FirstMeeting> meetings_;
    struct ScaleParts {
        bool known = false;
        std::uint8_t parts = 0;
    };
    std::unordered_map<TensorImpl*, ScaleParts> scale_parts_;
};

// Throws Error(state) in the name of op if this thread is recording on the device: "op: a captured step
// cannot <what>".
void refuse_in_capture(const char* op, Device device, const char* what);
// The same for any device.
void refuse_in_capture(const char* op, const char* what);

}  // namespace mezzo
