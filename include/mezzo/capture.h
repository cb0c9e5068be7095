// Whole training steps as CUDA graphs: one launch per step instead of hundreds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mezzo/autograd.h"
#include "mezzo/device.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::cuda {

using StepFunction = autograd::Callback<Tensors(const Tensors&)>;

struct CaptureOptions {
    int warmup = 3;      // >= 1: eager runs before a capture; the last one plans the memory
    int max_graphs = 4;  // >= 1: graphs kept, one per set of shapes and dtypes; the least recently used goes
    Device device = best_device();  // where the step runs; inputs are copied there
};

struct CaptureStatistics {
    std::uint64_t eager_runs = 0, captures = 0, replays = 0;  // calls of each kind
    std::size_t graphs = 0;                                   // kept now
    std::size_t planned_bytes = 0;    // device memory that the graphs hold for the step's tensors
    std::size_t live_peak_bytes = 0;  // what their steps have alive at once; planned_bytes cannot be less
};

struct [[gnu::visibility("hidden")]] CapturedStepImpl;

// Runs a step (forward, backward, scaler, optimizer, or any part of it), and after a few calls replays it as
// a CUDA graph. The numbers are those of eager calls, dropout masks, learning rates and skipped steps
// included.
//  - The step sees copies of the inputs on options.device, at the same addresses in every call of one shape.
//    Its results are detached. Those of a replay are overwritten by the next call of the same shape: clone()
//    what is to be kept.
//  - A call runs the device work of the captured call again, not the host code. What the host decides must be
//    the same in every call: one CapturedStep for training and one for evaluation, every micro-batch of an
//    update inside the step, schedules and set_lr() after the call. Modules must outlive it.
//    Its graphs hold optimizers and scalers: replays go on without them, calls that run the step do not.
//  - After load_state_dict(), a move to another device, a changed option of the scaler, or gradients that the
//    step finds where there were none, the step is warmed up and captured again. State other than parameters,
//    gradients, optimizers and scalers must be kept in tensors that are written in place.
//  - zero_grad() belongs into the step, best at its end: gradients that a call leaves are held, and unscaled.
//  - What reads values on the host, copies from it, waits, or meets a matrix product for the first time
//    cannot be captured: Error(state) names it. As without a capture, the work before the error has been
//    done, and the step's objects stay usable; the next calls are warm-up runs again.
//  - A step in which several processes take part (mezzo/distributed.h) asks them before each call: all run
//    it, all capture it or all replay it.
//  - An Autocast scope is opened inside the step. Call it from one thread at a time, and let no other thread
//    queue work on the device during a capture.
// On the CPU, and in a build without CUDA, every call simply runs the step. See also "What has not run on a
// GPU" in docs/cuda.md.
class CapturedStep {
public:
    // Error(value) for warmup or max_graphs below 1, Error(device) for a device that is not there.
    explicit CapturedStep(StepFunction step, const CaptureOptions& options = {});
    ~CapturedStep();
    CapturedStep(const CapturedStep&) = delete;
    CapturedStep& operator=(const CapturedStep&) = delete;

    // Throws Error(value) for an undefined input and one that requires grad, Error(state) inside an Autocast
    // scope, and what the step throws.
    Tensors operator()(const Tensors& inputs);
    [[nodiscard]] CaptureStatistics statistics() const;
    // Drops all graphs and the memory they hold; the next calls are warm-up runs.
    void clear();

private:
    CapturedStepImpl* impl_;
};

}  // namespace mezzo::cuda

#pragma GCC visibility pop
