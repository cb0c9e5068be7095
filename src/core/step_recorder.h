// Recorder of the step that this thread captures. Code whose kernels take values from the host, or that
// changes state on the host, registers functions that a replay calls: numbers, conditions and actions. These
// functions outlive the capture, so they hold everything that they need by reference count.
//
//   if (StepRecorder* const recorder = thread_state.recorder)
//       args.lr_on_device = recorder->number([own = Ref(this)] { return own->lr; });
#pragma once

#include <functional>

#include "core/gradient/scale_state.h"
#include "core/internal.h"
#include "core/thread_state.h"
#include "mezzo/tensor.h"

namespace mezzo {

struct TensorImpl;

class StepRecorder {
public:
    StepRecorder(const StepRecorder&) = delete;
    StepRecorder& operator=(const StepRecorder&) = delete;

    virtual Device device() const = 0;
    // The device address of a number that is computed before each replay.
    virtual const double* number(std::function<double()> value) = 0;
    // The same as a float64 tensor of shape {}.
    virtual Tensor number_tensor(std::function<double()> value) = 0;
    // The device address of the random state from which a run starts. Kernels add to it the offset relative
    // to start() that they had in the capture.
    virtual const RandomState* random() const = 0;
    virtual RandomState start() const = 0;
    // Throws unless the state continues the stream of the step.
    virtual void check_random_state(RandomState state) const = 0;
    // Registers a condition without which the graph must not be replayed.
    virtual void require(std::function<bool()> condition) = 0;
    // Registers an action that follows each replay, but not the capture.
    virtual void after_replay(std::function<void()> action) = 0;
    // Registers an action that follows each launch, also the one at the end of the capture. Nothing is being
    // captured when it runs.
    virtual void after_launch(std::function<void()> action) = 0;
    // Whether a tensor's memory was allocated by the step.
    virtual bool owns(const Tensor& x) const = 0;

    // Called by gradient slots (core/gradient/gradient_slot.h). The gradient of a leaf, or its absence, is
    // used: if it comes from before the step, replays require it at the address that it has now.
    virtual void gradient_used(TensorImpl& leaf) = 0;
    // The gradient is dropped or replaced, whatever it was.
    virtual void gradient_replaced(TensorImpl& leaf) = 0;
    // The step has changed the scale state (core/gradient/scale_state.h) of the gradient. known: `state` is
    // the whole state, whatever it was before the step; otherwise `state` is added to it.
    virtual void scale_state_changed(TensorImpl& leaf, bool known, ScaleState state) = 0;
    // Replays require that the gradient does not have all of these parts at this point of the step.
    virtual void require_not_scale_state(TensorImpl& leaf, ScaleState parts) = 0;
    // The tensor is destroyed.
    virtual void leaf_destroyed(TensorImpl& leaf) noexcept = 0;
    // The step uses or changes the scale `id`, which is current() right now. In replays, gradients get the
    // ids of the scaler's scales at that time. Only the first call for a scaler counts.
    virtual void follow_scale(ScaleState id, std::function<ScaleState()> current) = 0;

protected:
    StepRecorder() = default;
    ~StepRecorder() = default;
};

// Throws Error(state) in the name of op if this thread is capturing on the device: "op: a captured step
// cannot <what>".
MEZZO_INTERNAL void refuse_in_capture(const char* op, Device device, const char* what);
// The same for any device.
MEZZO_INTERNAL void refuse_in_capture(const char* op, const char* what);

}  // namespace mezzo
