// A step as a graph of device work: captured once, and replayed with the numbers that the host computes anew
// each time. While it captures, it is the thread's StepRecorder.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "capture/captured_gradients.h"
#include "capture/step_memory.h"
#include "core/step_recorder.h"

namespace mezzo {

class StepGraph final : public StepRecorder {
public:
    StepGraph(Device device, MemoryPlan plan);
    ~StepGraph();

    // Captures the step and launches the graph once. If the step throws, the work before that is launched,
    // too, as it would have run without a capture; the graph must not be replayed then.
    void capture(const std::function<void()>& step);
    // Whether all conditions of the capture still hold (require(), gradients); otherwise the step has to be
    // captured anew. Launches nothing.
    bool fits() const;
    void replay();
    const MemoryPlan& plan() const { return plan_; }

    Device device() const override { return device_; }
    const double* number(std::function<double()> value) override;
    Tensor number_tensor(std::function<double()> value) override;
    const RandomState* random() const override;
    RandomState start() const override { return start_; }
    void check_random_state(RandomState state) const override;
    void require(std::function<bool()> condition) override { conditions_.push_back(std::move(condition)); }
    void after_replay(std::function<void()> action) override { actions_.push_back(std::move(action)); }
    void after_launch(std::function<void()> action) override { launched_.push_back(std::move(action)); }
    bool owns(const Tensor& x) const override;
    void gradient_used(TensorImpl& leaf) override { gradients_.used(leaf); }
    void gradient_replaced(TensorImpl& leaf) override { gradients_.replaced(leaf); }
    void scale_state_changed(TensorImpl& leaf, bool known, ScaleState state) override {
        gradients_.note_scale_state(leaf, known, state);
    }
    void require_not_scale_state(TensorImpl& leaf, ScaleState parts) override {
        gradients_.require_not_scale_state(leaf, parts);
    }
    void leaf_destroyed(TensorImpl& leaf) noexcept override { gradients_.leaf_gone(leaf); }
    void follow_scale(ScaleState id, std::function<ScaleState()> current) override {
        gradients_.follow_scale(id, std::move(current));
    }

private:
    struct Arguments;
    void launch(RandomState start);

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

}  // namespace mezzo
